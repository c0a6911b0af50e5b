/* The AdamW update on the CPU: one pass over a chunk that widens, unscales, clips, updates and rounds.
 *
 * The pass is bound by memory, so everything is done while an element is in a register; separate passes for clipping
 * and rounding would double its traffic. The operations and their order are those of ref/update.c and moments.c, with
 * each fused multiply-add written out: the bits are a contract with the GPU and with every instruction set.
 *
 * Random words of stochastic rounding are computed from the element's number, not drawn in sequence, so chunks and
 * threads cannot change them. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/tile.h"
#include "kernels/moments.h"

/* A block's moments, the largest magnitude of each lane over the block, and the random words of its elements. */
struct sw_moment_block {
    sw_vec largest_m, largest_v;
    _Alignas(64) float m[SW_MOMENT_BLOCK_ELEMS];
    _Alignas(64) float v[SW_MOMENT_BLOCK_ELEMS];
    _Alignas(64) uint32_t words[SW_MOMENT_BLOCK_ELEMS / 2]; /* 16 bits per element */
};

SW_INLINE sw_vec sw_number_of_v(const char *codes) {
    const sw_vec_bytes bytes = *(const sw_vec_bytes_unaligned *)codes;
    const sw_vec code = sw_vec_of_bytes(bytes);
    /* The product is exact, so only the sum is rounded. */
    return sw_number_at(&sw_moment_maps[SW_MOMENT_V], sw_vec_fma_once(code, sw_vec_splat(0.5f), sw_vec_splat(0.75f)));
}

/* Widen a vector of moments from element `at` of a grain. */
SW_INLINE sw_vec sw_widen_m(const sw_optimizer_format format, const struct sw_record_parts *record, int64_t at,
                            float scale) {
    return format == SW_OPTIMIZER_BF16 ? sw_load(SW_BF16, record->m, at) : sw_number_of_m(record->m + at) * scale;
}

SW_INLINE sw_vec sw_widen_v(const sw_optimizer_format format, const struct sw_record_parts *record, int64_t at,
                            float scale) {
    return format == SW_OPTIMIZER_BF16 ? sw_load(SW_BF16, record->v, at) : sw_number_of_v(record->v + at) * scale;
}

/* Returns 1 in the lanes that are above zero. */
SW_INLINE sw_vec_ints sw_vec_least(sw_vec v) {
#if defined(__AVX512F__)
    return (sw_vec_ints)_mm512_min_epu32((__m512i)v, _mm512_set1_epi32(1));
#elif defined(__AVX2__)
    return (sw_vec_ints)_mm256_min_epu32((__m256i)v, _mm256_set1_epi32(1));
#else
    return ((sw_vec_ints)v != 0) & 1;
#endif
}

/* Rounds the vector at element i of a block. `upper`: its random bits are the upper halves of their words. */
SW_INLINE void sw_round_codes(const sw_rounding rounding, const struct sw_moment_block *block, int i,
                              const float inverse[2], const bool upper, char *to_m, char *to_v) {
    const sw_vec m = sw_vec_load(block->m + i), v = sw_vec_load(block->v + i);
    const sw_vec_bits words = *(const sw_vec_bits *)(block->words + sw_word_at(i));
    const sw_vec code =
        sw_rounded(&sw_moment_maps[SW_MOMENT_V], rounding, v, inverse[SW_MOMENT_V], sw_half_of(words, upper, true));
    sw_store_codes(to_m + i, sw_steps_of_m(rounding, m, inverse[SW_MOMENT_M], sw_half_of(words, upper, false)));
    sw_store_codes(to_v + i, sw_vec_max_ints(__builtin_convertvector(code, sw_vec_ints), sw_vec_least(v)));
}

