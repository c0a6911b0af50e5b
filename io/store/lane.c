/* A lane: ordered transfers, cut into blocks so that the queue stays full from one transfer to the next. The lane's
 * thread makes and checks the checksums.
 *
 * Checksums are made and checked where the bytes pass, by the lane's own thread. A separate pass would read every byte
 * from memory a second time, and would leave a gap in which bytes could change unseen.
 *
 * A grain that fails its checksum is read once more: a transfer may go wrong where the drive does not. After that it is
 * an error with the grain's name, never data. */
#include "core/files/files.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REAP_BATCH = 64, TRANSFER_NAME_CHARS = 160, ADVICE_CHARS = 224 };

struct lane_transfer {
    struct sw_store_transfer request;
    int64_t issued;      /* grains handed to the queue */
    int blocks_active;   /* blocks of this transfer in flight */
    int64_t grain_bytes; /* bytes moved per grain; a block has several grains only if they move whole */
    int64_t at_bytes;    /* in place: the first byte of the unit that no read has been issued for */
    bool again;          /* in place: all of it is being read again, after a wrong checksum */
};

/* A run of a transfer's grains: one request of the queue. */
struct lane_block {
    int transfer;
    struct sw_file_run run;
    int64_t first_grain;
    bool again; /* it is being read again, after a wrong checksum */
    /* In place: the read, and the number of the room that it goes through. `run` is not used then. */
    struct sw_borrowed_read read;
    int room;
};

/* A queue of indices of transfers. */
struct index_ring {
    int at[SW_STORE_LANE_TRANSFERS];
    unsigned head, tail;
};
static_assert((SW_STORE_LANE_TRANSFERS & (SW_STORE_LANE_TRANSFERS - 1)) == 0, "indices wrap by masking");

struct sw_store_lane {
    struct sw_store *store;
    struct sw_queue *queue;
    struct lane_transfer transfers[SW_STORE_LANE_TRANSFERS];
    struct index_ring unused, waiting, finished; /* waiting: not yet fully issued */
    struct lane_block *blocks;                   /* `depth` entries */
    int *unused_blocks;
    int unused_block_count;
    int unused_rooms[SW_STORE_IN_PLACE_READS];
    int unused_room_count;
    int outstanding;  /* transfers submitted and not yet reaped */
    sw_status failed; /* the first error; afterwards nothing is accepted */
};

static int ring_count(const struct index_ring *ring) {
    return (int)(ring->tail - ring->head);
}

static void ring_push(struct index_ring *ring, int index) {
    assert(ring_count(ring) < SW_STORE_LANE_TRANSFERS);
    ring->at[ring->tail++ & (SW_STORE_LANE_TRANSFERS - 1)] = index;
}

static int ring_peek(const struct index_ring *ring) {
    return ring->at[ring->head & (SW_STORE_LANE_TRANSFERS - 1)];
}

static int ring_pop(struct index_ring *ring) {
    assert(ring_count(ring) > 0);
    return ring->at[ring->head++ & (SW_STORE_LANE_TRANSFERS - 1)];
}

/* Makes void what an earlier process kept, unless it was taken over, and cuts off scratch that it left after the files'
 * ends. The areas must be known. */
static sw_status trim_files(struct sw_store *store) {
    if (store->trimmed)
        return SW_OK;
    SW_TRY(sw_store_void_kept(store));
    for (int file = 0; file < store->file_count; file++) {
        const struct sw_store_file *target = &store->files[file];
        if (!target->is_device && ftruncate(target->fd, target->end_bytes) != 0)
            return sw_fail(SW_ERR_IO, "%s cannot be cut to %lld bytes: %s", target->path, (long long)target->end_bytes,
                           strerror(errno));
    }
    store->trimmed = true;
    return SW_OK;
}

