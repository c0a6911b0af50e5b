#include "cli/plan_text.h"

#include "cli/answer_text.h"
#include "cli/commands.h"
#include "core/number.h"
#include "core/size.h"
#include "job/what_if.h"
#include "run/steplog_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SENTENCE_CHARS = 1024, INDENT = 2, LANES_INDENT = 4, GROUP_COLUMN = 10, GROUP_INDENT = 12 };

static void print_simulation(const struct sw_planned *p, const char *name, const struct sw_simulation *s) {
    char lanes[SENTENCE_CHARS] = "", time[SW_TIME_TEXT_CHARS], rate[SW_COUNT_CHARS];
    int length = 0;
    for (int lane = 0; lane < SW_LANES; lane++)
        if (s->lane_busy_s[lane] >= 0.005 * s->step_s)
            length += snprintf(lanes + length, sizeof lanes - (size_t)length, "%s %.0f%%, ",
                               sw_lane_name((sw_lane)lane), 100.0 * s->lane_busy_s[lane] / s->step_s);
    printf("%*s%-26s%11s%12s tokens/s\n%*s", INDENT, "", name, sw_format_seconds(s->step_s, time),
           sw_format_rate((double)p->settings.batch_tokens / s->step_s, rate), LANES_INDENT, "");
    sw_command_print(LANES_INDENT, LANES_INDENT, "busy: %slimited by %s", lanes, s->bottleneck);
}

/* Prints how long recomputing takes in a step, and how long it would take if nothing were kept. */
static void print_recompute_price(const struct sw_planned *p) {
    const struct sw_rates *rates = &p->rates.rates;
    const double micros = (double)p->plan->spec.micro_batches;
    double again_s = 0.0, all_s = 0.0;
    char again[SW_TIME_TEXT_CHARS], all[SW_TIME_TEXT_CHARS];
    for (int64_t u = 0; u < p->plan->spec.units->count; u++) {
        const double level_s[SW_RECOMPUTES] = {
            [SW_RECOMPUTE_DERIVED] = rates->derive_s[u], [SW_RECOMPUTE_UNIT] = rates->recompute_s[u]};
        again_s += micros * level_s[p->plan->recompute[u]];
        all_s += micros * level_s[SW_RECOMPUTE_UNIT];
    }
    sw_command_print(0, INDENT, "computing intermediates again takes %s of a step; all of them would take %s",
                     sw_format_seconds(again_s, again), sw_format_seconds(all_s, all));
}

static void print_writes(const struct sw_planned *p) {
    const struct sw_settings *s = &p->settings;
    char step[SW_WRITES_CHARS], save[SW_WRITES_CHARS], steps[SW_COUNT_CHARS];
    char thousand[SW_WRITES_SHARE_CHARS], all[SW_WRITES_SHARE_CHARS];
    printf("written to the store: %s a step", sw_writes_text((double)p->writes.step_bytes, step));
    if (p->writes.save_every > 0)
        printf(", %s more every %s", sw_writes_text((double)p->writes.save_bytes, save),
               sw_format_count(p->writes.save_every, "step", steps));
    printf("\n  %s every thousand steps\n",
           sw_writes_share_text(sw_writes_per_thousand(&p->writes), s->endurance, thousand));
    printf("  %s in a run of %s, with making its store\n",
           sw_writes_share_text(sw_writes_of_run(&p->writes, s->steps), s->endurance, all),
           sw_format_count(s->steps, "step", steps));
}