SW_INLINE void sw_round_to_codes(const sw_rounding rounding, const struct sw_moment_block *block, int64_t at,
                                 const struct sw_record_parts *record) {
    const float m_scale = sw_scale_of(block->largest_m), v_scale = sw_scale_of(block->largest_v);
    const float inverse[SW_MOMENTS] = {sw_inverse_of(m_scale), sw_inverse_of(v_scale)};
    char *m = record->m + at, *v = record->v + at;
    record->m_scale[at / SW_MOMENT_BLOCK_ELEMS] = m_scale;
    record->v_scale[at / SW_MOMENT_BLOCK_ELEMS] = v_scale;
    for (int first = 0; first < SW_MOMENT_BLOCK_ELEMS; first += 2 * SW_MOMENT_LANES)
        for (int i = first; i < first + SW_MOMENT_LANES; i += SW_LANES) {
            sw_round_codes(rounding, block, i, inverse, false, m, v);
            sw_round_codes(rounding, block, i + SW_MOMENT_LANES, inverse, true, m, v);
        }
}

SW_INLINE void sw_round_bf16(const sw_rounding rounding, const struct sw_moment_block *block, int i, const bool upper,
                             sw_bf16 *to_m, sw_bf16 *to_v) {
    const sw_vec_bits words = *(const sw_vec_bits *)(block->words + sw_word_at(i));
    const sw_vec m = sw_vec_load(block->m + i), v = sw_vec_load(block->v + i);
    *(sw_vec_half_unaligned *)(to_m + i) =
        sw_moments_to_bf16(rounding, m, sw_half_of(words, upper, false), (sw_vec_ints){0});
    *(sw_vec_half_unaligned *)(to_v + i) =
        sw_moments_to_bf16(rounding, v, sw_half_of(words, upper, true), sw_vec_least(v));
}

SW_INLINE void sw_round_to_bf16(const sw_rounding rounding, const struct sw_moment_block *block, sw_bf16 *to_m,
                                sw_bf16 *to_v) {
    for (int first = 0; first < SW_MOMENT_BLOCK_ELEMS; first += 2 * SW_MOMENT_LANES)
        for (int i = first; i < first + SW_MOMENT_LANES; i += SW_LANES) {
            sw_round_bf16(rounding, block, i, false, to_m, to_v);
            sw_round_bf16(rounding, block, i + SW_MOMENT_LANES, true, to_m, to_v);
        }
}

SW_INLINE void sw_round_moments(const sw_optimizer_format format, const sw_rounding rounding,
                                const struct sw_moment_rounding *how, int64_t at, struct sw_moment_block *block,
                                const struct sw_record_parts *record) {
    if (rounding == SW_ROUND_STOCHASTIC)
        sw_block_words(how, how->first_elem + at, block->words);
    if (format == SW_OPTIMIZER_BF16) {
        sw_round_to_bf16(rounding, block, (sw_bf16 *)record->m + at, (sw_bf16 *)record->v + at);
        return;
    }
    sw_round_to_codes(rounding, block, at, record);
}

/* One call of the op. */
struct update {
    const struct sw_update_adamw *op;
    struct sw_adamw_scalars scalars;
};

/* The parts of a call that a vector needs. */
struct call {
    struct sw_adamw_scalars scalars;
    const void *grads;
    void *weights; /* NULL: not wanted */
};

/* Consecutive elements: where they begin in the chunk and in the record's three parts, and their decay, step size and
 * bias correction. */
struct run {
    int64_t at;
    float *master, *m, *v;
    float decay_factor, minus_step_size, correction2_sqrt;
};

/* Runs the operations of ref/update.c in the same order: the bits are a contract. */
SW_INLINE void update_lanes(const struct sw_adamw_scalars *s, const struct run *run, sw_vec gradient, sw_vec *master,
                            sw_vec *m, sw_vec *v) {
    const sw_vec g = gradient * s->grad_scale;
    *m = sw_vec_fma_once(sw_vec_splat(s->one_minus_beta1), g - *m, *m);
    *v = sw_vec_fma_once(s->one_minus_beta2 * g, g, s->beta2 * *v);
    const sw_vec denominator = sw_vec_sqrt(*v) / run->correction2_sqrt + s->eps;
    *master = sw_vec_fma_once(sw_vec_splat(run->minus_step_size), *m / denominator, *master * run->decay_factor);
}

