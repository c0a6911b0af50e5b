/* `spillway bench load`: a checkpoint loaded into a new store, everything on NVMe, in turn with the same drive read and
 * written at once by the queue alone: in large blocks, and in requests of the size that most of a load's have. */
#include "bench/io/drive.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/step/step.h"
#include "cli/commands.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "job/job.h"
#include "model/hf/checkpoint.h"
#include "run/folder/run.h"
#include "run/folder/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LOADING, DRIVE, REQUESTS, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

/* The drive is measured on as many bytes as a load writes, within these bounds. */
#define DRIVE_LEAST_BYTES (64 * SW_MIB)
#define DRIVE_LARGEST_BYTES SW_GIB
#define DRIVE_SECONDS 1.0
#define DRIVE_PASSES 8

/* The drive is measured with large requests, and with requests like a load's. A load writes the masters of the
 * optimizer state and no moments, so its requests are smaller, and more of them are in flight. */
static const struct sw_io_cell cells[CONTENDERS] = {[DRIVE] = {SW_IO_BOTH, 256 * SW_KIB, SW_STORE_IO_DEPTH},
                                                    [REQUESTS] = {SW_IO_BOTH,
                                                                  SW_OPTIMIZER_GRAIN_BYTES / SW_OPTIMIZER_VECTORS,
                                                                  SW_OPTIMIZER_VECTORS *SW_STORE_IO_DEPTH}};

struct load_bench {
    const struct sw_bench_options *given;
    struct sw_settings settings;
    struct sw_job job;
    char made[SW_RUN_PATH_CHARS]; /* the checkpoint's folder; empty: it is the user's */
    const char *folder;
    struct sw_io_target drive;
    int64_t read_bytes, written_bytes; /* by one load */
    struct sw_bench_rounds rounds;
};

/* Opens a job whose steps never run: their shape only has to be possible. */
static sw_status open_job(struct load_bench *b) {
    const struct sw_bench_options *given = b->given;
    struct sw_settings *settings = &b->settings;
    SW_TRY(sw_options_defaults(&sw_bench_step_command, settings));
    free(settings->model);
    free(settings->place);
    settings->model = strdup(given->settings.model);
    settings->place = strdup("weights=nvme,grads=nvme,optimizer=nvme,acts=nvme");
    if (settings->model == NULL || settings->place == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan");
    for (int i = 0; i < given->nvme.count; i++)
        SW_TRY(sw_option_list_add(&settings->nvme, given->nvme.items[i]));
    settings->device = given->settings.device;
    settings->threads = given->settings.threads;
    settings->allow_buffered = given->settings.allow_buffered;
    settings->seq = settings->batch_tokens = 16;
    settings->micro_batch = 1;
    SW_TRY(sw_job_open(&(struct sw_job_spec){.settings = settings, .folder = "."}, &b->job));
    return sw_settings_complete_plan(b->job.plan);
}

/* Fills in values of a pattern: a load takes the same time whatever they are. */
static sw_status fill_plain(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context;
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)((unit + (first + i) * 7) % 251) - 125.0f;
    return SW_OK;
}

static sw_status find_checkpoint(struct load_bench *b) {
    struct stat info;
    b->folder = b->given->settings.model;
    if (stat(b->given->settings.model, &info) == 0 && S_ISDIR(info.st_mode))
        return SW_OK;
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, b->job.places.path[0], "spillway-bench-load-XXXXXX"));
    if (mkdtemp(path) == NULL)
        return sw_fail(SW_ERR_IO, "no folder can be made in %s", b->job.places.path[0]);
    memcpy(b->made, path, sizeof path);
    b->folder = b->made;
    const struct sw_checkpoint_format format = {.type = SW_BF16, .shard_bytes = SW_CHECKPOINT_SHARD_BYTES};
    const struct sw_load from = {.fill = fill_plain};
    return sw_checkpoint_write(b->made, &b->job.config, sw_model_get_units(b->job.model), &format, &from, NULL);
}

static sw_status open_drive(struct load_bench *b) {
    const int64_t bytes = sw_writes_of_loading(b->job.plan);
    const struct sw_io_target_spec spec = {.paths = b->job.places.path,
                                           .count = b->job.places.count,
                                           .size_bytes =
                                               sw_max_i64(DRIVE_LEAST_BYTES, sw_min_i64(DRIVE_LARGEST_BYTES, bytes)),
                                           .allow_buffered = b->given->settings.allow_buffered};
    SW_TRY(sw_io_target_open(&spec, &b->drive));
    SW_TRY(sw_io_target_take_memory(&b->drive, SW_IO_FILL_BYTES));
    return sw_io_fill(&b->drive);
}