sw_status sw_store_lane_open(struct sw_store *store, int depth, struct sw_store_lane **out) {
    if (depth < 1 || depth > SW_QUEUE_MAX_DEPTH)
        return sw_fail(SW_ERR_ARG, "an I/O depth of %d is not within 1 and %d", depth, SW_QUEUE_MAX_DEPTH);
    SW_TRY(trim_files(store));
    struct sw_store_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an I/O lane");
    sw_status status = SW_ERR_NOMEM;
    lane->store = store;
    atomic_fetch_add(&store->open_lanes, 1);
    lane->blocks = calloc((size_t)depth, sizeof *lane->blocks);
    lane->unused_blocks = calloc((size_t)depth, sizeof *lane->unused_blocks);
    if (lane->blocks == NULL || lane->unused_blocks == NULL) {
        sw_fail(status, "no memory for an I/O lane of %d requests", depth);
        goto failed;
    }
    for (int i = 0; i < depth; i++)
        lane->unused_blocks[lane->unused_block_count++] = i;
    for (int i = 0; i < SW_STORE_IN_PLACE_READS; i++)
        lane->unused_rooms[lane->unused_room_count++] = i;
    for (int i = 0; i < SW_STORE_LANE_TRANSFERS; i++)
        ring_push(&lane->unused, i);
    SW_TRY_GOTO(sw_store_open_queue(store, depth, &lane->queue), failed);
    *out = lane;
    return SW_OK;
failed:
    sw_store_lane_close(lane);
    return status;
}

void sw_store_lane_close(struct sw_store_lane *lane) {
    if (lane == NULL)
        return;
    sw_queue_close(lane->queue);
    atomic_fetch_sub(&lane->store->open_lanes, 1);
    free(lane->blocks);
    free(lane->unused_blocks);
    free(lane);
}

int sw_store_outstanding(const struct sw_store_lane *lane) {
    return lane->outstanding;
}

static struct sw_area *area_of(const struct sw_store_lane *lane, const struct sw_store_transfer *transfer) {
    return &lane->store->areas[transfer->kind][transfer->generation];
}

static sw_ring_op op_of(const struct sw_store_transfer *request) {
    return request->write ? SW_RING_WRITE : SW_RING_READ;
}

static bool is_in_place(const struct lane_transfer *transfer) {
    return transfer->request.kind == SW_STORE_IN_PLACE;
}

/* Returns where a read in place arrives. */
static char *room_of(const struct sw_store_lane *lane, const struct lane_block *block) {
    return lane->store->borrowed.rooms + block->room * lane->store->borrowed.room_bytes;
}

/* Returns where a transfer has a grain in memory. */
static char *buffer_at(const struct sw_store_lane *lane, const struct sw_store_transfer *request, int64_t grain) {
    return (char *)request->buf + sw_area_distance(area_of(lane, request), request->unit, request->first_grain, grain);
}

/* Returns the bytes that a block moves: whole records, or the beginning of a single one. */
static int64_t block_bytes(const struct sw_store_lane *lane, const struct lane_block *block) {
    const struct lane_transfer *transfer = &lane->transfers[block->transfer];
    const struct sw_area *area = area_of(lane, &transfer->request);
    return transfer->grain_bytes < area->grain_bytes
               ? block->run.grains * transfer->grain_bytes
               : sw_area_run_bytes(area, transfer->request.unit, block->first_grain, block->run.grains);
}

static void put_block(struct sw_store_lane *lane, int index) {
    const struct lane_block *block = &lane->blocks[index];
    const struct lane_transfer *transfer = &lane->transfers[block->transfer];
    const struct sw_store_transfer *request = &transfer->request;
    if (is_in_place(transfer)) {
        sw_queue_put(lane->queue, &(struct sw_ring_request){.op = SW_RING_READ,
                                                            .file = lane->store->file_count + block->read.file,
                                                            .offset_bytes = block->read.first_bytes,
                                                            .bytes = block->read.moved_bytes,
                                                            .buf = room_of(lane, block),
                                                            .tag = (uint64_t)index});
        return;
    }
    sw_queue_put(lane->queue, &(struct sw_ring_request){
                                  .op = op_of(request),
                                  .file = block->run.file,
                                  .offset_bytes = block->run.offset_bytes,
                                  .bytes = block_bytes(lane, block),
                                  .buf = buffer_at(lane, request, block->first_grain),
                                  .tag = (uint64_t)index,
                              });
}

/* Returns the grains of a transfer's next block. Blocks of a transfer have similar sizes: a small one at the end would
 * occupy a slot of the queue for little. */
static int64_t next_block_grains(const struct sw_area *area, const struct lane_transfer *transfer) {
    const bool whole = transfer->grain_bytes == area->grain_bytes;
    const int64_t most = whole ? sw_max_i64(1, SW_QUEUE_BLOCK_BYTES / area->grain_bytes) : 1;
    const int64_t grains_left = transfer->request.grains - transfer->issued;
    return sw_min_i64(grains_left, sw_round_up(sw_div_up(grains_left, sw_div_up(grains_left, most)), area->group));
}

