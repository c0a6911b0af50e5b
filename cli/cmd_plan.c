#include "cli/answer_text.h"
#include "cli/commands.h"
#include "cli/plan_sizes.h"
#include "cli/plan_stages.h"
#include "core/log.h"
#include "core/size.h"
#include "job/job.h"
#include "job/settings/room.h"
#include "job/settings/settings.h"
#include "job/store.h"
#include "job/what_if.h"
#include "model/hf/folder_contents.h"
#include "report/timeline_svg.h"
#include "run/agreement.h"
#include "run/data/text_data.h"
#include "run/folder/frozen.h"
#include "run/folder/source.h"
#include "run/steplog.h"
#include "run/trace_file.h"

#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INDENT = 2 };

/* Prints what would help. NULL: nothing was tried, because it would take too long. */
struct sw_helps;

enum { SENTENCE_CHARS = 1024, LANES_INDENT = 4, COLUMN_GAP = 2 };

static void print_simulation(const struct sw_job *p, const char *name, const struct sw_simulation *s) {
    char lanes[SENTENCE_CHARS] = "", time[SW_TIME_TEXT_CHARS], rate[SW_COUNT_CHARS];
    int length = 0;
    for (int lane = 0; lane < SW_LANES; lane++)
        if (s->lane_busy_s[lane] >= 0.005 * s->step_s)
            length += snprintf(lanes + length, sizeof lanes - (size_t)length, "%s %.0f%%, ",
                               sw_lane_name((sw_lane)lane), 100.0 * s->lane_busy_s[lane] / s->step_s);
    printf("%*s%-26s%11s%12s tokens/s\n%*s", INDENT, "", name, sw_format_seconds(s->step_s, time),
           sw_format_rate((double)p->settings->batch_tokens / s->step_s, rate), LANES_INDENT, "");
    sw_command_print(LANES_INDENT, LANES_INDENT, "busy: %slimited by %s", lanes, s->bottleneck);
}

/* Prints how long recomputation takes per step, and how long it would take if nothing were kept. */
static void print_recompute_price(const struct sw_job *p) {
    const struct sw_rates *rates = &p->rates.rates;
    const double micros = (double)p->plan->spec.micro_batches;
    double again_s = 0.0, all_s = 0.0;
    char again[SW_TIME_TEXT_CHARS], all[SW_TIME_TEXT_CHARS];
    for (int64_t u = 0; u < p->plan->spec.units->count; u++) {
        const double level_s[SW_RECOMPUTES] = {
            [SW_RECOMPUTE_DERIVED] = rates->units[u].derive_s, [SW_RECOMPUTE_UNIT] = rates->units[u].recompute_s};
        again_s += micros * level_s[p->plan->recompute[u]];
        all_s += micros * level_s[SW_RECOMPUTE_UNIT];
    }
    sw_command_print(0, INDENT, "computing intermediates again takes %s of a step; all of them would take %s",
                     sw_format_seconds(again_s, again), sw_format_seconds(all_s, all));
}

static void print_writes(const struct sw_job *p) {
    const struct sw_settings *s = p->settings;
    char step[SW_WRITES_CHARS], save[SW_WRITES_CHARS], steps[SW_COUNT_CHARS];
    char thousand[SW_WRITES_SHARE_CHARS], all[SW_WRITES_SHARE_CHARS];
    printf("written to the store: %s a step", sw_writes_text((double)p->price.writes.step_bytes, step));
    if (p->price.writes.save_every > 0)
        printf(", %s more every %s", sw_writes_text((double)p->price.writes.save_bytes, save),
               sw_format_count(p->price.writes.save_every, "step", steps));
    printf("\n  %s every thousand steps\n",
           sw_writes_share_text(sw_writes_per_thousand(&p->price.writes), s->endurance, thousand));
    printf("  %s in a run of %s, with making its store\n",
           sw_writes_share_text(sw_writes_of_run(&p->price.writes, s->steps), s->endurance, all),
           sw_format_count(s->steps, "step", steps));
}

