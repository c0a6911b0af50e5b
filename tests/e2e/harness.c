#include "tests/e2e/harness.h"

#include "core/rng.h"
#include "core/size.h"
#include "offload/plan/placement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HARNESS_BUDGET_BYTES (4 * SW_GIB)
#define STORE_FILE_NAME "store.spillway"
enum { STREAMS_BITS = 64 };
enum { HARNESS_IO_DEPTH = 16, TOKEN_STREAM = 77, EVALUATION_STEP = 1000000, PATH_CHARS = 512, COUNTS_CHARS = 48 };
#define FROZEN_DIGEST UINT64_C(77) /* of the weights of every test */

static sw_status head_with_infinity(void *context, const struct sw_unit_call *call) {
    struct harness *h = context;
    SW_TRY(h->model_ops.head(h->model_ops.context, call));
    const int64_t step = h->first_step + 1 + h->head_calls++ / h->spec.micro_batches;
    static const float infinity = INFINITY;
    return step == h->spec.infinite_step ? sw_copy_to_device(call->stream, call->acc, &infinity, sizeof infinity)
                                         : SW_OK;
}

static sw_status begin(void *context, struct sw_stream *stream, void *work) {
    struct harness *h = context;
    return h->model_ops.begin(h->model_ops.context, stream, work);
}

static void gather(void *context, const struct sw_gather_call *call) {
    struct harness *h = context;
    h->model_ops.gather(h->model_ops.context, call);
}

static sw_status forward(void *context, const struct sw_unit_call *call) {
    struct harness *h = context;
    return h->model_ops.forward(h->model_ops.context, call);
}

static sw_status recompute(void *context, const struct sw_unit_call *call) {
    struct harness *h = context;
    return h->model_ops.recompute(h->model_ops.context, call);
}

static sw_status backward(void *context, const struct sw_unit_call *call) {
    struct harness *h = context;
    return h->model_ops.backward(h->model_ops.context, call);
}

static sw_status loss(void *context, const struct sw_unit_call *call) {
    struct harness *h = context;
    return h->model_ops.loss(h->model_ops.context, call);
}

static sw_status logits(void *context, const struct sw_unit_call *call) {
    struct harness *h = context;
    return h->model_ops.logits(h->model_ops.context, call);
}

/* The counts that a resumed run needs, as a run keeps them in the commit. */
static void describe(struct harness *h, const struct sw_step_result *result) {
    char text[COUNTS_CHARS];
    snprintf(text, sizeof text, "%lld %lld", (long long)result->applied_steps, (long long)result->skipped_steps);
    sw_engine_describe(h->engine, result->step, text);
}

static int rank_of(const struct harness *h) {
    return h->spec.comm == NULL ? 0 : sw_comm_identity(h->spec.comm)->rank;
}

static int ranks_of(const struct harness *h) {
    return h->spec.comm == NULL ? 1 : sw_comm_identity(h->spec.comm)->ranks;
}

/* The ranks that have micro-batches of their own, those of each stage, and this one's number among them. */
static int data_ranks_of(const struct harness *h) {
    return ranks_of(h) / (h->spec.pipeline.stages > 1 ? h->spec.pipeline.stages : 1);
}

static int data_rank_of(const struct harness *h) {
    return rank_of(h) % data_ranks_of(h);
}