/* Returns the first byte of a transfer, from the start of the unit's grain 0. */
static int64_t first_byte(const struct sw_store_lane *lane, const struct sw_store_transfer *request) {
    return request->first_grain * area_of(lane, request)->grain_bytes;
}

/* Copies bytes that were read in place to where the transfer wants them. */
static void copy_read(const struct sw_store_lane *lane, const struct sw_store_transfer *request,
                      const struct sw_borrowed_read *read, const char *room, int64_t at_bytes, int64_t bytes) {
    sw_borrowed_copy(lane->store, read, room, at_bytes, bytes,
                     (char *)request->buf + at_bytes - first_byte(lane, request));
}

/* Notes that a grain could not be read, if it is one that later processes would take over. Passes on the status. */
static sw_status lose(const struct sw_store_lane *lane, const struct sw_store_transfer *request, int64_t grain,
                      sw_status status) {
    if (!request->write && sw_store_keeps(request->kind))
        sw_store_lose_kept(lane->store, request->kind, request->unit, grain);
    return status;
}

/* Ends a transfer in place whose reads have all arrived, or begins it once more if a grain's checksum is wrong. */
static sw_status end_in_place(struct sw_store_lane *lane, int index) {
    struct lane_transfer *transfer = &lane->transfers[index];
    const struct sw_store_transfer *request = &transfer->request;
    const int64_t bad = sw_borrowed_check(lane->store, request);
    if (bad >= 0 && transfer->again)
        return lose(lane, request, bad, sw_borrowed_refuse(lane->store, request, bad));
    if (bad < 0) {
        ring_push(&lane->finished, index);
        return SW_OK;
    }
    transfer->again = true;
    transfer->issued = 0;
    transfer->at_bytes = first_byte(lane, request);
    ring_push(&lane->waiting, index);
    return SW_OK;
}

/* Issues the next read of a transfer in place, or takes it from the tail of its file. */
static sw_status issue_read(struct sw_store_lane *lane, int index) {
    struct lane_transfer *transfer = &lane->transfers[index];
    const struct sw_store_transfer *request = &transfer->request;
    const int64_t end_bytes = first_byte(lane, request) + request->grains * area_of(lane, request)->grain_bytes;
    struct sw_borrowed_read read;
    if (!sw_borrowed_next(lane->store, request->unit, transfer->at_bytes, end_bytes, &read)) {
        transfer->issued = request->grains;
        ring_pop(&lane->waiting);
        return transfer->blocks_active == 0 ? end_in_place(lane, index) : SW_OK;
    }
    transfer->at_bytes = read.at_bytes + read.bytes;
    if (read.moved_bytes == 0) {
        copy_read(lane, request, &read, NULL, read.at_bytes, read.bytes);
        return SW_OK;
    }
    const int block = lane->unused_blocks[--lane->unused_block_count];
    lane->blocks[block] =
        (struct lane_block){.transfer = index, .read = read, .room = lane->unused_rooms[--lane->unused_room_count]};
    transfer->blocks_active++;
    put_block(lane, block);
    return SW_OK;
}

/* Hands blocks of waiting transfers to the queue, in order, while there is room. */
static sw_status issue_blocks(struct sw_store_lane *lane) {
    while (lane->unused_block_count > 0 && ring_count(&lane->waiting) > 0) {
        const int index = ring_peek(&lane->waiting);
        struct lane_transfer *transfer = &lane->transfers[index];
        const struct sw_store_transfer *request = &transfer->request;
        const struct sw_area *area = area_of(lane, request);
        if (is_in_place(transfer)) {
            if (lane->unused_room_count == 0)
                return SW_OK;
            SW_TRY(issue_read(lane, index));
            continue;
        }
        const int64_t first = request->first_grain + transfer->issued;
        const int block = lane->unused_blocks[--lane->unused_block_count];
        lane->blocks[block] = (struct lane_block){
            .transfer = index,
            .first_grain = first,
            .run = sw_area_run(area, request->unit, first, next_block_grains(area, transfer)),
        };
        transfer->issued += lane->blocks[block].run.grains;
        transfer->blocks_active++;
        if (transfer->issued == request->grains)
            ring_pop(&lane->waiting);
        put_block(lane, block);
    }
    return SW_OK;
}

