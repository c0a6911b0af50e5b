/* The AdamW update: bits equal to the reference for every instruction set and thread count, the reference near a plain
 * evaluation in double, and calls by any chunks equal. */
#include "tests/kernels/support.h"

#include "core/size.h"
#include "kernels/moments.h"

#include <math.h>
#include <string.h>

enum { GRAINS = 4, ELEMS = GRAINS * SW_GRAIN_ELEMS };

/* Runs that begin and end inside grains and tiles, and leave a tail after the last. Some have a t of their own, and two
 * are left out: one has whole blocks of moments, the other is in a wide grain. */
static const struct sw_decay_run runs[] = {{.end = 100, .decay = true},
                                           {.end = 101, .decay = false},
                                           {.end = 5000, .decay = true, .lr_scale = 0.1, .step = 2},
                                           {.end = SW_GRAIN_ELEMS + 513, .decay = false},
                                           {.end = SW_GRAIN_ELEMS + 768, .decay = true, .step = 9},
                                           {.end = SW_GRAIN_ELEMS + 2048, .decay = true, .left_out = true},
                                           {.end = 3 * SW_GRAIN_ELEMS + 5, .decay = true},
                                           {.end = 3 * SW_GRAIN_ELEMS + 1003, .left_out = true},
                                           {.end = ELEMS - 1000, .decay = false, .lr_scale = 2.5},
                                           {.end = ELEMS - 7, .decay = true}};
enum { RUNS = sizeof runs / sizeof runs[0] };

static const struct sw_adamw SETTINGS = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0f, .step = 1};

/* Updates fp32 state. */
static sw_status update_fp32(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                             int64_t grains, const struct sw_decay_run *run, int64_t run_count, const void *grads,
                             void *records, void *weights) {
    return sw_update_adamw(stream, .type = type, .adamw = adamw, .first_elem = first_elem, .grains = grains,
                           .runs = run, .run_count = run_count, .grads = grads, .records = records, .weights = weights);
}

/* Records with v >= 0, as the update leaves them. */
static struct buffer make_records(int64_t grains, float moments) {
    struct buffer records = buffer_make(grains * SW_OPTIMIZER_GRAIN_BYTES);
    struct buffer values = buffer_random(SW_F32, grains * SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS, 1, 1.0f);
    for (int64_t i = 0; i < grains * SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS; i++) {
        const int64_t stream = i / SW_GRAIN_ELEMS % SW_OPTIMIZER_VECTORS;
        const float value = ((float *)values.data)[i];
        ((float *)records.data)[i] = stream == 0 ? value : stream == 1 ? moments * value : moments * value * value;
    }
    buffer_free(&values);
    return records;
}

static struct buffer make_grads(sw_dtype type, uint64_t stream) {
    struct buffer grads = buffer_random(type, ELEMS, stream, 0.5f);
    static const float special[] = {0.0f, -0.0f, 1e-38f, 1e-20f, 1e18f, -1e10f};
    const float largest = type == SW_F16 ? 65504.0f : 1e18f;
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        set_element(type, grads.data, (int64_t)i * 1009, fmaxf(-largest, fminf(special[i], largest)));
    return grads;
}

static void compare(struct pair *pair, sw_dtype type, float grad_scale) {
    struct buffer got = make_records(GRAINS, 1e-3f), want = buffer_copy(&got);
    struct buffer got_weights = buffer_make(ELEMS * sw_dtype_bytes(type)),
                  want_weights = buffer_make(got_weights.bytes);
    struct sw_adamw adamw = SETTINGS;
    adamw.grad_scale = grad_scale;
    for (adamw.step = 1; adamw.step <= 3; adamw.step++) {
        struct buffer grads = make_grads(type, 10 + (uint64_t)adamw.step);
        assert_ok(
            update_fp32(pair->stream, type, &adamw, 0, GRAINS, runs, RUNS, grads.data, got.data, got_weights.data));
        assert_ok(
            update_fp32(pair->ref, type, &adamw, 0, GRAINS, runs, RUNS, grads.data, want.data, want_weights.data));
        assert_same_bits("records", pair, got.bytes, got.data, want.data);
        assert_same_bits("weights", pair, got_weights.bytes, got_weights.data, want_weights.data);
        buffer_free(&grads);
    }
    buffer_free(&got);
    buffer_free(&want);
    buffer_free(&got_weights);
    buffer_free(&want_weights);
}

