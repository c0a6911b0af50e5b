/* One training by several ranks, which are threads of this process: every stage, with its state on every tier, gives
 * the bits of stage 0 with everything on the device, and the losses of one rank on the same batch but for the order of
 * sums. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { WRONG_CHARS = 512, PATH_CHARS = 4096, LEAST_GRAINS = 5, MOST_RANKS = 6 };

/* One case: how many ranks train, and what. The first variants have weights on each tier, the fourth updates on the
 * device; two ranks in fp32 go through all nine pairs of tiers, so that other cases need not. */
struct training {
    int ranks;
    sw_dtype type;
    int variants;
    struct sw_tuning tuning; /* what is frozen, and how that is kept */
    int node_ranks, part_ranks;
    sw_quant gather, reduce;
    sw_optimizer_format optimizer;
    bool fp8;
    bool experts;  /* the model is same_expert_config */
    bool matrices; /* the model is same_matrix_config */
};

/* The most by which losses and norms in fp32 may differ from those of one rank, as a share. */
#define RELATIVE_ERROR 1e-6
/* The same with Muon, whose iteration makes rounding errors of a matrix's smallest directions as large as its largest.
 */
#define MUON_ERROR 1e-4
/* The same where weights or gradients are quantized. */
#define QUANTIZED_ERROR 3e-2

/* Returns the micro-batches of a step. Two ranks have three each, one more than a whole group. More ranks share twelve,
 * so that each has two, three or four; and so do two with experts or with larger matrices, because fewer would clip
 * every step. */
static int micro_batches_of(const struct training *training) {
    return training->ranks == 2 && !training->experts && !training->matrices ? 6 : 12;
}

struct job {
    struct sw_comm *comm;           /* NULL: one rank alone trains the whole batch */
    const struct same_trace *alone; /* what that gave */
    const char *directory;          /* of this rank */
    int micro_batches;              /* of all ranks */
    sw_dtype type;
    sw_optimizer_format optimizer;
    bool fp8;
    bool experts, matrices;
    struct sw_tuning tuning;
    sw_quant gather, reduce;
    int reduce_nodes;        /* nodes over which gradients are reduced in two levels; 0 or 1: one level */
    int part_ranks;          /* ranks of a part of a node, for secondary shards; 0: none are tried */
    char wrong[WRONG_CHARS]; /* empty: nothing */
};

static int ranks_of(const struct job *job) {
    return sw_comm_identity(job->comm)->ranks;
}

static struct harness_spec spec_of(const struct job *job) {
    struct harness_spec spec = same_narrow_spec(job->type, job->optimizer, SW_ROUND_STOCHASTIC);
    spec.shape.fp8 = job->fp8;
    if (job->experts)
        same_use_experts(&spec);
    if (job->matrices)
        spec.config = &same_matrix_config;
    spec.comm = job->comm;
    spec.shape.tuning = job->tuning;
    spec.gather = job->gather;
    spec.reduce = job->reduce;
    spec.reduce_nodes = job->reduce_nodes;
    spec.micro_batches = job->micro_batches;
    if (job->comm != NULL) {
        const struct sw_comm_nodes *nodes = sw_comm_nodes(job->comm);
        spec.node_ranks = nodes->even && nodes->in_order ? nodes->ranks : 0;
        spec.micro_batches /= ranks_of(job);
    }
    spec.compute_threads = spec.update_threads = 1;
    spec.shape.batch = 1; /* ranks share out whole micro-batches, whatever these hold */
    return spec;
}

static bool is_quantized(const struct job *job) {
    return job->gather != SW_QUANT_NONE || job->reduce != SW_QUANT_NONE;
}

/* Returns the first stage that quantizes all that the job does. */
static int first_stage(const struct job *job) {
    if (job->gather != SW_QUANT_NONE)
        return SW_ZERO_WEIGHTS;
    return job->reduce != SW_QUANT_NONE ? SW_ZERO_OPTIMIZER : SW_ZERO_NONE;
}

static bool freezes(const struct job *job) {
    return job->tuning.freeze != NULL || job->tuning.lora.rank > 0;
}

/* Tells whether a unit has frozen tensors and trained ones. */
static bool freezes_parts(const struct job *job) {
    return job->tuning.lora.rank > 0 || (job->tuning.freeze != NULL && strchr(job->tuning.freeze, '*') != NULL);
}

