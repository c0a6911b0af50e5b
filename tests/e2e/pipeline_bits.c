/* Trainings by the stages of a pipeline, which are threads of this process: every ZeRO stage with its state on every
 * tier and every order give the same bits, interleaved or not, and the losses are those of one rank but for the order
 * of sums. */
#include "core/clock.h"
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    WRONG_CHARS = 1024,
    PATH_CHARS = 4096,
    MOST_RANKS = 9,
    MICRO_BATCHES = 12,
    LONG_STEPS = 50,
    INFINITE_STEP = 2,
    STOP_STEP = 2,
    MOST_DATA_RANKS = 3,
    RANDOM_ROUNDS = 4,
    RANDOM_VARIANTS = 6,
    RANDOM_STRIDE = 10000 /* more numbers than a round draws */
};
#define RELATIVE_ERROR 1e-5
#define ERROR_OF_16_BITS 1e-2

/* One case: data ranks and stages, and the units at which these begin; and, where variants interleave the stages, their
 * turns, and where the virtual stages begin. */
struct training {
    const struct sw_model_config *config; /* NULL: the tied one of four blocks */
    int data_ranks, stages;
    int32_t bound[MOST_RANKS + 1];
    int turns; /* 0: none are interleaved */
    int32_t virtual_bound[MOST_RANKS + 1];
    sw_dtype type;
    sw_optimizer_format optimizer;
    int variants;
    struct sw_tuning tuning; /* what is frozen, and how that is kept */
    bool skips;              /* one step's gradients are infinite */
    uint64_t counter;        /* of random numbers, from which all ranks draw the same; 0: none are drawn */
};

struct job {
    const struct training *training;
    struct sw_comm *comm;  /* NULL: one rank alone trains the whole batch */
    const char *directory; /* of this rank */
    char wrong[WRONG_CHARS];
};

static struct harness_spec spec_of(const struct job *job) {
    const struct training *t = job->training;
    struct harness_spec spec = same_narrow_spec(t->type, t->optimizer, SW_ROUND_STOCHASTIC);
    if (t->config != NULL)
        spec.config = t->config;
    spec.comm = job->comm;
    spec.shape.tuning = t->tuning;
    spec.micro_batches = job->comm == NULL ? MICRO_BATCHES : MICRO_BATCHES / t->data_ranks;
    spec.shape.batch = 1;
    spec.group = 1;
    if (job->comm != NULL) {
        spec.pipeline.stages = t->stages;
        memcpy(spec.pipeline.bound, t->bound, sizeof t->bound);
        const struct sw_comm_identity *self = sw_comm_identity(job->comm);
        spec.infinite_step = t->skips && self->rank == self->ranks - 1 ? INFINITE_STEP : 0;
    }
    return spec;
}

static void interleave(const struct training *t, struct harness_spec *spec) {
    spec->pipeline.turns = t->turns;
    memcpy(spec->pipeline.bound, t->virtual_bound, sizeof t->virtual_bound);
}

