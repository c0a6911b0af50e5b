/* AdamW of moments in bf16 and 8 bits with the bits of kernels/moments.c. A warp has a block of 256 elements, whose
 * scale and random words its lanes share. */
#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/moments.cuh"

#include <assert.h>

namespace {
struct narrow_update {
    struct sw_adamw_scalars scalars;
    bool aligned, stochastic;
    char *records;
    int64_t record_bytes;
    uint64_t seed, stream;
    int64_t first_elem; /* the call's first element in its unit */
    struct sw_moment_map maps[SW_MOMENTS];
};
} // namespace

static __device__ __forceinline__ uint32_t exchanged(uint32_t random) {
    return random >> 8 | (random & 0xffu) << 8;
}

namespace {
/* Moments in 8 bits. A lane's eight codes are two words. */
struct eight_bits {
    uint32_t *m, *v;
    float *m_scale, *v_scale;

    __device__ __forceinline__ eight_bits(char *record, int in_grain) {
        char *codes = record + SW_GRAIN_ELEMS * sizeof(float);
        float *scales = (float *)(codes + 2 * SW_GRAIN_ELEMS);
        m = (uint32_t *)(codes + in_grain);
        v = (uint32_t *)(codes + SW_GRAIN_ELEMS + in_grain);
        m_scale = scales + in_grain / SW_MOMENT_BLOCK_ELEMS;
        v_scale = m_scale + SW_GRAIN_ELEMS / SW_MOMENT_BLOCK_ELEMS;
    }

    __device__ __forceinline__ void widen(const narrow_update &u, float out_m[SW_ELEMS], float out_v[SW_ELEMS]) const {
        const float scale_m = *m_scale, scale_v = *v_scale;
        SW_UNROLL
        for (int word = 0; word < 2; word++) {
            const uint32_t codes_m = m[word], codes_v = v[word];
            SW_UNROLL
            for (int i = 0; i < 4; i++) {
                const float q = (float)(codes_v >> 8 * i & 0xffu) * 0.5f + 0.75f;
                out_m[4 * word + i] = sw_number_of_m(u.maps[SW_MOMENT_M], codes_m >> 8 * i) * scale_m;
                out_v[4 * word + i] = sw_moment_number(u.maps[SW_MOMENT_V], q) * scale_v;
            }
        }
    }

    __device__ __forceinline__ void round(const narrow_update &u, const float in_m[SW_ELEMS],
                                          const float in_v[SW_ELEMS], const uint32_t *words, int lane) const {
        const float scale_m = sw_moment_scale(in_m), scale_v = sw_moment_scale(in_v);
        const float inverse_m = scale_m > 0.0f ? 1.0f / scale_m : 0.0f;
        const float inverse_v = scale_v > 0.0f ? 1.0f / scale_v : 0.0f;
        SW_UNROLL
        for (int word = 0; word < 2; word++) {
            uint32_t codes_m = 0, codes_v = 0;
            SW_UNROLL
            for (int i = 0; i < 4; i++) {
                const float value_m = in_m[4 * word + i], value_v = in_v[4 * word + i];
                const uint32_t random = u.stochastic ? sw_random_of(words, lane, 4 * word + i) : 0;
                const int code =
                    sw_moment_steps(u.maps[SW_MOMENT_V], value_v, inverse_v, u.stochastic, exchanged(random));
                codes_m |= sw_code_of_m(u.maps[SW_MOMENT_M], value_m, inverse_m, u.stochastic, random) << 8 * i;
                codes_v |= (uint32_t)(code == 0 && sw_float_bits(value_v) != 0 ? 1 : code) << 8 * i;
            }
            m[word] = codes_m;
            v[word] = codes_v;
        }
        if (lane == 0) {
            *m_scale = scale_m;
            *v_scale = scale_v;
        }
    }
};

/* Moments in bf16. */
struct sixteen_bits {
    sw_cuda_bf16 *m, *v;

    __device__ __forceinline__ sixteen_bits(char *record, int in_grain) {
        m = (sw_cuda_bf16 *)(record + SW_GRAIN_ELEMS * sizeof(float)) + in_grain;
        v = m + SW_GRAIN_ELEMS;
    }

    __device__ __forceinline__ void widen(const narrow_update &, float out_m[SW_ELEMS], float out_v[SW_ELEMS]) const {
        sw_load_whole(m, out_m);
        sw_load_whole(v, out_v);
    }

