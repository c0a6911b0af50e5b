#include "bench/io/drive.h"

#include "core/clock.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/rng.h"
#include "core/size.h"
#include "core/team.h"
#include "io/queue/file.h"
#include "io/queue/queue.h"
#include "io/store/block.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define QUIET_NS INT64_C(300000000)
#define LATEST_NS INT64_C(60000000000)
enum { LOOK_EVERY_US = 20000, STAT_CHARS = 512, PATH_CHARS = 64 };

/* The columns of the kernel's Documentation/block/stat.rst, from 0. */
enum { READS_DONE = 0, WRITES_DONE = 4, IN_FLIGHT = 8, DISCARDS_DONE = 11, COLUMNS };

bool sw_drive_counts_parse(const char *stat_line, struct sw_drive_counts *out) {
    int64_t column[COLUMNS] = {0};
    int count = 0, used = 0;
    while (count < COLUMNS && sscanf(stat_line, "%" SCNd64 "%n", &column[count], &used) == 1) {
        stat_line += used;
        count++;
    }
    *out = (struct sw_drive_counts){.transfers = column[READS_DONE] + column[WRITES_DONE],
                                    .discards = column[DISCARDS_DONE],
                                    .in_flight = column[IN_FLIGHT]};
    return count == COLUMNS;
}

bool sw_drive_discarded(const struct sw_drive_counts *before, const struct sw_drive_counts *now) {
    return now->discards != before->discards || (now->in_flight > 0 && now->transfers == before->transfers);
}

static bool look(dev_t device, struct sw_drive_counts *out) {
    char path[PATH_CHARS], text[STAT_CHARS];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(device), minor(device));
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    const bool known = fgets(text, sizeof text, file) != NULL && sw_drive_counts_parse(text, out);
    fclose(file);
    return known;
}

/* Deletions are discarded once the journal has them, hence syncfs. Errors are left to the measurement, which reports
 * them. */
static bool settle_journal(const char *directory, dev_t *out_device) {
    struct stat info;
    const int fd = open(directory, O_RDONLY | O_CLOEXEC);
    const bool found = fd >= 0 && fstat(fd, &info) == 0 && !S_ISBLK(info.st_mode) && syncfs(fd) == 0;
    if (found)
        *out_device = info.st_dev;
    if (fd >= 0)
        close(fd);
    return found;
}

static void wait_for(const char *directory) {
    dev_t device;
    struct sw_drive_counts before, now;
    if (!settle_journal(directory, &device) || !look(device, &before))
        return;
    const int64_t start_ns = sw_now_ns();
    for (int64_t last_ns = start_ns; sw_now_ns() - last_ns < QUIET_NS;) {
        usleep(LOOK_EVERY_US);
        if (!look(device, &now))
            return;
        if (sw_drive_discarded(&before, &now))
            last_ns = sw_now_ns();
        before = now;
        if (last_ns - start_ns > LATEST_NS) {
            sw_log_info("the drive of %s is still discarding deleted files: what is measured on it suffers", directory);
            return;
        }
    }
}

void sw_discards_wait(const char *const *directories, int count) {
    for (int i = 0; i < count; i++)
        wait_for(directories[i]);
}

/* A file is a multiple of this size, so that every block size up to it divides the file. */
#define FILE_MULTIPLE_BYTES (4 * SW_MIB)
enum { FREE_PART = 4 };

/* Returns the part of a size that each of the files has. */
static int64_t part_of(int64_t size_bytes, int count) {
    const int64_t part = size_bytes / count;
    return part >= FILE_MULTIPLE_BYTES ? part / FILE_MULTIPLE_BYTES * FILE_MULTIPLE_BYTES
                                       : part / SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES;
}

/* Chooses a quarter of the free space, which the paths of one file system share. */
static sw_status choose_size(const struct sw_io_target_spec *spec, int64_t *out) {
    *out = spec->largest_auto_bytes;
    for (int i = 0; i < spec->count; i++) {
        struct statvfs space;
        if (sw_block_is_one(spec->paths[i]))
            continue;
        if (statvfs(spec->paths[i], &space) != 0)
            return sw_fail(SW_ERR_ARG, "%s is not an existing directory (%s): make it first", spec->paths[i],
                           strerror(errno));
        *out = sw_min_i64(*out, (int64_t)space.f_bavail * (int64_t)space.f_frsize / FREE_PART);
    }
    return SW_OK;
}

