#include "job/writes.h"

#include "core/size.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdio.h>

#define TERABYTE 1e12
enum { THOUSAND = 1000 };

/* Returns the bytes of optimizer state that is not on NVMe. */
static int64_t records_elsewhere_bytes(const struct sw_plan *plan) {
    int64_t grains = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_OPTIMIZER] != SW_NVME)
            grains += sw_plan_span(plan, SW_OPTIMIZER, u).grains;
    return sw_plan_optimizer_bytes(plan, grains);
}

static int64_t weights_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_WEIGHTS] == SW_NVME)
            bytes += sw_plan_weights_bytes(plan, u, sw_plan_span(plan, SW_WEIGHTS, u).grains);
    return bytes;
}

/* Only masters and weights are written: the store's zeros already are the first moments. */
int64_t sw_writes_of_loading(const struct sw_plan *plan) {
    int64_t masters = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        masters += sw_plan_span(plan, SW_OPTIMIZER, u).grains * SW_GRAIN_ELEMS;
    return masters * (int64_t)sizeof(float) + weights_bytes(plan);
}

int64_t sw_writes_save_steps(const struct sw_option_every *every, double step_s) {
    if (every->seconds == 0 || step_s <= 0.0)
        return every->steps;
    const int64_t by_time = (int64_t)fmax(1.0, ceil((double)every->seconds / step_s));
    return every->steps > 0 ? sw_min_i64(every->steps, by_time) : by_time;
}

struct sw_writes sw_writes_of(const struct sw_plan *plan, int64_t save_every) {
    const bool saves = !plan->commit_every_step && !plan->spec.one_generation;
    return (struct sw_writes){
        .start_bytes = sw_plan_store_bytes(plan) + sw_writes_of_loading(plan),
        .step_bytes = sw_outline_lane_bytes(plan, SW_LANE_WRITE),
        .save_bytes = plan->commit_every_step ? 0 : records_elsewhere_bytes(plan),
        .save_every = saves ? save_every : 0,
    };
}

double sw_writes_per_thousand(const struct sw_writes *writes) {
    const double saves = writes->save_every > 0 ? (double)THOUSAND / (double)writes->save_every : 0.0;
    return THOUSAND * (double)writes->step_bytes + saves * (double)writes->save_bytes;
}

/* Counts the save at the end, too. */
double sw_writes_of_run(const struct sw_writes *writes, int64_t steps) {
    const int64_t saves = 1 + (writes->save_every > 0 ? (steps - 1) / writes->save_every : 0);
    return (double)writes->start_bytes + (double)steps * (double)writes->step_bytes +
           (double)saves * (double)writes->save_bytes;
}

double sw_writes_share(double bytes, double endurance_tb) {
    return endurance_tb > 0.0 ? bytes / (endurance_tb * TERABYTE) : (double)NAN;
}

const char *sw_writes_text(double bytes, char text[SW_WRITES_CHARS]) {
    static const struct {
        double bytes;
        const char *name;
    } units[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1.0, "bytes"}};
    size_t i = 0;
    while (i + 1 < sizeof units / sizeof units[0] && bytes < units[i].bytes)
        i++;
    const double number = bytes / units[i].bytes;
    const int digits = units[i].bytes == 1.0 ? 0 : number < 10.0 ? 2 : number < 100.0 ? 1 : 0;
    snprintf(text, SW_WRITES_CHARS, "%.*f %s", digits, number, units[i].name);
    return text;
}

const char *sw_writes_share_text(double bytes, double endurance_tb, char text[SW_WRITES_SHARE_CHARS]) {
    char size[SW_WRITES_CHARS];
    sw_writes_text(bytes, size);
    if (endurance_tb > 0.0)
        snprintf(text, SW_WRITES_SHARE_CHARS, "%s (%.3g%% of the rated %g TB)", size,
                 100.0 * sw_writes_share(bytes, endurance_tb), endurance_tb);
    else
        snprintf(text, SW_WRITES_SHARE_CHARS, "%s", size);
    return text;
}