/* Returns up to `rest` gradients, starting at element `at` of the call. */
SW_INLINE sw_vec load_gradients(const sw_dtype type, const bool in_8bit, const void *grads, int64_t at, int64_t rest) {
    sw_vec g = {0};
    if (!in_8bit)
        return sw_load_up_to(type, grads, at, rest, 0.0f);
    if (rest >= SW_LANES && at % SW_QUANT_BLOCK_ELEMS <= SW_QUANT_BLOCK_ELEMS - SW_LANES) {
        const char *record = (const char *)grads + at / SW_GRAIN_ELEMS * SW_GRADS_8BIT_GRAIN_BYTES;
        const float *scales = (const float *)(const void *)(record + SW_GRAIN_ELEMS);
        const int64_t elem = at % SW_GRAIN_ELEMS;
        return sw_quant_values((const int8_t *)record + elem, scales[elem / SW_QUANT_BLOCK_ELEMS]);
    }
    for (int64_t i = 0; i < rest && i < SW_LANES; i++)
        g[i] = sw_grads_8bit_at(grads, at + i);
    return g;
}

/* Updates a vector at element i of the run, of which `rest` elements are left. */
SW_INLINE void update_vector(const sw_dtype type, const bool in_8bit, const struct call *call, const struct run *run,
                             int64_t i, int64_t rest) {
    const sw_vec g = load_gradients(type, in_8bit, call->grads, run->at + i, rest);
    sw_vec m = sw_load_up_to(SW_F32, run->m, i, rest, 0.0f);
    sw_vec v = sw_load_up_to(SW_F32, run->v, i, rest, 0.0f);
    sw_vec master = sw_load_up_to(SW_F32, run->master, i, rest, 0.0f);
    update_lanes(&call->scalars, run, g, &master, &m, &v);
    sw_store_up_to(SW_F32, run->master, i, rest, master);
    sw_store_up_to(SW_F32, run->m, i, rest, m);
    sw_store_up_to(SW_F32, run->v, i, rest, v);
    if (call->weights == NULL)
        return;
    if (rest >= SW_LANES)
        sw_stream(type, call->weights, run->at + i, master);
    else
        sw_store_up_to(type, call->weights, run->at + i, rest, master);
}

SW_INLINE void update_run(const sw_dtype type, const bool in_8bit, const struct sw_update_adamw *op,
                          const struct sw_adamw_scalars *scalars, const struct run *run, int64_t count) {
    /* Stores cannot change a local copy. */
    const struct call call = {.scalars = *scalars, .grads = op->grads, .weights = op->weights};
    const struct run here = *run;
    int64_t i = 0;
    for (; i + SW_LANES <= count; i += SW_LANES)
        update_vector(type, in_8bit, &call, &here, i, SW_LANES);
    if (i < count)
        update_vector(type, in_8bit, &call, &here, i, count - i);
}

/* Rounds the masters of elements of the call, whose state stays as it is. */
static void leave_out(const struct sw_update_adamw *op, int64_t at, int64_t count, const float *master) {
    if (op->weights != NULL)
        sw_narrow(op->type, op->weights, at, count, master);
}

