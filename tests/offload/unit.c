/* Units: tensors at aligned offsets, padding to whole grains, decay runs that cover every element, sizes that do not
 * overflow. */
#include "offload/plan/unit.h"

#include "tests/equipment/must.h"

#include <string.h>

static void add(struct sw_unit *unit, const char *name, int64_t rows, int64_t cols, bool decay) {
    must(sw_unit_add_tensor(unit, name, cols > 0 ? 2 : 1, (int64_t[]){rows, cols}, decay));
}

static void tensors_are_aligned_and_units_end_with_a_grain(void **state) {
    (void)state;
    struct sw_units *units;
    must(sw_units_create(3, &units));
    add(&units->unit[0], "table", 100, 7, true);
    add(&units->unit[0], "positions", 65, 0, false);
    add(&units->unit[1], "whole", SW_GRAIN_ELEMS, 0, false);
    add(&units->unit[2], "one", 1, 0, true);
    add(&units->unit[2], "much", SW_GRAIN_ELEMS, 2, true);
    must(sw_units_seal(units));
    assert_int_equal(units->unit[0].tensor[0].offset, 0);
    assert_int_equal(units->unit[0].tensor[0].elems, 700);
    assert_int_equal(units->unit[0].tensor[1].offset, 704);
    assert_int_equal(units->unit[0].elems, SW_GRAIN_ELEMS);
    assert_int_equal(units->unit[0].grains, 1);
    assert_int_equal(units->unit[1].grains, 1);
    assert_int_equal(units->unit[2].tensor[1].offset, SW_TENSOR_ALIGN_ELEMS);
    assert_int_equal(units->unit[2].grains, 3);
    assert_int_equal(units->unit[2].elems, 3 * SW_GRAIN_ELEMS);
    assert_int_equal(sw_units_parameters(units), 700 + 65 + SW_GRAIN_ELEMS + 1 + 2 * SW_GRAIN_ELEMS);
    sw_units_destroy(units);
}

/* The decay of an element, looked up in the runs. */
static bool decays(const struct sw_unit *unit, int64_t element) {
    for (int64_t r = 0; r < unit->run_count; r++)
        if (element < unit->run[r].end)
            return unit->run[r].decay;
    fail_msg("element %lld lies in no run", (long long)element);
    return false;
}

static void decay_runs_agree_with_the_tensors(void **state) {
    (void)state;
    static const bool decay[] = {true, true, false, false, true, false};
    enum { TENSORS = sizeof decay / sizeof decay[0] };
    struct sw_units *units;
    must(sw_units_create(3, &units));
    for (int u = 0; u < 3; u++)
        for (int t = 0; t < TENSORS - u; t++)
            add(&units->unit[u], "tensor", 1000 * (t + 1) + u, 0, decay[t]);
    must(sw_units_seal(units));
    for (int u = 0; u < 3; u++) {
        const struct sw_unit *unit = &units->unit[u];
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            assert_int_equal(decays(unit, unit->tensor[t].offset), unit->tensor[t].decay);
            assert_int_equal(decays(unit, unit->tensor[t].offset + unit->tensor[t].elems - 1), unit->tensor[t].decay);
        }
        assert_int_equal(unit->run[unit->run_count - 1].end, unit->elems);
        for (int64_t r = 1; r < unit->run_count; r++) {
            assert_true(unit->run[r].end > unit->run[r - 1].end);
            assert_true(unit->run[r].decay != unit->run[r - 1].decay);
        }
    }
    assert_int_equal(units->unit[0].run_count, 4);
    sw_units_destroy(units);
}

/* Where the optimizer state is narrow, vectors lie in wide grains behind all other tensors, joined ones together and
 * none across the used part of a wide grain; long vectors lie among the others. In fp32 nothing moves. */