static sw_status confirm(const struct sw_io_target_spec *spec, const char *path, int64_t bytes) {
    char size[SW_SIZE_CHARS], answer[8] = "";
    sw_format_size(bytes, size);
    if (spec->overwrite)
        return SW_OK;
    if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO)) {
        char question[PATH_MAX + 128];
        snprintf(question, sizeof question,
                 "%s is a block device: its first %s will be overwritten. Type yes to go on: ", path, size);
        sw_log_text(question);
        if (fgets(answer, sizeof answer, stdin) != NULL && strcmp(answer, "yes\n") == 0)
            return SW_OK;
    }
    return sw_fail(SW_ERR_ARG, "%s is a block device, whose first %s would be overwritten: --yes-overwrite allows that",
                   path, size);
}

static sw_status open_one(const struct sw_io_target_spec *spec, int i, struct sw_io_target *target) {
    const char *path = spec->paths[i];
    int64_t bytes;
    if (!sw_block_is_one(path))
        return sw_file_create_unnamed(path, spec->allow_buffered, &target->fd[i]);
    SW_TRY(sw_block_open(path, &target->fd[i], &bytes));
    target->file_bytes = sw_min_i64(target->file_bytes, part_of(bytes, 1));
    return SW_OK;
}

/* The length of a file is known once all are open. */
static sw_status take_space(const struct sw_io_target_spec *spec, struct sw_io_target *target) {
    int64_t bytes[SW_STORE_MAX_FILES];
    const char *directories[SW_STORE_MAX_FILES];
    int count = 0;
    for (int i = 0; i < spec->count; i++) {
        if (sw_block_is_one(spec->paths[i])) {
            SW_TRY(confirm(spec, spec->paths[i], target->file_bytes));
            continue;
        }
        bytes[count] = target->file_bytes;
        directories[count++] = spec->paths[i];
    }
    SW_TRY(sw_file_check_space(directories, bytes, count));
    for (int i = 0; i < spec->count; i++)
        if (!sw_block_is_one(spec->paths[i]))
            SW_TRY(sw_file_allocate(target->fd[i], spec->paths[i], target->file_bytes));
    return SW_OK;
}

static sw_status open_all(const struct sw_io_target_spec *spec, struct sw_io_target *target) {
    int64_t size_bytes = spec->size_bytes;
    if (spec->count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_USAGE, "at most %d directories or drives are measured at once", SW_STORE_MAX_FILES);
    SW_TRY(sw_file_check_distinct(spec->paths, spec->count));
    if (size_bytes == 0)
        SW_TRY(choose_size(spec, &size_bytes));
    target->file_bytes = part_of(size_bytes, spec->count);
    for (int i = 0; i < spec->count; i++)
        SW_TRY(open_one(spec, i, target));
    if (target->file_bytes == 0)
        return sw_fail(SW_ERR_SPACE, "there is no room to measure in: free some space, or name another directory");
    target->direct = true;
    for (int i = 0; i < spec->count; i++)
        target->direct = target->direct && (fcntl(target->fd[i], F_GETFL) & O_DIRECT) != 0;
    return take_space(spec, target);
}

sw_status sw_io_target_open(const struct sw_io_target_spec *spec, struct sw_io_target *out) {
    *out = (struct sw_io_target){.paths = spec->paths, .count = spec->count};
    for (int i = 0; i < SW_STORE_MAX_FILES; i++)
        out->fd[i] = -1;
    sw_discards_wait(spec->paths, spec->count);
    const sw_status status = open_all(spec, out);
    if (status != SW_OK)
        sw_io_target_close(out);
    return status;
}

void sw_io_target_close(struct sw_io_target *target) {
    for (int i = 0; i < SW_STORE_MAX_FILES; i++)
        if (target->fd[i] >= 0)
            sw_file_close(target->fd[i]);
    sw_arena_destroy(target->arena);
    *target = (struct sw_io_target){0};
}

sw_status sw_io_target_take_memory(struct sw_io_target *target, int64_t bytes) {
    if (target->memory_bytes >= bytes)
        return SW_OK;
    sw_arena_destroy(target->arena);
    target->arena = NULL;
    SW_TRY(sw_arena_create("measurement", 2 * bytes, false, NULL, &target->arena));
    for (int i = 0; i < 2; i++) {
        void *base;
        SW_TRY(sw_arena_take(target->arena, bytes, &base));
        target->memory[i] = base;
    }
    target->memory_bytes = bytes;
    sw_rng_fill(target->memory[1], bytes);
    return SW_OK;
}

enum { REAP_BATCH = 64, READER = 0, WRITER = 1 };
#define TICK_NS INT64_C(1000000000)

/* One direction of a pass. Block k of a sequential one goes to file k modulo their count, so that all drives work. */
struct stream {
    const struct sw_io_target *target;
    const struct sw_io_pass *pass;
    int who; /* READER or WRITER */
    struct sw_queue *queue;
    _Atomic bool *over; /* set by the direction that ends first */
    int free_slots[SW_QUEUE_MAX_DEPTH];
    int free_count;
    int64_t blocks;       /* of all files together */
    int64_t issued, done; /* blocks */
    int64_t start_ns, now_ns, tick_ns;
    uint64_t random, sum;
    double seconds;
};

