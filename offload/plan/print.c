/* Prints a plan as a table for people. */
#include "core/log.h"
#include "core/size.h"
#include "io/store/store.h"
#include "offload/plan/plan.h"

#include <string.h>

/* Returns the bytes of all slots of one name on one tier. */
static int64_t named_bytes(const struct sw_plan *plan, const char *name, sw_tier tier) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < plan->slot_count; s++)
        if (plan->slot[s].tier == tier && strcmp(plan->slot[s].name, name) == 0)
            bytes += sw_slot_bytes(&plan->slot[s]);
    return bytes;
}

static bool first_of_name(const struct sw_plan *plan, int32_t slot) {
    for (int32_t s = 0; s < slot; s++)
        if (strcmp(plan->slot[s].name, plan->slot[slot].name) == 0)
            return false;
    return true;
}

/* Columns of a cell, fewer on a narrow terminal, and of the name before the cells. */
enum { CELL = 14, NARROW_CELL = 12, NAME = 20 };

static void print_text(FILE *out, const char *text) {
    const bool is_narrow = sw_log_columns(out) < NAME + (int)SW_TIERS * CELL;
    fprintf(out, "%*s", is_narrow ? NARROW_CELL : CELL, text);
}

/* Prints what begins a row; its cells stand below it where they do not fit beside it. */
static void print_name(FILE *out, const char *indent, const char *name) {
    if (sw_log_columns(out) < NAME + (int)SW_TIERS * NARROW_CELL)
        fprintf(out, "%s%s\n    ", indent, name);
    else
        fprintf(out, "%s%-*s", indent, NAME - (int)strlen(indent), name);
}

static void print_heading(FILE *out, const char *what) {
    print_name(out, "", what);
    for (int t = 0; t < SW_TIERS; t++)
        print_text(out, sw_tier_name((sw_tier)t));
    fputc('\n', out);
}

static void print_units(FILE *out, int64_t units) {
    print_text(out, SW_COUNT(units, "unit"));
}

static void print_cell(FILE *out, int64_t bytes) {
    char text[SW_SIZE_CHARS];
    print_text(out, bytes == 0 ? "-" : sw_format_size(bytes, text));
}

/* Returns the bytes that a tier keeps under a name. Weights that are read in place take none of a drive. A commit takes
 * the optimizer of all units, wherever it is placed, so drives keep all of it. */
static int64_t kept_bytes(const struct sw_plan *plan, const char *name, sw_tier tier) {
    const bool committed = plan->spec.train && tier == SW_NVME && strcmp(name, sw_state_name(SW_OPTIMIZER)) == 0;
    const bool weights = tier == SW_NVME && strcmp(name, sw_state_name(SW_WEIGHTS)) == 0;
    if (committed)
        return sw_plan_store_bytes(plan);
    return named_bytes(plan, name, tier) - (weights ? sw_plan_in_place_bytes(plan) : 0);
}

int64_t sw_plan_disk_bytes(const struct sw_plan *plan) {
    const int64_t placed = named_bytes(plan, sw_state_name(SW_OPTIMIZER), SW_NVME);
    return plan->tier_bytes[SW_NVME] - placed - sw_plan_in_place_bytes(plan) +
           kept_bytes(plan, sw_state_name(SW_OPTIMIZER), SW_NVME);
}

static void print_memory(const struct sw_plan *plan, FILE *out) {
    print_heading(out, "memory");
    for (int32_t s = 0; s < plan->slot_count; s++) {
        if (!first_of_name(plan, s))
            continue;
        print_name(out, "  ", plan->slot[s].name);
        for (int t = 0; t < SW_TIERS; t++)
            print_cell(out, kept_bytes(plan, plan->slot[s].name, (sw_tier)t));
        fputc('\n', out);
    }
    print_name(out, "  ", "peak");
    for (int t = 0; t < SW_TIERS; t++)
        print_cell(out, t == SW_NVME ? sw_plan_disk_bytes(plan) : plan->tier_bytes[t]);
    fputc('\n', out);
    print_name(out, "  ", "budget");
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        print_cell(out, plan->spec.budget_bytes[t]);
    fputc('\n', out);
}

/* Prints where trained weights live, if that is not where the frozen ones of their units do. */
static void print_trained(const struct sw_plan *plan, FILE *out) {
    int64_t units[SW_TIERS] = {0};
    bool apart = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        units[sw_plan_tier_of_trained(plan, u)] += sw_plan_trains(plan, u);
        apart |= sw_plan_tier_of_trained(plan, u) != plan->placement[u].tier[SW_WEIGHTS];
    }
    if (!apart)
        return;
    print_name(out, "  ", "trained weights");
    for (int t = 0; t < SW_TIERS; t++)
        print_units(out, units[t]);
    fputc('\n', out);
}

