/* The arithmetic of AdamW's moments where they are kept in bf16 or 8 bits (core/optimizer_format.h). kernels/moments.c
 * defines every operation; the CPU's and the GPU's updates give the same bits.
 *
 * 8 bits are block-wise dynamic quantization (Dettmers et al., arXiv 2110.02861): a moment is the number of its code
 * times the scale of its block, which is the block's largest magnitude. The numbers are those of bitsandbytes' dynamic
 * map. Seven decades from [1e-7, 1e-6] to [0.1, 1] are cut into equal parts, 2^i of decade i for m and 2^(i+1) for v,
 * and a code stands for the middle of its part. Codes count the numbers from 0.0, which is code 0, upwards, and the
 * last code is 1.0. Codes of v are 0 to 255. Those of m are -127 to 128 modulo 256: a negative code is the negative of
 * a part's number, and -1.0 has no code.
 *
 * Between the numbers of neighbouring codes a position is interpolated linearly, so that code c is at position c.
 * Rounding adds 0.5, or a random number of [0, 1), to the position of a magnitude and cuts off the fraction. So nearest
 * takes the larger of two numbers that are as near. A v above zero has at least code 1, and in bf16 at least the least
 * number: the update divides by its root. A value above FLT_MAX, or above the largest bf16, is stored as that. */
#ifndef SW_KERNELS_MOMENTS_H
#define SW_KERNELS_MOMENTS_H

#include "core/optimizer_format.h"
#include "core/size.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_MOMENT_M, SW_MOMENT_V, SW_MOMENTS };
enum { SW_MAP_ENTRIES = 8 }; /* entries of a map's tables: an index is taken modulo 8 */

/* The map of one moment. With q = |code of m| + 0.5, or (code of v + 1.5)/2, and `entry` the exponent of q as its bits
 * have it, modulo 8, the number is first[entry] + slope[entry]·(mantissa of q - 1). One entry serves the codes of 0.0
 * and of 1.0.
 *
 * The position of a magnitude y, at most 1, is the least of three lines: y·steep + line, y·steep/3 + cross and
 * y·steep/5 + next are the parts of one decade, the step between two decades, and the parts of the next, and positions
 * are concave in y. Above the last part they are not, so the position is no less than y·to_one + one_offset. The entry
 * of these tables is fma(bits of y as an integer, SW_MOMENT_ENTRY_SLOPE, entry_offset), at least 0, without its
 * fraction: a float's bits grow as its logarithm, roughly. Entry 0 is the line from 0.0 to the number of code 1; the
 * others change amid the parts of a decade, where roughly serves. */
struct sw_moment_map {
    float slope[SW_MAP_ENTRIES], first[SW_MAP_ENTRIES];
    float steep[SW_MAP_ENTRIES], line[SW_MAP_ENTRIES], cross[SW_MAP_ENTRIES], next[SW_MAP_ENTRIES];
    float entry_offset, to_one, one_offset;
};
extern const struct sw_moment_map sw_moment_maps[SW_MOMENTS];

#define SW_MOMENT_ENTRY_SLOPE 3.58855666e-8f /* log10(2)/2^23: an entry for each decade */
#define SW_MOMENT_THIRD (1.0f / 3.0f)
#define SW_MOMENT_FIFTH 0.2f

/* The stream of the random words of a unit's update. Element e takes 16 bits: of word (e/32)%4 of counter
 * (e/128)·16 + e%16 the lower half where (e/16)%2 is 0, else the upper, so that vectors take whole words. m is rounded
 * by the number of these bits, v by that of the same bits with the bytes exchanged: a rounding hangs on the upper byte
 * all but once in 256 times, so that those of m and v are as good as independent, for half of the words. */
static inline uint64_t sw_moment_stream(int64_t unit, int64_t step) {
    return (UINT64_C(0x6d) << 56) + ((uint64_t)unit << 32) + (uint64_t)step;
}

enum { SW_MOMENT_LANES = 16, SW_MOMENT_GROUP = 128 }; /* elements side by side, and those of 16 counters */

static inline uint64_t sw_moment_counter(int64_t elem) {
    return (uint64_t)(elem / SW_MOMENT_GROUP * SW_MOMENT_LANES + elem % SW_MOMENT_LANES);
}

