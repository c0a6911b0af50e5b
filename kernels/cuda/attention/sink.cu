/* Attention sinks: an op behind attention, with a warp for each head of a token, and the gradient of the sinks, with a
 * block for each head. */
#include "kernels/cuda/rows.cuh"

enum { SINK_THREADS = 1024, SINK_WARPS = SINK_THREADS / SW_WARP };

namespace {
/* The numbers of a shape that the kernels need, as device code takes them. */
struct sink_shape {
    int64_t rows, seq, heads, head_dim, o_stride;
    __device__ __forceinline__ int64_t o_at(int64_t row, int64_t head) const {
        return row * o_stride + head * head_dim;
    }
    __device__ __forceinline__ int64_t lse_at(int64_t row, int64_t head) const {
        return (row / seq * heads + head) * seq + row % seq;
    }
};
} // namespace

static sink_shape sink_shape_of(const sw_attention *shape) {
    return {shape->batch * shape->seq, shape->seq, shape->heads, shape->head_dim, shape->o_stride};
}

/* The first lane reads the logarithm for all, because it also writes it. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    sink_kernel(sink_shape shape, const T *sinks, T *o, float *log_sum_exp) {
    const int64_t index = (int64_t)blockIdx.x * (SW_BLOCK_THREADS / SW_WARP) + threadIdx.x / SW_WARP;
    if (index >= shape.rows * shape.heads)
        return;
    const int lane = (int)threadIdx.x % SW_WARP;
    const int64_t row = index / shape.heads, head = index % shape.heads, lse_at = shape.lse_at(row, head);
    const float lse = sw_warp_sum(lane == 0 ? log_sum_exp[lse_at] : 0.0f), sink = sw_widen(sinks[head]);
    const float after = (lse > sink ? lse : sink) + logf(1.0f + expf(-fabsf(lse - sink)));
    const float factor = expf(lse - after);
    T *const to = o + shape.o_at(row, head);
    for (int64_t i = lane; i < shape.head_dim; i += SW_WARP)
        sw_round(factor * sw_widen(to[i]), &to[i]);
    if (lane == 0)
        log_sum_exp[lse_at] = after;
}

template <typename T> static void sink_forward(cudaStream_t stream, const sw_sink_forward *op) {
    const sink_shape shape = sink_shape_of(op->shape);
    SW_LAUNCH(sink_kernel<T>, sw_blocks(shape.rows * shape.heads, SW_BLOCK_THREADS / SW_WARP), SW_BLOCK_THREADS, 0,
              stream, shape, (const T *)op->sink, (T *)op->o, op->log_sum_exp);
}

void sw_cuda_sink_forward(cudaStream_t stream, const void *args) {
    const sw_sink_forward *op = (const sw_sink_forward *)args;
    SW_FOR_TYPE(op->type, sink_forward, stream, op);
}

/* Each warp sums every SINK_WARPS-th token, and the first thread adds the warps' sums in their order. */
template <typename T>
static __global__ void __launch_bounds__(SINK_THREADS)
    sink_back_kernel(sink_shape shape, const T *sinks, const T *o, const T *d_o, const float *log_sum_exp, float *acc) {
    SW_SHARED(float, sums, [SINK_WARPS]);
    const int64_t head = blockIdx.x;
    const int lane = (int)threadIdx.x % SW_WARP, warp = (int)threadIdx.x / SW_WARP;
    const float sink = sw_widen(sinks[head]);
    float sum = 0.0f;
    for (int64_t row = warp; row < shape.rows; row += SINK_WARPS) {
        const int64_t at = shape.o_at(row, head);
        float product = 0.0f;
        for (int64_t i = at + lane; i < at + shape.head_dim; i += SW_WARP)
            product = fmaf(sw_widen(o[i]), sw_widen(d_o[i]), product);
        sum = fmaf(expf(sink - log_sum_exp[shape.lse_at(row, head)]), product, sum);
    }
    sum = sw_warp_sum(sum);
    if (lane == 0)
        sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    float total = 0.0f;
    for (int i = 0; i < SINK_WARPS; i++)
        total += sums[i];
    acc[head] -= total;
}

template <typename T> static void sink_backward(cudaStream_t stream, const sw_sink_backward *op) {
    SW_LAUNCH(sink_back_kernel<T>, (unsigned)op->shape->heads, SINK_THREADS, 0, stream, sink_shape_of(op->shape),
              (const T *)op->sink, (const T *)op->o, (const T *)op->d_o, op->log_sum_exp, op->acc);
}

void sw_cuda_sink_backward(cudaStream_t stream, const void *args) {
    const sw_sink_backward *op = (const sw_sink_backward *)args;
    SW_FOR_TYPE(op->type, sink_backward, stream, op);
}
