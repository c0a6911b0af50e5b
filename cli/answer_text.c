#include "cli/answer_text.h"

#include "cli/commands.h"
#include "core/log.h"
#include "core/size.h"
#include "job/settings/places.h"
#include "run/steplog.h"

/* Repeated data are worth about as much as new data for four passes, and soon less after (Muennighoff et al., 2023). */
#define MANY_EPOCHS 5.0

/* Terabytes that most consumer NVMe drives of 1 TB are rated to write; the share of a rating above which to warn. */
#define COMMON_DRIVE_TBW 600.0
#define LARGE_SHARE 0.1

enum { INDENT = 2, VALUE_COLUMN = 17, RANGE_CHARS = 80, RATING_CHARS = 160 };

static void print_budget(const struct sw_answer *a, const char *what, sw_tier tier, FILE *to) {
    char peak[SW_SIZE_CHARS], budget[SW_SIZE_CHARS];
    fprintf(to, "%*s%-14s %s of %s\n", INDENT, "", what, sw_format_size(a->plan->tier_bytes[tier], peak),
            sw_format_size(a->plan->spec.budget_bytes[tier], budget));
}

static void print_disk(const struct sw_answer *a, FILE *to) {
    char disk[SW_SIZE_CHARS], optimizer[SW_SIZE_CHARS];
    fprintf(to, "%*s%-14s ", INDENT, "", "disk");
    sw_command_print_to(to, VALUE_COLUMN, VALUE_COLUMN, "%s, of which %s are two generations of the optimizer",
                        sw_format_size(sw_plan_disk_bytes(a->plan), disk),
                        sw_format_size(sw_plan_store_bytes(a->plan), optimizer));
}

static void print_written(const struct sw_answer *a, FILE *to) {
    char run[SW_WRITES_SHARE_CHARS], step[SW_WRITES_CHARS], save[SW_WRITES_CHARS], steps[SW_COUNT_CHARS];
    fprintf(to, "%*s%-14s ", INDENT, "", "written");
    if (a->writes.save_every == 0 && sw_plan_saves(a->plan))
        sw_command_print_to(to, VALUE_COLUMN, VALUE_COLUMN, "%s a step, and %s more with each save",
                            sw_writes_text((double)a->writes.step_bytes, step),
                            sw_writes_text((double)a->writes.save_bytes, save));
    else
        sw_command_print_to(to, VALUE_COLUMN, VALUE_COLUMN, "%s in %s",
                            sw_writes_share_text(sw_writes_of_run(&a->writes, a->steps), a->settings->endurance, run),
                            sw_format_count(a->steps, "step", steps));
}

/* Prints how ranks divide layers and sequences. */
static void print_groups(const struct sw_settings *s, FILE *to) {
    char groups[SW_COUNT_CHARS];
    const bool experts = sw_settings_shares_experts(s), tensor = sw_settings_tensor_ranks(s) > 1;
    const char *does = tensor ? "computes its part of every layer" : "has its part of the experts";
    if (sw_settings_part_ranks(s) == 1)
        return;
    if (experts && tensor)
        does = "computes its part of every layer, and has its part of the experts";
    fprintf(to, "%*s%-14s ", INDENT, "", "ranks");
    sw_command_print_to(to, VALUE_COLUMN, VALUE_COLUMN, "%lld: %s of %lld; each rank %s",
                        (long long)sw_settings_ranks(s),
                        sw_format_count(sw_settings_state_ranks(s), experts ? "expert group" : "tensor group", groups),
                        (long long)sw_settings_part_ranks(s), does);
}

