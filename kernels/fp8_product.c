#include "kernels/fp8_product.h"

#include "core/size.h"

bool sw_fp8_is_apart(const struct sw_device *device, const struct sw_gemm *shape) {
    const bool odd = (shape->m | shape->n | shape->k) % SW_FP8_SIDE_MULTIPLE != 0;
    return shape->a_as != SW_FP8_NONE && (device->ops.check_fp8 == NULL || odd);
}

/* The parts of the scratch memory: that of the rounded operands' product, then the operand's scale, then codes and
 * rounded elements of A and of B. */
struct parts {
    int64_t scale, codes, a, b, bytes;
};

static int64_t place(int64_t *used_bytes, int64_t bytes) {
    const int64_t at = *used_bytes;
    *used_bytes += sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
    return at;
}

static struct parts parts_of(const struct sw_gemm *shape, int64_t product_bytes) {
    const int64_t a = shape->m * shape->k, b = shape->k * shape->n, typed = sw_dtype_bytes(shape->in);
    struct parts parts = {.bytes = sw_round_up(product_bytes, SW_BUFFER_ALIGN_BYTES)};
    parts.scale = place(&parts.bytes, SW_FP8_SCALE_BYTES);
    parts.codes = place(&parts.bytes, sw_max_i64(a, b));
    parts.a = place(&parts.bytes, a * typed);
    parts.b = place(&parts.bytes, b * typed);
    return parts;
}

struct sw_gemm sw_fp8_rounded(const struct sw_gemm *shape) {
    struct sw_gemm of_type = *shape;
    of_type.a_as = of_type.b_as = SW_FP8_NONE;
    return of_type;
}

int64_t sw_fp8_scratch_bytes(const struct sw_gemm *shape, int64_t rounded_bytes) {
    return parts_of(shape, rounded_bytes).bytes;
}

static sw_status round_operand(struct sw_stream *stream, sw_dtype type, sw_fp8 as, int64_t elems, const void *from,
                               const struct parts *parts, char *scratch, void *to) {
    uint8_t *codes = (uint8_t *)scratch + parts->codes;
    float *scale = (float *)(void *)(scratch + parts->scale);
    SW_TRY(sw_encode_fp8(stream, .type = type, .as = as, .rows = 1, .cols = elems, .from = from, .codes = codes,
                         .scale = scale));
    return sw_decode_fp8(stream, .type = type, .as = as, .elems = elems, .codes = codes, .scale = scale, .to = to);
}

sw_status sw_fp8_multiply(struct sw_stream *stream, struct sw_gemm_entry *entry, const struct sw_gemm_operands *at) {
    const struct sw_gemm *shape = &entry->shape, of_type = sw_fp8_rounded(shape);
    struct sw_gemm_entry *product = sw_gemm_cache_find(&stream->device->gemms, &of_type);
    const struct parts parts = parts_of(shape, product->scratch_bytes);
    char *scratch = at->scratch, *a = scratch + parts.a, *b = scratch + parts.b;
    SW_TRY(round_operand(stream, shape->in, shape->a_as, shape->m * shape->k, at->a, &parts, scratch, a));
    SW_TRY(round_operand(stream, shape->in, shape->b_as, shape->k * shape->n, at->b, &parts, scratch, b));
    return stream->device->ops.gemm(stream, product, a, b, at->bias, at->addend, at->c, scratch);
}
