#include "core/base_format.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/tile.h"

enum {
    TILE_BYTES = SW_TILE_ELEMS * (int)sizeof(float),
    HALF_BYTES = 16, /* of the vectors by which codes are looked up, whatever the instruction set */
    SCALE_NUMBERS = SW_NF4_SCALE_ONE - SW_NF4_SCALE_ZERO,
};
static_assert(SW_TILE_ELEMS % SW_QUANT_BLOCK_ELEMS == 0 && SW_TILE_ELEMS % SW_NF4_BLOCK_ELEMS == 0 &&
                  SW_TILE_ELEMS % SW_FP8_BASE_BLOCK_ELEMS == 0 && SW_TILE_ELEMS % SW_MXFP4_BLOCK_ELEMS == 0,
              "a tile has whole blocks");
static_assert((int)SW_MXFP4_LEVELS == (int)SW_NF4_LEVELS, "tables of levels fit both formats");

/* An op being shared by threads, and the tables of its codes. */
struct quantizing {
    const struct sw_quantize_base *op;
    float between[SW_NF4_LEVELS - 1];    /* the midpoint between a level and the next */
    float between_scales[SCALE_NUMBERS]; /* the same of the levels from 0 on */
};
struct dequantizing {
    const struct sw_dequantize_base *op;
    float level[SW_NF4_LEVELS]; /* of nf4 or mxfp4 */
    float scale_level[SW_NF4_SCALE_LEVELS];
};

/* Writes the codes of a block. A code is the number of midpoints that its element exceeds. */
SW_INLINE void encode_block(const float *between, const float *values, float scale, uint8_t *to) {
    int8_t codes[SW_NF4_BLOCK_ELEMS];
    uint16_t pairs[SW_NF4_BLOCK_ELEMS / 2];
    const float inverse = 1.0f / scale;
    for (int i = 0; i < SW_NF4_BLOCK_ELEMS; i += SW_LANES) {
        const sw_vec scaled = sw_vec_load(values + i) * inverse;
        sw_vec_int code = {0};
        for (int level = 0; level < SW_NF4_LEVELS - 1; level++)
            code -= (sw_vec_int)(scaled > sw_vec_splat(between[level]));
        *(sw_vec_code_unaligned *)(codes + i) = __builtin_convertvector(code, sw_vec_code);
    }
    memcpy(pairs, codes, sizeof pairs);
    for (int i = 0; i < SW_NF4_BLOCK_ELEMS / 2; i++)
        to[i] = (uint8_t)((pairs[i] & 0x0fu) | (pairs[i] >> 4 & 0xf0u));
}

/* Returns how many of the midpoints a magnitude exceeds. */
SW_INLINE int scales_below(const float *between_scales, float magnitude) {
    int below = 0;
    for (int step = SCALE_NUMBERS / 2; step >= 1; step /= 2)
        below += magnitude > between_scales[below + step - 1] ? step : 0;
    return below + (magnitude > between_scales[below]);
}
static_assert(SCALE_NUMBERS == 128, "the search halves its steps without a rest");

static void encode_scales(const float *between_scales, const float *scales, struct sw_nf4_record *record) {
    double sum = 0.0;
    float spread = 0.0f;
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++)
        sum += (double)scales[b];
    const float offset = (float)(sum / SW_NF4_GRAIN_BLOCKS);
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++) {
        const float away = fabsf(scales[b] - offset);
        spread = away > spread ? away : spread;
    }
    spread = spread < FLT_MIN ? 0.0f : spread;
    const float inverse = spread > 0.0f ? 1.0f / spread : 0.0f;
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++) {
        const float away = (scales[b] - offset) * inverse;
        const int number = scales_below(between_scales, fabsf(away));
        const int below = number < SW_NF4_SCALE_ZERO ? number : SW_NF4_SCALE_ZERO;
        record->scale_codes[b] = (uint8_t)(SW_NF4_SCALE_ZERO + (away < 0.0f ? -below : number));
    }
    record->spread = spread;
    record->offset = offset;
}

