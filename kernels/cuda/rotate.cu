/* Rotary positions in place: a thread turns SW_ELEMS pairs of one head. */
#include "kernels/cuda/grid.cuh"

namespace {
/* A row is a token, and its columns are the first halves of all heads in a row, each of `padded` columns. These
 * are whole vectors, and the last one may have fewer than SW_ELEMS pairs. */
template <typename T> struct rotating {
    enum { VECTORS = 1 };
    struct held {
        float first[SW_ELEMS], second[SW_ELEMS], cosines[SW_ELEMS], sines[SW_ELEMS];
    };
    sw_rotation shape;
    unsigned padded;
    const float *table;
    T *x;

    /* Returns the first pair of a column's vector within its head, and in *at its address. */
    __device__ __forceinline__ int pair_of(int64_t row, int64_t col, T **at) const {
        const unsigned column = (unsigned)col, head = column / padded, pair = column - head * padded;
        *at = x + row * shape.stride + head * shape.head_dim + pair;
        return (int)pair;
    }
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t, bool aligned, held &h) const {
        T *at;
        const int half = (int)shape.head_dim / 2, pair = pair_of(row, col, &at);
        const int64_t count = aligned ? SW_ELEMS : half - pair, token = row % shape.seq;
        const float *angles = table + token * shape.head_dim + pair;
        sw_load_elems(at, count, aligned, h.first);
        sw_load_elems(at + half, count, aligned, h.second);
        sw_load_elems(angles, count, aligned, h.cosines);
        sw_load_elems(angles + half, count, aligned, h.sines);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t, bool aligned, held &h) const {
        T *at;
        const int half = (int)shape.head_dim / 2, pair = pair_of(row, col, &at);
        const int64_t count = aligned ? SW_ELEMS : half - pair;
        for (int e = 0; e < SW_ELEMS; e++) {
            const float sine = shape.back ? -h.sines[e] : h.sines[e], a = h.first[e], b = h.second[e];
            h.first[e] = fmaf(a, h.cosines[e], -(b * sine));
            h.second[e] = fmaf(b, h.cosines[e], a * sine);
        }
        sw_store_elems(at, count, aligned, h.first);
        sw_store_elems(at + half, count, aligned, h.second);
    }
};
} // namespace

template <typename T> static void rotate(cudaStream_t stream, const sw_rotate *op) {
    const sw_rotation shape = *op->shape;
    const int64_t half = shape.head_dim / 2, padded = sw_vectors(half) * SW_ELEMS;
    const bool aligned =
        half % SW_ELEMS == 0 && shape.stride % SW_ELEMS == 0 && sw_is_aligned(op->table) && sw_is_aligned(op->x);
    const rotating<T> map = {shape, (unsigned)padded, op->table, (T *)op->x};
    sw_for_rows(stream, shape.batch * shape.seq, shape.heads * padded, map, aligned);
}

void sw_cuda_rotate(cudaStream_t stream, const void *args) {
    const sw_rotate *op = (const sw_rotate *)args;
    if (op->shape->batch * op->shape->seq > 0)
        SW_FOR_TYPE(op->type, rotate, stream, op);
}
