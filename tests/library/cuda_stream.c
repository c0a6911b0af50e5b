/* Streams whose tensors are in the memory of an emulated GPU, which works late by chance: every tensor has its bytes at
 * every time, within the budget; a store that writes to the host's copies has the bits of one without a stream; and
 * what fails leaves nothing taken. */
#include "library/stream_private.h"
#include "tests/equipment/cuda/driver.h"
#include "tests/equipment/cuda/runtime.h"
#include "tests/library/support.h"

#include <xxhash.h>

enum {
    PARTS = 7,
    READS = 60,
    STEPS = 4,
    MIB = 1 << 20,
    BUDGET = 14 * MIB,
    DELAY_NS = 300000,
    LONG_DELAY_NS = 40000000,
    LEFT_BYTES = 8 * MIB
};

/* Small ones, a granule and its neighbours, and several; they take 9 granules, and the budget leaves 6. */
static const int64_t part_bytes[PARTS] = {4, 65536, 2 * MIB, 2 * MIB + 4, 5 * MIB, 70004, 1234568};

static CUcontext context;
static CUstream stream, other;
static char *filled, *seen[READS]; /* pinned */

static void cuda_must(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS)
        fail_msg("%s: error %d of the driver", what, result);
}

static void must(int status, const char *what) {
    if (status != SPILLWAY_OK)
        fail_msg("%s: %s (%s)", what, spillway_error(NULL), spillway_status_name(status));
}

static void *pinned(int64_t bytes) {
    void *memory = NULL;
    cuda_must(cuMemHostAlloc(&memory, (size_t)bytes, 0), "pinned memory");
    return memory;
}

static int begin(void **state) {
    (void)state;
    cuda_must(cuInit(0), "init");
    cuda_must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    cuda_must(cuCtxPushCurrent_v2(context), "context");
    cuda_must(cuStreamCreate(&stream, 0), "stream");
    cuda_must(cuStreamCreate(&other, 0), "stream");
    filled = pinned(part_bytes[4]);
    for (int i = 0; i < READS; i++)
        seen[i] = pinned(part_bytes[4]);
    return 0;
}

static CUdeviceptr at(const spillway_stream *self, int64_t part) {
    return (CUdeviceptr)(uintptr_t)spillway_stream_address(self, part);
}

static uint32_t word_of(int64_t part, int64_t i, int version) {
    return (uint32_t)(i * 31 + part * 1789 + version * 104729) * 2654435761u;
}

static spillway_stream *make(uint64_t memory_bytes) {
    struct spillway_stream_options options = SPILLWAY_STREAM_OPTIONS_INIT;
    spillway_stream *self;
    options.memory_bytes = memory_bytes;
    options.cuda_device = 0;
    must(spillway_stream_create(&options, &self), "create");
    for (int64_t part = 0; part < PARTS; part++)
        must(spillway_stream_add(self, "part", part_bytes[part], NULL), "add");
    return self;
}

/* The caller's work writes the bytes, late. */
static void fill(spillway_stream *self, int64_t part, int version) {
    cuda_must(cuStreamSynchronize(stream), "wait");
    for (int64_t i = 0; i < part_bytes[part] / 4; i++)
        ((uint32_t *)(void *)filled)[i] = word_of(part, i, version);
    must(spillway_stream_need(self, &part, 1, SPILLWAY_CHANGE), "need");
    cuda_must(cuMemcpyHtoDAsync_v2(at(self, part), filled, (size_t)part_bytes[part], stream), "fill");
    must(spillway_stream_changed(self, &part, 1), "changed");
    must(spillway_stream_done(self, &part, 1), "done");
}

static void expect(const char *bytes, int64_t part, int version) {
    const uint32_t *words = (const void *)bytes;
    for (int64_t i = 0; i < part_bytes[part] / 4; i++)
        if (words[i] != word_of(part, i, version))
            fail_msg("word %lld of tensor %lld is wrong", (long long)i, (long long)part);
}

static spillway_stream *open_filled(void) {
    spillway_stream *self = make(BUDGET);
    must(spillway_stream_open(self), "open");
    must(spillway_stream_use_cuda(self, stream), "use_cuda");
    must(spillway_stream_use_cuda(self, other), "use_cuda");
    for (int64_t part = 0; part < PARTS; part++)
        fill(self, part, 0);
    return self;
}

