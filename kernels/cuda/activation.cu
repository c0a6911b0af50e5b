/* Activations, plain and gated, in one pass over memory. The curve is a constant of each kernel; curves and slopes
 * follow kernels/ref/elementwise.c, in fp32. */
#include "kernels/cuda/grid.cuh"

#define SW_GELU_CUBIC 0.044715f
#define SW_SQRT_2_OVER_PI 0.797884560802865356f
#define SW_SQRT_HALF 0.707106781186547524f
#define SW_HALF_2_OVER_SQRT_PI 0.564189583547756287f

static __device__ __forceinline__ float sw_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* 2u, where gelu's tanh form is x·(1 + tanh(u))/2 = x·sigmoid(2u). */
static __device__ __forceinline__ float sw_gelu_argument(float x) {
    return 2.0f * SW_SQRT_2_OVER_PI * (x + SW_GELU_CUBIC * x * x * x);
}

static __device__ __forceinline__ float sw_curve(sw_activation which, float x) {
    switch (which) {
    case SW_RELU: return x > 0.0f || x != x ? x : 0.0f;
    case SW_SILU: return x / (1.0f + expf(-x));
    case SW_GELU_ERF: return 0.5f * x * erfcf(-x * SW_SQRT_HALF);
    default: return x / (1.0f + expf(-sw_gelu_argument(x)));
    }
}

/* The slope of x·s(x) where s is the sigmoid of something of slope `inner`. */
static __device__ __forceinline__ float sw_gate_slope(float x, float s, float inner) {
    return s + x * s * (1.0f - s) * inner;
}

static __device__ __forceinline__ float sw_slope(sw_activation which, float x) {
    switch (which) {
    case SW_RELU: return x > 0.0f ? 1.0f : 0.0f;
    case SW_SILU: return sw_gate_slope(x, sw_sigmoid(x), 1.0f);
    case SW_GELU_ERF:
        return 0.5f * erfcf(-x * SW_SQRT_HALF) + x * expf(-0.5f * x * x) * SW_HALF_2_OVER_SQRT_PI * SW_SQRT_HALF;
    default:
        return sw_gate_slope(x, sw_sigmoid(sw_gelu_argument(x)),
                             2.0f * SW_SQRT_2_OVER_PI * (1.0f + 3.0f * SW_GELU_CUBIC * x * x));
    }
}

/* Calls launch<T, curve>(stream, op) with the type and the curve of an op's arguments. */
#define SW_FOR_CURVE(T, launch, stream, op)                                                                            \
    ((op)->which == SW_RELU       ? launch<T, SW_RELU>(stream, op)                                                     \
     : (op)->which == SW_SILU     ? launch<T, SW_SILU>(stream, op)                                                     \
     : (op)->which == SW_GELU_ERF ? launch<T, SW_GELU_ERF>(stream, op)                                                 \
                                  : launch<T, SW_GELU_TANH>(stream, op))
#define SW_FOR_TYPE_AND_CURVE(launch, stream, op)                                                                      \
    ((op)->type == SW_F32    ? SW_FOR_CURVE(float, launch, stream, op)                                                 \
     : (op)->type == SW_BF16 ? SW_FOR_CURVE(sw_cuda_bf16, launch, stream, op)                                          \
                             : SW_FOR_CURVE(sw_cuda_f16, launch, stream, op))

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

template <typename T, sw_activation WHICH> static void forward(cudaStream_t stream, const sw_activation_forward *op) {
    const activation_forward<T, WHICH> map = {(const T *)op->x, (T *)op->y};
    sw_for_rows(stream, 1, op->elems, map, sw_is_aligned(op->x) && sw_is_aligned(op->y));
}

void sw_cuda_activation_forward(cudaStream_t stream, const void *args) {
    const sw_activation_forward *op = (const sw_activation_forward *)args;
    if (op->elems > 0)
        SW_FOR_TYPE_AND_CURVE(forward, stream, op);
}

template <typename T, sw_activation WHICH> static void backward(cudaStream_t stream, const sw_activation_backward *op) {
    const activation_backward<T, WHICH> map = {(const T *)op->x, (const T *)op->dy, (T *)op->dx, (T *)op->activated};
    sw_for_rows(stream, 1, op->elems, map,
                sw_is_aligned(op->x) && sw_is_aligned(op->dy) && sw_is_aligned(op->dx) && sw_is_aligned(op->activated));
}

void sw_cuda_activation_backward(cudaStream_t stream, const void *args) {
    const sw_activation_backward *op = (const sw_activation_backward *)args;
    if (op->elems > 0)
        SW_FOR_TYPE_AND_CURVE(backward, stream, op);
}

template <typename T, sw_activation WHICH> static void gate(cudaStream_t stream, const sw_gated_forward *op) {
    const gated_forward<T, WHICH> map = {op->cols, (const T *)op->x, (T *)op->y};
    sw_for_run(stream, op->run, op->rows, op->cols, map,
               op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->y));
}

