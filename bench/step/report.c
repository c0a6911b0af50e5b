/* The report of `bench step`, for people and for programs. */
#include "bench/step/speed.h"
#include "bench/step/step.h"
#include "core/size.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

/* Times and what they are compared with. */
static const struct {
    sw_step_bench_kind kind;
    const char *key, *text, *ratio;
} kinds[] = {
    {SW_STEP_RESIDENT, "resident", "resident", "placed to resident"},
    {SW_STEP_PLACED, "placed", "as placed", NULL},
    {SW_STEP_IO_ALONE, "io_alone", "its own I/O alone", "placed to its I/O"},
};

static const struct sw_simulation *prediction_of(const struct sw_step_bench *b) {
    return b->speculates ? &b->planned.prediction.speculated : &b->planned.prediction.plain;
}

/* The lane that worked for the largest part of the step. */
static sw_lane busiest_lane(const struct sw_step_bench *b) {
    const double *busy = b->times[SW_STEP_PLACED].last.busy_seconds;
    int most = 0;
    for (int lane = 1; lane < SW_LANES; lane++)
        most = busy[lane] > busy[most] ? lane : most;
    return (sw_lane)most;
}

static void print_times(const struct sw_step_bench *b) {
    const double placed_s = b->median_s[SW_STEP_PLACED];
    const double tokens = (double)b->planned.settings.batch_tokens;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const double seconds = b->median_s[kinds[i].kind];
        if (seconds == 0.0)
            continue;
        printf("  %-20s%10.3f s%12.0f tokens/s", kinds[i].text, seconds, tokens / seconds);
        if (kinds[i].ratio != NULL)
            printf("   %s %.3f", kinds[i].ratio, placed_s / seconds);
        putchar('\n');
    }
    const struct sw_simulation *predicted = prediction_of(b);
    printf("  %-20s%10.3f s%12.0f tokens/s   predicted to placed %.3f; %s busy for %.0f%% of it\n", "predicted",
           predicted->step_s, tokens / predicted->step_s, predicted->step_s / placed_s, predicted->bottleneck,
           100.0 * predicted->bottleneck_share);
}

static void print_speed(const struct sw_step_bench *b) {
    const struct sw_step_speed speed = sw_step_speed(b);
    printf("%.2f Tflop/s of the model", speed.flops_per_s * 1e-12);
    if (isfinite(speed.of_peak))
        printf(", %.3f of the peak of %.0f", speed.of_peak, speed.peak_flops_per_s * 1e-12);
    printf(", %.3f of its matrix products' %.2f; %.3f of the speed of light (%.3f s, by %s)\n", speed.of_products,
           b->planned.rates.products_flops_per_s * 1e-12, speed.of_light, speed.light_s, speed.light_lane);
}

static void print_cell(int64_t bytes) {
    char text[SW_SIZE_CHARS];
    printf("%14s", bytes == 0 ? "-" : sw_format_size(bytes, text));
}

static void print_lanes(const struct sw_step_bench *b) {
    const struct sw_step_result *step = &b->times[SW_STEP_PLACED].last;
    printf("%-22s%9s%9s%14s%14s%9s\n", "lanes of the last step", "busy", "of it", "bytes", "least", "ratio");
    for (int lane = 0; lane < SW_LANES; lane++) {
        printf("  %-20s%8.3fs%8.0f%%", sw_lane_name((sw_lane)lane), step->busy_seconds[lane],
               100.0 * step->busy_seconds[lane] / step->seconds);
        if (lane != SW_LANE_COMPUTE) {
            print_cell(step->lane_bytes[lane]);
            print_cell(b->least[lane]);
            if (b->least[lane] > 0)
                printf("%9.4f", (double)step->lane_bytes[lane] / (double)b->least[lane]);
        }
        putchar('\n');
    }
    printf("  busiest: %s\n", sw_lane_name(busiest_lane(b)));
}

static const char *const exchange_keys[SW_STEP_COMMS] = {[SW_STEP_COMM_PLACED] = "placed",
                                                         [SW_STEP_COMM_PREDICTED] = "predicted",
                                                         [SW_STEP_COMM_ONE_CORE_MORE] = "predicted_one_core_more"};

/* Nothing exchanged hides as well as it can. */
static double hidden_share(const struct sw_step_exchange *exchange) {
    return exchange->overlap.comm_s > 0.0 ? exchange->overlap.hidden_s / exchange->overlap.comm_s : 1.0;
}

static void print_exchange(const struct sw_step_bench *b) {
    static const char *const texts[SW_STEP_COMMS] = {
        [SW_STEP_COMM_PLACED] = "as placed",
        [SW_STEP_COMM_PREDICTED] = "predicted",
        [SW_STEP_COMM_ONE_CORE_MORE] = "and with a core more",
    };
    if (sw_ranks_comm(&b->ranks) == NULL)
        return;
    printf("%d ranks by %s, ZeRO stage %d %13s%9s%19s\n", sw_ranks_count(&b->ranks),
           sw_comm_transport_name(b->ranks.comm), b->planned.plan->spec.zero, "step", "comm", "behind compute");
    for (int i = 0; i < SW_STEP_COMMS; i++) {
        const struct sw_step_exchange *exchange = &b->exchange[i];
        printf("  %-30s%8.3fs%8.3fs%18.0f%%\n", texts[i], exchange->step_s, exchange->overlap.comm_s,
               100.0 * hidden_share(exchange));
    }
}

