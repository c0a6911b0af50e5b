#include "bench/io/pass.h"

#include "core/both.h"
#include "core/clock.h"
#include "core/size.h"
#include "io/queue/checksum.h"
#include "io/queue/queue.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { REAP_BATCH = 64, READER = 0, WRITER = 1 };
#define TICK_NS INT64_C(1000000000)

/* One direction of a pass. Request k of a sequential one goes to file k modulo their count, so that all drives work. */
struct stream {
    const struct sw_io_target *target;
    const struct sw_io_pass *pass;
    int who;
    struct sw_queue *queue;
    _Atomic bool *over; /* the other direction has ended */
    int free_slots[SW_QUEUE_MAX_DEPTH];
    int free_count;
    int64_t blocks;       /* of all files */
    int64_t issued, done; /* blocks */
    int64_t start_ns, now_ns, tick_ns;
    uint64_t random, sum;
    double seconds;
};

static sw_status open_stream(const struct sw_io_target *target, const struct sw_io_pass *pass, int who,
                             _Atomic bool *over, struct stream *out) {
    const struct sw_io_cell *cell = &pass->cell;
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
    bool warned = true; /* what a lane would say of its buffers is of no use here: the rates show it */
    return sw_queue_open(sw_ring_open_uring, NULL,
                         &(struct sw_ring_spec){.files = target->fd,
                                                .file_count = target->count,
                                                .buffers = &buffer,
                                                .buffer_count = 1,
                                                .depth = cell->depth,
                                                .warned = &warned},
                         &out->queue);
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
    const int64_t bytes = stream->pass->cell.block_bytes;
    for (int64_t at = 0; stream->pass->sums && at < bytes; at += SW_RECORD_BYTES)
        stream->sum ^= sw_checksum(block + at, sw_min_i64(SW_RECORD_BYTES, bytes - at));
}

/* A direction moves a block at least, also where the other one is over before it begins. */
static bool goes_on(const struct stream *stream) {
    const struct sw_io_pass *pass = stream->pass;
    const bool bounded = stream->who == WRITER || pass->cell.way == SW_IO_READ;
    if (bounded && (stream->issued + 1) * pass->cell.block_bytes > pass->most_bytes)
        return false;
    if (stream->issued == 0)
        return true;
    if (atomic_load_explicit(stream->over, memory_order_relaxed))
        return false;
    return (double)(stream->now_ns - stream->start_ns) * 1e-9 < pass->seconds;
}

static void put_block(struct stream *stream) {
    const int64_t bytes = stream->pass->cell.block_bytes;
    const int slot = stream->free_slots[--stream->free_count];
    const int64_t block = next_block(stream);
    const int count = stream->target->count;
    char *buf = stream->target->memory[stream->who] + slot * bytes;
    if (stream->who == WRITER)
        add_sums(stream, buf);
    sw_queue_put(stream->queue, &(struct sw_ring_request){.op = stream->who == WRITER ? SW_RING_WRITE : SW_RING_READ,
                                                          .file = (int)(block % count),
                                                          .offset_bytes = block / count * bytes,
                                                          .bytes = bytes,
                                                          .buf = buf,
                                                          .tag = (uint64_t)slot});
    stream->issued++;
}

static sw_status finish_block(struct stream *stream, const struct sw_queue_result *result) {
    const int slot = (int)result->tag;
    if (result->error != 0)
        return sw_fail(SW_ERR_IO, "%s a block in %s failed at offset %lld: %s",
                       stream->who == WRITER ? "writing" : "reading", stream->target->paths[0],
                       (long long)result->offset_bytes, strerror(result->error));
    if (stream->who == READER)
        add_sums(stream, stream->target->memory[READER] + slot * stream->pass->cell.block_bytes);
    stream->free_slots[stream->free_count++] = slot;
    stream->done++;
    return SW_OK;
}