static void vectors_of_narrow_state_lie_in_wide_grains(void **state) {
    (void)state;
    enum { TENSORS = 9, JOINED = 6 };
    static const struct {
        int64_t rows, cols, narrow_offset;
    } tensors[TENSORS] = {{1000, 0, 2 * SW_GRAIN_ELEMS},
                          {100, 7, 0},
                          {SW_WIDE_GRAIN_ELEMS, 0, 3 * SW_GRAIN_ELEMS},
                          {SW_WIDE_GRAIN_ELEMS + 1, 0, 704},
                          {SW_GRAIN_ELEMS / 2, 2, 704 + SW_WIDE_GRAIN_ELEMS + 64},
                          {8000, 0, 4 * SW_GRAIN_ELEMS},
                          {192, 0, 4 * SW_GRAIN_ELEMS + 8000},
                          {65, 0, 5 * SW_GRAIN_ELEMS},
                          {3, 0, 5 * SW_GRAIN_ELEMS + 128}};
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++) {
        struct sw_units *units;
        must(sw_units_create(1, &units));
        struct sw_unit *unit = &units->unit[0];
        units->optimizer = (sw_optimizer_format)format;
        for (int t = 0; t < TENSORS; t++) {
            const int64_t dims = tensors[t].cols > 0 ? 2 : 1, cols = dims > 1 ? tensors[t].cols : tensors[t].rows;
            const struct sw_part part = {.rows = dims > 1 ? tensors[t].rows : 1,
                                         .cols = cols,
                                         .block_cols = cols,
                                         .block_stride = cols,
                                         .joined = t == JOINED};
            must(sw_unit_add_part(unit, "tensor", (int)dims, (int64_t[]){tensors[t].rows, cols}, &part, t % 2 == 0));
        }
        must(sw_units_seal(units));
        const bool narrow = format != SW_OPTIMIZER_FP32;
        assert_int_equal(unit->wide_grain, narrow ? 2 : unit->grains);
        assert_int_equal(unit->grains, narrow ? 6 : 3);
        for (int t = 0; t < TENSORS; t++) {
            const struct sw_tensor *tensor = &unit->tensor[t];
            assert_true(!narrow || tensor->offset == tensors[t].narrow_offset);
            assert_true(narrow || t == 0 || tensor->offset > tensor[-1].offset);
            assert_int_equal(decays(unit, tensor->offset), tensor->decay);
            assert_int_equal(decays(unit, tensor->offset + tensor->elems - 1), tensor->decay);
        }
        assert_int_equal(unit->run[unit->run_count - 1].end, unit->elems);
        sw_units_destroy(units);
    }
}

/* The unit of one tensor rank out of two: replicated tensors come last, in grains of their own. */
enum { HALF_TENSORS = 6 };
static const struct {
    int64_t rows, cols;
    bool replicated, joined;
    int64_t offset[2]; /* in fp32 and in narrow state */
} half_tensors[HALF_TENSORS] = {
    {1000, 0, true, false, {SW_GRAIN_ELEMS, 2 * SW_GRAIN_ELEMS}},
    {100, 7, false, false, {0, 0}},
    {192, 0, false, false, {704, SW_GRAIN_ELEMS}},
    {64, 0, false, true, {704 + 192, SW_GRAIN_ELEMS + 192}},
    {8000, 0, true, false, {SW_GRAIN_ELEMS + 1024, 3 * SW_GRAIN_ELEMS}},
    {30, 10, false, false, {960, 704}},
};

static void add_half(struct sw_unit *unit) {
    for (int t = 0; t < HALF_TENSORS; t++) {
        const int64_t dims = half_tensors[t].cols > 0 ? 2 : 1,
                      cols = dims > 1 ? half_tensors[t].cols : half_tensors[t].rows;
        const struct sw_part part = {.rows = dims > 1 ? half_tensors[t].rows : 1,
                                     .cols = cols,
                                     .block_cols = cols,
                                     .block_stride = cols,
                                     .joined = half_tensors[t].joined,
                                     .replicated = half_tensors[t].replicated};
        must(sw_unit_add_part(unit, "tensor", (int)dims, (int64_t[]){half_tensors[t].rows, cols}, &part, t % 2 == 0));
    }
}

