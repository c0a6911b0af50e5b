#include "tests/e2e/crash_child.h"

#include "core/size.h"
#include "tests/e2e/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { CHILD_FAILED = 9 };
#define CLIP 1.0

/* A step takes some milliseconds; blocks of two grains, in chunks of one. */
static const struct sw_model_config tiny_config = {
    .family = "gpt2",
    .vocab = 131,
    .hidden = 48,
    .layers = 2,
    .heads = 2,
    .kv_heads = 2,
    .head_dim = 24,
    .ffn = 192,
    .max_positions = 16,
    .norm_epsilon = 1e-5,
    .init_std = 0.1,
    .activation = SW_GELU_TANH,
    .tied_embeddings = true,
};

/* One thread each: what is compared is the store, and processes are many. */
static struct harness_spec tiny_spec(const char *place, const struct crash_shared *shared) {
    return (struct harness_spec){
        .config = &tiny_config,
        .shape =
            {.type = SW_BF16, .optimizer = shared->optimizer, .tuning.freeze = shared->freeze, .batch = 1, .seq = 12},
        .rounding = SW_ROUND_STOCHASTIC,
        .micro_batches = 2,
        .place = place,
        .chunk_grains = 1,
        .ring_chunks = 2,
        .compute_threads = 1,
        .update_threads = 1,
        .seed = 7,
    };
}

static sw_status digest_state(struct harness *harness, uint64_t *out) {
    const int64_t bytes = harness_grains(harness) * harness_grain_bytes(harness);
    uint64_t digest = UINT64_C(14695981039346656037);
    float *records = malloc((size_t)bytes);
    if (records == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the state");
    const sw_status status = harness_read_records(harness, records);
    for (int64_t i = 0; status == SW_OK && i < bytes / (int64_t)sizeof(uint32_t); i++) {
        uint32_t word;
        memcpy(&word, records + i, sizeof word);
        digest = (digest ^ word) * UINT64_C(1099511628211);
    }
    free(records);
    *out = digest;
    return status;
}

static sw_status train_uninterrupted(struct crash_shared *shared) {
    struct harness harness;
    const struct harness_spec spec = tiny_spec("optimizer=device,grads=device", shared);
    SW_TRY(harness_open(&spec, &harness));
    sw_status status = digest_state(&harness, &shared->reference[0].digest);
    for (int64_t step = 1; status == SW_OK && step <= CRASH_STEPS; step++) {
        struct crash_step *reference = &shared->reference[step];
        struct sw_step_result result;
        SW_TRY_GOTO(harness_begin(&harness, step, CLIP), end);
        SW_TRY_GOTO(harness_wait(&harness, &result), end);
        reference->loss_sum = result.loss_sum;
        reference->grad_norm = result.grad_norm;
        status = digest_state(&harness, &reference->digest);
    }
end:
    harness_close(&harness);
    return status;
}

/* The state that is there must be the uninterrupted training's state after that step. */
static sw_status check_state(struct harness *harness, const struct crash_shared *shared, int64_t step) {
    uint64_t digest;
    SW_TRY(digest_state(harness, &digest));
    return digest == shared->reference[step].digest
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "the state of step %lld is not that of the uninterrupted training",
                         (long long)step);
}

static bool says_unfinished(const char *message) {
    return strstr(message, "creation was interrupted") != NULL || strstr(message, "cannot be opened") != NULL ||
           strstr(message, "no finished commit") != NULL;
}

/* Goes on with what is there. Where no process has come so far as to have a store, it makes one. */
static sw_status open_or_make(struct harness_spec *spec, struct crash_shared *shared, struct harness *out) {
    spec->resume = true;
    const sw_status status = harness_open(spec, out);
    if (status == SW_OK || shared->lives || !says_unfinished(sw_error_message(status)))
        return status;
    sw_error_clear();
    harness_remove_store(spec->directory);
    spec->resume = false;
    return harness_open(spec, out);
}

