/* The emulation shows the mistakes that kernels can have: a kernel with one planted does not pass as a whole one does.
 */
#include "tests/kernels/support.h"

#include "tests/equipment/cuda/machine.h"
#include "tests/kernels/fragment_products.h"
#include "tests/kernels/planted.h"

#include <string.h>

enum { SEEDS = 20 };

/* Returns whether the values came out reversed, no byte beside them changed, and no error was recorded. */
static bool passes(planted_mistake mistake, uint64_t seed, const char **error) {
    struct buffer from = buffer_random(SW_F32, PLANTED_ELEMS, 1, 1.0f), to = buffer_make(from.bytes);
    sw_emulation_set_seed(seed);
    planted_reverse(mistake, from.data, to.data);
    *error = sw_emulation_take_error();
    bool same = *error == NULL && buffer_guards_hold(&to);
    for (int i = 0; i < PLANTED_ELEMS; i++)
        same = same && ((float *)to.data)[i] == ((float *)from.data)[PLANTED_ELEMS - 1 - i];
    buffer_free(&from);
    buffer_free_unchecked(&to);
    return same;
}

static void whole(void **state) {
    (void)state;
    const char *error = NULL;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        assert_true(passes(PLANT_NOTHING, seed, &error));
}

/* Some mistakes are errors of the machine, which say what; others make wrong values. */
static void mistakes(void **state) {
    (void)state;
    static const struct {
        planted_mistake mistake;
        const char *says;
    } cases[] = {{PLANT_NO_BARRIER, NULL},
                 {PLANT_PARTED_BARRIER, "wait at the barrier"},
                 {PLANT_PARTED_WARP, "for their warp"},
                 {PLANT_WRONG_INDEX, NULL},
                 {PLANT_WRONG_SHARED_INDEX, "beyond its shared memory"},
                 {PLANT_MISALIGNED, "not aligned"},
                 {PLANT_NO_WAIT, "did not wait for"},
                 {PLANT_TOO_MANY_THREADS, "a block of 2048 x 1 x 1 threads"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            const char *error = NULL;
            if (passes(cases[i].mistake, seed, &error))
                fail_msg("planted mistake %d was not seen with seed %llu", (int)cases[i].mistake,
                         (unsigned long long)seed);
            if (cases[i].says != NULL && (error == NULL || strstr(error, cases[i].says) == NULL))
                fail_msg("planted mistake %d is told as: %s", (int)cases[i].mistake, error == NULL ? "nothing" : error);
        }
    }
}

/* An error ends its launch only. */
static void goes_on(void **state) {
    (void)state;
    const char *error = NULL;
    assert_false(passes(PLANT_PARTED_BARRIER, 1, &error));
    assert_non_null(error);
    assert_true(passes(PLANT_NOTHING, 1, &error));
}

/* Small whole numbers, so that every way gives the exact product. */
static void fill(float *values, int factor) {
    for (int i = 0; i < FRAGMENT_ELEMS; i++)
        values[i] = (float)(i * factor % 17 - 8);
}

static void fragments(void **state) {
    (void)state;
    float a[FRAGMENT_ELEMS], b[FRAGMENT_ELEMS], c[FRAGMENT_ELEMS];
    fill(a, 7);
    fill(b, 11);
    for (fragment_product how = PRODUCT_BF16; how <= PRODUCT_SHUFFLES; how++) {
        for (int rows_of_b = 0; rows_of_b < 2; rows_of_b++) {
            fragment_multiply(how, rows_of_b, a, b, c);
            assert_null(sw_emulation_take_error());
            for (int i = 0; i < FRAGMENT_ELEMS; i++) {
                const int row = i / FRAGMENT_SIDE, column = i % FRAGMENT_SIDE;
                float want = 0.0f;
                for (int k = 0; k < FRAGMENT_SIDE; k++)
                    want += a[row * FRAGMENT_SIDE + k] *
                            b[rows_of_b ? column * FRAGMENT_SIDE + k : k * FRAGMENT_SIDE + column];
                if (c[i] != want)
                    fail_msg("product %d, element %d %d: %g, and should be %g", (int)how, row, column, (double)c[i],
                             (double)want);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole), cmocka_unit_test(mistakes), cmocka_unit_test(goes_on),
                                       cmocka_unit_test(fragments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