static void compare_all(struct pair *pair) {
    compare(pair, SW_F32, 1.0f);
    compare(pair, SW_BF16, 1.0f);
    compare(pair, SW_BF16, 0.337f);
    compare(pair, SW_F16, 1.0f / 65536.0f);
}

static void same_bits_as_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

/* More runs than a device may take at once, most of a few elements, and a long one last. */
static void many_runs(struct pair *pair) {
    enum { MANY = 300 };
    struct sw_decay_run many[MANY];
    for (int i = 0; i < MANY; i++)
        many[i] = (struct sw_decay_run){
            .end = 5 + (i + 1) * 53 - i % 7, .decay = i % 3 != 1, .lr_scale = i % 4 == 2 ? 0.5 : 0.0};
    many[MANY - 1].end = ELEMS - 3;
    for (int t = 0; t < TEST_TYPES; t++) {
        const sw_dtype type = test_types[t];
        struct buffer got = make_records(GRAINS, 1e-3f), want = buffer_copy(&got), grads = make_grads(type, 20);
        struct buffer got_weights = buffer_make(ELEMS * sw_dtype_bytes(type)),
                      want_weights = buffer_make(got_weights.bytes);
        assert_ok(
            update_fp32(pair->stream, type, &SETTINGS, 0, GRAINS, many, MANY, grads.data, got.data, got_weights.data));
        assert_ok(
            update_fp32(pair->ref, type, &SETTINGS, 0, GRAINS, many, MANY, grads.data, want.data, want_weights.data));
        assert_same_bits("records of many runs", pair, got.bytes, got.data, want.data);
        assert_same_bits("weights of many runs", pair, got_weights.bytes, got_weights.data, want_weights.data);
        struct buffer *all[] = {&got, &want, &grads, &got_weights, &want_weights};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            buffer_free(all[i]);
    }
}

static void runs_of_few_elements(void **state) {
    (void)state;
    for_each_device(many_runs);
}

