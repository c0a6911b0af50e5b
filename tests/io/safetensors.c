/* safetensors files: round trips, pieces, types, shards. */
#include "tests/io/support.h"

#include "core/dtype.h"
#include "core/size.h"
#include "io/safetensors/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than the reader's buffer holds, and no multiple of anything. */
enum { LONG = 1300007, PIECE = 90001 };

static const struct sw_safetensors_declared declared[] = {
    {.name = "wte.weight", .dims = 2, .dim = {7, 3}},
    {.name = "h.0.\"odd\" name \\ \xc3\xa9", .dims = 1, .dim = {LONG}},
    {.name = "empty", .dims = 2, .dim = {0, 5}},
    {.name = "scalar", .dims = 0},
};
enum { DECLARED = sizeof declared / sizeof declared[0] };
static const int64_t declared_elems[DECLARED] = {21, LONG, 0, 1};

static float value_at(int tensor, int64_t i) {
    return (float)((i * 7919 + tensor * 104729) % 65521) / 1024.0f - 30.0f;
}

static float rounded(sw_dtype type, float value) {
    if (type == SW_BF16)
        return sw_bf16_to_f32(sw_f32_to_bf16(value));
    return type == SW_F16 ? sw_f16_to_f32(sw_f32_to_f16(value)) : value;
}

static void write_model(const char *path, sw_dtype type) {
    struct sw_safetensors_writer *writer;
    float *piece = malloc(PIECE * sizeof *piece);
    CHECK_OK(sw_safetensors_writer_open(path, type, declared, DECLARED, &writer));
    for (int tensor = 0; tensor < DECLARED; tensor++)
        for (int64_t first = 0; first < declared_elems[tensor]; first += PIECE) {
            const int64_t count = sw_min_i64(PIECE, declared_elems[tensor] - first);
            for (int64_t i = 0; i < count; i++)
                piece[i] = value_at(tensor, first + i);
            CHECK_OK(sw_safetensors_write_f32(writer, piece, count));
        }
    CHECK(file_bytes(path) == -1);
    CHECK_OK(sw_safetensors_writer_finish(writer));
    free(piece);
}

static void check_model(const char *folder, sw_dtype type) {
    struct sw_safetensors *tensors;
    float *all = malloc(LONG * sizeof *all);
    CHECK_OK(sw_safetensors_open(folder, &tensors));
    CHECK(sw_safetensors_count(tensors) == DECLARED);
    for (int t = 0; t < DECLARED; t++) {
        const struct sw_safetensor *tensor = sw_safetensors_find(tensors, declared[t].name);
        CHECK(tensor != NULL && tensor->type == type && tensor->supported && tensor->elems == declared_elems[t]);
        CHECK(tensor->dims == declared[t].dims);
        CHECK(memcmp(tensor->dim, declared[t].dim, (size_t)tensor->dims * sizeof tensor->dim[0]) == 0);
        CHECK_OK(sw_safetensors_read_f32(tensors, tensor, 0, tensor->elems, all));
        for (int64_t i = 0; i < tensor->elems; i++)
            CHECK(all[i] == rounded(type, value_at(t, i)));
    }
    const struct sw_safetensor *middle = sw_safetensors_find(tensors, declared[1].name);
    CHECK_OK(sw_safetensors_read_f32(tensors, middle, LONG - 5, 5, all));
    CHECK(all[4] == rounded(type, value_at(1, LONG - 1)));
    CHECK(sw_safetensors_find(tensors, "missing") == NULL);
    sw_safetensors_close(tensors);
    free(all);
}

static void round_trips_every_type(void **state) {
    const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    for (int i = 0; i < 3; i++) {
        write_model(in_directory(*state, "model.safetensors"), types[i]);
        check_model(*state, types[i]);
        CHECK(remove(in_directory(*state, "model.safetensors")) == 0);
    }
    CHECK(file_bytes(in_directory(*state, "model.safetensors.partial")) == -1);
}

/* Where tensors are was learnt of the file that was opened first. */
static void refuses_another_file_of_the_name(void **state) {
    const char *folder = *state;
    const char *path = in_directory(folder, "model.safetensors"), *other = in_directory(folder, "other");
    struct sw_safetensors *tensors;
    float value;
    write_model(path, SW_F32);
    write_model(other, SW_F32);
    CHECK_OK(sw_safetensors_open(folder, &tensors));
    CHECK(rename(other, path) == 0);
    CHECK(sw_safetensors_read_f32(tensors, sw_safetensors_find(tensors, declared[0].name), 0, 1, &value) ==
          SW_ERR_CORRUPT);
    CHECK(strstr(sw_error_message(SW_ERR_CORRUPT), "changed while it was in use") != NULL);
    sw_error_clear();
    sw_safetensors_close(tensors);
}

