/* Reading ahead gives the bytes that reading gives: elements of files of every type, at every alignment, announced in
 * order or not at all, in one file or several. */
#include "tests/io/support.h"

#include "core/size.h"
#include "io/queue/streams.h"
#include "io/safetensors/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TENSORS = 7, PIECE = 50000, PATH_CHARS = 512, SEEDS = 3 };

/* Some smaller than a block, one far larger than all blocks together. */
static const int64_t tensor_elems[TENSORS] = {3, 262144, 5000001, 17, 1, 700000, 4095};

static float value_at(int64_t tensor, int64_t elem) {
    return (float)((tensor * 37 + elem * 11) % 128) - 64.0f; /* in every type */
}

static void name_tensor(int64_t tensor, char name[32]) {
    snprintf(name, 32, "t%lld", (long long)tensor);
}

/* Writes tensors [first, end) into a file, whose header has `spaces` more bytes than it needs. */
static void write_file_of(const char *path, sw_dtype type, int64_t first, int64_t end, int spaces) {
    char *header = malloc(4096);
    int64_t at = 0;
    int used = snprintf(header, 4096, "{");
    const char *const names[] = {[SW_F32] = "F32", [SW_BF16] = "BF16", [SW_F16] = "F16"};
    for (int64_t t = first; t < end; t++) {
        const int64_t bytes = tensor_elems[t] * sw_dtype_bytes(type);
        used += snprintf(header + used, 4096 - (size_t)used,
                         "%s\"t%lld\":{\"dtype\":\"%s\",\"shape\":[%lld],\"data_offsets\":[%lld,%lld]}",
                         t == first ? "" : ",", (long long)t, names[type], (long long)tensor_elems[t], (long long)at,
                         (long long)(at + bytes));
        at += bytes;
    }
    used += snprintf(header + used, 4096 - (size_t)used, "}%*s", spaces, "");
    const uint64_t length = (uint64_t)used;
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(&length, sizeof length, 1, file) == 1 && fwrite(header, length, 1, file) == 1);
    float *values = malloc(PIECE * sizeof *values);
    float *rounded = malloc(PIECE * sizeof *values);
    for (int64_t t = first; t < end; t++)
        for (int64_t e = 0, now; e < tensor_elems[t]; e += now) {
            now = sw_min_i64(PIECE, tensor_elems[t] - e);
            for (int64_t i = 0; i < now; i++)
                values[i] = value_at(t, e + i);
            sw_dtype_round(type, values, now, rounded);
            CHECK(fwrite(rounded, (size_t)sw_dtype_bytes(type), (size_t)now, file) == (size_t)now);
        }
    CHECK(fclose(file) == 0);
    free(values);
    free(rounded);
    free(header);
}

static void write_two_shards(const char *folder, sw_dtype type, int spaces) {
    char index[512];
    int used = snprintf(index, sizeof index, "{\"weight_map\":{");
    for (int64_t t = 0; t < TENSORS; t++)
        used += snprintf(index + used, sizeof index - (size_t)used, "%s\"t%lld\":\"%c\"", t == 0 ? "" : ",",
                         (long long)t, t < 3 ? 'a' : 'b');
    used += snprintf(index + used, sizeof index - (size_t)used, "}}");
    write_file_of(in_directory(folder, "a"), type, 0, 3, spaces);
    write_file_of(in_directory(folder, "b"), type, 3, TENSORS, spaces + 1);
    write_file(in_directory(folder, "model.safetensors.index.json"), index, used);
}

static const struct sw_safetensor *tensor_at(struct sw_safetensors *tensors, int64_t tensor) {
    char name[32];
    name_tensor(tensor, name);
    return sw_safetensors_find(tensors, name);
}

/* The next piece of all tensors in their order. */
struct cursor {
    int64_t tensor, elem, number;
};

static bool step(struct cursor *cursor, int64_t count) {
    cursor->elem += count;
    cursor->number++;
    if (cursor->elem >= tensor_elems[cursor->tensor]) {
        cursor->tensor++;
        cursor->elem = 0;
    }
    return cursor->tensor < TENSORS;
}

static int64_t piece_of(const struct cursor *cursor) {
    return sw_min_i64(PIECE, tensor_elems[cursor->tensor] - cursor->elem);
}

