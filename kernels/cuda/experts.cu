/* Routing to experts, the order of rows by expert, and the ops on such rows. Routing takes a warp per row, and a block
 * per expert sorts that expert's pairs. */
#include "kernels/cuda/rows.cuh"

static __device__ __forceinline__ int lane_of_thread(void) {
    return (int)(threadIdx.x % SW_WARP);
}

/* Returns whether expert i, with logit a, comes before expert j, with logit b. */
static __device__ __forceinline__ bool comes_before(float a, int i, float b, int j) {
    const bool a_is_nan = a != a, b_is_nan = b != b;
    if (a_is_nan != b_is_nan)
        return b_is_nan;
    return a_is_nan || a == b ? i < j : a > b;
}

namespace {
struct ranked {
    float logit;
    int expert; /* -1: none */
};
} // namespace

/* Finds the first expert of a row after `last`; last.expert -1: the very first. All lanes get the result. */
template <typename T>
static __device__ __forceinline__ ranked next_expert(const T *logits, int experts, const ranked &last) {
    ranked best = {0.0f, -1};
    for (int e = lane_of_thread(); e < experts; e += SW_WARP) {
        const float logit = sw_widen(logits[e]);
        const bool is_left = last.expert < 0 || comes_before(last.logit, last.expert, logit, e);
        if (is_left && (best.expert < 0 || comes_before(logit, e, best.logit, best.expert)))
            best = {logit, e};
    }
    for (int distance = SW_WARP / 2; distance > 0; distance /= 2) {
        const float logit = __shfl_xor_sync(SW_ALL_LANES, best.logit, distance);
        const int expert = __shfl_xor_sync(SW_ALL_LANES, best.expert, distance);
        if (expert >= 0 && (best.expert < 0 || comes_before(logit, expert, best.logit, best.expert)))
            best = {logit, expert};
    }
    return best;
}

/* Returns the sum over the experts that the softmax is over of exp(logit - largest), of which `share` is that of the
 * lane's slot; NaN if the row has a NaN. */
template <typename T>
static __device__ __forceinline__ float denominator(const sw_routing &shape, const T *logits, float largest,
                                                    float share) {
    float all = 0.0f;
    for (int e = lane_of_thread(); e < (int)shape.experts; e += SW_WARP)
        all += expf(sw_widen(logits[e]) - largest);
    all = sw_warp_sum(all);
    const float chosen = sw_warp_sum(share);
    return all != all || (shape.softmax_first && !shape.normalised) ? all : chosen;
}

enum { ROUTE_ROWS = SW_BLOCK_THREADS / SW_WARP };
static_assert((int)SW_MOST_CHOSEN <= (int)SW_WARP, "a lane has one slot");

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    route_kernel(sw_routing shape, const T *logits, int32_t *expert, float *weight) {
    const int64_t row = (int64_t)blockIdx.x * ROUTE_ROWS + threadIdx.y;
    const int lane = lane_of_thread();
    if (row >= shape.rows)
        return;
    const T *own = logits + row * shape.experts;
    ranked last = {0.0f, -1}, mine = {0.0f, -1};
    float largest = 0.0f;
    for (int slot = 0; slot < (int)shape.chosen; slot++) {
        last = next_expert(own, (int)shape.experts, last);
        if (slot == 0)
            largest = last.logit;
        if (slot == lane)
            mine = last;
    }
    const float share = mine.expert >= 0 ? expf(mine.logit - largest) : 0.0f;
    const float sum = denominator(shape, own, largest, share);
    if (mine.expert >= 0) {
        expert[row * shape.chosen + lane] = mine.expert;
        weight[row * shape.chosen + lane] = share / sum;
    }
}

template <typename T> static void route(cudaStream_t stream, const sw_route_forward *op) {
    SW_LAUNCH(route_kernel<T>, sw_blocks(op->shape->rows, ROUTE_ROWS), dim3(SW_WARP, ROUTE_ROWS), 0, stream, *op->shape,
              (const T *)op->logits, op->expert, op->weight);
}

void sw_cuda_route_forward(cudaStream_t stream, const void *args) {
    const sw_route_forward *op = (const sw_route_forward *)args;
    if (op->shape->rows > 0)
        SW_FOR_TYPE(op->type, route, stream, op);
}

/* The softmax of a row over all experts, the same in all lanes. */
namespace {
struct softmax {
    float largest, sum;
};
} // namespace

