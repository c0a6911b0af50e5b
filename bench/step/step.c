/* `spillway bench step`: a training step as placed, in turn with the same step wholly resident and with its own I/O
 * alone. */
#include "bench/step/step.h"

#include "bench/commands.h"
#include "bench/step/report.h"
#include "cli/cmd_ranks.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/simulate/measure.h"
#include "run/agreement.h"
#include "run/trace_file.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Finds the time in which ranks exchange data in a step, and the part of it behind arithmetic. */

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

/* Returns whether the resident and the placed contender, which run in turn, fit into memory together, with those of all
 * ranks of this machine. */
static bool both_fit(const struct sw_step_bench *b, const struct sw_machine *machine) {
    const int64_t *resident = b->resident.plan->tier_bytes, *placed = b->job.plan->tier_bytes;
    const struct sw_device_info info = sw_devices_info(&b->job.devices);
    const int64_t device_bytes = resident[SW_DEVICE] + placed[SW_DEVICE];
    const int64_t host_bytes = resident[SW_HOST] + placed[SW_HOST];
    const int64_t share_bytes = machine->available_bytes / sw_ranks_local_count(&b->ranks);
    if (info.host_memory)
        return device_bytes + host_bytes <= share_bytes;
    return device_bytes <= (int64_t)(GPU_SHARE * (double)info.memory_bytes) && host_bytes <= share_bytes;
}

static void say_what_does_not_fit(const struct sw_step_bench *b, const struct sw_machine *machine) {
    const struct sw_device_info info = sw_devices_info(&b->job.devices);
    const int64_t *resident = b->resident.plan->tier_bytes, *placed = b->job.plan->tier_bytes;
    const int64_t need_bytes =
        resident[SW_DEVICE] + placed[SW_DEVICE] + (info.host_memory ? resident[SW_HOST] + placed[SW_HOST] : 0);
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    sw_log_warn("the resident step is not measured: both together take %s of %smemory and %s are available",
                sw_format_size(need_bytes, need), info.host_memory ? "" : "the GPU's ",
                sw_format_size(info.host_memory ? machine->available_bytes : info.memory_bytes, have));
}

/* Plans the step that offloading is measured against: everything on the device, nothing computed twice. Ranks run it
 * together or not at all. */
static sw_status plan_resident(struct sw_step_bench *b) {
    static char everything_there[] = "weights=device,grads=device,optimizer=device,acts=device";
    struct sw_job_change change = {.settings = *b->job.settings};
    struct sw_machine machine;
    change.settings.place = everything_there;
    change.settings.trace = NULL;
    change.settings.recompute = SW_OPTION_RECOMPUTE_NONE;
    change.settings.device_memory = change.settings.host_memory = INT64_MAX / 2;
    sw_status status = sw_job_with(&b->job, &change, &b->resident);
    if (status == SW_OK)
        status = sw_settings_complete_plan(b->resident.plan);
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, status));
    SW_TRY(sw_machine_read(&machine));
    int64_t fits = both_fit(b, &machine);
    SW_TRY(sw_ranks_least(&b->ranks, &fits, 1));
    if (fits)
        return SW_OK;
    if (sw_ranks_rank(&b->ranks) == 0)
        say_what_does_not_fit(b, &machine);
    sw_plan_destroy(b->resident.plan);
    b->resident.plan = NULL;
    return SW_OK;
}

/* Chooses for --speculate auto what the prediction says is faster. No step is clipped in this bench. */
static void choose_speculation(struct sw_step_bench *b) {
    const struct sw_prediction *p = &b->job.price.prediction;
    const int asked = b->settings.speculate;
    b->speculates = p->may_speculate && (asked == SW_SPECULATE_ALWAYS ||
                                         (asked == SW_SPECULATE_AUTO && p->speculated.step_s < p->plain.step_s));
}

static sw_status open_contenders(struct sw_step_bench *b) {
    const struct sw_contender_spec placed = {.job = &b->job,
                                             .speculation = b->speculates ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER,
                                             .traced = b->settings.trace != NULL || sw_ranks_comm(&b->ranks) != NULL};
    const struct sw_contender_spec whole = {.job = &b->resident, .speculation = SW_SPECULATE_NEVER};
    SW_TRY(sw_contender_open(&placed, &b->placed));
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

/* Finds the least bytes of a rank alone. Those of ranks that share state are not known. */
static void find_least(struct sw_step_bench *b) {
    const struct sw_settings *settings = &b->settings;
    const struct sw_least_shape shape = {
        .units = sw_model_get_units(b->job.model),
        .placement = b->job.plan->placement,
        .update_on_device = b->job.plan->spec.update_on_device,
        .output_bytes = sw_model_bytes(b->job.model).output,
        .shares_input = sw_model_bytes(b->job.model).shares_input,
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
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, sw_step_measure_products(b)));
    choose_speculation(b);
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
        return sw_step_bench_json(b);
    sw_step_bench_print(b);
    return SW_OK;
}

static void close_bench(struct sw_step_bench *b) {
    sw_contender_close(&b->placed);
    sw_contender_close(&b->whole);
    sw_job_release(&b->resident);
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
