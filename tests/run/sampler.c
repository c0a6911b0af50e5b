/* Choosing tokens: which may be chosen, how often each is, and that the same question has the same answer. */
#include "tests/equipment/support.h"

#include "run/inference/inference.h"

#include <jansson.h>
#include <math.h>

enum { VOCAB = 6, DRAWS = 20000 };
/* Probabilities at temperature 1, of tokens 0 to 5: neither sorted nor all different. */
static const double probability[VOCAB] = {0.1, 0.4, 0.05, 0.25, 0.1, 0.1};
/* Six standard deviations of the commonest of DRAWS frequencies. */
#define TOLERANCE 0.021

static void fill_logits(float logits[VOCAB]) {
    for (int t = 0; t < VOCAB; t++)
        logits[t] = (float)log(probability[t]) + 3.0f;
}

static struct sw_sampler *open_sampler(double temperature, int64_t top_k, double top_p, uint64_t seed) {
    const struct sw_sampler_spec spec = {
        .vocab = VOCAB, .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
    struct sw_sampler *sampler = NULL;
    assert_int_equal(sw_sampler_create(&spec, &sampler), SW_OK);
    return sampler;
}

/* How often each token is chosen must be as expected, and never where that is 0. */
static void check_frequencies(double temperature, int64_t top_k, double top_p, const double expected[VOCAB]) {
    struct sw_sampler *sampler = open_sampler(temperature, top_k, top_p, 11);
    float logits[VOCAB];
    int64_t chosen[VOCAB] = {0};
    fill_logits(logits);
    for (uint64_t place = 0; place < DRAWS; place++)
        chosen[sw_sampler_choose(sampler, logits, place)]++;
    for (int t = 0; t < VOCAB; t++) {
        const double frequency = (double)chosen[t] / DRAWS;
        if (fabs(frequency - expected[t]) > TOLERANCE || (expected[t] == 0 && chosen[t] > 0))
            fail_msg("temperature %g, top_k %lld, top_p %g: token %d in %.4f of draws instead of %.4f", temperature,
                     (long long)top_k, top_p, t, frequency, expected[t]);
    }
    sw_sampler_destroy(sampler);
}

/* With probabilities of 0.4, 0.25 and less, a share of 0.5 keeps two tokens, and one of 1 keeps the best alone. */
static void min_p_drops_the_improbable(void **state) {
    (void)state;
    const struct {
        double min_p;
        int chosen[VOCAB];
    } cases[] = {
        {0.5, {0, 1, 0, 1, 0, 0}}, {1, {0, 1, 0, 0, 0, 0}}, {0.2, {1, 1, 0, 1, 1, 1}}, {0, {1, 1, 1, 1, 1, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct sw_sampler_spec spec = {
            .vocab = VOCAB, .temperature = 1, .top_p = 1, .min_p = cases[i].min_p, .seed = 3};
        struct sw_sampler *sampler;
        float logits[VOCAB];
        int chosen[VOCAB] = {0};
        assert_int_equal(sw_sampler_create(&spec, &sampler), SW_OK);
        fill_logits(logits);
        for (uint64_t place = 0; place < 1000; place++)
            chosen[sw_sampler_choose(sampler, logits, place)] = 1;
        assert_memory_equal(chosen, cases[i].chosen, sizeof chosen);
        sw_sampler_destroy(sampler);
    }
}

enum { MOST_TOKENS = 16, CASE_DRAWS = 4000 };
#define CASE_TOLERANCE 0.05
#define SURELY_DRAWN 0.01

static double number_of(const json_t *from, const char *name) {
    return json_number_value(json_object_get(from, name));
}

static void check_case(const json_t *from, size_t number) {
    const json_t *logits = json_object_get(from, "logits"), *expected = json_object_get(from, "probabilities");
    const struct sw_sampler_spec spec = {.vocab = (int64_t)json_array_size(logits),
                                         .temperature = number_of(from, "temperature"),
                                         .top_k = (int64_t)number_of(from, "top_k"),
                                         .top_p = number_of(from, "top_p"),
                                         .min_p = number_of(from, "min_p"),
                                         .seed = 7};
    float values[MOST_TOKENS];
    int64_t chosen[MOST_TOKENS] = {0};
    struct sw_sampler *sampler;
    assert_true(spec.vocab > 0 && spec.vocab <= MOST_TOKENS);
    for (size_t t = 0; t < (size_t)spec.vocab; t++)
        values[t] = (float)json_number_value(json_array_get(logits, t));
    assert_int_equal(sw_sampler_create(&spec, &sampler), SW_OK);
    for (uint64_t place = 0; place < CASE_DRAWS; place++)
        chosen[sw_sampler_choose(sampler, values, place)]++;
    for (size_t t = 0; t < (size_t)spec.vocab; t++) {
        const double frequency = (double)chosen[t] / CASE_DRAWS,
                     wanted = json_number_value(json_array_get(expected, t));
        if (fabs(frequency - wanted) > CASE_TOLERANCE || (wanted == 0 && chosen[t] > 0) ||
            (wanted > SURELY_DRAWN && chosen[t] == 0))
            fail_msg("case %zu: token %zu in %.4f of draws instead of %.4f", number, t, frequency, wanted);
    }
    sw_sampler_destroy(sampler);
}

static void scaled(double temperature, double out[VOCAB]) {
    double total = 0;
    for (int t = 0; t < VOCAB; t++)
        total += out[t] = pow(probability[t], 1 / temperature);
    for (int t = 0; t < VOCAB; t++)
        out[t] /= total;
}

static void temperature_sharpens_and_flattens(void **state) {
    (void)state;
    const double temperatures[] = {1, 0.5, 2, 100};
    for (int i = 0; i < 4; i++) {
        double expected[VOCAB];
        scaled(temperatures[i], expected);
        check_frequencies(temperatures[i], 0, 1, expected);
    }
    check_frequencies(0, 0, 1, (const double[VOCAB]){0, 1, 0, 0, 0, 0});
    check_frequencies(1e-4, 0, 1, (const double[VOCAB]){0, 1, 0, 0, 0, 0});
}

static void top_k_keeps_the_most_likely(void **state) {
    (void)state;
    check_frequencies(1, 1, 1, (const double[VOCAB]){0, 1, 0, 0, 0, 0});
    check_frequencies(1, 2, 1, (const double[VOCAB]){0, 0.4 / 0.65, 0, 0.25 / 0.65, 0, 0});
    /* All that equal the last one stay. */
    check_frequencies(1, 3, 1, (const double[VOCAB]){0.1 / 0.95, 0.4 / 0.95, 0, 0.25 / 0.95, 0.1 / 0.95, 0.1 / 0.95});
    check_frequencies(1, VOCAB, 1, probability);
    check_frequencies(1, 1000, 1, probability);
}

/* The least set that reaches the probability; of what top_k has left. */
static void top_p_keeps_the_nucleus(void **state) {
    (void)state;
    check_frequencies(1, 0, 0.0001, (const double[VOCAB]){0, 1, 0, 0, 0, 0});
    check_frequencies(1, 0, 0.39, (const double[VOCAB]){0, 1, 0, 0, 0, 0});
    check_frequencies(1, 0, 0.41, (const double[VOCAB]){0, 0.4 / 0.65, 0, 0.25 / 0.65, 0, 0});
    /* On either side of the probability of two tokens, 0.65. */
    check_frequencies(1, 0, 0.6499, (const double[VOCAB]){0, 0.4 / 0.65, 0, 0.25 / 0.65, 0, 0});
    check_frequencies(1, 0, 0.6501, (const double[VOCAB]){0, 0.4 / 0.75, 0, 0.25 / 0.75, 0, 0.1 / 0.75});
    /* The higher token comes first among equals. */
    check_frequencies(1, 0, 0.7, (const double[VOCAB]){0, 0.4 / 0.75, 0, 0.25 / 0.75, 0, 0.1 / 0.75});
    check_frequencies(1, 0, 0.96, probability);
    check_frequencies(1, 2, 0.6, (const double[VOCAB]){0, 1, 0, 0, 0, 0});
}

/* The probabilities that the warpers of transformers leave, in the order of its generate(). tools/golden.py
 * makes the file. */
static void filters_as_transformers_does(void **state) {
    (void)state;
    char path[SUPPORT_PATH_CHARS];
    snprintf(path, sizeof path, "%s/sampler.json", getenv("SW_TEST_DATA"));
    json_t *cases = json_load_file(path, 0, NULL);
    assert_true(json_array_size(cases) > 0);
    for (size_t c = 0; c < json_array_size(cases); c++)
        check_case(json_array_get(cases, c), c);
    json_decref(cases);
}

static void is_a_function_of_seed_and_place(void **state) {
    (void)state;
    struct sw_sampler *a = open_sampler(1, 0, 1, 5), *b = open_sampler(1, 0, 1, 5), *c = open_sampler(1, 0, 1, 6);
    float logits[VOCAB];
    int differs = 0, moves = 0;
    fill_logits(logits);
    for (uint64_t place = 0; place < 200; place++) {
        const int32_t first = sw_sampler_choose(a, logits, place);
        /* Whatever was asked before. */
        sw_sampler_choose(b, logits, 1000 - place);
        assert_int_equal(sw_sampler_choose(b, logits, place), first);
        differs += sw_sampler_choose(c, logits, place) != first;
        moves += sw_sampler_choose(a, logits, place + 1) != first;
    }
    assert_true(differs > 50 && moves > 50);
    sw_sampler_destroy(a);
    sw_sampler_destroy(b);
    sw_sampler_destroy(c);
}

/* Logits far beyond what an exponential can hold. */
static void bears_large_logits(void **state) {
    (void)state;
    struct sw_sampler *sampler = open_sampler(0.01, 0, 0.9, 1);
    const float logits[VOCAB] = {-3e38f, 1e38f, -1e38f, 3e38f, 0, 3e38f};
    for (uint64_t place = 0; place < 100; place++) {
        const int32_t token = sw_sampler_choose(sampler, logits, place);
        assert_true(token == 3 || token == 5);
    }
    sw_sampler_destroy(sampler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_sharpens_and_flattens),
        cmocka_unit_test(min_p_drops_the_improbable),
        cmocka_unit_test(top_k_keeps_the_most_likely),
        cmocka_unit_test(top_p_keeps_the_nucleus),
        cmocka_unit_test(filters_as_transformers_does),
        cmocka_unit_test(is_a_function_of_seed_and_place),
        cmocka_unit_test(bears_large_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