/* Writes "grain 3 of unit 2 (optimizer, generation 1, step 7)" into text and returns it. */
static const char *name_grain(const struct sw_store_transfer *request, int64_t grain, char text[TRANSFER_NAME_CHARS]) {
    static const char *const kinds[SW_STORE_KINDS] = {
        [SW_STORE_OPTIMIZER] = "optimizer",       [SW_STORE_GRADS] = "grads",
        [SW_STORE_WEIGHTS] = "weights",           [SW_STORE_ACTS] = "acts",
        [SW_STORE_ACCUMULATORS] = "accumulators", [SW_STORE_BASE] = "base",
        [SW_STORE_FROZEN] = "frozen weights",     [SW_STORE_KEPT_SUMS] = "checksums",
        [SW_STORE_IN_PLACE] = "frozen weights"};
    snprintf(text, TRANSFER_NAME_CHARS, "grain %lld of unit %lld (%s, generation %d, step %lld)", (long long)grain,
             (long long)request->unit, kinds[request->kind], request->generation, (long long)request->step);
    return text;
}

/* Tells whether the store has a transfer's grains, and they begin and end at a page. */
static bool has_grains(const struct sw_area *area, const struct sw_store_transfer *request) {
    return sw_extent_holds(&area->extents[request->unit], request->first_grain, request->grains) &&
           sw_area_may_move(area, request->unit, request->first_grain, request->grains);
}

static sw_status check_request(const struct sw_store_lane *lane, const struct sw_store_transfer *request) {
    assert((uintptr_t)request->buf % SW_BUFFER_ALIGN_BYTES == 0);
    const bool known = request->kind >= 0 && request->kind < SW_STORE_KINDS && request->generation >= 0 &&
                       request->generation < SW_STORE_GENERATIONS && request->unit >= 0 &&
                       request->unit < lane->store->unit_count && area_of(lane, request)->extents != NULL;
    if (!known || !has_grains(area_of(lane, request), request))
        return sw_fail(SW_ERR_INTERNAL, "the store has no grains %lld to %lld of unit %lld (kind %d, generation %d)",
                       (long long)request->first_grain, (long long)(request->first_grain + request->grains - 1),
                       (long long)request->unit, (int)request->kind, request->generation);
    return SW_OK;
}

static void record_sums(struct sw_area *area, const struct sw_store_transfer *request) {
    uint64_t *sums = sw_area_sums(area, request->unit, request->first_grain);
    for (int64_t i = 0; i < request->grains; i++) {
        const int64_t grain = request->first_grain + i;
        const char *record =
            (const char *)request->buf + sw_area_distance(area, request->unit, request->first_grain, grain);
        sums[i] = sw_checksum(record, sw_area_record_bytes(area, request->unit, grain));
    }
}

/* Returns whether all grains of a write still hold the zeros of creation. */
static bool is_unwritten(const struct sw_store *store, const struct sw_area *area,
                         const struct sw_store_transfer *request) {
    const uint64_t *sums = sw_area_sums(area, request->unit, request->first_grain);
    for (int64_t i = 0; i < request->grains; i++)
        if (sums[i] != store->zero_sum)
            return false;
    return store->zero_sum != SW_CHECKSUM_UNKNOWN;
}

/* Returns how many bytes of each grain a transfer must move. */
static int64_t moved_grain_bytes(const struct sw_store *store, const struct sw_area *area,
                                 const struct sw_store_transfer *request) {
    assert(request->zeros_from_bytes % SW_BUFFER_ALIGN_BYTES == 0 && request->zeros_from_bytes <= area->grain_bytes);
    const bool may = request->write && request->zeros_from_bytes > 0 && area->group == 1;
    const bool shortened = may && is_unwritten(store, area, request);
    return shortened ? request->zeros_from_bytes : area->grain_bytes;
}

static sw_status fail_lane(struct sw_store_lane *lane, sw_status status) {
    lane->failed = status;
    return status;
}

static sw_status already_failed(const struct sw_store_lane *lane) {
    return sw_fail(lane->failed, "this I/O lane has failed before (%s)", sw_status_name(lane->failed));
}