/* A run with a scale is updated as by a step of the scaled learning rate, and the runs beside it as without. */
static void scaled(struct pair *pair) {
    const double scale = 0.1;
    const struct sw_decay_run plain[] = {{.end = ELEMS, .decay = true}};
    const struct sw_decay_run three[] = {{.end = 1001, .decay = true},
                                         {.end = SW_GRAIN_ELEMS + 77, .decay = true, .lr_scale = scale},
                                         {.end = ELEMS, .decay = true, .lr_scale = 1.0}};
    struct sw_adamw slow = SETTINGS;
    slow.lr *= scale;
    struct buffer got = make_records(GRAINS, 1e-3f), fast = buffer_copy(&got), slowed = buffer_copy(&got);
    struct buffer weights = buffer_make(ELEMS * 2), grads = make_grads(SW_BF16, 2);
    assert_ok(update_fp32(pair->stream, SW_BF16, &SETTINGS, 0, GRAINS, three, 3, grads.data, got.data, weights.data));
    assert_ok(update_fp32(pair->stream, SW_BF16, &SETTINGS, 0, GRAINS, plain, 1, grads.data, fast.data, weights.data));
    assert_ok(update_fp32(pair->stream, SW_BF16, &slow, 0, GRAINS, plain, 1, grads.data, slowed.data, weights.data));
    for (int64_t elem = 0; elem < ELEMS; elem++) {
        const bool in_run = elem >= three[0].end && elem < three[1].end;
        const int64_t at = elem + elem / SW_GRAIN_ELEMS * (SW_OPTIMIZER_VECTORS - 1) * SW_GRAIN_ELEMS;
        assert_memory_equal((float *)got.data + at, (float *)(in_run ? slowed : fast).data + at, sizeof(float));
    }
    struct buffer *all[] = {&got, &fast, &slowed, &weights, &grads};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void learning_rates_of_runs(void **state) {
    (void)state;
    for_each_device(scaled);
}

/* A run with a t of its own is updated as by that step, and one that is left out keeps its state. */
static void stepped(struct pair *pair, sw_optimizer_format format) {
    enum { OWN_STEP = 5 };
    const int64_t first = SW_GRAIN_ELEMS + 1024, end = 2 * SW_GRAIN_ELEMS + 512, blocks = end + 2048;
    const struct sw_decay_run plain = {.end = ELEMS, .decay = true};
    const struct sw_decay_run mixed[] = {{.end = first, .decay = true},
                                         {.end = end, .decay = true, .step = OWN_STEP},
                                         {.end = blocks, .decay = true, .left_out = true},
                                         {.end = ELEMS, .decay = true}};
    struct sw_adamw other = SETTINGS;
    other.step = OWN_STEP;
    struct buffer before = make_records(GRAINS, 1e-3f), records[3], fp32[3];
    struct buffer weights = buffer_make(ELEMS * 4), grads = make_grads(SW_F32, 2);
    const struct sw_adamw *const steps[] = {&SETTINGS, &SETTINGS, &other};
    const int64_t record_bytes = sw_optimizer_grain_bytes(format);
    const struct sw_moment_rounding how = {.rounding = SW_ROUND_NEAREST};
    for (int i = 0; i < 3; i++) {
        records[i] = buffer_make(GRAINS * record_bytes);
        fp32[i] = buffer_make(before.bytes);
        for (int64_t g = 0; g < GRAINS; g++)
            sw_record_from_fp32(format, false, &how,
                                (const float *)before.data + g * SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS,
                                (char *)records[i].data + g * record_bytes);
    }
    for (int64_t g = 0; g < GRAINS; g++)
        sw_record_to_fp32(format, false, (const char *)records[0].data + g * record_bytes,
                          (float *)before.data + g * SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS);
    for (int i = 0; i < 3; i++) {
        assert_ok(sw_update_adamw(pair->stream, .type = SW_F32, .adamw = steps[i], .grains = GRAINS,
                                  .runs = i == 0 ? mixed : &plain, .run_count = i == 0 ? 4 : 1, .grads = grads.data,
                                  .records = records[i].data, .weights = weights.data, .format = format,
                                  .wide_elem = ELEMS));
        for (int64_t g = 0; g < GRAINS; g++)
            sw_record_to_fp32(format, false, (const char *)records[i].data + g * record_bytes,
                              (float *)fp32[i].data + g * SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS);
    }
    for (int64_t elem = 0; elem < ELEMS; elem++) {
        const struct buffer *want = elem >= first && elem < end ? &fp32[2] : &fp32[1];
        want = elem >= end && elem < blocks ? &before : want;
        for (int64_t part = 0; part < SW_OPTIMIZER_VECTORS; part++) {
            const int64_t grain = elem / SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS + part;
            const int64_t at = grain * SW_GRAIN_ELEMS + elem % SW_GRAIN_ELEMS;
            assert_memory_equal((float *)fp32[0].data + at, (float *)want->data + at, sizeof(float));
        }
    }
    for (int i = 0; i < 3; i++) {
        buffer_free(&records[i]);
        buffer_free(&fp32[i]);
    }
    buffer_free(&before);
    buffer_free(&weights);
    buffer_free(&grads);
}

static void stepped_in_all_formats(struct pair *pair) {
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++)
        stepped(pair, (sw_optimizer_format)format);
}

static void steps_of_runs(void **state) {
    (void)state;
    for_each_device(stepped_in_all_formats);
}