static sw_status open_plan(struct harness *h) {
    const struct sw_model_bytes bytes = sw_model_bytes(h->model);
    struct sw_plan_spec spec = {
        .units = sw_model_get_units(h->model),
        .type = h->spec.shape.type,
        .ranks = data_ranks_of(h),
        .rank = data_rank_of(h),
        .pipeline = h->spec.pipeline,
        .zero = h->spec.zero,
        .gather = h->spec.gather,
        .reduce = h->spec.reduce,
        .grads = h->spec.grads,
        .reduce_nodes = h->spec.comm == NULL ? 0 : h->spec.reduce_nodes,
        .node_ranks = h->spec.comm == NULL ? 0 : h->spec.node_ranks,
        .fills_nodes = h->spec.comm != NULL && h->spec.node_ranks > 0,
        .secondary_ranks = h->spec.secondary_ranks,
        .secondary_rank = h->spec.secondary_ranks > 0 ? rank_of(h) % h->spec.secondary_ranks : 0,
        .train = true,
        .micro_batches = h->spec.micro_batches,
        .group = h->spec.group > 0 ? h->spec.group : h->spec.micro_batches,
        .unit_slots = h->spec.unit_slots > 0 ? h->spec.unit_slots : 2,
        .token_bytes = bytes.token,
        .tally = bytes.tally,
        .cost = bytes.cost,
        .work_bytes = bytes.work,
        .muon_gpu_bytes = bytes.muon_gpu,
        .gathered_bytes = h->spec.pipeline.stages > 1 ? 0 : bytes.gathered,
        .recompute = h->spec.recompute,
        .recompute_auto = h->spec.device_bytes > 0,
        .one_generation = h->spec.one_generation,
        .commits_by_saves = h->spec.commits_by_saves,
        .chunk_grains = h->spec.chunk_grains,
        .ring_chunks = h->spec.ring_chunks,
        .budget_bytes = {[SW_DEVICE] = h->spec.device_bytes > 0 ? h->spec.device_bytes : HARNESS_BUDGET_BYTES,
                         [SW_HOST] = HARNESS_BUDGET_BYTES},
    };
    spec.pipeline.stage = rank_of(h) / data_ranks_of(h);
    SW_TRY(sw_placement_parse(h->spec.place, &spec.place));
    bool *streams = calloc((size_t)spec.units->count, sizeof *streams);
    if (streams == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the test's plan");
    for (int64_t u = 0; u < spec.units->count; u++)
        streams[u] = h->spec.update_on_device >> (u % STREAMS_BITS) & 1;
    spec.update_on_device = streams;
    sw_status status = sw_plan_create(&spec, &h->plan);
    if (status == SW_OK && h->spec.secondary_on_host) {
        spec.budget_bytes[SW_DEVICE] = h->plan->tier_bytes[SW_DEVICE] - 1;
        sw_plan_destroy(h->plan);
        status = sw_plan_create(&spec, &h->plan);
        assert(status != SW_OK || h->plan->secondary_tier == SW_HOST);
    }
    free(streams);
    return status == SW_OK ? sw_plan_check(h->plan) : status;
}

static sw_status open_store(struct harness *h) {
    if (h->spec.directory == NULL)
        return SW_OK;
    if (h->spec.resume)
        return sw_store_open(&h->spec.directory, 1, false, SW_STORE_NEWEST, &h->store);
    const struct sw_units *units = sw_model_get_units(h->model);
    int64_t *grains = calloc(4 * (size_t)units->count, sizeof *grains);
    int64_t *first = grains + units->count, *whole = first + units->count, *muon = whole + units->count;
    if (grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the test's store");
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_span span = sw_plan_span(h->plan, SW_OPTIMIZER, u);
        grains[u] = span.grains;
        first[u] = span.first_grain;
        whole[u] = units->unit[u].grains;
        muon[u] = sw_plan_records(h->plan, u).muon_grains;
    }
    const struct sw_store_spec spec = {.directories = &h->spec.directory,
                                       .directory_count = 1,
                                       .unit_grains = grains,
                                       .unit_first = first,
                                       .unit_whole_grains = whole,
                                       .unit_muon_grains = muon,
                                       .unit_count = units->count,
                                       .optimizer = units->optimizer,
                                       .one_generation = h->spec.one_generation};
    const sw_status status = sw_store_create(&spec, NULL, NULL, &h->store);
    free(grains);
    return status;
}

static sw_status open_engine(struct harness *h) {
    h->model_ops = sw_model_ops(h->model);
    if (h->spec.wrap != NULL)
        h->spec.wrap(h->spec.wrap_context, &h->model_ops);
    struct sw_engine_spec spec = {
        .plan = h->plan,
        .device = h->compute,
        .host = h->update,
        .store = h->store,
        .comm = h->spec.comm,
        .io_depth = HARNESS_IO_DEPTH,
        .speculation = h->spec.speculation,
        .rounding = h->spec.rounding,
        .seed = h->spec.seed,
        .loss_scale = {.scale = h->spec.loss_scale, .good_steps = h->spec.good_steps},
        .ops = {.context = h,
                .begin = h->model_ops.begin == NULL ? NULL : begin,
                .forward = forward,
                .recompute = recompute,
                .backward = backward,
                .head = head_with_infinity,
                .loss = loss,
                .logits = logits,
                .gather = gather},
        .frozen_digest = h->spec.resume ? FROZEN_DIGEST : 0,
        .described = true,
    };
    if (h->spec.resume) {
        const struct sw_store_commit *commit = sw_store_last_commit(h->store);
        long long applied, skipped;
        if (sscanf(commit->meta, "%lld %lld", &applied, &skipped) != 2)
            return sw_fail(SW_ERR_CORRUPT, "the commit's text is '%s'", commit->meta);
        spec.applied_steps = applied;
        spec.skipped_steps = skipped;
        h->first_step = commit->step;
    }
    SW_TRY(sw_engine_open(&spec, &h->engine));
    h->init =
        (struct sw_model_init){.config = h->spec.config, .units = sw_model_get_units(h->model), .seed = h->spec.seed};
    const bool own = h->spec.fill != NULL;
    struct sw_lora_init init = {
        .units = h->init.units, .seed = h->spec.seed, .base = {.fill = sw_model_fill_random, .context = &h->init}};
    const struct sw_load load = own ? (struct sw_load){.fill = h->spec.fill,
                                                       .prepare = h->spec.prepare,
                                                       .record = h->spec.record,
                                                       .context = h->spec.fill_context}
                                    : sw_lora_load(&init);
    if (h->spec.resume) {
        SW_TRY(sw_engine_restore(h->engine));
        h->frozen_loaded = sw_engine_frozen_grains_to_load(h->engine);
        return sw_engine_load_frozen(h->engine, &load);
    }
    describe(h, &(struct sw_step_result){0});
    SW_TRY(sw_engine_load(h->engine, &load));
    return h->store != NULL ? sw_engine_keep_frozen(h->engine, FROZEN_DIGEST) : SW_OK;
}

/* The thread sanitizer does not see how OpenMP's threads wait for each other, so there the lanes are the only threads.
 */
static int allowed_threads(int threads) {
#ifdef __SANITIZE_THREAD__
    (void)threads;
    return 1;
#else
    return threads;
#endif
}

/* The device of the tests of whole trainings: the CPU, or what SW_TEST_DEVICE names. */
static const char *device_name(void) {
    const char *name = getenv("SW_TEST_DEVICE");
    return name != NULL ? name : "cpu";
}

sw_status harness_open(const struct harness_spec *spec, struct harness *out) {
    sw_status status;
    *out = (struct harness){.spec = *spec};
    out->spec.shape.micro_batches = spec->micro_batches;
    SW_TRY_GOTO(sw_device_open(device_name(), allowed_threads(spec->compute_threads), &out->compute), fail);
    SW_TRY_GOTO(sw_device_open("cpu", allowed_threads(spec->update_threads), &out->update), fail);
    SW_TRY_GOTO(sw_model_create(spec->config, &out->spec.shape, out->compute, &out->model), fail);
    SW_TRY_GOTO(open_plan(out), fail);
    SW_TRY_GOTO(open_store(out), fail);
    if (out->store != NULL && spec->prepare_store != NULL)
        SW_TRY_GOTO(spec->prepare_store(spec->prepare_context, out->store), fail);
    SW_TRY_GOTO(open_engine(out), fail);
    return SW_OK;
fail:
    harness_close(out);
    return status;
}

void harness_close(struct harness *h) {
    sw_engine_close(h->engine);
    if (h->store != NULL)
        sw_store_close(h->store);
    sw_plan_destroy(h->plan);
    sw_model_destroy(h->model);
    if (h->compute != NULL)
        sw_device_close(h->compute);
    if (h->update != NULL)
        sw_device_close(h->update);
    *h = (struct harness){0};
}

static void fill_tokens(struct harness *h, int64_t step) {
    const int64_t rows = h->spec.shape.batch * h->spec.shape.seq;
    for (int64_t m = 0; m < h->spec.micro_batches; m++) {
        int32_t *tokens = sw_engine_tokens(h->engine, m);
        for (int64_t i = 0; i < 2 * rows; i++) {
            const int64_t micro = (step * data_ranks_of(h) + data_rank_of(h)) * h->spec.micro_batches + m;
            const uint64_t place = (uint64_t)(micro * 2 * rows + i);
            tokens[i] = (int32_t)(sw_rng(h->spec.seed, TOKEN_STREAM, place).word[0] % (uint32_t)h->spec.config->vocab);
        }
    }
}

struct sw_adamw harness_adamw(int64_t step) {
    return (struct sw_adamw){
        .lr = 0.01 / (double)(1 + step % 3), .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
}

sw_status harness_begin(struct harness *h, int64_t step, double clip) {
    fill_tokens(h, step);
    const struct sw_step_input input = {
        .kind = SW_STEP_TRAIN,
        .step = step,
        .adamw = harness_adamw(step),
        .muon = {.lr = harness_adamw(step).lr, .momentum = 0.95, .weight_decay = 0.1},
        .clip = clip,
        .loss_tokens = data_ranks_of(h) * h->spec.micro_batches * h->spec.shape.batch * h->spec.shape.seq,
    };
    return sw_engine_begin(h->engine, &input);
}

sw_status harness_wait(struct harness *h, struct sw_step_result *out) {
    SW_TRY(sw_engine_wait(h->engine, out));
    describe(h, out);
    return SW_OK;
}

sw_status harness_evaluate(struct harness *h, double *out) {
    SW_TRY(sw_engine_settle(h->engine));
    fill_tokens(h, EVALUATION_STEP);
    const int64_t tokens = data_ranks_of(h) * h->spec.micro_batches * h->spec.shape.batch * h->spec.shape.seq;
    struct sw_step_result result;
    SW_TRY(sw_engine_begin(h->engine, &(struct sw_step_input){.kind = SW_STEP_LOSS, .step = 1, .loss_tokens = tokens}));
    SW_TRY(sw_engine_wait(h->engine, &result));
    *out = result.loss_sum / (double)tokens;
    return SW_OK;
}

int64_t harness_grains(const struct harness *h) {
    const struct sw_units *units = sw_model_get_units(h->model);
    int64_t grains = 0;
    for (int64_t u = 0; u < units->count; u++)
        grains += units->unit[u].grains;
    return grains;
}

int64_t harness_grain_bytes(const struct harness *h) {
    return sw_plan_optimizer_bytes(h->plan, 1);
}

sw_status harness_read_records(struct harness *h, void *records) {
    const struct sw_units *units = sw_model_get_units(h->model);
    char *out = records;
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_span span = sw_plan_span(h->plan, SW_OPTIMIZER, u);
        SW_TRY(sw_engine_read_optimizer(h->engine, u, span.first_grain, span.grains,
                                        out + sw_plan_optimizer_bytes(h->plan, span.first_grain)));
        out += sw_plan_optimizer_bytes(h->plan, units->unit[u].grains);
    }
    return SW_OK;
}

sw_status harness_read_grads(struct harness *h, float *grads) {
    const struct sw_units *units = sw_model_get_units(h->model);
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_span span = sw_plan_span(h->plan, SW_GRADS, u);
        SW_TRY(sw_engine_read_grads(h->engine, u, span.first_grain, span.grains,
                                    grads + span.first_grain * SW_GRAIN_ELEMS));
        grads += units->unit[u].grains * SW_GRAIN_ELEMS;
    }
    return SW_OK;
}

int harness_make_directory(void **state) {
    char *path = calloc(1, PATH_CHARS);
    const char *base = getenv("TMPDIR");
    if (path == NULL)
        return -1;
    snprintf(path, PATH_CHARS, "%s/spillway-e2e-XXXXXX", base != NULL ? base : ".");
    *state = path;
    return mkdtemp(path) == NULL ? -1 : 0;
}

void harness_remove_store(const char *directory) {
    char file[PATH_CHARS + sizeof STORE_FILE_NAME + 1];
    snprintf(file, sizeof file, "%s/%s", directory, STORE_FILE_NAME);
    unlink(file);
}

int harness_remove_directory(void **state) {
    harness_remove_store(*state);
    rmdir(*state);
    free(*state);
    return 0;
}
