/* Packed sequences against each of their documents alone: the loss and the gradient of every parameter are the same,
 * for learned and for rotary positions, windows, whole blocks and tiles. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/size.h"

/* Sequences, and the most documents that one of them has. */
enum { SEQ = 24, BATCH = 2, SEQUENCES = 6, PACKED = 3, TOKEN_STREAM = 5 };
/* fp32: another order of sums. */
#define LOSS_TOLERANCE 5e-7     /* relative */
#define GRADIENT_TOLERANCE 3e-6 /* of a unit's norm */
/* The least error of a training that ignores documents: how far the test sees. */
#define GRADIENT_UNLIKE 1e-2

/* Lengths of the documents of each sequence; 0: no more. The last goes on with the sequence's last target. */
static const int64_t lengths[SEQUENCES][PACKED] = {{4, 20}, {1, 23}, {10, 14}, {5, 5, 14}, {8, 8, 8}, {23, 1}};

static int32_t token_of(int64_t vocab, int64_t sequence, int64_t t) {
    return (int32_t)(sw_rng(SAME_SEED, TOKEN_STREAM, (uint64_t)(sequence * (SEQ + 1) + t)).word[0] % (uint64_t)vocab);
}

/* Writes a document's tokens to the front of a row, and returns how many targets it has. */
static int64_t put_document(int64_t vocab, int64_t sequence, int64_t first, int64_t length, struct sw_tokens to) {
    int64_t targets = 0;
    for (int64_t t = 0; t < length; t++) {
        const bool ends = t + 1 == length && first + length < SEQ;
        to.inputs[t] = token_of(vocab, sequence, first + t);
        to.targets[t] = ends ? -1 : token_of(vocab, sequence, first + t + 1);
        targets += !ends;
    }
    return targets;
}

/* The tokens of a row of the whole step. */
static struct sw_tokens row_of(struct harness *harness, int64_t row) {
    int32_t *tokens = sw_engine_tokens(harness->engine, row / BATCH);
    return sw_tokens_from(sw_model_tokens(harness->model, tokens), row % BATCH * SEQ);
}

/* Each sequence in a row. */
static int64_t fill_packed(struct harness *harness, bool tell) {
    int64_t targets = 0;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const struct sw_tokens row = row_of(harness, s);
        for (int64_t d = 0, first = 0; d < PACKED; first += lengths[s][d++]) {
            targets += put_document(harness->spec.config->vocab, s, first, lengths[s][d], sw_tokens_from(row, first));
            for (int64_t t = first; t < first + lengths[s][d]; t++)
                row.document_start[t] = tell ? (int32_t)first : 0;
        }
    }
    return targets;
}

/* Each document in a row, with nothing that counts behind it. */
static int64_t fill_alone(struct harness *harness) {
    int64_t targets = 0, row = 0;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        for (int64_t d = 0, first = 0; d < PACKED && lengths[s][d] > 0; first += lengths[s][d++]) {
            const struct sw_tokens to = row_of(harness, row++);
            memset(to.inputs, 0, SEQ * sizeof *to.inputs);
            memset(to.targets, -1, SEQ * sizeof *to.targets);
            targets += put_document(harness->spec.config->vocab, s, first, lengths[s][d], to);
        }
    }
    assert_true(row == harness->spec.micro_batches * BATCH);
    return targets;
}

typedef enum { PACKED_DOCUMENTS, PACKED_UNTOLD, ALONE } packing;

struct outcome {
    double loss;
    int64_t tokens, elems;
    float *grads;
};

static int64_t count_documents(void) {
    int64_t count = 0;
    for (int64_t s = 0; s < SEQUENCES; s++)
        for (int64_t d = 0; d < PACKED; d++)
            count += lengths[s][d] > 0;
    return count;
}