/* Work that reads is still under way when the tensor is done with, and when others take its memory. */
static void tensors_have_their_bytes_while_the_gpu_is_late(void **state) {
    struct spillway_stream_usage usage = SPILLWAY_STREAM_USAGE_INIT;
    int64_t part[READS];
    uint32_t word = 1;
    (void)state;
    sw_emulation_set_delays(DELAY_NS, 5);
    spillway_stream *self = open_filled();
    for (int i = 0; i < READS; i++) {
        const bool announced = i % 3 != 2, backward = i % 4 == 1;
        word = word * 1664525u + 1013904223u;
        part[i] = announced ? i % PARTS : (int64_t)(word >> 16) % PARTS;
        const int direction = backward ? SPILLWAY_BACKWARD : SPILLWAY_FORWARD;
        if (announced)
            must(spillway_stream_need(self, &part[i], 1, direction), "need");
        cuda_must(
            cuMemcpyDtoHAsync_v2(seen[i], at(self, part[i]), (size_t)part_bytes[part[i]], i % 2 == 0 ? stream : other),
            "read");
        if (announced && !backward)
            must(spillway_stream_done(self, &part[i], 1), "done");
    }
    cuda_must(cuStreamSynchronize(stream), "wait");
    cuda_must(cuStreamSynchronize(other), "wait");
    for (int i = 0; i < READS; i++)
        expect(seen[i], part[i], 0);
    must(spillway_stream_get_usage(self, &usage), "usage");
    assert_true(usage.memory_bytes <= BUDGET && sw_emulation_device_bytes(true) <= BUDGET);
    assert_true(usage.drive_bytes == 0 && usage.read_bytes > usage.tensor_bytes && usage.waits <= usage.needs);
    must(spillway_stream_close(self, 0), "close");
    sw_emulation_set_delays(0, 0);
    assert_int_equal(sw_emulation_device_bytes(false), 0);
}

/* Two passes teach the order, and then the next tensor is there, or on its way, before it is needed. */
static void what_comes_next_is_copied_ahead(void **state) {
    (void)state;
    spillway_stream *self = open_filled();
    for (int pass = 0; pass < 5; pass++) {
        for (int64_t part = 2; part < PARTS; part++) {
            must(spillway_stream_need(self, &part, 1, SPILLWAY_FORWARD), "need");
            cuda_must(cuMemcpyDtoHAsync_v2(seen[part], at(self, part), (size_t)part_bytes[part], stream), "read");
            must(spillway_stream_done(self, &part, 1), "done");
            const int64_t next = part + 1 < PARTS ? part + 1 : 2;
            pthread_mutex_lock(&self->lock);
            const bool absent = self->piece[next].state == STREAM_ABSENT;
            pthread_mutex_unlock(&self->lock);
            if (pass >= 2 && absent)
                fail_msg("tensor %lld is not read ahead", (long long)next);
        }
    }
    must(spillway_stream_close(self, 0), "close");
}

/* A store: the same gradients, in the GPU's memory, to weights of a stream or of the host. */
struct outcome {
    double norm[STEPS + 1];
    uint64_t weights[STEPS + 1][PARTS];
};

static spillway *open_store(void *const *state, char *const *weights, spillway_stream *streamed) {
    char path[SUPPORT_PATH_CHARS];
    struct spillway_options options = library_options(library_store(state, path), INT64_C(64) << 20);
    spillway *self;
    options.accumulate = 1;
    must(spillway_create(&options, &self), "create");
    must(spillway_use_cuda(self, 0, stream), "use_cuda");
    if (streamed != NULL)
        must(spillway_use_stream(self, streamed), "use_stream");
    for (int64_t part = 0; part < PARTS; part++) {
        char name[SPILLWAY_NAME_CHARS];
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        snprintf(name, sizeof name, "part%lld", (long long)part);
        tensor.name = name;
        tensor.type = (part % 2 == 0 ? SPILLWAY_F32 : SPILLWAY_BF16) + (streamed != NULL ? SPILLWAY_CUDA : 0);
        tensor.count = part_bytes[part] / (part % 2 == 0 ? 4 : 2);
        tensor.weights = streamed != NULL ? spillway_stream_address(streamed, part) : weights[part];
        library_must(spillway_add(self, &tensor, NULL), self, "add");
    }
    library_must(spillway_open(self), self, "open");
    return self;
}