static void note(struct job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(struct job *job, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (job->wrong[0] == '\0')
        vsnprintf(job->wrong, sizeof job->wrong, format, arguments);
    va_end(arguments);
}

static double allowed(const struct job *job) {
    return job->training->type == SW_F32 ? RELATIVE_ERROR : ERROR_OF_16_BITS;
}

/* All losses of a training of many steps. */
static sw_status train_long(const struct harness_spec *spec, double loss[LONG_STEPS]) {
    struct harness harness;
    sw_status status = SW_OK;
    SW_TRY(harness_open(spec, &harness));
    for (int64_t step = 1; status == SW_OK && step <= LONG_STEPS; step++) {
        struct sw_step_result result;
        SW_TRY_GOTO(harness_begin(&harness, step, SAME_CLIP), end);
        SW_TRY_GOTO(harness_wait(&harness, &result), end);
        loss[step - 1] = result.loss_sum;
    }
end:
    harness_close(&harness);
    return status;
}

/* One rank's results, which the ranks of a pipeline are compared with. */
static struct same_trace alone;
static double alone_long[LONG_STEPS];

static void compare_with_one(struct job *job, const struct same_trace *reference) {
    for (int s = 0; s < SAME_STEPS; s++)
        if (!(fabs(reference->loss[s] / alone.loss[s] - 1.0) <= allowed(job)) ||
            !(fabs(reference->grad_norm[s] / alone.grad_norm[s] - 1.0) <= 10 * allowed(job)))
            note(job, "step %d: loss %.9g and norm %.9g, of one rank %.9g and %.9g", s + 1, reference->loss[s],
                 reference->grad_norm[s], alone.loss[s], alone.grad_norm[s]);
}

/* Rounding errors of narrow numbers add up in many steps, so that only fp32 is compared there. */
static bool is_exact(const struct training *t) {
    return t->type == SW_F32 && t->optimizer == SW_OPTIMIZER_FP32;
}

static sw_status compare_many_steps(struct job *job) {
    const struct harness_spec spec = spec_of(job);
    double loss[LONG_STEPS];
    SW_TRY(train_long(&spec, loss));
    for (int s = 0; s < LONG_STEPS; s++)
        if (!(fabs(loss[s] / alone_long[s] - 1.0) <= RELATIVE_ERROR))
            note(job, "step %d of many: loss %.9g, of one rank %.9g", s + 1, loss[s], alone_long[s]);
    return SW_OK;
}

/* Trains, in two parts with a resume between where it `stops`, and compares with the reference. */
static sw_status compare(struct job *job, const struct harness_spec *spec, const struct same_trace *reference,
                         bool stops, bool ahead) {
    struct same_trace trace;
    SW_TRY(stops ? same_train_in_parts(spec, STOP_STEP, &trace) : same_train(spec, ahead, &trace));
    for (int s = 0; stops && s < STOP_STEP; s++) /* of the steps before nothing is kept but their effect */
        trace.loss[s] = reference->loss[s], trace.grad_norm[s] = reference->grad_norm[s],
        trace.skipped[s] = reference->skipped[s];
    /* Ranks that share units may have no grain of a small one, and turns may have none of the reference's units. */
    const bool has_some = job->training->data_ranks == 1 && spec->pipeline.turns <= 1;
    const char *what = same_shard_difference(reference, &trace, has_some ? 1 : 0);
    if (what != NULL)
        note(job,
             "rank %d, ZeRO stage %d, %s, groups of %lld, updates on the device %#llx, chunks of %lld, %s computed "
             "again%s%s: %s differ",
             sw_comm_identity(job->comm)->rank, spec->zero, spec->place, (long long)spec->group,
             (unsigned long long)spec->update_on_device, (long long)spec->chunk_grains,
             sw_recompute_name(spec->recompute), stops ? ", resumed" : "", ahead ? ", ahead" : "", what);
    same_free(&trace);
    return SW_OK;
}

static sw_status try_variant(struct job *job, const struct same_trace *reference, int zero, int variant) {
    struct harness_spec spec = spec_of(job);
    char place[128];
    const int weights = variant % SW_TIERS, grads = variant / 3 % SW_TIERS, optimizer = (variant + zero) % SW_TIERS;
    snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s,acts=%s", sw_tier_name((sw_tier)weights),
             sw_tier_name((sw_tier)grads), sw_tier_name((sw_tier)optimizer),
             sw_tier_name((sw_tier)((variant + 2 * zero) % SW_TIERS)));
    if (job->training->turns > 1)
        interleave(job->training, &spec);
    spec.place = place;
    spec.zero = zero;
    spec.chunk_grains = 1 + variant % 4;
    spec.ring_chunks = 1 + variant % 3;
    spec.recompute = (sw_recompute)(variant % SW_RECOMPUTES);
    spec.directory = job->directory;
    spec.update_on_device = variant % 4 == 3 ? 0x5555555555555555 : 0;
    spec.group = 1 + variant % 2;
    return compare(job, &spec, reference, variant % 3 == 2, variant % 2 == 1);
}