static void tick(struct stream *stream) {
    const sw_io_tick call = stream->pass->tick[stream->who];
    if (call == NULL || stream->now_ns - stream->tick_ns < TICK_NS)
        return;
    stream->tick_ns += TICK_NS;
    if (!call(stream->pass->context[stream->who], (double)(stream->now_ns - stream->start_ns) * 1e-9,
              stream->done * stream->pass->cell.block_bytes))
        atomic_store(stream->over, true);
}

static sw_status run_stream(struct stream *stream) {
    struct sw_queue_result results[REAP_BATCH];
    stream->start_ns = stream->now_ns = stream->tick_ns = sw_now_ns();
    do {
        while (stream->free_count > 0 && goes_on(stream))
            put_block(stream);
        int count;
        SW_TRY(sw_queue_reap(stream->queue, true, results, REAP_BATCH, &count));
        for (int i = 0; i < count; i++)
            SW_TRY(finish_block(stream, &results[i]));
        stream->now_ns = sw_now_ns();
        tick(stream);
    } while (sw_queue_in_flight(stream->queue) > 0 || goes_on(stream));
    stream->seconds = (double)(stream->now_ns - stream->start_ns) * 1e-9;
    return SW_OK;
}

/* The one that ends first ends the other. */
static sw_status run_and_end(void *context) {
    struct stream *stream = context;
    const sw_status status = run_stream(stream);
    atomic_store(stream->over, true);
    return status;
}

static double rate_of(const struct stream *stream) {
    return stream->seconds > 0.0 ? (double)(stream->done * stream->pass->cell.block_bytes) / stream->seconds : 0.0;
}

static sw_status run_streams(struct stream *reader, struct stream *writer, sw_io_way way, struct sw_io_done *out) {
    const double start_cpu_s = sw_cpu_seconds();
    switch (way) {
    case SW_IO_READ: SW_TRY(run_stream(reader)); break;
    case SW_IO_WRITE: SW_TRY(run_stream(writer)); break;
    default: SW_TRY(sw_run_both(run_and_end, reader, writer)); break;
    }
    const double read = way == SW_IO_WRITE ? 0.0 : rate_of(reader), write = way == SW_IO_READ ? 0.0 : rate_of(writer);
    const double seconds = reader->seconds > writer->seconds ? reader->seconds : writer->seconds;
    out->rate = (struct sw_io_rate){.bytes_per_s = read + write,
                                    .read_bytes_per_s = read,
                                    .write_bytes_per_s = write,
                                    .cores = (sw_cpu_seconds() - start_cpu_s) / seconds,
                                    .seconds = seconds};
    out->read_bytes = reader->done * reader->pass->cell.block_bytes;
    out->write_bytes = writer->done * writer->pass->cell.block_bytes;
    return SW_OK;
}

sw_status sw_io_run(struct sw_io_target *target, const struct sw_io_pass *pass, struct sw_io_done *out) {
    _Atomic bool over = false;
    struct stream reader = {.pass = pass}, writer = {.pass = pass};
    sw_status status = SW_OK;
    if (pass->cell.way != SW_IO_WRITE)
        SW_TRY_GOTO(open_stream(target, pass, READER, &over, &reader), end);
    if (pass->cell.way != SW_IO_READ)
        SW_TRY_GOTO(open_stream(target, pass, WRITER, &over, &writer), end);
    status = run_streams(&reader, &writer, pass->cell.way, out);
    sw_io_target_count(target, pass->shared ? pass->most_bytes : 0, writer.done * pass->cell.block_bytes);
end:
    sw_queue_close(reader.queue);
    sw_queue_close(writer.queue);
    return status;
}

sw_status sw_io_fill(struct sw_io_target *target) {
    const int64_t block = sw_min_i64(SW_QUEUE_BLOCK_BYTES, target->file_bytes);
    const struct sw_io_pass pass = {.cell = {SW_IO_WRITE, block, (int)(SW_IO_FILL_BYTES / SW_QUEUE_BLOCK_BYTES)},
                                    .seconds = INFINITY,
                                    .most_bytes = target->file_bytes / block * block * target->count};
    struct sw_io_done done;
    return sw_io_run(target, &pass, &done);
}
