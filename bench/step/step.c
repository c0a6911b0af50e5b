/* `spillway bench step`: a training step as placed, in turn with the same step wholly resident and with its own I/O
 * alone. */
#include "bench/step/step.h"

#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/simulate/measure.h"
#include "run/agreement.h"
#include "run/trace_file.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MASTER_AND_MOMENTS_BYTES = 12 };

static int64_t parameters_of(const struct sw_unit *unit) {
    int64_t sum = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++)
        sum += unit->tensor[t].elems;
    return sum;
}

/* Returns the bytes of a unit's optimizer state without padding: of a parameter, its part of a full grain's bytes, of
 * one that Muon updates or of another, or in a wide grain those of fp32. */
static int64_t state_bytes_of(const struct sw_units *units, int64_t unit) {
    const struct sw_unit *of = &units->unit[unit];
    int64_t muon = 0, narrow = 0, wide = 0;
    for (int64_t t = 0; t < of->tensor_count; t++) {
        int64_t *kind = of->tensor[t].offset >= of->wide_grain * SW_GRAIN_ELEMS ? &wide : &narrow;
        if (of->tensor[t].muon_count > 0)
            kind = &muon;
        *kind += of->tensor[t].elems;
    }
    return sw_div_up(muon * sw_optimizer_muon_bytes(units->optimizer) +
                         narrow * sw_optimizer_grain_bytes(units->optimizer),
                     SW_GRAIN_ELEMS) +
           MASTER_AND_MOMENTS_BYTES * wide;
}

/* Returns the elements of the embedding that a step needs: of a table of positions, as many rows as sequences are long;
 * a tied table as a whole, for the head; of an untied table, the rows that the step's tokens can name. */
static int64_t embedding_elems(const struct sw_least_shape *shape) {
    const struct sw_unit *unit = &shape->units->unit[0];
    int64_t elems = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const int64_t rows = unit->tensor[t].dim[0], row_elems = unit->tensor[t].elems / rows;
        const int64_t named = shape->units->tied ? rows : shape->tokens, used = t > 0 ? shape->seq : named;
        elems += sw_min_i64(rows, used) * row_elems;
    }
    return elems;
}

/* Returns how often a step needs a unit's weights on the device at different times. */
static int visits_of(const struct sw_least_shape *shape, int64_t unit) {
    const int64_t head = shape->units->count - 1;
    /* Blocks in 8 bits have the slots of units for themselves, so that two of them stay. */
    return unit == 0 || unit >= head - (shape->units->fp8 ? 2 : 1) ? 1 : 2;
}

static bool streams(const struct sw_least_shape *shape, int64_t unit) {
    return shape->update_on_device != NULL && shape->update_on_device[unit] &&
           shape->placement[unit].tier[SW_OPTIMIZER] != SW_DEVICE;
}

static bool updated_on_device(const struct sw_least_shape *shape, int64_t unit) {
    return shape->placement[unit].tier[SW_OPTIMIZER] == SW_DEVICE || streams(shape, unit);
}

static void add_weights(const struct sw_least_shape *shape, int64_t unit, int64_t weights_bytes,
                        int64_t bytes[SW_LANES]) {
    const struct sw_unit_placement at = shape->placement[unit];
    const bool on_device = updated_on_device(shape, unit);
    const int64_t fetched_bytes = unit == 0 ? embedding_elems(shape) * sw_dtype_bytes(shape->type) : weights_bytes;
    if (at.tier[SW_WEIGHTS] == SW_DEVICE) {
        bytes[SW_LANE_UPLOAD] += on_device ? 0 : weights_bytes;
        return;
    }
    /* An update on the device makes the weights that the next forward pass reads there, unless it is speculated: its
     * weights then do not stay on the device until that pass, except a tied table, which stays there from the
     * embedding's backward pass on. */
    const int later = visits_of(shape, unit) - 1;
    const bool feeds = !shape->speculated || (unit == 0 && shape->units->tied);
    bytes[SW_LANE_UPLOAD] += later * fetched_bytes;
    bytes[SW_LANE_UPLOAD] += on_device && feeds ? 0 : fetched_bytes;
    bytes[SW_LANE_DOWNLOAD] += on_device ? weights_bytes : 0;
    if (at.tier[SW_WEIGHTS] != SW_NVME)
        return;
    bytes[SW_LANE_WRITE] += weights_bytes;
    bytes[SW_LANE_READ] += (later + (feeds ? 0 : 1)) * fetched_bytes;
}

static void add_update(const struct sw_least_shape *shape, int64_t unit, int64_t weights_bytes,
                       int64_t bytes[SW_LANES]) {
    const int64_t state_bytes = state_bytes_of(shape->units, unit), type_bytes = sw_dtype_bytes(shape->type);
    const int64_t elems = parameters_of(&shape->units->unit[unit]);
    const int64_t grads_bytes = sw_div_up(elems * sw_grads_grain_bytes(shape->grads, type_bytes), SW_GRAIN_ELEMS);
    const struct sw_unit_placement at = shape->placement[unit];
    const bool on_device = updated_on_device(shape, unit), kept = at.tier[SW_GRADS] == SW_DEVICE;
    const int64_t streamed_bytes = streams(shape, unit) ? state_bytes : 0;
    bytes[SW_LANE_DOWNLOAD] += streamed_bytes + (kept && on_device ? 0 : grads_bytes);
    bytes[SW_LANE_UPLOAD] += streamed_bytes + (!kept && on_device && !shape->speculated ? grads_bytes : 0);
    if (at.tier[SW_GRADS] == SW_NVME) {
        bytes[SW_LANE_WRITE] += grads_bytes;
        bytes[SW_LANE_READ] += shape->speculated ? 0 : grads_bytes;
    }
    if (at.tier[SW_OPTIMIZER] == SW_NVME) {
        bytes[SW_LANE_READ] += state_bytes;
        bytes[SW_LANE_WRITE] += state_bytes;
    }
    bytes[SW_LANE_UPDATE] += on_device ? 0 : 2 * state_bytes + grads_bytes + weights_bytes;
}

