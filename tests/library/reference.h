/* The expected result of steps of the library, computed by the plain reference on one vector, for tests. */
#ifndef SW_TESTS_LIBRARY_REFERENCE_H
#define SW_TESTS_LIBRARY_REFERENCE_H

#include "kernels/device.h"
#include "tests/library/support.h"

#include <math.h>

enum { STATE_PARTS = 3 };
#define CLIP_EPSILON 1e-6

static inline struct spillway_rates rates_of(int64_t step) {
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    rates.lr = 1e-3 * (1.0 + 0.01 * (double)step);
    rates.clip = step % 3 == 0 ? 0.0 : 0.5;
    return rates;
}

/* The model's state as the contract defines it: one vector, tensors at aligned elements, updated by the plain
 * reference. */
struct reference {
    struct sw_device *device;
    struct sw_stream *stream;
    int64_t offset[TENSORS], elems, grains, applied;
    float *records, *grads, *weights;
    double *sums;
    struct sw_decay_run run[TENSORS];
};

static inline void set_runs(struct reference *r, const struct model *m) {
    for (int t = 0; t < TENSORS; t++)
        r->run[t] = (struct sw_decay_run){.end = t + 1 < TENSORS ? r->offset[t + 1] : r->elems,
                                          .decay = m->decays[t],
                                          .lr_scale = m->lr_scale[t] == 0.0 ? 0x1p-1000 : m->lr_scale[t]};
}

static inline struct reference reference_open(const struct model *m) {
    struct reference r = {0};
    int64_t end = 0;
    for (int t = 0; t < TENSORS; t++) {
        r.offset[t] = sw_round_up(end, SW_TENSOR_ALIGN_ELEMS);
        end = r.offset[t] + m->count[t];
    }
    r.elems = sw_round_up(end, SW_GRAIN_ELEMS);
    r.grains = r.elems / SW_GRAIN_ELEMS;
    r.records = calloc((size_t)(STATE_PARTS * r.elems), sizeof(float));
    r.grads = calloc((size_t)r.elems, sizeof(float));
    r.weights = calloc((size_t)r.elems, sizeof(float));
    r.sums = calloc((size_t)r.grains, sizeof(double));
    assert_true(r.records != NULL && r.grads != NULL && r.weights != NULL && r.sums != NULL);
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0, at; i < m->count[t]; i++) {
            at = r.offset[t] + i;
            r.records[at / SW_GRAIN_ELEMS * STATE_PARTS * SW_GRAIN_ELEMS + at % SW_GRAIN_ELEMS] =
                sw_dtype_load(m->type[t], m->weights[t], i);
        }
    set_runs(&r, m);
    support_expect_ok(sw_device_open("ref", 1, &r.device), "reference");
    support_expect_ok(sw_stream_open(r.device, &r.stream), "reference");
    return r;
}

static inline void reference_close(struct reference *r) {
    sw_stream_close(r->stream);
    sw_device_close(r->device);
    free(r->records);
    free(r->grads);
    free(r->weights);
    free(r->sums);
}

/* Returns the norm. */
static inline double reference_step(struct reference *r, const struct model *m, const struct spillway_rates *rates) {
    double total = 0.0;
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < m->count[t]; i++)
            r->grads[r->offset[t] + i] = sw_dtype_load(m->type[t], m->gradients[t], i);
    support_expect_ok(sw_square_sums(r->stream, SW_F32, r->elems, r->grads, r->sums), "sums");
    for (int64_t g = 0; g < r->grains; g++)
        total += r->sums[g];
    const double norm = sqrt(total);
    r->applied += isfinite(norm) ? 1 : 0;
    const double coefficient = rates->clip > 0.0 ? rates->clip / (norm + CLIP_EPSILON) : 1.0;
    const struct sw_adamw adamw = {.lr = rates->lr,
                                   .beta1 = rates->beta1,
                                   .beta2 = rates->beta2,
                                   .eps = rates->eps,
                                   .weight_decay = rates->weight_decay,
                                   .grad_scale = (float)fmin(1.0, coefficient),
                                   .step = r->applied,
                                   .skip = !isfinite(norm)};
    support_expect_ok(sw_update_adamw(r->stream, .type = SW_F32, .adamw = &adamw, .grains = r->grains, .runs = r->run,
                                      .run_count = TENSORS, .grads = r->grads, .records = r->records,
                                      .weights = r->weights),
                      "update");
    return norm;
}

/* Compares a part of a tensor's state, bit by bit. */
static inline void expect_part(const struct reference *r, const struct model *m, int t, int part, const float *got) {
    for (int64_t i = 0; i < m->count[t]; i++) {
        const int64_t at = r->offset[t] + i, grain = at / SW_GRAIN_ELEMS;
        const float *record = r->records + grain * STATE_PARTS * SW_GRAIN_ELEMS;
        if (memcmp(&got[i], &record[part * SW_GRAIN_ELEMS + at % SW_GRAIN_ELEMS], sizeof *got) != 0)
            fail_msg("part %d of '%s' differs at element %lld", part, m->name[t], (long long)i);
    }
}

/* Does so for all tensors, as the library reads them. */
static inline void expect_state(const struct reference *r, const struct model *m, spillway *self, int part) {
    for (int t = 0; t < TENSORS; t++) {
        float *got = calloc((size_t)m->count[t], sizeof *got);
        assert_non_null(got);
        library_must(spillway_read(self, t, part, 0, m->count[t], got), self, "read");
        expect_part(r, m, t, part, got);
        free(got);
    }
}

static inline void expect_weights_of(const struct reference *r, const struct model *m, int t, int64_t step) {
    for (int64_t i = 0; i < m->count[t]; i++) {
        uint32_t want = 0, got = 0;
        sw_dtype_store(m->type[t], &want, 0, r->weights[r->offset[t] + i]);
        memcpy(&got, (const char *)m->weights[t] + i * sw_dtype_bytes(m->type[t]), (size_t)sw_dtype_bytes(m->type[t]));
        if (want != got)
            fail_msg("step %lld: weight %lld of '%s' differs", (long long)step, (long long)i, m->name[t]);
    }
}

static inline void expect_weights(const struct reference *r, const struct model *m, int64_t step) {
    for (int t = 0; t < TENSORS; t++)
        expect_weights_of(r, m, t, step);
}

#endif
