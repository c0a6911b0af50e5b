/* The passes of the Muon update over memory, operation by operation those of kernels/ref/muon.c but for the order in
 * which the norm adds rows; muon.c multiplies between them.
 *
 * A tile of a matrix passes between its tensor and X by way of shared memory, so that both are read and written along
 * their rows. */
#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/muon.h"

#include <assert.h>

enum {
    TILE = SW_MUON_GPU_SIDE,
    TILE_THREAD_ROWS = 8,
    SUM_ROWS = SW_BLOCK_THREADS / SW_MUON_SUMS, /* rows of X whose squares a block sums */
};

namespace {
/* A call's state and gradients. */
struct call {
    char *records;
    int64_t record_bytes;
    float rest, grad_scale; /* 1 - momentum */
    bool aligned, stochastic;
    uint64_t seed, stream;
    int64_t first_elem; /* the call's first element in its unit */
    struct sw_moment_map map;
};

/* Where a tile is: lines and elements of the matrix, and X. */
struct place {
    struct sw_muon_lines lines;
    int64_t stride; /* elements from one row of X to the next */
};
} // namespace

static __device__ __forceinline__ char *record_at(const call &c, int64_t at) {
    return c.records + at / SW_GRAIN_ELEMS * c.record_bytes;
}

static __device__ __forceinline__ int in_grain(int64_t at) {
    return (int)(at & (SW_GRAIN_ELEMS - 1));
}

/* Returns the momentum of an element in its record; M: its type, uint8_t for codes. */
template <typename M> static __device__ __forceinline__ M *momentum_at(const call &c, int64_t at) {
    return (M *)(record_at(c, at) + SW_GRAIN_ELEMS * sizeof(float)) + in_grain(at);
}

/* Returns the scale of the block of codes that holds an element. */
static __device__ __forceinline__ float *scale_at(const call &c, int64_t at) {
    float *scales = (float *)(record_at(c, at) + SW_GRAIN_ELEMS * (sizeof(float) + sizeof(uint8_t)));
    return scales + in_grain(at) / SW_MOMENT_BLOCK_ELEMS;
}

template <typename M> static __device__ __forceinline__ float widen_momentum(const call &, int64_t, const M *from) {
    return sw_widen(*from);
}

static __device__ __forceinline__ float widen_momentum(const call &c, int64_t at, const uint8_t *from) {
    return sw_number_of_m(c.map, *from) * *scale_at(c, at);
}

/* Read a thread's momenta, from the one of element `at` on. */
template <typename M>
static __device__ __forceinline__ void widen_momenta(const call &, int64_t, const M *from, float *to) {
    sw_load_whole(from, to);
}

static __device__ __forceinline__ void widen_momenta(const call &c, int64_t at, const uint8_t *from, float *to) {
    const uint32_t *words = (const uint32_t *)from;
    const float scale = *scale_at(c, at);
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        to[i] = sw_number_of_m(c.map, words[i / 4] >> i % 4 * 8) * scale;
}

/* Returns a momentum moved towards its gradient. */
static __device__ __forceinline__ float approach(const call &c, float momentum, float gradient) {
    return fmaf(c.rest, gradient * c.grad_scale - momentum, momentum);
}

/* Round a thread's momenta, from the one of element `at` on. words: random ones of the warp's block */
static __device__ __forceinline__ void round_momenta(const call &, int64_t, const float *in, const uint32_t *, int,
                                                     float *to) {
    sw_store_whole(to, in);
}

static __device__ __forceinline__ void round_momenta(const call &c, int64_t, const float *in, const uint32_t *words,
                                                     int lane, sw_cuda_bf16 *to) {
    uint32_t pairs[SW_ELEMS / 2] = {};
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++) {
        const uint32_t random = c.stochastic ? sw_random_of(words, lane, i) : 0;
        pairs[i / 2] |= sw_bf16_moment(c.stochastic, in[i], random, 0) << i % 2 * 16;
    }
    sw_store16(to, {pairs[0], pairs[1], pairs[2], pairs[3]});
}

static __device__ __forceinline__ void round_momenta(const call &c, int64_t at, const float *in, const uint32_t *words,
                                                     int lane, uint8_t *to) {
    const float scale = sw_moment_scale(in), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    uint32_t codes[SW_ELEMS / 4] = {};
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++) {
        const uint32_t random = c.stochastic ? sw_random_of(words, lane, i) : 0;
        codes[i / 4] |= sw_code_of_m(c.map, in[i], inverse, c.stochastic, random) << i % 4 * 8;
    }
    SW_UNROLL
    for (int word = 0; word < SW_ELEMS / 4; word++)
        ((uint32_t *)to)[word] = codes[word];
    if (lane == 0)
        *scale_at(c, at) = scale;
}

