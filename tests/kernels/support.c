#include "tests/kernels/support.h"

#include "core/rng.h"
#include "core/size.h"
#include "kernels/cuda/kernel_ops.h"
#include "tests/kernels/mirror.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 4096, GUARD_VALUE = 0xa5, NAN_BYTE = 0xff, MOST_BUFFERS = 1024, MOST_STREAMS = 128 };

uint64_t test_seed(void) {
    const char *text = getenv("SW_TEST_SEED");
    return text == NULL ? 20240607 : strtoull(text, NULL, 10);
}

void assert_ok(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s: %s", sw_status_name(status), sw_error_message(status));
}

static void open_pair(struct pair *pair, const char *name, int threads) {
    assert_ok(sw_device_open(name, threads, &pair->device));
    if (!sw_device_info(pair->device).host_memory)
        mirror_begin(pair->device);
    assert_ok(sw_device_open("ref", 0, &pair->ref_device));
    assert_ok(sw_stream_open(pair->device, &pair->stream));
    assert_ok(sw_stream_open(pair->ref_device, &pair->ref));
    snprintf(pair->label, sizeof pair->label, "%s with %d threads", name, threads);
}

static void close_pair(struct pair *pair) {
    assert_ok(sw_stream_synchronize(pair->stream));
    sw_stream_close(pair->stream);
    sw_stream_close(pair->ref);
    if (!sw_device_info(pair->device).host_memory)
        mirror_end(pair->device);
    sw_device_close(pair->device);
    sw_device_close(pair->ref_device);
}

/* Returns whether this machine can run the device; one that it lacks is not an error here. */
static bool available(const char *name) {
    struct sw_device *device = NULL;
    const sw_status status = sw_device_open(name, 1, &device);
    sw_device_close(device);
    if (status == SW_ERR_UNSUPPORTED)
        sw_error_clear();
    else
        assert_ok(status);
    return status == SW_OK;
}

void for_each_device(void (*body)(struct pair *pair)) {
    static const char *const names[] = {"cpu:baseline", "cpu:avx2", "cpu:avx512", "cpu", "cuda"};
    const char *only = getenv("SW_TEST_DEVICE");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (only != NULL ? strcmp(only, names[i]) != 0 : !available(names[i]))
            continue;
        const int most_threads = strcmp(names[i], "cuda") == 0 ? 1 : 3;
        for (int threads = 1; threads <= most_threads; threads += 2) {
            struct pair pair;
            open_pair(&pair, names[i], threads);
            body(&pair);
            close_pair(&pair);
        }
    }
}

bool device_is_emulated(const struct sw_device *device) {
    const char *model = sw_device_info(device).model;
    return model != NULL && strstr(model, "Emulated") != NULL;
}

void for_each_attention(void (*body)(struct pair *pair)) {
    const char *only = getenv("SW_TEST_DEVICE");
    struct pair pair;
    for_each_device(body);
    if (only != NULL ? strcmp(only, "cuda") != 0 : !available("cuda"))
        return;
    open_pair(&pair, "cuda", 1);
    const sw_status status = sw_device_use_warpgroups(pair.device, true);
    snprintf(pair.label, sizeof pair.label, "cuda by warpgroups");
    if (status == SW_OK) {
        body(&pair);
    } else {
        assert_string_not_equal(sw_device_info(pair.device).isa, "sm_90"); /* GPUs of 9.0 have them */
        sw_error_clear();
    }
    close_pair(&pair);
}

struct things open_things(struct sw_device *device) {
    struct things things = {0};
    assert_ok(sw_memory_open(device, "device", SW_MEMORY_DEVICE, THINGS_BYTES, &things.on_device));
    assert_ok(sw_memory_open(device, "host", SW_MEMORY_HOST, THINGS_BYTES, &things.on_host));
    for (int i = 0; i < 2; i++)
        assert_ok(sw_stream_open(device, &things.stream[i]));
    return things;
}

void close_things(struct things *things) {
    for (int i = 0; i < 2; i++)
        sw_stream_close(things->stream[i]);
    sw_memory_close(things->on_device);
    sw_memory_close(things->on_host);
}

