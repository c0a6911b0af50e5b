#include "bench/io/drive.h"

#include "bench/options.h"
#include "cli/commands.h"
#include "core/size.h"
#include "io/queue/queue.h"

#define LEAST_SIZE_BYTES (16 * SW_MIB)
#define SWEEP_SIZE_BYTES SW_GIB
#define LARGEST_BLOCK_BYTES (64 * SW_MIB)

static const struct sw_io_grid usual = {
    .blocks = 3, .depths = 4, .block_bytes = {256 * SW_KIB, SW_MIB, 4 * SW_MIB}, .depth = {1, 4, 16, 64}};

static const struct sw_io_grid thorough = {
    .blocks = 4,
    .depths = 7,
    .block_bytes = {64 * SW_KIB, 256 * SW_KIB, SW_MIB, 4 * SW_MIB},
    .depth = {1, 2, 4, 8, 16, 32, 64},
};

/* A long measurement uses the block size and depth of the store's lanes. */
static const struct sw_io_grid sustained = {
    .blocks = 1, .depths = 1, .block_bytes = {SW_QUEUE_BLOCK_BYTES}, .depth = {32}};

/* fio takes most of the usual time to start, once for each of its passes. */
static const struct sw_io_effort usual_effort = {.sweep_rounds = 1, .rounds = 3, .seconds = 0.1};
static const struct sw_io_effort thorough_effort = {.sweep_rounds = 3, .rounds = 12, .seconds = 0.2};

static struct sw_io_grid grid_of(const struct sw_io_options *given) {
    struct sw_io_grid grid = given->thorough ? thorough : usual;
    if (given->sustain)
        grid = sustained;
    if (given->block_bytes != SW_OPTION_AUTO) {
        grid.blocks = 1;
        grid.block_bytes[0] = given->block_bytes;
    }
    if (given->depth != SW_OPTION_AUTO) {
        grid.depths = 1;
        grid.depth[0] = (int)given->depth;
    }
    return grid;
}

static struct sw_io_effort effort_of(const struct sw_io_options *given) {
    struct sw_io_effort effort = given->thorough ? thorough_effort : usual_effort;
    if (given->rounds != SW_OPTION_AUTO)
        effort.rounds = given->rounds;
    if (given->seconds > 0.0)
        effort.seconds = given->seconds;
    return effort;
}

static sw_status check(const void *target) {
    const struct sw_io_options *given = target;
    if (given->block_bytes != SW_OPTION_AUTO && given->block_bytes % SW_BUFFER_ALIGN_BYTES != 0)
        return sw_fail(SW_ERR_ARG, "--block must be a multiple of %d bytes, as direct I/O is", SW_BUFFER_ALIGN_BYTES);
    if (given->block_bytes != SW_OPTION_AUTO && given->depth != SW_OPTION_AUTO &&
        given->block_bytes * given->depth > SW_IO_MOST_IN_FLIGHT_BYTES)
        return sw_fail(SW_ERR_ARG, "--block times --depth is more than 1GiB in flight; give less of one");
    if (given->sustain && given->thorough)
        return sw_fail(SW_ERR_ARG, "--sustain and --thorough are two benches; give one of them");
    if (given->sustain && given->random)
        return sw_fail(SW_ERR_ARG, "--sustain writes in sequence; leave --random out");
    return SW_OK;
}

/* Headings in --help. */
#define DRIVES "Drives"
#define MEASUREMENT "Measurement"
#define WORKLOAD "Workload"

