/* The head of a model that trains on pairs (arXiv 2305.18290), against the paper's formula in double: the losses of
 * sequences, the scores of pairs, and the gradients along random directions. Whole, with a cut vocabulary and with
 * logits of parts of a tile. */
#include "tests/equipment/support.h"
#include "tests/model/head.h"

#include "core/rng.h"
#include "core/size.h"

#include <math.h>

enum { BATCH = 6, VOCAB = 1300, ROWS = BATCH * SEQ, ABSENT = 4, DIRECTIONS = 3 };
#define BETA 0.3
#define EPSILON 1e-5
#define SEED 41

/* The arguments of the loss: the input, the norm's scale and bias, and the table. */
enum part { INPUT, SCALE, BIAS, TABLE, PARTS };
static const int64_t elems[PARTS] = {
    [INPUT] = (int64_t)ROWS * HIDDEN, [SCALE] = HIDDEN, [BIAS] = HIDDEN, [TABLE] = (int64_t)VOCAB * HIDDEN};

struct problem {
    double *value[PARTS];
    int32_t target[ROWS];
    double reference[BATCH];
};

struct answer {
    double sums[BATCH], scores[SW_PAIR_SUMS];
    float *grad[PARTS];
};

static void *take(int64_t bytes) {
    void *at = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES));
    assert_non_null(at);
    memset(at, 0, (size_t)bytes);
    return at;
}

/* Sequences of other lengths: prompts and padding have no loss. The pair of sequence ABSENT is none. */
static struct problem *make_problem(void) {
    struct problem *p = take(sizeof *p);
    for (int part = 0; part < PARTS; part++) {
        p->value[part] = take(elems[part] * (int64_t)sizeof(double));
        for (int64_t i = 0; i < elems[part]; i++)
            p->value[part][i] =
                (double)((part == SCALE ? 1.0f : 0.0f) +
                         (part == INPUT ? 1.0f : 0.2f) * sw_rng_normal(SEED, (uint64_t)part, (uint64_t)i));
    }
    for (int64_t r = 0; r < ROWS; r++) {
        const int64_t sequence = r / SEQ, position = r % SEQ;
        const bool learns = position >= 3 + sequence && position < SEQ - 4 * sequence;
        p->target[r] = learns ? (int32_t)(sw_rng(SEED, PARTS, (uint64_t)r).word[0] % VOCAB) : -1;
    }
    for (int s = 0; s < BATCH; s++)
        p->reference[s] = -200.0 + 3.0 * s * (s % 2);
    p->reference[ABSENT] = NAN;
    return p;
}

static void free_problem(struct problem *p) {
    for (int part = 0; part < PARTS; part++)
        free(p->value[part]);
    free(p);
}

static double row_loss(const struct problem *p, int64_t row) {
    const double *x = p->value[INPUT] + row * HIDDEN;
    double mean = 0.0, variance = 0.0, sum = 0.0, wanted = 0.0, normed[HIDDEN];
    for (int i = 0; i < HIDDEN; i++)
        mean += x[i] / HIDDEN;
    for (int i = 0; i < HIDDEN; i++)
        variance += (x[i] - mean) * (x[i] - mean) / HIDDEN;
    for (int i = 0; i < HIDDEN; i++)
        normed[i] = (x[i] - mean) / sqrt(variance + EPSILON) * p->value[SCALE][i] + p->value[BIAS][i];
    for (int64_t v = 0; v < VOCAB; v++) {
        double logit = 0.0;
        for (int i = 0; i < HIDDEN; i++)
            logit += normed[i] * p->value[TABLE][v * HIDDEN + i];
        sum += exp(logit);
        wanted = v == p->target[row] ? logit : wanted;
    }
    return log(sum) - wanted;
}

/* Computes the losses of sequences and the sums over pairs, by the paper's formula. */
static void reference_of(const struct problem *p, double sums[BATCH], double scores[SW_PAIR_SUMS]) {
    memset(sums, 0, BATCH * sizeof *sums);
    memset(scores, 0, SW_PAIR_SUMS * sizeof *scores);
    for (int64_t r = 0; r < ROWS; r++)
        sums[r / SEQ] += p->target[r] >= 0 ? row_loss(p, r) : 0.0;
    for (int s = 0; s < BATCH; s += 2) {
        const double chosen = -sums[s] - p->reference[s], rejected = -sums[s + 1] - p->reference[s + 1];
        if (s == ABSENT)
            continue;
        scores[SW_PAIR_LOSS] += -log(1.0 / (1.0 + exp(-BETA * (chosen - rejected))));
        scores[SW_PAIR_CHOSEN] += BETA * chosen;
        scores[SW_PAIR_REJECTED] += BETA * rejected;
        scores[SW_PAIR_RIGHT] += chosen > rejected;
    }
}

static void put_weights(const struct problem *p, const struct sw_unit *unit, float *weights) {
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const enum part part = tensor->dims == 2 ? TABLE : (t == 0 ? SCALE : BIAS);
        for (int64_t i = 0; i < tensor->elems; i++)
            weights[tensor->offset + i] = (float)p->value[part][i];
    }
}

static void take_gradients(const struct sw_unit *unit, const float *acc, struct answer *out) {
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const enum part part = tensor->dims == 2 ? TABLE : (t == 0 ? SCALE : BIAS);
        memcpy(out->grad[part], acc + tensor->offset, (size_t)tensor->elems * sizeof *acc);
    }
}