static void add_inputs(const struct sw_least_shape *shape, int64_t unit, int64_t bytes[SW_LANES]) {
    const sw_tier tier = shape->placement[unit].tier[SW_ACTS];
    const int64_t all_bytes = shape->micro_batches * shape->cost[unit - 1].output_bytes;
    if (tier == SW_DEVICE)
        return;
    bytes[SW_LANE_DOWNLOAD] += all_bytes;
    bytes[SW_LANE_UPLOAD] += all_bytes;
    bytes[SW_LANE_WRITE] += tier == SW_NVME ? all_bytes : 0;
    bytes[SW_LANE_READ] += tier == SW_NVME ? all_bytes : 0;
}

void sw_least_bytes(const struct sw_least_shape *shape, int64_t out[SW_LANES]) {
    for (int lane = 0; lane < SW_LANES; lane++)
        out[lane] = 0;
    for (int64_t u = 0; u < shape->units->count; u++) {
        const int64_t elems = parameters_of(&shape->units->unit[u]);
        /* Norms and biases of blocks in 8 bits have two bytes each, which are too few to count. */
        const int64_t weights_bytes = elems * sw_units_weights_bytes(shape->units, u, shape->type) / SW_GRAIN_ELEMS;
        add_weights(shape, u, weights_bytes, out);
        add_update(shape, u, weights_bytes, out);
        if (u > 0 && u + 1 < shape->units->count && !shape->cost[u].shares_input)
            add_inputs(shape, u, out);
    }
}

/* The speed of a step against the device's: its arithmetic over the device's peak and over the rate of its matrix
 * products, and the time that no plan can go below. */
struct sw_step_speed {
    double flops_per_s;          /* the model's arithmetic; recomputation is not counted */
    double peak_flops_per_s;     /* 0: not known */
    double of_peak, of_products; /* of_peak: NAN where the peak is not known */
    /* The slowest of: the model's operations at the peak (at the rate of products where that is not known), and the
     * least bytes of each lane at its measured rate. */
    double light_s, of_light;
    const char *light_lane;
};

/* The report of `bench step`, for people and for programs. */

/* Measures the rate of the model's products where the kept rates lack it, and keeps it. Call it before the contenders
 * take their memory, because it takes some for operands. */
static sw_status step_measure_products(struct sw_step_bench *b) {
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    struct sw_bench_products products;
    double *rate = &b->job.rates.products_flops_per_s;
    if (*rate > 0.0)
        return SW_OK;
    const int count = sw_model_products(b->job.model, product);
    sw_status status = sw_bench_products_open(b->job.devices.compute, product, count, &products);
    if (status == SW_OK)
        status = sw_bench_products_rate(&products, product, count, rate);
    sw_bench_products_close(&products);
    return status == SW_OK ? sw_job_keep_rates(&b->job) : status;
}

static void slower(struct sw_step_speed *speed, sw_lane lane, double seconds) {
    if (!(seconds > speed->light_s))
        return;
    speed->light_s = seconds;
    speed->light_lane = sw_lane_name(lane);
}

static struct sw_step_speed step_speed(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->settings;
    const struct sw_rates *rates = &b->job.rates.rates;
    const struct sw_device_info info = sw_devices_info(&b->job.devices);
    const int64_t tokens = s->batch_tokens / sw_settings_ranks(s); /* this rank's, per step */
    const double flops = sw_model_flops_per_token(&b->job.config, s->seq) * (double)tokens;
    const double placed_s = b->median_s[SW_STEP_PLACED];
    const struct {
        sw_lane lane;
        double bytes_per_s;
    } links[] = {{SW_LANE_UPLOAD, rates->upload.bytes_per_s},
                 {SW_LANE_DOWNLOAD, rates->download.bytes_per_s},
                 {SW_LANE_READ, rates->read.bytes_per_s},
                 {SW_LANE_WRITE, rates->write.bytes_per_s}};
    struct sw_step_speed speed = {.flops_per_s = flops / placed_s,
                                  .peak_flops_per_s = sw_peak_flops_per_s(&info, sw_settings_type(s))};
    const bool known = speed.peak_flops_per_s > 0.0;
    speed.of_peak = known ? speed.flops_per_s / speed.peak_flops_per_s : NAN;
    speed.of_products = speed.flops_per_s / b->job.rates.products_flops_per_s;
    slower(&speed, SW_LANE_COMPUTE, flops / (known ? speed.peak_flops_per_s : b->job.rates.products_flops_per_s));
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        if (b->least[links[i].lane] > 0 && links[i].bytes_per_s > 0.0)
            slower(&speed, links[i].lane, (double)b->least[links[i].lane] / links[i].bytes_per_s);
    speed.of_light = speed.light_s / placed_s;
    return speed;
}

static const struct sw_simulation *prediction_of(const struct sw_step_bench *b) {
    return b->speculates ? &b->job.price.prediction.speculated : &b->job.price.prediction.plain;
}