void sw_answer_print_plan(const struct sw_answer *answer, FILE *to) {
    const struct sw_settings *s = answer->settings;
    const sw_optimizer_format optimizer = sw_optimizer_records(answer->plan->spec.units->optimizer);
    const bool muon = sw_optimizer_has_muon(answer->plan->spec.units->optimizer);
    const bool narrow = optimizer != SW_OPTIMIZER_FP32 && !muon;
    const int64_t all = sw_settings_parameters(s, answer->plan->spec.units);
    char parameters[SW_COUNT_CHARS], active[SW_COUNT_CHARS], active_text[SW_COUNT_CHARS + 32] = "";
    static const char *const muon_states[SW_OPTIMIZER_FORMATS] = {
        " with the state of Muon", " with the state of Muon in bf16", " with the state of Muon in 8bit"};
    const char *state = muon ? muon_states[sw_optimizer_momentum(answer->plan->spec.units->optimizer)] : "";
    const char *grads = narrow || muon ? " and gradients in 8bit" : " with gradients in 8bit";
    if (answer->config->experts > 0)
        snprintf(active_text, sizeof active_text, ", %s of them for each token,",
                 sw_format_large(sw_model_active_parameters(answer->config, answer->plan->spec.units, all), active));
    sw_command_print_to(to, 0, INDENT, "%s fits: %s parameters%s in %s%s%s%s, %lld tokens a step, %lld x %lld at once",
                        s->model, sw_format_large(all, parameters), active_text, sw_settings_precision_name(s),
                        narrow ? " with moments in " : state, narrow ? sw_optimizer_format_name(optimizer) : "",
                        answer->plan->spec.grads == SW_GRADS_8BIT ? grads : "", (long long)s->batch_tokens,
                        (long long)s->micro_batch, (long long)s->seq);
    print_groups(s, to);
    print_budget(answer, "device memory", SW_DEVICE, to);
    print_budget(answer, "host memory", SW_HOST, to);
    print_disk(answer, to);
    if (answer->steps > 0)
        print_written(answer, to);
}

void sw_answer_warn_groups(const struct sw_settings *s, double step_s, double in_nodes_s) {
    const long long nodes = sw_settings_tensor_nodes(s), node_ranks = sw_settings_tensor_node_ranks(s);
    char step[SW_TIME_TEXT_CHARS], in_nodes[SW_TIME_TEXT_CHARS];
    if (nodes < 2)
        return;
    if (in_nodes_s > 0.0)
        sw_log_warn("the tensor groups of %lld ranks span %lld nodes: a step takes %s, %s within one node; use "
                    "--tensor %lld",
                    (long long)s->tensor, nodes, sw_format_seconds(step_s, step),
                    sw_format_seconds(in_nodes_s, in_nodes), node_ranks);
    else
        sw_log_warn("the tensor groups of %lld ranks span %lld nodes, so that the exchanges of every layer cross the "
                    "network; use --tensor %lld",
                    (long long)s->tensor, nodes, node_ranks);
}

void sw_answer_warn_epochs(double epochs, int64_t steps) {
    if (epochs > MANY_EPOCHS && epochs - epochs / (double)steps >= MANY_EPOCHS)
        sw_log_warn(
            "the run passes %.3g times over its training data; after about %.0f passes a model mostly learns the "
            "data by heart: give more data or fewer steps, or --val with --early-stop",
            epochs, MANY_EPOCHS);
}

/* Writes the drives' rating and where it comes from. Returns it in terabytes. */
static double rating_of(const struct sw_settings *s, char text[RATING_CHARS]) {
    const int drives = s->nvme.count > 0 ? s->nvme.count : 1;
    const double rated_tb = s->endurance > 0.0 ? s->endurance : drives * COMMON_DRIVE_TBW;
    if (s->endurance > 0.0)
        snprintf(text, RATING_CHARS, "%g TB that --endurance says", rated_tb);
    else if (drives == 1)
        snprintf(text, RATING_CHARS, "%g TB that a common drive of 1 TB is rated to write (--endurance names yours)",
                 rated_tb);
    else
        snprintf(text, RATING_CHARS, "%g TB that %d common drives of 1 TB are rated to write (--endurance names yours)",
                 rated_tb, drives);
    return rated_tb;
}

static bool is_optimizer_on_nvme(const struct sw_plan *plan) {
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (sw_plan_trains(plan, u) && plan->placement[u].tier[SW_OPTIMIZER] == SW_NVME)
            return true;
    return false;
}

/* Ranks that share their drives wear them out together. */
void sw_answer_warn_writes(const struct sw_settings *s, const struct sw_plan *plan, const struct sw_writes *writes,
                           int64_t steps) {
    const double sharers = sw_places_are_shared(&s->nvme) ? (double)sw_max_i64(1, s->local_ranks) : 1.0;
    const double in_steps = sharers * (double)steps * (double)writes->step_bytes;
    const double all = sharers * sw_writes_of_run(writes, steps);
    const bool begins = writes->start_bytes > 0, narrows = plan->spec.units->optimizer != SW_OPTIMIZER_8BIT;
    char rating[RATING_CHARS], text[SW_WRITES_CHARS];
    const double rated_tb = rating_of(s, rating);
    if (!(sw_writes_share(all, rated_tb) > LARGE_SHARE))
        return;
    const char *what = begins ? "the run writes" : "the steps that are left write";
    sw_writes_text(all, text);
    if (in_steps < all / 2.0)
        sw_log_warn("%s %s, over a tenth of the %s; a longer --save-every saves more rarely", what, text, rating);
    else
        sw_log_warn("%s %s, over a tenth of the %s; %smore state in host memory (--host-memory, --place) writes less%s",
                    what, text, rating,
                    narrows && is_optimizer_on_nvme(plan) ? "--optimizer-state 8bit writes about half as much, " : "",
                    begins ? ", and with larger --batch-tokens fewer steps learn as many tokens" : "");
}

