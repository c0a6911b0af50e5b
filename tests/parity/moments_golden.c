/* Moments in 8 bits against the nearest numbers of bitsandbytes' map and torch.optim.AdamW on the widened moments.
 * moments.py makes the golden file; README.md says what is in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "kernels/moments.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = SW_MOMENT_BLOCK_ELEMS, BLOCKS = 16, ELEMS = 2 * BLOCK, CODES = 256 };

/* The share of codes that may differ: those whose two neighbours are as near but for rounding errors. */
#define TIES 0.002
/* Parameters, and moments but for codes at a tie, differ by rounding errors of the two maps. */
#define RELATIVE_TOLERANCE 1e-5
#define ABSOLUTE_TOLERANCE 1e-7

static json_t *golden;

static double item(const char *key, int64_t index) {
    const json_t *value = json_array_get(json_object_get(golden, key), (size_t)index);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static uint64_t splitmix64(uint64_t state) {
    uint64_t z = state + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static float value_at(int64_t step, int64_t index, uint64_t octaves) {
    const uint64_t bits = splitmix64(((uint64_t)step << 32) + (uint64_t)index);
    const float size = ldexpf((float)(bits >> 40) * 0x1p-24f, -(int)((bits >> 8) % octaves));
    return bits & 1 ? -size : size;
}

static void *zeroed(int64_t bytes) {
    void *memory = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)bytes);
    assert_non_null(memory);
    return memset(memory, 0, (size_t)bytes);
}

static void numbers_are_those_of_the_published_map(void **state) {
    (void)state;
    char *record = zeroed(sw_optimizer_grain_bytes(SW_OPTIMIZER_8BIT));
    const struct sw_record_parts parts = sw_record_parts(SW_OPTIMIZER_8BIT, false, record);
    float m[BLOCK], v[BLOCK];
    for (int code = 0; code < CODES; code++)
        parts.m[code] = parts.v[code] = (char)code;
    parts.m_scale[0] = parts.v_scale[0] = 1.0f;
    sw_moments_widen(SW_OPTIMIZER_8BIT, &parts, 0, m, v);
    for (int code = 0; code < CODES; code++) {
        const double want_m = item("signed", code), want_v = item("unsigned", code);
        assert_true(fabs(m[(code + CODES - 127) % CODES] - want_m) <= 2.4e-7 * fabs(want_m));
        assert_true(fabs(v[code] - want_v) <= 2.4e-7 * want_v);
    }
    free(record);
}

/* The nearest number to a small v may be 0, by which the update would divide; here it has code 1. */
static void codes_are_the_nearest_ones(void **state) {
    (void)state;
    char *record = zeroed(sw_optimizer_grain_bytes(SW_OPTIMIZER_8BIT));
    const struct sw_record_parts parts = sw_record_parts(SW_OPTIMIZER_8BIT, false, record);
    const struct sw_moment_rounding how = {.rounding = SW_ROUND_NEAREST};
    int differ = 0;
    for (int64_t block = 0; block < BLOCKS; block++) {
        float m[BLOCK], v[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            m[i] = value_at(1000, block * BLOCK + i, 22);
            v[i] = fabsf(m[i]);
        }
        sw_moments_round(SW_OPTIMIZER_8BIT, &how, block * BLOCK, m, v, &parts);
        assert_true(fabs(parts.m_scale[block] - item("m_scales", block)) <= 1e-8 * parts.m_scale[block]);
        assert_true(fabs(parts.v_scale[block] - item("v_scales", block)) <= 1e-8 * parts.v_scale[block]);
        for (int i = 0; i < BLOCK; i++) {
            const int at = (int)block * BLOCK + i;
            const int m_code = (int)item("m_codes", at) - 127, v_code = (int)item("v_codes", at);
            const int want_v = v_code == 0 && v[i] > 0.0f ? 1 : v_code;
            const int off_m = (int8_t)((uint8_t)parts.m[at] - m_code), off_v = (uint8_t)parts.v[at] - want_v;
            assert_true(abs(off_m) <= 1 && abs(off_v) <= 1);
            differ += (off_m != 0) + (off_v != 0);
        }
    }
    print_message("# %d of %d codes are the other neighbour at a tie\n", differ, 2 * BLOCKS * BLOCK);
    assert_true(differ <= TIES * 2 * BLOCKS * BLOCK);
    free(record);
}