static void replicated_tensors_lie_in_the_last_grains(void **state) {
    (void)state;
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++) {
        struct sw_units *units;
        const bool narrow = format != SW_OPTIMIZER_FP32;
        must(sw_units_create(2, &units));
        units->optimizer = (sw_optimizer_format)format;
        add_half(&units->unit[0]);
        add(&units->unit[1], "cut", 100, 7, true);
        must(sw_units_seal(units));
        const struct sw_unit *unit = &units->unit[0];
        assert_int_equal(unit->replicated_grain, narrow ? 2 : 1);
        assert_int_equal(unit->replicated_elems, narrow ? SW_GRAIN_ELEMS + 8000 : 1024 + 8000);
        assert_int_equal(unit->wide_grain, narrow ? 1 : unit->grains);
        assert_int_equal(unit->grains, narrow ? 4 : 2);
        for (int64_t g = 0; g < unit->grains; g++)
            assert_int_equal(sw_unit_grain_copies(unit, g), g >= unit->replicated_grain);
        for (int t = 0; t < HALF_TENSORS; t++) {
            assert_int_equal(unit->tensor[t].offset, half_tensors[t].offset[narrow]);
            assert_int_equal(unit->tensor[t].part.replicated, half_tensors[t].replicated);
            assert_int_equal(decays(unit, unit->tensor[t].offset), t % 2 == 0);
            assert_int_equal(decays(unit, unit->tensor[t].offset + unit->tensor[t].elems - 1), t % 2 == 0);
        }
        assert_int_equal(units->unit[1].replicated_grain, units->unit[1].grains);
        assert_int_equal(units->unit[1].replicated_elems, 0);
        assert_false(sw_unit_grain_copies(&units->unit[1], 0));
        sw_units_destroy(units);
    }
}

/* A replicated matrix is not wide, so it lies before the wide grains of the replicated vectors, and all of them are
 * walked in the order of their places. */
static sw_status note_place(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    int64_t *before = context;
    (void)tensor, (void)whole;
    assert_true(at >= *before);
    *before = at + run;
    return SW_OK;
}

static void replicated_matrices_are_not_wide(void **state) {
    (void)state;
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++) {
        const bool narrow = format != SW_OPTIMIZER_FP32;
        const struct sw_part vector = {
            .rows = 1, .cols = 100, .block_cols = 100, .block_stride = 100, .replicated = true};
        const struct sw_part matrix = {
            .rows = 30, .cols = 1000, .block_cols = 1000, .block_stride = 1000, .replicated = true};
        struct sw_units *units;
        must(sw_units_create(1, &units));
        struct sw_unit *unit = &units->unit[0];
        units->optimizer = (sw_optimizer_format)format;
        must(sw_unit_add_part(unit, "norm", 1, (int64_t[]){100}, &vector, false));
        add(unit, "cut", 100, 7, true);
        must(sw_unit_add_part(unit, "keys", 2, (int64_t[]){30, 1000}, &matrix, true));
        must(sw_units_seal(units));
        assert_int_equal(unit->replicated_grain, 1);
        assert_int_equal(unit->wide_grain, narrow ? 3 : unit->grains);
        assert_int_equal(unit->grains, narrow ? 4 : 3);
        assert_int_equal(unit->tensor[0].offset, (narrow ? 3 : 1) * SW_GRAIN_ELEMS);
        assert_int_equal(unit->tensor[2].offset, SW_GRAIN_ELEMS + (narrow ? 0 : 128));
        assert_true(decays(unit, unit->tensor[2].offset) && !decays(unit, unit->tensor[0].offset));
        int64_t before = 0;
        must(sw_unit_walk(unit, 0, unit->elems, note_place, &before));
        sw_units_destroy(units);
    }
}

