/* Sums, casts and dropout of whole tensors in one pass over memory. */
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/philox.cuh"

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

/* A vector has the words of two counters, if it begins at one. Rows are those of a part (sw_dropout), or there is one.
 */
template <typename T> struct dropping {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS];
    };
    const T *x;
    T *y;
    uint64_t seed, stream;
    uint32_t threshold;
    float scale;
    int64_t cols, first_col, width;
    __device__ __forceinline__ void load(int64_t row, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_load_elems(x + row * cols + at, count, aligned, h.values);
    }
    __device__ __forceinline__ void drop_one(uint64_t number, float *value) const {
        const sw_random drawn = sw_draw(seed, stream, number / 4);
        const uint32_t low = number % 2 == 0 ? drawn.word[0] : drawn.word[1];
        const uint32_t high = number % 2 == 0 ? drawn.word[2] : drawn.word[3];
        *value = (number % 4 < 2 ? low : high) >= threshold ? *value * scale : 0.0f;
    }
    __device__ __forceinline__ void drop(uint64_t number, held &h) const {
        SW_UNROLL
        for (int half = 0; half < 2; half++) {
            const sw_random drawn = sw_draw(seed, stream, number / 4 + (uint64_t)half);
            SW_UNROLL
            for (int i = 0; i < 4; i++) {
                float *value = &h.values[4 * half + i];
                *value = drawn.word[i] >= threshold ? *value * scale : 0.0f;
            }
        }
    }
    __device__ __forceinline__ void store(int64_t row, int64_t at, int64_t count, bool aligned, held &h) const {
        const uint64_t number = (uint64_t)(row * width + first_col + at);
        if (number % 4 == 0)
            drop(number, h);
        else
            for (int i = 0; i < SW_ELEMS; i++)
                drop_one(number + (uint64_t)i, &h.values[i]);
        sw_store_elems(y + row * cols + at, count, aligned, h.values);
    }
};
static_assert(SW_ELEMS == 8, "a vector has the words of two counters");

template <typename From> struct widening {
    enum { VECTORS = sizeof(From) == sizeof(uint16_t) ? 4 : 2 };
    struct held {
        float values[SW_ELEMS];
    };
    const From *from;
    float *to;
    __device__ __forceinline__ void load(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_load_elems(from + at, count, aligned, h.values);
    }
    __device__ __forceinline__ void store(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_store_elems(to + at, count, aligned, h.values);
    }
};

template <typename To> struct narrowing {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS];
    };
    const float *from;
    To *to;
    float scale;
    int64_t cols;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        sw_load_elems(from + row * cols + col, count, aligned, h.values);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        /* A product would give a NaN another payload. */
        for (int i = 0; scale != 1.0f && i < SW_ELEMS; i++)
            h.values[i] *= scale;
        sw_store_elems(to + row * cols + col, count, aligned, h.values);
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

template <typename T> static void dropout(cudaStream_t stream, const sw_dropout *op) {
    const bool whole = op->cols == 0;
    const int64_t cols = whole ? op->elems : op->cols;
    const dropping<T> map = {(const T *)op->x,         (T *)op->y,           op->seed, op->stream,
                             sw_dropout_threshold(op), sw_dropout_scale(op), cols,     whole ? 0 : op->first_col,
                             whole ? cols : op->width};
    sw_for_rows(stream, op->elems / cols, cols, map,
                sw_is_aligned(op->x) && sw_is_aligned(op->y) && (whole || cols % SW_ELEMS == 0));
}

void sw_cuda_dropout(cudaStream_t stream, const void *args) {
    const sw_dropout *op = (const sw_dropout *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, dropout, stream, op);
}

template <typename To> static void cast_from_f32(cudaStream_t stream, const sw_cast_from_f32 *op) {
    const bool all = op->run.first == NULL;
    const int64_t cols = all ? op->elems : op->cols;
    const narrowing<To> map = {op->from, (To *)op->to, sw_cast_scale(op), cols};
    sw_for_run(stream, op->run, op->elems / cols, cols, map,
               sw_is_aligned(op->from) && sw_is_aligned(op->to) && (all || cols % SW_ELEMS == 0));
}

void sw_cuda_cast_from_f32(cudaStream_t stream, const void *args) {
    const sw_cast_from_f32 *op = (const sw_cast_from_f32 *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, cast_from_f32, stream, op);
}

template <typename From> static void cast_to_f32(cudaStream_t stream, const sw_cast_to_f32 *op) {
    const widening<From> map = {(const From *)op->from, op->to};
    sw_for_rows(stream, 1, op->elems, map, sw_is_aligned(op->from) && sw_is_aligned(op->to));
}

void sw_cuda_cast_to_f32(cudaStream_t stream, const void *args) {
    const sw_cast_to_f32 *op = (const sw_cast_to_f32 *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, cast_to_f32, stream, op);
}