/* The same with everything drawn by chance that may differ between the ways to run one training. */
static sw_status try_random(struct job *job, const struct same_trace *reference, uint64_t *counter) {
    struct harness_spec spec = spec_of(job);
    char place[SAME_PLACE_CHARS];
    if (job->training->turns > 1 && same_draw(counter, 3) > 0)
        interleave(job->training, &spec);
    same_draw_place(counter, place);
    const uint64_t updates[] = {0, UINT64_MAX, same_draw(counter, UINT32_MAX)};
    spec.place = place;
    spec.zero = (int)same_draw(counter, SW_ZERO_WEIGHTS + 1);
    spec.group = 1 + same_draw(counter, (uint32_t)(spec.micro_batches / job->training->stages));
    spec.chunk_grains = 1 + same_draw(counter, 4);
    spec.ring_chunks = 1 + same_draw(counter, 4);
    spec.unit_slots = 2 + same_draw(counter, 3);
    spec.recompute = (sw_recompute)same_draw(counter, SW_RECOMPUTES);
    spec.update_on_device = updates[same_draw(counter, 3)];
    spec.one_generation = same_draw(counter, 4) == 0;
    spec.commits_by_saves = same_draw(counter, 2) == 0 || strcmp(strstr(place, "optimizer"), "optimizer=nvme") != 0;
    spec.directory = job->directory;
    const bool ahead = same_draw(counter, 2) == 0, parts = same_draw(counter, 3) == 0;
    const bool stops = parts && job->training->type != SW_F16; /* whose loss scale the harness does not resume */
    return compare(job, &spec, reference, stops, ahead);
}

/* Compares the bytes that a step's plan gives to others with those that the comm has counted. */
static sw_status compare_bytes(struct job *job) {
    struct harness_spec spec = spec_of(job);
    struct harness harness;
    sw_status status = SW_OK;
    int64_t planned = 0;
    spec.zero = SW_ZERO_OPTIMIZER;
    SW_TRY(harness_open(&spec, &harness));
    const int64_t before = sw_comm_sent_bytes(job->comm);
    for (int64_t step = 1; step <= SAME_STEPS && status == SW_OK; step++) {
        struct sw_step_result result = {0};
        SW_TRY_GOTO(harness_begin(&harness, step, SAME_CLIP), end);
        SW_TRY_GOTO(harness_wait(&harness, &result), end);
        planned += result.lane_bytes[SW_LANE_COMM];
    }
    if (sw_comm_sent_bytes(job->comm) - before != planned)
        note(job, "rank %d: %lld bytes are planned, and %lld sent", sw_comm_identity(job->comm)->rank,
             (long long)planned, (long long)(sw_comm_sent_bytes(job->comm) - before));
end:
    harness_close(&harness);
    return status;
}

/* An infinite gradient in the last stage skips the step in all. */
static sw_status skip_infinite(struct job *job) {
    const struct training *plain = job->training;
    struct training skipping = *plain;
    struct same_trace trace;
    skipping.skips = true;
    job->training = &skipping;
    const struct harness_spec spec = spec_of(job);
    job->training = plain;
    SW_TRY(same_train(&spec, false, &trace));
    for (int s = 0; s < SAME_STEPS; s++)
        if (trace.skipped[s] != (s + 1 == INFINITE_STEP))
            note(job, "rank %d: step %d is %sskipped", sw_comm_identity(job->comm)->rank, s + 1,
                 trace.skipped[s] ? "" : "not ");
    same_free(&trace);
    return SW_OK;
}

