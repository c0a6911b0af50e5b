/* Weights written as one file or several: what is read is what was written, and an end before the last element leaves
 * nothing. */
#include "tests/io/support.h"

#include "core/size.h"
#include "io/safetensors/safetensors.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS = 5, CASES = 15, MOST_ELEMS = 300 };
static const struct sw_safetensors_declared declared[TENSORS] = {
    {.name = "a", .dims = 2, .dim = {10, 10}}, {.name = "nothing", .dims = 1, .dim = {0}},
    {.name = "b", .dims = 1, .dim = {50}},     {.name = "large", .dims = 2, .dim = {3, 100}},
    {.name = "c", .dims = 1, .dim = {1}},
};
static const int64_t elems[TENSORS] = {100, 0, 50, 300, 1};
enum { ALL_ELEMS = 451 };

static struct sw_safetensors_shards *open_shards(const char *folder, int64_t shard_bytes) {
    struct sw_safetensors_shards *shards;
    CHECK_OK(sw_safetensors_shards_open(folder, SW_F32, shard_bytes, declared, TENSORS, &shards));
    return shards;
}

/* Element i of all has the value i; pieces of any length pass over the ends of tensors and shards. */
static void write_first(struct sw_safetensors_shards *shards, int64_t count, int64_t piece) {
    float values[ALL_ELEMS];
    for (int64_t i = 0; i < ALL_ELEMS; i++)
        values[i] = (float)i;
    for (int64_t at = 0; at < count; at += piece)
        CHECK_OK(sw_safetensors_shards_write_f32(shards, values + at, sw_min_i64(piece, count - at)));
}

static int files_in(const char *folder) {
    DIR *directory = opendir(folder);
    int count = 0;
    CHECK(directory != NULL);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count - 2;
}

static void check_all(const char *folder) {
    struct sw_safetensors *tensors;
    float values[MOST_ELEMS];
    CHECK_OK(sw_safetensors_open(folder, &tensors));
    CHECK(sw_safetensors_count(tensors) == TENSORS);
    for (int64_t t = 0, first = 0; t < TENSORS; first += elems[t++]) {
        const struct sw_safetensor *tensor = sw_safetensors_find(tensors, declared[t].name);
        CHECK(tensor != NULL && tensor->elems == elems[t]);
        CHECK_OK(sw_safetensors_read_f32(tensors, tensor, 0, elems[t], values));
        for (int64_t i = 0; i < elems[t]; i++)
            CHECK(values[i] == (float)(first + i));
    }
    sw_safetensors_close(tensors);
}

/* The bytes of a shard, and how many files are made of them; one more is the index. */
static const struct {
    int64_t shard_bytes;
    int files;
} divisions[] = {{ALL_ELEMS * 4, 1}, {ALL_ELEMS * 4 - 1, 3}, {450 * 4, 3}, {150 * 4, 4}, {149 * 4, 5}, {1, 5}};
enum { DIVISIONS = sizeof divisions / sizeof divisions[0] };

static void divides_by_size(void **state) {
    for (test_seed = 0; test_seed < DIVISIONS; test_seed++) {
        char name[32];
        snprintf(name, sizeof name, "shards-%d", (int)test_seed);
        const char *folder = new_subdirectory(*state, name);
        struct sw_safetensors_shards *shards = open_shards(folder, divisions[test_seed].shard_bytes);
        write_first(shards, ALL_ELEMS, ALL_ELEMS);
        CHECK_OK(sw_safetensors_shards_finish(shards));
        CHECK(files_in(folder) == divisions[test_seed].files);
        check_all(folder);
    }
}

static void takes_pieces_of_any_length(void **state) {
    for (test_seed = 1; test_seed <= CASES; test_seed++) {
        uint64_t draws = 0;
        char name[32];
        snprintf(name, sizeof name, "pieces-%d", (int)test_seed);
        const char *folder = new_subdirectory(*state, name);
        struct sw_safetensors_shards *shards = open_shards(folder, 4 * (1 + random_below(&draws, ALL_ELEMS)));
        write_first(shards, ALL_ELEMS, 1 + random_below(&draws, ALL_ELEMS));
        CHECK_OK(sw_safetensors_shards_finish(shards));
        check_all(folder);
    }
}

static void leaves_nothing_unfinished(void **state) {
    for (int64_t count = 0; count < ALL_ELEMS; count += 25) {
        struct sw_safetensors_shards *shards = open_shards(*state, 120 * 4);
        write_first(shards, count, 25);
        CHECK_FAILS(sw_safetensors_shards_finish(shards), SW_ERR_INTERNAL, "declared with");
        CHECK(files_in(*state) == 0);
        shards = open_shards(*state, 120 * 4);
        write_first(shards, count, 25);
        sw_safetensors_shards_abort(shards);
        CHECK(files_in(*state) == 0);
    }
    struct sw_safetensors_shards *shards = open_shards(*state, 120 * 4);
    write_first(shards, ALL_ELEMS, 25);
    CHECK_FAILS(sw_safetensors_shards_write_f32(shards, &(float){0}, 1), SW_ERR_INTERNAL, "fewer elements");
    sw_safetensors_shards_abort(shards);
    CHECK(files_in(*state) == 0);
}

static void refuses_what_no_folder_can_hold(void **state) {
    static struct sw_safetensors_declared many[10001];
    static char names[10001][8];
    const struct sw_safetensors_declared huge = {.name = "huge", .dims = 2, .dim = {INT64_MAX, 2}};
    struct sw_safetensors_shards *shards;
    for (int i = 0; i < 10001; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        many[i] = (struct sw_safetensors_declared){.name = names[i], .dims = 1, .dim = {2}};
    }
    CHECK_FAILS(sw_safetensors_shards_open(*state, SW_F32, 8, many, 10001, &shards), SW_ERR_ARG, "10001 files");
    CHECK_FAILS(sw_safetensors_shards_open(*state, SW_F32, 8, &huge, 1, &shards), SW_ERR_ARG, "huge");
    CHECK_OK(sw_safetensors_shards_open(in_directory(*state, "nowhere"), SW_F32, 8, many, 2, &shards));
    CHECK_FAILS(sw_safetensors_shards_write_f32(shards, (float[]){1, 2}, 2), SW_ERR_IO, "nowhere");
    sw_safetensors_shards_abort(shards);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(divides_by_size, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(takes_pieces_of_any_length, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(leaves_nothing_unfinished, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_what_no_folder_can_hold, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