void sw_cuda_gated_forward(cudaStream_t stream, const void *args) {
    const sw_gated_forward *op = (const sw_gated_forward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE_AND_CURVE(gate, stream, op);
}

template <typename T, sw_activation WHICH> static void gate_backward(cudaStream_t stream, const sw_gated_backward *op) {
    const gated_backward<T, WHICH> map = {op->cols, (const T *)op->x, (const T *)op->dy, (T *)op->dx,
                                          (T *)op->activated};
    const bool aligned = op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->dy) &&
                         sw_is_aligned(op->dx) && sw_is_aligned(op->activated);
    sw_for_run(stream, op->run, op->rows, op->cols, map, aligned);
}

void sw_cuda_gated_backward(cudaStream_t stream, const void *args) {
    const sw_gated_backward *op = (const sw_gated_backward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE_AND_CURVE(gate_backward, stream, op);
}

/* Gates and values that lie side by side. */
static __device__ __forceinline__ float sw_clamped_gate(float gate) {
    return gate > SW_CLAMPED_MOST ? SW_CLAMPED_MOST : gate;
}

static __device__ __forceinline__ bool sw_is_cut(float value) {
    return value > SW_CLAMPED_MOST || value < -SW_CLAMPED_MOST;
}

static __device__ __forceinline__ float sw_clamped_value(float value) {
    return sw_is_cut(value) ? (value > 0.0f ? SW_CLAMPED_MOST : -SW_CLAMPED_MOST) : value;
}

namespace {
/* The pairs of a vector of results, in two vectors. */
struct held_pairs {
    float pairs[2][SW_ELEMS];
    __device__ __forceinline__ float gate(int i) const {
        return pairs[2 * i / SW_ELEMS][2 * i % SW_ELEMS];
    }
    __device__ __forceinline__ float value(int i) const {
        return pairs[2 * i / SW_ELEMS][2 * i % SW_ELEMS + 1];
    }
};

template <typename T> struct clamped_forward {
    enum { VECTORS = 2 };
    typedef held_pairs held;
    int64_t cols;
    const T *x;
    T *y;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const T *from = x + 2 * (row * cols + col);
        sw_load_elems(from, 2 * count, aligned, h.pairs[0]);
        sw_load_elems(from + SW_ELEMS, 2 * count - SW_ELEMS, aligned, h.pairs[1]);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        float results[SW_ELEMS];
        for (int i = 0; i < SW_ELEMS; i++) {
            const float gate = sw_clamped_gate(h.gate(i));
            results[i] = gate * sw_sigmoid(SW_CLAMPED_SLOPE * gate) * (sw_clamped_value(h.value(i)) + 1.0f);
        }
        sw_store_elems(y + row * cols + col, count, aligned, results);
    }
};

template <typename T> struct clamped_backward {
    enum { VECTORS = 1 };
    struct held {
        held_pairs x;
        float gradients[SW_ELEMS];
    };
    int64_t cols;
    const T *x, *dy;
    T *dx;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const T *from = x + 2 * (row * cols + col);
        sw_load_elems(from, 2 * count, aligned, h.x.pairs[0]);
        sw_load_elems(from + SW_ELEMS, 2 * count - SW_ELEMS, aligned, h.x.pairs[1]);
        sw_load_elems(dy + row * cols + col, count, aligned, h.gradients);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        float results[2][SW_ELEMS];
        for (int i = 0; i < SW_ELEMS; i++) {
            const float gate = sw_clamped_gate(h.x.gate(i)), open = sw_sigmoid(SW_CLAMPED_SLOPE * gate);
            const float slope = sw_gate_slope(gate, open, SW_CLAMPED_SLOPE);
            float *to = &results[2 * i / SW_ELEMS][2 * i % SW_ELEMS];
            to[0] =
                h.x.gate(i) > SW_CLAMPED_MOST ? 0.0f : h.gradients[i] * (sw_clamped_value(h.x.value(i)) + 1.0f) * slope;
            to[1] = sw_is_cut(h.x.value(i)) ? 0.0f : h.gradients[i] * gate * open;
        }
        T *to = dx + 2 * (row * cols + col);
        sw_store_elems(to, 2 * count, aligned, results[0]);
        sw_store_elems(to + SW_ELEMS, 2 * count - SW_ELEMS, aligned, results[1]);
    }
};
} // namespace

template <typename T> static void clamp_pairs(cudaStream_t stream, const sw_clamped_forward *op) {
    const clamped_forward<T> map = {op->cols, (const T *)op->x, (T *)op->y};
    sw_for_run(stream, op->run, op->rows, op->cols, map,
               op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->y));
}

void sw_cuda_clamped_forward(cudaStream_t stream, const void *args) {
    const sw_clamped_forward *op = (const sw_clamped_forward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, clamp_pairs, stream, op);
}

template <typename T> static void clamp_back(cudaStream_t stream, const sw_clamped_backward *op) {
    const clamped_backward<T> map = {op->cols, (const T *)op->x, (const T *)op->dy, (T *)op->dx};
    const bool aligned =
        op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->dy) && sw_is_aligned(op->dx);
    sw_for_run(stream, op->run, op->rows, op->cols, map, aligned);
}

void sw_cuda_clamped_backward(cudaStream_t stream, const void *args) {
    const sw_clamped_backward *op = (const sw_clamped_backward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, clamp_back, stream, op);
}