/* Draws ways to run a training, and compares each with the first one, everything on the device at stage 0. */
static sw_status run_random(struct job *job) {
    struct same_trace reference;
    const struct harness_spec spec = spec_of(job);
    uint64_t counter = job->training->counter;
    SW_TRY(same_train(&spec, false, &reference));
    if (reference.skipped[INFINITE_STEP - 1] != job->training->skips && job->training->type != SW_F16)
        note(job, "step %d is %sskipped", INFINITE_STEP, reference.skipped[INFINITE_STEP - 1] ? "" : "not ");
    for (int variant = 0; variant < job->training->variants && job->wrong[0] == '\0'; variant++)
        SW_TRY(try_random(job, &reference, &counter));
    same_free(&reference);
    return SW_OK;
}

static sw_status run(struct job *job) {
    struct same_trace reference;
    const struct harness_spec spec = spec_of(job);
    SW_TRY(same_train(&spec, false, &reference));
    compare_with_one(job, &reference);
    if (is_exact(job->training))
        SW_TRY(compare_many_steps(job));
    for (int zero = SW_ZERO_NONE; zero <= SW_ZERO_WEIGHTS; zero++)
        for (int variant = zero % 2; variant < job->training->variants; variant += 2)
            SW_TRY(try_variant(job, &reference, zero, variant));
    SW_TRY(compare_bytes(job));
    SW_TRY(skip_infinite(job));
    same_free(&reference);
    return SW_OK;
}

struct party {
    const struct training *training;
    const char *directory;
    char wrong[MOST_RANKS][WRONG_CHARS];
};

static void train_rank(void *context, int rank) {
    struct party *party = context;
    char directory[PATH_CHARS];
    struct job job = {.training = party->training, .directory = directory};
    snprintf(directory, sizeof directory, "%s/%d", party->directory, rank);
    sw_status status = mkdir(directory, S_IRWXU) == 0 ? SW_OK : SW_ERR_IO;
    SW_TRY_GOTO(status, end);
    SW_TRY_GOTO(sw_comm_open(&job.comm), end);
    status = job.training->counter > 0 ? run_random(&job) : run(&job);
end:
    if (status != SW_OK) {
        snprintf(job.wrong, sizeof job.wrong, "rank %d: %s", rank, sw_error_message(status));
        (void)sw_comm_abandon(job.comm, job.wrong);
    }
    memcpy(party->wrong[rank], job.wrong, sizeof job.wrong);
    sw_comm_close(job.comm);
    rmdir(directory);
}

/* Trains by ranks that are threads. */
static void train_ranks(void **state, const struct training *training) {
    struct party party = {.training = training, .directory = *state};
    bool right = true;
    const int ranks = training->data_ranks * training->stages;
    assert_int_equal(sw_comm_run_threads(ranks, train_rank, &party), SW_OK);
    for (int rank = 0; rank < ranks; rank++) {
        if (party.wrong[rank][0] != '\0')
            print_error("%s\n", party.wrong[rank]);
        right &= party.wrong[rank][0] == '\0';
    }
    assert_true(right);
}

static void check(void **state, const struct training *training) {
    const struct job job = {.training = training};
    const struct harness_spec spec = spec_of(&job);
    must(same_train(&spec, false, &alone));
    if (is_exact(training))
        must(train_long(&spec, alone_long));
    train_ranks(state, training);
    same_free(&alone);
}

/* Six units: the embedding, four blocks, the head. */
static void two_stages_of_a_tied_model_give_the_same_bits(void **state) {
    check(state, &(struct training){.data_ranks = 1, .stages = 2, .bound = {0, 3, 6}, .type = SW_F32, .variants = 9});
}

static void two_data_ranks_of_two_stages_give_the_same_bits(void **state) {
    check(state, &(struct training){.data_ranks = 2, .stages = 2, .bound = {0, 4, 6}, .type = SW_F32, .variants = 6});
}

static void four_stages_give_the_same_bits(void **state) {
    check(state,
          &(struct training){.data_ranks = 1, .stages = 4, .bound = {0, 2, 3, 4, 6}, .type = SW_F32, .variants = 3});
    check(state,
          &(struct training){.data_ranks = 2, .stages = 4, .bound = {0, 2, 3, 4, 6}, .type = SW_BF16, .variants = 2});
}