static void encode_grain(const struct quantizing *q, int64_t grain) {
    struct sw_nf4_record *record = (struct sw_nf4_record *)q->op->records + grain;
    float scales[SW_NF4_GRAIN_BLOCKS];
    struct sw_tile tile;
    bool finite = true;
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++) {
        const int64_t at = grain * SW_GRAIN_ELEMS + b * SW_NF4_BLOCK_ELEMS;
        const float *values = sw_tile_load(q->op->type, q->op->from, at, SW_NF4_BLOCK_ELEMS, &tile);
        const uint32_t largest = sw_quant_largest(values, SW_NF4_BLOCK_ELEMS);
        uint8_t *codes = record->codes + b * SW_NF4_BLOCK_ELEMS / 2;
        finite = finite && largest < SW_INFINITY_BITS;
        scales[b] = sw_quant_float(largest) >= FLT_MIN ? sw_quant_float(largest) : 0.0f;
        if (scales[b] > 0.0f)
            encode_block(q->between, values, scales[b], codes);
        else
            memset(codes, SW_NF4_ZERO | SW_NF4_ZERO << 4, SW_NF4_BLOCK_ELEMS / 2);
    }
    memset(record->zeros, 0, sizeof record->zeros);
    if (finite) {
        encode_scales(q->between_scales, scales, record);
        return;
    }
    memset(record->codes, SW_NF4_ZERO | SW_NF4_ZERO << 4, sizeof record->codes);
    memset(record->scale_codes, SW_NF4_SCALE_ZERO, sizeof record->scale_codes);
    record->spread = record->offset = sw_quant_float(SW_QUANT_NAN_BITS);
}

static void encode_grains(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    for (int64_t grain = first; grain < end; grain++)
        encode_grain(context, grain);
}

static sw_status quantize_base(struct sw_stream *stream, const void *args) {
    const struct sw_quantize_base *op = args;
    struct quantizing q = {.op = op};
    if (op->format == SW_BASE_INT8)
        return stream->device->ops.op[SW_DEVICE_QUANTIZE](
            stream, &(const struct sw_quantize){op->type, SW_QUANT_INT8, op->grains, op->from, op->records});
    for (int i = 0; i < SW_NF4_LEVELS - 1; i++)
        q.between[i] = (sw_nf4_level(i) + sw_nf4_level(i + 1)) * 0.5f;
    for (int i = 0; i < SCALE_NUMBERS; i++)
        q.between_scales[i] =
            (sw_nf4_scale_level(SW_NF4_SCALE_ZERO + i) + sw_nf4_scale_level(SW_NF4_SCALE_ZERO + i + 1)) * 0.5f;
    sw_cpu_share(stream, true, op->grains, encode_grains, &q);
    return SW_OK;
}

/* The values of a block's 16 codes in the op's type: a number of each, and in `plane` the first bytes of all, then the
 * second, and so on. */
struct values {
    _Alignas(64) uint8_t number[SW_NF4_LEVELS * sizeof(float)];
    _Alignas(64) uint8_t plane[sizeof(float)][SW_NF4_LEVELS];
};

SW_INLINE void make_values(const sw_dtype type, const float *level, float scale, struct values *out) {
    const int bytes = type == SW_F32 ? 4 : 2;
    for (int i = 0; i < SW_NF4_LEVELS; i += SW_LANES)
        sw_store(type, out->number, i, sw_vec_load(level + i) * scale);
    for (int i = 0; i < SW_NF4_LEVELS; i++)
        for (int b = 0; b < bytes; b++)
            out->plane[b][i] = out->number[i * bytes + b];
}