/* Updates the elements [first, first + count) of a grain that begins at element chunk_elem of the call. */
static void update_elems(const struct update *u, int64_t chunk_elem, int64_t first, int64_t count, float *master,
                         float *m, float *v) {
    const struct sw_update_adamw *op = u->op;
    int64_t part;
    for (int64_t i = 0; i < count; i += part) {
        const int64_t at = chunk_elem + first + i, unit_elem = op->first_elem + at;
        const struct sw_decay_span span = sw_decay_span(&u->scalars, op->runs, op->run_count, unit_elem);
        const struct run run = {.at = at,
                                .master = master + i,
                                .m = m + i,
                                .v = v + i,
                                .decay_factor = span.factor,
                                .minus_step_size = span.minus_step_size,
                                .correction2_sqrt = span.correction2_sqrt};
        part = sw_min_i64(count - i, span.end - unit_elem);
        if (span.left_out)
            leave_out(op, at, part, master + i);
        else if (op->grads_format == SW_GRADS_8BIT)
            SW_FOR_TYPE(update_run, op->type, true, op, &u->scalars, &run, part);
        else
            SW_FOR_TYPE(update_run, op->type, false, op, &u->scalars, &run, part);
    }
}

/* A block of a narrow record: its first element, within the grain and within the call. */
struct block {
    int64_t at, chunk_elem;
    const struct sw_record_parts *record;
};

SW_INLINE float scale_at(const float *scales, int64_t at) {
    return scales == NULL ? 0.0f : scales[at / SW_MOMENT_BLOCK_ELEMS];
}

/* Widens and updates a block within one span, and leaves its moments in `to`. */
SW_INLINE void update_whole(const sw_dtype type, const bool in_8bit, const sw_optimizer_format format,
                            const struct update *u, const struct run *given, const struct block *block,
                            struct sw_moment_block *to) {
    const struct call call = {.scalars = u->scalars, .grads = u->op->grads, .weights = u->op->weights};
    const struct run run = *given;
    const struct sw_record_parts record = *block->record;
    const float m_scale = scale_at(record.m_scale, block->at), v_scale = scale_at(record.v_scale, block->at);
    sw_vec largest_m = {0}, largest_v = {0};
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_LANES) {
        sw_vec m = sw_widen_m(format, &record, block->at + i, m_scale);
        sw_vec v = sw_widen_v(format, &record, block->at + i, v_scale);
        sw_vec master = sw_vec_load(run.master + i);
        update_lanes(&call.scalars, &run, load_gradients(type, in_8bit, call.grads, run.at + i, SW_LANES), &master, &m,
                     &v);
        largest_m = sw_vec_max(sw_vec_abs(m), largest_m);
        largest_v = sw_vec_max(sw_vec_abs(v), largest_v);
        sw_vec_store(run.master + i, master);
        sw_vec_store(to->m + i, m);
        sw_vec_store(to->v + i, v);
        if (call.weights != NULL)
            sw_stream(type, call.weights, run.at + i, master);
    }
    to->largest_m = largest_m;
    to->largest_v = largest_v;
}

/* Does the same for a block of several spans. */
static void update_parts(const struct update *u, const struct block *block, struct sw_moment_block *to) {
    const struct sw_record_parts *record = block->record;
    const float m_scale = scale_at(record->m_scale, block->at), v_scale = scale_at(record->v_scale, block->at);
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_LANES) {
        sw_vec_store(to->m + i, sw_widen_m(u->op->format, record, block->at + i, m_scale));
        sw_vec_store(to->v + i, sw_widen_v(u->op->format, record, block->at + i, v_scale));
    }
    update_elems(u, block->chunk_elem - block->at, block->at, SW_MOMENT_BLOCK_ELEMS, record->master + block->at, to->m,
                 to->v);
    to->largest_m = to->largest_v = (sw_vec){0};
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_LANES) {
        to->largest_m = sw_vec_max(sw_vec_abs(sw_vec_load(to->m + i)), to->largest_m);
        to->largest_v = sw_vec_max(sw_vec_abs(sw_vec_load(to->v + i)), to->largest_v);
    }
}