/* The embedding and the head are stages of their own. */
static void each_unit_may_be_a_stage(void **state) {
    check(state, &(struct training){
                     .data_ranks = 1, .stages = 6, .bound = {0, 1, 2, 3, 4, 5, 6}, .type = SW_F32, .variants = 3});
}

/* Five units, whose table is not tied. */
static void an_untied_model_gives_the_same_bits(void **state) {
    check(state, &(struct training){.config = &same_rotary_config,
                                    .data_ranks = 2,
                                    .stages = 3,
                                    .bound = {0, 2, 4, 5},
                                    .type = SW_F32,
                                    .optimizer = SW_OPTIMIZER_8BIT,
                                    .variants = 4});
}

/* Two and three turns, whose groups of two micro-batches make rounds of stages or do not. */
static void interleaved_stages_give_the_same_bits(void **state) {
    check(state, &(struct training){.data_ranks = 1,
                                    .stages = 2,
                                    .bound = {0, 3, 6},
                                    .turns = 2,
                                    .virtual_bound = {0, 1, 3, 4, 6},
                                    .type = SW_F32,
                                    .variants = 6});
    check(state, &(struct training){.data_ranks = 2,
                                    .stages = 2,
                                    .bound = {0, 4, 6},
                                    .turns = 3,
                                    .virtual_bound = {0, 1, 2, 3, 4, 5, 6},
                                    .type = SW_F32,
                                    .optimizer = SW_OPTIMIZER_8BIT,
                                    .variants = 4});
    check(state, &(struct training){.data_ranks = 1,
                                    .stages = 3,
                                    .bound = {0, 2, 4, 6},
                                    .turns = 2,
                                    .virtual_bound = {0, 1, 2, 3, 4, 5, 6},
                                    .type = SW_BF16,
                                    .variants = 4});
}

static void draw_bounds(uint64_t *counter, int units, int count, int32_t bound[]) {
    for (int part = 1; part < count; part++)
        bound[part] =
            bound[part - 1] + 1 + (int32_t)same_draw(counter, (uint32_t)(units - count + part - bound[part - 1]));
    bound[count] = units;
}

/* Draws what is frozen: nothing in half of the trainings, nor where a stage would have nothing to train. */
static void draw_tuning(uint64_t *counter, struct training *t) {
    static const struct {
        struct sw_tuning tuning;
        int first, last; /* units that the first stage has at least, and the last */
    } choices[] = {
        {{.freeze = "embedding,blocks:0"}, 3, 1},
        {{.freeze = "*.mlp.*"}, 1, 1},
        {{.lora = {.rank = 8, .alpha = 16}}, 2, 2},
        {{.lora = {.rank = 8, .alpha = 16}, .base = SW_BASE_NF4}, 2, 2},
    };
    enum { CHOICES = sizeof choices / sizeof choices[0] };
    const uint32_t choice = same_draw(counter, 2 * CHOICES);
    if (choice >= CHOICES || t->bound[1] < choices[choice].first ||
        t->bound[t->stages] - t->bound[t->stages - 1] < choices[choice].last)
        return;
    t->tuning = choices[choice].tuning;
    t->skips &= t->tuning.lora.rank == 0; /* the head, which makes the infinity, has no gradients */
}

/* Draws a model, its stages and the number of data ranks, all of which decide the bits. */
static struct training draw_training(uint64_t *counter) {
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    static const sw_optimizer_format optimizers[] = {SW_OPTIMIZER_FP32, SW_OPTIMIZER_BF16, SW_OPTIMIZER_8BIT};
    const bool untied = same_draw(counter, 2) == 0;
    const int units = (untied ? same_rotary_config : same_config).layers + 2;
    struct training t = {.config = untied ? &same_rotary_config : NULL,
                         .data_ranks = 1 + (int)same_draw(counter, MOST_DATA_RANKS),
                         .stages = 2 + (int)same_draw(counter, 2),
                         .type = types[same_draw(counter, 3)],
                         .optimizer = optimizers[same_draw(counter, 3)],
                         .skips = same_draw(counter, 4) == 0,
                         .variants = RANDOM_VARIANTS};
    draw_bounds(counter, units, t.stages, t.bound);
    t.turns = 2 * t.stages <= units ? 2 : 1;
    if (t.turns > 1)
        draw_bounds(counter, units, 2 * t.stages, t.virtual_bound);
    draw_tuning(counter, &t);
    t.counter = *counter;
    return t;
}