/* A tied table is added to in an order that depends on the groups of micro-batches, and from stage 2 on each group is
 * reduced by itself, so these have a reference each. */
enum { BY_LAYER, BY_GROUP, REDUCED_BY_GROUP, ORDERS, GROUP = 2, GROUPED_VARIANT = 2 };

/* No secondary shards, or shards on this tier. */
typedef enum { NO_SECONDARY, ON_DEVICE, ON_HOST } secondary;

static sw_status try_variant(struct job *job, const struct same_trace *reference, int zero, int variant,
                             secondary kept) {
    char place[128];
    struct harness_spec spec = spec_of(job);
    struct same_trace trace;
    const int weights = variant % SW_TIERS, grads = variant / 3 % SW_TIERS, optimizer = (variant + zero) % SW_TIERS;
    snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s%s%s", sw_tier_name((sw_tier)weights),
             sw_tier_name((sw_tier)grads), sw_tier_name((sw_tier)optimizer), kept == ON_HOST ? ",acts=device" : "",
             (zero + ranks_of(job)) % 2 == 0 ? ",trained=nvme" : "");
    spec.place = place;
    spec.zero = zero;
    spec.secondary_ranks = kept == NO_SECONDARY ? 0 : job->part_ranks;
    spec.secondary_on_host = kept == ON_HOST;
    spec.chunk_grains = 1 + variant % 4;
    spec.ring_chunks = 1 + variant % 3;
    spec.recompute = (sw_recompute)(variant % SW_RECOMPUTES);
    spec.directory = job->directory;
    spec.update_on_device = variant % 4 == 3 ? 0x5555555555555555 : 0;
    const bool grouped = variant % 3 == GROUPED_VARIANT;
    const int order = !grouped ? BY_LAYER : zero < SW_ZERO_GRADS ? BY_GROUP : REDUCED_BY_GROUP;
    spec.group = grouped ? GROUP : 0;
    SW_TRY(same_train(&spec, variant % 2 == 1, &trace));
    /* Where training changes fewer grains of a unit than there are ranks, the last ranks hold none of them. */
    const bool few = ranks_of(job) > LEAST_GRAINS || freezes_parts(job) || sw_optimizer_has_muon(job->optimizer);
    const int64_t least_held = few ? 0 : trace.grains / ranks_of(job) / 2;
    const char *what = same_shard_difference(&reference[order], &trace, least_held);
    if (what != NULL && job->wrong[0] == '\0')
        snprintf(job->wrong, sizeof job->wrong, "rank %d, stage %d, %s, chunks of %lld%s: %s differ",
                 sw_comm_identity(job->comm)->rank, zero, place, (long long)spec.chunk_grains,
                 kept == NO_SECONDARY ? "" : ", secondary shards", what);
    same_free(&trace);
    return SW_OK;
}

static void compare_with_one(struct job *job, const struct same_trace *reference, const struct same_trace *one) {
    for (int s = 0; s < SAME_STEPS; s++) {
        const double loss = fabs(reference->loss[s] / one->loss[s] - 1.0);
        const double norm = fabs(reference->grad_norm[s] / one->grad_norm[s] - 1.0);
        const bool narrow = job->type != SW_F32;
        const double exact = narrow ? 1e-2 : sw_optimizer_has_muon(job->optimizer) ? MUON_ERROR : RELATIVE_ERROR;
        const double allowed = is_quantized(job) ? QUANTIZED_ERROR : exact;
        if ((!(loss <= allowed) || !(norm <= 10 * allowed)) && job->wrong[0] == '\0')
            snprintf(job->wrong, sizeof job->wrong, "step %d: loss %.9g and norm %.9g, of one rank %.9g and %.9g",
                     s + 1, reference->loss[s], reference->grad_norm[s], one->loss[s], one->grad_norm[s]);
    }
}

/* Some steps must clip and some must not. */
static void check_clips(struct job *job, const struct same_trace *one) {
    int clipped = 0;
    for (int s = 0; s < SAME_STEPS; s++)
        clipped += one->grad_norm[s] > SAME_CLIP;
    if ((clipped == 0 || clipped == SAME_STEPS) && job->wrong[0] == '\0')
        snprintf(job->wrong, sizeof job->wrong, "%d of %d steps clip", clipped, SAME_STEPS);
}