/* Prints the predicted steps by which the order was chosen. */
static void print_order_prices(const struct sw_job *p) {
    const struct sw_search_prices *prices = &p->price.choices;
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
static void print_update_prices(const struct sw_job *p) {
    const struct sw_update_prices *prices = &p->price.choices.update;
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
static void print_placement_price(const struct sw_job *p) {
    const struct sw_placement_price *price = &p->price.choices.placement;
    char chosen[SW_TIME_TEXT_CHARS], usual[SW_TIME_TEXT_CHARS], tried[SW_COUNT_CHARS];
    if (price->known)
        sw_command_print(0, INDENT, "placement by predicted step: %s, %s with the usual one; %s tried, %lld simulated",
                         sw_format_seconds(price->chosen_s, chosen), sw_format_seconds(price->usual_s, usual),
                         sw_format_count(price->tried, "plan", tried), (long long)price->simulated);
}

static void print_prediction(const struct sw_job *p) {
    char cost[SW_TIME_TEXT_CHARS], every[SW_COUNT_CHARS];
    puts("predicted step");
    print_simulation(p, "update under forward", &p->price.prediction.plain);
    if (p->price.may_save) {
        print_simulation(p, "with a save", &p->price.save.step);
        printf("  a save costs %s, slower steps around it included: every %s, %.1f%% more\n",
               sw_format_seconds(p->price.save.cost_s, cost),
               sw_format_count(p->price.writes.save_every, "step", every), 100.0 * sw_job_save_share(p));
    }
    if (p->price.prediction.may_speculate) {
        print_simulation(p, "speculated in backward", &p->price.prediction.speculated);
        print_simulation(p, "speculated and redone", &p->price.prediction.redone);
    }
}

/* The fastest of the compared plans that were not taken. */
struct rival {
    char what[SENTENCE_CHARS];
    double step_s; /* infinite: none */
    bool at_least; /* step_s is a lower bound */
};

static void take_rival(struct rival *best, const char *what, double step_s, bool at_least) {
    if (!(step_s > 0.0 && step_s < best->step_s))
        return;
    snprintf(best->what, sizeof best->what, "%s", what);
    best->step_s = step_s;
    best->at_least = at_least;
}

static struct rival find_rival(const struct sw_job *p) {
    const struct sw_search_prices *prices = &p->price.choices;
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
static void print_rival(const struct sw_job *p) {
    const struct rival best = find_rival(p);
    char time[SW_TIME_TEXT_CHARS];
    const double step_s = p->price.prediction.plain.step_s;
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

static void plan_print_helps(const struct sw_job *p, const struct sw_helps *helps) {
    const struct sw_simulation *step = &p->price.prediction.plain;
    const double tokens_per_s = (double)p->settings->batch_tokens / step->step_s;
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

/* Prints where everything is placed, what each lane moves, and which alternatives were compared. */
static void plan_explain(const struct sw_job *p) {
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

/* Returns whether a run reads its frozen weights from the model's folder, instead of a copy in its own. A preset, or a
 * folder without weights, can only be trained with --init. */
static bool reads_base(const struct sw_settings *settings) {
    return settings->model != NULL && sw_folder_has_weights(settings->model);
}

static struct sw_frozen_part frozen_part_of(const struct sw_job *p) {
    return sw_frozen_part_of(p->settings, &p->config, p->plan->spec.units, reads_base(p->settings));
}

/* Prints in which form the frozen matrices of blocks are kept, unless that is the compute type. */
static void print_base(const struct sw_plan *plan) {
    const struct sw_units *units = plan->spec.units;
    char size[SW_SIZE_CHARS], typed[SW_SIZE_CHARS];
    if (units->base != SW_BASE_TYPED)
        sw_command_print(0, INDENT, "their matrices in blocks are kept in %s: %s instead of %s in %s",
                         sw_base_format_name(units->base), sw_format_size(sw_units_all_base_bytes(units), size),
                         sw_format_size(sw_plan_typed_bytes(plan, sw_units_base_grains(units)), typed),
                         sw_dtype_name(plan->spec.type));
}

static struct sw_unfrozen row_of(const struct sw_job *p) {
    return (struct sw_unfrozen){
        .step_s = p->price.prediction.plain.step_s,
        .peak_bytes = {[SW_DEVICE] = p->plan->tier_bytes[SW_DEVICE], [SW_HOST] = p->plan->tier_bytes[SW_HOST]},
        .disk_bytes = sw_plan_disk_bytes(p->plan),
        .step_write_bytes = p->price.writes.step_bytes};
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

/* Prints what freezing saves, as the two plans side by side. */
static void print_frozen(const struct sw_job *p) {
    const struct sw_unfrozen with = row_of(p);
    char size[SW_SIZE_CHARS], units[SW_COUNT_CHARS], parameters[SW_COUNT_CHARS];
    if (!sw_tuning_freezes(&p->settings->tuning))
        return;
    const struct sw_frozen_part frozen = frozen_part_of(p);
    sw_command_print(0, INDENT, "frozen: %lld of %s, %s of the parameters, %s takes %s", (long long)frozen.units,
                     sw_format_count(frozen.all_units, "unit", units), sw_format_large(frozen.parameters, parameters),
                     reads_base(p->settings) ? "which stay in the model's folder; the file of their checksums"
                                             : "whose file",
                     sw_format_size(frozen.file_bytes, size));
    print_base(p->plan);
    if (sw_plan_in_place_bytes(p->plan) > 0)
        sw_command_print(0, INDENT, "%s of them on nvme are read in place from %s, without a copy of them",
                         sw_format_size(sw_plan_in_place_bytes(p->plan), size), p->in_place);
    if (sw_plan_units_beside(p->plan) > 0)
        sw_command_print(0, INDENT, "the trained weights of %s whose frozen ones are on nvme live on %s",
                         sw_format_count(sw_plan_units_beside(p->plan), "unit", units),
                         sw_tier_name(p->plan->trained_tier));
    printf("  %-14s%10s%13s%13s%13s%12s\n", "", "step", "device", "host", "disk", "written");
    print_frozen_row(p->settings->tuning.lora.rank > 0 ? "with --lora" : "with --freeze", &with);
    if (p->price.unfrozen.fits)
        print_frozen_row("without", &p->price.unfrozen);
    else
        puts("  without it the model does not fit");
}

/* Quotes an argument for a shell. */
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

/* A preset has no weights, so training it starts with random ones. */
static bool is_preset(const char *model) {
    for (int i = 0; sw_preset_at(i) != NULL; i++)
        if (strcmp(sw_preset_at(i)->name, model) == 0)
            return true;
    return false;
}

/* Returns an argument of the command, or for the "auto" of a size the size that was chosen: the choice of a start, by
 * other rates, might be another. */
static const char *argument_of(const struct sw_settings *settings, const char *flag, const char *argument,
                               char number[SW_COUNT_CHARS]) {
    const struct {
        const char *flag;
        int64_t size;
    } sizes[] = {
        {"--tensor", settings->tensor}, {"--pipeline", settings->pipeline}, {"--expert-group", settings->expert_group}};
    if (strcmp(argument, "auto") != 0)
        return argument;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (strcmp(flag, sizes[i].flag) == 0) {
            snprintf(number, SW_COUNT_CHARS, "%lld", (long long)sizes[i].size);
            return number;
        }
    return argument;
}

/* Tells whether the command has a flag: if train has it, but for turns where --pipeline auto has chosen no stages. */
static bool command_has(const struct sw_settings *settings, const char *flag) {
    return sw_options_have(&sw_train_command, flag) &&
           (settings->pipeline > 1 || strcmp(flag, "--pipeline-interleave") != 0);
}

/* Prints the command on one line, so that it can be copied. A flag's values follow it up to the next flag. */
static void print_command(const struct sw_settings *settings, int argc, char *const *argv) {
    const char *flag = "";
    char number[SW_COUNT_CHARS];
    bool kept = true;
    if (settings->ranks > 1)
        printf("%*smpirun -n %lld spillway train", INDENT, "", (long long)settings->ranks);
    else
        printf("%*sspillway train", INDENT, "");
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0)
            kept = command_has(settings, flag = argv[i]);
        if (kept)
            print_argument(argument_of(settings, flag, argv[i], number));
    }
    printf("%s%s --run RUN\n", is_preset(settings->model) ? " --init" : "",
           settings->data.count > 0 ? "" : " --data DATA");
}

/* Returns the name of the machine that the prediction is for. */
static const char *machine_text(const struct sw_job *p, char text[SENTENCE_CHARS]) {
    const struct sw_device_info info = sw_devices_info(&p->devices);
    if (p->settings->machine == NULL)
        return info.model != NULL ? info.model : "this CPU";
    snprintf(text, SENTENCE_CHARS, "a machine with %s", p->profile.device.name);
    return text;
}

/* Prints how many tokens --data has, and how many passes over them the steps are. */
static void print_data(const struct sw_job *p) {
    const struct sw_settings *s = p->settings;
    char tokens[SW_COUNT_CHARS], run[SW_COUNT_CHARS], steps[SW_COUNT_CHARS], sample[SW_SIZE_CHARS];
    char source[SENTENCE_CHARS] = "";
    const bool estimated = p->data.sample_bytes > 0;
    if (p->data.tokens == 0)
        return;
    if (estimated)
        snprintf(source, sizeof source, ", estimated from the first %s", sw_format_size(p->data.sample_bytes, sample));
    sw_command_print(0, INDENT, "data: %s%s tokens%s; %s %s %.3g epochs, %s tokens", estimated ? "about " : "",
                     sw_format_large(p->data.tokens, tokens), source, sw_format_count(s->steps, "step", steps),
                     s->steps == 1 ? "is" : "are", sw_job_epochs(p), sw_format_large(s->steps * s->batch_tokens, run));
}

/* Prints what each GPU of a described cluster does, and what the ranks of one node need together. */
static void print_nodes(const struct sw_job *p) {
    const int64_t ranks = sw_settings_ranks(p->settings), of_node = ranks / sw_max_i64(1, p->settings->nodes);
    const double tokens_per_s = (double)p->settings->batch_tokens / p->price.prediction.plain.step_s / (double)ranks;
    char host[SW_SIZE_CHARS], disk[SW_SIZE_CHARS], nodes[SW_COUNT_CHARS];
    if (p->settings->machine == NULL || ranks == 1 || sw_settings_stages(p->settings) > 1)
        return;
    sw_command_print(0, INDENT,
                     "%lld ranks on %s: each GPU does %.3g tokens/s, %.3g TFLOP/s of the model; each node takes "
                     "%s of host memory and %s of disk",
                     (long long)ranks, sw_format_count(p->settings->nodes, "node", nodes), tokens_per_s,
                     1e-12 * tokens_per_s * sw_job_token_flops(p),
                     sw_format_size(of_node * p->plan->tier_bytes[SW_HOST], host),
                     sw_format_size(of_node * sw_plan_disk_bytes(p->plan), disk));
}

/* Prints a row of a table whose first column is `width` characters wide. */
static void print_size_price(const struct sw_size_price *price, int width) {
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], time[SW_TIME_TEXT_CHARS];
    printf("  %*lld", width, (long long)price->size);
    if (isfinite(price->step_s)) {
        printf("%11s%13s%13s  %s\n", sw_format_seconds(price->step_s, time),
               sw_format_size(price->peak_bytes[SW_DEVICE], device), sw_format_size(price->peak_bytes[SW_HOST], host),
               price->bottleneck);
        return;
    }
    printf("%*s", COLUMN_GAP, "");
    sw_command_print(COLUMN_GAP + width + INDENT, COLUMN_GAP + width + INDENT, "refused: %s", price->refused);
}

/* Prints the sizes that a flag compared which was "auto". */
static void print_size_prices(const char *flag, const struct sw_size_prices *prices) {
    const int width = (int)strlen(flag);
    if (prices->count == 0)
        return;
    printf("%s auto is %s %lld, by predicted step:\n", flag, flag, (long long)prices->size[prices->chosen].size);
    printf("  %s%11s%13s%13s  %s\n", flag, "step", "device", "host", "limited by");
    for (int i = 0; i < prices->count; i++)
        print_size_price(&prices->size[i], width);
}

/* Prints that the plan fits and with what, how long a step and the run take, what is written, and the command that
 * trains like this: those arguments of `plan` that `train` also has. */
static void plan_answer_print(const struct sw_job *p, const struct sw_plan_stages *stages, int argc,
                              char *const *argv) {
    const struct sw_settings *s = p->settings;
    const struct sw_simulation *step = sw_plan_stages_step(stages, p);
    const double slower = step->step_s / p->price.prediction.plain.step_s;
    const char *file = s->machine != NULL ? s->machine : s->rates;
    char machine[SENTENCE_CHARS];
    const struct sw_answer answer = {.settings = s,
                                     .config = &p->config,
                                     .plan = p->plan,
                                     .writes = p->price.writes,
                                     .steps = s->steps,
                                     .step = step,
                                     .fast_s = slower * p->price.fast_s,
                                     .slow_s = slower * p->price.slow_s,
                                     .save_s = p->price.may_save ? p->price.save.cost_s : 0.0,
                                     .machine = machine_text(p, machine),
                                     .file = file,
                                     .profile = &p->profile.source};
    sw_answer_print_plan(&answer, stdout);
    print_frozen(p);
    print_data(p);
    sw_answer_print_times(&answer, stdout);
    print_nodes(p);
    sw_plan_stages_print(stages, p);
    print_size_prices("--tensor", &p->tensor_prices);
    print_size_prices("--pipeline", &p->stage_prices);
    print_size_prices("--expert-group", &p->expert_prices);
    print_command(s, argc, argv);
    if (!s->explain)
        puts("--explain shows where everything lives, and what was compared");
}

/* Writes the predicted timeline; of speculative steps unless --speculate never, because most steps are not clipped. */
static sw_status write_trace(struct sw_job *p) {
    const bool speculates = p->price.prediction.may_speculate && p->settings->speculate != SW_SPECULATE_NEVER;
    struct sw_simulation simulation;
    struct sw_trace *trace;
    SW_TRY(sw_trace_create(p->plan, SW_TRACE_OPS, "spillway, predicted", &trace));
    sw_status status = sw_simulate(p->plan, speculates ? SW_PROGRAM_REDO_SPECULATE : SW_PROGRAM_UPDATE, false,
                                   &p->rates.rates, trace, &simulation);
    if (status == SW_OK)
        status = sw_trace_file_write(p->settings->trace, trace);
    if (status == SW_OK)
        sw_log_info("the trace %s holds %lld predicted steps", p->settings->trace, (long long)sw_trace_steps(trace));
    sw_trace_destroy(trace);
    return status;
}

/* Draws the timeline of a step, with updates under the next forward pass. */
static sw_status write_svg(const struct sw_job *p) {
    enum { TITLE_CHARS = 512 };
    char title[TITLE_CHARS], time[SW_TIME_TEXT_CHARS];
    struct sw_forecast forecast;
    sw_status status = sw_forecast_make(p->plan, &p->rates.rates, &p->settings->save_every, &forecast);
    if (status == SW_OK && forecast.timeline == NULL)
        status = sw_fail(SW_ERR_ARG, "a step has too many operations for --svg; use larger --chunk-grains");
    snprintf(title, sizeof title, "%s: a step takes %s, predicted", p->settings->model,
             sw_format_seconds(forecast.step.step_s, time));
    if (status == SW_OK)
        status = sw_timeline_svg_write(p->settings->svg, forecast.timeline, title);
    sw_forecast_release(&forecast);
    return status;
}

static json_t *lanes_json(const struct sw_plan *plan) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    json_t *lanes = json_object();
    for (int lane = 0; lane < SW_LANES; lane++) {
        json_int_t bytes = 0;
        for (int32_t i = 0; i < program->lane_count[lane]; i++)
            bytes += program->op[program->lane_op[lane][i]].bytes;
        json_object_set_new(lanes, sw_lane_name((sw_lane)lane),
                            json_pack("{s:i, s:I}", "ops", program->lane_count[lane], "bytes", bytes));
    }
    return lanes;
}

/* Frozen units have neither gradients nor optimizer state. */
static bool has_state(const struct sw_plan *plan, sw_state state, int64_t unit) {
    return sw_plan_trains(plan, unit) || (state != SW_GRADS && state != SW_OPTIMIZER);
}

static json_t *placement_json(const struct sw_plan *plan) {
    json_t *placement = json_object();
    for (int state = SW_WEIGHTS; state < SW_STATES; state++) {
        json_t *tiers = json_array();
        for (int64_t u = 0; u < plan->spec.units->count; u++)
            json_array_append_new(tiers, has_state(plan, (sw_state)state, u)
                                             ? json_string(sw_tier_name(plan->placement[u].tier[state]))
                                             : json_null());
        json_object_set_new(placement, sw_state_name((sw_state)state), tiers);
    }
    return placement;
}

static json_t *updates_json(const struct sw_plan *plan) {
    json_t *sides = json_array();
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const sw_tier side = sw_plan_updates_on_device(plan, u) ? SW_DEVICE : SW_HOST;
        json_array_append_new(sides, sw_plan_trains(plan, u) ? json_string(sw_tier_name(side)) : json_null());
    }
    return sides;
}

static json_t *recompute_json(const struct sw_plan *plan) {
    json_t *levels = json_array();
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        json_array_append_new(levels, json_string(sw_recompute_name(plan->recompute[u])));
    return levels;
}

static json_t *simulation_json(const struct sw_simulation *s, int64_t tokens) {
    json_t *lanes = json_object();
    for (int lane = 0; lane < SW_LANES; lane++)
        json_object_set_new(lanes, sw_lane_name((sw_lane)lane), json_real(s->lane_busy_s[lane]));
    return json_pack("{s:f, s:f, s:s, s:f, s:o}", "step_s", s->step_s, "tokens_per_second", (double)tokens / s->step_s,
                     "bottleneck", s->bottleneck, "bottleneck_share", s->bottleneck_share, "lane_busy_s", lanes);
}

static json_t *prediction_json(const struct sw_job *p) {
    const struct sw_prediction *prediction = &p->price.prediction;
    json_t *object = json_pack("{s:o}", "plain", simulation_json(&prediction->plain, p->settings->batch_tokens));
    if (prediction->may_speculate) {
        json_object_set_new(object, "speculated", simulation_json(&prediction->speculated, p->settings->batch_tokens));
        json_object_set_new(object, "redone", simulation_json(&prediction->redone, p->settings->batch_tokens));
    }
    if (p->price.slow_s > 0.0)
        json_object_set_new(object, "bounds",
                            json_pack("{s:f, s:f}", "fast_s", p->price.fast_s, "slow_s", p->price.slow_s));
    if (p->price.may_save)
        json_object_set_new(object, "saving", simulation_json(&p->price.save.step, p->settings->batch_tokens));
    return object;
}

/* Returns null for a number that is not finite. */
static json_t *real_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *unfrozen_json(const struct sw_unfrozen *u) {
    if (!u->fits)
        return json_null();
    return json_pack("{s:o, s:{s:I, s:I}, s:I, s:I}", "step_s", real_or_null(u->step_s), "peak_bytes", "device",
                     (json_int_t)u->peak_bytes[SW_DEVICE], "host", (json_int_t)u->peak_bytes[SW_HOST], "disk_bytes",
                     (json_int_t)u->disk_bytes, "step_bytes", (json_int_t)u->step_write_bytes);
}

static json_t *frozen_json(const struct sw_job *p) {
    if (!sw_tuning_freezes(&p->settings->tuning))
        return json_null();
    const struct sw_units *units = p->plan->spec.units;
    const struct sw_frozen_part frozen = frozen_part_of(p);
    return json_pack("{s:I, s:I, s:I, s:b, s:I, s:s, s:I, s:s?, s:o}", "units", (json_int_t)frozen.units, "parameters",
                     (json_int_t)frozen.parameters, "bytes", (json_int_t)frozen.file_bytes, "in_model",
                     reads_base(p->settings), "in_place_bytes", (json_int_t)sw_plan_in_place_bytes(p->plan),
                     "base_format", sw_base_format_name(units->base), "base_bytes",
                     (json_int_t)sw_units_all_base_bytes(units), "trained_on",
                     sw_plan_units_beside(p->plan) > 0 ? sw_tier_name(p->plan->trained_tier) : NULL, "without",
                     unfrozen_json(&p->price.unfrozen));
}

static json_t *update_prices_json(const struct sw_job *p) {
    const struct sw_update_prices *prices = &p->price.choices.update;
    if (!prices->known)
        return json_null();
    return json_pack("{s:f, s:f, s:o}", "chosen_s", prices->chosen_s, "host_s", prices->host_s, "device_s",
                     real_or_null(prices->device_s));
}

static json_t *placement_prices_json(const struct sw_job *p) {
    const struct sw_placement_price *price = &p->price.choices.placement;
    if (!price->known)
        return json_null();
    return json_pack("{s:o, s:f, s:I, s:I}", "usual_s", real_or_null(price->usual_s), "chosen_s", price->chosen_s,
                     "tried", (json_int_t)price->tried, "simulated", (json_int_t)price->simulated);
}

/* Returns one entry per priced group size; the first is all micro-batches. */
static json_t *order_prices_json(const struct sw_job *p) {
    json_t *orders = json_array();
    for (int i = 0; i < p->price.choices.orders; i++)
        json_array_append_new(orders,
                              json_pack("{s:I, s:o, s:o, s:o}", "group", (json_int_t)p->price.choices.order[i].group,
                                        "step_s", real_or_null(p->price.choices.order[i].step_s), "least_s",
                                        real_or_null(p->price.choices.order[i].bound_s), "chosen_s",
                                        real_or_null(p->price.choices.order[i].chosen_s)));
    return orders;
}

/* Returns null for this machine, whose nodes are unknown. */
static json_t *nodes_json(const struct sw_job *p) {
    const int64_t ranks = sw_settings_ranks(p->settings), nodes = p->settings->nodes;
    if (p->settings->machine == NULL || sw_settings_stages(p->settings) > 1)
        return json_null();
    const double tokens_per_s = (double)p->settings->batch_tokens / p->price.prediction.plain.step_s / (double)ranks;
    const json_int_t of_node = ranks / nodes;
    return json_pack("{s:I, s:f, s:f, s:I, s:I}", "count", (json_int_t)nodes, "rank_tokens_per_second", tokens_per_s,
                     "rank_model_flops_per_second", tokens_per_s * sw_job_token_flops(p), "node_host_bytes",
                     of_node * p->plan->tier_bytes[SW_HOST], "node_disk_bytes", of_node * sw_plan_disk_bytes(p->plan));
}

/* Returns the tensor groups, or null if each rank has whole layers. */
static json_t *tensor_json(const struct sw_job *p) {
    const struct sw_settings *settings = p->settings;
    const int64_t nodes = sw_settings_tensor_nodes(settings);
    if (sw_settings_tensor_ranks(settings) == 1)
        return json_null();
    return json_pack("{s:I, s:I, s:o, s:o}", "ranks", (json_int_t)sw_settings_tensor_ranks(settings), "groups",
                     (json_int_t)sw_settings_data_ranks(settings), "nodes",
                     nodes > 0 ? json_integer(nodes) : json_null(), "within_node_step_s",
                     p->price.groups_in_nodes_s > 0.0 ? json_real(p->price.groups_in_nodes_s) : json_null());
}

/* Returns the comparison of a flag that was "auto", or null if the size was given. name: the size's member. */
static json_t *size_choice_json(const char *name, const struct sw_size_prices *prices) {
    if (prices->count == 0)
        return json_null();
    json_t *sizes = json_array();
    for (int i = 0; i < prices->count; i++) {
        const struct sw_size_price *price = &prices->size[i];
        const bool fits = isfinite(price->step_s);
        json_array_append_new(
            sizes, json_pack("{s:I, s:o, s:s?, s:s?, s:o}", name, (json_int_t)price->size, "step_s",
                             real_or_null(price->step_s), "bottleneck", price->bottleneck, "refused",
                             fits ? NULL : price->refused, "peak_bytes",
                             fits ? json_pack("{s:I, s:I}", "device", (json_int_t)price->peak_bytes[SW_DEVICE], "host",
                                              (json_int_t)price->peak_bytes[SW_HOST])
                                  : json_null()));
    }
    return sizes;
}

/* Returns the secondary shards of weights, or null. */
static json_t *secondary_json(const struct sw_plan *plan) {
    if (plan->spec.secondary_ranks < 2)
        return json_null();
    return json_pack("{s:i, s:s, s:I}", "ranks", plan->spec.secondary_ranks, "tier", sw_tier_name(plan->secondary_tier),
                     "bytes", (json_int_t)sw_plan_secondary_bytes(plan));
}

/* Returns the bytes that the rank sends in a step. */
static json_t *sent_json(const struct sw_plan *plan) {
    const struct sw_plan_sent sent = sw_plan_sent_bytes(plan);
    return json_pack("{s:I, s:I}", "bytes", (json_int_t)sent.bytes, "between_bytes", (json_int_t)sent.between_bytes);
}

static json_t *saves_json(const struct sw_job *p) {
    if (!p->price.may_save)
        return json_null();
    return json_pack("{s:I, s:f, s:f}", "every_steps", (json_int_t)p->price.writes.save_every, "cost_s",
                     p->price.save.cost_s, "share", sw_job_save_share(p));
}

/* Returns null without --data. */
static json_t *data_json(const struct sw_job *p) {
    const struct sw_settings *s = p->settings;
    if (p->data.tokens == 0)
        return json_null();
    return json_pack("{s:I, s:o, s:f, s:I, s:I, s:f}", "tokens", (json_int_t)p->data.tokens, "estimated_from_bytes",
                     p->data.sample_bytes > 0 ? json_integer(p->data.sample_bytes) : json_null(), "epochs",
                     sw_job_epochs(p), "steps", (json_int_t)s->steps, "run_tokens",
                     (json_int_t)(s->steps * s->batch_tokens), "run_s", sw_job_run_s(p));
}

static json_t *writes_json(const struct sw_job *p) {
    const struct sw_settings *s = p->settings;
    const double thousand = sw_writes_per_thousand(&p->price.writes),
                 all = sw_writes_of_run(&p->price.writes, s->steps);
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:o, s:o, s:o}", "start_bytes",
                     (json_int_t)p->price.writes.start_bytes, "step_bytes", (json_int_t)p->price.writes.step_bytes,
                     "save_bytes", (json_int_t)p->price.writes.save_bytes, "save_every",
                     (json_int_t)p->price.writes.save_every, "bytes_per_1000_steps", thousand, "steps",
                     (json_int_t)s->steps, "run_bytes", all, "endurance_tb",
                     s->endurance > 0.0 ? json_real(s->endurance) : json_null(), "share_per_1000_steps",
                     real_or_null(sw_writes_share(thousand, s->endurance)), "run_share",
                     real_or_null(sw_writes_share(all, s->endurance)));
}