template <typename T, typename M>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) momentum_kernel(call c, sw_gradients<T> grads) {
    SW_SHARED(uint32_t, words, [SW_MOMENT_WARPS][SW_MOMENT_WORDS]);
    const int warp = threadIdx.x / SW_WARP, lane = threadIdx.x % SW_WARP;
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    M *momenta = momentum_at<M>(c, at);
    float m[SW_ELEMS], gradients[SW_ELEMS];
    widen_momenta(c, at, momenta, m);
    grads.load(at, c.aligned, gradients);
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        m[i] = approach(c, m[i], gradients[i]);
    if (c.stochastic)
        sw_draw_words(c.seed, c.stream, c.first_elem + at - lane * SW_ELEMS, lane, words[warp]);
    __syncwarp();
    round_momenta(c, at, m, words[warp], lane, momenta);
}

template <typename T> static __global__ void __launch_bounds__(SW_BLOCK_THREADS) weights_kernel(call c, T *weights) {
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    float masters[SW_ELEMS];
    sw_load_whole((const float *)record_at(c, at) + in_grain(at), masters);
    sw_store_elems(weights + at, SW_ELEMS, c.aligned, masters);
}

/* Returns the element of a call that is element `elem` of a line. */
static __device__ __forceinline__ int64_t element_at(const call &c, const sw_muon_lines &l, int64_t line,
                                                     int64_t elem) {
    const int64_t skipped = l.turn > 0 ? line / l.turn * l.skip : 0;
    return l.first - c.first_elem + line * l.distance + skipped + elem * l.step;
}

/* Calls body(line, elem, row in the tile, column in the tile) for the elements of a thread in a block's tile. */
template <typename Body> static __device__ __forceinline__ void for_tile(const Body &body) {
    for (int i = threadIdx.y; i < TILE; i += TILE_THREAD_ROWS)
        body((int64_t)blockIdx.y * TILE + i, (int64_t)blockIdx.x * TILE + threadIdx.x, i, (int)threadIdx.x);
}

/* Returns where in X element (i, j) of a block's tile is, by rows of X. */
static __device__ __forceinline__ int64_t in_x(const place &p, int i, int j) {
    const int64_t row = (p.lines.are_rows ? blockIdx.y : blockIdx.x) * (int64_t)TILE + i;
    const int64_t col = (p.lines.are_rows ? blockIdx.x : blockIdx.y) * (int64_t)TILE + j;
    return row * p.stride + col;
}

/* Writes U, with zeros around it. */
template <typename T, typename M>
static __global__ void __launch_bounds__(TILE *TILE_THREAD_ROWS)
    take_kernel(call c, place p, sw_gradients<T> grads, float *to) {
    SW_SHARED(float, tile, [TILE][TILE + 1]);
    for_tile([&](int64_t line, int64_t elem, int i, int j) {
        float value = 0.0f;
        if (line < p.lines.count && elem < p.lines.elems) {
            const int64_t at = element_at(c, p.lines, line, elem);
            value = approach(c, widen_momentum(c, at, momentum_at<M>(c, at)), grads.at(at));
        }
        tile[i][j] = value;
    });
    __syncthreads();
    for_tile([&](int64_t, int64_t, int i, int j) { to[in_x(p, i, j)] = p.lines.are_rows ? tile[i][j] : tile[j][i]; });
}

/* Subtracts the last X, which is what its product adds to X. */
static __global__ void __launch_bounds__(TILE *TILE_THREAD_ROWS)
    give_kernel(call c, place p, float decay, float minus_step, const float *sums, const sw_cuda_bf16 *x) {
    SW_SHARED(float, tile, [TILE][TILE + 1]);
    for_tile([&](int64_t, int64_t, int i, int j) {
        const int64_t at = in_x(p, i, j);
        const float last = fmaf(1.0f, sums[at], SW_MUON_LINEAR * sw_widen(x[at]));
        if (p.lines.are_rows)
            tile[i][j] = last;
        else
            tile[j][i] = last;
    });
    __syncthreads();
    for_tile([&](int64_t line, int64_t elem, int i, int j) {
        if (line >= p.lines.count || elem >= p.lines.elems)
            return;
        const int64_t at = element_at(c, p.lines, line, elem);
        float *master = (float *)record_at(c, at) + in_grain(at);
        *master = fmaf(minus_step, tile[i][j], *master * decay);
    });
}

