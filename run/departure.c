/* Compares steps with their prediction, block by block.
 *
 * A single slow step proves nothing: another program may have used the machine for a moment. Two blocks in a row must
 * depart, each judged by its median, so neither a few slow steps nor one long pause suffices. A departure is reported
 * once per start; repeating it every block would bury the log. */
#include "run/departure.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "job/profile.h"
#include "job/store.h"
#include "run/steplog.h"
#include "run/trainer.h"

#include <math.h>
#include <stdio.h>

enum { THOUSAND = 1000, SECONDS_PER_MINUTE = 60, INTERVAL_CHARS = 128, PAUSES_CHARS = 160 };

bool sw_costs_note(struct sw_costs *costs, bool saves, double seconds, int64_t written_bytes) {
    const sw_cost_kind kind = saves ? SW_COST_SAVING : costs->saved ? SW_COST_AFTER_SAVING : SW_COST_PLAIN;
    const bool counts = costs->steps > 0 && !costs->paused;
    costs->steps++;
    costs->written_bytes += written_bytes;
    costs->kind[kind].steps += counts;
    costs->kind[kind].seconds += counts ? seconds : 0.0;
    costs->paused = false;
    costs->saved = saves;
    return counts && kind == SW_COST_PLAIN;
}

void sw_costs_note_pause(struct sw_costs *costs, sw_pause_kind kind, double seconds) {
    costs->pause[kind].times++;
    costs->pause[kind].seconds += seconds;
}

static double mean(const struct sw_costs *costs, sw_cost_kind kind) {
    return costs->kind[kind].steps > 0 ? costs->kind[kind].seconds / (double)costs->kind[kind].steps : 0.0;
}

/* Returns the seconds that a save adds to training on average; 0 until both a save and other steps were timed. */
static double costs_of_save(const struct sw_costs *costs) {
    if (costs->kind[SW_COST_PLAIN].steps == 0 || costs->kind[SW_COST_SAVING].steps == 0)
        return 0.0;
    const double plain_s = mean(costs, SW_COST_PLAIN);
    const double after_s = costs->kind[SW_COST_AFTER_SAVING].steps > 0 ? mean(costs, SW_COST_AFTER_SAVING) : plain_s;
    return mean(costs, SW_COST_SAVING) - plain_s + after_s - plain_s;
}

/* Writes "100 steps", "10 min" or "100 steps or 10 min, whichever is less". */
static const char *interval_text(const struct sw_option_every *every, char text[INTERVAL_CHARS]) {
    const bool minutes = every->seconds % SECONDS_PER_MINUTE == 0;
    const long long time = (long long)(minutes ? every->seconds / SECONDS_PER_MINUTE : every->seconds);
    const char *unit = minutes ? "min" : "s";
    char steps[SW_COUNT_CHARS];
    if (every->seconds == 0)
        sw_format_count(every->steps, "step", text);
    else if (every->steps == 0)
        snprintf(text, INTERVAL_CHARS, "%lld %s", time, unit);
    else
        snprintf(text, INTERVAL_CHARS, "%s or %lld %s, whichever is less", sw_format_count(every->steps, "step", steps),
                 time, unit);
    return text;
}

void sw_costs_say_kill(const struct sw_trainer *trainer) {
    const struct sw_option_every *every = &trainer->run.settings.save_every;
    const double step_s = trainer->forecast.step.step_s;
    const int64_t steps = sw_writes_save_steps(every, step_s);
    char interval[INTERVAL_CHARS], time[SW_TIME_TEXT_CHARS], count[SW_COUNT_CHARS];
    if (trainer->job.plan->spec.one_generation)
        sw_log_info("a kill or a power loss would cost the whole run (--durability none)");
    else if (trainer->job.plan->commit_every_step)
        sw_log_info("a kill or a power loss would cost the running step");
    else if (step_s > 0.0 && every->steps > 0)
        sw_log_info("a kill or a power loss would cost up to %s, %s, and the running step (--save-every)",
                    sw_format_count(steps, "step", count), sw_format_duration((double)steps * step_s, time));
    else
        sw_log_info("a kill or a power loss would cost up to %s, and the running step (--save-every)",
                    interval_text(every, interval));
}

static void say_saves(const struct sw_costs *costs) {
    const double plain_s = mean(costs, SW_COST_PLAIN), save_s = mean(costs, SW_COST_SAVING);
    const double cost_s = costs_of_save(costs);
    if (costs->kind[SW_COST_PLAIN].steps == 0 || costs->kind[SW_COST_SAVING].steps == 0)
        return;
    double all_s = 0.0;
    for (int kind = 0; kind < SW_COST_KINDS; kind++)
        all_s += costs->kind[kind].seconds;
    sw_log_info("steps with a save took %.3f s, others %.3f s; a save costs %.3f s, the slower step after it included: "
                "%.1f%% of "
                "the time",
                save_s, plain_s, cost_s, 100.0 * cost_s * (double)costs->kind[SW_COST_SAVING].steps / all_s);
}

/* Logs the share of this start's time that evaluations, samples and exports took. */
static void say_pauses(const struct sw_trainer *trainer) {
    static const char *const names[] = {
        [SW_PAUSE_EVALUATION] = "evaluations", [SW_PAUSE_SAMPLES] = "samples", [SW_PAUSE_EXPORT] = "exports"};
    const double all_s = (double)(sw_now_ns() - trainer->start_ns) * 1e-9;
    char text[PAUSES_CHARS] = "";
    size_t used = 0;
    for (int kind = 0; kind < SW_PAUSE_KINDS; kind++) {
        const double seconds = trainer->costs.pause[kind].seconds;
        if (trainer->costs.pause[kind].times > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.3g s (%.1f%%)", used > 0 ? ", " : "",
                                     names[kind], seconds, 100.0 * seconds / all_s);
    }
    if (used > 0)
        sw_log_info("of the %.3g s since the start: %s", all_s, text);
}

/* Counts only this start; the log has earlier steps. The store does not count the zeros that it is first filled with.
 */
void sw_costs_say_end(const struct sw_trainer *trainer) {
    const struct sw_costs *costs = &trainer->costs;
    const double endurance_tb = trainer->run.settings.endurance;
    char all[SW_WRITES_SHARE_CHARS], thousand[SW_WRITES_SHARE_CHARS];
    say_pauses(trainer);
    if (costs->steps == 0)
        return;
    say_saves(costs);
    const int64_t made_bytes = trainer->made_store ? sw_plan_store_bytes(trainer->job.plan) : 0;
    const double written = (double)(sw_store_counters(trainer->store).write_bytes + made_bytes);
    const char *said = sw_writes_share_text(written, endurance_tb, all);
    if (costs->written_bytes == 0)
        sw_log_info("written since the start: %s", said);
    else
        sw_log_info("written since the start: %s; the steps wrote %s a thousand steps", said,
                    sw_writes_share_text(THOUSAND * (double)costs->written_bytes / (double)costs->steps, endurance_tb,
                                         thousand));
}

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
