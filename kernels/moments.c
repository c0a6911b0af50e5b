#include "kernels/moments.h"

#include "core/dtype.h"
#include "core/rng.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static float decay_factor_of(double lr, double weight_decay) {
    return (float)(1.0 - lr * weight_decay);
}

static float minus_step_size_of(double lr, double correction1) {
    return (float)(-lr / correction1);
}

static double correction_of(double beta, int64_t step) {
    return 1.0 - pow(beta, (double)step);
}

struct sw_adamw_scalars sw_adamw_scalars(const struct sw_adamw *adamw) {
    const double correction1 = correction_of(adamw->beta1, adamw->step);
    return (struct sw_adamw_scalars){
        .lr = adamw->lr,
        .weight_decay = adamw->weight_decay,
        .correction1 = correction1,
        .betas = {adamw->beta1, adamw->beta2},
        .step = adamw->step,
        .decay_factor = decay_factor_of(adamw->lr, adamw->weight_decay),
        .one_minus_beta1 = (float)(1.0 - adamw->beta1),
        .beta2 = (float)adamw->beta2,
        .one_minus_beta2 = (float)(1.0 - adamw->beta2),
        .minus_step_size = minus_step_size_of(adamw->lr, correction1),
        .correction2_sqrt = (float)sqrt(correction_of(adamw->beta2, adamw->step)),
        .eps = (float)adamw->eps,
        .grad_scale = adamw->grad_scale,
    };
}

struct sw_decay_span sw_decay_span(const struct sw_adamw_scalars *scalars, const struct sw_decay_run *runs,
                                   int64_t run_count, int64_t elem) {
    int64_t low = 0, high = run_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (runs[middle].end <= elem)
            low = middle + 1;
        else
            high = middle;
    }
    struct sw_decay_span span = {.end = INT64_MAX,
                                 .factor = 1.0f,
                                 .minus_step_size = scalars->minus_step_size,
                                 .correction2_sqrt = scalars->correction2_sqrt};
    if (low == run_count)
        return span;
    const struct sw_decay_run *run = &runs[low];
    const double lr = run->lr_scale == 0.0 ? scalars->lr : run->lr_scale * scalars->lr;
    const bool own_step = run->step != 0 && run->step != scalars->step;
    span.end = run->end;
    span.left_out = run->left_out;
    if (run->decay)
        span.factor = run->lr_scale == 0.0 ? scalars->decay_factor : decay_factor_of(lr, scalars->weight_decay);
    if (own_step) {
        span.minus_step_size = minus_step_size_of(lr, correction_of(scalars->betas[0], run->step));
        span.correction2_sqrt = (float)sqrt(correction_of(scalars->betas[1], run->step));
    } else if (run->lr_scale != 0.0) {
        span.minus_step_size = minus_step_size_of(lr, scalars->correction1);
    }
    return span;
}

/* A table's entries for the decades that end at `power`. `parts`: parts of the first decade; `shift`: the code of its
 * first part, less one. */
#define DECADES(entry, parts, shift)                                                                                   \
    entry(1.0 * (parts), 1e-6, shift), entry(2.0 * (parts), 1e-5, shift), entry(4.0 * (parts), 1e-4, shift),           \
        entry(8.0 * (parts), 1e-3, shift), entry(16.0 * (parts), 1e-2, shift), entry(32.0 * (parts), 1e-1, shift),     \
        entry(64.0 * (parts), 1e0, shift)
/* The same for numbers, in the order of exponents modulo 8. `special`: the entry of 0.0 and 1.0. */
#define MAP_TABLE(entry, special)                                                                                      \
    entry(1e-5), entry(1e-4), entry(1e-3), entry(1e-2), entry(1e-1), entry(1e0), (special), entry(1e-6)