int run_tests_of(const struct CMUnitTest *on_devices, size_t device_tests, const struct CMUnitTest *others,
                 size_t other_tests) {
    const int failed =
        device_tests > 0 ? _cmocka_run_group_tests("of every device", on_devices, device_tests, NULL, NULL) : 0;
    const char *only = getenv("SW_TEST_DEVICE");
    return only != NULL && strcmp(only, "cpu") != 0
               ? failed
               : failed + _cmocka_run_group_tests("others", others, other_tests, NULL, NULL);
}

/* All buffers that are there, from any thread. */
static struct {
    pthread_mutex_t mutex;
    struct {
        char *base;
        int64_t bytes;
    } buffer[MOST_BUFFERS];
} live = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Returns the index of the region that begins at `base`; NULL: a free one. */
static int index_of(const char *base) {
    int index = 0;
    while (index < MOST_BUFFERS && live.buffer[index].base != base)
        index++;
    assert_true(index < MOST_BUFFERS);
    return index;
}

static void note_buffer(char *base, int64_t bytes) {
    pthread_mutex_lock(&live.mutex);
    const int index = index_of(NULL);
    live.buffer[index].base = base;
    live.buffer[index].bytes = bytes;
    pthread_mutex_unlock(&live.mutex);
}

static void forget_buffer(const char *base) {
    pthread_mutex_lock(&live.mutex);
    live.buffer[index_of(base)].base = NULL;
    pthread_mutex_unlock(&live.mutex);
}

bool buffer_region(const void *at, char **out_base, int64_t *out_bytes) {
    bool found = false;
    pthread_mutex_lock(&live.mutex);
    for (int i = 0; i < MOST_BUFFERS && !found; i++) {
        *out_base = live.buffer[i].base;
        *out_bytes = live.buffer[i].bytes;
        found = *out_base != NULL && (const char *)at >= *out_base && (const char *)at < *out_base + *out_bytes;
    }
    pthread_mutex_unlock(&live.mutex);
    return found;
}

struct buffer buffer_make(int64_t bytes) {
    const int64_t all = sw_round_up(bytes + 2 * GUARD_BYTES, SW_BUFFER_ALIGN_BYTES);
    char *base = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)all);
    assert_non_null(base);
    note_buffer(base, all);
    memset(base, GUARD_VALUE, (size_t)all);
    memset(base + GUARD_BYTES, NAN_BYTE, (size_t)bytes);
    return (struct buffer){.data = base + GUARD_BYTES, .bytes = bytes};
}

static bool is_guard(const unsigned char *at) {
    return at[0] == GUARD_VALUE && memcmp(at, at + 1, GUARD_BYTES - 1) == 0;
}

static int64_t distance_of_damage(const struct buffer *buffer) {
    const unsigned char *data = buffer->data;
    if (is_guard(data - GUARD_BYTES) && is_guard(data + buffer->bytes))
        return -1;
    for (int64_t i = 0; i < GUARD_BYTES; i++) {
        if (data[-1 - i] != GUARD_VALUE || data[buffer->bytes + i] != GUARD_VALUE)
            return i;
    }
    return -1;
}

bool buffer_guards_hold(const struct buffer *buffer) {
    return distance_of_damage(buffer) < 0;
}

void buffer_free_unchecked(struct buffer *buffer) {
    forget_buffer((char *)buffer->data - GUARD_BYTES);
    free((unsigned char *)buffer->data - GUARD_BYTES);
    *buffer = (struct buffer){0};
}

void buffer_free(struct buffer *buffer) {
    const int64_t distance = distance_of_damage(buffer);
    if (distance >= 0)
        fail_msg("a byte outside a buffer of %lld bytes was written, at distance %lld", (long long)buffer->bytes,
                 (long long)distance);
    buffer_free_unchecked(buffer);
}

const sw_dtype test_types[TEST_TYPES] = {SW_F32, SW_BF16, SW_F16};

float element(sw_dtype type, const void *data, int64_t index) {
    return sw_dtype_load(type, data, index);
}

void set_element(sw_dtype type, void *data, int64_t index, float value) {
    sw_dtype_store(type, data, index, value);
}

