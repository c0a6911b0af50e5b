/* Copies between host and device, beside memcpy of the same sizes by one thread and by all. */
#include "bench/commands.h"
#include "bench/kernels/copy_both.h"
#include "bench/kernels/memory.h"
#include "bench/options.h"
#include "bench/table.h"
#include "core/long_work.h"
#include "core/number.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { UPLOAD, DOWNLOAD, BOTH_UPLOAD, BOTH_DOWNLOAD, MEMCPY_ONE, MEMCPY_ALL, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

/* Areas exceed the caches, and hold two copies of the largest size. Weights are copied by whole grains. */
#define AREA_BYTES (128 * SW_MIB)
#define WORKING_BYTES (48 * SW_MIB)
#define LARGEST_BYTES (64 * SW_MIB)
#define GRAIN_BYTES (SW_GRAIN_ELEMS * sw_dtype_bytes(SW_BF16))

#define ROW struct sw_bench_size_row
static const struct sw_bench_field fields[] = {
    {.name = "bytes", .heading = "", SW_AT(SW_FIELD_SIZE, bytes), .key = true},
    SW_RATE_FIELD("upload.bytes_per_s", "upload", UPLOAD, 1),
    SW_RATE_FIELD("download.bytes_per_s", "download", DOWNLOAD, 1),
    SW_RATE_FIELD("both.upload_bytes_per_s", "both: up", BOTH_UPLOAD, 1),
    SW_RATE_FIELD("both.download_bytes_per_s", "down", BOTH_DOWNLOAD, 1),
    SW_RATE_FIELD("memcpy_one_bytes_per_s", "memcpy 1", MEMCPY_ONE, 1),
    SW_RATE_FIELD("memcpy_all_bytes_per_s", "memcpy all", MEMCPY_ALL, 1),
    SW_RATIO_FIELD("upload.of_memcpy_one", "up to 1", UPLOAD, MEMCPY_ONE),
    SW_RATIO_FIELD("upload.of_memcpy_all", "up to all", UPLOAD, MEMCPY_ALL),
    SW_RATIO_FIELD("download.of_memcpy_one", "down to 1", DOWNLOAD, MEMCPY_ONE),
    SW_RATIO_FIELD("download.of_memcpy_all", "down to all", DOWNLOAD, MEMCPY_ALL),
    SW_RATIO_FIELD("both.of_upload", NULL, BOTH_UPLOAD, UPLOAD),
    SW_RATIO_FIELD("both.of_download", NULL, BOTH_DOWNLOAD, DOWNLOAD),
};

struct copy_bench {
    struct sw_devices devices;
    struct sw_copy_both *both;
    struct sw_bench_memory memory;
    struct sw_bench_size_row *rows;
    int count;
    struct sw_long_work progress; /* counts rounds of all sizes */
    int64_t rounds_done;
};

static sw_status measure(struct copy_bench *bench, struct sw_bench_size_row *row) {
    const struct sw_measure_shape shape = {.type = SW_BF16, .chunk_grains = row->bytes / GRAIN_BYTES};
    const struct sw_bench_memory *memory = &bench->memory;
    const int64_t bytes = sw_max_i64(2, WORKING_BYTES / row->bytes) * row->bytes;
    struct sw_bench_rounds *out = &row->rounds;
    for (int i = 0; i < out->rounds; i++) {
        struct sw_rate upload, download;
        SW_TRY(sw_measure_copies(bench->devices.compute, &shape, &upload, &download));
        SW_TRY(sw_copy_both_run(bench->both, row->bytes, &out->rate[BOTH_UPLOAD][i], &out->rate[BOTH_DOWNLOAD][i]));
        out->rate[UPLOAD][i] = upload.bytes_per_s;
        out->rate[DOWNLOAD][i] = download.bytes_per_s;
        out->rate[MEMCPY_ONE][i] = sw_bench_memcpy(memory, bytes, row->bytes, 1);
        out->rate[MEMCPY_ALL][i] = sw_bench_memcpy(memory, bytes, row->bytes, memory->threads);
        SW_TRY(sw_long_work_at(&bench->progress, ++bench->rounds_done));
    }
    return SW_OK;
}

static sw_status measure_sizes(struct copy_bench *bench, const struct sw_bench_options *given) {
    SW_TRY(sw_bench_size_rows(given, &sw_bench_copy_sizes, &bench->rows, &bench->count));
    bench->progress = sw_long_work_begin("measuring copies", bench->count * given->rounds);
    bench->progress.unit = "rounds";
    for (int i = 0; i < bench->count; i++)
        SW_TRY(measure(bench, &bench->rows[i]));
    sw_long_work_end(&bench->progress);
    return SW_OK;
}

static sw_status report(const struct copy_bench *bench, const struct sw_bench_options *given) {
    const struct sw_device_info info = sw_devices_info(&bench->devices);
    if (given->settings.json)
        return sw_bench_print_json(json_pack("{s:s, s:s, s:i, s:i, s:o}", "bench", "copy", "device", info.name,
                                             "threads", info.threads, "rounds", (int)given->rounds, "sizes",
                                             sw_table_json(SW_TABLE(fields, bench->rows, bench->count))));
    printf("copies, %s, %s, medians of %s: GB/s of each way alone and while\n"
           "both run; then ratios to memcpy by one thread and by all\n",
           info.name, SW_COUNT(info.threads, "thread"), SW_COUNT(given->rounds, "round"));
    sw_table_print(SW_TABLE(fields, bench->rows, bench->count));
    return SW_OK;
}

sw_status sw_bench_copy(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    struct copy_bench bench = {0};
    sw_status status = SW_OK;
    SW_TRY_GOTO(sw_bench_open_devices(given->settings.device, given->settings.threads, &bench.devices), end);
    const struct sw_device_info info = sw_devices_info(&bench.devices);
    SW_TRY_GOTO(sw_copy_both_open(bench.devices.compute, 2 * LARGEST_BYTES, &bench.both), end);
    SW_TRY_GOTO(sw_bench_memory_open(info.threads, AREA_BYTES, &bench.memory), end);
    SW_TRY_GOTO(measure_sizes(&bench, given), end);
    status = report(&bench, given);
end:
    sw_bench_memory_close(&bench.memory);
    sw_copy_both_close(bench.both);
    sw_devices_close(&bench.devices);
    free(bench.rows);
    return status;
}
