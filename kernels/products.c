#include "kernels/products.h"

#include "core/size.h"
#include "kernels/device_ops.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SW_GEMM_CACHE_FIRST_CAPACITY = 32 };

/* The fields of a shape as a comparable row. Padding in the struct, and the way in which a stride without gaps is
 * given, do not matter. */
struct gemm_key {
    int64_t field[14];
};

static struct gemm_key key_of(const struct sw_gemm *shape) {
    return (struct gemm_key){{shape->m, shape->n, shape->k, shape->transpose_a, shape->transpose_b, shape->bias,
                              shape->accumulate, shape->addend, (int64_t)shape->in, (int64_t)shape->out,
                              sw_gemm_a_stride(shape), sw_gemm_c_stride(shape), (int64_t)shape->a_as,
                              (int64_t)shape->b_as}};
}

static int compare(const struct sw_gemm *a, const struct sw_gemm *b) {
    const struct gemm_key x = key_of(a), y = key_of(b);
    for (size_t i = 0; i < sizeof x.field / sizeof x.field[0]; i++) {
        if (x.field[i] != y.field[i])
            return x.field[i] < y.field[i] ? -1 : 1;
    }
    return 0;
}

/* Returns whether two shapes are equal. */
static bool gemm_same(const struct sw_gemm *a, const struct sw_gemm *b) {
    return compare(a, b) == 0;
}

/* Returns the index of the first entry that is not less than the shape. */
static int64_t lower_bound(const struct sw_gemm_cache *cache, const struct sw_gemm *shape) {
    int64_t low = 0, high = cache->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (compare(&cache->entries[middle]->shape, shape) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sw_gemm_entry *sw_gemm_cache_find(const struct sw_gemm_cache *cache, const struct sw_gemm *shape) {
    const int64_t at = lower_bound(cache, shape);
    if (at == cache->count || compare(&cache->entries[at]->shape, shape) != 0)
        return NULL;
    return cache->entries[at];
}

static sw_status grow(struct sw_gemm_cache *cache) {
    const int64_t capacity = cache->capacity == 0 ? SW_GEMM_CACHE_FIRST_CAPACITY : 2 * cache->capacity;
    struct sw_gemm_entry **entries = realloc(cache->entries, (size_t)capacity * sizeof *entries);
    if (entries == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the table of matrix products");
    cache->entries = entries;
    cache->capacity = capacity;
    return SW_OK;
}

sw_status sw_gemm_cache_add(struct sw_gemm_cache *cache, const struct sw_gemm *shape, struct sw_gemm_entry **out) {
    assert(sw_gemm_cache_find(cache, shape) == NULL);
    if (cache->count == cache->capacity)
        SW_TRY(grow(cache));
    struct sw_gemm_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the table of matrix products");
    entry->shape = *shape;
    const int64_t at = lower_bound(cache, shape);
    memmove(cache->entries + at + 1, cache->entries + at, (size_t)(cache->count - at) * sizeof(struct sw_gemm_entry *));
    cache->entries[at] = entry;
    cache->count++;
    *out = entry;
    return SW_OK;
}

void sw_gemm_cache_remove(struct sw_gemm_cache *cache, struct sw_gemm_entry *entry) {
    const int64_t at = lower_bound(cache, &entry->shape);
    assert(at < cache->count && cache->entries[at] == entry);
    cache->count--;
    memmove(cache->entries + at, cache->entries + at + 1, (size_t)(cache->count - at) * sizeof(struct sw_gemm_entry *));
    free(entry);
}

void sw_gemm_cache_free(struct sw_gemm_cache *cache) {
    for (int64_t i = 0; i < cache->count; i++)
        free(cache->entries[i]);
    free(cache->entries);
    *cache = (struct sw_gemm_cache){0};
}

const char *const sw_algorithm_field_names[SW_ALGORITHM_FIELDS] = {
    "id", "tile", "split_k", "reduction", "swizzle", "custom_option", "stages", "inner_shape", "cluster_shape"};

void sw_gemm_algorithms_release(struct sw_gemm_algorithms *list) {
    free(list->item);
    *list = (struct sw_gemm_algorithms){0};
}

struct sw_gemm_algorithm *sw_gemm_algorithms_find(const struct sw_gemm_algorithms *list, const struct sw_gemm *shape,
                                                  bool tf32) {
    for (int64_t i = 0; i < list->count; i++)
        if (list->item[i].tf32 == tf32 && gemm_same(&list->item[i].shape, shape))
            return &list->item[i];
    return NULL;
}

sw_status sw_gemm_algorithms_put(struct sw_gemm_algorithms *list, const struct sw_gemm_algorithm *algorithm) {
    struct sw_gemm_algorithm *there = sw_gemm_algorithms_find(list, &algorithm->shape, algorithm->tf32);
    if (there == NULL) {
        struct sw_gemm_algorithm *item = realloc(list->item, (size_t)(list->count + 1) * sizeof *item);
        if (item == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the table of algorithms");
        list->item = item;
        there = &item[list->count++];
    }
    *there = *algorithm;
    return SW_OK;
}

sw_status sw_device_use_algorithms(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure) {
    assert(device->gemms.count == 0);
    if (device->ops.use_algorithms == NULL)
        return SW_OK;
    return device->ops.use_algorithms(device, list, measure);
}

sw_status sw_device_algorithms(const struct sw_device *device, struct sw_gemm_algorithms *out, int64_t *out_refused) {
    sw_status status = SW_OK;
    *out = (struct sw_gemm_algorithms){0};
    *out_refused = 0;
    for (int64_t i = 0; device->ops.algorithm != NULL && status == SW_OK && i < device->gemms.count; i++) {
        struct sw_gemm_algorithm algorithm;
        bool refused;
        device->ops.algorithm(device->gemms.entries[i], &algorithm, &refused);
        *out_refused += refused;
        status = sw_gemm_algorithms_put(out, &algorithm);
    }
    if (status != SW_OK)
        sw_gemm_algorithms_release(out);
    return status;
}

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