/* helps: NULL if nothing was tried. */
static json_t *helps_json(const struct sw_helps *helps) {
    if (helps == NULL)
        return json_null();
    json_t *rows = json_array();
    for (int i = 0; i < helps->count; i++) {
        const struct sw_what_if *help = &helps->row[i];
        const bool known = help->fits && isfinite(help->tokens_per_s);
        json_array_append_new(rows, json_pack("{s:s, s:b, s:o, s:o, s:o}", "what", help->what, "fits", help->fits,
                                              "step_s", known ? json_real(help->step.step_s) : json_null(),
                                              "tokens_per_second", known ? json_real(help->tokens_per_s) : json_null(),
                                              "bottleneck", known ? json_string(help->step.bottleneck) : json_null()));
    }
    return rows;
}

static json_t *quantized_json(const struct sw_plan *plan) {
    const bool weights = sw_plan_quantizes_weights(plan), grads = sw_plan_quantizes_grads(plan);
    if (!weights && !grads)
        return json_null();
    return json_pack("{s:s?, s:s?, s:i}", "gather", weights ? sw_quant_name(plan->spec.gather) : NULL, "reduce",
                     grads ? sw_quant_name(plan->spec.reduce) : NULL, "reduce_nodes", sw_plan_reduce_nodes(plan));
}