/* Prints the predicted steps by which the order was chosen. */
static void print_order_prices(const struct sw_planned *p) {
    const struct sw_search_prices *prices = &p->prices;
    char step[SW_TIME_TEXT_CHARS], chosen[SW_TIME_TEXT_CHARS];
    if (prices->orders == 0)
        return;
    puts("order by predicted step, with updates on the host:");
    for (int i = 0; i < prices->orders; i++) {
        printf("  groups of %-6lld ", (long long)prices->order[i].group);
        if (isfinite(prices->order[i].bound_s))
            printf("at least %s\n", sw_format_seconds(prices->order[i].bound_s, step));
        else if (prices->order[i].too_long)
            puts("too many operations");
        else if (!isfinite(prices->order[i].step_s))
            puts("does not fit");
        else if (prices->order[i].chosen_s < prices->order[i].step_s)
            printf("%s (%s with updates where they are cheapest)\n", sw_format_seconds(prices->order[i].step_s, step),
                   sw_format_seconds(prices->order[i].chosen_s, chosen));
        else
            printf("%s\n", sw_format_seconds(prices->order[i].step_s, step));
    }
}

/* Prints the predicted steps by which the places of updates were chosen. */
static void print_update_prices(const struct sw_planned *p) {
    const struct sw_update_prices *prices = &p->prices.update;
    char chosen[SW_TIME_TEXT_CHARS], side[SW_TIME_TEXT_CHARS];
    if (!prices->known)
        return;
    printf("updates by predicted step: %s\n  all on the host   %s\n", sw_format_seconds(prices->chosen_s, chosen),
           sw_format_seconds(prices->host_s, side));
    if (isfinite(prices->device_s))
        printf("  all on the device %s\n", sw_format_seconds(prices->device_s, side));
    else
        puts("  all on the device does not fit");
}

/* Prints what the search for a placement gained. */
static void print_placement_price(const struct sw_planned *p) {
    const struct sw_placement_price *price = &p->prices.placement;
    char chosen[SW_TIME_TEXT_CHARS], usual[SW_TIME_TEXT_CHARS], tried[SW_COUNT_CHARS];
    if (price->known)
        sw_command_print(0, INDENT, "placement by predicted step: %s, %s with the usual one; %s tried, %lld simulated",
                         sw_format_seconds(price->chosen_s, chosen), sw_format_seconds(price->usual_s, usual),
                         sw_format_count(price->tried, "plan", tried), (long long)price->simulated);
}

static void print_prediction(const struct sw_planned *p) {
    char cost[SW_TIME_TEXT_CHARS], every[SW_COUNT_CHARS];
    puts("predicted step");
    print_simulation(p, "update under forward", &p->prediction.plain);
    if (p->may_save) {
        print_simulation(p, "with a save", &p->save.step);
        printf("  a save costs %s, slower steps beside it included: every %s, %.1f%% more\n",
               sw_format_seconds(p->save.cost_s, cost), sw_format_count(p->writes.save_every, "step", every),
               100.0 * sw_planned_save_share(p));
    }
    if (p->prediction.may_speculate) {
        print_simulation(p, "speculated in backward", &p->prediction.speculated);
        print_simulation(p, "speculated and redone", &p->prediction.redone);
    }
}

/* The fastest of the plans that were compared and not taken. */
struct rival {
    char what[SENTENCE_CHARS];
    double step_s; /* infinite: there is none */
    bool at_least; /* step_s is a lower bound */
};

static void take_rival(struct rival *best, const char *what, double step_s, bool at_least) {
    if (!(step_s > 0.0 && step_s < best->step_s))
        return;
    snprintf(best->what, sizeof best->what, "%s", what);
    best->step_s = step_s;
    best->at_least = at_least;
}

static struct rival find_rival(const struct sw_planned *p) {
    const struct sw_search_prices *prices = &p->prices;
    const struct sw_update_prices *update = &prices->update;
    struct rival best = {.step_s = INFINITY};
    for (int i = 0; i < prices->orders; i++) {
        char what[SENTENCE_CHARS];
        const struct sw_group_price *price = &prices->order[i];
        const double step_s = fmin(price->step_s, price->chosen_s);
        snprintf(what, sizeof what, "groups of %lld", (long long)price->group);
        if (price->group != p->plan->spec.group)
            take_rival(&best, what, isfinite(step_s) ? step_s : price->bound_s, !isfinite(step_s));
    }
    if (update->known && update->host_s > update->chosen_s)
        take_rival(&best, "all updates on the host", update->host_s, false);
    if (update->known && update->device_s > update->chosen_s)
        take_rival(&best, "all updates on the device", update->device_s, false);
    if (prices->placement.known && prices->placement.usual_s > prices->placement.chosen_s)
        take_rival(&best, "the usual placement", prices->placement.usual_s, false);
    return best;
}