/* One call, or one for each grain: the address in the unit decides decay, not the call. */
static void chunked(struct pair *pair) {
    struct buffer whole = make_records(GRAINS, 1e-3f), parts = buffer_copy(&whole), grads = make_grads(SW_BF16, 2);
    struct buffer whole_weights = buffer_make(ELEMS * 2), parts_weights = buffer_make(ELEMS * 2);
    assert_ok(update_fp32(pair->stream, SW_BF16, &SETTINGS, 0, GRAINS, runs, RUNS, grads.data, whole.data,
                          whole_weights.data));
    for (int64_t grain = 0; grain < GRAINS; grain++) {
        const int64_t at = grain * SW_GRAIN_ELEMS;
        assert_ok(update_fp32(pair->stream, SW_BF16, &SETTINGS, at, 1, runs, RUNS, (sw_bf16 *)grads.data + at,
                              (float *)parts.data + SW_OPTIMIZER_VECTORS * at, (sw_bf16 *)parts_weights.data + at));
    }
    assert_same_bits("records by grain", pair, whole.bytes, parts.data, whole.data);
    assert_same_bits("weights by grain", pair, whole_weights.bytes, parts_weights.data, whole_weights.data);
    struct buffer *all[] = {&whole, &parts, &grads, &whole_weights, &parts_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void any_chunks(void **state) {
    (void)state;
    for_each_device(chunked);
}

/* A skipped step leaves records, does not read gradients, and rounds the weights again. */
static void skipped(struct pair *pair) {
    struct buffer records = make_records(GRAINS, 1e-3f), before = buffer_copy(&records);
    struct buffer weights = buffer_make(ELEMS * 2);
    struct sw_adamw adamw = SETTINGS;
    adamw.skip = true;
    assert_ok(update_fp32(pair->stream, SW_BF16, &adamw, 0, GRAINS, runs, RUNS, NULL, records.data, weights.data));
    assert_same_bits("records of a skipped step", pair, records.bytes, records.data, before.data);
    for (int64_t i = 0; i < ELEMS; i++) {
        const float master =
            ((float *)records.data)[i / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS + i % SW_GRAIN_ELEMS];
        assert_int_equal(((sw_bf16 *)weights.data)[i], sw_f32_to_bf16(master));
    }
    buffer_free(&records);
    buffer_free(&before);
    buffer_free(&weights);
}

/* One case of narrow state. */
struct narrow {
    sw_optimizer_format format;
    sw_rounding rounding;
    sw_dtype type;
};

enum { FIRST_WIDE = GRAINS - 1 };

/* Makes records of a format, of which the last grain is wide. Blocks of zeros and of extreme moments are among them. */
static struct buffer make_narrow_records(sw_optimizer_format format) {
    const int64_t fp32_bytes = sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32), bytes = sw_optimizer_grain_bytes(format);
    static const float scales[] = {0.0f, 1e-38f, 1e-42f, 1e30f, 3e38f, 1e-20f};
    struct buffer fp32 = make_records(GRAINS, 1e-3f), records = buffer_make(GRAINS * bytes);
    for (int64_t grain = 0; grain < GRAINS; grain++) {
        const struct sw_moment_rounding how = {.rounding = SW_ROUND_NEAREST};
        float *m = (float *)((char *)fp32.data + grain * fp32_bytes) + SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
        for (int64_t i = 0; grain == 1 && i < 6 * 3 * SW_MOMENT_BLOCK_ELEMS; i++) {
            m[i] = fminf(1.0f, 1e3f * m[i]) * scales[i / (3 * SW_MOMENT_BLOCK_ELEMS)];
            v[i] = fminf(1.0f, 1e3f * v[i]) * scales[i / (3 * SW_MOMENT_BLOCK_ELEMS)];
        }
        sw_record_from_fp32(format, grain >= FIRST_WIDE, &how, (const float *)((char *)fp32.data + grain * fp32_bytes),
                            (char *)records.data + grain * bytes);
    }
    buffer_free(&fp32);
    return records;
}

/* Gradients that overflow when they are squared are among those of fp32 and bf16. */
static struct buffer make_wild_grads(sw_dtype type, uint64_t stream) {
    struct buffer grads = make_grads(type, stream);
    static const float special[] = {1e30f, -1e25f, 3e38f, 1e-30f, 1e-42f};
    for (int64_t i = 0; type != SW_F16 && i < 5; i++)
        set_element(type, grads.data, 100 + i * 1013, special[i]);
    return grads;
}

static sw_status update_narrow(struct sw_stream *stream, const struct narrow *narrow, const struct sw_adamw *adamw,
                               int64_t first_grain, int64_t grains, const void *grads, void *records, void *weights) {
    const int64_t at = first_grain * SW_GRAIN_ELEMS * sw_dtype_bytes(narrow->type);
    return sw_update_adamw(stream, .type = narrow->type, .adamw = adamw, .first_elem = first_grain * SW_GRAIN_ELEMS,
                           .grains = grains, .runs = runs, .run_count = RUNS, .grads = (const char *)grads + at,
                           .records = (char *)records + first_grain * sw_optimizer_grain_bytes(narrow->format),
                           .weights = (char *)weights + at, .format = narrow->format, .rounding = narrow->rounding,
                           .seed = UINT64_C(0x123456789abcdef0), .unit = 5,
                           .wide_elem = (int64_t)FIRST_WIDE * SW_GRAIN_ELEMS);
}

static void assert_finite_moments(const struct narrow *narrow, const void *records) {
    struct buffer fp32 = buffer_make(sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32));
    for (int64_t grain = 0; grain < FIRST_WIDE; grain++) {
        sw_record_to_fp32(narrow->format, false,
                          (const char *)records + grain * sw_optimizer_grain_bytes(narrow->format), fp32.data);
        for (int64_t i = SW_GRAIN_ELEMS; i < fp32.bytes / 4; i++)
            assert_true(isfinite(((float *)fp32.data)[i]));
    }
    buffer_free(&fp32);
}

