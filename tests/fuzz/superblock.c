/* The labels, the mark and the superblocks of a store. An input changes those of a good one: its first byte says which
 * sums stay as they were (bit 0 the label's, bits 1 and 2 the superblocks'), as if the damage were on the drive; the
 * others are made right, as if our own writer had put it there. With bit 3 the second label stays whole, otherwise it
 * becomes the same as the first. Then come changes: two bytes of offset in the parts as if these followed each other,
 * one whose low bits are the count less one, and so many new bytes. */
#include "tests/fuzz/target.h"

#include "core/files/files.h"
#include "core/size.h"
#include "io/store/store_private.h"
#include "tests/io/store_support.h"
#include "tests/io/support.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_CHANGE = 16, CHANGE_HEAD_BYTES = 3, LABEL_SUM_STAYS = 1, COPY_STAYS = 8, STEPS = 2 };
enum { LABEL, MARK, SUPER_0, SUPER_1, PARTS };

/* A whole store file as it should be, and as the input has it; its front has the parts that are changed. */
static struct {
    unsigned char *good, *bytes;
    int64_t file_bytes, front_bytes, copy_offset;
    struct {
        int64_t offset, bytes;
    } part[PARTS];
    struct store_directories directories;
} image;

/* Reads come from memory, and flushes go nowhere. What is written is the first label, where the second had to be read.
 */
static int64_t carry_out(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    (void)script, (void)files;
    assert(request->offset_bytes >= 0 && request->bytes >= 0);
    if (request->op == SW_RING_FLUSH)
        return 0;
    if (request->op == SW_RING_WRITE) {
        assert(request->offset_bytes == 0 && request->bytes <= image.copy_offset);
        memcpy(image.bytes, request->buf, (size_t)request->bytes);
        return request->bytes;
    }
    const int64_t there = sw_max_i64(0, image.file_bytes - request->offset_bytes);
    const int64_t bytes = sw_min_i64(request->bytes, there);
    if (bytes > 0)
        memcpy(request->buf, image.bytes + request->offset_bytes, (size_t)bytes);
    return bytes;
}

static void load_image(void) {
    const char *path = store_file(&image.directories, 0);
    image.file_bytes = file_bytes(path);
    image.good = malloc((size_t)image.file_bytes);
    image.bytes = malloc((size_t)image.file_bytes);
    FILE *file = fopen(path, "rb");
    const size_t got = fread(image.good, 1, (size_t)image.file_bytes, file);
    assert(got == (size_t)image.file_bytes);
    fclose(file);
    const struct sw_label_header *label = (const struct sw_label_header *)image.good;
    const int64_t label_bytes = sw_from_le64(label->label_bytes), super_bytes = sw_from_le64(label->super_bytes);
    image.part[LABEL].bytes = label_bytes;
    image.part[MARK].offset = sw_format_mark_offset(SW_STORE_VERSION, label_bytes);
    image.part[MARK].bytes = SW_FORMAT_MARK_BYTES;
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
        image.part[SUPER_0 + slot].offset = sw_format_super_offset(SW_STORE_VERSION, label_bytes, super_bytes, slot);
        image.part[SUPER_0 + slot].bytes = super_bytes;
    }
    image.front_bytes = sw_format_super_offset(SW_STORE_VERSION, label_bytes, super_bytes, SW_STORE_SLOTS);
    image.copy_offset = sw_format_copy_offset(label_bytes);
    memcpy(image.bytes, image.good, (size_t)image.file_bytes);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    image.directories = make_store_directories(fuzz_folder(), 1);
    struct sw_store *store = create_store(&image.directories);
    commit_steps(store, 1, STEPS);
    sw_store_close(store);
    load_image();
    return 0;
}

static void change(int64_t offset, const uint8_t *data, size_t count) {
    int part = LABEL;
    while (part < PARTS && offset >= image.part[part].bytes)
        offset -= image.part[part++].bytes;
    if (part < PARTS && offset + (int64_t)count <= image.part[part].bytes)
        memcpy(image.bytes + image.part[part].offset + offset, data, count);
}

static void change_front(const uint8_t *data, size_t bytes) {
    while (bytes > CHANGE_HEAD_BYTES) {
        const int64_t offset = data[0] | data[1] << 8;
        const size_t wanted = data[2] % LARGEST_CHANGE + 1;
        data += CHANGE_HEAD_BYTES;
        bytes -= CHANGE_HEAD_BYTES;
        const size_t count = wanted < bytes ? wanted : bytes;
        change(offset, data, count);
        data += count;
        bytes -= count;
    }
}

static void set_sum(unsigned char *part, int64_t part_bytes) {
    const sw_le64 sum = sw_le64_of_sum(sw_checksum(part + SW_FORMAT_SUM_FROM, part_bytes - SW_FORMAT_SUM_FROM));
    memcpy(part + SW_FORMAT_MAGIC_BYTES, &sum, sizeof sum);
}

static void set_sums(uint8_t left) {
    const struct sw_label_header *label = (const struct sw_label_header *)image.bytes;
    const int64_t label_bytes = sw_from_le64(label->label_bytes);
    const bool possible = label_bytes > SW_FORMAT_SUM_FROM && label_bytes <= image.file_bytes;
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++)
        if ((left >> (slot + 1) & 1) == 0)
            set_sum(image.bytes + image.part[SUPER_0 + slot].offset, image.part[SUPER_0 + slot].bytes);
    if ((left & LABEL_SUM_STAYS) == 0)
        set_sum(image.bytes, possible ? label_bytes : image.part[LABEL].bytes);
    if ((left & COPY_STAYS) == 0)
        memcpy(image.bytes + image.copy_offset, image.bytes, (size_t)image.part[LABEL].bytes);
}

static void check_extents(const struct sw_store *store) {
    for (int generation = 0; generation < store->generations; generation++)
        for (int64_t unit = 0; unit < store->unit_count; unit++) {
            const struct sw_extent *extent = &store->areas[SW_STORE_OPTIMIZER][generation].extents[unit];
            const int64_t grains = store->unit_grains[unit];
            assert(extent->first_grain >= 0 && extent->grains >= 0 && extent->grains <= grains);
            assert(extent->first_grain <= grains - extent->grains);
        }
}

static void use(struct sw_store *store) {
    check_extents(store);
    int64_t grains, bad;
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    assert(commit->step >= 0 && commit->generation >= 0 && commit->generation < sw_store_generations(store));
    assert(memchr(commit->meta, '\0', sizeof commit->meta) != NULL);
    const sw_status status = sw_store_verify(store, NULL, &grains, &bad);
    assert(status == SW_OK && bad >= 0 && bad <= grains && grains * SW_OPTIMIZER_GRAIN_BYTES <= image.file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fake_ring_script script = {.carry_out = carry_out};
    const struct sw_ring_source rings = {.open = fake_ring_open, .context = &script};
    struct sw_store *store;
    if (bytes == 0)
        return 0;
    memcpy(image.bytes, image.good, (size_t)image.front_bytes);
    change_front(data + 1, bytes - 1);
    set_sums(data[0]);
    if (sw_store_open_on(&rings, image.directories.path, 1, true, SW_STORE_NEWEST, &store) == SW_OK) {
        use(store);
        sw_store_close(store);
    }
    sw_error_clear();
    return 0;
}
