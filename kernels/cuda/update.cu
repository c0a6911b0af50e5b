/* AdamW with the bits of kernels/ref/update.c: the same operations, none of them fused but those written out. */
#include "core/size.h"
#include "kernels/cuda/grid.cuh"
extern "C" {
#include "kernels/adamw_scalars.h"
}

enum { LAUNCH_SPANS = 64 }; /* decay spans that one launch knows; it is given them with its arguments */

namespace {
/* The elements [first, end) of a call, and the decay factor and step size of each: those of the first span that ends
 * after it. */
struct stretch {
    int64_t first, end;
    int spans;
    int64_t ends[LAUNCH_SPANS];
    float factors[LAUNCH_SPANS], minus_step_sizes[LAUNCH_SPANS];
};

struct update {
    struct sw_adamw_scalars scalars;
    bool skip, aligned;
    float *records;
};
} // namespace

static __device__ __forceinline__ int span_of(const stretch &s, int64_t elem) {
    int low = 0, high = s.spans - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (s.ends[middle] <= elem)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static __device__ __forceinline__ void update_elem(const struct sw_adamw_scalars &s, float decay_factor,
                                                   float minus_step_size, float gradient, float *master, float *m,
                                                   float *v) {
    const float g = gradient * s.grad_scale;
    *m = fmaf(s.one_minus_beta1, g - *m, *m);
    *v = fmaf(s.one_minus_beta2 * g, g, s.beta2 * *v);
    const float denominator = sqrtf(*v) / s.correction2_sqrt + s.eps;
    *master = fmaf(minus_step_size, *m / denominator, *master * decay_factor);
}

/* Returns the address of a vector's master weights in the optimizer state; the two moments lie one and two grains on.
 */
static __device__ __forceinline__ float *record_at(const update &u, int64_t at) {
    const int64_t in_grain = at & (SW_GRAIN_ELEMS - 1);
    return u.records + (at - in_grain) * SW_OPTIMIZER_VECTORS + in_grain;
}
static_assert((SW_GRAIN_ELEMS & (SW_GRAIN_ELEMS - 1)) == 0, "a grain's elements are counted by the low bits");

/* Updates a whole vector that lies in one span and in aligned memory, as all but a few of a call do. */
template <typename T>
static __device__ __forceinline__ void update_whole(const update &u, float decay_factor, float minus_step_size,
                                                    int64_t at, const T *grads, T *weights) {
    float *record = record_at(u, at), master[SW_ELEMS], m[SW_ELEMS], v[SW_ELEMS], gradients[SW_ELEMS];
    sw_load_whole(record, master);
    sw_load_whole(record + SW_GRAIN_ELEMS, m);
    sw_load_whole(record + 2 * SW_GRAIN_ELEMS, v);
    sw_load_whole(grads + at, gradients);
    for (int i = 0; i < SW_ELEMS; i++)
        update_elem(u.scalars, decay_factor, minus_step_size, gradients[i], &master[i], &m[i], &v[i]);
    sw_store_whole(record, master);
    sw_store_whole(record + SW_GRAIN_ELEMS, m);
    sw_store_whole(record + 2 * SW_GRAIN_ELEMS, v);
    sw_store_whole(weights + at, master);
}

/* Updates the elements [begin, end) of a vector, one by one. */
template <typename T>
static __device__ __forceinline__ void update_part(const update &u, const stretch &s, int64_t at, int begin, int end,
                                                   const T *grads, T *weights) {
    float *record = record_at(u, at);
    for (int i = begin; i < end; i++) {
        float master = record[i];
        if (!u.skip) {
            float *m = &record[SW_GRAIN_ELEMS + i], *v = &record[2 * SW_GRAIN_ELEMS + i];
            const int span = span_of(s, at + i);
            update_elem(u.scalars, s.factors[span], s.minus_step_sizes[span], sw_widen(grads[at + i]), &master, m, v);
            record[i] = master;
        }
        sw_round(master, &weights[at + i]);
    }
}

/* A stretch may start or stop within a vector. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    update_kernel(update u, stretch s, const T *grads, T *weights) {
    const int64_t thread = (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
    const int64_t at = s.first / SW_ELEMS * SW_ELEMS + thread * SW_ELEMS;
    if (at >= s.end)
        return;
    const int begin = at < s.first ? (int)(s.first - at) : 0;
    const int end = s.end - at < SW_ELEMS ? (int)(s.end - at) : (int)SW_ELEMS;
    const int span = u.skip ? 0 : span_of(s, at + begin);
    if (u.aligned && !u.skip && begin == 0 && at + SW_ELEMS <= s.ends[span])
        update_whole(u, s.factors[span], s.minus_step_sizes[span], at, grads, weights);
    else
        update_part(u, s, at, begin, end, grads, weights);
}

/* Returns the next stretch of a call of `elems` elements that starts at unit element first_elem: to the end, or as far
 * as the spans of one launch reach. A step that is skipped needs no spans. */
static stretch next_stretch(const struct sw_adamw_scalars *scalars, bool skip, int64_t first_elem, int64_t first,
                            int64_t elems, const sw_decay_run *runs, int64_t run_count) {
    stretch s = {};
    s.first = s.end = first;
    if (skip)
        s.end = elems;
    for (; s.end < elems && s.spans < LAUNCH_SPANS; s.spans++) {
        const struct sw_decay_span span = sw_decay_span(scalars, runs, run_count, first_elem + s.end);
        s.end = span.end - first_elem < elems ? span.end - first_elem : elems;
        s.ends[s.spans] = s.end;
        s.factors[s.spans] = span.factor;
        s.minus_step_sizes[s.spans] = span.minus_step_size;
    }
    return s;
}

template <typename T>
static void update_stretch(cudaStream_t stream, update u, stretch s, const void *grads, void *weights) {
    const int64_t vectors = (s.end - s.first / SW_ELEMS * SW_ELEMS + SW_ELEMS - 1) / SW_ELEMS;
    SW_LAUNCH(update_kernel<T>, sw_blocks(vectors, SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, u, s,
              (const T *)grads, (T *)weights);
}

void sw_cuda_update_adamw(cudaStream_t stream, const void *args) {
    const sw_update_adamw *op = (const sw_update_adamw *)args;
    const int64_t elems = op->grains * SW_GRAIN_ELEMS;
    const bool aligned =
        sw_is_aligned(op->records) && sw_is_aligned(op->weights) && (op->adamw->skip || sw_is_aligned(op->grads));
    const update u = {sw_adamw_scalars(op->adamw), op->adamw->skip, aligned, (float *)op->records};
    for (int64_t first = 0; first < elems;) {
        const stretch s = next_stretch(&u.scalars, u.skip, op->first_elem, first, elems, op->runs, op->run_count);
        SW_FOR_TYPE(op->type, update_stretch, stream, u, s, op->grads, op->weights);
        first = s.end;
    }
}