/* Sums the squares of each row: element i belongs to sum i%SW_MUON_SUMS, and these are added in order. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    sum_rows_kernel(int64_t rows, int64_t cols, int64_t stride, const float *update, double *sums) {
    SW_SHARED(double, part, [SUM_ROWS][SW_MUON_SUMS]);
    const int in_block = threadIdx.x / SW_MUON_SUMS, number = threadIdx.x % SW_MUON_SUMS;
    const int64_t row = (int64_t)blockIdx.x * SUM_ROWS + in_block;
    double sum = 0.0;
    for (int64_t col = number; row < rows && col < cols; col += SW_MUON_SUMS) {
        const double value = (double)update[row * stride + col];
        sum += value * value; /* the product is exact */
    }
    part[in_block][number] = sum;
    __syncthreads();
    if (number > 0 || row >= rows)
        return;
    double total = 0.0;
    for (int i = 0; i < SW_MUON_SUMS; i++)
        total += part[in_block][i];
    sums[row] = total;
}

/* Adds the rows' sums, of which each thread adds some, and writes the inverse of the norm. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    inverse_kernel(int64_t rows, const double *sums, double *inverse) {
    SW_SHARED(double, part, [SW_BLOCK_THREADS]);
    double sum = 0.0, total = 0.0;
    for (int64_t row = threadIdx.x; row < rows; row += SW_BLOCK_THREADS)
        sum += sums[row];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 0; i < SW_BLOCK_THREADS; i++)
        total += part[i];
    const double norm = sqrt(total);
    *inverse = 1.0 / (norm > SW_MUON_LEAST_NORM ? norm : SW_MUON_LEAST_NORM);
}

/* Returns a number as sw_muon_round leaves it. */
static __device__ __forceinline__ float without_least(float value) {
    return value > -SW_MUON_LEAST && value < SW_MUON_LEAST ? 0.0f : value;
}

static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    scale_kernel(int64_t elems, const float *from, const double *inverse, sw_cuda_bf16 *to) {
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    if (at >= elems)
        return;
    const double factor = *inverse;
    float values[SW_ELEMS];
    sw_load_whole(from + at, values);
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        values[i] = without_least((float)((double)values[i] * factor));
    sw_store_whole(to + at, values);
}

/* to = factor·sums + addend·to, rounded; `adds` false: to = sums */
template <bool adds>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    round_kernel(int64_t elems, const float *sums, float factor, float addend, sw_cuda_bf16 *to) {
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    if (at >= elems)
        return;
    float values[SW_ELEMS], before[SW_ELEMS];
    sw_load_whole(sums + at, values);
    if (adds)
        sw_load_whole(to + at, before);
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        values[i] = without_least(adds ? fmaf(factor, values[i], addend * before[i]) : values[i]);
    sw_store_whole(to + at, values);
}

/* with: what the kernel passes over beside records */
static call call_of(const struct sw_update_muon *op, const void *with) {
    assert(sw_is_aligned(op->records));
    call c = {};
    c.records = (char *)op->records;
    c.record_bytes = sw_optimizer_muon_bytes(op->format);
    c.rest = (float)(1.0 - op->muon->momentum);
    c.grad_scale = op->muon->grad_scale;
    c.aligned = sw_is_aligned(with);
    c.stochastic = sw_optimizer_momentum(op->format) != SW_OPTIMIZER_FP32 && op->rounding == SW_ROUND_STOCHASTIC;
    c.seed = op->seed;
    c.stream = sw_moment_stream(op->unit, op->step);
    c.first_elem = op->first_elem;
    c.map = sw_moment_maps[SW_MOMENT_M];
    return c;
}

/* Returns the blocks of a kernel whose threads have a vector each. */
static unsigned vectors_of(int64_t elems) {
    static_assert(SW_GRAIN_ELEMS % (SW_BLOCK_THREADS * SW_ELEMS) == 0, "a grain has whole blocks");
    return sw_blocks(elems, SW_BLOCK_THREADS * SW_ELEMS);
}

template <typename T, typename M> static void momentum_of(cudaStream_t stream, const struct sw_update_muon *op) {
    SW_LAUNCH((momentum_kernel<T, M>), vectors_of(op->grains * SW_GRAIN_ELEMS), SW_BLOCK_THREADS, 0, stream,
              call_of(op, op->grads), sw_gradients_of<T>(op));
}

template <typename T> static void momentum(cudaStream_t stream, const struct sw_update_muon *op) {
    switch (sw_optimizer_momentum(op->format)) {
    case SW_OPTIMIZER_FP32: momentum_of<T, float>(stream, op); break;
    case SW_OPTIMIZER_BF16: momentum_of<T, sw_cuda_bf16>(stream, op); break;
    default: momentum_of<T, uint8_t>(stream, op);
    }
}

void sw_cuda_muon_momentum(cudaStream_t stream, const void *args) {
    const struct sw_update_muon *op = (const struct sw_update_muon *)args;
    SW_FOR_TYPE(op->type, momentum, stream, op);
}