template <typename T> static __device__ __forceinline__ softmax softmax_of(const T *logits, int experts) {
    softmax all = {sw_widen(logits[0]), 0.0f};
    for (int e = lane_of_thread(); e < experts; e += SW_WARP)
        all.largest = fmaxf(all.largest, sw_widen(logits[e]));
    for (int distance = SW_WARP / 2; distance > 0; distance /= 2)
        all.largest = fmaxf(all.largest, __shfl_xor_sync(SW_ALL_LANES, all.largest, distance));
    for (int e = lane_of_thread(); e < experts; e += SW_WARP)
        all.sum += expf(sw_widen(logits[e]) - all.largest);
    all.sum = sw_warp_sum(all.sum);
    return all;
}

namespace {
/* The losses that add to the gradient of the logits. */
struct more_losses {
    const double *count; /* NULL: no balance */
    double balance, z;
};
} // namespace

/* Returns the gradient of these losses at an expert's logit. average: the mean of the counts, weighted by the row's
 * probabilities; z: the z-loss's part, which is the same for all experts but for their probability. */
static __device__ __forceinline__ float more_gradient(const more_losses &more, const softmax &all, float logit,
                                                      int expert, double average, double z) {
    const float p = expf(logit - all.largest) / all.sum;
    const double above = more.count != NULL ? more.count[expert] - average : 0.0;
    return p * (float)(more.balance * above + z);
}

/* Returns the average of the counts, weighted by the probabilities of a row; all lanes get it. */
template <typename T>
static __device__ __forceinline__ double average_count(const more_losses &more, const softmax &all, const T *logits,
                                                       int experts) {
    double average = 0.0;
    for (int e = lane_of_thread(); more.count != NULL && e < experts; e += SW_WARP)
        average += (double)(expf(sw_widen(logits[e]) - all.largest) / all.sum) * more.count[e];
    for (int distance = SW_WARP / 2; distance > 0; distance /= 2)
        average += __shfl_xor_sync(SW_ALL_LANES, average, distance);
    return average;
}

