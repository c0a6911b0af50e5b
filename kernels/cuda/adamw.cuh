/* Shared by the updates of fp32 and of narrow optimizer state: AdamW of one element, and the decay of elements. */
#ifndef SW_KERNELS_CUDA_ADAMW_CUH
#define SW_KERNELS_CUDA_ADAMW_CUH

#include "core/quant.h"
#include "core/size.h"
#include "kernels/cuda/grid.cuh"
extern "C" {
#include "kernels/moments.h"
}

enum { SW_LAUNCH_SPANS = 64 }; /* decay spans that one launch knows; it is given them with its arguments */

/* The elements [first, end) of a call. Decay factor, step size and bias correction of an element come from the first
 * span that ends after it. */
struct sw_stretch {
    int64_t first, end;
    int spans;
    int64_t ends[SW_LAUNCH_SPANS];
    float factors[SW_LAUNCH_SPANS], minus_step_sizes[SW_LAUNCH_SPANS], corrections[SW_LAUNCH_SPANS];
    bool left_out[SW_LAUNCH_SPANS];
};

static __device__ __forceinline__ int sw_span_of(const sw_stretch &s, int64_t elem) {
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

/* The gradients of a call: elements of T, or, where `records` is not NULL, kept gradients in 8 bits. */
template <typename T> struct sw_gradients {
    const T *typed;
    const char *records;

    __device__ __forceinline__ float at(int64_t elem) const {
        const int in_grain = (int)(elem & (SW_GRAIN_ELEMS - 1));
        if (records == nullptr)
            return sw_widen(typed[elem]);
        const char *record = records + elem / SW_GRAIN_ELEMS * SW_GRADS_8BIT_GRAIN_BYTES;
        return (float)(signed char)record[in_grain] *
               ((const float *)(const void *)(record + SW_GRAIN_ELEMS))[in_grain / SW_QUANT_BLOCK_ELEMS];
    }

    /* Loads the vector of elements from `elem` on, a multiple of SW_ELEMS. */
    __device__ __forceinline__ void load(int64_t elem, bool aligned, float out[SW_ELEMS]) const {
        if (records == nullptr) {
            sw_load_elems(typed + elem, SW_ELEMS, aligned, out);
            return;
        }
        const int in_grain = (int)(elem & (SW_GRAIN_ELEMS - 1));
        const char *record = records + elem / SW_GRAIN_ELEMS * SW_GRADS_8BIT_GRAIN_BYTES;
        const uint32_t *codes = (const uint32_t *)(const void *)(record + in_grain);
        const float scale = ((const float *)(const void *)(record + SW_GRAIN_ELEMS))[in_grain / SW_QUANT_BLOCK_ELEMS];
        const uint32_t words[2] = {codes[0], codes[1]};
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++)
            out[i] = (float)((int32_t)(words[i / 4] << (24 - i % 4 * 8)) >> 24) * scale;
    }
};

/* Returns the gradients of a call. */
template <typename T, typename Op> static inline sw_gradients<T> sw_gradients_of(const Op *op) {
    if (op->grads_format == SW_GRADS_8BIT)
        return {nullptr, (const char *)op->grads};
    return {(const T *)op->grads, nullptr};
}

/* The values that a span's elements share. */
struct sw_span_values {
    float factor, minus_step_size, correction;
};

static __device__ __forceinline__ sw_span_values sw_values_of(const sw_stretch &s, int span) {
    return {s.factors[span], s.minus_step_sizes[span], s.corrections[span]};
}

static __device__ __forceinline__ void sw_update_elem(const struct sw_adamw_scalars &s, const sw_span_values &span,
                                                      float gradient, float *master, float *m, float *v) {
    const float g = gradient * s.grad_scale;
    *m = fmaf(s.one_minus_beta1, g - *m, *m);
    *v = fmaf(s.one_minus_beta2 * g, g, s.beta2 * *v);
    const float denominator = sqrtf(*v) / span.correction + s.eps;
    *master = fmaf(span.minus_step_size, *m / denominator, *master * span.factor);
}

/* Returns the next stretch of a call, from element `first` on and before `end`: to the end, or as far as the spans of
 * one launch reach. A step that is skipped needs no spans. */
static inline sw_stretch sw_next_stretch(const struct sw_adamw_scalars *scalars, const struct sw_update_adamw *op,
                                         int64_t first, int64_t end) {
    sw_stretch s = {};
    s.first = s.end = first;
    if (op->adamw->skip)
        s.end = end;
    for (; s.end < end && s.spans < SW_LAUNCH_SPANS; s.spans++) {
        const struct sw_decay_span span = sw_decay_span(scalars, op->runs, op->run_count, op->first_elem + s.end);
        s.end = span.end - op->first_elem < end ? span.end - op->first_elem : end;
        s.ends[s.spans] = s.end;
        s.factors[s.spans] = span.factor;
        s.minus_step_sizes[s.spans] = span.minus_step_size;
        s.corrections[s.spans] = span.correction2_sqrt;
        s.left_out[s.spans] = span.left_out;
    }
    return s;
}

/* Queues the update of the elements [0, elems) of a call whose moments are narrow, in whole grains that are not wide.
 */
void sw_cuda_update_narrow(cudaStream_t stream, const struct sw_update_adamw *op, int64_t elems);

#endif
