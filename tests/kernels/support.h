/* Shared parts of the kernel tests: devices to compare, buffers that notice writes outside, random inputs, comparisons.
 */
#ifndef SW_TESTS_KERNELS_SUPPORT_H
#define SW_TESTS_KERNELS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"

#include <stdbool.h>

/* Returns the seed of all inputs: SW_TEST_SEED, or a fixed one. It is printed when a comparison fails. */
uint64_t test_seed(void);

/* A device under test and the reference, each with a stream. */
struct pair {
    struct sw_device *device, *ref_device;
    struct sw_stream *stream, *ref;
    char label[64];
};

/* Calls body with every instruction set that this machine has, with 1 and 3 threads, and with the GPU that the program
 * is linked for, by way of mirror.h; or only with the device that SW_TEST_DEVICE names. */
void for_each_device(void (*body)(struct pair *pair));

/* Does the same, and calls body once more for the GPU with attention by products of warpgroups, where it has those. */
void for_each_attention(void (*body)(struct pair *pair));

/* Tells whether a device is a GPU that the host emulates or interprets, which takes much longer. */
bool device_is_emulated(const struct sw_device *device);

/* The main function's value: runs the tests of every device, and then those of the CPU or the reference alone, which
 * are left out where SW_TEST_DEVICE names another device than the CPU. */
int run_tests_of(const struct CMUnitTest *on_devices, size_t device_tests, const struct CMUnitTest *others,
                 size_t other_tests);
#define RUN_TESTS(on_devices, others)                                                                                  \
    run_tests_of(on_devices, sizeof(on_devices) / sizeof(on_devices)[0], others, sizeof(others) / sizeof(others)[0])

/* Memory of a device, host memory of as many bytes, and two streams. */
enum { THINGS_BYTES = 1 << 20 };
struct things {
    struct sw_memory *on_device, *on_host;
    struct sw_stream *stream[2];
};
struct things open_things(struct sw_device *device);
void close_things(struct things *things);

/* Fails the test with the recorded message where status is an error. */
void assert_ok(sw_status status);

/* Memory with guards on both sides, filled with NaN in every type. */
struct buffer {
    void *data;
    int64_t bytes;
};
struct buffer buffer_make(int64_t bytes);
bool buffer_guards_hold(const struct buffer *buffer);
/* Finds the whole buffer that an address is in, with the guards; false: it is in none. */
bool buffer_region(const void *at, char **out_base, int64_t *out_bytes);
/* Checks the guards and frees. */
void buffer_free(struct buffer *buffer);
void buffer_free_unchecked(struct buffer *buffer);

/* Makes elements of a type, drawn from a normal distribution of the given deviation; `stream` tells tensors apart. */
struct buffer buffer_random(sw_dtype type, int64_t elems, uint64_t stream, float deviation);
/* Makes a buffer of the same bytes. */
struct buffer buffer_copy(const struct buffer *from);
struct buffer buffer_zeros(int64_t bytes);
/* Makes a buffer from bytes of any memory. */
struct buffer buffer_of(const void *from, int64_t bytes);

/* Every compute type. */
enum { TEST_TYPES = 3 };
extern const sw_dtype test_types[TEST_TYPES];

float element(sw_dtype type, const void *data, int64_t index);
void set_element(sw_dtype type, void *data, int64_t index, float value);

/* Compares elements: |got - want| <= atol + rtol·|want|, to which a 16-bit result adds one rounding. */
void assert_close(const char *what, const struct pair *pair, sw_dtype type, int64_t elems, const void *got,
                  const void *want, float rtol, float atol);
void assert_same_bits(const char *what, const struct pair *pair, int64_t bytes, const void *got, const void *want);

/* Compares derivatives: |got - want| <= tolerance·(1 + |want|). */
void assert_near(const char *what, int64_t index, double got, double want, double tolerance);

#endif