/* SW_TEST_ROUNDS and SW_TEST_SEED have it draw more, and others. */
static void ways_drawn_by_chance_give_the_same_bits(void **state) {
    const char *rounds = getenv("SW_TEST_ROUNDS"), *seed = getenv("SW_TEST_SEED");
    uint64_t first = 1 + (seed == NULL ? 0 : strtoull(seed, NULL, 10) * RANDOM_STRIDE);
    for (int round = 0; round < (rounds == NULL ? RANDOM_ROUNDS : atoi(rounds)); round++, first += RANDOM_STRIDE) {
        uint64_t counter = first;
        const struct training training = draw_training(&counter);
        print_message("# %s, %d data ranks, %d stages, %s%s%s: %d ways\n", training.config == NULL ? "tied" : "untied",
                      training.data_ranks, training.stages, sw_dtype_name(training.type),
                      training.tuning.freeze != NULL ? ", frozen in part" : "",
                      training.tuning.lora.rank > 0 ? ", adapters" : "", training.variants);
        train_ranks(state, &training);
    }
}

/* How long stages wait: each block takes the same time, by sleep, so that cores do not count. SW_TEST_FORWARD_MS sets
 * it. */
enum { BLOCKS = 4, WAITING_STEPS = 4, FORWARD_MS = 24, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };
static struct sw_unit_ops plain_ops;

static int64_t forward_ns(void) {
    const char *set = getenv("SW_TEST_FORWARD_MS");
    return NS_PER_MS * (set != NULL ? strtoll(set, NULL, 10) : FORWARD_MS);
}

static sw_status take_until(sw_unit_function function, void *context, const struct sw_unit_call *call, int64_t ns) {
    const int64_t end_ns = sw_now_ns() + (call->unit > 0 && call->unit <= BLOCKS ? ns : 0);
    SW_TRY(function(context, call));
    const int64_t left_ns = end_ns - sw_now_ns();
    if (left_ns > 0)
        nanosleep(&(struct timespec){.tv_sec = left_ns / NS_PER_S, .tv_nsec = left_ns % NS_PER_S}, NULL);
    return SW_OK;
}

static sw_status slow_forward(void *context, const struct sw_unit_call *call) {
    return take_until(plain_ops.forward, context, call, forward_ns());
}

static sw_status slow_backward(void *context, const struct sw_unit_call *call) {
    return take_until(plain_ops.backward, context, call, 2 * forward_ns());
}

static void keep_ops(void *context, struct sw_unit_ops *ops) {
    *(struct sw_unit_ops *)context = *ops;
}

static void slow_down(void *context, struct sw_unit_ops *ops) {
    (void)context;
    ops->forward = slow_forward;
    ops->backward = slow_backward;
}

/* The least time of a step, and the share of that step in which ranks did not compute, as the step's result has it. */
struct step_time {
    double s, idle;
};

static sw_status time_steps(const struct harness_spec *spec, struct step_time *out) {
    struct harness harness;
    sw_status status = SW_OK;
    *out = (struct step_time){.s = INFINITY};
    SW_TRY(harness_open(spec, &harness));
    for (int64_t step = 1; step <= WAITING_STEPS; step++) {
        struct sw_step_result result;
        const int64_t begin_ns = sw_now_ns();
        SW_TRY_GOTO(harness_begin(&harness, step, SAME_CLIP), end);
        SW_TRY_GOTO(harness_wait(&harness, &result), end);
        const double s = 1e-9 * (double)(sw_now_ns() - begin_ns);
        if (s < out->s)
            *out = (struct step_time){.s = s, .idle = 1.0 - result.mean_compute_seconds / s};
    }
end:
    harness_close(&harness);
    return status;
}