static sw_status print_json(const struct sw_job *p, const struct sw_plan_stages *stages, const struct sw_helps *helps) {
    const struct sw_plan *plan = p->plan;
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:b, s:I, s:I, s:{s:I, s:I, s:I}, s:o, s:o, s:I, s:o, s:o, s:o, s:i, s:i, "
        "s:o, "
        "s:o, s:o}",
        "model", p->settings->model, "parameters",
        (json_int_t)sw_settings_parameters(p->settings, sw_model_get_units(p->model)), "batch_tokens",
        (json_int_t)p->settings->batch_tokens, "micro_batch", (json_int_t)p->settings->micro_batch, "seq",
        (json_int_t)p->settings->seq, "precision", sw_settings_precision_name(p->settings), "recompute",
        recompute_json(plan), "commit_every_step", plan->commit_every_step, "store_bytes",
        (json_int_t)sw_plan_store_bytes(plan), "disk_bytes", (json_int_t)sw_plan_disk_bytes(plan), "peak_bytes",
        "device", (json_int_t)plan->tier_bytes[SW_DEVICE], "host", (json_int_t)plan->tier_bytes[SW_HOST], "nvme",
        (json_int_t)plan->tier_bytes[SW_NVME], "placement", placement_json(plan), "updates", updates_json(plan),
        "group", (json_int_t)plan->spec.group, "order_prices", order_prices_json(p), "update_prices",
        update_prices_json(p), "lanes", lanes_json(plan), "ops", plan->program[SW_PROGRAM_UPDATE].op_count, "waits",
        plan->program[SW_PROGRAM_UPDATE].wait_count, "predicted", prediction_json(p), "saves", saves_json(p), "writes",
        writes_json(p));
    const struct sw_units *units = sw_model_get_units(p->model);
    const int64_t parameters = sw_settings_parameters(p->settings, units);
    json_object_set_new(root, "active_parameters",
                        json_integer(sw_model_active_parameters(&p->config, units, parameters)));
    json_object_set_new(root, "optimizer_state", json_string(sw_optimizer_shown_name(plan->spec.units->optimizer)));
    json_object_set_new(root, "grads_state", json_string(plan->spec.grads == SW_GRADS_8BIT ? "8bit" : "compute"));
    json_object_set_new(root, "placement_prices", placement_prices_json(p));
    json_object_set_new(root, "frozen", frozen_json(p));
    json_object_set_new(root, "ranks", json_integer(sw_settings_ranks(p->settings)));
    json_object_set_new(root, "zero",
                        sw_settings_most_state_ranks(p->settings) > 1 ? json_integer(p->plan->spec.zero) : json_null());
    json_object_set_new(root, "tensor", tensor_json(p));
    json_object_set_new(root, "pipeline", sw_plan_stages_json(stages, p));
    json_object_set_new(root, "pipeline_choice", size_choice_json("stages", &p->stage_prices));
    json_object_set_new(root, "expert_ranks", json_integer(p->settings->experts));
    json_object_set_new(root, "tensor_choice", size_choice_json("ranks", &p->tensor_prices));
    json_object_set_new(root, "expert_group", json_integer(p->settings->expert_group));
    json_object_set_new(root, "expert_group_choice", size_choice_json("experts", &p->expert_prices));
    json_object_set_new(root, "nodes", nodes_json(p));
    json_object_set_new(root, "secondary", secondary_json(p->plan));
    json_object_set_new(root, "quantized", quantized_json(p->plan));
    json_object_set_new(root, "sent", sent_json(p->plan));
    json_object_set_new(root, "data", data_json(p));
    json_object_set_new(root, "would_help", helps_json(helps));
    return sw_command_print_json(root);
}

