#include "core/optimizer_format.h"

#include "core/size.h"

static const char *const format_names[SW_OPTIMIZER_LAYOUTS] = {
    "fp32", "bf16", "8bit", "fp32-apart", "muon", "muon-bf16", "muon-bf16-packed", "muon-8bit"};
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

static_assert(SW_RECORD_GROUP * (MASTER + SW_GRAIN_ELEMS + SCALES / 2) % SW_BUFFER_ALIGN_BYTES == 0 &&
                  SW_RECORD_GROUP * (MASTER + 2 * SW_GRAIN_ELEMS + SCALES) % SW_BUFFER_ALIGN_BYTES == 0,
              "a group of records is whole pages");

int64_t sw_optimizer_grain_bytes(sw_optimizer_format format) {
    const int64_t bytes = content_bytes[sw_optimizer_records(format)];
    return sw_optimizer_is_packed(format) ? bytes : sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
}

int64_t sw_optimizer_muon_bytes(sw_optimizer_format format) {
    switch (format) {
    case SW_OPTIMIZER_MUON_BF16: return MASTER + 2 * SW_GRAIN_ELEMS;
    case SW_OPTIMIZER_MUON_8BIT: return MASTER + SW_GRAIN_ELEMS + SCALES / 2;
    default: return sw_optimizer_grain_bytes(format);
    }
}

struct sw_records sw_records(sw_optimizer_format format, int64_t muon_grains) {
    return (struct sw_records){.muon_grains = muon_grains,
                               .muon_bytes = sw_optimizer_muon_bytes(format),
                               .grain_bytes = sw_optimizer_grain_bytes(format)};
}

int64_t sw_records_saved(const struct sw_records *records) {
    const int64_t bytes = records->muon_grains * (records->grain_bytes - records->muon_bytes);
    return bytes - bytes % SW_BUFFER_ALIGN_BYTES;
}

int64_t sw_record_at(const struct sw_records *records, int64_t grain) {
    return grain < records->muon_grains ? grain * records->muon_bytes
                                        : grain * records->grain_bytes - sw_records_saved(records);
}

int64_t sw_records_bytes(const struct sw_records *records, int64_t first, int64_t count) {
    return count > 0
               ? sw_round_up(sw_record_at(records, first + count), SW_BUFFER_ALIGN_BYTES) - sw_record_at(records, first)
               : 0;
}

const char *sw_optimizer_format_name(sw_optimizer_format format) {
    return format_names[format];
}

const char *sw_optimizer_shown_name(sw_optimizer_format format) {
    if (format == SW_OPTIMIZER_MUON_BF16)
        return format_names[SW_OPTIMIZER_MUON_BF16_PADDED];
    return format_names[sw_optimizer_has_muon(format) ? format : sw_optimizer_records(format)];
}

const char *sw_rounding_name(sw_rounding rounding) {
    return rounding_names[rounding];
}