/* The longest sequence that was drawn from each stream of random numbers: every device and shape begins again with the
 * same ones, which take longer to draw than most ops to run. Locked by `live.mutex`. */
static struct {
    uint64_t stream;
    int64_t elems;
    float *normals;
} drawn[MOST_STREAMS];

/* Writes deviation times the first normal numbers of a stream. */
static void draw_normals(uint64_t stream, int64_t elems, float deviation, float *out) {
    int at = 0;
    pthread_mutex_lock(&live.mutex);
    while (at < MOST_STREAMS && drawn[at].normals != NULL && drawn[at].stream != stream)
        at++;
    assert_true(at < MOST_STREAMS);
    if (drawn[at].elems < elems) {
        drawn[at].stream = stream;
        drawn[at].normals = realloc(drawn[at].normals, (size_t)elems * sizeof(float));
        assert_non_null(drawn[at].normals);
        sw_rng_normals(test_seed(), stream, (uint64_t)drawn[at].elems, elems - drawn[at].elems,
                       drawn[at].normals + drawn[at].elems);
        drawn[at].elems = elems;
    }
    for (int64_t i = 0; i < elems; i++)
        out[i] = deviation * drawn[at].normals[i];
    pthread_mutex_unlock(&live.mutex);
}

struct buffer buffer_random(sw_dtype type, int64_t elems, uint64_t stream, float deviation) {
    struct buffer buffer = buffer_make(elems * sw_dtype_bytes(type));
    float *normals = malloc((size_t)elems * sizeof *normals + 1);
    assert_non_null(normals);
    draw_normals(stream, elems, deviation, normals);
    sw_dtype_round(type, normals, elems, buffer.data);
    free(normals);
    return buffer;
}

struct buffer buffer_of(const void *from, int64_t bytes) {
    struct buffer buffer = buffer_make(bytes);
    memcpy(buffer.data, from, (size_t)bytes);
    return buffer;
}

struct buffer buffer_copy(const struct buffer *from) {
    return buffer_of(from->data, from->bytes);
}

struct buffer buffer_zeros(int64_t bytes) {
    struct buffer buffer = buffer_make(bytes);
    memset(buffer.data, 0, (size_t)bytes);
    return buffer;
}

/* bf16 keeps 8 bits and fp16 11: two values that round to neighbours differ by up to 2^-7 and 2^-10 of themselves, or
 * by the least of fp16's subnormal numbers. */
static float neighbour(sw_dtype type) {
    return type == SW_F32 ? 0.0f : type == SW_BF16 ? 0x1p-7f : 0x1p-10f;
}

static float least_step(sw_dtype type) {
    return type == SW_F16 ? 0x1p-24f : 0.0f;
}

void assert_close(const char *what, const struct pair *pair, sw_dtype type, int64_t elems, const void *got,
                  const void *want, float rtol, float atol) {
    const float relative = rtol + neighbour(type), absolute = atol + least_step(type);
    for (int64_t i = 0; i < elems; i++) {
        const float x = element(type, got, i), y = element(type, want, i);
        if (!(fabsf(x - y) <= absolute + relative * fabsf(y)))
            fail_msg("%s of %s on %s, element %lld of %lld: %.9g, and the reference has %.9g (seed %llu)", what,
                     sw_dtype_name(type), pair->label, (long long)i, (long long)elems, (double)x, (double)y,
                     (unsigned long long)test_seed());
    }
}

void assert_same_bits(const char *what, const struct pair *pair, int64_t bytes, const void *got, const void *want) {
    const unsigned char *x = got, *y = want;
    for (int64_t i = 0; memcmp(got, want, (size_t)bytes) != 0 && i < bytes; i++) {
        if (x[i] != y[i])
            fail_msg("%s on %s: byte %lld of %lld is 0x%02x, and the reference has 0x%02x (seed %llu)", what,
                     pair->label, (long long)i, (long long)bytes, x[i], y[i], (unsigned long long)test_seed());
    }
}

void assert_near(const char *what, int64_t index, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want))))
        fail_msg("%s, element %lld: %.12g, and the difference quotient is %.12g (seed %llu)", what, (long long)index,
                 got, want, (unsigned long long)test_seed());
}