const char *sw_io_way_name(sw_io_way way) {
    static const char *const names[SW_IO_WAYS] = {
        [SW_IO_READ] = "read", [SW_IO_WRITE] = "write", [SW_IO_BOTH] = "both"};
    return names[way];
}

bool sw_io_fits(const struct sw_io_bench *bench, int64_t block_bytes, int depth) {
    return block_bytes * depth <= bench->target.file_bytes * bench->target.count &&
           block_bytes <= bench->target.file_bytes && block_bytes * depth <= SW_IO_MOST_IN_FLIGHT_BYTES;
}

int64_t sw_io_share(const struct sw_io_bench *bench, double seconds) {
    return (int64_t)((double)bench->planned_write_bytes * seconds / bench->planned_write_s);
}

static sw_status open_stream(const struct sw_io_target *target, const struct sw_io_pass *pass, int who,
                             _Atomic bool *over, struct stream *out) {
    const struct sw_io_cell *cell = &pass->turn.cell;
    const int64_t span = pass->span_bytes > 0 ? pass->span_bytes : target->file_bytes;
    *out = (struct stream){.target = target,
                           .pass = pass,
                           .who = who,
                           .over = over,
                           .blocks = span / cell->block_bytes * target->count,
                           .free_count = cell->depth,
                           .random = UINT64_C(88172645463325252) + (uint64_t)who};
    assert(out->blocks > 0 && cell->depth <= SW_QUEUE_MAX_DEPTH &&
           cell->block_bytes * cell->depth <= target->memory_bytes);
    for (int i = 0; i < cell->depth; i++)
        out->free_slots[i] = cell->depth - 1 - i;
    const struct sw_ring_buffer buffer = {.base = target->memory[who], .bytes = cell->block_bytes * cell->depth};
    bool warned = true; /* a lane's warning about its buffers helps nobody here: the rates show them */
    const struct sw_ring_spec spec = {.files = target->fd,
                                      .file_count = target->count,
                                      .buffers = &buffer,
                                      .buffer_count = 1,
                                      .depth = cell->depth,
                                      .warned = &warned};
    return sw_queue_open(sw_ring_open_uring, NULL, &spec, &out->queue);
}

static int64_t next_block(struct stream *stream) {
    if (!stream->pass->random)
        return (stream->pass->first_block + stream->issued) % stream->blocks;
    stream->random ^= stream->random << 13;
    stream->random ^= stream->random >> 7;
    stream->random ^= stream->random << 17;
    return (int64_t)(stream->random % (uint64_t)stream->blocks);
}

static void add_sums(struct stream *stream, const char *block) {
    const int64_t bytes = stream->pass->turn.cell.block_bytes;
    for (int64_t at = 0; stream->pass->sums && at < bytes; at += SW_OPTIMIZER_GRAIN_BYTES)
        stream->sum ^= sw_checksum(block + at, sw_min_i64(SW_OPTIMIZER_GRAIN_BYTES, bytes - at));
}

/* A direction moves a block at least, also where the other one is over before it begins. */
static bool goes_on(const struct stream *stream) {
    const struct sw_io_turn *turn = &stream->pass->turn;
    const bool bounded = stream->who == WRITER || turn->cell.way == SW_IO_READ;
    if (bounded && (stream->issued + 1) * turn->cell.block_bytes > turn->most_bytes)
        return false;
    if (stream->issued == 0)
        return true;
    if (atomic_load_explicit(stream->over, memory_order_relaxed))
        return false;
    return (double)(stream->now_ns - stream->start_ns) * 1e-9 < turn->seconds;
}

static void put_block(struct stream *stream) {
    const int64_t bytes = stream->pass->turn.cell.block_bytes, block = next_block(stream);
    const int slot = stream->free_slots[--stream->free_count];
    const bool write = stream->who == WRITER;
    char *buf = stream->target->memory[stream->who] + slot * bytes;
    stream->issued++;
    if (write)
        add_sums(stream, buf);
    sw_queue_put(stream->queue, &(struct sw_ring_request){.op = write ? SW_RING_WRITE : SW_RING_READ,
                                                          .file = (int)(block % stream->target->count),
                                                          .offset_bytes = block / stream->target->count * bytes,
                                                          .bytes = bytes,
                                                          .buf = buf,
                                                          .tag = (uint64_t)slot});
}