static void aligns_the_data(void **state) {
    const char *path = in_directory(*state, "model.safetensors");
    write_model(path, SW_F32);
    unsigned char length[8];
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fread(length, 1, 8, file) == 8 && fgetc(file) == '{' && fclose(file) == 0);
    CHECK(length[0] % 8 == 0 && length[7] == 0);
    CHECK(file_bytes(path) == 8 + length[0] + 256 * length[1] + (LONG + 22) * (int64_t)sizeof(float));
}

static void leaves_nothing_unfinished(void **state) {
    const char *path = in_directory(*state, "model.safetensors"),
               *partial = in_directory(*state, "model.safetensors.partial");
    struct sw_safetensors_writer *writer;
    const float values[22] = {0};
    CHECK_OK(sw_safetensors_writer_open(path, SW_F32, declared, 1, &writer));
    CHECK_OK(sw_safetensors_write_f32(writer, values, 20));
    CHECK_FAILS(sw_safetensors_write_f32(writer, values, 2), SW_ERR_INTERNAL, "is given more");
    CHECK_FAILS(sw_safetensors_writer_finish(writer), SW_ERR_INTERNAL, "21 elements, and was given 20");
    CHECK(file_bytes(path) == -1 && file_bytes(partial) == -1);
    CHECK_OK(sw_safetensors_writer_open(path, SW_F32, declared, 1, &writer));
    CHECK(file_bytes(partial) >= 0);
    sw_safetensors_writer_abort(writer);
    CHECK(file_bytes(path) == -1 && file_bytes(partial) == -1);
}

static void refuses_to_write_what_cannot_be_read(void **state) {
    const char *path = in_directory(*state, "model.safetensors");
    struct sw_safetensors_writer *writer;
    const struct sw_safetensors_declared twice[] = {declared[0], declared[0]};
    const struct sw_safetensors_declared negative = {.name = "n", .dims = 1, .dim = {-1}};
    const struct sw_safetensors_declared huge = {.name = "n", .dims = 2, .dim = {INT64_C(1) << 40, INT64_C(1) << 40}};
    const struct sw_safetensors_declared invalid = {.name = "\xff\xfe", .dims = 0};
    char name[SW_SAFETENSORS_NAME_CHARS + 1];
    memset(name, 'n', sizeof name);
    name[SW_SAFETENSORS_NAME_CHARS] = '\0';
    const struct sw_safetensors_declared long_name = {.name = name, .dims = 0};
    CHECK_FAILS(sw_safetensors_writer_open(path, SW_F32, twice, 2, &writer), SW_ERR_ARG, "written twice");
    CHECK_FAILS(sw_safetensors_writer_open(path, SW_F32, &negative, 1, &writer), SW_ERR_ARG, "too large");
    CHECK_FAILS(sw_safetensors_writer_open(path, SW_F32, &huge, 1, &writer), SW_ERR_ARG, "too large");
    CHECK_FAILS(sw_safetensors_writer_open(path, SW_F32, &invalid, 1, &writer), SW_ERR_ARG, "UTF-8");
    CHECK_FAILS(sw_safetensors_writer_open(path, SW_F32, &long_name, 1, &writer), SW_ERR_ARG, "too large");
    CHECK_FAILS(sw_safetensors_writer_open(in_directory(*state, "no/where"), SW_F32, declared, 1, &writer), SW_ERR_IO,
                "cannot be created");
    CHECK(file_bytes(in_directory(*state, "model.safetensors.partial")) == -1);
}

/* Every fp16 value survives, and rounding goes to the nearest neighbour, ties to even. */
static void converts_fp16_exactly(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        const float value = sw_f16_to_f32((sw_f16)bits);
        if (!isnan(value))
            CHECK(sw_f32_to_f16(value) == bits);
        else
            CHECK(isnan(sw_f16_to_f32(sw_f32_to_f16(value))));
        if (bits % 0x8000 < 0x7bff) {
            const float next = sw_f16_to_f32((sw_f16)(bits + 1)), half_way = (value + next) / 2;
            const sw_f16 even = (sw_f16)(bits % 2 == 0 ? bits : bits + 1);
            CHECK(sw_f32_to_f16(half_way) == even);
            CHECK(sw_f32_to_f16(nextafterf(half_way, value)) == bits);
            CHECK(sw_f32_to_f16(nextafterf(half_way, next)) == bits + 1);
        }
    }
    CHECK(sw_f32_to_f16(65519.0f) == 0x7bff && sw_f32_to_f16(65520.0f) == 0x7c00 && sw_f32_to_f16(-INFINITY) == 0xfc00);
    CHECK(sw_f32_to_f16(1e-30f) == 0 && sw_f16_to_f32(0x0001) == 0x1p-24f && sw_f16_to_f32(0x3c00) == 1.0f);
}

