/* Measures memory and arithmetic. */
#include "cli/doctor.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/rng.h"
#include "core/size.h"
#include "core/team.h"
#include "io/queue/file.h"
#include "io/queue/queue.h"
#include "job/job.h"
#include "kernels/described.h"
#include "kernels/device.h"
#include "offload/simulate/measure.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* Measures the machine's profile, and reports its content. */

/* Reports the numbers that `plan` uses. */
static void tell(struct sw_doctor *doctor, const struct sw_profile *profile) {
    const struct sw_rates *rates = &profile->rates;
    const double products = sw_op_times_best_rate(profile->times, SW_TIMED_PRODUCT);
    const double attention = sw_op_times_best_rate(profile->times, SW_DEVICE_ATTENTION_BACKWARD);
    json_t *facts = json_pack("{s:s?, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "file",
                              profile->source.machine_path[0] != '\0' ? profile->source.machine_path : NULL, "op_sizes",
                              (json_int_t)sw_op_times_count(profile->times), "products_flops_per_s", products,
                              "attention_flops_per_s", attention, "update_bytes_per_s", rates->update.bytes_per_s,
                              "upload_bytes_per_s", rates->upload.bytes_per_s, "read_bytes_per_s",
                              rates->read.bytes_per_s, "write_bytes_per_s", rates->write.bytes_per_s);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts},
                   "products %.1f GFLOPS, attention %.1f GFLOPS, update %.1f GB/s, upload %.1f GB/s, drives read "
                   "%.2f GB/s, write %.2f GB/s at best; kept in %s",
                   products * 1e-9, attention * 1e-9, rates->update.bytes_per_s * 1e-9,
                   rates->upload.bytes_per_s * 1e-9, rates->read.bytes_per_s * 1e-9, rates->write.bytes_per_s * 1e-9,
                   profile->source.machine_path[0] != '\0' ? profile->source.machine_path
                                                           : "nothing, as there is no folder for caches");
}

/* Makes settings of a plan whose model does not matter: a profile is the same for all. */
static sw_status settings_of(const struct sw_doctor *doctor, struct sw_settings *settings) {
    SW_TRY(sw_options_defaults(&sw_plan_command, settings));
    settings->json = true; /* shows no progress: the findings are printed one after the other */
    free(settings->model);
    settings->model = strdup("gpt2-tiny");
    if (settings->model == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings of a profile");
    for (int i = 0; i < doctor->folder_count; i++)
        SW_TRY(sw_option_list_add(&settings->nvme, doctor->folders[i]));
    return SW_OK;
}

void sw_doctor_profile(struct sw_doctor *doctor) {
    struct sw_settings settings = {0};
    struct sw_job job = {0};
    if (!doctor->profiles)
        return;
    sw_status status = settings_of(doctor, &settings);
    if (status == SW_OK)
        status = sw_job_open(&(struct sw_job_spec){.settings = &settings, .folder = "."}, &job);
    if (status == SW_OK)
        status = sw_job_find_profile(&job, &(struct sw_profile_need){.drives = true, .again = true});
    if (status == SW_OK) {
        tell(doctor, &job.profile);
    } else {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "not measured: %s", sw_error_message(status));
        sw_error_clear();
    }
    sw_job_release(&job);
    sw_options_release(&sw_plan_command, &settings);
}

/* Measures a folder's drive: writes a file without a name once, then reads, writes, and does both at once, through the
 * queue of the store's lanes. Time and bytes are bounded; `bench io` measures thoroughly. */

enum { QUEUE_DEPTH = 16, REAP_BATCH = 16, FREE_PART = 4 };
#define BLOCK_BYTES SW_MIB
#define PASS_BYTES ((int64_t)QUEUE_DEPTH * BLOCK_BYTES) /* memory of a pass */
#define FILE_MOST_BYTES (256 * SW_MIB)
#define PASS_MOST_BYTES SW_GIB
/* Seconds for writing the files, and for all passes, over all folders. */
#define FILL_SECONDS 2.0
#define PASSES_SECONDS 3.0
enum { PASSES = 3 };

struct pass {
    int fd;
    bool write;
    char *memory;   /* QUEUE_DEPTH blocks */
    int64_t blocks; /* length of the file */
    int64_t most_blocks;
    double most_s;
    int64_t done_blocks;
    double seconds;
};