/* Each lane has a slot, and then experts, for which it asks all slots. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    route_back_kernel(sw_routing shape, const T *logits, const int32_t *expert, const float *d_weight, T *d_logits,
                      more_losses more) {
    const int64_t row = (int64_t)blockIdx.x * ROUTE_ROWS + threadIdx.y;
    const int lane = lane_of_thread(), chosen = (int)shape.chosen, experts = (int)shape.experts;
    if (row >= shape.rows)
        return;
    const T *own = logits + row * experts;
    const bool has_slot = lane < chosen, spans_all = shape.softmax_first && !shape.normalised;
    const bool has_more = more.count != NULL || more.z != 0.0;
    const int mine = has_slot ? expert[row * chosen + lane] : -1;
    const float gradient = has_slot ? d_weight[row * chosen + lane] : 0.0f;
    const float largest = sw_widen(own[expert[row * chosen]]);
    const float share = has_slot ? expf(sw_widen(own[mine]) - largest) : 0.0f;
    const float sum = denominator(shape, own, largest, share);
    const float weighted = sw_warp_sum(share / sum * gradient);
    softmax all = {};
    double average = 0.0, z = 0.0;
    if (has_more) {
        all = softmax_of(own, experts);
        average = average_count(more, all, own, experts);
        z = 2.0 * more.z * (all.largest + logf(all.sum));
    }
    for (int first = 0; first < experts; first += SW_WARP) {
        const int e = first + lane;
        bool counts = spans_all;
        float of_expert = 0.0f;
        for (int slot = 0; slot < chosen; slot++) {
            const int other = __shfl_sync(SW_ALL_LANES, mine, slot);
            const float value = __shfl_sync(SW_ALL_LANES, gradient, slot);
            counts = counts || other == e;
            of_expert = other == e ? value : of_expert;
        }
        if (e >= experts)
            continue;
        const float logit = sw_widen(own[e]);
        float result = counts ? expf(logit - largest) / sum * (of_expert - weighted) : 0.0f;
        if (has_more)
            result += more_gradient(more, all, logit, e, average, z);
        sw_round(result, &d_logits[row * experts + e]);
    }
}

template <typename T> static void route_back(cudaStream_t stream, const sw_route_backward *op) {
    const more_losses more = {op->count, op->balance, op->z};
    SW_LAUNCH(route_back_kernel<T>, sw_blocks(op->shape->rows, ROUTE_ROWS), dim3(SW_WARP, ROUTE_ROWS), 0, stream,
              *op->shape, (const T *)op->logits, op->expert, op->d_weight, (T *)op->d_logits, more);
}

void sw_cuda_route_backward(cudaStream_t stream, const void *args) {
    const sw_route_backward *op = (const sw_route_backward *)args;
    if (op->shape->rows > 0)
        SW_FOR_TYPE(op->type, route_back, stream, op);
}

/* A block sums SW_TALLY_ROWS rows. Its warps share the rows' softmaxes, and its threads then the experts. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    tally_rows_kernel(sw_routing shape, const T *logits, float *sums) {
    SW_SHARED(float, largest, [SW_TALLY_ROWS]);
    SW_SHARED(float, denominators, [SW_TALLY_ROWS]);
    const int experts = (int)shape.experts;
    const int64_t first = (int64_t)blockIdx.x * SW_TALLY_ROWS;
    const int rows = shape.rows - first < SW_TALLY_ROWS ? (int)(shape.rows - first) : (int)SW_TALLY_ROWS;
    for (int row = (int)threadIdx.x / SW_WARP; row < rows; row += SW_BLOCK_THREADS / SW_WARP) {
        const softmax all = softmax_of(logits + (first + row) * experts, experts);
        if (threadIdx.x % SW_WARP == 0) {
            largest[row] = all.largest;
            denominators[row] = all.sum;
        }
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e <= experts; e += SW_BLOCK_THREADS) {
        float sum = 0.0f;
        for (int row = 0; row < rows; row++) {
            const float log_sum = largest[row] + logf(denominators[row]);
            sum += e == experts
                       ? log_sum * log_sum
                       : expf(sw_widen(logits[(first + row) * experts + e]) - largest[row]) / denominators[row];
        }
        sums[(int64_t)blockIdx.x * (experts + 1) + e] = sum;
    }
}

/* One block adds the sums of all blocks of rows, and counts. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) tally_kernel(sw_tally_routing op, int experts, int blocks) {
    for (int e = (int)threadIdx.x; e <= experts; e += SW_BLOCK_THREADS) {
        if (e < experts) {
            const double rows = op.offset[e + 1] - op.offset[e];
            op.routed[e] = (op.first_micro ? 0.0 : op.routed[e]) + rows;
            if (op.count != NULL)
                op.count[e] = (op.first_layer ? 0.0 : op.count[e]) + rows;
        }
        if (op.count != NULL) {
            double sum = op.first_layer ? 0.0 : op.sum[e];
            for (int block = 0; block < blocks; block++)
                sum += op.scratch[(int64_t)block * (experts + 1) + e];
            op.sum[e] = sum;
        }
    }
}

/* One thread computes the losses, in the order of host devices. */
static __global__ void __launch_bounds__(SW_WARP) tally_losses_kernel(sw_tally_routing op, int experts, double rows) {
    if (threadIdx.x > 0)
        return;
    double balance = 0.0;
    for (int e = 0; e < experts; e++)
        balance += op.count[e] * op.sum[e];
    op.losses[0] = (op.first_micro ? 0.0 : op.losses[0]) + (double)experts * balance / (rows * rows);
    op.losses[1] = (op.first_micro ? 0.0 : op.losses[1]) + op.sum[experts] / rows;
}

template <typename T> static void tally_rows(cudaStream_t stream, const sw_tally_routing *op) {
    SW_LAUNCH(tally_rows_kernel<T>, sw_blocks(op->shape->rows, SW_TALLY_ROWS), SW_BLOCK_THREADS, 0, stream, *op->shape,
              (const T *)op->logits, op->scratch);
}

void sw_cuda_tally_routing(cudaStream_t stream, const void *args) {
    const sw_tally_routing *op = (const sw_tally_routing *)args;
    const int experts = (int)op->shape->experts, blocks = (int)sw_blocks(op->shape->rows, SW_TALLY_ROWS);
    if (op->count != NULL && blocks > 0)
        SW_FOR_TYPE(op->type, tally_rows, stream, op);
    SW_LAUNCH(tally_kernel, 1, SW_BLOCK_THREADS, 0, stream, *op, experts, blocks);
    if (op->count != NULL && op->last_layer)
        SW_LAUNCH(tally_losses_kernel, 1, SW_WARP, 0, stream, *op, experts,
                  (double)op->shape->rows * (double)op->layers);
}

enum { ORDER_WARPS = SW_BLOCK_THREADS / SW_WARP };