/* Returns the lane that worked for the largest part of the step. */
static sw_lane busiest_lane(const struct sw_step_bench *b) {
    const double *busy = b->times[SW_STEP_PLACED].last.busy_seconds;
    int most = 0;
    for (int lane = 1; lane < SW_LANES; lane++)
        most = busy[lane] > busy[most] ? lane : most;
    return (sw_lane)most;
}

/* The time of a step, measured or predicted. */
struct time_row {
    const char *key, *text;
    double step_s, tokens_per_s, placed_ratio; /* placed_ratio: the placed step over this one */
    int64_t steps;                             /* measured; -1: the step is predicted */
    const char *bottleneck;                    /* name of the lane that bounds the predicted step */
    double bottleneck_share;
};

#define ROW struct time_row
static const struct sw_bench_field time_fields[] = {
    {SW_AT(SW_FIELD_TEXT, key)},
    {.heading = "", SW_AT(SW_FIELD_TEXT, text)},
    {.name = "step_s", .heading = "seconds", SW_AT(SW_FIELD_REAL, step_s), .digits = 3},
    {.heading = "tokens/s", SW_AT(SW_FIELD_REAL, tokens_per_s)},
    {.name = "placed_ratio", .heading = "placed to it", SW_AT(SW_FIELD_REAL, placed_ratio), .digits = 3},
    {.name = "steps", SW_AT(SW_FIELD_COUNT, steps)},
    {.name = "bottleneck", SW_AT(SW_FIELD_TEXT, bottleneck)},
    {.name = "bottleneck_share", SW_AT(SW_FIELD_REAL, bottleneck_share)},
};

/* Rows of the steps that were measured, and of the predictions of the last and of the placed one. */
enum { TIME_ROWS = SW_STEP_KINDS + 2 };

/* Fills the rows. Returns their count. */
static int list_times(const struct sw_step_bench *b, struct time_row rows[TIME_ROWS]) {
    static const char *const keys[] = {"resident", "placed", "io_alone", "adamw"};
    static const char *const texts[] = {"resident", "as placed", "its own I/O alone", "with AdamW"};
    const struct sw_simulation *predicted = prediction_of(b);
    const double tokens = (double)b->settings.batch_tokens, placed_s = b->median_s[SW_STEP_PLACED];
    int count = 0;
    for (int k = 0; k < SW_STEP_KINDS; k++)
        if (b->median_s[k] > 0.0)
            rows[count++] = (struct time_row){.key = keys[k],
                                              .text = texts[k],
                                              .step_s = b->median_s[k],
                                              .steps = b->times[k].count,
                                              .bottleneck_share = NAN};
    if (b->adamw_predicted_s > 0.0)
        rows[count++] = (struct time_row){.key = "adamw_predicted",
                                          .text = "with AdamW, predicted",
                                          .step_s = b->adamw_predicted_s,
                                          .steps = -1,
                                          .bottleneck_share = NAN};
    rows[count++] = (struct time_row){.key = "predicted",
                                      .text = "predicted",
                                      .step_s = predicted->step_s,
                                      .steps = -1,
                                      .bottleneck = predicted->bottleneck,
                                      .bottleneck_share = predicted->bottleneck_share};
    for (int i = 0; i < count; i++) {
        rows[i].tokens_per_s = tokens / rows[i].step_s;
        rows[i].placed_ratio = placed_s / rows[i].step_s;
    }
    return count;
}

/* A lane in the last step as placed. */
struct lane_row {
    const char *name;
    double busy_s, busy_share, ratio; /* ratio: bytes over the least; NAN: there is no least */
    int64_t bytes, least_bytes;       /* -1: the lane moves none */
};

#undef ROW
#define ROW struct lane_row
static const struct sw_bench_field lane_fields[] = {
    {.heading = "lanes of the last step", SW_AT(SW_FIELD_TEXT, name)},
    {.name = "busy_s", .heading = "busy, s", SW_AT(SW_FIELD_REAL, busy_s), .digits = 3},
    {.name = "busy_share", .heading = "of it, %", SW_AT(SW_FIELD_REAL, busy_share), .scale = 100.0},
    {.name = "bytes", .heading = "bytes", SW_AT(SW_FIELD_SIZE, bytes)},
    {.name = "least_bytes", .heading = "least", SW_AT(SW_FIELD_SIZE, least_bytes)},
    {.heading = "ratio", SW_AT(SW_FIELD_REAL, ratio), .digits = 4},
};

static void list_lanes(const struct sw_step_bench *b, struct lane_row rows[SW_LANES]) {
    const struct sw_step_result *step = &b->times[SW_STEP_PLACED].last;
    for (int lane = 0; lane < SW_LANES; lane++) {
        const bool moves = lane != SW_LANE_COMPUTE;
        rows[lane] = (struct lane_row){
            .name = sw_lane_name((sw_lane)lane),
            .busy_s = step->busy_seconds[lane],
            .busy_share = step->busy_seconds[lane] / step->seconds,
            .ratio = b->least[lane] > 0 ? (double)step->lane_bytes[lane] / (double)b->least[lane] : NAN,
            .bytes = moves ? step->lane_bytes[lane] : -1,
            .least_bytes = moves ? b->least[lane] : -1};
    }
}

/* The exchange of ranks in a step. */
struct exchange_row {
    const char *key, *text;
    double step_s, comm_s, hidden_share;
};

