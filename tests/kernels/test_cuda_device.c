/* The CUDA device on machines that are not as it needs them, by the emulated GPU. */
#include "tests/kernels/support.h"

#include "core/log.h"
#include "core/size.h"
#include "kernels/products.h"
#include "tests/equipment/cuda/runtime.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define GIB ((size_t)1 << 30)

/* Expects that opening the device fails with a message that has all of the words. */
static void must_refuse(const struct sw_emulation_gpu *gpu, const char *name, sw_status status,
                        const char *const *words) {
    struct sw_device *device = NULL;
    sw_emulation_set_gpu(gpu);
    const sw_status found = sw_device_open(name, 0, &device);
    const char *message = sw_error_message(found);
    if (found != status)
        fail_msg("%s where %s was expected: %s", sw_status_name(found), sw_status_name(status), message);
    for (int w = 0; words[w] != NULL; w++)
        if (strstr(message, words[w]) == NULL)
            fail_msg("'%s' is not in: %s", words[w], message);
    assert_null(device);
    sw_error_clear();
}

static void refuses_machines(void **state) {
    (void)state;
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    gpu.start = cudaErrorInsufficientDriver;
    gpu.driver = 12020;
    must_refuse(&gpu, "cuda", SW_ERR_DEVICE,
                (const char *const[]){"CUDA 12.2", "older", "newer driver", "--device cpu", NULL});
    gpu.driver = 0;
    must_refuse(&gpu, "cuda", SW_ERR_UNSUPPORTED,
                (const char *const[]){"driver is not installed", "--device cpu", NULL});
    gpu.start = cudaErrorNoDevice;
    must_refuse(&gpu, "cuda", SW_ERR_UNSUPPORTED, (const char *const[]){"no GPU", "CUDA_VISIBLE_DEVICES", NULL});
    gpu = sw_emulation_default_gpu;
    gpu.gpus = 0;
    must_refuse(&gpu, "cuda", SW_ERR_UNSUPPORTED, (const char *const[]){"no GPU", NULL});
    gpu.gpus = 2;
    must_refuse(&gpu, "cuda:2", SW_ERR_ARG, (const char *const[]){"the last one here is 1", NULL});
    must_refuse(&gpu, "cuda:", SW_ERR_ARG, (const char *const[]){"has a number", NULL});
    must_refuse(&gpu, "cuda:x", SW_ERR_ARG, (const char *const[]){"has a number", NULL});
    must_refuse(&gpu, "cuda:-1", SW_ERR_ARG, (const char *const[]){"the last one here is 1", NULL});
    gpu.major = 7;
    gpu.minor = 5;
    must_refuse(&gpu, "cuda", SW_ERR_UNSUPPORTED, (const char *const[]){"7.5", "8.0", NULL});
    gpu = sw_emulation_default_gpu;
    gpu.held_bytes = gpu.memory_bytes;
    must_refuse(&gpu, "cuda", SW_ERR_DEVICE, (const char *const[]){"another process", "nvidia-smi", NULL});
    gpu = sw_emulation_default_gpu;
    gpu.kernels = cudaErrorNoKernelImageForDevice;
    must_refuse(
        &gpu, "cuda", SW_ERR_DEVICE,
        (const char *const[]){"no kernels for Emulated GPU (sm_90)", "no kernel image", "-Dgpu_arch=all", NULL});
    sw_emulation_set_gpu(&sw_emulation_default_gpu);
}

static void must_refuse_memory(const struct sw_emulation_gpu *gpu, sw_memory_side side, const char *const *words) {
    struct sw_device *device = NULL;
    struct sw_memory *memory = NULL;
    sw_emulation_set_gpu(gpu);
    assert_ok(sw_device_open("cuda", 0, &device));
    assert_int_equal(sw_memory_open(device, "tier", side, (int64_t)GIB, &memory), SW_ERR_NOMEM);
    assert_null(memory);
    for (int w = 0; words[w] != NULL; w++)
        if (strstr(sw_error_message(SW_ERR_NOMEM), words[w]) == NULL)
            fail_msg("'%s' is not in: %s", words[w], sw_error_message(SW_ERR_NOMEM));
    sw_error_clear();
    /* The failure left nothing behind. */
    assert_ok(sw_memory_open(device, "tier", side, (int64_t)GIB / 4, &memory));
    sw_memory_close(memory);
    sw_device_close(device);
    sw_emulation_set_gpu(&sw_emulation_default_gpu);
}