/* Refuses, as training would, a plan for which this machine lacks memory or drives. A machine described by --machine or
 * --rates is not this one, and --smallest-machine asks which machine is needed. */
static sw_status check_here(const struct sw_job *p) {
    const struct sw_device_info info = sw_devices_info(&p->devices);
    if (p->settings->machine != NULL || p->settings->rates != NULL || p->settings->smallest_machine)
        return SW_OK;
    SW_TRY(sw_room_check(p->plan, &info, p->settings));
    return sw_job_check_drives(p, false);
}

/* Warns about wear of the drives, and about state that slows the run down. */
static sw_status warn(const struct sw_job *p) {
    double narrow_s;
    sw_answer_warn_writes(p->settings, p->plan, &p->price.writes, p->settings->steps);
    SW_TRY(sw_what_if_narrow(p, &narrow_s));
    sw_answer_warn_state(p->price.prediction.plain.step_s, narrow_s);
    return SW_OK;
}

static sw_status take_adapter(struct sw_settings *settings) {
    struct sw_model_config config;
    SW_TRY(sw_config_load(settings->model, &config));
    return sw_settings_take_adapter(settings, &config);
}

static sw_status open_job(struct sw_settings *settings, struct sw_ranks *ranks, struct sw_job *out) {
    const struct sw_job_spec spec = {.settings = settings,
                                     .ranks = ranks,
                                     .folder = ".",
                                     .base = !settings->init && reads_base(settings) ? settings->model : NULL,
                                     .open_data = sw_data_pass_measure};
    if (settings->trace != NULL)
        SW_TRY(sw_trace_file_check(settings->trace));
    if (settings->svg != NULL)
        SW_TRY(sw_timeline_svg_check(settings->svg));
    if (settings->adapter != NULL)
        SW_TRY(sw_ranks_agree_on_error(ranks, take_adapter(settings)));
    if (!settings->init)
        SW_TRY(sw_ranks_agree_on_error(ranks, sw_source_check_weights(settings->model, &settings->tuning)));
    return sw_job_open(&spec, out);
}

