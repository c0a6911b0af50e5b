/* The forms in which optimizer state is kept: a master weight in fp32 and the two moments of AdamW in fp32, bf16 or 8
 * bits. A grain's record holds the state of SW_GRAIN_ELEMS elements:
 *   fp32: master | m | v, each SW_GRAIN_ELEMS floats
 *   bf16: master, SW_GRAIN_ELEMS floats | m | v, each SW_GRAIN_ELEMS numbers of bf16
 *   8bit: master, SW_GRAIN_ELEMS floats | m | v, each SW_GRAIN_ELEMS codes of one byte | the scales of m | of v, each a
 *         float for a block of SW_MOMENT_BLOCK_ELEMS elements | zeros up to the page
 * The numbers that codes stand for are those of kernels/moments.h.
 *
 * In bf16 and 8bit the norms and biases of a unit are in grains of their own at its end, the wide grains, whose moments
 * stay fp32. A wide grain has SW_WIDE_GRAIN_ELEMS elements, the rest is padding, and its record holds master | m | v,
 * each SW_WIDE_GRAIN_ELEMS floats, and zeros up to the bytes of the format. */
#ifndef SW_CORE_OPTIMIZER_FORMAT_H
#define SW_CORE_OPTIMIZER_FORMAT_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    SW_OPTIMIZER_FP32 = 0,
    SW_OPTIMIZER_BF16,
    SW_OPTIMIZER_8BIT,
    SW_OPTIMIZER_FORMATS, /* number of formats above, which a user may choose */
    /* Fp32 for units whose weights are stored in 8 bits: records as in fp32, and wide grains, whose weights take two
       bytes each. */
    SW_OPTIMIZER_FP32_APART = SW_OPTIMIZER_FORMATS,
    /* For units whose matrices Muon updates: records as in bf16, and wide grains; but the record of a grain of such
       matrices holds master | momentum, each SW_GRAIN_ELEMS floats. So every parameter takes 8 bytes. */
    SW_OPTIMIZER_MUON,
    /* The same with records as in 8bit, and a momentum in bf16. So every parameter takes 6.25 bytes. */
    SW_OPTIMIZER_MUON_BF16,
    SW_OPTIMIZER_LAYOUTS
} sw_optimizer_format;

/* How moments narrower than fp32 are rounded: to the nearer number, or to one of the two neighbours with probability
 * proportional to the distance from the other. */
typedef enum { SW_ROUND_NEAREST = 0, SW_ROUND_STOCHASTIC, SW_ROUNDINGS } sw_rounding;

enum {
    SW_MOMENT_BLOCK_ELEMS = 256, /* elements per scale */
    SW_WIDE_GRAIN_ELEMS = 8192,  /* elements of a wide grain without its padding */
};

/* Tells whether grains of some matrices hold a momentum instead of two moments. */
static inline bool sw_optimizer_has_muon(sw_optimizer_format format) {
    return format == SW_OPTIMIZER_MUON || format == SW_OPTIMIZER_MUON_BF16;
}

/* Returns the format of the records only, whatever grains the units have. */
static inline sw_optimizer_format sw_optimizer_records(sw_optimizer_format format) {
    if (sw_optimizer_has_muon(format))
        return format == SW_OPTIMIZER_MUON ? SW_OPTIMIZER_BF16 : SW_OPTIMIZER_8BIT;
    return format == SW_OPTIMIZER_FP32_APART ? SW_OPTIMIZER_FP32 : format;
}

/* Returns the bytes of a grain's record, a multiple of SW_BUFFER_ALIGN_BYTES. */
int64_t sw_optimizer_grain_bytes(sw_optimizer_format format);

/* Return the name that flags and messages use: "fp32", "bf16", "8bit", or "fp32-apart", "muon" or "muon-bf16", which
 * occur only in files; "nearest", "stochastic". */
const char *sw_optimizer_format_name(sw_optimizer_format format);
const char *sw_rounding_name(sw_rounding rounding);

#ifdef __cplusplus
}
#endif
#endif