sw_status sw_store_submit(struct sw_store_lane *lane, const struct sw_store_transfer *transfer) {
    if (lane->failed != SW_OK)
        return already_failed(lane);
    SW_TRY(check_request(lane, transfer));
    assert(!transfer->write || transfer->kind == SW_STORE_OPTIMIZER || !lane->store->read_only);
    if (transfer->write && transfer->kind == SW_STORE_OPTIMIZER)
        SW_TRY(sw_store_check_writable(lane->store, transfer->generation));
    if (ring_count(&lane->unused) == 0)
        return sw_fail(SW_ERR_BUSY, "an I/O lane takes %d transfers at once", SW_STORE_LANE_TRANSFERS);
    const int index = ring_pop(&lane->unused);
    struct sw_area *area = area_of(lane, transfer);
    const bool is_kept_elsewhere = transfer->write && transfer->kind == SW_STORE_IN_PLACE;
    lane->transfers[index] = (struct lane_transfer){.request = *transfer,
                                                    .grain_bytes = moved_grain_bytes(lane->store, area, transfer),
                                                    .at_bytes = first_byte(lane, transfer)};
    ring_push(is_kept_elsewhere ? &lane->finished : &lane->waiting, index);
    lane->outstanding++;
    if (!transfer->write && transfer->kind == SW_STORE_IN_PLACE)
        sw_borrowed_zero(lane->store, transfer);
    if (transfer->write && sw_store_keeps(transfer->kind))
        atomic_store(&lane->store->kept_complete, false);
    if (transfer->write)
        record_sums(area, transfer);
    if (transfer->write && transfer->kind == SW_STORE_OPTIMIZER)
        atomic_store(&lane->store->previous_step, -1);
    sw_status status = issue_blocks(lane);
    if (status == SW_OK)
        status = sw_queue_start(lane->queue);
    return status == SW_OK ? SW_OK : fail_lane(lane, status);
}

/* Returns the first grain of the block whose checksum is wrong, or -1. */
static int64_t find_bad_grain(const struct sw_store_lane *lane, const struct lane_block *block) {
    const struct sw_store_transfer *request = &lane->transfers[block->transfer].request;
    const struct sw_area *area = area_of(lane, request);
    const uint64_t *sums = sw_area_sums(area, request->unit, block->first_grain);
    for (int64_t i = 0; i < block->run.grains; i++) {
        const int64_t grain = block->first_grain + i;
        if (sw_checksum(buffer_at(lane, request, grain), sw_area_record_bytes(area, request->unit, grain)) != sums[i])
            return grain;
    }
    return -1;
}

static bool is_committed(const struct sw_store *store, const struct sw_store_transfer *request) {
    return atomic_load(&store->committed_step) >= 0 && request->kind == SW_STORE_OPTIMIZER &&
           request->generation == atomic_load(&store->committed_generation);
}

/* Writes advice for a user whose last commit has lost a grain, and returns it. */
static const char *advise(const struct sw_store *store, char advice[ADVICE_CHARS]) {
    const long long step = (long long)atomic_load(&store->committed_step);
    const long long previous = (long long)atomic_load(&store->previous_step);
    if (previous >= 0)
        snprintf(advice, ADVICE_CHARS,
                 "it belongs to the last commit (step %lld): resume --previous goes back to step %lld if that is still "
                 "whole, otherwise go back to an export or another copy",
                 step, previous);
    else
        snprintf(advice, ADVICE_CHARS,
                 "it belongs to the last commit (step %lld): go back to an export or another copy", step);
    return advice;
}

static sw_status report_corrupt(const struct sw_store_lane *lane, const struct lane_block *block, int64_t grain) {
    const struct sw_store *store = lane->store;
    const struct sw_store_transfer *request = &lane->transfers[block->transfer].request;
    const struct sw_area *area = area_of(lane, request);
    SW_TRY(sw_store_check_current(store));
    const long long step = (long long)atomic_load(&store->committed_step);
    const bool unknown = *sw_area_sums(area, request->unit, grain) == SW_CHECKSUM_UNKNOWN;
    char name[TRANSFER_NAME_CHARS], advice[ADVICE_CHARS];
    if (step < 0)
        snprintf(advice, sizeof advice, "nothing has been committed yet: start the run again");
    else if (is_committed(store, request))
        advise(store, advice);
    else
        snprintf(advice, sizeof advice, "the last commit (step %lld) does not use it: resume from there", step);
    return sw_fail(
        SW_ERR_CORRUPT, "%s %s at offset %lld of %s; %s", name_grain(request, grain, name),
        unknown ? "was not written since the store was opened" : "has a wrong checksum, read twice,",
        (long long)(block->run.offset_bytes + sw_area_distance(area, request->unit, block->first_grain, grain)),
        store->files[block->run.file].path, advice);
}

