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

#include "core/size.h"
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
    /* Muon with records as in 8bit, and its own of the same bytes: master | momentum in bf16 | zeros. Runs that were
       begun before there were packed formats keep it. */
    SW_OPTIMIZER_MUON_BF16_PADDED,
    /* Muon without padding (struct sw_records): momenta in bf16 or, with scales, in 8 bits, all else as in 8bit. */
    SW_OPTIMIZER_MUON_BF16,
    SW_OPTIMIZER_MUON_8BIT,
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
    return format >= SW_OPTIMIZER_MUON;
}

/* Tells whether records follow each other without padding, grains of Muon with records of another size. */
static inline bool sw_optimizer_is_packed(sw_optimizer_format format) {
    return format >= SW_OPTIMIZER_MUON_BF16;
}

/* Returns the form of the momentum in a format that has_muon: SW_OPTIMIZER_FP32, SW_OPTIMIZER_BF16 or
 * SW_OPTIMIZER_8BIT. */
static inline sw_optimizer_format sw_optimizer_momentum(sw_optimizer_format format) {
    if (format == SW_OPTIMIZER_MUON)
        return SW_OPTIMIZER_FP32;
    return format == SW_OPTIMIZER_MUON_8BIT ? SW_OPTIMIZER_8BIT : SW_OPTIMIZER_BF16;
}

/* Returns the format of the records only, whatever grains the units have. */
static inline sw_optimizer_format sw_optimizer_records(sw_optimizer_format format) {
    if (sw_optimizer_has_muon(format))
        return format == SW_OPTIMIZER_MUON ? SW_OPTIMIZER_BF16 : SW_OPTIMIZER_8BIT;
    return format == SW_OPTIMIZER_FP32_APART ? SW_OPTIMIZER_FP32 : format;
}

/* Return the bytes of a grain's record: of one that AdamW updates, and of one of matrices that Muon updates. They are
 * multiples of SW_BUFFER_ALIGN_BYTES unless the format is packed, and then of 128. */
int64_t sw_optimizer_grain_bytes(sw_optimizer_format format);
int64_t sw_optimizer_muon_bytes(sw_optimizer_format format);

/* How the records of a run of a unit's grains lie, in memory and in a store: first those of Muon's grains, then the
 * others. Grains are counted from the first of the run. In a packed format every SW_RECORD_GROUP-th grain begins at a
 * page, however many grains of the run are Muon's: a record of AdamW's lies where it would if all records before it had
 * its size, less whole pages. So a transfer may begin and end at any such grain, or end with the run, and then with
 * the page. */
struct sw_records {
    int64_t muon_grains; /* grains that Muon updates, the first of the run */
    int64_t muon_bytes;  /* bytes of the record of each of these */
    int64_t grain_bytes; /* bytes of the record of each other grain */
};
enum { SW_RECORD_GROUP = 16 };

/* Returns how records lie in a run that begins with so many of Muon's grains. */
struct sw_records sw_records(sw_optimizer_format format, int64_t muon_grains);
/* Return where the record of a grain begins, and its bytes. */
int64_t sw_record_at(const struct sw_records *records, int64_t grain);
static inline int64_t sw_record_bytes(const struct sw_records *records, int64_t grain) {
    return grain < records->muon_grains ? records->muon_bytes : records->grain_bytes;
}
/* Returns the bytes of records from where one begins, up to the page in which the last ends. */
int64_t sw_records_bytes(const struct sw_records *records, int64_t first, int64_t count);
/* Returns how many bytes less, whole pages, a run takes than if all its records had the size of AdamW's. */
int64_t sw_records_saved(const struct sw_records *records);
/* Returns the grains at whose multiples a run of records may be cut: SW_RECORD_GROUP or 1. */
static inline int64_t sw_records_group(sw_optimizer_format format) {
    return sw_optimizer_is_packed(format) ? SW_RECORD_GROUP : 1;
}

/* Return the name that files use: "fp32", "bf16", "8bit", "fp32-apart", "muon", "muon-bf16", "muon-bf16-packed",
 * "muon-8bit"; the name that users see, in which layouts with alike state count as one; "nearest", "stochastic". */
const char *sw_optimizer_format_name(sw_optimizer_format format);
const char *sw_optimizer_shown_name(sw_optimizer_format format);
const char *sw_rounding_name(sw_rounding rounding);

#ifdef __cplusplus
}
#endif
#endif
