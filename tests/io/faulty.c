#include "tests/io/faulty.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t unit_grains[FAULTY_UNITS] = {1, 0, 2};

uint64_t faulty_seeds(uint64_t usual) {
    const char *text = getenv("SW_TEST_SEEDS");
    return text != NULL ? strtoull(text, NULL, 10) : usual;
}

void faulty_begin(struct faulty *self, const struct store_directories *directories, int sector_bytes) {
    *self = (struct faulty){.directories.count = directories->count,
                            .buf = io_buffer(FAULTY_GRAINS * SW_OPTIMIZER_GRAIN_BYTES)};
    for (int i = 0; i < directories->count; i++)
        self->directories.path[i] = strdup(directories->path[i]);
    CHECK_OK(sw_fault_disk_create(test_seed, sector_bytes, &self->disk));
}

static void remove_files(struct faulty *self) {
    sw_fault_disk_destroy(self->disk);
    for (int i = 0; i < self->directories.count; i++)
        CHECK(unlink(store_file(&self->directories, i)) == 0 || errno == ENOENT);
}

void faulty_renew(struct faulty *self, int sector_bytes) {
    remove_files(self);
    CHECK_OK(sw_fault_disk_create(test_seed, sector_bytes, &self->disk));
}

void faulty_end(struct faulty *self) {
    remove_files(self);
    for (int i = 0; i < self->directories.count; i++)
        free((char *)self->directories.path[i]);
    free(self->buf);
}

sw_status faulty_create(struct faulty *self, struct sw_store **out) {
    const struct sw_ring_source rings = {sw_fault_ring_open, self->disk};
    const struct sw_store_spec spec = {
        .directories = self->directories.path,
        .directory_count = self->directories.count,
        .unit_grains = unit_grains,
        .unit_count = FAULTY_UNITS,
        .allow_buffered = true,
        .one_generation = self->one_generation,
    };
    SW_TRY(sw_store_create_on(&rings, &spec, NULL, NULL, out));
    sw_fault_names_last(self->disk);
    return SW_OK;
}

sw_status faulty_open_at(struct faulty *self, int64_t most_step, struct sw_store **out) {
    const struct sw_ring_source rings = {sw_fault_ring_open, self->disk};
    return sw_store_open_on(&rings, self->directories.path, self->directories.count, true, most_step, out);
}

sw_status faulty_open(struct faulty *self, struct sw_store **out) {
    return faulty_open_at(self, SW_STORE_NEWEST, out);
}

/* One transfer for each unit, all under way together. */
static sw_status transfer_all(struct faulty *self, struct sw_store_lane *lane, bool write, int generation,
                              int64_t step) {
    char *at = self->buf;
    for (int64_t unit = 0; unit < FAULTY_UNITS; unit++) {
        if (unit_grains[unit] == 0)
            continue;
        const struct sw_store_transfer transfer = {.write = write,
                                                   .generation = generation,
                                                   .unit = unit,
                                                   .grains = unit_grains[unit],
                                                   .buf = at,
                                                   .step = step};
        SW_TRY(sw_store_submit(lane, &transfer));
        at += unit_grains[unit] * SW_OPTIMIZER_GRAIN_BYTES;
    }
    while (sw_store_outstanding(lane) > 0) {
        uint64_t tag;
        int count;
        SW_TRY(sw_store_reap(lane, true, &tag, 1, &count));
    }
    return SW_OK;
}

static sw_status transfer(struct faulty *self, struct sw_store *store, bool write, int generation, int64_t step) {
    struct sw_store_lane *lane;
    SW_TRY(sw_store_lane_open(store, STORE_DEPTH, &lane));
    const sw_status status = transfer_all(self, lane, write, generation, step);
    sw_store_lane_close(lane);
    return status;
}

static void fill_step(char *records, int64_t step) {
    for (int64_t unit = 0; unit < FAULTY_UNITS; unit++)
        for (int64_t grain = 0; grain < unit_grains[unit]; grain++, records += SW_OPTIMIZER_GRAIN_BYTES)
            fill_grain(records, SW_OPTIMIZER_GRAIN_BYTES, unit, grain, step);
}

static const char *text_of(int64_t step, char text[32]) {
    snprintf(text, 32, "{\"step\": %lld}", (long long)step);
    return text;
}

sw_status faulty_step(struct faulty *self, struct sw_store *store, int64_t step) {
    char text[32];
    const int generation = self->one_generation ? 0 : 1 - sw_store_last_commit(store)->generation;
    if (self->one_generation)
        SW_TRY(sw_store_withdraw(store));
    fill_step(self->buf, step);
    SW_TRY(transfer(self, store, true, generation, step));
    return sw_store_commit(store, step, generation, text_of(step, text));
}

sw_status faulty_read(struct faulty *self, struct sw_store *store) {
    char text[32];
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    SW_TRY(transfer(self, store, false, commit->generation, commit->step));
    CHECK(strcmp(commit->meta, text_of(commit->step, text)) == 0);
    char *wanted = io_buffer(FAULTY_GRAINS * SW_OPTIMIZER_GRAIN_BYTES);
    fill_step(wanted, commit->step);
    CHECK(memcmp(wanted, self->buf, FAULTY_GRAINS * SW_OPTIMIZER_GRAIN_BYTES) == 0);
    free(wanted);
    return SW_OK;
}
