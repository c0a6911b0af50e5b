/* Compares steps with their prediction, block by block.
 *
 * A single slow step proves nothing: another program may have used the machine for a moment. Two blocks in a row must
 * depart, each judged by its median, so neither a few slow steps nor one long pause suffices. A departure is reported
 * once per start; repeating it every block would bury the log. */
#include "run/departure.h"

#include "core/log.h"
#include "core/size.h"
#include "job/profile.h"
#include "run/trainer.h"

#include <math.h>

enum { BLOCK_STEPS = 5, BLOCKS = 2 };
#define BLOCK_S 2.0
#define MOST_RATIO 1.25

/* Sorts by insertion: a step must not allocate, and qsort may. */
static double median(const double samples[SW_DEPARTURE_SAMPLES], int64_t count) {
    double sorted[SW_DEPARTURE_SAMPLES];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i;
        for (; at > 0 && sorted[at - 1] > samples[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = samples[i];
    }
    return sorted[count / 2];
}

/* Finds the lane whose busy time differs most, in the same direction as the step. */
static void find_lane(const struct sw_departure *d, const struct sw_forecast *forecast, int64_t count,
                      struct sw_departed *out) {
    const double sign = out->measured_s > out->predicted_s ? 1.0 : -1.0;
    double most_s = -INFINITY;
    for (int lane = 0; lane < SW_LANES; lane++) {
        const double measured_s = median(d->lane_s[lane], count), predicted_s = forecast->step.lane_busy_s[lane];
        if (sign * (measured_s - predicted_s) <= most_s)
            continue;
        most_s = sign * (measured_s - predicted_s);
        out->lane = (sw_lane)lane;
        out->lane_measured_s = measured_s;
        out->lane_predicted_s = predicted_s;
    }
}

/* Judges a complete block. */
static bool judge(struct sw_departure *d, const struct sw_forecast *forecast, struct sw_departed *out) {
    const int64_t count = sw_min_i64(d->steps, SW_DEPARTURE_SAMPLES);
    const double measured_s = median(d->seconds, count);
    d->slower = measured_s > MOST_RATIO * forecast->most_s ? d->slower + 1 : 0;
    d->faster = MOST_RATIO * measured_s < forecast->least_s ? d->faster + 1 : 0;
    if (d->slower < BLOCKS && d->faster < BLOCKS)
        return false;
    *out = (struct sw_departed){.measured_s = measured_s, .predicted_s = forecast->step.step_s};
    find_lane(d, forecast, count, out);
    d->found = true;
    return true;
}

bool sw_departure_note(struct sw_departure *departure, const struct sw_forecast *forecast, double seconds,
                       const double lane_s[SW_LANES], struct sw_departed *out) {
    const int64_t slot = departure->steps % SW_DEPARTURE_SAMPLES;
    if (departure->found || !(forecast->least_s > 0.0))
        return false;
    departure->seconds[slot] = seconds;
    for (int lane = 0; lane < SW_LANES; lane++)
        departure->lane_s[lane][slot] = lane_s[lane];
    departure->steps++;
    departure->block_s += seconds;
    if (departure->steps < BLOCK_STEPS || departure->block_s < BLOCK_S)
        return false;
    const bool departs = judge(departure, forecast, out);
    departure->steps = 0;
    departure->block_s = 0.0;
    return departs;
}

/* Attention does not cross documents, and the prediction does not know their lengths, so steps with documents may be
 * faster. */
static bool is_explained(const struct sw_trainer *trainer, const struct sw_departed *departed) {
    return departed->measured_s < departed->predicted_s && sw_data_has_documents(trainer->data);
}

void sw_departure_after(struct sw_trainer *trainer, double seconds, const double lane_s[SW_LANES]) {
    const struct sw_forecast *forecast = &trainer->forecast;
    struct sw_departed found;
    if (!sw_departure_note(&trainer->departure, forecast, seconds, lane_s, &found) || is_explained(trainer, &found))
        return;
    const bool drives = found.lane == SW_LANE_READ || found.lane == SW_LANE_WRITE;
    sw_log_info(
        "steps take %.3g s, not the predicted %.3g s; the lane that differs most is %s, busy for %.3g s instead of "
        "%.3g s; another program may share the machine, or it has changed, and %s measures it again",
        found.measured_s, found.predicted_s, sw_lane_name(found.lane), found.lane_measured_s, found.lane_predicted_s,
        sw_ranks_count(trainer->ranks) > 1 ? "`spillway plan` by as many ranks" : "`spillway doctor --measure`");
    sw_profile_doubt(drives ? forecast->source.drives_path : forecast->source.machine_path);
}