#define SLOPE(power) (float)(0.9 * (power))
#define FIRST(power) (float)(0.1 * (power))
#define STEEP(parts, power, shift) (float)((parts) / (0.9 * (power)))
#define LINE(parts, power, shift) (float)((parts)*8.0 / 9.0 - 0.5 - (shift))
#define CROSS(parts, power, shift) ((power) < 1.0 ? (float)((parts)*44.0 / 27.0 - 5.0 / 6.0 - (shift)) : NO_DECADE)
#define NEXT(parts, power, shift) ((power) < 1.0 ? (float)((parts)*16.0 / 9.0 - 0.5 - (shift)) : NO_DECADE)
#define NO_DECADE 1e9f /* above every position */
/* The lines' tables. Entry 0 runs from 0.0 to `number`, the number of code 1. */
#define LINES(parts, shift, number)                                                                                    \
    .steep = {(float)(1.0 / (number)), DECADES(STEEP, parts, shift)}, .line = {0.0f, DECADES(LINE, parts, shift)},     \
    .cross = {NO_DECADE, DECADES(CROSS, parts, shift)}, .next = {NO_DECADE, DECADES(NEXT, parts, shift)}
/* The line from the last part's number to 1.0; the offset is exact, so 1.0 is at `code`. */
#define TO_ONE(parts) (float)((parts) / 0.45)
#define LAST(parts, code) .to_one = TO_ONE(parts), .one_offset = (code)-TO_ONE(parts)
/* The entry of the number of code 1, given by its bits, is 1.0. */
#define ENTRIES_FROM(bits) .entry_offset = (float)(1.0 - (double)(bits) * (double)SW_MOMENT_ENTRY_SLOPE)

const struct sw_moment_map sw_moment_maps[SW_MOMENTS] = {
    /* Q is 0.5 for 0.0 and 128.5 for 1.0, whose mantissas are 1 and 1 + 1/256. */
    [SW_MOMENT_M] = {.slope = {MAP_TABLE(SLOPE, 256.0f)},
                     .first = {MAP_TABLE(FIRST, 0.0f)},
                     LINES(1, 0.0, 0.55e-6),
                     LAST(64.0, 128.0f),
                     ENTRIES_FROM(0x3513a3b6 /* 0.55e-6 */)},
    /* Q is 0.75 for 0.0 and 128.25 for 1.0, whose mantissas are 1 + 1/2 and 1 + 1/512. */
    [SW_MOMENT_V] = {.slope = {MAP_TABLE(SLOPE, (float)(-512.0 / 255.0))},
                     .first = {MAP_TABLE(FIRST, -0.5f * (float)(-512.0 / 255.0))},
                     LINES(2, 1.0, 0.325e-6),
                     LAST(128.0, 255.0f),
                     ENTRIES_FROM(0x34ae7ba9 /* 0.325e-6 */)},
};

struct sw_record_parts sw_record_parts(sw_optimizer_format format, bool wide, void *record) {
    static const int64_t moment_bytes[SW_OPTIMIZER_FORMATS] = {4, 2, 1};
    assert(format < SW_OPTIMIZER_FORMATS);
    const int64_t elems = wide ? SW_WIDE_GRAIN_ELEMS : SW_GRAIN_ELEMS, bytes = wide ? 4 : moment_bytes[format];
    struct sw_record_parts parts = {.master = record, .m = (char *)record + 4 * elems, .elems = elems};
    parts.v = parts.m + bytes * elems;
    if (format == SW_OPTIMIZER_8BIT && !wide) {
        parts.m_scale = (float *)(parts.v + elems);
        parts.v_scale = parts.m_scale + SW_GRAIN_ELEMS / SW_MOMENT_BLOCK_ELEMS;
    }
    return parts;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns the number at q, as struct sw_moment_map says. */
static float number_at(const struct sw_moment_map *map, float q) {
    const uint32_t bits = bits_of(q), entry = (bits >> 23) % SW_MAP_ENTRIES;
    const float mantissa = of_bits((bits & 0x7fffffu) | 0x3f800000u);
    return fmaf(map->slope[entry], mantissa - 1.0f, map->first[entry]);
}

static float number_of_m(uint8_t code) {
    const float steps = (float)(uint8_t)(code + 127u) - 127.0f;
    return copysignf(number_at(&sw_moment_maps[SW_MOMENT_M], fabsf(steps) + 0.5f), steps);
}

static float number_of_v(uint8_t code) {
    return number_at(&sw_moment_maps[SW_MOMENT_V], (float)code * 0.5f + 0.75f);
}

/* Returns the position of a magnitude, as struct sw_moment_map says. */
static float position(const struct sw_moment_map *map, float y) {
    const float logarithm = fmaf((float)(int32_t)bits_of(y), SW_MOMENT_ENTRY_SLOPE, map->entry_offset);
    const int entry = (int)fmaxf(logarithm, 0.0f);
    const float z = y * map->steep[entry];
    const float parts = fminf(z + map->line[entry], fmaf(z, SW_MOMENT_FIFTH, map->next[entry]));
    const float lowest = fminf(parts, fmaf(z, SW_MOMENT_THIRD, map->cross[entry]));
    return fmaxf(lowest, fmaf(y, map->to_one, map->one_offset));
}

/* Returns what is added to a position: 0.5, or the 16-bit random number. */
static float above(sw_rounding rounding, uint32_t random) {
    return rounding == SW_ROUND_NEAREST ? 0.5f : (float)(int32_t)random * 0x1p-16f;
}

/* Returns the scale of a block: its largest magnitude, but at least a normal number; 0 for a block of zeros. NaN counts
 * as 0. */
static float scale_of(const float values[SW_MOMENT_BLOCK_ELEMS]) {
    float largest = 0.0f;
    for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++)
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    return largest > 0.0f ? fminf(fmaxf(largest, FLT_MIN), FLT_MAX) : 0.0f;
}