static void print_placement(const struct sw_plan *plan, FILE *out) {
    for (int state = SW_WEIGHTS; state < SW_STATES; state++) {
        int64_t units[SW_TIERS] = {0};
        const bool of_trained = state == SW_GRADS || state == SW_OPTIMIZER;
        for (int64_t u = 0; u < plan->spec.units->count; u++)
            units[plan->placement[u].tier[state]] += sw_plan_holds(plan, u) && (!of_trained || sw_plan_trains(plan, u));
        print_name(out, "  ", sw_state_name((sw_state)state));
        for (int t = 0; t < SW_TIERS; t++)
            print_units(out, units[t]);
        fputc('\n', out);
        if (state == SW_WEIGHTS)
            print_trained(plan, out);
    }
}

/* Prints in the columns of the tiers where updates run. */
static void print_updates(const struct sw_plan *plan, FILE *out) {
    int64_t on_device = 0, all = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        on_device += sw_plan_updates_on_device(plan, u);
        all += sw_plan_trains(plan, u);
    }
    print_name(out, "  ", "updates run");
    print_units(out, on_device);
    print_units(out, all - on_device);
    fputc('\n', out);
}

const char *sw_plan_commits(const struct sw_plan *plan) {
    if (plan->spec.one_generation)
        return "only a clean end commits";
    return plan->commit_every_step ? "every step commits" : "commits as --save-every says";
}

int64_t sw_plan_store_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        bytes += sw_plan_state_bytes(plan, u);
    return (plan->spec.one_generation ? 1 : SW_STORE_GENERATIONS) * bytes;
}

static void print_disk(const struct sw_plan *plan, FILE *out) {
    char all[SW_SIZE_CHARS], store[SW_SIZE_CHARS];
    fprintf(out, "disk needed: %s, %s of it for %s of the optimizer\n  %s\n",
            sw_format_size(sw_plan_disk_bytes(plan), all), sw_format_size(sw_plan_store_bytes(plan), store),
            plan->spec.one_generation ? "one generation" : "two generations", sw_plan_commits(plan));
}

static void print_lanes(const struct sw_plan *plan, FILE *out) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    fprintf(out, "%-20s%14s%14s\n", "lanes of a step", "ops", "bytes");
    for (int lane = 0; lane < SW_LANES; lane++) {
        int64_t bytes = 0;
        for (int32_t i = 0; i < program->lane_count[lane]; i++)
            bytes += program->op[program->lane_op[lane][i]].bytes;
        fprintf(out, "  %-18s%14d", sw_lane_name((sw_lane)lane), program->lane_count[lane]);
        print_cell(out, bytes);
        fputc('\n', out);
    }
    fprintf(out,
            "  %d ops and %d waits, checked: every read finds its content,\n"
            "  nothing overlaps, no circle of waits\n",
            program->op_count, program->wait_count);
}

static void print_order(const struct sw_plan *plan, FILE *out) {
    const struct sw_plan_spec *spec = &plan->spec;
    char chunk[SW_SIZE_CHARS];
    if (spec->group >= spec->micro_batches)
        fprintf(out, "order by layer, %lld micro-batch%s\n", (long long)spec->micro_batches,
                spec->micro_batches == 1 ? "" : "es");
    else
        fprintf(out, "order by groups of %lld of %lld micro-batches\n", (long long)spec->group,
                (long long)spec->micro_batches);
    fprintf(out, "chunks of %s (%s of optimizer)\n", SW_COUNT(spec->chunk_grains, "grain"),
            sw_format_size(sw_optimizer_is_packed(spec->units->optimizer)
                               ? sw_plan_most_chunk_bytes(plan)
                               : sw_plan_optimizer_bytes(plan, spec->chunk_grains),
                           chunk));
}

/* Tells why these intermediates are kept, and not others. */
static const char *reason_to_keep(const struct sw_plan *plan, bool all) {
    if (!plan->spec.recompute_auto)
        return "as told";
    return all ? "the device has room for them" : "kept are those that save the most time for their bytes";
}

static void print_recompute(const struct sw_plan *plan, FILE *out) {
    int64_t units[SW_RECOMPUTES] = {0};
    for (int64_t u = sw_max_i64(1, plan->first_trained); u + 1 < plan->spec.units->count; u++)
        units[plan->recompute[u]]++;
    const bool keeps_all = units[SW_RECOMPUTE_DERIVED] + units[SW_RECOMPUTE_UNIT] == 0;
    fprintf(out, "intermediates computed again: none of %lld units, the derived ones of %lld,\n  all of %lld; %s\n",
            (long long)units[SW_RECOMPUTE_NOTHING], (long long)units[SW_RECOMPUTE_DERIVED],
            (long long)units[SW_RECOMPUTE_UNIT], reason_to_keep(plan, keeps_all));
}

void sw_plan_print(const struct sw_plan *plan, FILE *out) {
    print_order(plan, out);
    if (plan->spec.train)
        print_recompute(plan, out);
    print_memory(plan, out);
    print_heading(out, "placement");
    print_placement(plan, out);
    if (plan->spec.train) {
        print_updates(plan, out);
        print_disk(plan, out);
        print_lanes(plan, out);
    }
}