/* A replicated vector that is longer than a wide grain has no place beside narrow state. */
static void long_replicated_vectors_need_fp32_state(void **state) {
    (void)state;
    const int64_t cols = SW_WIDE_GRAIN_ELEMS + 1;
    const struct sw_part part = {.rows = 1, .cols = cols, .block_cols = cols, .block_stride = cols, .replicated = true};
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++) {
        struct sw_units *units;
        must(sw_units_create(1, &units));
        units->optimizer = (sw_optimizer_format)format;
        must(sw_unit_add_part(&units->unit[0], "norm", 1, &cols, &part, false));
        assert_int_equal(sw_units_seal(units), format == SW_OPTIMIZER_FP32 ? SW_OK : SW_ERR_UNSUPPORTED);
        assert_true(format == SW_OPTIMIZER_FP32 || strstr(sw_error_message(SW_ERR_UNSUPPORTED), "--tensor") != NULL);
        assert_true(format != SW_OPTIMIZER_FP32 || units->unit[0].replicated_grain == 0);
        sw_error_clear();
        sw_units_destroy(units);
    }
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    static const struct {
        int dims;
        int64_t dim[SW_TENSOR_MAX_DIMS];
    } wrong[] = {
        {2, {INT64_MAX, 2}},
        {4, {INT64_C(1) << 31, INT64_C(1) << 31, INT64_C(1) << 31, 2}},
        {1, {INT64_MAX / 2}},
        {1, {-1}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sw_units *units;
        must(sw_units_create(3, &units));
        assert_int_equal(sw_unit_add_tensor(&units->unit[0], "huge", wrong[i].dims, wrong[i].dim, true), SW_ERR_ARG);
        assert_non_null(strstr(sw_error_message(SW_ERR_ARG), "huge"));
        sw_error_clear();
        sw_units_destroy(units);
    }
    /* Each fits, both together do not. */
    struct sw_units *units;
    must(sw_units_create(3, &units));
    const int64_t half = INT64_MAX / 100;
    must(sw_unit_add_tensor(&units->unit[0], "first", 1, &half, true));
    assert_int_equal(sw_unit_add_tensor(&units->unit[0], "second", 1, &half, true), SW_ERR_ARG);
    sw_error_clear();
    sw_units_destroy(units);
}

/* A tensor cut in ways that a model could choose: whole, by rows, by columns, by columns in blocks. */
enum { ROWS = 6, COLS = 24, CUTS = 4, TILES = 3 };

static struct sw_part tile_of(int cut, int64_t tile) {
    const struct sw_part parts[CUTS] = {
        {0, ROWS, 0, COLS, COLS, COLS, .room_rows = 0},
        {tile * ROWS / TILES, ROWS / TILES, 0, COLS, COLS, COLS, .room_rows = 0},
        {0, ROWS, tile * COLS / TILES, COLS / TILES, COLS / TILES, COLS, .room_rows = 0},
        {0, ROWS, tile * 4, 8, 4, 12, .room_rows = 0},
    };
    return parts[cut];
}

static void make_tiles(int cut, struct sw_units **out) {
    must(sw_units_create(TILES, out));
    for (int64_t u = 0; u < TILES; u++) {
        const struct sw_part part = tile_of(cut, u);
        add(&(*out)->unit[u], "before", 5, 0, false);
        must(sw_unit_add_part(&(*out)->unit[u], "cut", 2, (int64_t[]){ROWS, COLS}, &part, true));
        add(&(*out)->unit[u], "after", 7, 0, false);
    }
    must(sw_units_seal(*out));
}

/* Every element of the whole is in one tile, and both ways lead to the same place. */
static void tiles_cover_a_tensor_once(void **state) {
    (void)state;
    for (int cut = 0; cut < CUTS; cut++) {
        struct sw_units *units;
        int seen[ROWS * COLS] = {0};
        make_tiles(cut, &units);
        for (int64_t u = 0; u < TILES; u++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[1];
            assert_int_equal(sw_tensor_whole_elems(tensor), ROWS * COLS);
            for (int64_t e = 0; e < tensor->elems; e++) {
                int64_t run, back;
                const int64_t whole = sw_tensor_to_whole(tensor, e, &run);
                seen[whole]++;
                assert_int_equal(sw_tensor_from_whole(tensor, whole, &back), e);
                assert_true(run >= 1 && back == run && e + run <= tensor->elems);
                for (int64_t i = 1, rest; i < run; i++)
                    assert_int_equal(sw_tensor_to_whole(tensor, e + i, &rest), whole + i);
            }
            int64_t found = 0;
            for (int64_t whole = 0, run; whole < ROWS * COLS; whole++)
                found += sw_tensor_from_whole(tensor, whole, &run) >= 0;
            assert_int_equal(found, tensor->elems);
        }
        for (int i = 0; i < ROWS * COLS; i++)
            assert_int_equal(seen[i], cut == 0 ? TILES : 1);
        sw_units_destroy(units);
    }
    struct sw_units *units;
    int64_t run;
    make_tiles(1, &units);
    assert_int_equal(sw_tensor_to_whole(&units->unit[1].tensor[1], 0, &run), 2 * COLS);
    assert_int_equal(run, 2 * COLS); /* whole rows follow each other */
    sw_units_destroy(units);
}

