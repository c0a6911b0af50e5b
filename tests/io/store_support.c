#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const int64_t store_unit_grains[STORE_UNITS] = {13, 1, 0, 6};

struct store_directories make_store_directories(const char *parent, int count) {
    struct store_directories directories = {.count = count};
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "nvme%d", i);
        directories.path[i] = new_subdirectory(parent, name);
    }
    return directories;
}

const char *store_file(const struct store_directories *directories, int index) {
    return in_directory(directories->path[index], SW_STORE_FILE_NAME);
}

struct sw_store *create_store(const struct store_directories *directories) {
    const struct sw_store_spec spec = {
        .directories = directories->path,
        .directory_count = directories->count,
        .unit_grains = store_unit_grains,
        .unit_count = STORE_UNITS,
        .allow_buffered = true,
    };
    struct sw_store *store = NULL;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    return store;
}

struct sw_store *reopen_store(const struct store_directories *directories) {
    struct sw_store *store = NULL;
    CHECK_OK(sw_store_open(directories->path, directories->count, true, SW_STORE_NEWEST, &store));
    return store;
}

struct sw_store *reopen_store_on(const struct store_directories *directories, struct fake_ring_script *script) {
    const struct sw_ring_source rings = {.open = fake_ring_open, .context = script};
    struct sw_store *store = NULL;
    CHECK_OK(sw_store_open_on(&rings, directories->path, directories->count, true, SW_STORE_NEWEST, &store));
    return store;
}

void fill_grain(void *grain, int64_t bytes, int64_t unit, int64_t index, int64_t version) {
    uint64_t *words = grain;
    const uint64_t key = (uint64_t)unit * 1000003 + (uint64_t)index * 1009 + (uint64_t)version * 7919 + 1;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *words; i++)
        words[i] = key * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;
}

static struct sw_store_transfer whole_unit(int64_t unit, int generation, int64_t version, void *buf) {
    return (struct sw_store_transfer){
        .generation = generation, .unit = unit, .grains = store_unit_grains[unit], .buf = buf, .step = version};
}

void write_generation(struct sw_store *store, int generation, int64_t version) {
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    for (int64_t unit = 0; unit < STORE_UNITS; unit++) {
        if (store_unit_grains[unit] == 0)
            continue;
        char *buf = io_buffer(store_unit_grains[unit] * SW_OPTIMIZER_GRAIN_BYTES);
        for (int64_t grain = 0; grain < store_unit_grains[unit]; grain++)
            fill_grain(buf + grain * SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES, unit, grain, version);
        struct sw_store_transfer transfer = whole_unit(unit, generation, version, buf);
        transfer.write = true;
        CHECK_OK(sw_store_transfer(lane, &transfer));
        free(buf);
    }
    sw_store_lane_close(lane);
}

void check_generation(struct sw_store *store, int generation, int64_t version) {
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    char *wanted = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    for (int64_t unit = 0; unit < STORE_UNITS; unit++) {
        if (store_unit_grains[unit] == 0)
            continue;
        char *buf = io_buffer(store_unit_grains[unit] * SW_OPTIMIZER_GRAIN_BYTES);
        const struct sw_store_transfer transfer = whole_unit(unit, generation, version, buf);
        CHECK_OK(sw_store_transfer(lane, &transfer));
        for (int64_t grain = 0; grain < store_unit_grains[unit]; grain++) {
            fill_grain(wanted, SW_OPTIMIZER_GRAIN_BYTES, unit, grain, version);
            CHECK(memcmp(wanted, buf + grain * SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES) == 0);
        }
        free(buf);
    }
    free(wanted);
    sw_store_lane_close(lane);
}

static const char *text_of(int64_t step) {
    static char text[32];
    snprintf(text, sizeof text, "{\"step\": %lld}", (long long)step);
    return text;
}

void commit_steps(struct sw_store *store, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; step++) {
        const int generation = 1 - sw_store_last_commit(store)->generation;
        write_generation(store, generation, step);
        CHECK_OK(sw_store_commit(store, step, generation, text_of(step)));
    }
}

void check_at_step(struct sw_store *store, int64_t step) {
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    CHECK(commit->step == step && strcmp(commit->meta, text_of(step)) == 0);
    check_generation(store, commit->generation, step);
    int64_t grains = 0, bad = 0, wanted = 0;
    for (int64_t unit = 0; unit < STORE_UNITS; unit++)
        wanted += store_unit_grains[unit];
    CHECK_OK(sw_store_verify(store, NULL, &grains, &bad));
    CHECK(grains == wanted && bad == 0);
}
