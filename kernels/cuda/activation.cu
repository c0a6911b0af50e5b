/* Activations, plain and gated, in one pass over memory. The curve is a constant of each kernel. */
#include "kernels/cuda/curves.cuh"
#include "kernels/cuda/grid.cuh"

/* Calls launch<T, curve>(arguments...) with the curve of an sw_activation. */
#define SW_FOR_CURVE(which, T, launch, ...)                                                                            \
    ((which) == SW_RELU       ? launch<T, SW_RELU>(__VA_ARGS__)                                                        \
     : (which) == SW_SILU     ? launch<T, SW_SILU>(__VA_ARGS__)                                                        \
     : (which) == SW_GELU_ERF ? launch<T, SW_GELU_ERF>(__VA_ARGS__)                                                    \
                              : launch<T, SW_GELU_TANH>(__VA_ARGS__))

namespace {
template <typename T, sw_activation WHICH> struct activation_forward {
    enum { VECTORS = sizeof(T) == sizeof(uint16_t) ? 4 : 2 };
    struct held {
        float values[SW_ELEMS];
    };
    const T *x;
    T *y;
    __device__ __forceinline__ void load(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_load_elems(x + at, count, aligned, h.values);
    }
    __device__ __forceinline__ void store(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        for (int i = 0; i < SW_ELEMS; i++)
            h.values[i] = sw_curve(WHICH, h.values[i]);
        sw_store_elems(y + at, count, aligned, h.values);
    }
};

template <typename T, sw_activation WHICH> struct activation_backward {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS], gradients[SW_ELEMS];
    };
    const T *x, *dy;
    T *dx, *activated;
    __device__ __forceinline__ void load(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_load_elems(x + at, count, aligned, h.values);
        sw_load_elems(dy + at, count, aligned, h.gradients);
    }
    __device__ __forceinline__ void store(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        for (int i = 0; i < SW_ELEMS; i++)
            h.gradients[i] *= sw_slope(WHICH, h.values[i]);
        sw_store_elems(dx + at, count, aligned, h.gradients);
        if (activated == NULL)
            return;
        for (int i = 0; i < SW_ELEMS; i++)
            h.values[i] = sw_curve(WHICH, h.values[i]);
        sw_store_elems(activated + at, count, aligned, h.values);
    }
};

template <typename T, sw_activation WHICH> struct gated_forward {
    enum { VECTORS = 2 };
    struct held {
        float gates[SW_ELEMS], values[SW_ELEMS];
    };
    int64_t cols;
    const T *x;
    T *y;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const T *gates = x + row * 2 * cols + col;
        sw_load_elems(gates, count, aligned, h.gates);
        sw_load_elems(gates + cols, count, aligned, h.values);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        for (int i = 0; i < SW_ELEMS; i++)
            h.values[i] *= sw_curve(WHICH, h.gates[i]);
        sw_store_elems(y + row * cols + col, count, aligned, h.values);
    }
};

template <typename T, sw_activation WHICH> struct gated_backward {
    enum { VECTORS = 2 };
    struct held {
        float gates[SW_ELEMS], values[SW_ELEMS], gradients[SW_ELEMS];
    };
    int64_t cols;
    const T *x, *dy;
    T *dx, *activated;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const T *gates = x + row * 2 * cols + col;
        sw_load_elems(gates, count, aligned, h.gates);
        sw_load_elems(gates + cols, count, aligned, h.values);
        sw_load_elems(dy + row * cols + col, count, aligned, h.gradients);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        float results[SW_ELEMS];
        for (int i = 0; i < SW_ELEMS; i++) {
            const float curve = sw_curve(WHICH, h.gates[i]);
            results[i] = h.values[i] * curve;
            h.values[i] *= h.gradients[i] * sw_slope(WHICH, h.gates[i]);
            h.gradients[i] *= curve;
        }
        T *gates = dx + row * 2 * cols + col;
        sw_store_elems(gates, count, aligned, h.values);
        sw_store_elems(gates + cols, count, aligned, h.gradients);
        if (activated != NULL)
            sw_store_elems(activated + row * cols + col, count, aligned, results);
    }
};
} // namespace