enum { WINDOW = 13, WALKED = 512 };

/* For each element of a unit, one more than its place in its whole tensor; 0 where it was not visited. */
struct visits {
    const struct sw_unit *unit;
    int64_t first;
    int64_t place[WALKED];
};

static sw_status visit(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct visits *visits = context;
    const struct sw_tensor *t = &visits->unit->tensor[tensor];
    for (int64_t i = 0; i < run; i++) {
        const int64_t element = visits->first + at + i;
        assert_true(element >= t->offset && element < t->offset + t->elems && element < WALKED);
        assert_int_equal(visits->place[element], 0);
        visits->place[element] = 1 + whole + i;
    }
    return SW_OK;
}

/* Whatever the window, and none of the padding. */
static void walks_visit_each_element_once(void **state) {
    (void)state;
    struct sw_units *units;
    make_tiles(CUTS - 1, &units);
    struct visits visits = {.unit = &units->unit[1]};
    for (; visits.first < visits.unit->elems; visits.first += WINDOW)
        must(sw_unit_walk(visits.unit, visits.first, sw_min_i64(WINDOW, visits.unit->elems - visits.first), visit,
                          &visits));
    for (int64_t t = 0; t < visits.unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &visits.unit->tensor[t];
        for (int64_t e = 0, run; e < tensor->elems; e++) {
            assert_int_equal(visits.place[tensor->offset + e], 1 + sw_tensor_to_whole(tensor, e, &run));
            visits.place[tensor->offset + e] = 0;
        }
    }
    for (int i = 0; i < WALKED; i++)
        assert_int_equal(visits.place[i], 0);
    sw_units_destroy(units);
}

/* Ranks with different numbers of rows have the same layout, and the room that a rank does not use is padding. */
static void room_for_rows_is_padding(void **state) {
    (void)state;
    enum { RANKS = 2, ALL_ROWS = 5, WIDTH = 24, ROOM = 3 };
    struct sw_units *units;
    must(sw_units_create(RANKS, &units));
    for (int64_t u = 0; u < RANKS; u++) {
        const struct sw_part part = {.first_row = u * ROOM,
                                     .rows = u == 0 ? ROOM : ALL_ROWS - ROOM,
                                     .cols = WIDTH,
                                     .block_cols = WIDTH,
                                     .block_stride = WIDTH,
                                     .room_rows = ROOM};
        must(sw_unit_add_part(&units->unit[u], "table", 2, (int64_t[]){ALL_ROWS, WIDTH}, &part, true));
        add(&units->unit[u], "after", 7, 0, false);
    }
    must(sw_units_seal(units));
    assert_int_equal(sw_units_parameters(units), ALL_ROWS * WIDTH + 2 * 7);
    for (int64_t u = 0; u < RANKS; u++) {
        struct visits visits = {.unit = &units->unit[u]};
        const struct sw_tensor *table = &visits.unit->tensor[0];
        int64_t run;
        assert_int_equal(visits.unit->tensor[1].offset, 128);
        assert_int_equal(table->elems, (u == 0 ? ROOM : ALL_ROWS - ROOM) * WIDTH);
        assert_int_equal(sw_tensor_to_whole(table, 0, &run), u * ROOM * WIDTH);
        assert_int_equal(run, table->elems);
        assert_int_equal(sw_tensor_from_whole(table, (u == 0 ? ROOM : 0) * WIDTH, &run), -1);
        must(sw_unit_walk(visits.unit, 0, WALKED, visit, &visits));
        for (int64_t e = 0; e < 128; e++)
            assert_int_equal(visits.place[e], e < table->elems ? 1 + u * ROOM * WIDTH + e : 0);
    }
    sw_units_destroy(units);
}

static sw_status count_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    (void)tensor, (void)whole, (void)at;
    *(int64_t *)context += run;
    return SW_OK;
}

/* Three matrices of one grain and two vectors, of which bit t of `frozen` says whether training leaves tensor t alone.
 */