static void refuses_memory(void **state) {
    (void)state;
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    gpu.memory_bytes = GIB;
    gpu.held_bytes = GIB / 2;
    must_refuse_memory(&gpu, SW_MEMORY_DEVICE,
                       (const char *const[]){"512.00 MiB free", "1.00 GiB are needed", "--device-memory", NULL});
    gpu.pinnable_bytes = GIB / 2;
    must_refuse_memory(&gpu, SW_MEMORY_HOST,
                       (const char *const[]){"pin 1.00 GiB", "only 512.00 MiB", "--host-memory", NULL});
}

/* Host memory is pinned in pieces, all of which are registered, and none any more once it is given back, or where a
 * stop comes between two of them. */
static void pins_in_pieces(void **state) {
    (void)state;
    enum { BYTES = 3 << 20 };
    struct sw_device *device = NULL;
    struct sw_memory *memory = NULL;
    volatile sig_atomic_t stop = 0;
    assert_ok(sw_device_open("cuda", 0, &device));
    assert_ok(sw_memory_open(device, "tier", SW_MEMORY_HOST, BYTES, &memory));
    assert_int_equal(sw_emulation_pinned_bytes(), BYTES);
    sw_memory_close(memory);
    assert_int_equal(sw_emulation_pinned_bytes(), 0);
    sw_long_work_stop_by(&stop);
    assert_ok(sw_memory_open(device, "tier", SW_MEMORY_HOST, BYTES, &memory));
    sw_memory_close(memory);
    stop = 1;
    assert_int_equal(sw_memory_open(device, "tier", SW_MEMORY_HOST, BYTES, &memory), SW_ERR_STOPPED);
    assert_non_null(strstr(sw_error_message(SW_ERR_STOPPED), "tier"));
    assert_int_equal(sw_emulation_pinned_bytes(), 0);
    sw_long_work_stop_by(NULL);
    sw_error_clear();
    sw_device_close(device);
}

/* A copy from one piece into the next is right wherever it begins and ends; the emulated GPU refuses it as one. */
static void copies_cross_from_piece_to_piece(void **state) {
    (void)state;
    enum { BYTES = 1 << 20, PERIOD = 251 };
    static const int64_t cuts[][2] = {{0, BYTES}, {1, BYTES - 1}, {262143, 262145}, {262144, 524288}, {5, 262144}};
    struct sw_device *device = NULL;
    struct sw_memory *host = NULL, *there = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("cuda", 0, &device));
    assert_ok(sw_stream_open(device, &stream));
    assert_ok(sw_memory_open(device, "host", SW_MEMORY_HOST, BYTES, &host));
    assert_ok(sw_memory_open(device, "device", SW_MEMORY_DEVICE, BYTES, &there));
    char *at = sw_memory_base(host), *on_gpu = sw_memory_base(there);
    assert_int_equal(cudaMemcpyAsync(on_gpu, at, BYTES, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidValue);
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        const int64_t first = cuts[c][0], end = cuts[c][1];
        for (int64_t i = 0; i < BYTES; i++)
            at[i] = (char)(i % PERIOD);
        assert_ok(sw_copy_to_device(stream, on_gpu + first, at + first, end - first));
        assert_ok(sw_stream_synchronize(stream));
        memset(at, -1, BYTES);
        assert_ok(sw_copy_to_host(stream, at + first, on_gpu + first, end - first));
        assert_ok(sw_stream_synchronize(stream));
        for (int64_t i = 0; i < BYTES; i++)
            if (at[i] != (i >= first && i < end ? (char)(i % PERIOD) : -1))
                fail_msg("byte %lld of the copy from %lld to %lld", (long long)i, (long long)first, (long long)end);
    }
    sw_memory_close(there);
    sw_memory_close(host);
    sw_stream_close(stream);
    sw_device_close(device);
}

/* Nothing is cleared any more once somebody has been given the memory, however late the GPU does what it is told. */
static void clears_before_it_gives(void **state) {
    (void)state;
    enum { ROUNDS = 8, MOST_DELAY_NS = 4000000, MARK = 0x5a };
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cuda", 0, &device));
    sw_emulation_set_delays(MOST_DELAY_NS, test_seed());
    for (int round = 0; round < ROUNDS; round++) {
        struct things t = open_things(device);
        char *host = sw_memory_base(t.on_host);
        memset(host, MARK, THINGS_BYTES);
        assert_ok(sw_copy_to_device(t.stream[0], sw_memory_base(t.on_device), host, THINGS_BYTES));
        assert_ok(sw_stream_synchronize(t.stream[0]));
        nanosleep(&(struct timespec){.tv_nsec = MOST_DELAY_NS}, NULL);
        assert_ok(sw_copy_to_host(t.stream[0], host, sw_memory_base(t.on_device), THINGS_BYTES));
        assert_ok(sw_stream_synchronize(t.stream[0]));
        for (int i = 0; i < THINGS_BYTES; i++)
            if (host[i] != MARK)
                fail_msg("byte %d was cleared after it was written (seed %llu)", i, (unsigned long long)test_seed());
        close_things(&t);
    }
    sw_emulation_set_delays(0, 0);
    sw_device_close(device);
}