#undef ROW
#define ROW struct exchange_row
static const struct sw_bench_field exchange_fields[] = {
    {SW_AT(SW_FIELD_TEXT, key)},
    {.heading = "", SW_AT(SW_FIELD_TEXT, text)},
    {.name = "step_s", .heading = "step, s", SW_AT(SW_FIELD_REAL, step_s), .digits = 3},
    {.name = "comm_s", .heading = "comm, s", SW_AT(SW_FIELD_REAL, comm_s), .digits = 3},
    {.name = "hidden_share", .heading = "behind compute, %", SW_AT(SW_FIELD_REAL, hidden_share), .scale = 100.0},
};

static void list_exchange(const struct sw_step_bench *b, struct exchange_row rows[SW_STEP_COMMS]) {
    static const char *const names[SW_STEP_COMMS][2] = {
        [SW_STEP_COMM_PLACED] = {"placed", "as placed"},
        [SW_STEP_COMM_PREDICTED] = {"predicted", "predicted"},
        [SW_STEP_COMM_ONE_CORE_MORE] = {"predicted_one_core_more", "and with a core more"},
    };
    for (int i = 0; i < SW_STEP_COMMS; i++) {
        const struct sw_overlap *overlap = &b->exchange[i].overlap;
        rows[i] = (struct exchange_row){names[i][0], names[i][1], b->exchange[i].step_s, overlap->comm_s,
                                        overlap->comm_s > 0.0 ? overlap->hidden_s / overlap->comm_s : 1.0};
    }
}

static void print_speed(const struct sw_step_bench *b) {
    const struct sw_step_speed speed = step_speed(b);
    printf("%.2f Tflop/s of the model", speed.flops_per_s * 1e-12);
    if (isfinite(speed.of_peak))
        printf(", %.3f of the peak of %.0f", speed.of_peak, speed.peak_flops_per_s * 1e-12);
    printf("\n%.3f of its matrix products' %.2f Tflop/s\n%.3f of the speed of light (%.3f s, by %s)\n",
           speed.of_products, b->job.rates.products_flops_per_s * 1e-12, speed.of_light, speed.light_s,
           speed.light_lane);
}

static void step_bench_print(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->settings;
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], nvme[SW_SIZE_CHARS];
    const int64_t *peak = b->job.plan->tier_bytes;
    struct time_row times[TIME_ROWS];
    struct lane_row lanes[SW_LANES];
    struct exchange_row exchange[SW_STEP_COMMS];
    const int time_count = list_times(b, times);
    list_lanes(b, lanes);
    printf("%s, %s, %lld tokens a step in micro-batches of %lld x %lld\n--place %s\n%s; updates %s\n", s->model,
           sw_settings_precision_name(s), (long long)s->batch_tokens, (long long)s->micro_batch, (long long)s->seq,
           s->place, SW_COUNT(s->threads, "thread"),
           b->speculates ? "speculated in the backward pass" : "under the next forward pass");
    printf("peaks: device %s, host %s, nvme %s\n", sw_format_size(peak[SW_DEVICE], device),
           sw_format_size(peak[SW_HOST], host), sw_format_size(peak[SW_NVME], nvme));
    printf("a step (median of %d, in turn)\n", b->times[SW_STEP_PLACED].count);
    sw_table_print(SW_TABLE(time_fields, times, time_count));
    printf("the prediction has %s busy for %.0f%% of the step\n", times[time_count - 1].bottleneck,
           100.0 * times[time_count - 1].bottleneck_share);
    print_speed(b);
    sw_table_print(SW_TABLE(lane_fields, lanes, SW_LANES));
    printf("busiest: %s\n", sw_lane_name(busiest_lane(b)));
    if (sw_ranks_comm(&b->ranks) == NULL)
        return;
    list_exchange(b, exchange);
    printf("%d ranks by %s, ZeRO stage %d\n", sw_ranks_count(&b->ranks), sw_comm_transport_name(b->ranks.comm),
           b->job.plan->spec.zero);
    sw_table_print(SW_TABLE(exchange_fields, exchange, SW_STEP_COMMS));
}

static json_t *speed_json(const struct sw_step_bench *b) {
    const struct sw_step_speed speed = step_speed(b);
    const bool known = isfinite(speed.of_peak);
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:o, s:{s:f, s:f, s:s}}", "tokens_per_s",
                     (double)b->settings.batch_tokens / b->median_s[SW_STEP_PLACED], "model_flops_per_s",
                     speed.flops_per_s, "products_flops_per_s", b->job.rates.products_flops_per_s, "of_products",
                     speed.of_products, "peak_flops_per_s", known ? json_real(speed.peak_flops_per_s) : json_null(),
                     "of_peak", known ? json_real(speed.of_peak) : json_null(), "speed_of_light", "step_s",
                     speed.light_s, "share", speed.of_light, "lane", speed.light_lane);
}

/* Returns JSON's null for a single rank. */
static json_t *exchange_json(const struct sw_step_bench *b) {
    struct exchange_row rows[SW_STEP_COMMS];
    if (sw_ranks_comm(&b->ranks) == NULL)
        return json_null();
    list_exchange(b, rows);
    return sw_bench_join(json_pack("{s:i, s:s, s:i}", "ranks", sw_ranks_count(&b->ranks), "transport",
                                   sw_comm_transport_name(b->ranks.comm), "zero", b->job.plan->spec.zero),
                         sw_table_named_json(SW_TABLE(exchange_fields, rows, SW_STEP_COMMS)));
}