static struct sw_units *partly_frozen(unsigned frozen, sw_optimizer_format optimizer) {
    static const char *const names[] = {"a", "norm", "b", "bias", "c"};
    struct sw_units *units;
    must(sw_units_create(1, &units));
    units->optimizer = optimizer;
    for (int t = 0; t < 5; t++) {
        add(&units->unit[0], names[t], t % 2 == 0 ? 128 : 100, t % 2 == 0 ? 128 : 0, t % 2 == 0);
        units->unit[0].tensor[t].frozen = (frozen >> t & 1) != 0;
    }
    must(sw_units_seal(units));
    return units;
}

/* Every set of frozen tensors, with each kind of state: frozen tensors lie before the first trained grain and trained
 * ones behind it, none overlaps another, and a walk visits all. */
static void the_frozen_span_comes_first(void **state) {
    (void)state;
    enum { TENSORS = 5, ALL = (1 << TENSORS) - 1 };
    for (unsigned frozen = 0; frozen <= ALL; frozen++)
        for (int narrow = 0; narrow < 2; narrow++) {
            struct sw_units *units = partly_frozen(frozen, narrow ? SW_OPTIMIZER_8BIT : SW_OPTIMIZER_FP32);
            const struct sw_unit *unit = &units->unit[0];
            const int64_t border = unit->trained_grain * SW_GRAIN_ELEMS;
            assert_true(frozen == 0 ? border == 0 : border > 0);
            assert_true(frozen == ALL ? border == unit->elems : border < unit->elems);
            assert_true(unit->wide_grain >= (frozen == ALL ? 0 : unit->trained_grain));
            int64_t visited = 0;
            for (int64_t t = 0; t < TENSORS; t++) {
                const struct sw_tensor *tensor = &unit->tensor[t];
                assert_true(tensor->frozen ? tensor->offset + tensor->elems <= border : tensor->offset >= border);
                for (int64_t other = 0; other < t; other++)
                    assert_true(tensor->offset + tensor->elems <= unit->tensor[other].offset ||
                                unit->tensor[other].offset + unit->tensor[other].elems <= tensor->offset);
                assert_int_equal(decays(unit, tensor->offset), tensor->decay);
                visited += tensor->elems;
            }
            int64_t counted = 0;
            must(sw_unit_walk(unit, 0, unit->elems, count_run, &counted));
            assert_int_equal(counted, visited);
            sw_units_destroy(units);
        }
}

/* Only a block has a base: its frozen matrices, before its frozen vectors. The embedding and the head lie
 * as without one. */
static void the_base_has_the_frozen_matrices_of_blocks(void **state) {
    (void)state;
    enum { TENSORS = 5, ALL = (1 << TENSORS) - 1, MATRICES = 21, UNITS = 3 };
    for (unsigned frozen = 0; frozen <= ALL; frozen++) {
        struct sw_units *units;
        must(sw_units_create(UNITS, &units));
        units->base = SW_BASE_NF4;
        for (int u = 0; u < UNITS; u++)
            for (int t = 0; t < TENSORS; t++) {
                add(&units->unit[u], "tensor", t % 2 == 0 ? 128 : 100, t % 2 == 0 ? 128 : 0, t % 2 == 0);
                units->unit[u].tensor[t].frozen = (frozen >> t & 1) != 0;
            }
        must(sw_units_seal(units));
        const struct sw_unit *unit = &units->unit[1];
        const int matrices = __builtin_popcount(frozen & MATRICES), vectors = (frozen & ~(unsigned)MATRICES) != 0;
        assert_int_equal(units->unit[0].base_grains + units->unit[2].base_grains, 0);
        assert_int_equal(unit->base_grains, matrices);
        assert_int_equal(unit->trained_grain, matrices + vectors);
        assert_int_equal(sw_units_base_bytes(units, 1), matrices * 8512);
        assert_int_equal(sw_units_base_cells(units, 1), matrices == 0 ? 0 : 1);
        for (int t = 0; t < TENSORS; t++) {
            const struct sw_tensor *tensor = &unit->tensor[t];
            assert_true((tensor->offset < unit->base_grains * SW_GRAIN_ELEMS) == (tensor->frozen && t % 2 == 0));
            assert_true((tensor->offset < unit->trained_grain * SW_GRAIN_ELEMS) == tensor->frozen);
        }
        sw_units_destroy(units);
    }
}