static void hand_in(spillway *self, int64_t part, int64_t step, CUdeviceptr gradients) {
    const int64_t count = part_bytes[part] / (part % 2 == 0 ? 4 : 2);
    for (int64_t i = 0; i < count; i++)
        ((float *)(void *)filled)[i] = (float)(word_of(part, i, (int)step) >> 8) * 0x1p-24f - 0.5f;
    cuda_must(cuMemcpyHtoDAsync_v2(gradients, filled, (size_t)count * 4, stream), "gradient");
    library_must(
        spillway_gradient(self, part, SPILLWAY_F32 + SPILLWAY_CUDA, (void *)(uintptr_t)gradients, SPILLWAY_ADD), self,
        "gradient");
    cuda_must(cuStreamSynchronize(stream), "wait");
}

static void look(spillway_stream *streamed, char *const *weights, uint64_t *out) {
    for (int64_t part = 0; part < PARTS; part++) {
        if (streamed != NULL) {
            /* Every other one is not announced. */
            if (part % 2 == 0)
                must(spillway_stream_need(streamed, &part, 1, SPILLWAY_FORWARD), "need");
            cuda_must(cuMemcpyDtoHAsync_v2(seen[0], at(streamed, part), (size_t)part_bytes[part], stream), "read");
            if (part % 2 == 0)
                must(spillway_stream_done(streamed, &part, 1), "done");
            cuda_must(cuStreamSynchronize(stream), "wait");
        }
        out[part] = XXH3_64bits(streamed != NULL ? seen[0] : weights[part], (size_t)part_bytes[part]);
    }
}

/* The first weights are zero: that is what a stream begins with. */
static struct outcome train(void **state, bool streams) {
    struct outcome outcome = {0};
    char *weights[PARTS];
    CUdeviceptr gradients;
    for (int64_t part = 0; part < PARTS; part++) {
        weights[part] = pinned(part_bytes[part]);
        memset(weights[part], 0, (size_t)part_bytes[part]);
    }
    cuda_must(cuMemAlloc_v2(&gradients, (size_t)part_bytes[4]), "device memory");
    spillway_stream *streamed = streams ? make(BUDGET) : NULL;
    if (streams) {
        must(spillway_stream_open(streamed), "open");
        must(spillway_stream_use_cuda(streamed, stream), "use_cuda");
    }
    spillway *self = open_store(state, weights, streamed);
    for (int64_t step = 1; step <= STEPS; step++) {
        struct spillway_rates rates = SPILLWAY_RATES_INIT;
        struct spillway_result result = SPILLWAY_RESULT_INIT;
        rates.clip = 0.5;
        for (int64_t part = 0; part < PARTS; part++)
            hand_in(self, part, step, gradients);
        /* A backward pass that still reads the old weights, and has announced nothing. */
        sw_emulation_set_delays(streams ? LONG_DELAY_NS : 0, (uint64_t)step);
        for (int64_t part = 0; streams && part < PARTS; part++)
            cuda_must(cuMemcpyDtoHAsync_v2(seen[part + 1], at(streamed, part), (size_t)part_bytes[part], stream),
                      "read");
        library_must(spillway_step(self, &rates, &result), self, "step");
        cuda_must(cuStreamSynchronize(stream), "wait");
        sw_emulation_set_delays(streams ? DELAY_NS : 0, 9);
        for (int64_t part = 0; streams && step > 1 && part < PARTS; part++)
            assert_int_equal(XXH3_64bits(seen[part + 1], (size_t)part_bytes[part]), outcome.weights[step - 1][part]);
        outcome.norm[step] = result.grad_norm;
        look(streamed, weights, outcome.weights[step]);
        if (step == STEPS / 2 && streams) {
            /* Another process, whose stream has none of the weights. */
            spillway_close(self);
            must(spillway_stream_close(streamed, 0), "close");
            streamed = make(BUDGET);
            must(spillway_stream_open(streamed), "open");
            must(spillway_stream_use_cuda(streamed, stream), "use_cuda");
            self = open_store(state, weights, streamed);
            uint64_t again[PARTS];
            look(streamed, weights, again);
            assert_memory_equal(again, outcome.weights[step], sizeof again);
        }
    }
    spillway_close(self);
    if (streams)
        must(spillway_stream_close(streamed, 0), "close");
    cuda_must(cuMemFree_v2(gradients), "free");
    for (int64_t part = 0; part < PARTS; part++)
        cuda_must(cuMemFreeHost(weights[part]), "free");
    library_remove_stores(state);
    return outcome;
}

static void a_store_has_the_bits_of_host_weights(void **state) {
    const struct outcome plain = train(state, false);
    const struct outcome streamed = train(state, true);
    sw_emulation_set_delays(0, 0);
    assert_true(plain.norm[1] > 0.0);
    assert_memory_equal(&plain, &streamed, sizeof plain);
    assert_int_equal(sw_emulation_device_bytes(false), 0);
}