static sw_status open_queue(const struct pass *pass, struct sw_queue **out) {
    const struct sw_ring_buffer buffer = {.base = pass->memory, .bytes = PASS_BYTES};
    bool warned = true; /* the limit that a warning would mention is a finding of its own */
    return sw_queue_open(sw_ring_open_uring, NULL,
                         &(struct sw_ring_spec){.files = &pass->fd,
                                                .file_count = 1,
                                                .buffers = &buffer,
                                                .buffer_count = 1,
                                                .depth = QUEUE_DEPTH,
                                                .warned = &warned},
                         out);
}

static sw_status stream(struct pass *pass, struct sw_queue *queue) {
    int free_slot[QUEUE_DEPTH], free_count = QUEUE_DEPTH;
    int64_t issued = 0;
    const int64_t start_ns = sw_now_ns();
    for (int i = 0; i < QUEUE_DEPTH; i++)
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
        sw_rng_fill(memory, 2 * PASS_BYTES);
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

/* A product the size of one in a block of GPT-2 124M on a few hundred tokens, so short that other programs leave some
 * of its turns undisturbed; and the seconds for which it is repeated in turn in each precision. */
enum { ROWS = 512, COLUMNS = 768, DEPTH = 768 };
enum { CHUNK_GRAINS = 16, RING_CHUNKS = 8 };
#define COMPUTE_SECONDS 0.8
/* Rates that differ by less than this are called equal. */
#define SAME_RATE 0.1

static struct sw_measure_shape shape_of(sw_dtype type) {
    return (struct sw_measure_shape){.type = type, .chunk_grains = CHUNK_GRAINS, .ring_chunks = RING_CHUNKS};
}

static sw_dtype type_of(const struct sw_device *device) {
    return sw_device_info(device).bf16_fast ? SW_BF16 : SW_F32;
}

/* Reports why a measurement is missing. */
static void find_failure(struct sw_doctor *doctor, sw_status status) {
    sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "%s", sw_error_message(status));
    sw_error_clear();
}

static sw_status measure_memory(struct sw_rate *out_copy, struct sw_rate *out_update) {
    struct sw_device *device;
    struct sw_rate download;
    SW_TRY(sw_device_open("cpu", 0, &device));
    const struct sw_measure_shape shape = shape_of(type_of(device));
    sw_status status = sw_measure_copies(device, &shape, out_copy, &download);
    if (status == SW_OK)
        status = sw_measure_update(device, &shape, out_update);
    sw_device_close(device);
    return status;
}

void sw_doctor_memory_rate(struct sw_doctor *doctor) {
    struct sw_rate copy, update;
    const sw_status status = measure_memory(&copy, &update);
    if (status != SW_OK) {
        find_failure(doctor, status);
        return;
    }
    json_t *facts =
        json_pack("{s:f, s:f}", "copy_bytes_per_s", copy.bytes_per_s, "update_bytes_per_s", update.bytes_per_s);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "update %.1f GB/s, upload %.1f GB/s",
                   update.bytes_per_s * 1e-9, copy.bytes_per_s * 1e-9);
}

/* Fills both factors with equal numbers. They take as long as random ones; zeros may not. */
static void fill(sw_dtype type, void *to, int64_t elems) {
    static const uint16_t bf16_half = 0x3f00;
    for (int64_t i = 0; i < elems; i++) {
        if (type == SW_BF16)
            ((uint16_t *)to)[i] = bf16_half;
        else
            ((float *)to)[i] = 0.5f;
    }
}

/* The product in one precision. */
struct product {
    struct sw_gemm shape;
    int64_t scratch_bytes;
    void *a, *b, *c, *scratch;
    double flops_per_s; /* the best rate */
};

static sw_status take_operands(struct product *product, struct sw_arena *arena) {
    const int64_t a = (int64_t)ROWS * DEPTH, b = (int64_t)DEPTH * COLUMNS, c = (int64_t)ROWS * COLUMNS;
    const int64_t bytes = sw_dtype_bytes(product->shape.in);
    SW_TRY(sw_arena_take(arena, a * bytes, &product->a));
    SW_TRY(sw_arena_take(arena, b * bytes, &product->b));
    SW_TRY(sw_arena_take(arena, c * bytes, &product->c));
    if (product->scratch_bytes > 0)
        SW_TRY(sw_arena_take(arena, product->scratch_bytes, &product->scratch));
    fill(product->shape.in, product->a, a);
    fill(product->shape.in, product->b, b);
    return SW_OK;
}