static sw_status load_once(struct load_bench *b, double *out_rate) {
    struct sw_source *source;
    struct sw_contender contender;
    SW_TRY(sw_source_open_model(&(struct sw_source_spec){.model = b->folder, .tiles = 1}, &source));
    const struct sw_load load = sw_source_load(source);
    const struct sw_contender_spec spec = {.job = &b->job, .speculation = SW_SPECULATE_NEVER, .load = &load};
    const sw_status status = sw_contender_open(&spec, &contender);
    if (status == SW_OK) {
        b->read_bytes = sw_source_bytes_read(source);
        b->written_bytes = sw_store_counters(contender.store).write_bytes;
        *out_rate = (double)(b->read_bytes + b->written_bytes) / contender.load_s;
        sw_contender_close(&contender);
    }
    sw_source_close(source);
    sw_discards_wait(b->job.places.path,
                     b->job.places.count); /* the store is gone, but the drive still discards its space */
    return status;
}

static sw_status drive_once(struct load_bench *b, int cell, double *out_rate) {
    const struct sw_io_pass pass = {
        .turn = {cells[cell], DRIVE_SECONDS, DRIVE_PASSES * b->drive.file_bytes * b->drive.count}};
    struct sw_io_done done;
    SW_TRY(sw_io_run(&b->drive, &pass, &done));
    *out_rate = done.rate.bytes_per_s;
    return SW_OK;
}

#define ROW struct load_bench
static const struct sw_bench_field fields[] = {
    {.name = "read_bytes", SW_AT(SW_FIELD_COUNT, read_bytes)},
    {.name = "written_bytes", SW_AT(SW_FIELD_COUNT, written_bytes)},
    SW_RATE_FIELD("load_bytes_per_s", "load, GB/s", LOADING, 2),
    SW_RATE_FIELD("drive_bytes_per_s", "256KiB blocks", DRIVE, 2),
    SW_RATIO_FIELD("of_drive", "load to them", LOADING, DRIVE),
    SW_RATE_FIELD("requests_bytes_per_s", "64KiB blocks", REQUESTS, 2),
    SW_RATIO_FIELD("of_requests", "load to them", LOADING, REQUESTS),
};

static sw_status report(const struct load_bench *b) {
    const struct sw_device_info info = sw_devices_info(&b->job.devices);
    if (b->given->settings.json)
        return sw_command_print_json(
            sw_bench_join(json_pack("{s:s, s:s, s:s, s:i, s:i}", "bench", "load", "device", info.name, "model",
                                    b->given->settings.model, "threads", info.threads, "rounds", b->rounds.rounds),
                          sw_table_row_json(SW_TABLE(fields, b, 1), 0)));
    printf("%s\na load reads %.2f GB and writes %.2f GB; medians of %d rounds, against the drive\n"
           "read and written at once, in large blocks and in blocks of a load's size\n",
           b->given->settings.model, (double)b->read_bytes * 1e-9, (double)b->written_bytes * 1e-9, b->rounds.rounds);
    sw_table_print(SW_TABLE(fields, b, 1));
    return SW_OK;
}

static sw_status measure(struct load_bench *b) {
    SW_TRY(open_job(b));
    SW_TRY(find_checkpoint(b));
    SW_TRY(open_drive(b));
    for (int round = 0; round < b->rounds.rounds; round++) {
        SW_TRY(load_once(b, &b->rounds.rate[LOADING][round]));
        for (int cell = DRIVE; cell < CONTENDERS; cell++)
            SW_TRY(drive_once(b, cell, &b->rounds.rate[cell][round]));
    }
    return report(b);
}

sw_status sw_bench_load(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    struct load_bench b = {.given = given, .rounds = {.rounds = (int)given->rounds}};
    const sw_status status = measure(&b);
    sw_io_target_close(&b.drive);
    if (b.made[0] != '\0')
        sw_folder_remove(b.made);
    sw_job_release(&b.job);
    sw_options_release(&sw_bench_step_command, &b.settings);
    return status;
}