/* Returns the bytes of an element that ranks exchange: its code, and its part of the scale of 256. */
static double element_bytes(const struct job *job, sw_quant quant) {
    const double code = quant == SW_QUANT_INT8 ? 1.0 : quant == SW_QUANT_INT4 ? 0.5 : 0.0;
    return quant == SW_QUANT_NONE ? (double)sw_dtype_bytes(job->type) : code + 4.0 / 256;
}

/* Returns the bytes of an element of a unit's weights that ranks exchange, and how often a step of stage 3 gathers the
 * unit: twice, but for what is held from the forward pass to the backward pass. That is the tied table, and the last
 * two units, or the head in a slot of its own and the last two blocks where blocks are in 8 bits. */
static double weight_bytes(const struct job *job, int64_t unit, int64_t units) {
    return job->fp8 && unit > 0 && unit + 1 < units ? 1.0 : element_bytes(job, job->gather);
}

static int gathers_of(const struct job *job, int64_t unit, int64_t units) {
    return unit == 0 || unit + (job->fp8 ? 3 : 2) >= units ? 1 : 2;
}

static double shard_elems(const struct sw_plan *plan, int64_t unit, int rank) {
    return (double)(sw_plan_shard_of(plan, unit, rank).grains * SW_GRAIN_ELEMS);
}

/* Returns the elements that this rank gives to others in a gather of a unit: over two levels its own to one rank of
 * each other node, and those that the ranks of its number have to the others of its node. */
static double gathered_elems(const struct job *job, const struct sw_plan *plan, int64_t unit) {
    const struct sw_comm_nodes *nodes = sw_comm_nodes(job->comm);
    const double own = shard_elems(plan, unit, plan->spec.rank);
    if (!plan->spec.fills_nodes)
        return own * (ranks_of(job) - 1);
    double elems = own * (nodes->nodes - 1);
    for (int rank = nodes->rank; rank < ranks_of(job); rank += nodes->ranks)
        elems += shard_elems(plan, unit, rank) * (nodes->ranks - 1);
    return elems;
}

/* Returns what the formulas give for a step of stage 3 on this rank. */
static double formula_bytes(const struct job *job, const struct sw_plan *plan) {
    const struct sw_units *units = plan->spec.units;
    const double others = ranks_of(job) - 1;
    double bytes = others * (double)sw_plan_summary_bytes(plan, true);
    for (int64_t u = 0; u < units->count; u++) {
        const double whole = (double)(units->unit[u].grains * SW_GRAIN_ELEMS);
        bytes += gathers_of(job, u, units->count) * gathered_elems(job, plan, u) * weight_bytes(job, u, units->count);
        bytes += (whole - shard_elems(plan, u, plan->spec.rank)) * element_bytes(job, job->reduce);
    }
    return bytes;
}

/* Returns those of them that go to other nodes. Gradients do once, in sums of a node, where there are two levels. */
static double between_bytes(const struct job *job, const struct sw_plan *plan) {
    const struct sw_comm_nodes *nodes = sw_comm_nodes(job->comm);
    const int apart = ranks_of(job) - nodes->ranks, levels = job->reduce_nodes > 1 ? 2 : 1;
    double bytes = apart * (double)sw_plan_summary_bytes(plan, true);
    const int64_t units = plan->spec.units->count;
    for (int64_t u = 0; u < units; u++) {
        const double own = shard_elems(plan, u, plan->spec.rank);
        bytes += gathers_of(job, u, units) * own * (plan->spec.fills_nodes ? nodes->nodes - 1 : apart) *
                 weight_bytes(job, u, units);
        for (int rank = 0; rank < ranks_of(job); rank++) {
            const bool gives = levels == 1 || rank % nodes->ranks == nodes->rank;
            if (rank / nodes->ranks != nodes->node && gives)
                bytes += shard_elems(plan, u, rank) * element_bytes(job, job->reduce);
        }
    }
    return bytes;
}

