#include "core/optimizer_format.h"

#include "core/size.h"

static const char *const format_names[SW_OPTIMIZER_LAYOUTS] = {"fp32",       "bf16", "8bit",
                                                               "fp32-apart", "muon", "muon-bf16"};
static const char *const rounding_names[SW_ROUNDINGS] = {"nearest", "stochastic"};

/* Bytes of a grain's master weights; bytes of its scales, one float per block of each moment. */
enum { MASTER = SW_GRAIN_ELEMS * 4, SCALES = 2 * SW_GRAIN_ELEMS / SW_MOMENT_BLOCK_ELEMS * 4 };
static const int64_t content_bytes[SW_OPTIMIZER_FORMATS] = {
    [SW_OPTIMIZER_FP32] = MASTER + 2 * 4 * SW_GRAIN_ELEMS,
    [SW_OPTIMIZER_BF16] = MASTER + 2 * 2 * SW_GRAIN_ELEMS,
    [SW_OPTIMIZER_8BIT] = MASTER + 2 * SW_GRAIN_ELEMS + SCALES,
};
static_assert(3 * 4 * SW_WIDE_GRAIN_ELEMS <= MASTER + 2 * SW_GRAIN_ELEMS + SCALES, "a record holds a wide grain");
static_assert(SW_GRAIN_ELEMS % SW_MOMENT_BLOCK_ELEMS == 0, "a grain is a whole number of blocks");

int64_t sw_optimizer_grain_bytes(sw_optimizer_format format) {
    return sw_round_up(content_bytes[sw_optimizer_records(format)], SW_BUFFER_ALIGN_BYTES);
}

const char *sw_optimizer_format_name(sw_optimizer_format format) {
    return format_names[format];
}

const char *sw_rounding_name(sw_rounding rounding) {
    return rounding_names[rounding];
}