static void compare_narrow(struct pair *pair, const struct narrow *narrow) {
    struct buffer got = make_narrow_records(narrow->format), want = buffer_copy(&got), parts = buffer_copy(&got);
    const int64_t weight_bytes = ELEMS * sw_dtype_bytes(narrow->type);
    struct buffer got_weights = buffer_make(weight_bytes), want_weights = buffer_make(weight_bytes),
                  parts_weights = buffer_make(weight_bytes);
    struct sw_adamw adamw = SETTINGS;
    adamw.grad_scale = 0.337f;
    for (adamw.step = 1; adamw.step <= 3; adamw.step++) {
        struct buffer grads = make_wild_grads(narrow->type, 10 + (uint64_t)adamw.step);
        adamw.skip = adamw.step == 2;
        assert_ok(update_narrow(pair->stream, narrow, &adamw, 0, GRAINS, grads.data, got.data, got_weights.data));
        assert_ok(update_narrow(pair->ref, narrow, &adamw, 0, GRAINS, grads.data, want.data, want_weights.data));
        for (int64_t grain = 0; grain < GRAINS; grain++)
            assert_ok(
                update_narrow(pair->stream, narrow, &adamw, grain, 1, grads.data, parts.data, parts_weights.data));
        assert_same_bits("narrow records", pair, got.bytes, got.data, want.data);
        assert_same_bits("weights of narrow records", pair, weight_bytes, got_weights.data, want_weights.data);
        assert_same_bits("narrow records by grain", pair, got.bytes, parts.data, want.data);
        assert_same_bits("weights by grain", pair, weight_bytes, parts_weights.data, want_weights.data);
        assert_finite_moments(narrow, want.data);
        buffer_free(&grads);
    }
    struct buffer *all[] = {&got, &want, &parts, &got_weights, &want_weights, &parts_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare_narrows(struct pair *pair) {
    for (int which = 0; which < 2 * SW_ROUNDINGS * TEST_TYPES; which++)
        compare_narrow(pair, &(const struct narrow){.format = which % 2 ? SW_OPTIMIZER_BF16 : SW_OPTIMIZER_8BIT,
                                                    .rounding = (sw_rounding)(which / 2 % SW_ROUNDINGS),
                                                    .type = test_types[which / (2 * SW_ROUNDINGS)]});
}

static void same_bits_of_narrow_state(void **state) {
    (void)state;
    for_each_device(compare_narrows);
}

/* An update from gradients in 8 bits is that from the fp32 numbers which these stand for, in every format of the state
 * and by any chunks. Runs end within vectors and blocks. */
static void from_8_bits(struct pair *pair, sw_optimizer_format format) {
    struct buffer acc = make_grads(SW_F32, 3), kept = buffer_make(GRAINS * SW_GRADS_8BIT_GRAIN_BYTES);
    struct buffer sums = buffer_make(GRAINS * 8), values = buffer_make(ELEMS * 4);
    struct buffer got = format == SW_OPTIMIZER_FP32 ? make_records(GRAINS, 1e-3f) : make_narrow_records(format);
    struct buffer want = buffer_copy(&got), got_weights = buffer_make(ELEMS * 4), want_weights = buffer_make(ELEMS * 4);
    const int64_t record_bytes = sw_optimizer_grain_bytes(format), wide_elem = (int64_t)FIRST_WIDE * SW_GRAIN_ELEMS;
    assert_ok(sw_finish_gradient(pair->ref, .type = SW_F32, .elems = ELEMS, .acc = acc.data, .grads = kept.data,
                                 .sums = sums.data, .format = SW_GRADS_8BIT));
    for (int64_t i = 0; i < ELEMS; i++)
        ((float *)values.data)[i] = sw_grads_8bit_at(kept.data, i);
    assert_ok(sw_update_adamw(pair->ref, .type = SW_F32, .adamw = &SETTINGS, .grains = GRAINS, .runs = runs,
                              .run_count = RUNS, .grads = values.data, .records = want.data,
                              .weights = want_weights.data, .format = format, .rounding = SW_ROUND_STOCHASTIC,
                              .seed = 7, .wide_elem = wide_elem));
    for (int64_t grain = 0; grain < GRAINS; grain += 2)
        assert_ok(sw_update_adamw(
            pair->stream, .type = SW_F32, .adamw = &SETTINGS, .first_elem = grain * SW_GRAIN_ELEMS, .grains = 2,
            .runs = runs, .run_count = RUNS, .grads = (char *)kept.data + grain * SW_GRADS_8BIT_GRAIN_BYTES,
            .records = (char *)got.data + grain * record_bytes,
            .weights = (float *)got_weights.data + grain * SW_GRAIN_ELEMS, .format = format,
            .rounding = SW_ROUND_STOCHASTIC, .seed = 7, .wide_elem = wide_elem, .grads_format = SW_GRADS_8BIT));
    assert_same_bits("records by gradients in 8 bits", pair, got.bytes, got.data, want.data);
    assert_same_bits("weights by gradients in 8 bits", pair, got_weights.bytes, got_weights.data, want_weights.data);
    struct buffer *all[] = {&acc, &kept, &sums, &values, &got, &want, &got_weights, &want_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void from_8_bits_in_all_formats(struct pair *pair) {
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++)
        from_8_bits(pair, (sw_optimizer_format)format);
}

static void gradients_in_8_bits(void **state) {
    (void)state;
    for_each_device(from_8_bits_in_all_formats);
}

/* Asserts that the scales of v are those before a step without gradients times beta2, and that those of m fell too. */
static void assert_scales_fell(const struct pair *pair, const void *before, const void *after) {
    const int64_t bytes = sw_optimizer_grain_bytes(SW_OPTIMIZER_8BIT);
    const float beta2 = sw_adamw_scalars(&SETTINGS).beta2;
    int fallen = 0;
    for (int64_t grain = 0; grain < FIRST_WIDE; grain++) {
        const struct sw_record_parts old =
            sw_record_parts(SW_OPTIMIZER_8BIT, false, (char *)(uintptr_t)before + grain * bytes);
        const struct sw_record_parts new =
            sw_record_parts(SW_OPTIMIZER_8BIT, false, (char *)(uintptr_t)after + grain * bytes);
        for (int block = 0; block < SW_GRAIN_ELEMS / SW_MOMENT_BLOCK_ELEMS; block++) {
            if (old.v_scale[block] < 1e-30f || old.m_scale[block] < 1e-30f)
                continue; /* no scale is below the least normal number */
            if (new.v_scale[block] != beta2 * old.v_scale[block] || !(new.m_scale[block] < old.m_scale[block]))
                fail_msg("on %s block %d of grain %d has scales %g and %g, from %g and %g", pair->label, block,
                         (int)grain, new.m_scale[block], new.v_scale[block], old.m_scale[block], old.v_scale[block]);
            fallen++;
        }
    }
    assert_true(fallen > FIRST_WIDE * SW_GRAIN_ELEMS / SW_MOMENT_BLOCK_ELEMS / 2);
}

/* Without gradients every block's moments shrink, and its scales with them: in blocks of one span and of several, from
 * gradients in both formats, in each rounding. The rule is checked on the reference too, which may be wrong as well. */
static void shrinking(struct pair *pair) {
    for (int which = 0; which < 2 * SW_ROUNDINGS; which++) {
        struct buffer got = make_narrow_records(SW_OPTIMIZER_8BIT), want = buffer_copy(&got);
        struct buffer grads = buffer_zeros(ELEMS * 2), weights = buffer_make(ELEMS * 2);
        struct sw_adamw adamw = SETTINGS;
        for (adamw.step = 1; adamw.step <= 2; adamw.step++) {
            struct buffer before = buffer_copy(&got);
            for (int s = 0; s < 2; s++)
                assert_ok(sw_update_adamw(s == 0 ? pair->ref : pair->stream, .type = SW_BF16, .adamw = &adamw,
                                          .grains = GRAINS, .runs = runs, .run_count = RUNS, .grads = grads.data,
                                          .records = s == 0 ? want.data : got.data, .weights = weights.data,
                                          .format = SW_OPTIMIZER_8BIT, .rounding = (sw_rounding)(which / 2), .seed = 7,
                                          .wide_elem = (int64_t)FIRST_WIDE * SW_GRAIN_ELEMS,
                                          .grads_format = which % 2 ? SW_GRADS_8BIT : SW_GRADS_TYPED));
            assert_same_bits("records that shrink", pair, got.bytes, got.data, want.data);
            assert_scales_fell(pair, before.data, want.data);
            buffer_free(&before);
        }
        struct buffer *all[] = {&got, &want, &grads, &weights};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            buffer_free(all[i]);
    }
}

static void scales_fall_with_their_moments(void **state) {
    (void)state;
    for_each_device(shrinking);
}

/* An update whose weights nobody needs leaves the records of one that writes them, also where the step is skipped. */
static void without_weights(struct pair *pair) {
    struct buffer grads = make_grads(SW_BF16, 4), weights = buffer_make(ELEMS * 2);
    for (int which = 0; which < 2 * SW_OPTIMIZER_FORMATS; which++) {
        const sw_optimizer_format format = (sw_optimizer_format)(which / 2);
        struct buffer got = format == SW_OPTIMIZER_FP32 ? make_records(GRAINS, 1e-3f) : make_narrow_records(format);
        struct buffer want = buffer_copy(&got);
        struct sw_adamw adamw = SETTINGS;
        adamw.skip = which % 2 == 1;
        for (int s = 0; s < 2; s++)
            assert_ok(sw_update_adamw(s == 0 ? pair->ref : pair->stream, .type = SW_BF16, .adamw = &adamw,
                                      .grains = GRAINS, .runs = runs, .run_count = RUNS, .grads = grads.data,
                                      .records = s == 0 ? want.data : got.data, .weights = s == 0 ? weights.data : NULL,
                                      .format = format, .rounding = SW_ROUND_STOCHASTIC, .seed = 7,
                                      .wide_elem = (int64_t)FIRST_WIDE * SW_GRAIN_ELEMS));
        assert_same_bits("records without weights", pair, got.bytes, got.data, want.data);
        buffer_free(&got);
        buffer_free(&want);
    }
    buffer_free(&grads);
    buffer_free(&weights);
}

static void weights_may_be_left_out(void **state) {
    (void)state;
    for_each_device(without_weights);
}

/* The moments of a wide grain and their masters are those of fp32 state, and its padding stays zeros. */
static void wide(struct pair *pair) {
    const struct narrow narrow = {.format = SW_OPTIMIZER_8BIT, .rounding = SW_ROUND_STOCHASTIC, .type = SW_BF16};
    const int64_t at = (int64_t)FIRST_WIDE * SW_GRAIN_ELEMS, bytes = sw_optimizer_grain_bytes(narrow.format);
    struct buffer records = make_narrow_records(narrow.format), fp32 = make_records(1, 1e-3f);
    struct buffer weights = buffer_make(ELEMS * 2), fp32_weights = buffer_make(SW_GRAIN_ELEMS * 2),
                  grads = make_grads(SW_BF16, 2), after = buffer_make(fp32.bytes);
    char *record = (char *)records.data + FIRST_WIDE * bytes;
    sw_record_to_fp32(narrow.format, true, record, fp32.data);
    assert_ok(update_narrow(pair->stream, &narrow, &SETTINGS, 0, GRAINS, grads.data, records.data, weights.data));
    assert_ok(update_fp32(pair->stream, SW_BF16, &SETTINGS, at, 1, runs, RUNS, (sw_bf16 *)grads.data + at, fp32.data,
                          fp32_weights.data));
    sw_record_to_fp32(narrow.format, true, record, after.data);
    for (int64_t i = 0; i < SW_WIDE_GRAIN_ELEMS; i++) {
        for (int vector = 0; vector < SW_OPTIMIZER_VECTORS; vector++)
            assert_true(((float *)after.data)[vector * SW_GRAIN_ELEMS + i] ==
                        ((float *)fp32.data)[vector * SW_GRAIN_ELEMS + i]);
        assert_int_equal(((sw_bf16 *)weights.data)[at + i], ((sw_bf16 *)fp32_weights.data)[i]);
        assert_int_equal(((sw_bf16 *)weights.data)[at + SW_WIDE_GRAIN_ELEMS + i], 0);
    }
    for (int64_t i = INT64_C(3) * SW_WIDE_GRAIN_ELEMS * 4; i < bytes; i++)
        assert_int_equal(record[i], 0);
    struct buffer *all[] = {&records, &fp32, &weights, &fp32_weights, &grads, &after};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void wide_grains(void **state) {
    (void)state;
    for_each_device(wide);
}

static void skipped_step(void **state) {
    (void)state;
    for_each_device(skipped);
}

/* A long run of one element in double, with the textbook's bias-corrected moments. */
static void reference_follows_textbook(void **state) {
    (void)state;
    enum { STEPS = 300 };
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    const struct sw_decay_run all = {.end = SW_GRAIN_ELEMS, .decay = true};
    struct buffer records = buffer_zeros(SW_OPTIMIZER_GRAIN_BYTES), weights = buffer_make(SW_GRAIN_ELEMS * 4);
    struct buffer grads = buffer_zeros(SW_GRAIN_ELEMS * 4), draws = buffer_random(SW_F32, STEPS, 3, 1.0f);
    double p = 1.0, m = 0.0, v = 0.0;
    ((float *)records.data)[7] = 1.0f;
    struct sw_adamw adamw = SETTINGS;
    for (int t = 1; t <= STEPS; t++) {
        const double g = ((float *)draws.data)[t - 1];
        ((float *)grads.data)[7] = (float)g;
        adamw.step = t;
        assert_ok(update_fp32(stream, SW_F32, &adamw, 0, 1, &all, 1, grads.data, records.data, weights.data));
        p -= adamw.lr * adamw.weight_decay * p;
        m = adamw.beta1 * m + (1.0 - adamw.beta1) * g;
        v = adamw.beta2 * v + (1.0 - adamw.beta2) * g * g;
        p -= adamw.lr * (m / (1.0 - pow(adamw.beta1, t))) / (sqrt(v / (1.0 - pow(adamw.beta2, t))) + adamw.eps);
        const float *record = records.data;
        assert_true(fabs(record[7] - p) <= 1e-5 * fabs(p) + 1e-6);
        assert_true(fabs(record[SW_GRAIN_ELEMS + 7] - m) <= 1e-5 * fabs(m) + 1e-7);
        assert_true(fabs(record[2 * SW_GRAIN_ELEMS + 7] - v) <= 1e-5 * fabs(v) + 1e-9);
        assert_true(((float *)weights.data)[7] == record[7]);
    }
    for (int64_t i = 8; i < SW_GRAIN_ELEMS; i++)
        assert_true(((float *)records.data)[i] == 0.0f); /* zeros stay zeros: padding is inert */
    struct buffer *buffers[] = {&records, &weights, &grads, &draws};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void assert_scalar(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 0x1p-24 * fabs(want)))
        fail_msg("%s is %.12g and should be %.12g rounded once", what, got, want);
}

/* Each scalar is the decimal's own value rounded to fp32 once: 1 - (float)0.999 would be off by 1.3e-5. */
static void scalars_keep_their_digits(void **state) {
    (void)state;
    const struct sw_adamw_scalars s = sw_adamw_scalars(&SETTINGS);
    assert_scalar("1 - lr·decay", s.decay_factor, 0.999);
    assert_scalar("1 - beta1", s.one_minus_beta1, 0.1);
    assert_scalar("beta2", s.beta2, 0.999);
    assert_scalar("1 - beta2", s.one_minus_beta2, 0.001);
    assert_scalar("sqrt(1 - beta2)", s.correction2_sqrt, 0.03162277660168379);
    assert_scalar("-lr/(1 - beta1)", s.minus_step_size, -0.1);
    assert_scalar("eps", s.eps, 1e-8);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {
        cmocka_unit_test(same_bits_as_reference),    cmocka_unit_test(any_chunks),
        cmocka_unit_test(learning_rates_of_runs),    cmocka_unit_test(steps_of_runs),
        cmocka_unit_test(runs_of_few_elements),      cmocka_unit_test(skipped_step),
        cmocka_unit_test(same_bits_of_narrow_state), cmocka_unit_test(wide_grains),
        cmocka_unit_test(gradients_in_8_bits),       cmocka_unit_test(scales_fall_with_their_moments),
        cmocka_unit_test(weights_may_be_left_out)};
    const struct CMUnitTest others[] = {cmocka_unit_test(reference_follows_textbook),
                                        cmocka_unit_test(scalars_keep_their_digits)};
    return RUN_TESTS(on_devices, others);
}