/* Returns a value's magnitude relative to its block, at most 1; NaN becomes 1. */
static float magnitude(float value, float inverse) {
    const float y = fabsf(value) * inverse;
    return y < 1.0f ? y : 1.0f;
}

static uint8_t code_of_m(float m, float inverse, float more) {
    const int32_t steps = (int32_t)(position(&sw_moment_maps[SW_MOMENT_M], magnitude(m, inverse)) + more);
    if (!signbit(m))
        return (uint8_t)steps;
    return (uint8_t)(steps > 127 ? -127 : -steps);
}

static uint8_t code_of_v(float v, float inverse, float more) {
    const int32_t steps = (int32_t)(position(&sw_moment_maps[SW_MOMENT_V], magnitude(v, inverse)) + more);
    return (uint8_t)(steps == 0 && bits_of(v) != 0 ? 1 : steps);
}

/* Returns a value in bf16, with `more` added to the 16 bits that are cut off, but at least `least`. */
static sw_bf16 to_bf16(float value, uint32_t more, uint32_t least) {
    const uint32_t bits = bits_of(value), size = (bits & 0x7fffffffu) + more;
    const uint32_t finite = (size < 0x7f7fffffu ? size : 0x7f7fffffu) >> 16;
    return (sw_bf16)((bits >> 16 & 0x8000u) | (finite > least ? finite : least));
}

static uint32_t bf16_above(sw_rounding rounding, float value, uint32_t random) {
    return rounding == SW_ROUND_NEAREST ? 0x7fffu + (bits_of(value) >> 16 & 1u) : random;
}

void sw_moments_widen(sw_optimizer_format format, const struct sw_record_parts *record, int64_t at,
                      float m[SW_MOMENT_BLOCK_ELEMS], float v[SW_MOMENT_BLOCK_ELEMS]) {
    const int64_t block = at / SW_MOMENT_BLOCK_ELEMS;
    assert(format == SW_OPTIMIZER_BF16 || (record->m_scale != NULL && record->v_scale != NULL));
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++) {
        if (format == SW_OPTIMIZER_BF16) {
            m[i] = sw_bf16_to_f32(((const sw_bf16 *)record->m)[at + i]);
            v[i] = sw_bf16_to_f32(((const sw_bf16 *)record->v)[at + i]);
        } else {
            m[i] = number_of_m(((const uint8_t *)record->m)[at + i]) * record->m_scale[block];
            v[i] = number_of_v(((const uint8_t *)record->v)[at + i]) * record->v_scale[block];
        }
    }
}

/* Returns the 16 random bits of an element. */
static uint32_t random_of(const struct sw_moment_rounding *how, int64_t elem) {
    if (how->rounding == SW_ROUND_NEAREST)
        return 0;
    const struct sw_rng_block block =
        sw_rng(how->seed, sw_moment_stream(how->unit, how->step), sw_moment_counter(elem));
    return block.word[elem / (INT64_C(2) * SW_MOMENT_LANES) % 4] >> elem / SW_MOMENT_LANES % 2 * 16 & 0xffffu;
}

