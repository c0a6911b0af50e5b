#include "bench/io/pass.h"

#include "core/clock.h"
#include "core/files/checksum.h"
#include "core/size.h"
#include "core/team.h"
#include "io/queue/queue.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

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