/* A format that only checkpoints have needs rows of whole blocks, in frozen matrices of blocks alone. */
static void a_stored_base_has_rows_of_whole_blocks(void **state) {
    (void)state;
    static const struct {
        sw_base_format base;
        int64_t cols;
        bool frozen, refused;
    } cases[] = {{SW_BASE_FP8, 256, true, false},  {SW_BASE_FP8, 192, true, true},  {SW_BASE_FP8, 192, false, false},
                 {SW_BASE_MXFP4, 96, true, false}, {SW_BASE_MXFP4, 80, true, true}, {SW_BASE_NF4, 80, true, false}};
    enum { UNITS = 3 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sw_units *units;
        must(sw_units_create(UNITS, &units));
        units->base = cases[c].base;
        for (int u = 0; u < UNITS; u++) {
            add(&units->unit[u], "even", 128, 128, true);
            add(&units->unit[u], "rows", 64, cases[c].cols, true);
            units->unit[u].tensor[0].frozen = true;
            units->unit[u].tensor[1].frozen = cases[c].frozen;
        }
        assert_int_equal(sw_units_seal(units), cases[c].refused ? SW_ERR_UNSUPPORTED : SW_OK);
        if (cases[c].refused)
            assert_non_null(strstr(sw_error_message(SW_ERR_UNSUPPORTED), "rows has rows or parts of"));
        sw_error_clear();
        sw_units_destroy(units);
    }
}

/* A unit that is frozen whole has the layout of one that is trained whole: runs made before rely on it. */
static void freezing_a_whole_unit_moves_nothing(void **state) {
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        const sw_optimizer_format format = narrow ? SW_OPTIMIZER_8BIT : SW_OPTIMIZER_FP32;
        struct sw_units *all = partly_frozen(0, format), *none = partly_frozen(31, format);
        assert_int_equal(none->unit[0].grains, all->unit[0].grains);
        assert_int_equal(none->unit[0].wide_grain, all->unit[0].wide_grain);
        for (int t = 0; t < 5; t++)
            assert_int_equal(none->unit[0].tensor[t].offset, all->unit[0].tensor[t].offset);
        sw_units_destroy(all);
        sw_units_destroy(none);
    }
}

/* Joined parts are one matrix. */
static void frozen_tensors_that_cannot_be_apart_are_refused(void **state) {
    (void)state;
    struct sw_part joined = {.rows = 8, .cols = 128, .block_cols = 128, .block_stride = 128};
    struct sw_units *units;
    must(sw_units_create(1, &units));
    must(sw_unit_add_part(&units->unit[0], "query", 2, (int64_t[]){8, 128}, &joined, true));
    joined.joined = true;
    must(sw_unit_add_part(&units->unit[0], "key", 2, (int64_t[]){8, 128}, &joined, true));
    units->unit[0].tensor[0].frozen = true;
    assert_int_equal(sw_units_seal(units), SW_ERR_UNSUPPORTED);
    assert_non_null(strstr(sw_error_message(SW_ERR_UNSUPPORTED), "query and key are multiplied as one matrix"));
    sw_units_destroy(units);
    sw_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_aligned_and_units_end_with_a_grain),
        cmocka_unit_test(decay_runs_agree_with_the_tensors),
        cmocka_unit_test(vectors_of_narrow_state_lie_in_wide_grains),
        cmocka_unit_test(replicated_tensors_lie_in_the_last_grains),
        cmocka_unit_test(replicated_matrices_are_not_wide),
        cmocka_unit_test(long_replicated_vectors_need_fp32_state),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(tiles_cover_a_tensor_once),
        cmocka_unit_test(walks_visit_each_element_once),
        cmocka_unit_test(room_for_rows_is_padding),
        cmocka_unit_test(the_frozen_span_comes_first),
        cmocka_unit_test(the_base_has_the_frozen_matrices_of_blocks),
        cmocka_unit_test(a_stored_base_has_rows_of_whole_blocks),
        cmocka_unit_test(freezing_a_whole_unit_moves_nothing),
        cmocka_unit_test(frozen_tensors_that_cannot_be_apart_are_refused),
    };
    return cmocka_run_group_tests_name("offload unit", tests, NULL, NULL);
}