/* Returns the grain at which a request stopped. */
static int64_t bad_sector_grain(const struct sw_store_lane *lane, const struct lane_block *block,
                                const struct sw_queue_result *result) {
    const struct sw_store_transfer *request = &lane->transfers[block->transfer].request;
    const struct sw_area *area = area_of(lane, request);
    const int64_t bytes = result->offset_bytes - block->run.offset_bytes;
    int64_t grain = block->first_grain;
    if (request->kind == SW_STORE_IN_PLACE)
        return sw_max_i64(0, block->read.at_bytes + result->offset_bytes - block->read.offset_bytes) /
               area->grain_bytes;
    while (grain + 1 < block->first_grain + block->run.grains &&
           sw_area_distance(area, request->unit, block->first_grain, grain + 1) <= bytes)
        grain++;
    return grain;
}

static sw_status report_io(const struct sw_store_lane *lane, const struct lane_block *block,
                           const struct sw_queue_result *result) {
    const struct sw_store_transfer *request = &lane->transfers[block->transfer].request;
    const int64_t grain = bad_sector_grain(lane, block, result);
    char name[TRANSFER_NAME_CHARS], advice[ADVICE_CHARS];
    const bool lost = !request->write && is_committed(lane->store, request);
    const int file = request->kind == SW_STORE_IN_PLACE ? lane->store->file_count + block->read.file : block->run.file;
    const sw_status status = sw_store_io_error(lane->store, file, op_of(request), result);
    return sw_fail_while(status, "%s %s%s%s", request->write ? "writing" : "reading", name_grain(request, grain, name),
                         lost ? ", " : "", lost ? advise(lane->store, advice) : "");
}

/* Copies a read in place grain by grain, so that each is checked while the caches have it. Returns the first grain that
 * the read has whole and whose checksum is wrong, or -1. */
static int64_t take_read(const struct sw_store_lane *lane, const struct lane_block *block) {
    const struct sw_store_transfer *request = &lane->transfers[block->transfer].request;
    const int64_t grain_bytes = area_of(lane, request)->grain_bytes;
    const int64_t end_bytes = block->read.at_bytes + block->read.bytes;
    for (int64_t at = block->read.at_bytes, bytes; at < end_bytes; at += bytes) {
        const int64_t grain = at / grain_bytes;
        bytes = sw_min_i64((grain + 1) * grain_bytes, end_bytes) - at;
        copy_read(lane, request, &block->read, room_of(lane, block), at, bytes);
        if (bytes == grain_bytes && !sw_borrowed_is_right(lane->store, request->unit, grain,
                                                          (const char *)request->buf + at - first_byte(lane, request)))
            return grain;
    }
    return -1;
}

/* Takes in a read in place. */
static sw_status finish_read(struct sw_store_lane *lane, int index) {
    struct lane_block *block = &lane->blocks[index];
    struct lane_transfer *transfer = &lane->transfers[block->transfer];
    sw_store_count(lane->store, SW_RING_READ, block->read.moved_bytes);
    const int64_t bad = take_read(lane, block);
    if (bad >= 0 && block->again)
        return lose(lane, &transfer->request, bad, sw_borrowed_refuse(lane->store, &transfer->request, bad));
    if (bad >= 0) {
        block->again = true;
        put_block(lane, index);
        return SW_OK;
    }
    lane->unused_blocks[lane->unused_block_count++] = index;
    lane->unused_rooms[lane->unused_room_count++] = block->room;
    transfer->blocks_active--;
    return transfer->blocks_active == 0 && transfer->issued == transfer->request.grains
               ? end_in_place(lane, block->transfer)
               : SW_OK;
}

static sw_status finish_block(struct sw_store_lane *lane, const struct sw_queue_result *result) {
    const int index = (int)result->tag;
    struct lane_block *block = &lane->blocks[index];
    struct lane_transfer *transfer = &lane->transfers[block->transfer];
    const struct sw_store_transfer *request = &transfer->request;
    if (result->error != 0)
        return lose(lane, request, bad_sector_grain(lane, block, result), report_io(lane, block, result));
    if (is_in_place(transfer))
        return finish_read(lane, index);
    sw_store_count(lane->store, op_of(request), block_bytes(lane, block));
    const int64_t bad = request->write ? -1 : find_bad_grain(lane, block);
    if (bad >= 0 && block->again)
        return lose(lane, request, bad, report_corrupt(lane, block, bad));
    if (bad >= 0) {
        block->again = true;
        put_block(lane, index);
        return SW_OK;
    }
    lane->unused_blocks[lane->unused_block_count++] = index;
    transfer->blocks_active--;
    if (transfer->blocks_active == 0 && transfer->issued == transfer->request.grains)
        ring_push(&lane->finished, block->transfer);
    return SW_OK;
}

