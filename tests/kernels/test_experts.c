/* Routing to experts, the order of rows by expert and the ops on such rows: every device, and the reference, against
 * other ways to compute the same. */
#include "tests/kernels/support.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_LEVELS = 3, ROUTINGS = 3 };

/* The kinds of logits that a test draws. */
enum logits { DRAWN, TIED, EQUAL, SPECIAL, LOGITS };

static const struct {
    int64_t rows, experts, chosen;
} routes[] = {{0, 3, 2},   {1, 1, 1},   {1, 4, 4},     {5, 8, 2},    {67, 128, 8},
              {9, 33, 32}, {2, 64, 32}, {3, 1024, 32}, {130, 60, 4}, {257, 5, 3}};

static struct sw_routing routing_of(size_t size, int kind) {
    return (struct sw_routing){.rows = routes[size].rows,
                               .experts = routes[size].experts,
                               .chosen = routes[size].chosen,
                               .softmax_first = kind > 0,
                               .normalised = kind > 1};
}

/* Every third row of SPECIAL has NaN, or an infinity, among its first, middle or last logits. */
static void plant(sw_dtype type, void *logits, const struct sw_routing *s) {
    static const float values[] = {NAN, -INFINITY, INFINITY};
    for (int64_t row = 0; row < s->rows; row += 3) {
        const int64_t at = row * s->experts;
        set_element(type, logits, at + row % 2 * (s->experts / 2), values[row / 3 % 3]);
        set_element(type, logits, at + s->experts - 1, values[row / 9 % 3]);
    }
}

static struct buffer logits_of(sw_dtype type, const struct sw_routing *s, enum logits kind) {
    struct buffer logits = buffer_random(type, s->rows * s->experts, 21, 2.0f);
    for (int64_t i = 0; i < s->rows * s->experts; i++) {
        const float drawn = element(type, logits.data, i);
        const float tied = rintf(fminf(fmaxf(drawn, -1.0f), FEW_LEVELS - 2));
        if (kind == TIED || kind == EQUAL)
            set_element(type, logits.data, i, kind == TIED ? tied : 0.5f);
    }
    if (kind == SPECIAL)
        plant(type, logits.data, s);
    return logits;
}