/* Prices the plan of an opened job, and prints what was asked for. */
static sw_status answer(struct sw_job *p, int argc, char **argv) {
    SW_TRY(sw_ranks_agree_on_error(p->ranks,
                                   sw_new_store_check(&(struct sw_new_store){.plan = p->plan, .places = &p->places})));
    /* A plan that does not fit is refused before this machine is measured for it. */
    SW_TRY(sw_ranks_agree_on_error(p->ranks, check_here(p)));
    SW_TRY(sw_job_predict(p));
    SW_TRY(sw_ranks_agree_on_error(p->ranks, check_here(p)));
    if (sw_ranks_rank(p->ranks) > 0)
        return SW_OK;
    if (p->data.tokens > 0)
        sw_answer_warn_epochs(sw_job_epochs(p), p->settings->steps);
    sw_answer_warn_groups(p->settings, p->price.prediction.plain.step_s, p->price.groups_in_nodes_s);
    if (!p->settings->smallest_machine)
        SW_TRY(warn(p));
    if (p->settings->trace != NULL)
        SW_TRY(write_trace(p));
    if (p->settings->svg != NULL)
        SW_TRY(write_svg(p));
    if (p->settings->smallest_machine)
        return sw_plan_print_smallest(p);
    const bool tries = p->settings->explain && sw_what_helps_is_quick(p);
    struct sw_plan_stages stages;
    struct sw_helps helps;
    SW_TRY(sw_plan_stages_price(p, &stages));
    if (p->settings->json) {
        if (tries)
            SW_TRY(sw_what_helps(p, &helps));
        return print_json(p, &stages, tries ? &helps : NULL);
    }
    plan_answer_print(p, &stages, argc, argv);
    if (!p->settings->explain)
        return SW_OK;
    plan_explain(p);
    if (tries)
        SW_TRY(sw_what_helps(p, &helps));
    plan_print_helps(p, tries ? &helps : NULL);
    return SW_OK;
}