/* Runs the head; its loss pass alone must give the same sums. The table is the head's own. */
static void run_head(const struct problem *p, const struct tiling *tiling, struct answer *out) {
    const struct sw_model_config config = config_of(VOCAB, false);
    const struct sw_model_shape shape = {.type = SW_F32,
                                         .batch = BATCH,
                                         .seq = SEQ,
                                         .dpo_beta = BETA,
                                         .head_tile_bytes = tiling->tile_bytes,
                                         .head_logits_apart = tiling->apart};
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_model *model;
    double alone[BATCH];
    support_expect_ok(sw_device_open("cpu", 2, &device), "preparing");
    support_expect_ok(sw_stream_open(device, &stream), "preparing");
    support_expect_ok(sw_model_create(&config, &shape, device, &model), "preparing");
    const struct sw_unit *unit = &sw_model_get_units(model)->unit[HEAD_UNIT];
    const struct sw_unit_ops ops = sw_model_ops(model);
    float *weights = take(unit->elems * 4), *acc = take(unit->elems * 4), *input = take(elems[INPUT] * 4);
    int32_t *tokens = take(sw_model_bytes(model).token);
    void *work = take(sw_model_bytes(model).work);
    assert_int_equal(sw_model_bytes(model).pair_sequences, BATCH);
    put_weights(p, unit, weights);
    for (int64_t i = 0; i < elems[INPUT]; i++)
        input[i] = (float)p->value[INPUT][i];
    memcpy(sw_model_tokens(model, tokens).targets, p->target, sizeof p->target);
    memcpy(sw_model_reference(model, tokens), p->reference, sizeof p->reference);
    for (int part = 0; part < PARTS; part++)
        out->grad[part] = take(elems[part] * 4);
    struct sw_unit_call call = {.stream = stream,
                                .unit = HEAD_UNIT,
                                .weights = weights,
                                .tokens = tokens,
                                .in = input,
                                .grad = out->grad[INPUT],
                                .acc = acc,
                                .work = work,
                                .loss = alone,
                                .loss_scale = 1.0f};
    support_expect_ok(ops.loss(ops.context, &call), "losses alone");
    call.loss = out->sums;
    support_expect_ok(ops.head(ops.context, &call), "losses and gradients");
    assert_memory_equal(alone, out->sums, sizeof alone);
    memset(out->scores, 0, sizeof out->scores);
    ops.score(ops.context, tokens, out->sums, out->scores);
    take_gradients(unit, acc, out);
    free(weights);
    free(acc);
    free(input);
    free(tokens);
    free(work);
    sw_model_destroy(model);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void must_be_near(const char *what, int index, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s %d is %.12g, and should be %.12g", what, index, got, want);
}

/* Compares the derivative along a direction with a quotient of differences. Directions of the input are those of one
 * sequence each, so that each one's scale is seen. */
static void check_direction(struct problem *p, const struct answer *found, enum part part, int number) {
    const double step = 1e-4;
    double got = 0.0, above[SW_PAIR_SUMS], below[SW_PAIR_SUMS], sums[BATCH];
    double *before = take(elems[part] * (int64_t)sizeof *before);
    memcpy(before, p->value[part], (size_t)elems[part] * sizeof *before);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int64_t i = 0; i < elems[part]; i++) {
            const bool moves = part != INPUT || i / HIDDEN / SEQ == number;
            const double way =
                moves ? (double)sw_rng_normal(SEED + 1, (uint64_t)(number * PARTS + (int)part), (uint64_t)i) : 0.0;
            p->value[part][i] = before[i] + sign * step * way;
            got += sign > 0 ? way * (double)found->grad[part][i] : 0.0;
        }
        reference_of(p, sums, sign > 0 ? above : below);
    }
    memcpy(p->value[part], before, (size_t)elems[part] * sizeof *before);
    free(before);
    const double want = (above[SW_PAIR_LOSS] - below[SW_PAIR_LOSS]) / (2.0 * step);
    if (part == INPUT && number / 2 == ABSENT / 2)
        assert_true(want == 0.0 && got == 0.0);
    must_be_near("derivative of part", (int)part, got, want, 1e-4 * fabs(want) + 1e-6);
}

static void check(const struct tiling *tiling) {
    struct problem *p = make_problem();
    struct answer found;
    double sums[BATCH], scores[SW_PAIR_SUMS];
    run_head(p, tiling, &found);
    reference_of(p, sums, scores);
    for (int s = 0; s < BATCH; s++)
        must_be_near("loss of sequence", s, found.sums[s], sums[s], 1e-6 * sums[s]);
    for (int i = 0; i < SW_PAIR_SUMS; i++)
        must_be_near("sum over pairs", i, found.scores[i], scores[i], 2e-6 * (1.0 + fabs(scores[i])) * 200.0 * BETA);
    for (int part = 0; part < PARTS; part++)
        for (int number = 0; number < (part == INPUT ? BATCH : DIRECTIONS); number++)
            check_direction(p, &found, (enum part)part, number);
    for (int part = 0; part < PARTS; part++)
        free(found.grad[part]);
    free_problem(p);
}

static void whole_rows(void **state) {
    (void)state;
    check(&(struct tiling){.tile_bytes = 4 * SW_GIB});
}

static void a_cut_vocabulary(void **state) {
    (void)state;
    check(&(struct tiling){.tile_bytes = INT64_C(48) * 512 * 8});
}

static void parts_of_a_tile(void **state) {
    (void)state;
    check(&(struct tiling){.tile_bytes = INT64_C(1344) * (32 + 64) * 4, .apart = true});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_rows), cmocka_unit_test(a_cut_vocabulary),
                                       cmocka_unit_test(parts_of_a_tile)};
    return cmocka_run_group_tests_name("preference", tests, NULL, NULL);
}