struct ranked {
    float logit;
    int64_t expert;
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (!isnan(x->logit) != !isnan(y->logit))
        return isnan(x->logit) ? 1 : -1;
    if (!isnan(x->logit) && x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* A row's softmax over all experts, and what follows from it by the definition of each routing. */
struct row {
    int64_t experts, chosen;
    int64_t expert[SW_MOST_EXPERTS]; /* by rank */
    double probability[SW_MOST_EXPERTS];
    double chosen_sum; /* of the chosen experts' probabilities */
};

static void solve_row(sw_dtype type, const struct sw_routing *s, const void *logits, int64_t index, struct row *row) {
    struct ranked ranked[SW_MOST_EXPERTS];
    double sum = 0.0;
    row->experts = s->experts;
    row->chosen = s->chosen;
    row->chosen_sum = 0.0;
    for (int64_t e = 0; e < s->experts; e++)
        ranked[e] = (struct ranked){element(type, logits, index * s->experts + e), e};
    qsort(ranked, (size_t)s->experts, sizeof ranked[0], by_rank);
    for (int64_t i = 0; i < s->experts; i++) {
        row->expert[i] = ranked[i].expert;
        row->probability[ranked[i].expert] = exp((double)ranked[i].logit - ranked[0].logit);
        sum += row->probability[ranked[i].expert];
    }
    for (int64_t e = 0; e < s->experts; e++)
        row->probability[e] /= sum;
    for (int64_t i = 0; i < s->chosen; i++)
        row->chosen_sum += row->probability[row->expert[i]];
}

static bool is_chosen(const struct row *row, int64_t expert) {
    bool found = false;
    for (int64_t i = 0; i < row->chosen; i++)
        found |= row->expert[i] == expert;
    return found;
}

static double weight_of(const struct sw_routing *s, const struct row *row, int64_t slot) {
    const double probability = row->probability[row->expert[slot]];
    return s->softmax_first && !s->normalised ? probability : probability / row->chosen_sum;
}

/* The derivative of a slot's weight by an expert's logit, by the quotient rule. */
static double derivative(const struct sw_routing *s, const struct row *row, int64_t slot, int64_t by) {
    const double p = row->probability[row->expert[slot]], q = row->probability[by], sum = row->chosen_sum;
    const double dp = p * ((row->expert[slot] == by) - q);
    const double dsum = is_chosen(row, by) ? q - sum * q : -sum * q;
    return s->softmax_first && !s->normalised ? dp : (dp * sum - p * dsum) / (sum * sum);
}

static void assert_value(const char *what, const char *label, int64_t row, int64_t at, double got, double want,
                         double tolerance) {
    const bool same = isnan(want) ? isnan(got) : fabs(got - want) <= tolerance * fabs(want) + 1e-6;
    if (!same)
        fail_msg("%s of row %lld at %lld on %s: %.9g instead of %.9g (seed %llu)", what, (long long)row, (long long)at,
                 label, got, want, (unsigned long long)test_seed());
}

static double tolerance_of(sw_dtype type) {
    return type == SW_F32 ? 2e-5 : type == SW_BF16 ? 0x1p-8 + 2e-5 : 0x1p-11 + 2e-5;
}

static void check_row(const char *label, sw_dtype type, const struct sw_routing *s, int64_t index,
                      const struct row *row, const int32_t *expert, const float *weight, const float *d_weight,
                      const void *d_logits) {
    for (int64_t slot = 0; slot < s->chosen; slot++) {
        if (expert[slot] != row->expert[slot])
            fail_msg("slot %lld of row %lld of %lld experts on %s: expert %d instead of %lld", (long long)slot,
                     (long long)index, (long long)s->experts, label, expert[slot], (long long)row->expert[slot]);
        assert_value("a weight", label, index, slot, weight[slot], weight_of(s, row, slot), 1e-5);
    }
    for (int64_t e = 0; e < s->experts; e++) {
        double want = 0.0;
        for (int64_t slot = 0; slot < s->chosen; slot++)
            want += d_weight[slot] * derivative(s, row, slot, e);
        if (!isnan(row->chosen_sum) || is_chosen(row, e))
            assert_value("a logit's gradient", label, index, e, element(type, d_logits, index * s->experts + e), want,
                         tolerance_of(type));
    }
}

static void check_routing(struct sw_stream *stream, const char *label, sw_dtype type, const struct sw_routing *s,
                          enum logits kind) {
    struct row *row = malloc(sizeof *row);
    struct buffer logits = logits_of(type, s, kind), d_logits = buffer_make(logits.bytes);
    struct buffer expert = buffer_make(s->rows * s->chosen * 4), weight = buffer_make(expert.bytes);
    struct buffer d_weight = buffer_random(SW_F32, s->rows * s->chosen, 22, 1.0f);
    assert_non_null(row);
    assert_ok(sw_route_forward(stream, type, s, logits.data, expert.data, weight.data));
    assert_ok(sw_route_backward(stream, .type = type, .shape = s, .logits = logits.data, .expert = expert.data,
                                .d_weight = d_weight.data, .d_logits = d_logits.data));
    for (int64_t i = 0; i < s->rows; i++) {
        const int64_t at = i * s->chosen;
        solve_row(type, s, logits.data, i, row);
        check_row(label, type, s, i, row, (int32_t *)expert.data + at, (float *)weight.data + at,
                  (float *)d_weight.data + at, d_logits.data);
    }
    struct buffer *all[] = {&logits, &d_logits, &expert, &weight, &d_weight};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    free(row);
}

static void check_routings(struct pair *pair) {
    for (size_t size = 0; size < sizeof routes / sizeof routes[0]; size++)
        for (int kind = 0; kind < ROUTINGS * LOGITS; kind++) {
            const struct sw_routing s = routing_of(size, kind % ROUTINGS);
            const sw_dtype type = test_types[(size + (size_t)kind) % TEST_TYPES];
            check_routing(pair->stream, pair->label, type, &s, (enum logits)(kind / ROUTINGS));
        }
}

static void routes_as_defined(void **state) {
    (void)state;
    for_each_device(check_routings);
}

/* A row's pairs and the experts that they went to. */
enum spread { ANY, FIRST_ONLY, LAST_ONLY, FEW, SPREADS };

static const struct {
    int64_t rows, experts, chosen;
} orders[] = {{0, 4, 2}, {1, 1, 1}, {7, 3, 2}, {64, 16, 4}, {1, 1024, 32}, {513, 128, 8}, {2049, 60, 4}};

static struct buffer experts_of(int64_t pairs, int64_t experts, enum spread spread) {
    struct buffer expert = buffer_make(pairs * 4);
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t drawn = (int64_t)(sw_rng_uniform(test_seed(), 31, (uint64_t)i) * (double)experts);
        ((int32_t *)expert.data)[i] = (int32_t)(spread == FIRST_ONLY  ? 0
                                                : spread == LAST_ONLY ? experts - 1
                                                : spread == FEW       ? drawn / 2 * 2
                                                                      : drawn);
    }
    return expert;
}

struct order {
    struct buffer expert, offset, source, place;
};

static struct order order_of(struct sw_stream *stream, int64_t rows, int64_t experts, int64_t chosen,
                             enum spread spread) {
    const int64_t pairs = rows * chosen;
    const struct order order = {.expert = experts_of(pairs, experts, spread),
                                .offset = buffer_make((experts + 1) * 4),
                                .source = buffer_make(pairs * 4),
                                .place = buffer_make(pairs * 4)};
    assert_ok(sw_order_by_expert(stream, rows, experts, chosen, order.expert.data, order.offset.data, order.source.data,
                                 order.place.data));
    return order;
}

static void free_order(struct order *order) {
    buffer_free(&order->expert);
    buffer_free(&order->offset);
    buffer_free(&order->source);
    buffer_free(&order->place);
}

/* The properties that define the order: places and pairs are each other's inverse, the pairs of an expert lie between
 * its offsets, and they rise. */
static void check_order(struct sw_stream *stream, size_t size, enum spread spread) {
    const int64_t experts = orders[size].experts, pairs = orders[size].rows * orders[size].chosen;
    struct order order = order_of(stream, orders[size].rows, experts, orders[size].chosen, spread);
    const int32_t *expert = order.expert.data, *offset = order.offset.data, *source = order.source.data,
                  *place = order.place.data;
    assert_int_equal(offset[0], 0);
    assert_int_equal(offset[experts], pairs);
    for (int64_t e = 0; e < experts; e++) {
        assert_true(offset[e] <= offset[e + 1]);
        for (int32_t i = offset[e]; i < offset[e + 1]; i++) {
            assert_true(source[i] >= 0 && source[i] < pairs);
            assert_int_equal(expert[source[i]], e);
            assert_int_equal(place[source[i]], i);
            assert_true(i == offset[e] || source[i] > source[i - 1]);
        }
    }
    free_order(&order);
}

static void check_orders(struct pair *pair) {
    for (size_t size = 0; size < sizeof orders / sizeof orders[0]; size++)
        for (int spread = 0; spread < SPREADS; spread++)
            check_order(pair->stream, size, (enum spread)spread);
}

static void orders_by_expert(void **state) {
    (void)state;
    for_each_device(check_orders);
}

enum { TALLY_LAYERS = 3, TALLY_MICROS = 2 };

/* The routing of one layer, and the buffers of its ops. */
struct layer {
    struct sw_routing shape;
    struct buffer logits, expert, weight, offset, source, place, routed;
};

static struct layer layer_of(struct pair *pair, sw_dtype type, const struct sw_routing *s, int number) {
    const int64_t pairs = s->rows * s->chosen;
    struct layer layer = {.shape = *s,
                          .logits = buffer_random(type, s->rows * s->experts, 61 + (uint64_t)number, 2.0f),
                          .expert = buffer_make(pairs * 4),
                          .weight = buffer_make(pairs * 4),
                          .offset = buffer_make((s->experts + 1) * 4),
                          .source = buffer_make(pairs * 4),
                          .place = buffer_make(pairs * 4),
                          .routed = buffer_make(s->experts * 8)};
    assert_ok(sw_route_forward(pair->stream, type, s, layer.logits.data, layer.expert.data, layer.weight.data));
    assert_ok(sw_order_by_expert(pair->stream, s->rows, s->experts, s->chosen, layer.expert.data, layer.offset.data,
                                 layer.source.data, layer.place.data));
    return layer;
}

static void free_layer(struct layer *layer) {
    struct buffer *all[] = {&layer->logits, &layer->expert, &layer->weight, &layer->offset,
                            &layer->source, &layer->place,  &layer->routed};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

/* The sums that the definition gives for all rows of all layers. */
struct sums {
    double count[SW_MOST_EXPERTS], probability[SW_MOST_EXPERTS], log_squares;
};

/* Returns the logarithm of the softmax's denominator. */
static double log_sum_of(sw_dtype type, const struct layer *layer, int64_t row) {
    double sum = 0.0;
    for (int64_t e = 0; e < layer->shape.experts; e++)
        sum += exp(element(type, layer->logits.data, row * layer->shape.experts + e));
    return log(sum);
}

static struct sums sums_of(sw_dtype type, const struct layer *layer, int layers) {
    struct sums sums = {.log_squares = 0.0};
    struct row row;
    for (int i = 0; i < layers * (int)layer->shape.rows; i++) {
        const struct layer *of = &layer[i % layers];
        solve_row(type, &of->shape, of->logits.data, i / layers, &row);
        for (int64_t slot = 0; slot < of->shape.chosen; slot++)
            sums.count[row.expert[slot]] += 1.0;
        for (int64_t e = 0; e < of->shape.experts; e++)
            sums.probability[e] += row.probability[e];
        sums.log_squares += pow(log_sum_of(type, of, i / layers), 2.0);
    }
    return sums;
}

/* Compares the gradient of both losses, alone and added to that of the weights, with the derivatives of the softmax. */
static void check_loss_gradient(struct pair *pair, sw_dtype type, const struct layer *layer, void *count) {
    const struct sw_routing *s = &layer->shape;
    const double balance = 0.03, z = -0.2;
    struct buffer none = buffer_make(s->rows * s->chosen * 4),
                  d_weight = buffer_random(SW_F32, s->rows * s->chosen, 22, 1);
    struct buffer alone = buffer_make(layer->logits.bytes), plain = buffer_make(alone.bytes);
    struct buffer both = buffer_make(alone.bytes);
    struct row row;
    memset(none.data, 0, (size_t)none.bytes);
    struct sw_route_backward op = {.type = type,
                                   .shape = s,
                                   .logits = layer->logits.data,
                                   .expert = layer->expert.data,
                                   .d_weight = d_weight.data,
                                   .d_logits = plain.data};
    assert_ok(sw_device_run(pair->stream, SW_DEVICE_ROUTE_BACKWARD, &op));
    op.count = count;
    op.balance = balance;
    op.z = z;
    op.d_logits = both.data;
    assert_ok(sw_device_run(pair->stream, SW_DEVICE_ROUTE_BACKWARD, &op));
    op.d_weight = none.data;
    op.d_logits = alone.data;
    assert_ok(sw_device_run(pair->stream, SW_DEVICE_ROUTE_BACKWARD, &op));
    for (int64_t i = 0; i < s->rows; i++) {
        solve_row(type, s, layer->logits.data, i, &row);
        for (int64_t e = 0; e < s->experts; e++) {
            const int64_t at = i * s->experts + e;
            double want = z * 2.0 * log_sum_of(type, layer, i) * row.probability[e];
            for (int64_t f = 0; f < s->experts; f++)
                want += balance * ((double *)count)[f] * row.probability[f] * ((f == e) - row.probability[e]);
            assert_value("a logit's gradient by the losses", pair->label, i, e, element(type, alone.data, at), want,
                         tolerance_of(type));
            if (type == SW_F32)
                assert_value("a logit's gradient", pair->label, i, e, element(type, both.data, at),
                             want + element(type, plain.data, at), 1e-5);
        }
    }
    struct buffer *all[] = {&none, &d_weight, &alone, &plain, &both};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

/* Tallies the layers of two micro-batches with the same rows. */
static void check_tally(struct pair *pair, sw_dtype type, const struct sw_routing *s) {
    struct layer layer[TALLY_LAYERS];
    struct buffer count = buffer_make(s->experts * 8), sum = buffer_make((s->experts + 1) * 8);
    struct buffer losses = buffer_make(2 * 8), scratch = buffer_make(sw_tally_scratch_bytes(s));
    const double rows = (double)(s->rows * TALLY_LAYERS);
    double balance = 0.0;
    for (int l = 0; l < TALLY_LAYERS; l++)
        layer[l] = layer_of(pair, type, s, l);
    for (int i = 0; i < TALLY_MICROS * TALLY_LAYERS; i++) {
        const struct layer *at = &layer[i % TALLY_LAYERS];
        assert_ok(sw_tally_routing(pair->stream, .type = type, .shape = s, .layers = TALLY_LAYERS,
                                   .first_layer = at == layer, .last_layer = at + 1 == layer + TALLY_LAYERS,
                                   .first_micro = i < TALLY_LAYERS, .logits = at->logits.data,
                                   .offset = at->offset.data, .routed = at->routed.data, .count = count.data,
                                   .sum = sum.data, .losses = losses.data, .scratch = scratch.data));
    }
    const struct sums want = sums_of(type, layer, TALLY_LAYERS);
    for (int64_t e = 0; e < s->experts; e++) {
        double routed = 0.0;
        for (int l = 0; l < TALLY_LAYERS; l++)
            routed += ((double *)layer[l].routed.data)[e];
        assert_value("a count", pair->label, 0, e, ((double *)count.data)[e], want.count[e], 0.0);
        assert_value("a step's count", pair->label, 0, e, routed, TALLY_MICROS * want.count[e], 0.0);
        assert_value("a sum", pair->label, 0, e, ((double *)sum.data)[e], want.probability[e], 1e-5);
        balance += want.count[e] * want.probability[e];
    }
    const double *loss = losses.data;
    assert_value("the balance", pair->label, 0, 0, loss[0], TALLY_MICROS * balance * (double)s->experts / rows / rows,
                 1e-5);
    assert_value("the z-loss", pair->label, 0, 0, loss[1], TALLY_MICROS * want.log_squares / rows, 1e-5);
    check_loss_gradient(pair, type, &layer[1], count.data);
    /* Counts alone. */
    assert_ok(sw_tally_routing(pair->stream, .type = type, .shape = s, .layers = 1, .first_micro = true,
                               .logits = layer[0].logits.data, .offset = layer[0].offset.data,
                               .routed = layer[1].routed.data));
    for (int64_t e = 0; e < s->experts; e++)
        assert_value("a count alone", pair->label, 0, e, TALLY_MICROS * ((double *)layer[1].routed.data)[e],
                     ((double *)layer[0].routed.data)[e], 0.0);
    for (int l = 0; l < TALLY_LAYERS; l++)
        free_layer(&layer[l]);
    struct buffer *all[] = {&count, &sum, &losses, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void check_tallies(struct pair *pair) {
    for (size_t size = 0; size < sizeof routes / sizeof routes[0]; size++)
        if (routes[size].rows > 0) {
            const struct sw_routing s = routing_of(size, (int)size % ROUTINGS);
            check_tally(pair, test_types[size % TEST_TYPES], &s);
        }
}

static void tallies_routings(void **state) {
    (void)state;
    for_each_device(check_tallies);
}

static const struct {
    int64_t rows, cols, chosen;
} moves[] = {{0, 3, 2}, {1, 1, 1}, {5, 7, 2}, {3, 16, 4}, {67, 65, 8}, {9, 1031, 3}, {130, 256, 2}, {2, 2056, 32}};
enum { MOVE_EXPERTS = 32 };

/* Adds rows up in one call, or in a call for each of `cuts` + 1 runs of experts, which hand a sum on. */
static void add_in_runs(struct pair *pair, const struct sw_unpermute_rows *all, const int32_t *offset, size_t cuts) {
    const int64_t runs = (int64_t)cuts + 1, step = MOVE_EXPERTS / runs;
    struct buffer sums = buffer_make(all->rows * all->cols * 4);
    for (int64_t i = 0; i < runs; i++) {
        const int64_t run = all->falling ? runs - 1 - i : i;
        const bool begins = i == 0, ends = i + 1 == runs;
        struct sw_unpermute_rows part = *all;
        part.addend = (all->falling ? ends : begins) ? all->addend : NULL;
        part.before = begins ? NULL : sums.data;
        part.after = ends ? NULL : sums.data;
        part.y = ends ? all->y : NULL;
        if (cuts > 0) {
            part.run.first = offset + run * step;
            part.run.end = offset + (run + 1 == runs ? MOVE_EXPERTS : (run + 1) * step);
        }
        assert_ok(sw_device_run(pair->stream, SW_DEVICE_UNPERMUTE_ROWS, &part));
    }
    buffer_free(&sums);
}

/* Each result by a loop over tokens and slots. */
static void check_moves(struct pair *pair, sw_dtype type, size_t size, bool adds) {
    const int64_t rows = moves[size].rows, cols = moves[size].cols, chosen = moves[size].chosen;
    const int64_t row_bytes = cols * sw_dtype_bytes(type);
    struct order order = order_of(pair->ref, rows, MOVE_EXPERTS, chosen, ANY);
    const int32_t *place = order.place.data;
    struct buffer x = buffer_random(type, rows * cols, 41, 1.0f), y = buffer_make(rows * chosen * row_bytes);
    struct buffer sum = adds ? buffer_random(type, rows * cols, 42, 1.0f) : buffer_make(x.bytes);
    struct buffer before = buffer_copy(&sum);
    assert_ok(sw_permute_rows(pair->stream, type, rows, cols, chosen, order.source.data, x.data, y.data, SW_ALL_ROWS));
    for (int64_t pair_index = 0; pair_index < rows * chosen; pair_index++)
        assert_memory_equal((char *)y.data + place[pair_index] * row_bytes,
                            (char *)x.data + pair_index / chosen * row_bytes, (size_t)row_bytes);
    struct buffer terms = buffer_random(type, rows * chosen * cols, 43, 1.0f);
    const bool falling = size % 2 == 1;
    add_in_runs(pair,
                &(struct sw_unpermute_rows){.type = type,
                                            .rows = rows,
                                            .cols = cols,
                                            .chosen = chosen,
                                            .place = order.place.data,
                                            .x = terms.data,
                                            .addend = adds ? sum.data : NULL,
                                            .y = sum.data,
                                            .falling = falling},
                order.offset.data, size % 3);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float addend = adds ? element(type, before.data, i) : 0.0f;
        float want = falling ? 0.0f : addend;
        for (int64_t p = 0; p < rows * chosen; p++) {
            const int64_t at = falling ? rows * chosen - 1 - p : p;
            if (((int32_t *)order.source.data)[at] / chosen == i / cols)
                want += element(type, terms.data, at * cols + i % cols);
        }
        set_element(type, before.data, i, falling ? want + addend : want);
    }
    assert_same_bits("a sum over places", pair, sum.bytes, sum.data, before.data);
    struct buffer *all[] = {&x, &y, &sum, &before, &terms};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    free_order(&order);
}

static void check_scales(struct pair *pair, sw_dtype type, size_t size, bool in_place) {
    const int64_t pairs = moves[size].rows * moves[size].chosen, cols = moves[size].cols;
    struct order order = order_of(pair->ref, moves[size].rows, MOVE_EXPERTS, moves[size].chosen, ANY);
    const int32_t *source = order.source.data;
    struct buffer x = buffer_random(type, pairs * cols, 51, 1.0f), dy = buffer_random(type, pairs * cols, 52, 1.0f);
    struct buffer weight = buffer_random(SW_F32, pairs, 53, 1.0f), d_weight = buffer_make(pairs * 4);
    struct buffer x_before = buffer_copy(&x), dy_before = buffer_copy(&dy);
    struct buffer y = buffer_make(x.bytes), dx = buffer_make(x.bytes);
    void *const y_at = in_place ? x.data : y.data, *const dx_at = in_place ? dy.data : dx.data;
    assert_ok(sw_scale_rows_backward(pair->stream, type, pairs, cols, order.source.data, weight.data, x.data, dy.data,
                                     dx_at, d_weight.data, SW_ALL_ROWS));
    assert_ok(
        sw_scale_rows(pair->stream, type, pairs, cols, order.source.data, weight.data, x.data, y_at, SW_ALL_ROWS));
    for (int64_t row = 0; row < pairs; row++) {
        const float factor = ((float *)weight.data)[source[row]];
        double sum = 0.0;
        for (int64_t at = row * cols; at < (row + 1) * cols; at++) {
            const float value = element(type, x_before.data, at), gradient = element(type, dy_before.data, at);
            sum += (double)value * gradient;
            set_element(type, x_before.data, at, factor * value);
            set_element(type, dy_before.data, at, factor * gradient);
        }
        assert_near("a weight's gradient", row, ((float *)d_weight.data)[source[row]], sum, 4e-6 * sqrt((double)cols));
    }
    assert_same_bits("scaled rows", pair, x.bytes, y_at, x_before.data);
    assert_same_bits("the gradient of scaled rows", pair, x.bytes, dx_at, dy_before.data);
    struct buffer *all[] = {&x, &dy, &weight, &d_weight, &x_before, &dy_before, &y, &dx};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    free_order(&order);
}

static void check_all_rows(struct pair *pair) {
    for (size_t size = 0; size < sizeof moves / sizeof moves[0]; size++)
        for (int i = 0; i < 2 * TEST_TYPES; i++) {
            check_moves(pair, test_types[i % TEST_TYPES], size, i >= TEST_TYPES);
            check_scales(pair, test_types[i % TEST_TYPES], size, i >= TEST_TYPES);
        }
}

static void moves_and_scales_rows(void **state) {
    (void)state;
    for_each_device(check_all_rows);
}

/* The reference's own results, which the other tests of a device take for given. */
static void reference_as_defined(void **state) {
    struct pair pair = {.label = "the reference"};
    (void)state;
    assert_ok(sw_device_open("ref", 1, &pair.device));
    assert_ok(sw_stream_open(pair.device, &pair.stream));
    pair.ref = pair.stream;
    check_routings(&pair);
    check_orders(&pair);
    check_all_rows(&pair);
    check_tallies(&pair);
    sw_stream_close(pair.stream);
    sw_device_close(pair.device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(routes_as_defined), cmocka_unit_test(orders_by_expert),
                                            cmocka_unit_test(moves_and_scales_rows),
                                            cmocka_unit_test(tallies_routings)};
    const struct CMUnitTest others[] = {cmocka_unit_test(reference_as_defined)};
    return RUN_TESTS(on_devices, others);
}