/* A block per expert counts the pairs of earlier experts, and then gives its own pairs places in their order. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    order_kernel(int pairs, const int32_t *expert, int32_t *offset, int32_t *source, int32_t *place) {
    SW_SHARED(int, counts, [ORDER_WARPS]);
    const int own = (int)blockIdx.x, lane = lane_of_thread(), warp = (int)threadIdx.x / SW_WARP;
    int earlier = 0;
    for (int64_t pair = threadIdx.x; pair < pairs; pair += SW_BLOCK_THREADS)
        earlier += expert[pair] < own;
    for (int distance = SW_WARP / 2; distance > 0; distance /= 2)
        earlier += __shfl_xor_sync(SW_ALL_LANES, earlier, distance);
    if (lane == 0)
        counts[warp] = earlier;
    __syncthreads();
    int next = 0;
    for (int w = 0; w < ORDER_WARPS; w++)
        next += counts[w];
    if (threadIdx.x == 0)
        offset[own] = next;
    for (int64_t first = 0; first < pairs; first += SW_BLOCK_THREADS) {
        const int64_t pair = first + threadIdx.x;
        const bool is_own = pair < pairs && expert[pair] == own;
        const unsigned vote = __ballot_sync(SW_ALL_LANES, is_own);
        __syncthreads();
        if (lane == 0)
            counts[warp] = __popc(vote);
        __syncthreads();
        int at = next + __popc(vote & ((1u << lane) - 1u));
        for (int w = 0; w < ORDER_WARPS; w++) {
            at += w < warp ? counts[w] : 0;
            next += counts[w];
        }
        if (is_own) {
            source[at] = (int32_t)pair;
            place[pair] = at;
        }
    }
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1)
        offset[own + 1] = next;
}

void sw_cuda_order_by_expert(cudaStream_t stream, const void *args) {
    const sw_order_by_expert *op = (const sw_order_by_expert *)args;
    SW_LAUNCH(order_kernel, (unsigned)op->experts, SW_BLOCK_THREADS, 0, stream, (int)(op->rows * op->chosen),
              op->expert, op->offset, op->source, op->place);
}

namespace {
template <typename T> struct permuting {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS];
    };
    int64_t cols;
    int chosen;
    const int32_t *source;
    const T *x;
    T *y;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        sw_load_elems(x + source[row] / chosen * cols + col, count, aligned, h.values);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        sw_store_elems(y + row * cols + col, count, aligned, h.values);
    }
};

template <typename T> struct unpermuting {
    enum { VECTORS = 1 };
    struct held {
        float sums[SW_ELEMS];
    };
    int64_t cols, pairs;
    int chosen;
    const int32_t *place;
    const T *x, *addend;
    T *y;
    const float *before;
    float *after;
    sw_row_run run;
    bool falling;
    /* Returns the place of a row's pair that comes after the place `last`, or -1. */
    __device__ __forceinline__ int next_place(int64_t row, int first, int end, int last) const {
        int best = -1;
        for (int slot = 0; slot < chosen; slot++) {
            const int at = place[row * chosen + slot];
            const bool comes = falling ? at < last && at > best : at > last && (best < 0 || at < best);
            if (at >= first && at < end && comes)
                best = at;
        }
        return best;
    }
    static __device__ __forceinline__ void add(const float *terms, float *sums) {
        for (int i = 0; i < SW_ELEMS; i++)
            sums[i] += terms[i];
    }
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const int first = run.first == NULL ? 0 : *run.first, end = run.first == NULL ? (int)pairs : *run.end;
        const int64_t own = row * cols + col;
        float terms[SW_ELEMS];
        for (int i = 0; i < SW_ELEMS; i++)
            h.sums[i] = 0.0f;
        if (before != NULL)
            sw_load_elems(before + own, count, aligned, h.sums);
        else if (addend != NULL && !falling)
            sw_load_elems(addend + own, count, aligned, h.sums);
        for (int at = next_place(row, first, end, falling ? end : -1); at >= 0; at = next_place(row, first, end, at)) {
            sw_load_elems(x + at * cols + col, count, aligned, terms);
            add(terms, h.sums);
        }
        if (addend == NULL || !falling)
            return;
        sw_load_elems(addend + own, count, aligned, terms);
        add(terms, h.sums);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        if (after != NULL)
            sw_store_elems(after + row * cols + col, count, aligned, h.sums);
        else
            sw_store_elems(y + row * cols + col, count, aligned, h.sums);
    }
};