void sw_answer_warn_state(double step_s, double narrow_s) {
    char now[SW_TIME_TEXT_CHARS], narrow[SW_TIME_TEXT_CHARS];
    if (narrow_s > 0.0)
        sw_log_warn(
            "with --optimizer-state 8bit a step is predicted to take %s and not %s (%.3g times as fast): less is "
            "read and written, and results change a little",
            sw_format_seconds(narrow_s, narrow), sw_format_seconds(step_s, now), step_s / narrow_s);
}

static void print_step(const struct sw_answer *a, FILE *to) {
    const double tokens = (double)a->settings->batch_tokens;
    char range[RANGE_CHARS] = "", rate[SW_COUNT_CHARS];
    char expected[SW_TIME_TEXT_CHARS], fast[SW_TIME_TEXT_CHARS], slow[SW_TIME_TEXT_CHARS];
    if (a->slow_s > 0.0)
        snprintf(range, sizeof range, " (%s to %s)", sw_format_seconds(a->fast_s, fast),
                 sw_format_seconds(a->slow_s, slow));
    sw_command_print_to(to, 0, INDENT, "a step takes %s%s: %s tokens/s, limited by %s (busy %.0f%%)",
                        sw_format_seconds(a->step->step_s, expected), range,
                        sw_format_rate(tokens / a->step->step_s, rate), a->step->bottleneck,
                        100.0 * a->step->bottleneck_share);
}

static void print_run(const struct sw_answer *a, FILE *to) {
    const bool saves = a->writes.save_every > 0 && a->save_s > 0.0;
    const double saves_s = saves ? a->save_s / (double)a->writes.save_every : 0.0;
    char run[SW_TIME_TEXT_CHARS], steps[SW_COUNT_CHARS];
    sw_command_print_to(to, 0, INDENT, "a run of %s takes %s, its saves %s", sw_format_count(a->steps, "step", steps),
                        sw_format_duration((double)a->steps * (a->step->step_s + saves_s), run),
                        saves || !sw_plan_saves(a->plan) ? "included" : "not included");
}

static void print_source(const struct sw_answer *a, FILE *to) {
    /* For ranks that are only planned for, the profile of a single process is used. */
    const bool together = sw_settings_ranks(a->settings) > 1 && a->settings->local_ranks > 0;
    const char *doubt = a->profile->doubted ? ", from which an earlier run has departed" : "";
    if (a->file != NULL)
        sw_command_print_to(to, 0, INDENT, "predicted for %s by %s", a->machine, a->file);
    else if (together)
        sw_command_print_to(to, 0, INDENT, "predicted for %s by the profile of %lld ranks%s; to renew it, remove %s",
                            a->machine, (long long)sw_settings_ranks(a->settings), doubt, a->profile->machine_path);
    else
        sw_command_print_to(to, 0, INDENT,
                            "predicted for %s by this machine's profile%s; `spillway doctor --measure` renews it",
                            a->machine, doubt);
}

/* Prints what would measure the profile. */
static void print_unknown(const struct sw_answer *a, FILE *to) {
    const long long ranks = (long long)sw_settings_ranks(a->settings);
    const char *text = "how long a step takes is not predicted:";
    if (ranks > 1)
        sw_command_print_to(to, 0, INDENT, "%s `spillway plan` by %lld ranks measures them, once", text, ranks);
    else
        sw_command_print_to(to, 0, INDENT, "%s `spillway doctor --measure` measures this machine, once", text);
}

void sw_answer_print_times(const struct sw_answer *answer, FILE *to) {
    if (answer->steps == 0)
        return;
    if (answer->step == NULL) {
        print_unknown(answer, to);
        return;
    }
    print_step(answer, to);
    print_run(answer, to);
    print_source(answer, to);
}