static void write_shard(const char *path, const char *name, float value) {
    const struct sw_safetensors_declared one = {.name = name, .dims = 1, .dim = {1}};
    struct sw_safetensors_writer *writer;
    CHECK_OK(sw_safetensors_writer_open(path, SW_F32, &one, 1, &writer));
    CHECK_OK(sw_safetensors_write_f32(writer, &value, 1));
    CHECK_OK(sw_safetensors_writer_finish(writer));
}

static void write_index(const char *folder, const char *text) {
    write_file(in_directory(folder, "model.safetensors.index.json"), text, (int64_t)strlen(text));
}

static void reads_shards_by_their_index(void **state) {
    write_shard(in_directory(*state, "a.safetensors"), "first", 1.5f);
    write_shard(in_directory(*state, "b.safetensors"), "second", 2.5f);
    write_index(
        *state,
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"first\":\"a.safetensors\",\"second\":\"b.safetensors\"}}");
    struct sw_safetensors *tensors;
    float values[2] = {0};
    CHECK_OK(sw_safetensors_open(*state, &tensors));
    CHECK(sw_safetensors_count(tensors) == 2 && strcmp(sw_safetensors_at(tensors, 1)->name, "second") == 0);
    for (int i = 1; i >= 0; i--)
        CHECK_OK(sw_safetensors_read_f32(tensors, sw_safetensors_at(tensors, i), 0, 1, &values[i]));
    CHECK(values[0] == 1.5f && values[1] == 2.5f);
    sw_safetensors_close(tensors);
}

static void refuses_indexes_that_lie(void **state) {
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"{\"weight_map\":{\"first\":\"gone.safetensors\"}}", "names is missing, gone.safetensors"},
        {"{\"weight_map\":{\"first\":\"../a.safetensors\"}}", "no name of a file"},
        {"{\"weight_map\":{\"first\":\"/etc/passwd\"}}", "no name of a file"},
        {"{\"weight_map\":{\"first\":\"..\"}}", "no name of a file"},
        {"{\"weight_map\":{\"first\":\"\"}}", "no name of a file"},
        {"{\"weight_map\":{\"first\":7}}", "no name of a file"},
        {"{\"weight_map\":{\"third\":\"a.safetensors\"}}", "third is in a.safetensors, and it is not there"},
        {"{\"weight_map\":{\"first\":\"b.safetensors\",\"second\":\"a.safetensors\"}}", "it is not there"},
        {"{\"weight_map\":{\"first\":\"a.safetensors\",\"second\":\"copy.safetensors\"}}", "first is both in"},
        {"{\"weight_map\":{}}", "no weight_map"},
        {"{\"weight_map\":[]}", "no weight_map"},
        {"{}", "no weight_map"},
        {"[]", "not an object"},
        {"{\"weight_map\":{\"first\":\"a.safetensors\"}", "not JSON"},
        {"", "not JSON"},
    };
    write_shard(in_directory(*state, "a.safetensors"), "first", 1);
    write_shard(in_directory(*state, "b.safetensors"), "second", 1);
    write_shard(in_directory(*state, "copy.safetensors"), "first", 1);
    struct sw_safetensors *tensors;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_seed = i;
        write_index(*state, cases[i].index);
        CHECK_FAILS(sw_safetensors_open(*state, &tensors), SW_ERR_ARG, cases[i].words);
    }
    CHECK_FAILS(sw_safetensors_open(in_directory(*state, "nowhere"), &tensors), SW_ERR_ARG, "has neither");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trips_every_type, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_another_file_of_the_name, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(aligns_the_data, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(leaves_nothing_unfinished, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_to_write_what_cannot_be_read, make_directory, remove_directory),
        cmocka_unit_test(converts_fp16_exactly),
        cmocka_unit_test_setup_teardown(reads_shards_by_their_index, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_indexes_that_lie, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