    __device__ __forceinline__ void round(const narrow_update &u, const float in_m[SW_ELEMS],
                                          const float in_v[SW_ELEMS], const uint32_t *words, int lane) const {
        uint32_t to_m[SW_ELEMS / 2] = {}, to_v[SW_ELEMS / 2] = {};
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++) {
            const uint32_t random = u.stochastic ? sw_random_of(words, lane, i) : 0;
            to_m[i / 2] |= sw_bf16_moment(u.stochastic, in_m[i], random, 0) << i % 2 * 16;
            to_v[i / 2] |= sw_bf16_moment(u.stochastic, in_v[i], exchanged(random), sw_float_bits(in_v[i]) != 0)
                           << i % 2 * 16;
        }
        sw_store16(m, {to_m[0], to_m[1], to_m[2], to_m[3]});
        sw_store16(v, {to_v[0], to_v[1], to_v[2], to_v[3]});
    }
};
} // namespace

template <typename T, typename Moments>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    update_narrow_kernel(narrow_update u, sw_stretch s, sw_gradients<T> grads, T *weights) {
    SW_SHARED(uint32_t, words, [SW_MOMENT_WARPS][SW_MOMENT_WORDS]);
    const int warp = threadIdx.x / SW_WARP, lane = threadIdx.x % SW_WARP;
    const int64_t at = s.first + ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    if (at >= s.end)
        return;
    const int in_grain = (int)(at & (SW_GRAIN_ELEMS - 1));
    char *record = u.records + at / SW_GRAIN_ELEMS * u.record_bytes;
    float *masters = (float *)record + in_grain;
    const Moments moments(record, in_grain);
    float master[SW_ELEMS], m[SW_ELEMS], v[SW_ELEMS], gradients[SW_ELEMS];
    sw_load_whole(masters, master);
    moments.widen(u, m, v);
    grads.load(at, u.aligned, gradients);
    if (u.stochastic)
        sw_draw_words(u.seed, u.stream, u.first_elem + at - lane * SW_ELEMS, lane, words[warp]);
    int span = sw_span_of(s, at);
    const bool left_out = s.left_out[span]; /* the block as a whole */
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS && !left_out; i++) {
        while (s.ends[span] <= at + i)
            span++;
        sw_update_elem(u.scalars, sw_values_of(s, span), gradients[i], &master[i], &m[i], &v[i]);
    }
    sw_store_whole(masters, master);
    if (weights != NULL)
        sw_store_elems(weights + at, SW_ELEMS, u.aligned, master);
    __syncwarp();
    if (!left_out)
        moments.round(u, m, v, words[warp], lane);
}

template <typename T>
static void update_stretch(cudaStream_t stream, const struct sw_update_adamw *op, const narrow_update &u,
                           const sw_stretch &s) {
    const unsigned blocks = sw_blocks(s.end - s.first, SW_BLOCK_THREADS * SW_ELEMS);
    if (op->format == SW_OPTIMIZER_8BIT)
        SW_LAUNCH((update_narrow_kernel<T, eight_bits>), blocks, SW_BLOCK_THREADS, 0, stream, u, s,
                  sw_gradients_of<T>(op), (T *)op->weights);
    else
        SW_LAUNCH((update_narrow_kernel<T, sixteen_bits>), blocks, SW_BLOCK_THREADS, 0, stream, u, s,
                  sw_gradients_of<T>(op), (T *)op->weights);
}

void sw_cuda_update_narrow(cudaStream_t stream, const struct sw_update_adamw *op, int64_t elems) {
    assert(sw_is_aligned(op->records));
    narrow_update u = {};
    u.scalars = sw_adamw_scalars(op->adamw);
    u.aligned = sw_is_aligned(op->weights) && sw_is_aligned(op->grads);
    u.stochastic = op->rounding == SW_ROUND_STOCHASTIC;
    u.records = (char *)op->records;
    u.record_bytes = sw_update_record_bytes(op);
    u.seed = op->seed;
    u.stream = sw_moment_stream(op->unit, op->adamw->step);
    u.first_elem = op->first_elem;
    u.maps[SW_MOMENT_M] = sw_moment_maps[SW_MOMENT_M];
    u.maps[SW_MOMENT_V] = sw_moment_maps[SW_MOMENT_V];
    for (int64_t first = 0; first < elems;) {
        sw_stretch s = sw_next_stretch(&u.scalars, op, first, elems);
        s.end -= s.end % SW_MOMENT_BLOCK_ELEMS; /* a launch has whole blocks */
        assert(s.end > first);
        SW_FOR_TYPE(op->type, update_stretch, stream, op, u, s);
        first = s.end;
    }
}