template <typename T> static void round_weights(cudaStream_t stream, const struct sw_update_muon *op) {
    SW_LAUNCH(weights_kernel<T>, vectors_of(op->grains * SW_GRAIN_ELEMS), SW_BLOCK_THREADS, 0, stream,
              call_of(op, op->weights), (T *)op->weights);
}

void sw_cuda_muon_weights(cudaStream_t stream, const void *args) {
    const struct sw_update_muon *op = (const struct sw_update_muon *)args;
    SW_FOR_TYPE(op->type, round_weights, stream, op);
}

/* The blocks of a matrix, by tiles of its lines and of their elements. */
static dim3 tiles_of(const struct sw_muon_matrix *m) {
    const int64_t rows = m->wide_rows / TILE, cols = m->wide_cols / TILE;
    return m->lines.are_rows ? dim3((unsigned)cols, (unsigned)rows) : dim3((unsigned)rows, (unsigned)cols);
}

template <typename T, typename M> static void take_of(cudaStream_t stream, const struct sw_cuda_muon *m) {
    const dim3 threads(TILE, TILE_THREAD_ROWS);
    const place p = {m->matrix->lines, m->matrix->wide_cols};
    SW_LAUNCH((take_kernel<T, M>), tiles_of(m->matrix), threads, 0, stream, call_of(m->op, m->op->grads), p,
              sw_gradients_of<T>(m->op), m->sums);
}

template <typename T> static void take(cudaStream_t stream, const struct sw_cuda_muon *m) {
    switch (sw_optimizer_momentum(m->op->format)) {
    case SW_OPTIMIZER_FP32: take_of<T, float>(stream, m); break;
    case SW_OPTIMIZER_BF16: take_of<T, sw_cuda_bf16>(stream, m); break;
    default: take_of<T, uint8_t>(stream, m);
    }
}

void sw_cuda_muon_take(cudaStream_t stream, const void *args) {
    const struct sw_cuda_muon *m = (const struct sw_cuda_muon *)args;
    const struct sw_muon_matrix *of = m->matrix;
    const int64_t elems = of->wide_rows * of->wide_cols;
    SW_FOR_TYPE(m->op->type, take, stream, m);
    SW_LAUNCH(sum_rows_kernel, sw_blocks(of->rows, SUM_ROWS), SW_BLOCK_THREADS, 0, stream, of->rows, of->cols,
              of->wide_cols, m->sums, m->norms + 1);
    SW_LAUNCH(inverse_kernel, 1, SW_BLOCK_THREADS, 0, stream, of->rows, m->norms + 1, m->norms);
    SW_LAUNCH(scale_kernel, vectors_of(elems), SW_BLOCK_THREADS, 0, stream, elems, m->sums, m->norms,
              (sw_cuda_bf16 *)m->x);
}

void sw_cuda_muon_square(cudaStream_t stream, const void *args) {
    const struct sw_cuda_muon *m = (const struct sw_cuda_muon *)args;
    const int64_t elems = m->matrix->wide_rows * m->matrix->wide_rows;
    SW_LAUNCH(round_kernel<false>, vectors_of(elems), SW_BLOCK_THREADS, 0, stream, elems, m->sums, 1.0f, 0.0f,
              (sw_cuda_bf16 *)m->square);
}

void sw_cuda_muon_polynomial(cudaStream_t stream, const void *args) {
    const struct sw_cuda_muon *m = (const struct sw_cuda_muon *)args;
    const int64_t elems = m->matrix->wide_rows * m->matrix->wide_rows;
    SW_LAUNCH(round_kernel<true>, vectors_of(elems), SW_BLOCK_THREADS, 0, stream, elems, m->sums, SW_MUON_QUINTIC,
              SW_MUON_CUBIC, (sw_cuda_bf16 *)m->square);
}

void sw_cuda_muon_next(cudaStream_t stream, const void *args) {
    const struct sw_cuda_muon *m = (const struct sw_cuda_muon *)args;
    const int64_t elems = m->matrix->wide_rows * m->matrix->wide_cols;
    SW_LAUNCH(round_kernel<true>, vectors_of(elems), SW_BLOCK_THREADS, 0, stream, elems, m->sums, 1.0f, SW_MUON_LINEAR,
              (sw_cuda_bf16 *)m->x);
}

void sw_cuda_muon_give(cudaStream_t stream, const void *args) {
    const struct sw_cuda_muon *m = (const struct sw_cuda_muon *)args;
    const dim3 threads(TILE, TILE_THREAD_ROWS);
    const place p = {m->matrix->lines, m->matrix->wide_cols};
    SW_LAUNCH(give_kernel, tiles_of(m->matrix), threads, 0, stream, call_of(m->op, m->op->grads), p, m->matrix->decay,
              m->matrix->minus_step, m->sums, (const sw_cuda_bf16 *)m->x);
}