/* Compares the bytes that a step's plan gives to others, those that the comm has counted, and the formulas. */
static sw_status compare_bytes(struct job *job) {
    struct harness_spec spec = spec_of(job);
    struct harness harness;
    sw_status status = SW_OK;
    int64_t planned = 0;
    spec.zero = SW_ZERO_WEIGHTS;
    SW_TRY(harness_open(&spec, &harness));
    const int64_t before = sw_comm_sent_bytes(job->comm), between = sw_comm_sent_between_bytes(job->comm);
    for (int64_t step = 1; step <= SAME_STEPS && status == SW_OK; step++) {
        struct sw_step_result result = {0};
        SW_TRY_GOTO(harness_begin(&harness, step, SAME_CLIP), end);
        SW_TRY_GOTO(harness_wait(&harness, &result), end);
        planned += result.lane_bytes[SW_LANE_COMM];
    }
    SW_TRY_GOTO(sw_engine_settle(harness.engine), end);
    const int64_t counted = sw_comm_sent_bytes(job->comm) - before;
    const double formula = SAME_STEPS * formula_bytes(job, harness.plan);
    const double apart = (double)(sw_comm_sent_between_bytes(job->comm) - between);
    const double apart_formula = SAME_STEPS * between_bytes(job, harness.plan);
    if (apart != apart_formula && job->wrong[0] == '\0')
        snprintf(job->wrong, sizeof job->wrong, "rank %d: %.1f bytes go to other nodes, and the formula gives %.1f",
                 sw_comm_identity(job->comm)->rank, apart, apart_formula);
    if ((counted != planned || (double)counted != formula) && job->wrong[0] == '\0')
        snprintf(job->wrong, sizeof job->wrong,
                 "rank %d: %lld bytes are planned, %lld sent, and the formula gives %.1f",
                 sw_comm_identity(job->comm)->rank, (long long)planned, (long long)counted, formula);
end:
    harness_close(&harness);
    return status;
}

static sw_status count_loaded(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)unit;
    (void)first;
    atomic_fetch_add((atomic_llong *)context, count);
    memset(out, 0, (size_t)count * sizeof *out);
    return SW_OK;
}

/* Returns the most elements of a unit that a rank of stage 3 loads: its share of the trained grains, of the frozen ones
 * and of the cells of the base. At the ends of its cells are records that others have a part of. */
static int64_t most_loaded(const struct sw_units *units, int64_t unit, int ranks) {
    const struct sw_unit *u = &units->unit[unit];
    const int64_t cells = sw_div_up(sw_units_base_cells(units, unit), ranks), record = sw_base_grain_bytes(units->base);
    const int64_t base = cells > 0 ? sw_div_up(cells * SW_BASE_CELL_BYTES, record) + 1 : 0;
    const int64_t trained = u->trained_grain < u->grains ? sw_unit_most_shard_grains(u, unit, ranks) : 0;
    return (trained + sw_div_up(u->trained_grain - u->base_grains, ranks) + sw_min_i64(base, u->base_grains)) *
           SW_GRAIN_ELEMS;
}

/* Compares what a rank loads at stage 3 with its share. */
static sw_status count_loads(struct job *job) {
    struct harness_spec spec = spec_of(job);
    struct harness harness;
    atomic_llong loaded = 0;
    int64_t most = 0;
    spec.zero = SW_ZERO_WEIGHTS;
    spec.fill = count_loaded;
    spec.fill_context = &loaded;
    SW_TRY(harness_open(&spec, &harness));
    for (int64_t u = 0; u < harness.plan->spec.units->count; u++)
        most += most_loaded(harness.plan->spec.units, u, ranks_of(job));
    if (loaded > most && job->wrong[0] == '\0')
        snprintf(job->wrong, sizeof job->wrong, "rank %d loads %lld elements, and its share is %lld",
                 sw_comm_identity(job->comm)->rank, (long long)loaded, (long long)most);
    harness_close(&harness);
    return SW_OK;
}

/* An infinite gradient on one rank is not lost: its step is skipped on all. */
static sw_status skip_infinite(struct job *job) {
    enum { INFINITE_STEP = 2 };
    struct harness_spec spec = spec_of(job);
    struct same_trace trace;
    spec.zero = SW_ZERO_WEIGHTS;
    spec.infinite_step = sw_comm_identity(job->comm)->rank == ranks_of(job) - 1 ? INFINITE_STEP : 0;
    SW_TRY(same_train(&spec, false, &trace));
    for (int s = 0; s < SAME_STEPS; s++)
        if (trace.skipped[s] != (s + 1 == INFINITE_STEP) && job->wrong[0] == '\0')
            snprintf(job->wrong, sizeof job->wrong, "step %d is %sskipped, and step %d has an infinite gradient", s + 1,
                     trace.skipped[s] ? "" : "not ", INFINITE_STEP);
    same_free(&trace);
    return SW_OK;
}