template <typename T, sw_activation WHICH>
static void forward_of(cudaStream_t stream, int64_t elems, const void *x, void *y) {
    const activation_forward<T, WHICH> op = {(const T *)x, (T *)y};
    sw_for_rows(stream, 1, elems, op, sw_is_aligned(x) && sw_is_aligned(y));
}

template <typename T>
static void forward(cudaStream_t stream, sw_activation which, int64_t elems, const void *x, void *y) {
    SW_FOR_CURVE(which, T, forward_of, stream, elems, x, y);
}

void sw_cuda_activation_forward(cudaStream_t stream, const void *args) {
    const sw_activation_forward *op = (const sw_activation_forward *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, forward, stream, op->which, op->elems, op->x, op->y);
}

template <typename T, sw_activation WHICH>
static void backward_of(cudaStream_t stream, int64_t elems, const void *x, const void *dy, void *dx, void *activated) {
    const activation_backward<T, WHICH> op = {(const T *)x, (const T *)dy, (T *)dx, (T *)activated};
    sw_for_rows(stream, 1, elems, op,
                sw_is_aligned(x) && sw_is_aligned(dy) && sw_is_aligned(dx) && sw_is_aligned(activated));
}

template <typename T>
static void backward(cudaStream_t stream, sw_activation which, int64_t elems, const void *x, const void *dy, void *dx,
                     void *activated) {
    SW_FOR_CURVE(which, T, backward_of, stream, elems, x, dy, dx, activated);
}

void sw_cuda_activation_backward(cudaStream_t stream, const void *args) {
    const sw_activation_backward *op = (const sw_activation_backward *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, backward, stream, op->which, op->elems, op->x, op->dy, op->dx, op->activated);
}

template <typename T, sw_activation WHICH>
static void gated_forward_of(cudaStream_t stream, int64_t rows, int64_t cols, const void *x, void *y) {
    const gated_forward<T, WHICH> op = {cols, (const T *)x, (T *)y};
    sw_for_rows(stream, rows, cols, op, cols % SW_ELEMS == 0 && sw_is_aligned(x) && sw_is_aligned(y));
}

template <typename T>
static void gate(cudaStream_t stream, sw_activation which, int64_t rows, int64_t cols, const void *x, void *y) {
    SW_FOR_CURVE(which, T, gated_forward_of, stream, rows, cols, x, y);
}

void sw_cuda_gated_forward(cudaStream_t stream, const void *args) {
    const sw_gated_forward *op = (const sw_gated_forward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, gate, stream, op->which, op->rows, op->cols, op->x, op->y);
}

template <typename T, sw_activation WHICH>
static void gated_backward_of(cudaStream_t stream, int64_t rows, int64_t cols, const void *x, const void *dy, void *dx,
                              void *activated) {
    const gated_backward<T, WHICH> op = {cols, (const T *)x, (const T *)dy, (T *)dx, (T *)activated};
    const bool aligned =
        cols % SW_ELEMS == 0 && sw_is_aligned(x) && sw_is_aligned(dy) && sw_is_aligned(dx) && sw_is_aligned(activated);
    sw_for_rows(stream, rows, cols, op, aligned);
}

template <typename T>
static void gate_backward(cudaStream_t stream, sw_activation which, int64_t rows, int64_t cols, const void *x,
                          const void *dy, void *dx, void *activated) {
    SW_FOR_CURVE(which, T, gated_backward_of, stream, rows, cols, x, dy, dx, activated);
}

void sw_cuda_gated_backward(cudaStream_t stream, const void *args) {
    const sw_gated_backward *op = (const sw_gated_backward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, gate_backward, stream, op->which, op->rows, op->cols, op->x, op->dy, op->dx,
                    op->activated);
}