static sw_status step_bench_json(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->settings;
    const int64_t *peak = b->job.plan->tier_bytes;
    struct time_row times[TIME_ROWS];
    struct lane_row lanes[SW_LANES];
    const int time_count = list_times(b, times);
    list_lanes(b, lanes);
    return sw_command_print_json(
        json_pack("{s:s, s:s, s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:{s:I, s:I, s:I}, s:o, s:o, s:s, s:o, s:o}",
                  "bench", "step", "device", sw_devices_info(&b->job.devices).name, "rounds", (int)s->rounds, "model",
                  s->model, "precision", sw_settings_precision_name(s), "batch_tokens", (json_int_t)s->batch_tokens,
                  "micro_batch", (json_int_t)s->micro_batch, "seq", (json_int_t)s->seq, "threads",
                  (json_int_t)s->threads, "place", s->place, "speculated", b->speculates, "peak_bytes", "device",
                  (json_int_t)peak[SW_DEVICE], "host", (json_int_t)peak[SW_HOST], "nvme", (json_int_t)peak[SW_NVME],
                  "steps", sw_table_named_json(SW_TABLE(time_fields, times, time_count)), "speed", speed_json(b),
                  "busiest", sw_lane_name(busiest_lane(b)), "lanes",
                  sw_table_named_json(SW_TABLE(lane_fields, lanes, SW_LANES)), "exchange", exchange_json(b)));
}

/* Finds the time in which ranks exchange data in a step, and the part of it that arithmetic hides. */

/* Simulates the plan by these rates. The first step does not count, because no step ran ahead of it. */
static sw_status predict_exchange(const struct sw_plan *plan, const struct sw_rates *rates,
                                  struct sw_step_exchange *out) {
    struct sw_simulation simulation;
    struct sw_trace *trace;
    SW_TRY(sw_trace_create(plan, SW_TRACE_OPS, "spillway, predicted", &trace));
    sw_status status = sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, trace, &simulation);
    if (status == SW_OK)
        status = sw_overlap_find(trace, 1, sw_trace_programs(trace), &out->overlap);
    out->step_s = simulation.step_s;
    sw_trace_destroy(trace);
    return status;
}

/* Fills `exchange` once everything is measured and predicted. */
static sw_status step_find_exchange(struct sw_step_bench *b) {
    struct sw_step_exchange *placed = &b->exchange[SW_STEP_COMM_PLACED];
    struct sw_rates more = b->job.rates.rates;
    if (sw_ranks_comm(&b->ranks) == NULL)
        return SW_OK;
    placed->step_s = b->median_s[SW_STEP_PLACED];
    SW_TRY(sw_overlap_find(sw_engine_trace(b->placed.engine), b->traced_from, b->traced_to, &placed->overlap));
    SW_TRY(predict_exchange(b->job.plan, &more, &b->exchange[SW_STEP_COMM_PREDICTED]));
    more.cores = (double)b->settings.threads + 1.0;
    return predict_exchange(b->job.plan, &more, &b->exchange[SW_STEP_COMM_ONE_CORE_MORE]);
}

/* Times of a lane's ops, in the order of their starts. */
struct course {
    struct sw_op_times *times;
    int64_t count;
};

static int by_start(const void *a, const void *b) {
    const struct sw_op_times *left = a, *right = b;
    return (left->start_ns > right->start_ns) - (left->start_ns < right->start_ns);
}

/* Takes a lane's ops of some programs, which run one after the other, in the order of their starts: a trace has them in
 * the order of their program. */
