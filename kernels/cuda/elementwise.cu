/* Sums and casts of whole tensors in one pass over memory. */
#include "kernels/cuda/grid.cuh"

namespace {
template <typename T> struct adding {
    enum { VECTORS = 2 };
    struct held {
        float a[SW_ELEMS], b[SW_ELEMS];
    };
    const T *a, *b;
    T *y;
    __device__ __forceinline__ void load(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_load_elems(a + at, count, aligned, h.a);
        sw_load_elems(b + at, count, aligned, h.b);
    }
    __device__ __forceinline__ void store(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        for (int i = 0; i < SW_ELEMS; i++)
            h.a[i] += h.b[i];
        sw_store_elems(y + at, count, aligned, h.a);
    }
};

template <typename From, typename To> struct casting {
    enum { VECTORS = sizeof(From) == sizeof(uint16_t) ? 4 : 2 };
    struct held {
        float values[SW_ELEMS];
    };
    const From *from;
    To *to;
    __device__ __forceinline__ void load(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_load_elems(from + at, count, aligned, h.values);
    }
    __device__ __forceinline__ void store(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_store_elems(to + at, count, aligned, h.values);
    }
};
} // namespace

template <typename T> static void add(cudaStream_t stream, const sw_add *op) {
    const adding<T> map = {(const T *)op->a, (const T *)op->b, (T *)op->y};
    sw_for_rows(stream, 1, op->elems, map, sw_is_aligned(op->a) && sw_is_aligned(op->b) && sw_is_aligned(op->y));
}

void sw_cuda_add(cudaStream_t stream, const void *args) {
    const sw_add *op = (const sw_add *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, add, stream, op);
}

template <typename From, typename To, typename Op> static void cast(cudaStream_t stream, const Op *op) {
    const casting<From, To> map = {(const From *)op->from, (To *)op->to};
    sw_for_rows(stream, 1, op->elems, map, sw_is_aligned(op->from) && sw_is_aligned(op->to));
}

template <typename To> static void cast_from_f32(cudaStream_t stream, const sw_cast_from_f32 *op) {
    cast<float, To>(stream, op);
}

void sw_cuda_cast_from_f32(cudaStream_t stream, const void *args) {
    const sw_cast_from_f32 *op = (const sw_cast_from_f32 *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, cast_from_f32, stream, op);
}

template <typename From> static void cast_to_f32(cudaStream_t stream, const sw_cast_to_f32 *op) {
    cast<From, float>(stream, op);
}

void sw_cuda_cast_to_f32(cudaStream_t stream, const void *args) {
    const sw_cast_to_f32 *op = (const sw_cast_to_f32 *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, cast_to_f32, stream, op);
}