static void expect_refusal(int status, int known, const char *text) {
    assert_int_equal(status, known);
    if (strstr(spillway_error(NULL), text) == NULL)
        fail_msg("'%s' lacks '%s'", spillway_error(NULL), text);
}

static void mistakes_are_refused(void **state) {
    const struct support_folder *folder = *state;
    struct spillway_stream_options options = SPILLWAY_STREAM_OPTIONS_INIT;
    const int64_t parts[] = {2, 3, 4};
    spillway_stream *self;
    options.memory_bytes = BUDGET;
    expect_refusal(spillway_stream_create(&options, &self), SPILLWAY_ERROR_ARGUMENT, "`folder` is not the path");
    options.cuda_device = 9;
    expect_refusal(spillway_stream_create(&options, &self), SPILLWAY_ERROR_ARGUMENT, "there is no CUDA device 9");
    assert_null(self);
    options = (struct spillway_stream_options)SPILLWAY_STREAM_OPTIONS_INIT;
    options.memory_bytes = BUDGET;
    options.folder = folder->path;
    options.allow_buffered = 1;
    must(spillway_stream_create(&options, &self), "create");
    must(spillway_stream_add(self, "part", 5, NULL), "add");
    must(spillway_stream_open(self), "open");
    expect_refusal(spillway_stream_use_cuda(self, stream), SPILLWAY_ERROR_ARGUMENT, "are in host memory");
    must(spillway_stream_close(self, 0), "close");
    self = make(3 * MIB);
    expect_refusal(spillway_stream_open(self), SPILLWAY_ERROR_BUDGET, "the largest tensor alone takes 8.00 MiB");
    must(spillway_stream_close(self, 0), "close");
    self = make(12 * MIB);
    must(spillway_stream_open(self), "open");
    must(spillway_stream_need(self, parts, 2, SPILLWAY_FORWARD), "need");
    expect_refusal(spillway_stream_need(self, &parts[2], 1, SPILLWAY_FORWARD), SPILLWAY_ERROR_BUDGET,
                   "there is no room for");
    must(spillway_stream_done(self, parts, 2), "done");
    must(spillway_stream_need(self, &parts[2], 1, SPILLWAY_FORWARD), "need");
    must(spillway_stream_close(self, 0), "close");
    assert_int_equal(sw_emulation_device_bytes(false), 0);
}

static void expect_memory_refusal(const struct sw_emulation_gpu *gpu, const char *text) {
    const size_t before = sw_emulation_pinned_bytes();
    sw_emulation_set_gpu(gpu);
    spillway_stream *self = make(BUDGET);
    expect_refusal(spillway_stream_open(self), SPILLWAY_ERROR_MEMORY, text);
    must(spillway_stream_close(self, 0), "close");
    assert_int_equal(sw_emulation_device_bytes(false), 0);
    assert_int_equal(sw_emulation_pinned_bytes(), before);
    sw_emulation_set_gpu(&sw_emulation_default_gpu);
}

static void memory_that_is_not_there_is_refused(void **state) {
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    (void)state;
    gpu.memory_bytes = LEFT_BYTES;
    expect_memory_refusal(&gpu, "while taking memory of the GPU");
    gpu = sw_emulation_default_gpu;
    gpu.pinnable_bytes = sw_emulation_pinned_bytes() + LEFT_BYTES;
    expect_memory_refusal(&gpu, "while mapping memory of a tensor");
}

/* It stays broken for the rest of the process. */
static void an_error_of_the_gpu_ends_the_stream(void **state) {
    (void)state;
    spillway_stream *self = open_filled();
    sw_emulation_break("on purpose");
    int status = SPILLWAY_OK;
    for (int64_t i = 0; i < 2 * PARTS && status == SPILLWAY_OK; i++) {
        const int64_t part = i % PARTS;
        status = spillway_stream_need(self, &part, 1, SPILLWAY_BACKWARD);
    }
    expect_refusal(status, SPILLWAY_ERROR_DEVICE, "CUDA");
    must(spillway_stream_close(self, 0), "close");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(tensors_have_their_bytes_while_the_gpu_is_late),
        IN_FOLDER(what_comes_next_is_copied_ahead),
        IN_FOLDER(a_store_has_the_bits_of_host_weights),
        IN_FOLDER(mistakes_are_refused),
        IN_FOLDER(memory_that_is_not_there_is_refused),
        IN_FOLDER(an_error_of_the_gpu_ends_the_stream),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
