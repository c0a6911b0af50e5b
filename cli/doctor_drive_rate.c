/* Measures a folder's drive: writes a file without a name once, then reads, writes, and does both at once, through the
 * queue of the store's lanes. Time and bytes are bounded; `bench io` measures thoroughly. */
#include "cli/doctor.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "core/team.h"
#include "io/queue/file.h"
#include "io/queue/queue.h"

#include <string.h>
#include <sys/statvfs.h>

enum { DEPTH = 16, REAP_BATCH = 16, FREE_PART = 4 };
#define BLOCK_BYTES SW_MIB
#define PASS_BYTES ((int64_t)DEPTH * BLOCK_BYTES) /* memory of a pass */
#define FILE_MOST_BYTES (256 * SW_MIB)
#define PASS_MOST_BYTES SW_GIB
/* Seconds for writing the files, and for all passes, over all folders. */
#define FILL_SECONDS 2.0
#define PASSES_SECONDS 3.0
enum { PASSES = 3 };

struct pass {
    int fd;
    bool write;
    char *memory;   /* DEPTH blocks */
    int64_t blocks; /* blocks of the file */
    int64_t most_blocks;
    double most_s;
    int64_t done_blocks;
    double seconds;
};

static sw_status open_queue(const struct pass *pass, struct sw_queue **out) {
    const struct sw_ring_buffer buffer = {.base = pass->memory, .bytes = PASS_BYTES};
    bool warned = true; /* the limit that would be warned of is a finding of its own */
    return sw_queue_open(sw_ring_open_uring, NULL,
                         &(struct sw_ring_spec){.files = &pass->fd,
                                                .file_count = 1,
                                                .buffers = &buffer,
                                                .buffer_count = 1,
                                                .depth = DEPTH,
                                                .warned = &warned},
                         out);
}

static sw_status stream(struct pass *pass, struct sw_queue *queue) {
    int free_slot[DEPTH], free_count = DEPTH;
    int64_t issued = 0;
    const int64_t start_ns = sw_now_ns();
    for (int i = 0; i < DEPTH; i++)
        free_slot[i] = i;
    for (;;) {
        const double elapsed_s = (double)(sw_now_ns() - start_ns) * 1e-9;
        while (free_count > 0 && issued < pass->most_blocks && elapsed_s < pass->most_s) {
            const int slot = free_slot[--free_count];
            sw_queue_put(queue, &(struct sw_ring_request){.op = pass->write ? SW_RING_WRITE : SW_RING_READ,
                                                          .offset_bytes = issued++ % pass->blocks * BLOCK_BYTES,
                                                          .bytes = BLOCK_BYTES,
                                                          .buf = pass->memory + slot * BLOCK_BYTES,
                                                          .tag = (uint64_t)slot});
        }
        if (sw_queue_in_flight(queue) == 0)
            break;
        struct sw_queue_result results[REAP_BATCH];
        int count;
        SW_TRY(sw_queue_reap(queue, true, results, REAP_BATCH, &count));
        for (int i = 0; i < count; i++) {
            if (results[i].error != 0)
                return sw_fail(SW_ERR_IO, "%s at byte %lld failed: %s", pass->write ? "writing" : "reading",
                               (long long)results[i].offset_bytes, strerror(results[i].error));
            free_slot[free_count++] = (int)results[i].tag;
        }
        pass->done_blocks += count;
    }
    pass->seconds = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

static sw_status run_pass(void *context) {
    struct pass *pass = context;
    struct sw_queue *queue;
    SW_TRY(open_queue(pass, &queue));
    const sw_status status = stream(pass, queue);
    sw_queue_close(queue);
    return status;
}

static double rate_of(const struct pass *pass) {
    return (double)(pass->done_blocks * BLOCK_BYTES) / pass->seconds;
}

struct rates {
    double read, write, both_read, both_write;
};

/* Measures within a share of the time. Passes read only blocks that were written: others would not come from the drive.
 */
static sw_status measure(int fd, int64_t blocks, double part, char *memory, struct rates *out) {
    char *other = memory + PASS_BYTES;
    struct pass fill = {.fd = fd,
                        .write = true,
                        .memory = memory,
                        .blocks = blocks,
                        .most_blocks = blocks,
                        .most_s = part * FILL_SECONDS};
    SW_TRY(run_pass(&fill));
    const struct pass base = {.fd = fd,
                              .memory = memory,
                              .blocks = fill.done_blocks,
                              .most_blocks = PASS_MOST_BYTES / BLOCK_BYTES,
                              .most_s = part * PASSES_SECONDS / PASSES};
    struct pass reading = base, writing = base, both_reading = base, both_writing = base;
    writing.write = both_writing.write = true;
    writing.memory = both_writing.memory = other;
    SW_TRY(run_pass(&reading));
    SW_TRY(run_pass(&writing));
    SW_TRY(sw_run_both(run_pass, &both_reading, &both_writing));
    *out = (struct rates){rate_of(&reading), rate_of(&writing), rate_of(&both_reading), rate_of(&both_writing)};
    return SW_OK;
}

static void fill_random(char *memory, int64_t bytes) {
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15), *words = (uint64_t *)memory;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *words; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
}

static sw_status measure_file(int fd, const char *folder, double part, struct rates *out) {
    struct statvfs space;
    struct sw_arena *arena;
    void *memory;
    if (statvfs(folder, &space) != 0)
        return sw_fail(SW_ERR_IO, "its free space is not known");
    const int64_t free_bytes = (int64_t)space.f_bavail * (int64_t)space.f_frsize;
    const int64_t blocks = sw_min_i64(FILE_MOST_BYTES, free_bytes / FREE_PART) / BLOCK_BYTES;
    if (blocks == 0)
        return sw_fail(SW_ERR_SPACE, "there is no room to measure in");
    SW_TRY(sw_file_allocate(fd, folder, blocks * BLOCK_BYTES));
    SW_TRY(sw_arena_create("measurement", 2 * PASS_BYTES, false, NULL, &arena));
    sw_status status = sw_arena_take(arena, 2 * PASS_BYTES, &memory);
    if (status == SW_OK) {
        fill_random(memory, 2 * PASS_BYTES);
        status = measure(fd, blocks, part, memory, out);
    }
    sw_arena_destroy(arena);
    return status;
}

void sw_doctor_drive_rate(struct sw_doctor *doctor) {
    struct rates rates;
    int fd;
    sw_status status = sw_file_create_unnamed(doctor->folder, false, &fd);
    if (status == SW_OK) {
        status = measure_file(fd, doctor->folder, 1.0 / doctor->folder_count, &rates);
        sw_file_close(fd);
    }
    if (status != SW_OK) {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "not measured: %s", sw_error_message(status));
        sw_error_clear();
        return;
    }
    json_t *facts = json_pack("{s:f, s:f, s:f, s:f}", "read_bytes_per_s", rates.read, "write_bytes_per_s", rates.write,
                              "both_read_bytes_per_s", rates.both_read, "both_write_bytes_per_s", rates.both_write);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts},
                   "read %.2f GB/s, write %.2f GB/s; both at once: read %.2f GB/s, write %.2f GB/s", rates.read * 1e-9,
                   rates.write * 1e-9, rates.both_read * 1e-9, rates.both_write * 1e-9);
}