static void train(const struct harness_spec *of, packing how, struct outcome *out) {
    struct harness_spec spec = *of;
    struct harness harness;
    struct sw_step_result result;
    spec.shape.batch = BATCH;
    spec.shape.documents = how != ALONE;
    spec.micro_batches = sw_div_up(how == ALONE ? count_documents() : SEQUENCES, BATCH);
    must(harness_open(&spec, &harness));
    out->tokens = how == ALONE ? fill_alone(&harness) : fill_packed(&harness, how == PACKED_DOCUMENTS);
    const struct sw_step_input input = {
        .kind = SW_STEP_TRAIN, .step = 1, .adamw = harness_adamw(1), .loss_tokens = out->tokens};
    must(sw_engine_begin(harness.engine, &input));
    must(sw_engine_wait(harness.engine, &result));
    out->loss = result.loss_sum / (double)out->tokens;
    out->elems = harness_grains(&harness) * SW_GRAIN_ELEMS;
    out->grads = malloc((size_t)out->elems * sizeof *out->grads);
    assert_non_null(out->grads);
    must(harness_read_grads(&harness, out->grads));
    harness_close(&harness);
}

static double gradient_error(const struct outcome *a, const struct outcome *b) {
    double distance = 0, norm = 0;
    assert_int_equal(a->elems, b->elems);
    for (int64_t e = 0; e < a->elems; e++) {
        distance += ((double)a->grads[e] - b->grads[e]) * ((double)a->grads[e] - b->grads[e]);
        norm += (double)a->grads[e] * a->grads[e];
    }
    return sqrt(distance / norm);
}

static void compare(const char *what, const struct harness_spec *spec) {
    struct outcome alone, packed, untold;
    train(spec, ALONE, &alone);
    train(spec, PACKED_DOCUMENTS, &packed);
    train(spec, PACKED_UNTOLD, &untold);
    assert_int_equal(packed.tokens, alone.tokens);
    const double loss = fabs(packed.loss - alone.loss) / alone.loss, gradients = gradient_error(&alone, &packed);
    const double unlike = gradient_error(&alone, &untold);
    printf("# %s: the loss differs by %.1e, gradients by %.1e; without documents by %.1e\n", what, loss, gradients,
           unlike);
    if (!(loss <= LOSS_TOLERANCE && gradients <= GRADIENT_TOLERANCE))
        fail_msg("%s: the loss differs by %g, gradients by %g (seed %d)", what, loss, gradients, SAME_SEED);
    if (!(unlike >= GRADIENT_UNLIKE))
        fail_msg("%s: sequences that are not told their documents differ by %g only", what, unlike);
    free(alone.grads);
    free(packed.grads);
    free(untold.grads);
}

static struct harness_spec spec_of(const struct sw_model_config *config, const char *place) {
    struct harness_spec spec = same_spec(SW_F32);
    spec.config = config;
    spec.place = place;
    return spec;
}

static void learned_positions_begin_anew(void **state) {
    (void)state;
    const struct harness_spec spec = spec_of(&same_config, "grads=device,optimizer=device");
    compare("learned positions", &spec);
}

/* Only the rows that the tokens name go to the device. */
static void gathered_positions_begin_anew(void **state) {
    (void)state;
    struct sw_model_config config = same_config;
    config.tied_embeddings = false;
    const struct harness_spec spec = spec_of(&config, "weights=host,grads=host,optimizer=host");
    compare("learned positions, gathered", &spec);
}

static void rotary_positions_are_relative(void **state) {
    (void)state;
    const struct harness_spec spec = spec_of(&same_rotary_config, "grads=host,optimizer=host");
    compare("rotary positions with windows", &spec);
}

static void tiles_keep_documents(void **state) {
    (void)state;
    struct harness_spec spec = spec_of(&same_config, "weights=host,grads=host,optimizer=host");
    spec.shape.tiles = same_config.heads;
    spec.recompute = SW_RECOMPUTE_UNIT;
    compare("tiles", &spec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learned_positions_begin_anew),
        cmocka_unit_test(gathered_positions_begin_anew),
        cmocka_unit_test(rotary_positions_are_relative),
        cmocka_unit_test(tiles_keep_documents),
    };
    return cmocka_run_group_tests_name("e2e documents", tests, NULL, NULL);
}
