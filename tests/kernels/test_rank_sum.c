/* The sum of all ranks' contributions on a GPU, which has the bits of the host's; only a NaN has those of its device.
 */
#include "core/ranks/comm_private.h"
#include "tests/kernels/support.h"

#include "core/size.h"
#include "kernels/device_ops.h"

#include <math.h>

enum { MOST_RANKS = 8, LEAST_EXPONENT = -24, EXPONENTS = 48 };

struct shape {
    sw_dtype type, to_type;
    int64_t elems, pad; /* pad: elements between contributions */
    int rank, ranks;
    int shift; /* elements by which tensors begin after an aligned address */
};

/* Makes contributions of many magnitudes, so that the order of the sum shows; some are past the greatest fp16 and below
 * the least one too. */
static struct buffer contributions(sw_dtype type, int64_t elems, uint64_t stream) {
    struct buffer values = buffer_random(SW_F32, elems, stream, 1.0f);
    struct buffer made = buffer_make(elems * sw_dtype_bytes(type));
    for (int64_t i = 0; i < elems; i++)
        set_element(type, made.data, i,
                    ldexpf(((float *)values.data)[i], (int)((i * 7 + (int64_t)stream) % EXPONENTS) + LEAST_EXPONENT));
    if (elems > 5)
        set_element(type, made.data, 5, INFINITY);
    buffer_free(&values);
    return made;
}

static void assert_same(const char *what, const struct pair *pair, sw_dtype type, int64_t elems, const void *got,
                        const void *want) {
    const int64_t bytes = sw_dtype_bytes(type);
    for (int64_t i = 0; i < elems; i++) {
        const char *x = (const char *)got + i * bytes, *y = (const char *)want + i * bytes;
        if (!isnan(element(type, got, i)) || !isnan(element(type, want, i)))
            assert_same_bits(what, pair, bytes, x, y);
    }
}

static void sum_once(struct pair *pair, const struct shape *shape) {
    const int64_t bytes = sw_dtype_bytes(shape->type), to_bytes = sw_dtype_bytes(shape->to_type);
    const int64_t stride = shape->elems + shape->pad, others = sw_max_i64(shape->ranks - 1, 1);
    struct buffer own = contributions(shape->type, shape->elems + shape->shift, 1);
    struct buffer rest = contributions(shape->type, others * stride + shape->shift, 2);
    struct buffer got = buffer_make((shape->elems + shape->shift) * to_bytes), want = buffer_make(got.bytes);
    struct sw_comm_sum sum = {.type = shape->type,
                              .to_type = shape->to_type,
                              .elems = shape->elems,
                              .rank = shape->rank,
                              .ranks = shape->ranks,
                              .own = (char *)own.data + shape->shift * bytes,
                              .others = (char *)rest.data + shape->shift * bytes,
                              .stride_bytes = stride * bytes,
                              .to = (char *)want.data + shape->shift * to_bytes};
    sw_comm_sum_host(&sum);
    sum.to = (char *)got.data + shape->shift * to_bytes;
    assert_ok(sw_device_run(pair->stream, SW_DEVICE_RANK_SUM, &sum));
    assert_same("a sum over ranks", pair, shape->to_type, shape->elems + shape->shift, got.data, want.data);
    if (shape->type == shape->to_type) {
        sum.to = (char *)own.data + shape->shift * bytes;
        assert_ok(sw_device_run(pair->stream, SW_DEVICE_RANK_SUM, &sum));
        assert_same("a sum over ranks in place", pair, shape->type, shape->elems, sum.to,
                    (char *)want.data + shape->shift * bytes);
    }
    struct buffer *all[] = {&own, &rest, &got, &want};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

/* A device of the host has no such op: core adds there. */
static void sums(struct pair *pair) {
    static const int64_t sizes[] = {1, 7, 64, 2051};
    if (sw_device_info(pair->device).host_memory)
        return;
    for (int t = 0; t < TEST_TYPES * TEST_TYPES; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int ranks = 1; ranks <= MOST_RANKS; ranks += ranks < 3 ? 1 : 5)
                for (int rank = 0; rank < ranks; rank += ranks < 4 ? 1 : 3)
                    sum_once(pair, &(struct shape){.type = test_types[t % TEST_TYPES],
                                                   .to_type = test_types[t / TEST_TYPES],
                                                   .elems = sizes[s],
                                                   .pad = (int64_t)s % 2 * 8,
                                                   .rank = rank,
                                                   .ranks = ranks,
                                                   .shift = rank % 2});
}

static void rank_sums(void **state) {
    (void)state;
    for_each_device(sums);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rank_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