/* Refuses a plan for another number of ranks than were started, since the started ones measure. */
static sw_status check_ranks(const struct sw_settings *settings, struct sw_ranks *ranks) {
    const int count = sw_ranks_count(ranks);
    if (count > 1 && sw_settings_ranks(settings) > 1 && sw_settings_ranks(settings) != count)
        return sw_fail(SW_ERR_USAGE, "--ranks %lld is not the %d ranks that were started; leave it out, or start one",
                       (long long)sw_settings_ranks(settings), count);
    return sw_agree_on_settings(ranks, settings);
}

/* Plans each model for one rank: no ranks are asked to plan and measure every model together. */
static sw_status find_largest(const struct sw_settings *settings, const struct sw_ranks *ranks) {
    if (sw_ranks_count(ranks) > 1)
        return sw_fail(SW_ERR_USAGE, "--largest plans on one rank; start it without mpirun");
    return sw_plan_print_largest(settings);
}

static sw_status plan(struct sw_settings *settings, struct sw_ranks *ranks, int argc, char **argv) {
    struct sw_job job = {0};
    SW_TRY(check_ranks(settings, ranks));
    if (settings->largest != 0)
        return find_largest(settings, ranks);
    sw_status status = open_job(settings, ranks, &job);
    if (status == SW_OK)
        status = answer(&job, argc, argv);
    sw_job_release(&job);
    return status;
}

/* A search allocates and frees programs of some MiB by the hundred. If the process keeps the freed memory, the kernel
 * need not clear it each time, which took a sixth of a search. */
static void keep_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

int sw_command_plan(int argc, char **argv) {
    struct sw_ranks ranks;
    struct sw_settings settings = {0};
    int code;
    keep_memory();
    if (!sw_command_begin(&ranks, "plan", &code))
        return code;
    if (sw_command_parse_ranks(&ranks, &sw_plan_command, argc, argv, &settings, &code)) {
        settings.memory_named[SW_DEVICE] = settings.device_memory != SW_OPTION_AUTO;
        settings.memory_named[SW_HOST] = settings.host_memory != SW_OPTION_AUTO;
        const sw_status status = plan(&settings, &ranks, argc, argv);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
    }
    sw_options_release(&sw_plan_command, &settings);
    sw_command_end(&ranks, code);
    return code;
}