static sw_status finish_block(struct stream *stream, const struct sw_queue_result *result) {
    const int slot = (int)result->tag;
    if (result->error != 0)
        return sw_fail(SW_ERR_IO, "%s a block in %s failed at offset %lld: %s",
                       stream->who == WRITER ? "writing" : "reading", stream->target->paths[0],
                       (long long)result->offset_bytes, strerror(result->error));
    if (stream->who == READER)
        add_sums(stream, stream->target->memory[READER] + slot * stream->pass->turn.cell.block_bytes);
    stream->free_slots[stream->free_count++] = slot;
    stream->done++;
    return SW_OK;
}

static sw_status reap(struct stream *stream) {
    struct sw_queue_result results[REAP_BATCH];
    int count;
    SW_TRY(sw_queue_reap(stream->queue, true, results, REAP_BATCH, &count));
    for (int i = 0; i < count; i++)
        SW_TRY(finish_block(stream, &results[i]));
    return SW_OK;
}

static void tick(struct stream *stream) {
    const sw_io_tick call = stream->pass->tick[stream->who];
    if (call == NULL || stream->now_ns - stream->tick_ns < TICK_NS)
        return;
    stream->tick_ns += TICK_NS;
    if (!call(stream->pass->context[stream->who], (double)(stream->now_ns - stream->start_ns) * 1e-9,
              stream->done * stream->pass->turn.cell.block_bytes))
        atomic_store(stream->over, true);
}

static sw_status move_blocks(struct stream *stream) {
    stream->start_ns = stream->now_ns = stream->tick_ns = sw_now_ns();
    do {
        while (stream->free_count > 0 && goes_on(stream))
            put_block(stream);
        SW_TRY(reap(stream));
        stream->now_ns = sw_now_ns();
        tick(stream);
    } while (stream->issued > stream->done || goes_on(stream));
    stream->seconds = (double)(stream->now_ns - stream->start_ns) * 1e-9;
    return SW_OK;
}

/* The direction that ends first ends the other one. */
static sw_status run_stream(void *context) {
    struct stream *stream = context;
    const sw_status status = move_blocks(stream);
    atomic_store(stream->over, true);
    return status;
}

static double rate_of(const struct stream *stream, int64_t bytes) {
    return stream->seconds > 0.0 ? (double)bytes / stream->seconds : 0.0;
}

static sw_status run_streams(struct stream *reader, struct stream *writer, sw_io_way way, struct sw_io_done *out) {
    const double start_cpu_s = sw_cpu_seconds();
    switch (way) {
    case SW_IO_READ: SW_TRY(run_stream(reader)); break;
    case SW_IO_WRITE: SW_TRY(run_stream(writer)); break;
    default: SW_TRY(sw_run_both(run_stream, reader, writer)); break;
    }
    const double seconds = fmax(reader->seconds, writer->seconds);
    out->read_bytes = reader->done * reader->pass->turn.cell.block_bytes;
    out->write_bytes = writer->done * writer->pass->turn.cell.block_bytes;
    const double read = rate_of(reader, out->read_bytes), write = rate_of(writer, out->write_bytes);
    out->rate = (struct sw_io_rate){.bytes_per_s = read + write,
                                    .read_bytes_per_s = read,
                                    .write_bytes_per_s = write,
                                    .cores = (sw_cpu_seconds() - start_cpu_s) / seconds,
                                    .seconds = seconds};
    return SW_OK;
}

sw_status sw_io_run(struct sw_io_target *target, const struct sw_io_pass *pass, struct sw_io_done *out) {
    const sw_io_way way = pass->turn.cell.way;
    _Atomic bool over = false;
    struct stream reader = {.pass = pass}, writer = {.pass = pass};
    sw_status status = SW_OK;
    if (way != SW_IO_WRITE)
        SW_TRY_GOTO(open_stream(target, pass, READER, &over, &reader), end);
    if (way != SW_IO_READ)
        SW_TRY_GOTO(open_stream(target, pass, WRITER, &over, &writer), end);
    status = run_streams(&reader, &writer, way, out);
    target->written_bytes += writer.done * pass->turn.cell.block_bytes;
end:
    sw_queue_close(reader.queue);
    sw_queue_close(writer.queue);
    return status;
}

sw_status sw_io_fill(struct sw_io_target *target) {
    const int64_t block = sw_min_i64(SW_QUEUE_BLOCK_BYTES, target->file_bytes);
    const struct sw_io_pass pass = {
        .turn = {.cell = {SW_IO_WRITE, block, (int)(SW_IO_FILL_BYTES / SW_QUEUE_BLOCK_BYTES)},
                 .seconds = INFINITY,
                 .most_bytes = target->file_bytes / block * block * target->count}};
    struct sw_io_done done;
    return sw_io_run(target, &pass, &done);
}