/* Prints why this plan was taken: how much slower the next best of the compared ones is. */
static void print_rival(const struct sw_planned *p) {
    const struct rival best = find_rival(p);
    char time[SW_TIME_TEXT_CHARS];
    const double step_s = p->prediction.plain.step_s;
    if (isfinite(best.step_s) && best.step_s > step_s)
        sw_command_print(0, INDENT, "this plan and not the next best, %s: %s%s, %.1f%% slower", best.what,
                         best.at_least ? "at least " : "", sw_format_seconds(best.step_s, time),
                         100.0 * (best.step_s / step_s - 1.0));
}

static void print_help(const struct sw_what_if *row, double tokens_per_s) {
    char time[SW_TIME_TEXT_CHARS], rate[SW_COUNT_CHARS];
    printf("  %-22s", row->what);
    if (!row->fits)
        puts("has no plan that fits");
    else if (!isfinite(row->tokens_per_s))
        puts("not known: the drives are not measured");
    else
        printf("%11s%11s tokens/s%+8.1f%%  %s\n", sw_format_seconds(row->step.step_s, time),
               sw_format_rate(row->tokens_per_s, rate), 100.0 * (row->tokens_per_s / tokens_per_s - 1.0),
               row->step.bottleneck);
}

void sw_plan_print_helps(const struct sw_planned *p, const struct sw_helps *helps) {
    const struct sw_simulation *step = &p->prediction.plain;
    const double tokens_per_s = (double)p->settings.batch_tokens / step->step_s;
    char time[SW_TIME_TEXT_CHARS], rate[SW_COUNT_CHARS];
    if (helps == NULL) {
        puts("what would help: not tried, as plans of so many operations take long");
        return;
    }
    puts("what would help, planned again for each:");
    printf("  %-22s%11s%11s tokens/s%9s  %s\n", "nothing changed", sw_format_seconds(step->step_s, time),
           sw_format_rate(tokens_per_s, rate), "", step->bottleneck);
    for (int i = 0; i < helps->count; i++)
        print_help(&helps->row[i], tokens_per_s);
}

void sw_plan_explain(const struct sw_planned *p) {
    putchar('\n');
    print_prediction(p);
    sw_plan_print(p->plan, stdout);
    print_recompute_price(p);
    print_writes(p);
    print_order_prices(p);
    print_update_prices(p);
    print_placement_price(p);
    print_rival(p);
}

int64_t sw_plan_frozen_bytes(const struct sw_plan *plan) {
    int64_t elems = 0;
    for (int64_t u = 0; u < plan->spec.frozen_units; u++)
        elems += plan->spec.units->unit[u].elems;
    return elems * (int64_t)sizeof(float);
}

static struct sw_unfrozen row_of(const struct sw_planned *p) {
    return (struct sw_unfrozen){
        .step_s = p->prediction.plain.step_s,
        .peak_bytes = {[SW_DEVICE] = p->plan->tier_bytes[SW_DEVICE], [SW_HOST] = p->plan->tier_bytes[SW_HOST]},
        .disk_bytes = sw_plan_disk_bytes(p->plan),
        .step_write_bytes = p->writes.step_bytes};
}