static sw_status take_lane(const struct sw_trace *trace, sw_lane lane, int64_t first, int64_t end, struct course *out) {
    int64_t room = 1;
    for (int64_t p = first; p < end; p++)
        room += sw_trace_program(trace, p)->lane_count[lane];
    out->count = 0;
    out->times = calloc((size_t)room, sizeof *out->times);
    if (out->times == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the times of %lld ops", (long long)room);
    for (int64_t p = first; p < end; p++) {
        const struct sw_program *program = sw_trace_program(trace, p);
        const struct sw_op_times *times = sw_trace_times(trace, p);
        for (int32_t i = 0; i < program->lane_count[lane]; i++) {
            const struct sw_op_times *op = &times[program->lane_op[lane][i]];
            if (op->start_ns != SW_TRACE_NOT_RUN && op->end_ns != SW_TRACE_NOT_RUN)
                out->times[out->count++] = *op;
        }
    }
    qsort(out->times, (size_t)out->count, sizeof *out->times, by_start);
    return SW_OK;
}

static int64_t common_ns(const struct course *a, const struct course *b) {
    int64_t common = 0;
    for (int64_t i = 0, j = 0; i < a->count && j < b->count;) {
        const struct sw_op_times *left = &a->times[i], *right = &b->times[j];
        common += sw_max_i64(0, sw_min_i64(left->end_ns, right->end_ns) - sw_max_i64(left->start_ns, right->start_ns));
        if (left->end_ns < right->end_ns)
            i++;
        else
            j++;
    }
    return common;
}

sw_status sw_overlap_find(const struct sw_trace *trace, int64_t first, int64_t end, struct sw_overlap *out) {
    struct course comm = {0}, compute = {0};
    int64_t comm_ns = 0;
    sw_status status;
    *out = (struct sw_overlap){0};
    SW_TRY_GOTO(take_lane(trace, SW_LANE_COMM, first, end, &comm), end);
    SW_TRY_GOTO(take_lane(trace, SW_LANE_COMPUTE, 0, sw_trace_programs(trace), &compute), end);
    for (int64_t i = 0; i < comm.count; i++)
        comm_ns += comm.times[i].end_ns - comm.times[i].start_ns;
    if (end > first) {
        out->comm_s = (double)comm_ns * 1e-9 / (double)(end - first);
        out->hidden_s = (double)common_ns(&comm, &compute) * 1e-9 / (double)(end - first);
    }
end:
    free(comm.times);
    free(compute.times);
    return status;
}

static sw_status open_store(struct sw_contender *contender) {
    const struct sw_job *job = contender->spec.job;
    const struct sw_new_store wanted = {
        .plan = job->plan, .places = &job->places, .allow_buffered = job->settings->allow_buffered, .unnamed = true};
    return sw_new_store_create(&wanted, NULL, NULL, &contender->store);
}

static sw_status open_engine(struct sw_contender *contender) {
    const struct sw_contender_spec *given = &contender->spec;
    const struct sw_job *job = given->job;
    const struct sw_engine_spec spec = {
        .plan = job->plan,
        .device = job->devices.compute,
        .host = job->devices.host,
        .store = contender->store,
        .comm = sw_ranks_comm(job->ranks),
        .comm_stream = sw_ranks_stream(job->ranks),
        .watch = sw_ranks_watch(job->ranks),
        .io_depth = SW_STORE_IO_DEPTH,
        .speculation = given->speculation,
        .rounding = sw_settings_rounding(job->settings),
        .ops = sw_model_ops(job->model),
        .trace_ops = given->traced ? SW_TRACE_OPS : 0,
    };
    struct sw_model_init init = {.config = &job->config, .units = sw_model_get_units(job->model)};
    SW_TRY(sw_engine_open(&spec, &contender->engine));
    const struct sw_load random = {.fill = sw_model_fill_random, .context = &init};
    const int64_t start_ns = sw_now_ns();
    SW_TRY(sw_engine_load(contender->engine, given->load != NULL ? given->load : &random));
    contender->load_s = (double)(sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

sw_status sw_contender_open(const struct sw_contender_spec *spec, struct sw_contender *out) {
    *out = (struct sw_contender){.spec = *spec};
    sw_status status = sw_plan_uses_nvme(spec->job->plan) ? open_store(out) : SW_OK;
    if (status == SW_OK)
        status = open_engine(out);
    if (status != SW_OK)
        sw_contender_close(out);
    return status;
}

void sw_contender_close(struct sw_contender *contender) {
    sw_engine_close(contender->engine);
    sw_store_close(contender->store);
    *contender = (struct sw_contender){0};
}

/* Fills in random tokens: a step takes the same time whatever they are. */
static void fill_tokens(struct sw_contender *contender) {
    const struct sw_settings *settings = contender->spec.job->settings;
    const int64_t vocab = contender->spec.job->config.vocab;
    const uint64_t rank = (uint64_t)sw_ranks_rank(contender->spec.job->ranks);
    for (int64_t m = 0; m < sw_settings_micro_batches(settings); m++) {
        int32_t *tokens = sw_engine_tokens(contender->engine, m);
        for (int64_t t = 0; t < 2 * settings->micro_batch * settings->seq; t++)
            tokens[t] = (int32_t)(sw_rng(0, rank, contender->next_token++).word[0] % (uint64_t)vocab);
    }
}

/* Begins a step of a small learning rate without clipping, so that the training does not diverge and its time does not
 * depend on the random weights. */
static sw_status begin(struct sw_contender *contender) {
    const struct sw_step_input input = {
        .kind = SW_STEP_TRAIN,
        .step = ++contender->step,
        .adamw = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        .muon = {.lr = 1e-6, .momentum = 0.95, .weight_decay = 0.1},
        .loss_tokens = contender->spec.job->settings->batch_tokens,
    };
    fill_tokens(contender);
    return sw_engine_begin(contender->engine, &input);
}

sw_status sw_contender_run(struct sw_contender *contender, int64_t steps, struct sw_step_times *times) {
    SW_TRY(begin(contender));
    for (int64_t i = 0; i <= steps; i++) {
        struct sw_step_result result;
        if (i < steps)
            SW_TRY(begin(contender));
        SW_TRY(sw_engine_wait(contender->engine, &result));
        if (i == 0)
            continue;
        assert(times->count < SW_CONTENDER_MAX_STEPS);
        times->seconds[times->count++] = result.seconds;
        times->last = result;
    }
    return SW_OK;
}

enum { WARM_UP_STEPS = 1, MOST_STEPS = 10000, MOST_ROUNDS = 3 };
static_assert((int)SW_CONTENDER_MAX_STEPS >= MOST_ROUNDS * MOST_STEPS, "--steps and --rounds allow so many");

/* Share of a GPU's memory that both contenders may take. Kernels and libraries need the rest. */
#define GPU_SHARE 0.97

/* Finds what the contenders that have a plan take of this rank's device and host memory. They run in turn, but stay. */
static void sum_memory(const struct sw_step_bench *b, int64_t *out_device_bytes, int64_t *out_host_bytes) {
    const struct sw_plan *const plans[] = {b->job.plan, b->resident.plan, b->adamw.plan};
    *out_device_bytes = *out_host_bytes = 0;
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++)
        if (plans[i] != NULL) {
            *out_device_bytes += plans[i]->tier_bytes[SW_DEVICE];
            *out_host_bytes += plans[i]->tier_bytes[SW_HOST];
        }
}

/* Returns whether the contenders fit into memory together, with those of all ranks of this machine. */
static bool all_fit(const struct sw_step_bench *b, const struct sw_machine *machine) {
    const struct sw_device_info info = sw_devices_info(&b->job.devices);
    const int64_t share_bytes = machine->available_bytes / sw_ranks_local_count(&b->ranks);
    int64_t device_bytes, host_bytes;
    sum_memory(b, &device_bytes, &host_bytes);
    if (info.host_memory)
        return device_bytes + host_bytes <= share_bytes;
    return device_bytes <= (int64_t)(GPU_SHARE * (double)info.memory_bytes) && host_bytes <= share_bytes;
}

static void say_what_does_not_fit(const struct sw_step_bench *b, const char *what, const struct sw_machine *machine) {
    const struct sw_device_info info = sw_devices_info(&b->job.devices);
    int64_t device_bytes, host_bytes;
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    sum_memory(b, &device_bytes, &host_bytes);
    sw_log_warn("%s is not measured: with it the steps take %s of %smemory and %s are available", what,
                sw_format_size(device_bytes + (info.host_memory ? host_bytes : 0), need),
                info.host_memory ? "" : "the GPU's ",
                sw_format_size(info.host_memory ? machine->available_bytes : info.memory_bytes, have));
}

/* Drops the plan of a contender, the newest one that has a plan, if not all fit on every rank. */
static sw_status drop_if_too_large(struct sw_step_bench *b, struct sw_plan **plan, const char *what) {
    struct sw_machine machine;
    SW_TRY(sw_machine_read(&machine));
    int64_t fits = all_fit(b, &machine);
    SW_TRY(sw_ranks_least(&b->ranks, &fits, 1));
    if (fits)
        return SW_OK;
    if (sw_ranks_rank(&b->ranks) == 0)
        say_what_does_not_fit(b, what, &machine);
    sw_plan_destroy(*plan);
    *plan = NULL;
    return SW_OK;
}

/* Plans the step that offloading is measured against: everything on the device, nothing computed twice. Ranks run it
 * together or not at all. */
static sw_status plan_resident(struct sw_step_bench *b) {
    static char everything_there[] = "weights=device,grads=device,optimizer=device,acts=device";
    struct sw_job_change change = {.settings = *b->job.settings};
    change.settings.place = everything_there;
    change.settings.trace = NULL;
    change.settings.recompute = SW_OPTION_RECOMPUTE_NONE;
    change.settings.device_memory = change.settings.host_memory = INT64_MAX / 2;
    sw_status status = sw_job_with(&b->job, &change, &b->resident);
    if (status == SW_OK)
        status = sw_settings_complete_plan(b->resident.plan);
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, status));
    return drop_if_too_large(b, &b->resident.plan, "the resident step");
}