static void properties(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cuda:0", 0, &device));
    const struct sw_device_info info = sw_device_info(device);
    assert_true(sw_device_has_cuda());
    assert_string_equal(info.name, "cuda");
    assert_string_equal(info.isa, "sm_90");
    assert_non_null(info.model);
    assert_true(info.asynchronous && info.bf16_fast && !info.host_memory);
    assert_int_equal(info.memory_bytes, sw_emulation_default_gpu.memory_bytes);
    sw_device_close(device);
}

/* 1 + 2^-11 is halfway between numbers of TF32. */
static float product_of(bool tf32) {
    static const struct sw_gemm shape = {.m = 1, .n = 1, .k = 1, .in = SW_F32, .out = SW_F32};
    const float in[2] = {1.0f + 0x1p-11f, 1.0f};
    float out = 0.0f;
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory;
    int64_t scratch_bytes;
    assert_ok(sw_device_open("cuda", 0, &device));
    if (tf32)
        assert_ok(sw_device_use_tf32(device));
    assert_ok(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
    assert_ok(sw_stream_open(device, &stream));
    assert_ok(sw_memory_open(device, "test", SW_MEMORY_DEVICE, 3 * SW_BUFFER_ALIGN_BYTES + scratch_bytes, &memory));
    char *base = sw_memory_base(memory);
    for (int i = 0; i < 2; i++)
        assert_ok(sw_copy_to_device(stream, base + i * SW_BUFFER_ALIGN_BYTES, &in[i], sizeof in[i]));
    assert_ok(sw_gemm(stream, &shape, base, base + SW_BUFFER_ALIGN_BYTES, NULL, base + 2 * SW_BUFFER_ALIGN_BYTES,
                      base + 3 * SW_BUFFER_ALIGN_BYTES));
    assert_ok(sw_copy_to_host(stream, &out, base + 2 * SW_BUFFER_ALIGN_BYTES, sizeof out));
    assert_ok(sw_stream_synchronize(stream));
    sw_memory_close(memory);
    sw_stream_close(stream);
    sw_device_close(device);
    return out;
}

static void rounds_to_tf32_where_it_may(void **state) {
    (void)state;
    struct sw_device *cpu;
    assert_true(product_of(false) == 1.0f + 0x1p-11f);
    assert_true(product_of(true) == 1.0f + 0x1p-10f);
    assert_ok(sw_device_open("cpu", 1, &cpu));
    assert_int_equal(sw_device_use_tf32(cpu), SW_ERR_UNSUPPORTED);
    sw_error_clear();
    sw_device_close(cpu);
}

/* Algorithms are timed with random numbers, and chosen for a bias that is there: the emulated library refuses others.
 */
static void chooses_algorithms_by_real_operands(void **state) {
    (void)state;
    static const struct sw_gemm_algorithms none = {0};
    const int64_t before = sw_emulation_constant_products();
    struct sw_device *device;
    int64_t scratch_bytes;
    assert_ok(sw_device_open("cuda", 0, &device));
    assert_ok(sw_device_use_algorithms(device, &none, true));
    for (int type = 0; type < SW_DTYPES; type++) {
        const struct sw_gemm shape = {
            .m = 17, .n = 33, .k = 65, .bias = true, .in = (sw_dtype)type, .out = (sw_dtype)type};
        assert_ok(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
    }
    assert_int_equal(sw_emulation_constant_products(), before);
    sw_device_close(device);
}

/* An error of the GPU stays with it: every later call says what it was. The last test, for nothing works after it. */
static void keeps_errors(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cuda", 0, &device));
    struct things t = open_things(device);
    sw_emulation_break("an illegal memory access was encountered");
    assert_int_equal(sw_stream_synchronize(t.stream[0]), SW_ERR_DEVICE);
    assert_non_null(strstr(sw_error_message(SW_ERR_DEVICE), "illegal memory access"));
    sw_error_clear();
    assert_int_equal(sw_zero(t.stream[1], sw_memory_base(t.on_device), THINGS_BYTES), SW_ERR_DEVICE);
    sw_error_clear();
    close_things(&t);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_machines),
        cmocka_unit_test(refuses_memory),
        cmocka_unit_test(pins_in_pieces),
        cmocka_unit_test(copies_cross_from_piece_to_piece),
        cmocka_unit_test(clears_before_it_gives),
        cmocka_unit_test(properties),
        cmocka_unit_test(rounds_to_tf32_where_it_may),
        cmocka_unit_test(chooses_algorithms_by_real_operands),
        cmocka_unit_test(keeps_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