static void print_frozen_row(const char *name, const struct sw_unfrozen *row) {
    char time[SW_TIME_TEXT_CHARS] = "?", device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], disk[SW_SIZE_CHARS];
    char written[SW_WRITES_CHARS];
    if (isfinite(row->step_s))
        sw_format_seconds(row->step_s, time);
    printf("  %-14s%10s%13s%13s%13s%12s\n", name, time, sw_format_size(row->peak_bytes[SW_DEVICE], device),
           sw_format_size(row->peak_bytes[SW_HOST], host), sw_format_size(row->disk_bytes, disk),
           sw_writes_text((double)row->step_write_bytes, written));
}

/* Prints what --freeze saves, as the two plans side by side. */
static void print_frozen(const struct sw_planned *p) {
    const struct sw_unfrozen with = row_of(p);
    char size[SW_SIZE_CHARS], units[SW_COUNT_CHARS], parameters[SW_COUNT_CHARS];
    if (p->plan->spec.frozen_units == 0)
        return;
    sw_command_print(
        0, INDENT, "frozen: %lld of %s, %s of the parameters, whose file takes %s",
        (long long)p->plan->spec.frozen_units, sw_format_count(p->plan->spec.units->count, "unit", units),
        sw_format_large(sw_units_first_parameters(p->plan->spec.units, p->plan->spec.frozen_units), parameters),
        sw_format_size(sw_plan_frozen_bytes(p->plan), size));
    printf("  %-14s%10s%13s%13s%13s%12s\n", "", "step", "device", "host", "disk", "written");
    print_frozen_row("with --freeze", &with);
    if (p->unfrozen.fits)
        print_frozen_row("without", &p->unfrozen);
    else
        puts("  without it the model does not fit");
}

/* Prints an argument as a shell reads it. */
static void print_argument(const char *argument) {
    const size_t plain = strspn(argument, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=.,:/%+@");
    putchar(' ');
    if (argument[0] != '\0' && argument[plain] == '\0') {
        fputs(argument, stdout);
        return;
    }
    putchar('\'');
    for (; *argument != '\0'; argument++)
        if (*argument == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*argument);
    putchar('\'');
}

/* A preset has no weights, so training it begins with random ones. */
static bool is_preset(const char *model) {
    for (int i = 0; sw_preset_at(i) != NULL; i++)
        if (strcmp(sw_preset_at(i)->name, model) == 0)
            return true;
    return false;
}

/* Prints the command on one line, so that it can be copied. A flag's values follow it up to the next flag. */
static void print_command(const struct sw_settings *settings, int argc, char *const *argv) {
    bool kept = true;
    if (settings->ranks > 1)
        printf("%*smpirun -n %lld spillway train", INDENT, "", (long long)settings->ranks);
    else
        printf("%*sspillway train", INDENT, "");
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0)
            kept = sw_options_have(&sw_train_command, argv[i]);
        if (kept)
            print_argument(argv[i]);
    }
    printf("%s%s --run RUN\n", is_preset(settings->model) ? " --init" : "",
           settings->data.count > 0 ? "" : " --data DATA");
}

/* Returns what the step is predicted for. */
static const char *machine_text(const struct sw_planned *p, char text[SENTENCE_CHARS]) {
    const struct sw_device_info info = sw_devices_info(&p->devices);
    if (p->settings.machine == NULL)
        return info.model != NULL ? info.model : "this CPU";
    snprintf(text, SENTENCE_CHARS, "a machine with %s", p->described.device.name);
    return text;
}

/* Prints how many tokens --data has, and what the steps are of them. */
static void print_data(const struct sw_planned *p) {
    const struct sw_settings *s = &p->settings;
    char tokens[SW_COUNT_CHARS], run[SW_COUNT_CHARS], steps[SW_COUNT_CHARS], sample[SW_SIZE_CHARS];
    char source[SENTENCE_CHARS] = "";
    const bool estimated = p->data.sample_bytes > 0;
    if (p->data.tokens == 0)
        return;
    if (estimated)
        snprintf(source, sizeof source, ", estimated from the first %s", sw_format_size(p->data.sample_bytes, sample));
    sw_command_print(0, INDENT, "data: %s%s tokens%s; %s %s %.3g epochs, %s tokens", estimated ? "about " : "",
                     sw_format_large(p->data.tokens, tokens), source, sw_format_count(s->steps, "step", steps),
                     s->steps == 1 ? "is" : "are", sw_data_pass_epochs(&p->data, s),
                     sw_format_large(s->steps * s->batch_tokens, run));
}