/* Returns whether a step speculates: for --speculate auto what the prediction says is faster. No step is clipped in
 * this bench. */
static bool speculates(const struct sw_step_bench *b, const struct sw_prediction *p) {
    const int asked = b->settings.speculate;
    return p->may_speculate &&
           (asked == SW_SPECULATE_ALWAYS || (asked == SW_SPECULATE_AUTO && p->speculated.step_s < p->plain.step_s));
}

/* Plans and prices the same step with AdamW where Muon trains something. */
static sw_status price_adamw(struct sw_step_bench *b) {
    struct sw_job_change change = {.settings = *b->job.settings};
    struct sw_prediction *prediction = &b->adamw.price.prediction;
    change.settings.tuning.optimizer = SW_TRAINS_ADAMW;
    change.settings.tuning.optimizer_for = NULL;
    change.settings.trace = NULL;
    SW_TRY(sw_job_with(&b->job, &change, &b->adamw));
    SW_TRY(sw_settings_complete_plan(b->adamw.plan));
    SW_TRY(sw_predict(b->adamw.plan, &b->job.rates.rates, prediction));
    b->adamw_predicted_s = speculates(b, prediction) ? prediction->speculated.step_s : prediction->plain.step_s;
    return SW_OK;
}

static sw_status plan_adamw(struct sw_step_bench *b) {
    if (!sw_optimizer_has_muon(sw_settings_optimizer(&b->settings)))
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, price_adamw(b)));
    return drop_if_too_large(b, &b->adamw.plan, "the step with AdamW");
}

static sw_status open_contenders(struct sw_step_bench *b) {
    const struct sw_contender_spec placed = {.job = &b->job,
                                             .speculation = b->speculates ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER,
                                             .traced = b->settings.trace != NULL || sw_ranks_comm(&b->ranks) != NULL};
    const struct sw_contender_spec whole = {.job = &b->resident, .speculation = SW_SPECULATE_NEVER};
    const bool other_speculates = b->adamw.plan != NULL && speculates(b, &b->adamw.price.prediction);
    const struct sw_contender_spec other = {.job = &b->adamw,
                                            .speculation = other_speculates ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER};
    SW_TRY(sw_contender_open(&placed, &b->placed));
    if (b->adamw.plan != NULL)
        SW_TRY(sw_contender_open(&other, &b->other));
    return b->resident.plan == NULL ? SW_OK : sw_contender_open(&whole, &b->whole);
}