static void read_piece(struct sw_safetensors *tensors, const struct cursor *at, float *values) {
    const int64_t count = piece_of(at);
    CHECK_OK(sw_safetensors_read_f32(tensors, tensor_at(tensors, at->tensor), at->elem, count, values));
    for (int64_t i = 0; i < count; i++)
        CHECK(values[i] == value_at(at->tensor, at->elem + i));
}

/* Announces as far as there is room, and reads each piece when it has come. Some are not announced at all. */
static void read_all(const char *folder, uint64_t seed) {
    struct sw_safetensors *tensors;
    float *values = malloc(PIECE * sizeof *values);
    uint64_t draws = seed;
    CHECK_OK(sw_safetensors_open(folder, &tensors));
    struct cursor here = {0}, ahead = {0};
    bool more = true, more_ahead = true;
    for (; more; more = step(&here, piece_of(&here))) {
        if (ahead.number < here.number) {
            ahead = here;
            more_ahead = true;
        }
        sw_safetensors_pass(tensors, here.number);
        bool taken = true;
        while (more_ahead && taken) {
            if (random_below(&draws, 8) > 0)
                CHECK_OK(sw_safetensors_announce(tensors, tensor_at(tensors, ahead.tensor), ahead.elem,
                                                 piece_of(&ahead), ahead.number, &taken));
            if (taken)
                more_ahead = step(&ahead, piece_of(&ahead));
        }
        CHECK_OK(sw_safetensors_await(tensors, here.number + 1));
        read_piece(tensors, &here, values);
    }
    CHECK(sw_safetensors_bytes_ahead(tensors) > tensor_elems[2]);
    sw_safetensors_close(tensors);
    free(values);
}

static void reads_what_is_there(void **state) {
    const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    for (test_seed = 0; test_seed < SEEDS; test_seed++) {
        const sw_dtype type = types[test_seed % 3];
        write_two_shards(*state, type, (int)test_seed);
        read_all(*state, test_seed);
    }
}

/* With room for some elements only, and every odd distance of elements to blocks. */
static void elements_across_blocks_are_whole(void **state) {
    enum { ELEMS = SW_READ_AHEAD_BLOCK_BYTES };
    for (int spaces = 0; spaces < 4; spaces++) {
        struct sw_safetensors *tensors;
        bool taken;
        write_file_of(in_directory(*state, "model.safetensors"), SW_F32, 1, 3, spaces);
        CHECK_OK(sw_safetensors_open(*state, &tensors));
        const struct sw_safetensor *tensor = tensor_at(tensors, 2);
        float *values = malloc(ELEMS * sizeof *values);
        CHECK_OK(sw_safetensors_announce(tensors, tensor, 0, ELEMS, 0, &taken));
        CHECK(taken);
        CHECK_OK(sw_safetensors_await(tensors, 1));
        CHECK_OK(sw_safetensors_read_f32(tensors, tensor, 0, ELEMS, values));
        for (int64_t i = 0; i < ELEMS; i++)
            CHECK(values[i] == value_at(2, i));
        sw_safetensors_close(tensors);
        free(values);
    }
}

static void says_where_a_file_was_cut(void **state) {
    const char *path = in_directory(*state, "model.safetensors");
    struct sw_safetensors *tensors;
    bool taken;
    write_file_of(path, SW_F32, 1, 3, 0);
    CHECK_OK(sw_safetensors_open(*state, &tensors));
    const struct sw_safetensor *tensor = tensor_at(tensors, 2);
    CHECK_OK(sw_safetensors_announce(tensors, tensor, 0, 1, 0, &taken));
    CHECK_OK(sw_safetensors_await(tensors, 1));
    CHECK(truncate(path, 1 << 21) == 0);
    CHECK_OK(sw_safetensors_announce(tensors, tensor, 1 << 19, 1 << 18, 1, &taken));
    CHECK_FAILS(sw_safetensors_await(tensors, 2), SW_ERR_CORRUPT, "it has been truncated");
    sw_safetensors_close(tensors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_what_is_there, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(elements_across_blocks_are_whole, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(says_where_a_file_was_cut, make_directory, remove_directory),
    };
    return cmocka_run_group_tests_name("read_ahead", tests, NULL, NULL);
}
