/* The report of `bench step`, for people and for programs. */
#include "bench/step/report.h"

#include "bench/kernels/peak.h"
#include "bench/kernels/products.h"
#include "bench/step/step.h"
#include "bench/table.h"
#include "core/number.h"
#include "core/size.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

sw_status sw_step_measure_products(struct sw_step_bench *b) {
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

/* Fills the rows of the steps that were measured, and of the prediction. Returns their count. */
static int list_times(const struct sw_step_bench *b, struct time_row rows[SW_STEP_KINDS + 1]) {
    static const char *const keys[] = {"resident", "placed", "io_alone"};
    static const char *const texts[] = {"resident", "as placed", "its own I/O alone"};
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

void sw_step_bench_print(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->settings;
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], nvme[SW_SIZE_CHARS];
    const int64_t *peak = b->job.plan->tier_bytes;
    struct time_row times[SW_STEP_KINDS + 1];
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

/* Returns JSON's null for a rank alone. */
static json_t *exchange_json(const struct sw_step_bench *b) {
    struct exchange_row rows[SW_STEP_COMMS];
    if (sw_ranks_comm(&b->ranks) == NULL)
        return json_null();
    list_exchange(b, rows);
    return sw_bench_join(json_pack("{s:i, s:s, s:i}", "ranks", sw_ranks_count(&b->ranks), "transport",
                                   sw_comm_transport_name(b->ranks.comm), "zero", b->job.plan->spec.zero),
                         sw_table_named_json(SW_TABLE(exchange_fields, rows, SW_STEP_COMMS)));
}

sw_status sw_step_bench_json(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->settings;
    const int64_t *peak = b->job.plan->tier_bytes;
    struct time_row times[SW_STEP_KINDS + 1];
    struct lane_row lanes[SW_LANES];
    const int time_count = list_times(b, times);
    list_lanes(b, lanes);
    return sw_bench_print_json(
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