/* Prints what each GPU of a described cluster does, and what the ranks of one node take together. */
static void print_nodes(const struct sw_planned *p) {
    const int64_t ranks = sw_settings_ranks(&p->settings), of_node = ranks / sw_max_i64(1, p->settings.nodes);
    const double tokens_per_s = (double)p->settings.batch_tokens / p->prediction.plain.step_s / (double)ranks;
    char host[SW_SIZE_CHARS], disk[SW_SIZE_CHARS], nodes[SW_COUNT_CHARS];
    if (p->settings.machine == NULL || ranks == 1)
        return;
    sw_command_print(0, INDENT,
                     "%lld ranks on %s: each GPU does %.3g tokens/s, %.3g TFLOP/s of the model; each node takes "
                     "%s of host memory and %s of disk",
                     (long long)ranks, sw_format_count(p->settings.nodes, "node", nodes), tokens_per_s,
                     1e-12 * tokens_per_s * sw_planned_token_flops(p),
                     sw_format_size(of_node * p->plan->tier_bytes[SW_HOST], host),
                     sw_format_size(of_node * sw_plan_disk_bytes(p->plan), disk));
}

static void print_group_price(const struct sw_tensor_price *price) {
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], time[SW_TIME_TEXT_CHARS];
    printf("  %8lld", (long long)price->ranks);
    if (isfinite(price->step_s)) {
        printf("%11s%13s%13s  %s\n", sw_format_seconds(price->step_s, time),
               sw_format_size(price->peak_bytes[SW_DEVICE], device), sw_format_size(price->peak_bytes[SW_HOST], host),
               price->bottleneck);
        return;
    }
    printf("%*s", GROUP_INDENT - GROUP_COLUMN, "");
    sw_command_print(GROUP_INDENT, GROUP_INDENT, "refused: %s", price->refused);
}

/* Prints the sizes of tensor groups that --tensor auto compared. */
static void print_group_prices(const struct sw_tensor_prices *prices) {
    if (prices->count == 0)
        return;
    printf("--tensor auto is --tensor %lld, by predicted step:\n", (long long)prices->size[prices->chosen].ranks);
    printf("  %8s%11s%13s%13s  %s\n", "--tensor", "step", "device", "host", "limited by");
    for (int i = 0; i < prices->count; i++)
        print_group_price(&prices->size[i]);
}

void sw_plan_answer_print(const struct sw_planned *p, int argc, char *const *argv) {
    const struct sw_settings *s = &p->settings;
    const char *file = s->machine != NULL ? s->machine : s->rates;
    char machine[SENTENCE_CHARS];
    const struct sw_answer answer = {.settings = s,
                                     .plan = p->plan,
                                     .writes = p->writes,
                                     .steps = s->steps,
                                     .step = &p->prediction.plain,
                                     .fast_s = p->fast_s,
                                     .slow_s = p->slow_s,
                                     .save_s = p->may_save ? p->save.cost_s : 0.0,
                                     .machine = machine_text(p, machine),
                                     .file = file,
                                     .profile = &p->source};
    sw_answer_print_plan(&answer, stdout);
    print_frozen(p);
    print_data(p);
    sw_answer_print_times(&answer, stdout);
    print_nodes(p);
    print_group_prices(&p->tensor_prices);
    print_command(s, argc, argv);
    if (!s->explain)
        puts("--explain shows where everything lives, and what was compared");
}