SW_INLINE void update_narrow(const sw_optimizer_format format, const sw_rounding rounding, const struct update *u,
                             int64_t chunk_elem, const struct sw_record_parts *record) {
    const struct sw_update_adamw *op = u->op;
    const struct sw_moment_rounding how = {
        .seed = op->seed, .unit = op->unit, .step = op->adamw->step, .first_elem = op->first_elem + chunk_elem};
    struct sw_decay_span span = {.end = 0};
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += SW_MOMENT_BLOCK_ELEMS) {
        const struct block block = {.at = at, .chunk_elem = chunk_elem + at, .record = record};
        struct sw_moment_block moments;
        if (span.end <= how.first_elem + at)
            span = sw_decay_span(&u->scalars, op->runs, op->run_count, how.first_elem + at);
        const struct run run = {.at = block.chunk_elem,
                                .master = record->master + at,
                                .decay_factor = span.factor,
                                .minus_step_size = span.minus_step_size,
                                .correction2_sqrt = span.correction2_sqrt};
        if (span.left_out) {
            leave_out(op, block.chunk_elem, SW_MOMENT_BLOCK_ELEMS, run.master);
            continue;
        }
        if (span.end < how.first_elem + at + SW_MOMENT_BLOCK_ELEMS)
            update_parts(u, &block, &moments);
        else if (op->grads_format == SW_GRADS_8BIT)
            SW_FOR_TYPE(update_whole, op->type, true, format, u, &run, &block, &moments);
        else
            SW_FOR_TYPE(update_whole, op->type, false, format, u, &run, &block, &moments);
        sw_round_moments(format, rounding, &how, at, &moments, record);
    }
}

static void update_narrow_grain(const struct update *u, int64_t chunk_elem, const struct sw_record_parts *record) {
    if (u->op->format == SW_OPTIMIZER_BF16 && u->op->rounding == SW_ROUND_NEAREST)
        update_narrow(SW_OPTIMIZER_BF16, SW_ROUND_NEAREST, u, chunk_elem, record);
    else if (u->op->format == SW_OPTIMIZER_BF16)
        update_narrow(SW_OPTIMIZER_BF16, SW_ROUND_STOCHASTIC, u, chunk_elem, record);
    else if (u->op->rounding == SW_ROUND_NEAREST)
        update_narrow(SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST, u, chunk_elem, record);
    else
        update_narrow(SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, u, chunk_elem, record);
}

static void update_grain(const struct update *u, int64_t chunk_elem) {
    const struct sw_update_adamw *op = u->op;
    const bool narrow = op->format != SW_OPTIMIZER_FP32, wide = narrow && op->first_elem + chunk_elem >= op->wide_elem;
    char *at = (char *)op->records + chunk_elem / SW_GRAIN_ELEMS * sw_update_record_bytes(op);
    const struct sw_record_parts record = sw_record_parts(op->format, wide, at);
    if (op->adamw->skip && op->weights == NULL)
        return;
    if (op->adamw->skip)
        sw_narrow(op->type, op->weights, chunk_elem, record.elems, record.master);
    else if (narrow && !wide)
        update_narrow_grain(u, chunk_elem, &record);
    else
        update_elems(u, chunk_elem, 0, record.elems, record.master, (float *)record.m, (float *)record.v);
    const int64_t bytes = sw_dtype_bytes(op->type);
    if (op->weights != NULL)
        memset((char *)op->weights + (chunk_elem + record.elems) * bytes, 0,
               (size_t)((SW_GRAIN_ELEMS - record.elems) * bytes));
    sw_end_streams();
}

static void update_grains(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    for (int64_t grain = first; grain < end; grain++)
        update_grain(context, grain * SW_GRAIN_ELEMS);
}

static sw_status update_adamw(struct sw_stream *stream, const void *args) {
    const struct sw_update_adamw *op = args;
    const struct update u = {.op = op, .scalars = sw_adamw_scalars(op->adamw)};
    sw_cpu_share(stream, true, op->grains, update_grains, &u);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_update)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_UPDATE_ADAMW] = update_adamw;
}
