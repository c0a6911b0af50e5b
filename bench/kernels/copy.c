/* Copies between host and device, beside memcpy of the same sizes and the memory's own limit. */
#include "bench/commands.h"
#include "bench/kernels/copy_both.h"
#include "bench/kernels/memory.h"
#include "bench/options.h"
#include "core/size.h"
#include "offload/simulate/measure.h"
#include "train/cli/commands.h"

#include <stdio.h>

enum { UPLOAD, DOWNLOAD, BOTH_UPLOAD, BOTH_DOWNLOAD, MEMCPY_ONE, MEMCPY_ALL, TRIAD, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each has its place among the rates");

/* Larger than caches together, and two chunks of the largest. Weights are copied by whole grains. */
#define AREA_BYTES (128 * SW_MIB)
#define WORKING_BYTES (48 * SW_MIB)
#define LARGEST_BYTES (64 * SW_MIB)
#define GRAIN_BYTES (SW_GRAIN_ELEMS * sw_dtype_bytes(SW_BF16))

struct copy_options {
    struct sw_option_list sizes;
    int device;
    int64_t threads, rounds;
    bool json;
};

static sw_status read_size(const char *text, int64_t *out_bytes) {
    SW_TRY(sw_parse_size(text, out_bytes));
    if (*out_bytes < GRAIN_BYTES || *out_bytes > LARGEST_BYTES || *out_bytes % GRAIN_BYTES != 0)
        return sw_fail(SW_ERR_ARG, "--size %s is not a multiple of 32KiB up to 64MiB", text);
    return SW_OK;
}

static sw_status check_sizes(const void *target) {
    const struct copy_options *given = target;
    for (int i = 0; i < given->sizes.count; i++) {
        int64_t bytes;
        SW_TRY(read_size(given->sizes.items[i], &bytes));
    }
    return SW_OK;
}

#define AT(member) offsetof(struct copy_options, member)
static const struct sw_option options[] = {
    {.name = "--size",
     .kind = SW_OPTION_MANY,
     .offset = AT(sizes),
     .value = "SIZE",
     .what = "of a copy; default: 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB"},
    SW_BENCH_DEVICE(AT(device)),
    SW_BENCH_THREADS(AT(threads)),
    SW_BENCH_ROUNDS(AT(rounds), "5"),
    SW_BENCH_JSON(AT(json)),
};
static const struct sw_command_line line = {.command = "bench copy",
                                            .summary = "copies between host and device, beside plain memory copies",
                                            .options = options,
                                            .option_count = sizeof options / sizeof options[0],
                                            .check = check_sizes};

struct copy_bench {
    struct sw_devices devices;
    struct sw_copy_both *both;
    struct sw_bench_memory memory;
    json_t *results;
};

static sw_status measure(const struct copy_bench *bench, int64_t size_bytes, struct sw_bench_rounds *out) {
    const struct sw_measure_shape shape = {.type = SW_BF16, .chunk_grains = size_bytes / GRAIN_BYTES};
    const struct sw_bench_memory *memory = &bench->memory;
    const int64_t bytes = sw_max_i64(2, WORKING_BYTES / size_bytes) * size_bytes;
    for (int i = 0; i < out->rounds; i++) {
        struct sw_rate upload, download;
        SW_TRY(sw_measure_copies(bench->devices.compute, &shape, &upload, &download));
        SW_TRY(sw_copy_both_run(bench->both, size_bytes, &out->rate[BOTH_UPLOAD][i], &out->rate[BOTH_DOWNLOAD][i]));
        out->rate[UPLOAD][i] = upload.bytes_per_s;
        out->rate[DOWNLOAD][i] = download.bytes_per_s;
        out->rate[MEMCPY_ONE][i] = sw_bench_memcpy(memory, bytes, size_bytes, 1);
        out->rate[MEMCPY_ALL][i] = sw_bench_memcpy(memory, bytes, size_bytes, memory->threads);
        out->rate[TRIAD][i] = sw_bench_triad(memory);
    }
    return SW_OK;
}

/* A copied byte is read and written, so the triad's traffic counts twice as much. */
static double of_triad(const struct sw_bench_rounds *rounds, int who) {
    return 2 * sw_bench_ratio(rounds, who, TRIAD);
}

static void print_line(int64_t size_bytes, const struct sw_bench_rounds *rounds) {
    char size[SW_SIZE_CHARS];
    printf("%10s", sw_format_size(size_bytes, size));
    for (int who = 0; who < CONTENDERS; who++)
        printf(" %8.1f", sw_bench_median(rounds, who) * 1e-9);
    for (int who = UPLOAD; who <= DOWNLOAD; who++)
        printf(" |%6.2f %6.2f %6.2f", sw_bench_ratio(rounds, who, MEMCPY_ONE), sw_bench_ratio(rounds, who, MEMCPY_ALL),
               of_triad(rounds, who));
    putchar('\n');
}

static json_t *way_json(const struct sw_bench_rounds *rounds, int who) {
    return json_pack("{s:f, s:f, s:f, s:f}", "bytes_per_s", sw_bench_median(rounds, who), "of_memcpy_one",
                     sw_bench_ratio(rounds, who, MEMCPY_ONE), "of_memcpy_all", sw_bench_ratio(rounds, who, MEMCPY_ALL),
                     "of_triad", of_triad(rounds, who));
}

/* Each way while the other runs, and of it alone. */
static json_t *both_json(const struct sw_bench_rounds *rounds) {
    return json_pack("{s:f, s:f, s:f, s:f}", "upload_bytes_per_s", sw_bench_median(rounds, BOTH_UPLOAD),
                     "download_bytes_per_s", sw_bench_median(rounds, BOTH_DOWNLOAD), "of_upload",
                     sw_bench_ratio(rounds, BOTH_UPLOAD, UPLOAD), "of_download",
                     sw_bench_ratio(rounds, BOTH_DOWNLOAD, DOWNLOAD));
}

static json_t *size_json(int64_t size_bytes, const struct sw_bench_rounds *rounds) {
    return json_pack("{s:I, s:o, s:o, s:o, s:f, s:f, s:f}", "bytes", (json_int_t)size_bytes, "upload",
                     way_json(rounds, UPLOAD), "download", way_json(rounds, DOWNLOAD), "both", both_json(rounds),
                     "memcpy_one_bytes_per_s", sw_bench_median(rounds, MEMCPY_ONE), "memcpy_all_bytes_per_s",
                     sw_bench_median(rounds, MEMCPY_ALL), "triad_bytes_per_s", sw_bench_median(rounds, TRIAD));
}

static sw_status measure_sizes(const struct copy_bench *bench, const struct copy_options *given) {
    static const int64_t usual_bytes[] = {64 * SW_KIB, 256 * SW_KIB, SW_MIB, 4 * SW_MIB, 16 * SW_MIB, 64 * SW_MIB};
    const int usual = sizeof usual_bytes / sizeof usual_bytes[0];
    if (!given->json)
        printf(
            "copies, %s, %d threads: GB/s (median of %d), of each way alone and while both run; then upload and "
            "download to memcpy by one thread, by all, and twice to triad\n%10s %8s %8s %8s %8s %8s %8s %8s | upload "
            "to 1, all, triad | download\n",
            sw_devices_info(&bench->devices).name, bench->memory.threads, (int)given->rounds, "", "upload", "download",
            "both: up", "down", "memcpy 1", "all", "triad");
    for (int i = 0; i < (given->sizes.count > 0 ? given->sizes.count : usual); i++) {
        struct sw_bench_rounds rounds = {.rounds = (int)given->rounds};
        int64_t size_bytes = usual_bytes[i % usual];
        if (given->sizes.count > 0)
            SW_TRY(read_size(given->sizes.items[i], &size_bytes));
        SW_TRY(measure(bench, size_bytes, &rounds));
        if (!given->json)
            print_line(size_bytes, &rounds);
        else
            SW_TRY(sw_bench_append(bench->results, size_json(size_bytes, &rounds)));
    }
    return SW_OK;
}

static sw_status run(const void *target) {
    const struct copy_options *given = target;
    struct copy_bench bench = {.results = json_array()};
    sw_status status = SW_OK;
    SW_TRY_GOTO(sw_bench_open_devices(given->device, given->threads, &bench.devices), end);
    const struct sw_device_info info = sw_devices_info(&bench.devices);
    SW_TRY_GOTO(sw_copy_both_open(bench.devices.compute, 2 * LARGEST_BYTES, &bench.both), end);
    SW_TRY_GOTO(sw_bench_memory_open(info.threads, AREA_BYTES, &bench.memory), end);
    SW_TRY_GOTO(measure_sizes(&bench, given), end);
    if (given->json)
        status =
            sw_bench_print_json(json_pack("{s:s, s:s, s:i, s:i, s:O}", "bench", "copy", "device", info.name, "threads",
                                          info.threads, "rounds", (int)given->rounds, "sizes", bench.results));
end:
    sw_bench_memory_close(&bench.memory);
    sw_copy_both_close(bench.both);
    sw_devices_close(&bench.devices);
    json_decref(bench.results);
    return status;
}

int sw_bench_copy(int argc, char **argv) {
    struct copy_options given = {0};
    return sw_command_run(&line, argc, argv, &given, run);
}