static sw_status allocate_times(struct sw_step_bench *b) {
    for (int k = 0; k < SW_STEP_KINDS; k++) {
        b->times[k].seconds = calloc(SW_CONTENDER_MAX_STEPS, sizeof *b->times[k].seconds);
        if (b->times[k].seconds == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the times of steps");
    }
    return SW_OK;
}

static int64_t traced_programs(const struct sw_step_bench *b) {
    return b->placed.spec.traced ? sw_trace_programs(sw_engine_trace(b->placed.engine)) : 0;
}

static sw_status run_placed(struct sw_step_bench *b, int64_t steps) {
    const int64_t before = traced_programs(b);
    SW_TRY(sw_contender_run(&b->placed, steps, &b->times[SW_STEP_PLACED]));
    const int64_t after = traced_programs(b);
    if (after == before)
        return SW_OK;
    b->traced_from = before;
    b->traced_to = after;
    return SW_OK;
}

static sw_status run_round(struct sw_step_bench *b, int64_t steps) {
    if (b->resident.plan != NULL)
        SW_TRY(sw_contender_run(&b->whole, steps, &b->times[SW_STEP_RESIDENT]));
    SW_TRY(run_placed(b, steps));
    if (b->adamw.plan != NULL)
        SW_TRY(sw_contender_run(&b->other, steps, &b->times[SW_STEP_ADAMW]));
    if (b->placed.store == NULL)
        return SW_OK;
    sw_engine_replay_io(b->placed.engine, true);
    const sw_status status = sw_contender_run(&b->placed, steps, &b->times[SW_STEP_IO_ALONE]);
    sw_engine_replay_io(b->placed.engine, false);
    return status;
}

static sw_status measure(struct sw_step_bench *b) {
    SW_TRY(allocate_times(b));
    SW_TRY(run_round(b, WARM_UP_STEPS));
    for (int k = 0; k < SW_STEP_KINDS; k++)
        b->times[k].count = 0;
    for (int round = 0; round < b->settings.rounds; round++)
        SW_TRY(run_round(b, b->settings.steps));
    for (int k = 0; k < SW_STEP_KINDS; k++)
        if (b->times[k].count > 0)
            b->median_s[k] = sw_median(b->times[k].seconds, b->times[k].count);
    return SW_OK;
}

/* Finds the least bytes of a single rank. The least bytes of ranks that share state are not known. */
static void find_least(struct sw_step_bench *b) {
    const struct sw_settings *settings = &b->settings;
    const struct sw_least_shape shape = {
        .units = sw_model_get_units(b->job.model),
        .placement = b->job.plan->placement,
        .update_on_device = b->job.plan->spec.update_on_device,
        .cost = sw_model_bytes(b->job.model).cost,
        .type = sw_settings_type(settings),
        .grads = (sw_grads_format)settings->grads_state,
        .micro_batches = sw_settings_micro_batches(settings),
        .tokens = settings->batch_tokens,
        .seq = settings->seq,
        .speculated = b->speculates,
    };
    if (sw_ranks_comm(&b->ranks) == NULL)
        sw_least_bytes(&shape, b->least);
}

static sw_status write_trace(struct sw_step_bench *b) {
    if (b->settings.trace == NULL || sw_ranks_rank(&b->ranks) > 0)
        return SW_OK;
    return sw_trace_file_write(b->settings.trace, sw_engine_trace(b->placed.engine));
}

static sw_status check_trace(const struct sw_step_bench *b) {
    return b->settings.trace == NULL ? SW_OK : sw_trace_file_check(b->settings.trace);
}

/* Opens the job. All ranks make the same plan, each for its own shard. */
static sw_status open_job(struct sw_step_bench *b) {
    const struct sw_job_spec spec = {.settings = &b->settings, .ranks = &b->ranks, .folder = ".", .measures = true};
    SW_TRY(sw_agree_on_settings(&b->ranks, &b->settings));
    return sw_job_open(&spec, &b->job);
}

static sw_status predict(struct sw_step_bench *b) {
    const char *rates = b->settings.rates;
    const bool kept = rates != NULL && access(rates, F_OK) == 0, says = !b->settings.json;
    if (says && !kept)
        sw_log_info("measuring this machine for the prediction; %s keeps what is measured",
                    rates != NULL ? rates : "--rates FILE");
    SW_TRY(sw_job_predict(&b->job));
    if (says && kept)
        sw_log_info("predicted by the rates kept in %s; remove it to measure this machine again", rates);
    return SW_OK;
}

static sw_status run(struct sw_step_bench *b) {
    SW_TRY(sw_ranks_first(&b->ranks, check_trace(b)));
    SW_TRY(open_job(b));
    SW_TRY(predict(b));
    SW_TRY(plan_resident(b));
    SW_TRY(plan_adamw(b));
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, step_measure_products(b)));
    b->speculates = speculates(b, &b->job.price.prediction);
    find_least(b);
    SW_TRY(open_contenders(b));
    sw_ranks_relax_timeout(&b->ranks, false);
    SW_TRY(measure(b));
    SW_TRY(sw_engine_settle(b->placed.engine));
    SW_TRY(write_trace(b));
    SW_TRY(step_find_exchange(b));
    if (sw_ranks_rank(&b->ranks) > 0)
        return SW_OK;
    if (b->settings.json)
        return step_bench_json(b);
    step_bench_print(b);
    return SW_OK;
}

static void close_bench(struct sw_step_bench *b) {
    sw_contender_close(&b->placed);
    sw_contender_close(&b->whole);
    sw_contender_close(&b->other);
    sw_job_release(&b->resident);
    sw_job_release(&b->adamw);
    for (int k = 0; k < SW_STEP_KINDS; k++)
        free(b->times[k].seconds);
    sw_job_release(&b->job);
}

int sw_bench_step(int argc, char **argv) {
    struct sw_step_bench b = {0};
    int code;
    if (sw_command_begin(&b.ranks, sw_bench_step_command.command, &code)) {
        if (sw_command_parse_ranks(&b.ranks, &sw_bench_step_command, argc, argv, &b.settings, &code)) {
            const sw_status status = run(&b);
            code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&b.ranks, status);
            close_bench(&b);
        }
        sw_command_end(&b.ranks, code);
    }
    sw_options_release(&sw_bench_step_command, &b.settings);
    return code;
}