static sw_status check_opened(const struct crash_case *crash, const struct crash_shared *shared, int64_t step) {
    /* A step is committed under the one after it. */
    const int64_t saved = atomic_load(&shared->saved), done = atomic_load(&shared->done);
    const int64_t most = crash->save_every > 0 ? done : done + SW_ENGINE_STEPS_AHEAD;
    const bool at_a_save = crash->save_every == 0 || step % crash->save_every == 0 || step == CRASH_STEPS;
    if (step >= saved && step <= sw_max_i64(0, most) && at_a_save)
        return SW_OK;
    return sw_fail(SW_ERR_CORRUPT, "step %lld was done and %lld saved, and the store opens at %lld", (long long)done,
                   (long long)saved, (long long)step);
}

static sw_status end_step(const struct crash_case *crash, struct crash_shared *shared, struct harness *harness,
                          int64_t step) {
    struct sw_step_result result;
    SW_TRY(harness_wait(harness, &result));
    const struct crash_step *reference = &shared->reference[step];
    if (result.loss_sum != reference->loss_sum || result.grad_norm != reference->grad_norm)
        return sw_fail(SW_ERR_CORRUPT, "step %lld has not the numbers of the uninterrupted training", (long long)step);
    atomic_store(&shared->done, step);
    if (crash->save_every == 0)
        atomic_store(&shared->saved, sw_max_i64(atomic_load(&shared->saved), step - 1));
    if (step != CRASH_STEPS && (crash->save_every == 0 || step % crash->save_every != 0))
        return SW_OK;
    SW_TRY(sw_engine_save(harness->engine));
    atomic_store(&shared->saved, step);
    return SW_OK;
}

static sw_status train_steps(const struct crash_case *crash, struct crash_shared *shared, struct harness *harness) {
    int64_t begun = harness->first_step;
    for (int64_t step = begun + 1; step <= CRASH_STEPS; step++) {
        /* One ahead, except where the state must be still for a save. */
        const bool still = crash->save_every > 0 && step % crash->save_every == 0;
        while (begun < CRASH_STEPS && begun < step + !still)
            SW_TRY(harness_begin(harness, ++begun, CLIP));
        SW_TRY(end_step(crash, shared, harness, step));
    }
    return check_state(harness, shared, CRASH_STEPS);
}

static sw_status train(const struct crash_case *crash, struct crash_shared *shared) {
    struct harness harness;
    struct harness_spec spec = tiny_spec(crash->place, shared);
    sw_status status = SW_OK;
    spec.directory = crash->directory;
    spec.prepare_store = mark_store;
    spec.prepare_context = &shared->marks;
    /* Always, so that kills also hit updates that are redone. */
    spec.speculation = SW_SPECULATE_ALWAYS;
    /* One child updates on the host what another has updated on the device, as deaths have it. */
    spec.update_on_device = atomic_load(&shared->done) % 2 == 0 ? UINT64_MAX : 0;
    SW_TRY(open_or_make(&spec, shared, &harness));
    SW_TRY_GOTO(check_opened(crash, shared, harness.first_step), end);
    SW_TRY_GOTO(check_state(&harness, shared, harness.first_step), end);
    atomic_store(&shared->done, harness.first_step);
    atomic_store(&shared->saved, harness.first_step);
    shared->lives = true;
    atomic_store(&shared->opened, harness.first_step);
    status = train_steps(crash, shared, &harness);
end:
    harness_close(&harness);
    return status;
}

static int ended(sw_status status, struct crash_shared *shared) {
    if (status == SW_OK)
        return 0;
    snprintf(shared->text, sizeof shared->text, "%s", sw_error_message(status));
    return CHILD_FAILED;
}

int crash_train_uninterrupted(struct crash_shared *shared) {
    return ended(train_uninterrupted(shared), shared);
}

int crash_train(const struct crash_case *crash, struct crash_shared *shared) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return ended(train(crash, shared), shared);
}