struct waiting {
    struct training training;
    struct step_time step[MOST_RANKS];
};

static void wait_as_rank(void *context, int rank) {
    struct waiting *waiting = context;
    struct job job = {.training = &waiting->training};
    sw_status status = sw_comm_open(&job.comm);
    if (status == SW_OK) {
        struct harness_spec spec = spec_of(&job);
        if (waiting->training.turns > 1)
            interleave(&waiting->training, &spec);
        spec.wrap = slow_down;
        status = time_steps(&spec, &waiting->step[rank]);
    }
    if (status != SW_OK)
        (void)sw_comm_abandon(job.comm, sw_error_message(status));
    sw_comm_close(job.comm);
}

/* (p - 1) / (v m + p - 1) of a step with v turns, and what threads take to wake up. */
static void stages_wait_as_long_as_1f1b_says(void **state) {
    struct waiting pipelines[] = {
        {.training = {.data_ranks = 1, .stages = 2, .bound = {0, 3, 6}}},
        {.training = {.data_ranks = 1, .stages = 2, .turns = 2, .virtual_bound = {0, 2, 3, 4, 6}}},
        {.training = {.data_ranks = 1, .stages = 4, .bound = {0, 2, 3, 4, 6}}}};
    const struct job job = {.training = &pipelines[0].training};
    struct harness_spec spec = spec_of(&job);
    struct harness harness;
    (void)state;
    spec.wrap = keep_ops;
    spec.wrap_context = &plain_ops;
    must(harness_open(&spec, &harness));
    harness_close(&harness);
    for (size_t i = 0; i < sizeof pipelines / sizeof pipelines[0]; i++) {
        const int stages = pipelines[i].training.stages;
        const int turns = pipelines[i].training.turns > 1 ? pipelines[i].training.turns : 1;
        assert_int_equal(sw_comm_run_threads(stages, wait_as_rank, &pipelines[i]), SW_OK);
        double step_s = 0.0, idle = 0.0;
        for (int rank = 0; rank < stages; rank++) {
            step_s = fmax(step_s, pipelines[i].step[rank].s);
            idle += pipelines[i].step[rank].idle / stages;
        }
        const double passes_s = 3e-9 * (double)forward_ns() * BLOCKS / stages * MICRO_BATCHES;
        const double bubble = 1.0 - passes_s / step_s, ideal = (stages - 1.0) / (turns * MICRO_BATCHES + stages - 1.0);
        print_message("# %d stages of %s, %d micro-batches: they wait for %.1f%% of a step, by (p-1)/(v m+p-1) %.1f%%; "
                      "the log says %.1f%%\n",
                      stages, turns == 1 ? "1 turn" : "2 turns", MICRO_BATCHES, 100.0 * bubble, 100.0 * ideal,
                      100.0 * idle);
        assert_true(bubble > ideal - 0.02 && bubble < ideal + 0.15);
        /* A sleep may end late, which counts as computing; and steps' times are those of each rank. */
        assert_true(idle <= bubble + 0.02 && idle > ideal - 0.02);
    }
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, harness_make_directory, harness_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(two_stages_of_a_tied_model_give_the_same_bits),
        in_directory(two_data_ranks_of_two_stages_give_the_same_bits),
        in_directory(four_stages_give_the_same_bits),
        in_directory(each_unit_may_be_a_stage),
        in_directory(an_untied_model_gives_the_same_bits),
        in_directory(ways_drawn_by_chance_give_the_same_bits),
        in_directory(interleaved_stages_give_the_same_bits),
        cmocka_unit_test(stages_wait_as_long_as_1f1b_says),
    };
    if (getenv("SW_TEST_FILTER") != NULL)
        cmocka_set_test_filter(getenv("SW_TEST_FILTER"));
    return cmocka_run_group_tests_name("e2e pipeline bits", tests, NULL, NULL);
}