void sw_step_bench_print(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->planned.settings;
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], nvme[SW_SIZE_CHARS];
    const int64_t *peak = b->planned.plan->tier_bytes;
    printf("%s, %s, %lld tokens a step in micro-batches of %lld x %lld, %lld threads; --place %s; updates %s\n",
           s->model, sw_settings_precision_name(s), (long long)s->batch_tokens, (long long)s->micro_batch,
           (long long)s->seq, (long long)s->threads, s->place,
           b->speculates ? "speculated in the backward pass" : "under the next forward pass");
    printf("peaks: device %s, host %s, nvme %s\n", sw_format_size(peak[SW_DEVICE], device),
           sw_format_size(peak[SW_HOST], host), sw_format_size(peak[SW_NVME], nvme));
    printf("a step (median of %d, in turn)\n", b->times[SW_STEP_PLACED].count);
    print_times(b);
    print_speed(b);
    print_lanes(b);
    print_exchange(b);
}

static json_t *times_json(const struct sw_step_bench *b) {
    json_t *object = json_object();
    const double placed_s = b->median_s[SW_STEP_PLACED];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const double seconds = b->median_s[kinds[i].kind];
        if (seconds > 0.0)
            json_object_set_new(object, kinds[i].key,
                                json_pack("{s:f, s:f, s:i}", "step_s", seconds, "placed_ratio", placed_s / seconds,
                                          "steps", b->times[kinds[i].kind].count));
    }
    const struct sw_simulation *predicted = prediction_of(b);
    json_object_set_new(object, "predicted",
                        json_pack("{s:f, s:f, s:s, s:f}", "step_s", predicted->step_s, "placed_ratio",
                                  placed_s / predicted->step_s, "bottleneck", predicted->bottleneck, "bottleneck_share",
                                  predicted->bottleneck_share));
    return object;
}

static json_t *lanes_json(const struct sw_step_bench *b) {
    const struct sw_step_result *step = &b->times[SW_STEP_PLACED].last;
    json_t *object = json_object();
    for (int lane = 0; lane < SW_LANES; lane++) {
        json_t *of_lane = json_pack("{s:f, s:f}", "busy_s", step->busy_seconds[lane], "busy_share",
                                    step->busy_seconds[lane] / step->seconds);
        if (lane != SW_LANE_COMPUTE) {
            json_object_set_new(of_lane, "bytes", json_integer(step->lane_bytes[lane]));
            json_object_set_new(of_lane, "least_bytes", json_integer(b->least[lane]));
        }
        json_object_set_new(object, sw_lane_name((sw_lane)lane), of_lane);
    }
    return object;
}

static json_t *speed_json(const struct sw_step_bench *b) {
    const struct sw_step_speed speed = sw_step_speed(b);
    const bool known = isfinite(speed.of_peak);
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:o, s:{s:f, s:f, s:s}}", "tokens_per_s",
                     (double)b->planned.settings.batch_tokens / b->median_s[SW_STEP_PLACED], "model_flops_per_s",
                     speed.flops_per_s, "products_flops_per_s", b->planned.rates.products_flops_per_s, "of_products",
                     speed.of_products, "peak_flops_per_s", known ? json_real(speed.peak_flops_per_s) : json_null(),
                     "of_peak", known ? json_real(speed.of_peak) : json_null(), "speed_of_light", "step_s",
                     speed.light_s, "share", speed.of_light, "lane", speed.light_lane);
}

/* Null of a rank alone. */
static json_t *exchange_json(const struct sw_step_bench *b) {
    if (sw_ranks_comm(&b->ranks) == NULL)
        return json_null();
    json_t *object = json_pack("{s:i, s:s, s:i}", "ranks", sw_ranks_count(&b->ranks), "transport",
                               sw_comm_transport_name(b->ranks.comm), "zero", b->planned.plan->spec.zero);
    for (int i = 0; i < SW_STEP_COMMS; i++)
        json_object_set_new(object, exchange_keys[i],
                            json_pack("{s:f, s:f, s:f}", "step_s", b->exchange[i].step_s, "comm_s",
                                      b->exchange[i].overlap.comm_s, "hidden_share", hidden_share(&b->exchange[i])));
    return object;
}

sw_status sw_step_bench_json(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->planned.settings;
    const int64_t *peak = b->planned.plan->tier_bytes;
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:{s:I, s:I, s:I}, s:o, s:o, s:s, s:o, s:o}", "bench",
        "step", "device", sw_devices_info(&b->planned.devices).name, "rounds", (int)s->rounds, "model", s->model,
        "precision", sw_dtype_name(sw_settings_type(s)), "batch_tokens", (json_int_t)s->batch_tokens, "micro_batch",
        (json_int_t)s->micro_batch, "seq", (json_int_t)s->seq, "threads", (json_int_t)s->threads, "place", s->place,
        "speculated", b->speculates, "peak_bytes", "device", (json_int_t)peak[SW_DEVICE], "host",
        (json_int_t)peak[SW_HOST], "nvme", (json_int_t)peak[SW_NVME], "steps", times_json(b), "speed", speed_json(b),
        "busiest", sw_lane_name(busiest_lane(b)), "lanes", lanes_json(b), "exchange", exchange_json(b));
    if (root == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to print what was measured");
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return SW_OK;
}