/* The parts of a grain's record. Moments are floats, bf16 or codes; the scales are NULL but in 8 bits. */
struct sw_record_parts {
    float *master;
    char *m, *v;
    float *m_scale, *v_scale; /* [SW_GRAIN_ELEMS/SW_MOMENT_BLOCK_ELEMS] */
    int64_t elems;            /* elements that are not padding of a wide grain */
};
/* `wide`: the grain is a wide one of a narrow format. */
struct sw_record_parts sw_record_parts(sw_optimizer_format format, bool wide, void *record);

/* The rounding of one grain. */
struct sw_moment_rounding {
    sw_rounding rounding;
    uint64_t seed;
    int64_t unit, step;
    int64_t first_elem; /* the first element of the grain in its unit */
};

/* Widen a block's moments to fp32, and round them back. `at` is the block's first element in its grain; the format is
 * not fp32, and the grain not wide. */
void sw_moments_widen(sw_optimizer_format format, const struct sw_record_parts *record, int64_t at,
                      float m[SW_MOMENT_BLOCK_ELEMS], float v[SW_MOMENT_BLOCK_ELEMS]);
void sw_moments_round(sw_optimizer_format format, const struct sw_moment_rounding *how, int64_t at,
                      const float m[SW_MOMENT_BLOCK_ELEMS], const float v[SW_MOMENT_BLOCK_ELEMS],
                      const struct sw_record_parts *record);

/* Convert a grain's record to the fp32 layout, master|m|v of SW_GRAIN_ELEMS floats each, and back. The elements of a
 * wide grain after SW_WIDE_GRAIN_ELEMS become zeros, and are not stored back. The two records may not overlap in
 * memory. */
void sw_record_to_fp32(sw_optimizer_format format, bool wide, const void *record, float *fp32);
void sw_record_from_fp32(sw_optimizer_format format, bool wide, const struct sw_moment_rounding *how, const float *fp32,
                         void *record);

/* The record of a grain of matrices that Muon updates, in a layout that has such: its master and, as `m`, its momentum,
 * floats, bf16 or codes with m_scale. */
struct sw_record_parts sw_muon_record_parts(sw_optimizer_format format, void *record);
/* Widen a block of momenta of such a record to fp32, and round them back as sw_moments_round rounds m. `at` is the
 * block's first element in its grain, and `form` the momentum's (sw_optimizer_momentum). */
void sw_momentum_widen(sw_optimizer_format form, const struct sw_record_parts *record, int64_t at,
                       float m[SW_MOMENT_BLOCK_ELEMS]);
void sw_momentum_round(sw_optimizer_format form, const struct sw_moment_rounding *how, int64_t at,
                       const float m[SW_MOMENT_BLOCK_ELEMS], const struct sw_record_parts *record);
/* Convert such a record to the fp32 layout, with zeros for v, and back. */
void sw_muon_record_to_fp32(sw_optimizer_format format, const void *record, float *fp32);
void sw_muon_record_from_fp32(sw_optimizer_format format, const struct sw_moment_rounding *how, const float *fp32,
                              void *record);

/* Gives an 8-bit record, rounded from fp32 already, the codes and scales from which sw_record_to_fp32 made these first
 * moments, if it did. Rounding alone does not where a block's largest magnitude is negative: it has no code of its own.
 */
void sw_record_recover_m(const float m[SW_GRAIN_ELEMS], void *record);

/* The scalars of an AdamW step, computed in double as Python does, then rounded to fp32, as PyTorch rounds a scalar
 * before it meets an fp32 tensor. Every implementation of the update starts from these. */
struct sw_adamw_scalars {
    /* Values of the step, for runs with a learning rate or a t of their own. */
    double lr, weight_decay, correction1, betas[2];
    int64_t step;
    float decay_factor; /* 1 - lr·weight_decay */
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float minus_step_size;  /* -lr/(1-beta1^t) */
    float correction2_sqrt; /* sqrt(1-beta2^t) */
    float eps;
    float grad_scale;
};

struct sw_adamw_scalars sw_adamw_scalars(const struct sw_adamw *adamw);

/* The decay factor, the step size and the bias correction of some elements, which end before element `end` of the unit;
 * or they are left out of the step. */
struct sw_decay_span {
    int64_t end;
    float factor, minus_step_size, correction2_sqrt;
    bool left_out;
};
/* Returns the span that holds elem; after the last run nothing decays. A run's scale, and its t, count as if the step
 * had the scaled learning rate, and that t. */
struct sw_decay_span sw_decay_span(const struct sw_adamw_scalars *scalars, const struct sw_decay_run *runs,
                                   int64_t run_count, int64_t elem);

#endif