void sw_moments_round(sw_optimizer_format format, const struct sw_moment_rounding *how, int64_t at,
                      const float m[SW_MOMENT_BLOCK_ELEMS], const float v[SW_MOMENT_BLOCK_ELEMS],
                      const struct sw_record_parts *record) {
    const int64_t block = at / SW_MOMENT_BLOCK_ELEMS;
    const float scale[SW_MOMENTS] = {scale_of(m), scale_of(v)};
    const float inverse[SW_MOMENTS] = {scale[0] > 0.0f ? 1.0f / scale[0] : 0.0f,
                                       scale[1] > 0.0f ? 1.0f / scale[1] : 0.0f};
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++) {
        const uint32_t random = random_of(how, how->first_elem + at + i), other = random >> 8 | (random & 0xffu) << 8;
        if (format == SW_OPTIMIZER_BF16) {
            ((sw_bf16 *)record->m)[at + i] = to_bf16(m[i], bf16_above(how->rounding, m[i], random), 0);
            ((sw_bf16 *)record->v)[at + i] = to_bf16(v[i], bf16_above(how->rounding, v[i], other), bits_of(v[i]) != 0);
        } else {
            ((uint8_t *)record->m)[at + i] = code_of_m(m[i], inverse[SW_MOMENT_M], above(how->rounding, random));
            ((uint8_t *)record->v)[at + i] = code_of_v(v[i], inverse[SW_MOMENT_V], above(how->rounding, other));
        }
    }
    if (format == SW_OPTIMIZER_8BIT) {
        record->m_scale[block] = scale[SW_MOMENT_M];
        record->v_scale[block] = scale[SW_MOMENT_V];
    }
}

/* Writes codes that give these moments exactly with this scale; returns whether there are such. */
static bool find_codes(const float m[SW_MOMENT_BLOCK_ELEMS], float scale, uint8_t out[SW_MOMENT_BLOCK_ELEMS]) {
    const float inverse = 1.0f / scale;
    for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++) {
        out[i] = code_of_m(m[i], inverse, above(SW_ROUND_NEAREST, 0));
        if (number_of_m(out[i]) * scale != m[i])
            return false;
    }
    return true;
}

void sw_record_recover_m(const float m[SW_GRAIN_ELEMS], void *record) {
    enum { LOWEST_CODE = 129, TRIED_ULPS = 2 };
    const struct sw_record_parts to = sw_record_parts(SW_OPTIMIZER_8BIT, false, record);
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += SW_MOMENT_BLOCK_ELEMS) {
        uint8_t codes[SW_MOMENT_BLOCK_ELEMS];
        float lowest = 0.0f;
        for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++)
            lowest = fminf(lowest, m[at + i]);
        /* The division may be off by an ulp or two, and the product of the scale was rounded. */
        const uint32_t scale = bits_of(lowest / number_of_m(LOWEST_CODE));
        for (uint32_t ulps = 0; lowest < 0.0f && scale > TRIED_ULPS && ulps <= 2 * TRIED_ULPS; ulps++) {
            const float tried = of_bits(scale - TRIED_ULPS + ulps);
            if (!find_codes(m + at, tried, codes))
                continue;
            memcpy(to.m + at, codes, sizeof codes);
            to.m_scale[at / SW_MOMENT_BLOCK_ELEMS] = tried;
            break;
        }
    }
}

void sw_record_to_fp32(sw_optimizer_format units_format, bool wide_grain, const void *record, float *fp32) {
    const sw_optimizer_format format = sw_optimizer_records(units_format);
    const bool wide = wide_grain && format != SW_OPTIMIZER_FP32;
    const struct sw_record_parts from = sw_record_parts(format, wide, (void *)record);
    float *m = fp32 + SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
    const size_t bytes = (size_t)from.elems * sizeof(float);
    memset(fp32, 0, (size_t)sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32));
    memcpy(fp32, from.master, bytes);
    if (format == SW_OPTIMIZER_FP32 || wide) {
        memcpy(m, from.m, bytes);
        memcpy(v, from.v, bytes);
        return;
    }
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += SW_MOMENT_BLOCK_ELEMS)
        sw_moments_widen(format, &from, at, m + at, v + at);
}

