/* safetensors headers that are damaged or made to hurt: each is refused by a sentence that names the file. */
#include "tests/io/support.h"

#include "io/safetensors/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DATA_BYTES = 16, MAX_FILE_BYTES = 4096, MUTATIONS = 3000 };

/* Writes length, header and data bytes as DIR/model.safetensors. */
static void write_model(const char *folder, uint64_t length, const char *header, int64_t header_bytes,
                        int64_t data_bytes) {
    const int64_t bytes = 8 + header_bytes + data_bytes;
    unsigned char *file = calloc(1, (size_t)bytes);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(length >> (8 * i));
    memcpy(file + 8, header, (size_t)header_bytes);
    write_file(in_directory(folder, "model.safetensors"), file, bytes);
    free(file);
}

static void write_header(const char *folder, const char *header) {
    write_model(folder, strlen(header), header, (int64_t)strlen(header), DATA_BYTES);
}

static void check_refused(const char *folder, const char *words) {
    struct sw_safetensors *tensors;
    const sw_status status = sw_safetensors_open(folder, &tensors);
    CHECK(status == SW_OK || strstr(sw_error_message(status), "model.safetensors") != NULL);
    CHECK_FAILS(status, SW_ERR_ARG, words);
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define PAIR(first, second)                                                                                            \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" first                                                  \
    "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" second "}}"