static sw_status run(struct job *job, int variants) {
    struct same_trace reference[ORDERS];
    struct harness_spec spec = spec_of(job);
    spec.zero = first_stage(job);
    SW_TRY(same_train(&spec, false, &reference[BY_LAYER]));
    spec.group = GROUP;
    SW_TRY(same_train(&spec, false, &reference[BY_GROUP]));
    spec.zero = spec.zero < SW_ZERO_GRADS ? SW_ZERO_GRADS : spec.zero;
    SW_TRY(same_train(&spec, false, &reference[REDUCED_BY_GROUP]));
    for (int order = 0; order < ORDERS; order++)
        compare_with_one(job, &reference[order], job->alone);
    check_clips(job, job->alone);
    /* Stage 3 has every variant, those before it every other one in turn: what a tier does at a stage below does not
     * depend on the other tiers. */
    for (int zero = first_stage(job); zero <= SW_ZERO_WEIGHTS; zero++)
        for (int variant = zero % 2; variant < variants; variant += zero == SW_ZERO_WEIGHTS ? 1 : 2)
            SW_TRY(try_variant(job, reference, zero, variant, NO_SECONDARY));
    for (int variant = 0; job->part_ranks > 1 && variant < variants; variant++)
        for (int kept = ON_DEVICE; kept <= ON_HOST; kept++)
            SW_TRY(try_variant(job, reference, SW_ZERO_WEIGHTS, variant, (secondary)kept));
    SW_TRY(freezes(job) ? count_loads(job) : compare_bytes(job));
    if (job->tuning.lora.rank == 0) /* else the head, which makes the infinity, has no gradients */
        SW_TRY(skip_infinite(job));
    for (int order = 0; order < ORDERS; order++)
        same_free(&reference[order]);
    return SW_OK;
}

/* The ranks of a case, with what each has found wrong. */
struct party {
    const struct training *training;
    const struct same_trace *alone;
    const char *directory;
    char wrong[MOST_RANKS][WRONG_CHARS];
};

static struct job job_of(const struct training *training) {
    return (struct job){.micro_batches = micro_batches_of(training),
                        .type = training->type,
                        .optimizer = training->optimizer,
                        .fp8 = training->fp8,
                        .experts = training->experts,
                        .matrices = training->matrices,
                        .tuning = training->tuning,
                        .gather = training->gather,
                        .reduce = training->reduce,
                        .part_ranks = training->part_ranks};
}

static void train_rank(void *context, int rank) {
    struct party *party = context;
    const struct training *training = party->training;
    char directory[PATH_CHARS];
    struct job job = job_of(training);
    job.alone = party->alone;
    job.directory = directory;
    snprintf(directory, sizeof directory, "%s/%d", party->directory, rank);
    sw_status status = mkdir(directory, S_IRWXU) == 0 ? SW_OK : SW_ERR_IO;
    SW_TRY_GOTO(status, end);
    SW_TRY_GOTO(sw_comm_open(&job.comm), end);
    sw_comm_set_node_ranks(job.comm, training->node_ranks);
    const struct sw_comm_nodes *nodes = sw_comm_nodes(job.comm);
    job.reduce_nodes = job.reduce != SW_QUANT_NONE && nodes->even && nodes->ranks > 1 ? nodes->nodes : 0;
    status = run(&job, training->variants);
end:
    if (status != SW_OK)
        snprintf(job.wrong, sizeof job.wrong, "rank %d: %s", rank, sw_error_message(status));
    memcpy(party->wrong[rank], job.wrong, sizeof job.wrong);
    sw_comm_close(job.comm);
    rmdir(directory);
}

static void check(void **state, const struct training *trainings, int count) {
    for (int i = 0; i < count; i++) {
        const struct job job = job_of(&trainings[i]);
        const struct harness_spec spec = spec_of(&job);
        struct same_trace alone;
        must(same_train(&spec, false, &alone));
        struct party party = {.training = &trainings[i], .alone = &alone, .directory = *state};
        bool right = true;
        assert_int_equal(sw_comm_run_threads(trainings[i].ranks, train_rank, &party), SW_OK);
        for (int rank = 0; rank < trainings[i].ranks; rank++) {
            if (party.wrong[rank][0] != '\0')
                print_error("training %d: %s\n", i, party.wrong[rank]);
            right &= party.wrong[rank][0] == '\0';
        }
        assert_true(right);
        same_free(&alone);
    }
}
#define CHECK(...)                                                                                                     \
    check(state, (const struct training[]){__VA_ARGS__},                                                               \
          (int)(sizeof(const struct training[]){__VA_ARGS__} / sizeof(struct training)))