void sw_record_from_fp32(sw_optimizer_format units_format, bool wide_grain, const struct sw_moment_rounding *how,
                         const float *fp32, void *record) {
    const sw_optimizer_format format = sw_optimizer_records(units_format);
    const bool wide = wide_grain && format != SW_OPTIMIZER_FP32;
    memset(record, 0, (size_t)sw_optimizer_grain_bytes(units_format));
    const struct sw_record_parts to = sw_record_parts(format, wide, record);
    const float *m = fp32 + SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
    const size_t bytes = (size_t)to.elems * sizeof(float);
    memcpy(to.master, fp32, bytes);
    if (format == SW_OPTIMIZER_FP32 || wide) {
        memcpy(to.m, m, bytes);
        memcpy(to.v, v, bytes);
        return;
    }
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += SW_MOMENT_BLOCK_ELEMS)
        sw_moments_round(format, how, at, m + at, v + at, &to);
}

struct sw_record_parts sw_muon_record_parts(sw_optimizer_format format, void *record) {
    assert(sw_optimizer_has_muon(format));
    struct sw_record_parts parts = {
        .master = record, .m = (char *)record + SW_GRAIN_ELEMS * sizeof(float), .elems = SW_GRAIN_ELEMS};
    if (sw_optimizer_momentum(format) == SW_OPTIMIZER_8BIT)
        parts.m_scale = (float *)(void *)(parts.m + SW_GRAIN_ELEMS);
    return parts;
}

void sw_momentum_widen(sw_optimizer_format form, const struct sw_record_parts *record, int64_t at,
                       float m[SW_MOMENT_BLOCK_ELEMS]) {
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++)
        if (form == SW_OPTIMIZER_FP32)
            m[i] = ((const float *)(const void *)record->m)[at + i];
        else if (form == SW_OPTIMIZER_BF16)
            m[i] = sw_bf16_to_f32(((const sw_bf16 *)record->m)[at + i]);
        else
            m[i] = number_of_m(((const uint8_t *)record->m)[at + i]) * record->m_scale[at / SW_MOMENT_BLOCK_ELEMS];
}

void sw_momentum_round(sw_optimizer_format form, const struct sw_moment_rounding *how, int64_t at,
                       const float m[SW_MOMENT_BLOCK_ELEMS], const struct sw_record_parts *record) {
    const float scale = scale_of(m), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++) {
        const uint32_t random = random_of(how, how->first_elem + at + i);
        if (form == SW_OPTIMIZER_FP32)
            ((float *)(void *)record->m)[at + i] = m[i];
        else if (form == SW_OPTIMIZER_BF16)
            ((sw_bf16 *)record->m)[at + i] = to_bf16(m[i], bf16_above(how->rounding, m[i], random), 0);
        else
            ((uint8_t *)record->m)[at + i] = code_of_m(m[i], inverse, above(how->rounding, random));
    }
    if (form == SW_OPTIMIZER_8BIT)
        record->m_scale[at / SW_MOMENT_BLOCK_ELEMS] = scale;
}

void sw_muon_record_to_fp32(sw_optimizer_format format, const void *record, float *fp32) {
    const struct sw_record_parts from = sw_muon_record_parts(format, (void *)record);
    const sw_optimizer_format form = sw_optimizer_momentum(format);
    memset(fp32, 0, (size_t)sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32));
    memcpy(fp32, from.master, SW_GRAIN_ELEMS * sizeof(float));
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += SW_MOMENT_BLOCK_ELEMS)
        sw_momentum_widen(form, &from, at, fp32 + SW_GRAIN_ELEMS + at);
}

void sw_muon_record_from_fp32(sw_optimizer_format format, const struct sw_moment_rounding *how, const float *fp32,
                              void *record) {
    const struct sw_record_parts to = sw_muon_record_parts(format, record);
    const sw_optimizer_format form = sw_optimizer_momentum(format);
    memset(record, 0, (size_t)sw_optimizer_muon_bytes(format));
    memcpy(to.master, fp32, SW_GRAIN_ELEMS * sizeof(float));
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += SW_MOMENT_BLOCK_ELEMS)
        sw_momentum_round(form, how, at, fp32 + SW_GRAIN_ELEMS + at, &to);
}