static double relative_error(double got, double want) {
    return fmax(0.0, fabs(got - want) - ABSOLUTE_TOLERANCE) / fmax(fabs(want), 1e-30);
}

static void fifty_steps_follow_torch(const char *device_name) {
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_int_equal(sw_device_open(device_name, 1, &device), SW_OK);
    assert_int_equal(sw_stream_open(device, &stream), SW_OK);
    char *record = zeroed(sw_optimizer_grain_bytes(SW_OPTIMIZER_8BIT));
    float *grads = zeroed(SW_GRAIN_ELEMS * 4), *weights = zeroed(SW_GRAIN_ELEMS * 4);
    float *fp32 = zeroed(sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32));
    const struct sw_decay_run run = {.end = SW_GRAIN_ELEMS, .decay = true};
    struct sw_adamw adamw = {.lr = json_number_value(json_object_get(golden, "lr")),
                             .beta1 = json_number_value(json_object_get(golden, "beta1")),
                             .beta2 = json_number_value(json_object_get(golden, "beta2")),
                             .eps = json_number_value(json_object_get(golden, "eps")),
                             .weight_decay = json_number_value(json_object_get(golden, "weight_decay")),
                             .grad_scale = 1.0f};
    for (int i = 0; i < ELEMS; i++)
        ((float *)record)[i] = value_at(0, i, 4);
    for (adamw.step = 1; adamw.step <= json_integer_value(json_object_get(golden, "steps")); adamw.step++) {
        for (int i = 0; i < ELEMS; i++)
            grads[i] = value_at(adamw.step, i, 6);
        assert_int_equal(sw_update_adamw(stream, .type = SW_F32, .adamw = &adamw, .grains = 1, .runs = &run,
                                         .run_count = 1, .grads = grads, .records = record, .weights = weights,
                                         .format = SW_OPTIMIZER_8BIT, .wide_elem = SW_GRAIN_ELEMS),
                         SW_OK);
    }
    assert_int_equal(sw_stream_synchronize(stream), SW_OK);
    sw_record_to_fp32(SW_OPTIMIZER_8BIT, false, record, fp32);
    int differ = 0;
    double worst = 0.0;
    for (int i = 0; i < ELEMS; i++) {
        const double p = relative_error(fp32[i], item("p", i));
        const bool same = relative_error(fp32[SW_GRAIN_ELEMS + i], item("m", i)) <= RELATIVE_TOLERANCE &&
                          relative_error(fp32[2 * SW_GRAIN_ELEMS + i], item("v", i)) <= RELATIVE_TOLERANCE;
        differ += !same;
        worst = same ? fmax(worst, p) : worst;
    }
    print_message("# %s: %d of %d elements took another neighbour at a tie; parameters of the rest within %.1e\n",
                  device_name, differ, ELEMS, worst);
    assert_true(differ <= 0.02 * ELEMS && worst <= RELATIVE_TOLERANCE);
    free(record);
    free(grads);
    free(weights);
    free(fp32);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void fifty_steps(void **state) {
    (void)state;
    fifty_steps_follow_torch("ref");
    fifty_steps_follow_torch("cpu");
}

int main(void) {
    const char *folder = getenv("SW_TEST_DATA");
    char path[4096];
    snprintf(path, sizeof path, "%s/moments.json", folder ? folder : "tests/data");
    json_error_t error;
    golden = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (golden == NULL) {
        print_error("%s:%d: %s\n", path, error.line, error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_those_of_the_published_map),
                                       cmocka_unit_test(codes_are_the_nearest_ones), cmocka_unit_test(fifty_steps)};
    const int failed = cmocka_run_group_tests_name("moments_golden", tests, NULL, NULL);
    json_decref(golden);
    return failed;
}