static void two_ranks_give_the_same_bits_in_fp32(void **state) {
    CHECK({.ranks = 2, .type = SW_F32, .variants = 9});
}

static void three_ranks_give_the_same_bits_in_bf16(void **state) {
    CHECK({.ranks = 3, .type = SW_BF16, .variants = 4});
}

static void four_ranks_give_the_same_bits_in_fp32(void **state) {
    CHECK({.ranks = 4, .type = SW_F32, .variants = 3});
}

/* Six ranks, and no unit of more than five grains. */
static void ranks_without_a_grain_keep_step(void **state) {
    CHECK({.ranks = 6, .type = SW_F32, .variants = 2});
}

/* Every rank has its own rows, and so its own routing. */
static void experts_give_the_same_bits(void **state) {
    CHECK({.ranks = 2, .type = SW_F32, .variants = 6, .experts = true},
          {.ranks = 3, .type = SW_BF16, .variants = 3, .experts = true, .optimizer = SW_OPTIMIZER_8BIT});
}

/* The tied embedding and one block are not trained. */
static void frozen_units_are_the_same_on_all_ranks(void **state) {
    CHECK({.ranks = 2, .type = SW_BF16, .variants = 4, .tuning.freeze = "embedding,blocks:0"});
}

/* A frozen block, one with both spans and a trained one; with secondary shards, on nodes, and with quantized weights.
 */
static void units_of_both_spans_give_the_same_bits(void **state) {
    CHECK({.ranks = 3, .type = SW_F32, .variants = 3, .tuning = {.lora = {.rank = 64, .alpha = 100}}},
          {.ranks = 4,
           .type = SW_BF16,
           .variants = 3,
           .tuning.freeze = "blocks:0,*.h.1.mlp.*",
           .node_ranks = 2,
           .part_ranks = 2},
          {.ranks = 2,
           .type = SW_F32,
           .variants = 4,
           .tuning.freeze = "blocks:0,*.h.1.mlp.*",
           .gather = SW_QUANT_INT8,
           .reduce = SW_QUANT_INT8});
}

/* The base of adapters' blocks and of a frozen one, which stage 3 shares out. */
static void a_quantized_base_gives_the_same_bits(void **state) {
    CHECK({.ranks = 2,
           .type = SW_BF16,
           .variants = 4,
           .tuning = {.lora = {.rank = 64, .alpha = 100}, .base = SW_BASE_NF4}},
          {.ranks = 3, .type = SW_F32, .variants = 3, .tuning = {.freeze = "blocks:0,*.mlp.*", .base = SW_BASE_INT8}});
}

/* Two nodes of two ranks; one node of four in halves; two ranks, with groups of micro-batches and frozen units. */
static void secondary_shards_give_the_same_bits(void **state) {
    CHECK({.ranks = 4, .type = SW_F32, .variants = 3, .node_ranks = 2, .part_ranks = 2},
          {.ranks = 4, .type = SW_BF16, .variants = 3, .node_ranks = 4, .part_ranks = 2},
          {.ranks = 2,
           .type = SW_BF16,
           .variants = 4,
           .tuning.freeze = "embedding,blocks:0",
           .node_ranks = 2,
           .part_ranks = 2});
}

/* The owner computes with what its codes stand for, as the others do; with secondary shards of such weights too. */
static void quantized_weights_give_the_same_bits(void **state) {
    CHECK({.ranks = 2, .type = SW_BF16, .variants = 4, .gather = SW_QUANT_INT8},
          {.ranks = 4, .type = SW_F32, .variants = 3, .node_ranks = 2, .part_ranks = 2, .gather = SW_QUANT_INT8});
}

static void quantized_gradients_give_the_same_bits(void **state) {
    CHECK({.ranks = 2, .type = SW_F32, .variants = 4, .reduce = SW_QUANT_INT8},
          {.ranks = 3, .type = SW_BF16, .variants = 3, .reduce = SW_QUANT_INT4});
}

