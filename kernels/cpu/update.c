#include "kernels/adamw_scalars.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

/* A call's arguments. */
struct update {
    sw_dtype type;
    struct sw_adamw_scalars scalars;
    const struct sw_decay_run *runs;
    int64_t run_count;
    const void *grads;
    void *weights;
};

/* Elements side by side: where they begin in the chunk and in the record's three parts, and their decay and step size.
 */
struct run {
    int64_t at;
    float *master, *m, *v;
    float decay_factor, minus_step_size;
};

/* Runs the operations of ref/update.c in the same order: the bits are a contract. `rest` elements are left from element
 * i of the run on, of which a vector takes what it can. */
SW_INLINE void update_vector(const sw_dtype type, const struct update *u, const struct run *run, int64_t i,
                             int64_t rest) {
    const struct sw_adamw_scalars *s = &u->scalars;
    const sw_vec g = sw_load_up_to(type, u->grads, run->at + i, rest, 0.0f) * s->grad_scale;
    const sw_vec m = sw_load_up_to(SW_F32, run->m, i, rest, 0.0f);
    const sw_vec v = sw_load_up_to(SW_F32, run->v, i, rest, 0.0f);
    const sw_vec before = sw_load_up_to(SW_F32, run->master, i, rest, 0.0f);
    const sw_vec first = sw_vec_fma_once(sw_vec_splat(s->one_minus_beta1), g - m, m);
    const sw_vec second = sw_vec_fma_once(s->one_minus_beta2 * g, g, s->beta2 * v);
    const sw_vec denominator = sw_vec_sqrt(second) / s->correction2_sqrt + s->eps;
    const sw_vec master =
        sw_vec_fma_once(sw_vec_splat(run->minus_step_size), first / denominator, before * run->decay_factor);
    sw_store_up_to(SW_F32, run->master, i, rest, master);
    sw_store_up_to(SW_F32, run->m, i, rest, first);
    sw_store_up_to(SW_F32, run->v, i, rest, second);
    if (rest >= SW_LANES)
        sw_stream(type, u->weights, run->at + i, master);
    else
        sw_store_up_to(type, u->weights, run->at + i, rest, master);
}

SW_INLINE void update_run(const sw_dtype type, const struct update *u, const struct run *run, int64_t count) {
    const struct update call = *u; /* stores cannot change what is local */
    const struct run here = *run;
    int64_t i = 0;
    for (; i + SW_LANES <= count; i += SW_LANES)
        update_vector(type, &call, &here, i, SW_LANES);
    if (i < count)
        update_vector(type, &call, &here, i, count - i);
}

static void update_grain(const struct update *u, int64_t unit_elem, int64_t chunk_elem, float *record) {
    int64_t count;
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i += count) {
        const struct sw_decay_span span = sw_decay_span(&u->scalars, u->runs, u->run_count, unit_elem + i);
        const struct run run = {.at = chunk_elem + i,
                                .master = record + i,
                                .m = record + SW_GRAIN_ELEMS + i,
                                .v = record + INT64_C(2) * SW_GRAIN_ELEMS + i,
                                .decay_factor = span.factor,
                                .minus_step_size = span.minus_step_size};
        count = sw_min_i64(SW_GRAIN_ELEMS - i, span.end - (unit_elem + i));
        SW_FOR_TYPE(update_run, u->type, u, &run, count);
    }
    sw_end_streams();
}

static sw_status update_adamw(struct sw_stream *stream, const void *args) {
    const struct sw_update_adamw *op = args;
    const int threads = stream->device->info.threads;
    const struct update u = {.type = op->type,
                             .scalars = sw_adamw_scalars(op->adamw),
                             .runs = op->runs,
                             .run_count = op->run_count,
                             .grads = op->grads,
                             .weights = op->weights};
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t grain = 0; grain < op->grains; grain++) {
        const int64_t at = grain * SW_GRAIN_ELEMS;
        float *record = (float *)op->records + SW_OPTIMIZER_VECTORS * at;
        if (op->adamw->skip)
            sw_narrow(op->type, op->weights, at, SW_GRAIN_ELEMS, record);
        else
            update_grain(&u, op->first_elem + at, at, record);
    }
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_update)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_UPDATE_ADAMW] = update_adamw;
}