static sw_status advance(struct sw_store_lane *lane, bool wait) {
    struct sw_queue_result results[REAP_BATCH];
    int count;
    SW_TRY(sw_queue_reap(lane->queue, wait, results, REAP_BATCH, &count));
    for (int i = 0; i < count; i++) {
        const bool copies = is_in_place(&lane->transfers[lane->blocks[results[i].tag].transfer]);
        SW_TRY(finish_block(lane, &results[i]));
        if (!copies)
            continue;
        /* The drive goes on while the next read is copied. */
        SW_TRY(issue_blocks(lane));
        SW_TRY(sw_queue_start(lane->queue));
    }
    SW_TRY(issue_blocks(lane));
    return sw_queue_start(lane->queue);
}

sw_status sw_store_reap(struct sw_store_lane *lane, bool wait, uint64_t *tags, int max, int *out_count) {
    assert(max <= 0 || tags != NULL);
    *out_count = 0;
    if (lane->failed != SW_OK)
        return already_failed(lane);
    if (lane->outstanding == 0 || max <= 0)
        return SW_OK;
    do {
        const sw_status status = advance(lane, wait && ring_count(&lane->finished) == 0);
        if (status != SW_OK)
            return fail_lane(lane, status);
    } while (wait && ring_count(&lane->finished) == 0);
    while (*out_count < max && ring_count(&lane->finished) > 0) {
        const int index = ring_pop(&lane->finished);
        tags[(*out_count)++] = lane->transfers[index].request.tag;
        ring_push(&lane->unused, index);
        lane->outstanding--;
    }
    return SW_OK;
}

sw_status sw_store_transfer(struct sw_store_lane *lane, const struct sw_store_transfer *transfer) {
    assert(lane->outstanding == 0);
    uint64_t tag;
    int count;
    SW_TRY(sw_store_submit(lane, transfer));
    return sw_store_reap(lane, true, &tag, 1, &count);
}

/* Reads every committed grain and continues past bad ones. Several runs of grains are under way, and are judged in
 * order. */

enum { VERIFY_RUNS = 8, VERIFY_RUN_GRAINS = 16 };
static_assert((int)VERIFY_RUN_GRAINS == (int)SW_RECORD_GROUP, "a run of packed records begins and ends at a page");

/* Grains that one request reads. */
struct verify_run {
    struct sw_file_run at;
    int64_t unit, first_grain;
    char *buf;
    int error;
    bool done;
};

struct verify {
    struct sw_store *store;
    const struct sw_store_verifier *verifier;
    struct sw_queue *queue;
    struct sw_area *area;
    struct verify_run run[VERIFY_RUNS]; /* indexed by the run's number modulo VERIFY_RUNS */
    int64_t started, judged;            /* number of runs so far */
    int64_t unit, grain;                /* the next grain to read, counted from the unit's first */
    int64_t grains_done, bad;
};

/* Begins to read the next run. Returns false if there is none. */
static bool start_next(struct verify *self) {
    struct sw_area *area = self->area;
    while (self->unit < area->unit_count && self->grain >= area->extents[self->unit].grains) {
        self->unit++;
        self->grain = 0;
    }
    if (self->unit == area->unit_count)
        return false;
    const struct sw_extent *extent = &area->extents[self->unit];
    const int64_t slot = self->started % VERIFY_RUNS, first = extent->first_grain + self->grain;
    struct verify_run *run = &self->run[slot];
    *run = (struct verify_run){
        .at = sw_area_run(area, self->unit, first, sw_min_i64(VERIFY_RUN_GRAINS, extent->grains - self->grain)),
        .unit = self->unit,
        .first_grain = first,
        .buf = run->buf,
    };
    sw_queue_put(self->queue,
                 &(struct sw_ring_request){.op = SW_RING_READ,
                                           .file = run->at.file,
                                           .offset_bytes = run->at.offset_bytes,
                                           .bytes = sw_area_run_bytes(area, run->unit, first, run->at.grains),
                                           .buf = run->buf,
                                           .tag = (uint64_t)slot});
    self->grain += run->at.grains;
    self->started++;
    return true;
}

static bool is_right(const struct verify *self, const struct verify_run *run, int64_t index) {
    const int64_t grain = run->first_grain + index;
    const char *bytes = run->buf + sw_area_distance(self->area, run->unit, run->first_grain, grain);
    return sw_checksum(bytes, sw_area_record_bytes(self->area, run->unit, grain)) ==
           *sw_area_sums(self->area, run->unit, grain);
}

