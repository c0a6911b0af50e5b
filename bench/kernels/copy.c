/* Copies between host and device, against memcpy of the same sizes by one thread and by all. */
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "core/team.h"
#include "kernels/device.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct sw_copy_both;

enum { WAYS = 2, PASSES = 2 };

struct way {
    struct sw_copy_both *both;
    bool upload;
    struct sw_stream *stream;
    struct sw_memory *there, *here; /* there: on the device; here: on the host */
    double bytes_per_s;
};

struct sw_copy_both {
    struct sw_device *device;
    int64_t bytes, chunk_bytes;
    atomic_int started, counted; /* ways that are at their start, and ways whose timed bytes are copied */
    struct way way[WAYS];
};

static sw_status pass(const struct way *way) {
    const int64_t chunk_bytes = way->both->chunk_bytes;
    for (int64_t at = 0; at + chunk_bytes <= way->both->bytes; at += chunk_bytes) {
        char *there = (char *)sw_memory_base(way->there) + at, *here = (char *)sw_memory_base(way->here) + at;
        SW_TRY(way->upload ? sw_copy_to_device(way->stream, there, here, chunk_bytes)
                           : sw_copy_to_host(way->stream, here, there, chunk_bytes));
    }
    return sw_stream_synchronize(way->stream);
}

/* Copies the timed bytes, then keeps copying so that the other direction stays under load. */
static sw_status copy(struct way *way) {
    struct sw_copy_both *both = way->both;
    const int64_t pass_bytes = both->bytes / both->chunk_bytes * both->chunk_bytes, start_ns = sw_now_ns();
    for (int i = 0; i < PASSES; i++)
        SW_TRY(pass(way));
    way->bytes_per_s = (double)(PASSES * pass_bytes) * 1e9 / (double)sw_max_i64(1, sw_now_ns() - start_ns);
    atomic_fetch_add(&both->counted, 1);
    while (atomic_load(&both->counted) < WAYS)
        SW_TRY(pass(way));
    return SW_OK;
}

static sw_status run_way(void *context) {
    struct way *way = context;
    atomic_fetch_add(&way->both->started, 1);
    while (atomic_load(&way->both->started) < WAYS)
        sched_yield(); /* both begin at once */
    const sw_status status = copy(way);
    if (status != SW_OK)
        atomic_store(&way->both->counted, WAYS); /* the other way does not wait for this one */
    return status;
}

/* Measures the bytes a second of each way while the other runs too, by chunks. */
static sw_status copy_both_run(struct sw_copy_both *both, int64_t chunk_bytes, double *out_upload,
                               double *out_download) {
    both->chunk_bytes = chunk_bytes;
    atomic_store(&both->started, 0);
    atomic_store(&both->counted, 0);
    SW_TRY(sw_run_both(run_way, &both->way[0], &both->way[1]));
    *out_upload = both->way[0].bytes_per_s;
    *out_download = both->way[1].bytes_per_s;
    return SW_OK;
}

static sw_status open_way(struct sw_copy_both *both, int number) {
    struct way *way = &both->way[number];
    *way = (struct way){.both = both, .upload = number == 0};
    SW_TRY(sw_stream_open(both->device, &way->stream));
    SW_TRY(sw_memory_open(both->device, "copies", SW_MEMORY_DEVICE, both->bytes, &way->there));
    return sw_memory_open(both->device, "copies", SW_MEMORY_HOST, both->bytes, &way->here);
}

/* Takes memory on both sides for copies of up to so many bytes. The caller closes it, even after an error. */
static sw_status copy_both_open(struct sw_device *device, int64_t bytes, struct sw_copy_both **out) {
    struct sw_copy_both *both = calloc(1, sizeof *both);
    *out = both;
    if (both == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to copy both ways");
    both->device = device;
    both->bytes = bytes;
    for (int i = 0; i < WAYS; i++)
        SW_TRY(open_way(both, i));
    return SW_OK;
}

static void copy_both_close(struct sw_copy_both *both) {
    for (int i = 0; both != NULL && i < WAYS; i++) {
        sw_stream_close(both->way[i].stream);
        sw_memory_close(both->way[i].there);
        sw_memory_close(both->way[i].here);
    }
    free(both);
}

enum { UPLOAD, DOWNLOAD, BOTH_UPLOAD, BOTH_DOWNLOAD, MEMCPY_ONE, MEMCPY_ALL, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

/* Areas exceed the caches, unless measurements are to take less memory, and hold two copies of the largest size that is
 * measured. Weights are copied by whole grains. */
#define AREA_BYTES (128 * SW_MIB)
#define WORKING_BYTES (48 * SW_MIB)
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

static int64_t area_bytes(const struct copy_bench *bench) {
    int64_t bytes = (int64_t)(sw_measure_share() * (double)AREA_BYTES);
    for (int i = 0; i < bench->count; i++)
        bytes = sw_max_i64(bytes, 2 * bench->rows[i].bytes);
    return bytes;
}

static sw_status measure(struct copy_bench *bench, struct sw_bench_size_row *row) {
    const struct sw_measure_shape shape = {.type = SW_BF16, .chunk_grains = row->bytes / GRAIN_BYTES};
    const struct sw_bench_memory *memory = &bench->memory;
    const int64_t working_bytes = (int64_t)(sw_measure_share() * (double)WORKING_BYTES);
    const int64_t bytes = sw_max_i64(2, working_bytes / row->bytes) * row->bytes;
    struct sw_bench_rounds *out = &row->rounds;
    assert(bytes <= area_bytes(bench));
    for (int i = 0; i < out->rounds; i++) {
        struct sw_rate upload, download;
        SW_TRY(sw_measure_copies(bench->devices.compute, &shape, &upload, &download));
        SW_TRY(copy_both_run(bench->both, row->bytes, &out->rate[BOTH_UPLOAD][i], &out->rate[BOTH_DOWNLOAD][i]));
        out->rate[UPLOAD][i] = upload.bytes_per_s;
        out->rate[DOWNLOAD][i] = download.bytes_per_s;
        out->rate[MEMCPY_ONE][i] = sw_bench_memcpy(memory, bytes, row->bytes, 1);
        out->rate[MEMCPY_ALL][i] = sw_bench_memcpy(memory, bytes, row->bytes, memory->threads);
        SW_TRY(sw_long_work_at(&bench->progress, ++bench->rounds_done));
    }
    return SW_OK;
}

static sw_status measure_sizes(struct copy_bench *bench, const struct sw_bench_options *given) {
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
        return sw_command_print_json(json_pack("{s:s, s:s, s:i, s:i, s:o}", "bench", "copy", "device", info.name,
                                               "threads", info.threads, "rounds", (int)given->rounds, "sizes",
                                               sw_table_json(SW_TABLE(fields, bench->rows, bench->count))));
    printf("copies, %s, %s, medians of %s: GB/s of each way by itself and\n"
           "while both run; then ratios to memcpy by one thread and by all\n",
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
    SW_TRY_GOTO(sw_bench_size_rows(given, &sw_bench_copy_sizes, &bench.rows, &bench.count), end);
    SW_TRY_GOTO(copy_both_open(bench.devices.compute, area_bytes(&bench), &bench.both), end);
    SW_TRY_GOTO(sw_bench_memory_open(info.threads, area_bytes(&bench), &bench.memory), end);
    SW_TRY_GOTO(measure_sizes(&bench, given), end);
    status = report(&bench, given);
end:
    sw_bench_memory_close(&bench.memory);
    copy_both_close(bench.both);
    sw_devices_close(&bench.devices);
    free(bench.rows);
    return status;
}