template <typename T> struct scaling {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS];
    };
    int64_t cols;
    const int32_t *source;
    const float *weight;
    const T *x;
    T *y;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const float factor = weight[source[row]];
        sw_load_elems(x + row * cols + col, count, aligned, h.values);
        for (int i = 0; i < SW_ELEMS; i++)
            h.values[i] *= factor;
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        sw_store_elems(y + row * cols + col, count, aligned, h.values);
    }
};
} // namespace

template <typename T> static void permute(cudaStream_t stream, const sw_permute_rows *op) {
    const bool aligned = op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->y);
    const permuting<T> map = {op->cols, (int)op->chosen, op->source, (const T *)op->x, (T *)op->y};
    sw_for_run(stream, op->run, op->rows * op->chosen, op->cols, map, aligned);
}

void sw_cuda_permute_rows(cudaStream_t stream, const void *args) {
    const sw_permute_rows *op = (const sw_permute_rows *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, permute, stream, op);
}

template <typename T> static void unpermute(cudaStream_t stream, const sw_unpermute_rows *op) {
    const bool aligned = op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->addend) &&
                         sw_is_aligned(op->y) && sw_is_aligned(op->before) && sw_is_aligned(op->after);
    const unpermuting<T> map = {op->cols,         op->rows * op->chosen,
                                (int)op->chosen,  op->place,
                                (const T *)op->x, (const T *)op->addend,
                                (T *)op->y,       op->before,
                                op->after,        op->run,
                                op->falling};
    sw_for_rows(stream, op->rows, op->cols, map, aligned);
}

void sw_cuda_unpermute_rows(cudaStream_t stream, const void *args) {
    const sw_unpermute_rows *op = (const sw_unpermute_rows *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, unpermute, stream, op);
}

template <typename T> static void scale(cudaStream_t stream, const sw_scale_rows *op) {
    const bool aligned = op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->y);
    const scaling<T> map = {op->cols, op->source, op->weight, (const T *)op->x, (T *)op->y};
    sw_for_run(stream, op->run, op->rows, op->cols, map, aligned);
}

void sw_cuda_scale_rows(cudaStream_t stream, const void *args) {
    const sw_scale_rows *op = (const sw_scale_rows *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, scale, stream, op);
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_ROW_BLOCKS)
    scale_back_kernel(int64_t rows, int64_t cols, const int32_t *source, const float *weight, const T *x, const T *dy,
                      T *dx, float *d_weight, bool aligned, sw_row_run run) {
    const int64_t row = sw_row_of_thread<THREADS>();
    if (row >= rows || !sw_run_has(run, row))
        return;
    const int32_t pair = source[row];
    const float factor = weight[pair];
    float sum = 0.0f;
    for (int64_t col = threadIdx.x * SW_ELEMS; col < cols; col += THREADS * SW_ELEMS) {
        float value[SW_ELEMS], gradient[SW_ELEMS];
        sw_load_elems(x + row * cols + col, cols - col, aligned, value);
        sw_load_elems(dy + row * cols + col, cols - col, aligned, gradient);
        for (int i = 0; i < SW_ELEMS; i++) {
            sum = fmaf(gradient[i], value[i], sum);
            gradient[i] *= factor;
        }
        sw_store_elems(dx + row * cols + col, cols - col, aligned, gradient);
    }
    sum = sw_row_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        d_weight[pair] = sum;
}

template <typename T> static void scale_back(cudaStream_t stream, const sw_scale_rows_backward *op) {
    const bool aligned =
        op->cols % SW_ELEMS == 0 && sw_is_aligned(op->x) && sw_is_aligned(op->dy) && sw_is_aligned(op->dx);
    SW_FOR_ROWS(scale_back_kernel, T, op->rows, op->cols, stream, op->rows, op->cols, op->source, op->weight,
                (const T *)op->x, (const T *)op->dy, (T *)op->dx, op->d_weight, aligned, op->run);
}

void sw_cuda_scale_rows_backward(cudaStream_t stream, const void *args) {
    const sw_scale_rows_backward *op = (const sw_scale_rows_backward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, scale_back, stream, op);
}

/* Returns the expert of a place, which lies in [offset[0], offset[experts]). */
static __device__ __forceinline__ int expert_at(const int32_t *offset, int experts, int64_t place) {
    int first = 0, end = experts;
    while (end - first > 1) {
        const int middle = (first + end) / 2;
        if (offset[middle] <= place)
            first = middle;
        else
            end = middle;
    }
    return first;
}