#if defined(__AVX__)
/* Stores the numbers of 16 codes: looks up a byte of all numbers at once, and interleaves the bytes. */
SW_INLINE void store_values(const sw_dtype type, const struct values *values, __m128i codes, char *to) {
    __m128i plane[4], low[2], high[2], *out = (__m128i *)(void *)to;
    const int pairs = type == SW_F32 ? 2 : 1;
    for (int b = 0; b < 2 * pairs; b++)
        plane[b] = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)(const void *)values->plane[b]), codes);
    for (int p = 0; p < pairs; p++) {
        low[p] = _mm_unpacklo_epi8(plane[2 * p], plane[2 * p + 1]);
        high[p] = _mm_unpackhi_epi8(plane[2 * p], plane[2 * p + 1]);
    }
    if (type != SW_F32) {
        _mm_storeu_si128(out, low[0]);
        _mm_storeu_si128(out + 1, high[0]);
        return;
    }
    _mm_storeu_si128(out, _mm_unpacklo_epi16(low[0], low[1]));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low[0], low[1]));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high[0], high[1]));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high[0], high[1]));
}
#endif

/* Decodes the codes of a block of `elems` elements. */
SW_INLINE void decode_codes(const sw_dtype type, const int elems, const uint8_t *codes, const struct values *values,
                            char *to) {
    const int bytes = type == SW_F32 ? 4 : 2;
#if defined(__AVX__)
    for (int i = 0; i < elems / 2; i += HALF_BYTES) {
        const __m128i both = _mm_loadu_si128((const __m128i *)(const void *)(codes + i)), mask = _mm_set1_epi8(15);
        const __m128i first = _mm_and_si128(both, mask), second = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
        char *here = to + (int64_t)2 * i * bytes;
        store_values(type, values, _mm_unpacklo_epi8(first, second), here);
        store_values(type, values, _mm_unpackhi_epi8(first, second), here + (int64_t)HALF_BYTES * bytes);
    }
#else
    for (int i = 0; i < elems / 2; i++) {
        memcpy(to + (int64_t)2 * i * bytes, values->number + (codes[i] & 15) * bytes, (size_t)bytes);
        memcpy(to + ((int64_t)2 * i + 1) * bytes, values->number + (codes[i] >> 4) * bytes, (size_t)bytes);
    }
#endif
}

SW_INLINE void decode_nf4(const sw_dtype type, const struct dequantizing *d, const struct sw_nf4_record *record,
                          int64_t at, char *to) {
    const int64_t bytes = type == SW_F32 ? 4 : 2;
    struct values values;
    for (int64_t i = at; i < at + SW_TILE_ELEMS; i += SW_NF4_BLOCK_ELEMS) {
        const float scale_level = d->scale_level[record->scale_codes[i / SW_NF4_BLOCK_ELEMS]];
        make_values(type, d->level, sw_nf4_scale(scale_level, record->spread, record->offset), &values);
        decode_codes(type, SW_NF4_BLOCK_ELEMS, record->codes + i / 2, &values, to + (i - at) * bytes);
    }
}

SW_INLINE void decode_mxfp4(const sw_dtype type, const struct dequantizing *d, const struct sw_mxfp4_record *record,
                            int64_t at, char *to) {
    const int64_t bytes = type == SW_F32 ? 4 : 2;
    struct values values;
    for (int64_t i = at; i < at + SW_TILE_ELEMS; i += SW_MXFP4_BLOCK_ELEMS) {
        make_values(type, d->level, sw_mxfp4_scale(record->scales[i / SW_MXFP4_BLOCK_ELEMS]), &values);
        decode_codes(type, SW_MXFP4_BLOCK_ELEMS, record->codes + i / 2, &values, to + (i - at) * bytes);
    }
}