static const struct {
    const char *header, *words;
} hostile[] = {
    {ONE("F32", "[4]", "[0,17]"), "a lies outside the file"},
    {ONE("F32", "[4]", "[-16,0]"), "a lies outside the file"},
    {ONE("F32", "[4]", "[16,0]"), "a lies outside the file"},
    {ONE("F32", "[4]", "[0,9223372036854775807]"), "a lies outside the file"},
    {ONE("F32", "[4]", "[0,9223372036854775808]"), "two whole numbers"},
    {ONE("F32", "[4]", "[0]"), "a needs data_offsets"},
    {ONE("F32", "[4]", "[0,8,16]"), "a needs data_offsets"},
    {ONE("F32", "[4]", "[0.0,16.0]"), "a needs data_offsets"},
    {ONE("F32", "[4]", "\"0,16\""), "a needs data_offsets"},
    {ONE("F32", "[3]", "[0,16]"), "a has 16 bytes, and its shape and type need 12"},
    {ONE("F64", "[3]", "[0,16]"), "its shape and type need 24"},
    {ONE("F32", "[-4]", "[0,16]"), "a has an impossible shape"},
    {ONE("F32", "[4294967296,4294967296,4]", "[0,16]"), "a has an impossible shape"},
    {ONE("F32", "[9223372036854775807,2]", "[0,16]"), "a has an impossible shape"},
    {ONE("F32", "[4.5]", "[0,16]"), "a has an impossible shape"},
    {ONE("F32", "[\"4\"]", "[0,16]"), "a has an impossible shape"},
    {ONE("F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), "at most 8 dimensions"},
    {ONE("F32", "4", "[0,16]"), "a needs a shape"},
    {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "a has no dtype"},
    {"{\"a\":{\"dtype\":3,\"shape\":[4],\"data_offsets\":[0,16]}}", "a has no dtype"},
    {"{\"a\":[]}", "a has no dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "a needs a shape"},
    {PAIR("[0,8]", "[4,12]"), "tensor b begins at byte 4 of the data, and the one before it ends at 8"},
    {PAIR("[0,8]", "[0,8]"), "begins at byte 0 of the data, and the one before it ends at 8"},
    {PAIR("[0,8]", "[8,16]") " x", "not JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "a begins at byte 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     "has 16 bytes of data, and its tensors end at 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_"
     "offsets\":"
     "[0,16]}}",
     "two members of one name"},
    {"{}", "its tensors end at 0"},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", "its tensors end at 0"},
    {"[]", "not an object"},
    {"", "not JSON"},
    {"{\"a\":", "not JSON"},
    {"{\"\xff\":1}", "not JSON"},
    {"{\"a\\u0000b\":1}", "U+0000"},
    {"null", "not JSON"},
};

static void refuses_hostile_headers(void **state) {
    for (test_seed = 0; test_seed < sizeof hostile / sizeof hostile[0]; test_seed++) {
        write_header(*state, hostile[test_seed].header);
        check_refused(*state, hostile[test_seed].words);
    }
}

#define EMPTY_AND_META                                                                                                 \
    "{\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"__metadata__\":{\"format\":\"pt\"},"            \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}"

static void accepts_what_is_well_formed(void **state) {
    static const char *const headers[] = {
        ONE("F32", "[4]", "[0,16]"),
        ONE("F32", "[2,2]", "[0,16]") "      ",
        PAIR("[8,16]", "[0,8]"),
        EMPTY_AND_META,
        ONE("F4_FUTURE", "[32]", "[0,16]"),
        ONE("I64", "[2]", "[0,16]"),
    };
    struct sw_safetensors *tensors;
    for (test_seed = 0; test_seed < sizeof headers / sizeof headers[0]; test_seed++) {
        write_header(*state, headers[test_seed]);
        CHECK_OK(sw_safetensors_open(*state, &tensors));
        CHECK(sw_safetensors_find(tensors, "a") != NULL);
        sw_safetensors_close(tensors);
    }
    float values[2];
    CHECK_OK(sw_safetensors_open(*state, &tensors));
    CHECK_FAILS(sw_safetensors_read_f32(tensors, sw_safetensors_find(tensors, "a"), 0, 2, values), SW_ERR_UNSUPPORTED,
                "tensor a has a type other than");
    sw_safetensors_close(tensors);
}

static void refuses_wrong_lengths(void **state) {
    const char *header = ONE("F32", "[4]", "[0,16]");
    const int64_t bytes = (int64_t)strlen(header);
    const uint64_t lengths[] = {(uint64_t)bytes + DATA_BYTES + 1, 100000001, INT64_MAX, UINT64_MAX, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_model(*state, lengths[i], header, bytes, DATA_BYTES);
        check_refused(*state, "says that its header has");
    }
    write_model(*state, (uint64_t)bytes - 1, header, bytes, DATA_BYTES);
    check_refused(*state, "not JSON");
    write_model(*state, (uint64_t)bytes, header, bytes, DATA_BYTES - 1);
    check_refused(*state, "truncated");
    write_model(*state, (uint64_t)bytes, header, bytes, DATA_BYTES + 1);
    check_refused(*state, "has 17 bytes of data");
    write_file(in_directory(*state, "model.safetensors"), "1234567", 7);
    check_refused(*state, "has 7 bytes and is no safetensors file");
}

static char *repeated(const char *text, int64_t times) {
    const size_t bytes = strlen(text);
    char *out = malloc(bytes * (size_t)times + 1);
    for (int64_t i = 0; i < times; i++)
        memcpy(out + bytes * (size_t)i, text, bytes + 1);
    return out;
}

static void bounds_what_parsing_takes(void **state) {
    char *values = repeated("[", 9000000), *deep = repeated("[", 100000), *name = repeated("n", 300);
    char header[MAX_FILE_BYTES];
    write_header(*state, values);
    check_refused(*state, "more than 8388608 values");
    write_header(*state, deep);
    check_refused(*state, "512 levels");
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", name);
    write_header(*state, header);
    check_refused(*state, "300 characters");
    free(values);
    free(deep);
    free(name);
}

static void names_a_file_cut_while_open(void **state) {
    write_header(*state, ONE("F32", "[4]", "[0,16]"));
    struct sw_safetensors *tensors;
    float values[4];
    CHECK_OK(sw_safetensors_open(*state, &tensors));
    CHECK(truncate(in_directory(*state, "model.safetensors"), 0) == 0);
    CHECK_FAILS(sw_safetensors_read_f32(tensors, sw_safetensors_at(tensors, 0), 0, 4, values), SW_ERR_CORRUPT,
                "while reading tensor a");
    sw_safetensors_close(tensors);
}

/* Random damage to a good file: opened or refused, and whatever opens can be read. */
static void bears_random_damage(void **state) {
    static const char nasty[] = "{}[]\",:0123456789-eE.\\ntf\xff";
    const char *good = PAIR("[0,8]", "[8,16]");
    float values[DATA_BYTES];
    for (test_seed = 1; test_seed <= MUTATIONS; test_seed++) {
        uint64_t draws = 0;
        char header[256];
        snprintf(header, sizeof header, "%s", good);
        const int64_t bytes = (int64_t)strlen(header);
        for (int64_t changes = 1 + random_below(&draws, 4); changes > 0; changes--)
            header[random_below(&draws, bytes)] = nasty[random_below(&draws, (int64_t)sizeof nasty - 1)];
        write_model(*state, (uint64_t)bytes, header, bytes, DATA_BYTES);
        struct sw_safetensors *tensors;
        if (sw_safetensors_open(*state, &tensors) == SW_OK) {
            for (int64_t i = 0; i < sw_safetensors_count(tensors); i++) {
                const struct sw_safetensor *tensor = sw_safetensors_at(tensors, i);
                CHECK(!tensor->supported || tensor->elems <= DATA_BYTES / 2);
                if (tensor->supported)
                    CHECK_OK(sw_safetensors_read_f32(tensors, tensor, 0, tensor->elems, values));
            }
            sw_safetensors_close(tensors);
        }
        sw_error_clear();
    }
}

/* Where one size is 0, the others may be any numbers. */
static void every_shape_has_room_in_a_message(void **state) {
    (void)state;
    static const int64_t shape[SW_SAFETENSORS_MAX_DIMS] = {0,          INT64_MAX, INT64_MAX, INT64_MAX,
                                                           1234567890, INT64_MAX, INT64_MAX, INT64_MAX};
    char text[SW_SHAPE_CHARS];
    sw_shape_text(SW_SAFETENSORS_MAX_DIMS, shape, text);
    CHECK(strcmp(text, "[0, 9223372036854775807, 9223372036854775807, 9223372036854775807, 1234567890, "
                       "9223372036854775807, 9223372036854775807, 9223372036854775807]") == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refuses_hostile_headers, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(accepts_what_is_well_formed, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_wrong_lengths, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(bounds_what_parsing_takes, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_a_file_cut_while_open, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(bears_random_damage, make_directory, remove_directory),
        cmocka_unit_test(every_shape_has_room_in_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