namespace {
/* The biases of experts, and where an expert's places and biases are. */
template <typename T> struct expert_biases {
    int experts;
    int64_t cols, stride;
    const int32_t *offset, *source;
    const T *bias;
    __device__ __forceinline__ const T *at(int64_t row) const {
        return bias + expert_at(offset, experts, row) * stride;
    }
};

template <typename T> struct biasing {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS];
    };
    expert_biases<T> biases;
    const float *weight;
    T *y;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        const float factor = weight[biases.source[row]];
        float terms[SW_ELEMS];
        sw_load_elems(y + row * biases.cols + col, count, aligned, h.values);
        sw_load_elems(biases.at(row) + col, count, aligned, terms);
        for (int i = 0; i < SW_ELEMS; i++)
            h.values[i] += factor * terms[i];
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        sw_store_elems(y + row * biases.cols + col, count, aligned, h.values);
    }
};
} // namespace

template <typename T> static void add_biases(cudaStream_t stream, const sw_expert_bias_forward *op) {
    const bool aligned =
        op->cols % SW_ELEMS == 0 && op->bias_stride % SW_ELEMS == 0 && sw_is_aligned(op->bias) && sw_is_aligned(op->y);
    const expert_biases<T> biases = {(int)op->experts, op->cols,   op->bias_stride,
                                     op->offset,       op->source, (const T *)op->bias};
    const biasing<T> map = {biases, op->weight, (T *)op->y};
    sw_for_run(stream, {op->offset, op->offset + op->experts, 0}, op->rows, op->cols, map, aligned);
}

void sw_cuda_expert_bias_forward(cudaStream_t stream, const void *args) {
    const sw_expert_bias_forward *op = (const sw_expert_bias_forward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, add_biases, stream, op);
}

/* A thread sums a column over the rows of an expert. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    bias_back_kernel(expert_biases<T> biases, const float *weight, const T *dy, float *acc) {
    const int64_t col = (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
    const int first = biases.offset[blockIdx.y], end = biases.offset[blockIdx.y + 1];
    if (col >= biases.cols)
        return;
    float sum = 0.0f;
    SW_UNROLL_TWICE
    for (int row = first; row < end; row++)
        sum = fmaf(weight == NULL ? 1.0f : weight[biases.source[row]], sw_widen(dy[row * biases.cols + col]), sum);
    acc[blockIdx.y * biases.stride + col] += sum;
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_ROW_BLOCKS)
    bias_weight_kernel(int64_t rows, expert_biases<T> biases, const T *dy, float *d_weight, bool aligned) {
    const int64_t row = sw_row_of_thread<THREADS>();
    if (row >= rows || row < biases.offset[0] || row >= biases.offset[biases.experts])
        return;
    const T *bias = biases.at(row);
    float sum = 0.0f;
    for (int64_t col = threadIdx.x * SW_ELEMS; col < biases.cols; col += THREADS * SW_ELEMS) {
        float value[SW_ELEMS], gradient[SW_ELEMS];
        sw_load_elems(bias + col, biases.cols - col, aligned, value);
        sw_load_elems(dy + row * biases.cols + col, biases.cols - col, aligned, gradient);
        for (int i = 0; i < SW_ELEMS; i++)
            sum = fmaf(gradient[i], value[i], sum);
    }
    sum = sw_row_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        d_weight[biases.source[row]] += sum;
}

template <typename T> static void bias_back(cudaStream_t stream, const sw_expert_bias_backward *op) {
    const bool aligned =
        op->cols % SW_ELEMS == 0 && op->bias_stride % SW_ELEMS == 0 && sw_is_aligned(op->bias) && sw_is_aligned(op->dy);
    const expert_biases<T> biases = {(int)op->experts, op->cols,   op->bias_stride,
                                     op->offset,       op->source, (const T *)op->bias};
    if (op->acc != NULL)
        SW_LAUNCH(bias_back_kernel<T>, dim3(sw_blocks(op->cols, SW_BLOCK_THREADS), (unsigned)op->experts),
                  SW_BLOCK_THREADS, 0, stream, biases, op->weight, (const T *)op->dy, op->acc);
    if (op->d_weight != NULL)
        SW_FOR_ROWS(bias_weight_kernel, T, op->rows, op->cols, stream, op->rows, biases, (const T *)op->dy,
                    op->d_weight, aligned);
}

void sw_cuda_expert_bias_backward(cudaStream_t stream, const void *args) {
    const sw_expert_bias_backward *op = (const sw_expert_bias_backward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, bias_back, stream, op);
}