static sw_status time_product(struct sw_stream *stream, struct product *product) {
    const int64_t before_ns = sw_now_ns();
    SW_TRY(sw_gemm(stream, &product->shape, product->a, product->b, NULL, product->c, product->scratch));
    SW_TRY(sw_stream_synchronize(stream));
    const double seconds = (double)sw_max_i64(1, sw_now_ns() - before_ns) * 1e-9;
    const double flops_per_s = 2.0 * ROWS * COLUMNS * DEPTH / seconds;
    product->flops_per_s = flops_per_s > product->flops_per_s ? flops_per_s : product->flops_per_s;
    return SW_OK;
}

/* Alternates between the precisions and keeps the best of each: other load slows down whichever has its turn. */
static sw_status time_in_turn(struct sw_stream *stream, struct product *products, int count) {
    const int64_t start_ns = sw_now_ns();
    do {
        for (int i = 0; i < count; i++)
            SW_TRY(time_product(stream, &products[i]));
    } while ((double)(sw_now_ns() - start_ns) * 1e-9 < COMPUTE_SECONDS);
    return SW_OK;
}

static sw_status measure_products(struct sw_device *device, struct product *products, int count) {
    struct sw_stream *stream = NULL;
    struct sw_arena *arena = NULL;
    int64_t bytes = 0;
    sw_status status = SW_OK;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *shape = &products[i].shape;
        SW_TRY(sw_device_prepare_gemm(device, shape, &products[i].scratch_bytes));
        bytes += (shape->m * shape->k + shape->k * shape->n + shape->m * shape->n) * sw_dtype_bytes(shape->in) +
                 products[i].scratch_bytes + 4 * (int64_t)SW_BUFFER_ALIGN_BYTES;
    }
    SW_TRY_GOTO(sw_stream_open(device, &stream), end);
    SW_TRY_GOTO(sw_arena_create("measurement", bytes, false, NULL, &arena), end);
    for (int i = 0; i < count; i++)
        SW_TRY_GOTO(take_operands(&products[i], arena), end);
    status = time_in_turn(stream, products, count);
end:
    sw_arena_destroy(arena);
    if (stream != NULL)
        sw_stream_close(stream);
    return status;
}

/* If a GPU trains, the processor's products decide nothing. */
static bool trains_on_gpu(void) {
    struct sw_device *device;
    if (sw_device_open("cuda", 0, &device) != SW_OK) {
        sw_error_clear();
        return false;
    }
    sw_device_close(device);
    return true;
}

static void find_products(struct sw_doctor *doctor, sw_dtype type, double bf16, double fp32) {
    const bool same = bf16 < fp32 * (1 + SAME_RATE) && fp32 < bf16 * (1 + SAME_RATE), gpu = trains_on_gpu();
    const char *faster = gpu || same ? NULL : bf16 > fp32 ? "bf16" : "fp32";
    const char *advice = gpu           ? " on the processor"
                         : same        ? ": as fast as each other here, and bf16 halves weights and activations"
                         : bf16 > fp32 ? ": --precision bf16 is faster here, and halves weights and activations"
                                       : ": --precision fp32 is faster here, bf16 halves weights and activations";
    json_t *facts =
        json_pack("{s:s, s:f, s:f, s:f, s:s?}", "precision", sw_dtype_name(type), "flops_per_s",
                  type == SW_BF16 ? bf16 : fp32, "bf16_flops_per_s", bf16, "fp32_flops_per_s", fp32, "faster", faster);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "fp32 products %.1f GFLOPS, bf16 %.1f GFLOPS%s",
                   fp32 * 1e-9, bf16 * 1e-9, advice);
}

void sw_doctor_compute_rate(struct sw_doctor *doctor) {
    enum { BF16, FP32, PRECISIONS };
    const struct sw_gemm shape = {.m = ROWS, .n = COLUMNS, .k = DEPTH};
    struct product products[PRECISIONS] = {{.shape = shape}, {.shape = shape}};
    products[BF16].shape.in = products[BF16].shape.out = SW_BF16;
    products[FP32].shape.in = products[FP32].shape.out = SW_F32;
    struct sw_device *device;
    sw_dtype type = SW_F32;
    sw_status status = sw_device_open("cpu", 0, &device);
    if (status == SW_OK) {
        type = type_of(device);
        status = measure_products(device, products, PRECISIONS);
        sw_device_close(device);
    }
    if (status == SW_OK)
        find_products(doctor, type, products[BF16].flops_per_s, products[FP32].flops_per_s);
    else
        find_failure(doctor, status);
}