/* Reads one grain of a run again, by itself, or with all others where records do not begin at pages. */
static sw_status check_again(struct verify *self, const struct verify_run *run, int64_t grain) {
    const struct sw_area *area = self->area;
    const bool alone = area->group == 1;
    const int64_t at_bytes = sw_area_distance(area, run->unit, run->first_grain, run->first_grain + grain);
    const struct sw_ring_request request = {
        .op = SW_RING_READ,
        .file = run->at.file,
        .offset_bytes = run->at.offset_bytes + (alone ? at_bytes : 0),
        .bytes = alone ? area->grain_bytes : sw_area_run_bytes(area, run->unit, run->first_grain, run->at.grains),
        .buf = run->buf + (alone ? at_bytes : 0)};
    struct sw_queue_result result;
    SW_TRY(sw_queue_run(self->store->queue, &request, &result));
    if (result.error == 0 && is_right(self, run, grain))
        return SW_OK;
    SW_TRY(sw_store_check_current(self->store));
    self->bad++;
    const struct sw_store_bad_grain bad = {.unit = run->unit,
                                           .grain = run->first_grain + grain,
                                           .path = self->store->files[run->at.file].path,
                                           .offset_bytes = run->at.offset_bytes + at_bytes,
                                           .error = result.error};
    if (self->verifier->bad != NULL)
        self->verifier->bad(self->verifier->context, &bad);
    return SW_OK;
}

static sw_status judge(struct verify *self, const struct verify_run *run) {
    for (int64_t g = 0; g < run->at.grains; g++)
        if (run->error != 0 || !is_right(self, run, g))
            SW_TRY(check_again(self, run, g));
    self->judged++;
    self->grains_done += run->at.grains;
    /* Records that are smaller count like the others: this is about time. */
    if (self->verifier->progress != NULL)
        self->verifier->progress(self->verifier->context, self->grains_done * self->area->grain_bytes,
                                 self->area->grains * self->area->grain_bytes);
    return SW_OK;
}

static sw_status read_all(struct verify *self) {
    while (self->started - self->judged < VERIFY_RUNS && start_next(self))
        continue;
    while (self->judged < self->started) {
        struct sw_queue_result results[VERIFY_RUNS];
        int count;
        SW_TRY(sw_queue_reap(self->queue, true, results, VERIFY_RUNS, &count));
        for (int i = 0; i < count; i++) {
            self->run[results[i].tag].error = results[i].error;
            self->run[results[i].tag].done = true;
        }
        while (self->judged < self->started && self->run[self->judged % VERIFY_RUNS].done) {
            struct verify_run *run = &self->run[self->judged % VERIFY_RUNS];
            SW_TRY(judge(self, run));
            run->done = false;
            start_next(self);
        }
    }
    return SW_OK;
}

/* Returns the most grains of one run. */
static int64_t verify_run_grains(const struct sw_area *area) {
    int64_t most = 1;
    for (int64_t u = 0; u < area->unit_count; u++)
        most = sw_max_i64(most, area->extents[u].grains);
    return sw_min_i64(most, VERIFY_RUN_GRAINS);
}

sw_status sw_store_verify(struct sw_store *store, const struct sw_store_verifier *verifier, int64_t *out_grains,
                          int64_t *out_bad) {
    static const struct sw_store_verifier silent = {0};
    struct verify self = {.store = store, .verifier = verifier != NULL ? verifier : &silent};
    void *buf;
    *out_grains = *out_bad = 0;
    if (store->commit.step < 0)
        return sw_fail(SW_ERR_ARG, "%s has no commit to verify", store->files[0].path);
    self.area = &store->areas[SW_STORE_OPTIMIZER][store->commit.generation];
    const int64_t run_bytes = sw_round_up(verify_run_grains(self.area) * self.area->grain_bytes, SW_BUFFER_ALIGN_BYTES);
    const int64_t runs = sw_max_i64(1, sw_min_i64(VERIFY_RUNS, self.area->grains)); /* each has a grain or more */
    SW_TRY(sw_queue_alloc(runs * run_bytes, &buf));
    for (int i = 0; i < runs; i++)
        self.run[i].buf = (char *)buf + i * run_bytes;
    sw_status status = sw_store_open_queue(store, VERIFY_RUNS, &self.queue);
    if (status == SW_OK)
        status = read_all(&self);
    sw_queue_close(self.queue);
    free(buf);
    *out_grains = self.grains_done;
    *out_bad = self.bad;
    return status;
}