#define AT(member) .offset = offsetof(struct sw_io_options, member)
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "--nvme", .group = DRIVES, .kind = SW_OPTION_LIST, AT(nvme), .value = "DIR",
     .what = "folder on the drive, or a block device; repeatable, then striped; default: the current folder"},
    {.name = "--size", .group = DRIVES, .kind = SW_OPTION_SIZE, AT(size_bytes), .initial = "auto",
     .value = "SIZE", .allow_auto = true,
     .int_min = LEAST_SIZE_BYTES,
     .what = "size of the files together; auto: a quarter of the free space, without --sustain at most 1GiB"},
    {.name = "--most", .group = DRIVES, .kind = SW_OPTION_SIZE, AT(most_bytes), .initial = "256GiB", .value = "SIZE",
     .int_min = LEAST_SIZE_BYTES, .what = "the most that is written in all, by fio too: drives wear"},
    {.name = "--yes-overwrite", .group = DRIVES, .kind = SW_OPTION_FLAG, AT(overwrite),
     .what = "overwrite a block device without asking; never one in use"},
    {.name = "--allow-buffered", .group = DRIVES, .kind = SW_OPTION_FLAG, AT(allow_buffered),
     .what = "accept a file system without direct I/O"},

    {.name = "--thorough", .group = MEASUREMENT, .kind = SW_OPTION_FLAG, AT(thorough),
     .what = "more settings, more rounds: some minutes instead of about 45 s"},
    {.name = "--sustain", .group = MEASUREMENT, .kind = SW_OPTION_FLAG, AT(sustain),
     .what = "write until the rate has fallen and settled, then read and write at once"},
    {.name = "--time-limit", .group = MEASUREMENT, .kind = SW_OPTION_DURATION, AT(time_limit_s), .initial = "10m",
     .value = "TIME",
     .int_min = 1, .what = "the longest that --sustain may take"},
    {.name = "--rounds", .group = MEASUREMENT, .kind = SW_OPTION_INT, AT(rounds), .initial = "auto", .value = "N",
     .allow_auto = true,
     .int_min = 1, .int_max = SW_BENCH_MAX_ROUNDS,
     .what = "times that the best settings are measured, in turn; medians are shown; auto: 3, with --thorough 12"},
    {.name = "--seconds", .group = MEASUREMENT, .kind = SW_OPTION_REAL, AT(seconds), .value = "S",
     .real_min = 0.01, .real_max = 3600,
     .what = "time of a setting, and of a pass of the comparison; default: 0.1, with --thorough 0.2"},
    {.name = "--no-fio", .group = MEASUREMENT, .kind = SW_OPTION_FLAG, AT(no_fio),
     .what = "measure without fio, even if it is installed"},

    {.name = "--block", .group = WORKLOAD, .kind = SW_OPTION_SIZE, AT(block_bytes), .initial = "auto",
     .value = "SIZE", .allow_auto = true,
     .int_min = SW_BUFFER_ALIGN_BYTES, .int_max = LARGEST_BLOCK_BYTES,
     .what = "size of a request; auto: 256KiB 1MiB 4MiB, with --thorough 64KiB too, with --sustain 1MiB"},
    {.name = "--depth", .group = WORKLOAD, .kind = SW_OPTION_INT, AT(depth), .initial = "auto", .value = "N",
     .allow_auto = true,
     .int_min = 1, .int_max = SW_QUEUE_MAX_DEPTH,
     .what = "requests in flight; auto: 1 4 16 64, with --thorough 1 2 4 8 16 32 64, with --sustain 32"},
    {.name = "--random", .group = WORKLOAD, .kind = SW_OPTION_FLAG, AT(random),
     .what = "blocks in random order, not in sequence"},

    {.name = "--json", .group = SW_OPTION_OUTPUT, .kind = SW_OPTION_FLAG, AT(json),
     .what = "one object on standard output"},
};
/* clang-format on */
static const struct sw_command_line line = {
    .command = "bench io",
    .summary = "Reads and writes a drive through the store's I/O queue, against fio if it is installed.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check,
    .examples = {"spillway bench io", "spillway bench io --nvme /mnt/fast --thorough",
                 "spillway bench io --nvme /mnt/fast --sustain --size 64GiB --json"}};

/* Takes memory for the largest cell; one cell must fit at least. */
static sw_status take_memory(struct sw_io_bench *bench) {
    int64_t bytes = 0;
    for (int b = 0; b < bench->grid.blocks; b++)
        for (int d = 0; d < bench->grid.depths; d++)
            if (sw_io_fits(bench, bench->grid.block_bytes[b], bench->grid.depth[d]))
                bytes = sw_max_i64(bytes, bench->grid.block_bytes[b] * bench->grid.depth[d]);
    if (bytes == 0)
        return sw_fail(SW_ERR_ARG, "the files have too little room for the blocks in flight: give a larger --size, or "
                                   "less --block or --depth");
    return sw_io_target_take_memory(&bench->target, sw_max_i64(bytes, SW_IO_FILL_BYTES));
}

static sw_status run(const void *target) {
    const struct sw_io_options *given = target;
    static const char *const here[] = {"."};
    const bool named = given->nvme.count > 0;
    const struct sw_io_target_spec spec = {
        .paths = named ? (const char *const *)given->nvme.items : here,
        .count = named ? given->nvme.count : 1,
        .size_bytes = given->size_bytes == SW_OPTION_AUTO ? 0 : given->size_bytes,
        .largest_auto_bytes = given->sustain ? INT64_MAX : SWEEP_SIZE_BYTES,
        .overwrite = given->overwrite,
        .allow_buffered = given->allow_buffered,
    };
    struct sw_io_bench bench = {.given = given, .grid = grid_of(given), .effort = effort_of(given)};
    SW_TRY(sw_io_target_open(&spec, &bench.target));
    bench.progress = sw_long_work_begin("measuring the drive", 0);
    sw_status status = take_memory(&bench);
    if (status == SW_OK)
        status = given->sustain ? sw_io_sustain(&bench) : sw_io_sweep(&bench);
    sw_io_target_close(&bench.target);
    return status;
}

int sw_bench_io(int argc, char **argv) {
    struct sw_io_options given = {0};
    return sw_command_run(&line, argc, argv, &given, run);
}
