#include "kernels/adamw_scalars.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

#include <math.h>

/* The operations of ref/update.c, in the same order: the bits are a contract. */
static void update_tile(const struct sw_adamw_scalars *scalars, float decay_factor, int64_t count,
                        const float *restrict grads, float *restrict master, float *restrict m, float *restrict v) {
    const struct sw_adamw_scalars s = *scalars;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const float g = grads[i] * s.grad_scale;
        const float first = fmaf(s.one_minus_beta1, g - m[i], m[i]);
        const float second = fmaf(s.one_minus_beta2 * g, g, s.beta2 * v[i]);
        const float denominator = sqrtf(second) / s.correction2_sqrt + s.eps;
        master[i] = fmaf(s.minus_step_size, first / denominator, master[i] * decay_factor);
        m[i] = first;
        v[i] = second;
    }
}

/* A call's arguments. */
struct update {
    sw_dtype type;
    bool skip;
    struct sw_adamw_scalars scalars;
    const struct sw_decay_run *runs;
    int64_t run_count;
    const void *grads;
    void *weights;
};

static void update_grain(const struct update *u, int64_t unit_elem, int64_t chunk_elem, float *record) {
    float *master = record, *m = master + SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
    int64_t count;
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i += count) {
        count = sw_min_i64(SW_TILE_ELEMS, SW_GRAIN_ELEMS - i);
        if (!u->skip) {
            const struct sw_decay_span span = sw_decay_span(&u->scalars, u->runs, u->run_count, unit_elem + i);
            count = sw_min_i64(count, span.end - (unit_elem + i));
            struct sw_tile tile;
            const float *grads = sw_tile_load(u->type, u->grads, chunk_elem + i, count, &tile);
            update_tile(&u->scalars, span.factor, count, grads, master + i, m + i, v + i);
        }
        sw_narrow(u->type, u->weights, chunk_elem + i, count, master + i);
    }
}

static sw_status update_adamw(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                              int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                              float *records, void *weights) {
    const int threads = stream->device->info.threads;
    const struct update u = {.type = type,
                             .skip = adamw->skip,
                             .scalars = sw_adamw_scalars(adamw),
                             .runs = runs,
                             .run_count = run_count,
                             .grads = grads,
                             .weights = weights};
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t grain = 0; grain < grains; grain++) {
        const int64_t at = grain * SW_GRAIN_ELEMS;
        update_grain(&u, first_elem + at, at, records + SW_RECORD_STREAMS * at);
    }
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_update)(struct sw_device_ops *ops) {
    ops->update_adamw = update_adamw;
}