SW_INLINE void decode_fp8(const sw_dtype type, const struct sw_fp8_record *record, int64_t at, char *to) {
    _Alignas(64) float values[SW_FP8_BASE_BLOCK_ELEMS];
    const float nan = sw_quant_float(SW_QUANT_NAN_BITS);
    for (int64_t i = at; i < at + SW_TILE_ELEMS; i += SW_FP8_BASE_BLOCK_ELEMS) {
        const float scale = record->scales[i / SW_FP8_BASE_BLOCK_ELEMS];
        for (int v = 0; v < SW_FP8_BASE_BLOCK_ELEMS; v++) {
            const float value = sw_fp8_value(SW_FP8_E4M3, record->codes[i + v]) * scale;
            values[v] = isnan(value) ? nan : value;
        }
        for (int v = 0; v < SW_FP8_BASE_BLOCK_ELEMS; v += SW_LANES)
            sw_store(type, to, i - at + v, sw_vec_load(values + v));
    }
}

SW_INLINE void decode_int8(const sw_dtype type, const char *record, int64_t at, char *to) {
    for (int64_t i = at; i < at + SW_TILE_ELEMS; i += SW_QUANT_BLOCK_ELEMS) {
        float scale;
        memcpy(&scale, record + SW_GRAIN_ELEMS + i / SW_QUANT_BLOCK_ELEMS * (int64_t)sizeof scale, sizeof scale);
        for (int64_t v = i; v < i + SW_QUANT_BLOCK_ELEMS; v += SW_LANES)
            sw_store(type, to, v - at, sw_quant_values((const int8_t *)record + v, scale));
    }
}

SW_INLINE void decode_tile(const sw_dtype type, const struct dequantizing *d, int64_t elem, char *to) {
    const int64_t at = elem % SW_GRAIN_ELEMS;
    const char *record = (const char *)d->op->records + elem / SW_GRAIN_ELEMS * sw_base_grain_bytes(d->op->format);
    if (d->op->format == SW_BASE_NF4)
        decode_nf4(type, d, (const struct sw_nf4_record *)(const void *)record, at, to);
    else if (d->op->format == SW_BASE_MXFP4)
        decode_mxfp4(type, d, (const struct sw_mxfp4_record *)(const void *)record, at, to);
    else if (d->op->format == SW_BASE_FP8)
        decode_fp8(type, (const struct sw_fp8_record *)(const void *)record, at, to);
    else
        decode_int8(type, record, at, to);
}

/* Tiles are counted from a tile boundary of the unit. One that the op wants only a part of is decoded whole. */
static void decode_tiles(const void *context, int64_t first, int64_t end, int thread) {
    const struct dequantizing *d = context;
    const struct sw_dequantize_base *op = d->op;
    const int64_t behind = op->first_elem + op->elems, bytes = sw_dtype_bytes(op->type);
    _Alignas(64) char whole[TILE_BYTES];
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        const int64_t start = (op->first_elem / SW_TILE_ELEMS + t) * SW_TILE_ELEMS;
        const int64_t elem = sw_max_i64(start, op->first_elem);
        const int64_t count = sw_min_i64(start + SW_TILE_ELEMS, behind) - elem;
        char *to = (char *)op->to + (elem - op->first_elem) * bytes;
        SW_FOR_TYPE(decode_tile, op->type, d, start, count < SW_TILE_ELEMS ? whole : to);
        if (count < SW_TILE_ELEMS)
            memcpy(to, whole + (elem - start) * bytes, (size_t)(count * bytes));
    }
}

static sw_status dequantize_base(struct sw_stream *stream, const void *args) {
    const struct sw_dequantize_base *op = args;
    struct dequantizing d = {.op = op};
    for (int i = 0; i < SW_NF4_LEVELS; i++)
        d.level[i] = op->format == SW_BASE_MXFP4 ? sw_mxfp4_level(i) : sw_nf4_level(i);
    for (int i = 0; i < SW_NF4_SCALE_LEVELS; i++)
        d.scale_level[i] = sw_nf4_scale_level(i);
    const int64_t tiles = sw_div_up(op->first_elem % SW_TILE_ELEMS + op->elems, SW_TILE_ELEMS);
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, tiles, decode_tiles, &d);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_base_format)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_QUANTIZE_BASE] = quantize_base;
    ops->op[SW_DEVICE_DEQUANTIZE_BASE] = dequantize_base;
}