/* Two nodes of two ranks; three of two, where some ranks have no grain of a unit. */
static void gradients_reduced_within_nodes_first_give_the_same_bits(void **state) {
    CHECK(
        {.ranks = 4, .type = SW_BF16, .variants = 3, .node_ranks = 2, .reduce = SW_QUANT_INT4},
        {.ranks = 6, .type = SW_F32, .variants = 2, .node_ranks = 2, .gather = SW_QUANT_INT8, .reduce = SW_QUANT_INT8});
}

/* With frozen units; and six ranks, of which some have no grain of a unit. */
static void both_quantized_give_the_same_bits(void **state) {
    CHECK({.ranks = 2,
           .type = SW_BF16,
           .variants = 4,
           .tuning.freeze = "embedding,blocks:0",
           .gather = SW_QUANT_INT8,
           .reduce = SW_QUANT_INT4},
          {.ranks = 6, .type = SW_F32, .variants = 2, .gather = SW_QUANT_INT8, .reduce = SW_QUANT_INT8});
}

/* The random numbers of its rounding are those of an element, whichever rank has it; with frozen units too. */
static void narrow_optimizer_state_gives_the_same_bits(void **state) {
    CHECK({.ranks = 2, .type = SW_BF16, .variants = 4, .optimizer = SW_OPTIMIZER_8BIT},
          {.ranks = 3,
           .type = SW_BF16,
           .variants = 3,
           .tuning.freeze = "embedding,blocks:0",
           .optimizer = SW_OPTIMIZER_8BIT},
          {.ranks = 2, .type = SW_F32, .variants = 3, .optimizer = SW_OPTIMIZER_BF16});
}

/* Each matrix is one rank's: with quantized exchanges and momenta in bf16, with more ranks than matrices, on nodes, and
 * with frozen ones and momenta in 8 bits. */
static void muon_gives_the_same_bits(void **state) {
    CHECK({.ranks = 2, .type = SW_F32, .variants = 4, .optimizer = SW_OPTIMIZER_MUON, .matrices = true},
          {.ranks = 3,
           .type = SW_F32,
           .variants = 2,
           .optimizer = SW_OPTIMIZER_MUON_BF16,
           .gather = SW_QUANT_INT8,
           .reduce = SW_QUANT_INT8,
           .matrices = true},
          {.ranks = 6,
           .type = SW_BF16,
           .variants = 1,
           .optimizer = SW_OPTIMIZER_MUON,
           .node_ranks = 2,
           .part_ranks = 2,
           .matrices = true},
          {.ranks = 4,
           .type = SW_BF16,
           .variants = 2,
           .optimizer = SW_OPTIMIZER_MUON_8BIT,
           .tuning.freeze = "*.h.1.attn.*",
           .matrices = true});
}

/* With secondary shards, with frozen units, and on nodes. */
static void weights_in_8_bits_give_the_same_bits(void **state) {
    CHECK({.ranks = 2, .type = SW_BF16, .variants = 4, .optimizer = SW_OPTIMIZER_FP32_APART, .fp8 = true},
          {.ranks = 4,
           .type = SW_BF16,
           .variants = 3,
           .node_ranks = 2,
           .part_ranks = 2,
           .optimizer = SW_OPTIMIZER_FP32_APART,
           .fp8 = true},
          {.ranks = 3,
           .type = SW_BF16,
           .variants = 3,
           .tuning.freeze = "embedding,blocks:0",
           .optimizer = SW_OPTIMIZER_8BIT,
           .fp8 = true});
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, harness_make_directory, harness_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(two_ranks_give_the_same_bits_in_fp32),
        in_directory(three_ranks_give_the_same_bits_in_bf16),
        in_directory(four_ranks_give_the_same_bits_in_fp32),
        in_directory(ranks_without_a_grain_keep_step),
        in_directory(experts_give_the_same_bits),
        in_directory(frozen_units_are_the_same_on_all_ranks),
        in_directory(units_of_both_spans_give_the_same_bits),
        in_directory(a_quantized_base_gives_the_same_bits),
        in_directory(secondary_shards_give_the_same_bits),
        in_directory(quantized_weights_give_the_same_bits),
        in_directory(quantized_gradients_give_the_same_bits),
        in_directory(gradients_reduced_within_nodes_first_give_the_same_bits),
        in_directory(both_quantized_give_the_same_bits),
        in_directory(narrow_optimizer_state_gives_the_same_bits),
        in_directory(muon_gives_the_same_bits),
        in_directory(weights_in_8_bits_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("e2e ranks bits", tests, NULL, NULL);
}
