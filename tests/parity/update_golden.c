/* The AdamW update against torch.optim.AdamW over a thousand steps. Parameters and gradients are hashes of step and
 * index that tools/golden.py computes with the same bits; README.md has the formulas. */
#include "tests/equipment/must.h"

#include "core/size.h"
#include "kernels/device.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 8, MAX_TESTS = 32, NAME_CHARS = 64 };

/* Gradients arrive multiplied by this and the update takes it out again: both exact, since it is a power of two. */
#define LOSS_SCALE 4.0f

#define RELATIVE_TOLERANCE 1e-5
#define ABSOLUTE_TOLERANCE 1e-7
/* The second moment of the smallest gradients is subnormal, where rounding is absolute. */
#define SUBNORMAL_TOLERANCE 1e-42

/* The bound of the gradients of elements i with i % CLASSES at this place. */
static const float gradient_bound[CLASSES] = {0x1p-7f, 0x1p0f, 0x1p-14f, 0x1p-26f, 0.0f, 0x1p-66f, 0x1p6f, 0x1p12f};

struct run {
    json_t *golden; /* borrowed: an entry of "runs" */
    int64_t steps;
    const char *device_name;
};

struct buffers {
    int64_t length, grains;
    float *records, *grads, *weights;
};

static uint64_t splitmix64(uint64_t state) {
    uint64_t z = state + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint64_t hashed(int64_t step, int64_t index) {
    return splitmix64(((uint64_t)step << 32) + (uint64_t)index);
}

static float initial_parameter(int64_t index) {
    const float around = index / 8 % 4 == 3 ? 1.0f : 0.0f;
    return around + ((float)(hashed(0, index) >> 44) - 0x1p19f) * 0x1p-23f;
}

static float gradient(int64_t step, int64_t index) {
    const uint64_t bits = hashed(step, index);
    const float mantissa = (float)(bits >> 40) - 0x1p23f;
    return (bits & 15) == 0 ? 0.0f : mantissa * (gradient_bound[index % CLASSES] * 0x1p-23f);
}

static double update_rate(int64_t step) {
    return (double)(1 + step % 64) * 0x1p-16;
}

static float *record_of(const struct buffers *buffers, int64_t index) {
    const int64_t grain = index / SW_GRAIN_ELEMS;
    return buffers->records + (grain * SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS + index % SW_GRAIN_ELEMS);
}

static float *zeroed_floats(int64_t count) {
    float *floats = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)count * sizeof(float));
    assert_non_null(floats);
    memset(floats, 0, (size_t)count * sizeof(float));
    return floats;
}

static struct buffers make_buffers(int64_t length) {
    const int64_t grains = sw_div_up(length, SW_GRAIN_ELEMS), elems = grains * SW_GRAIN_ELEMS;
    const struct buffers buffers = {
        .length = length,
        .grains = grains,
        .records = zeroed_floats(elems * SW_OPTIMIZER_VECTORS),
        .grads = zeroed_floats(elems),
        .weights = zeroed_floats(elems),
    };
    for (int64_t i = 0; i < length; i++)
        *record_of(&buffers, i) = initial_parameter(i);
    return buffers;
}

static void free_buffers(struct buffers *buffers) {
    free(buffers->records);
    free(buffers->grads);
    free(buffers->weights);
}

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static double item(const json_t *object, const char *key, int64_t index) {
    const json_t *value = json_array_get(json_object_get(object, key), (size_t)index);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* The buffers where the device has them. */
struct training {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *records, *grads, *weights;
};

static void open_training(const char *device_name, const struct buffers *buffers, struct training *t) {
    const int64_t bytes = buffers->grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    must(sw_device_open(device_name, 0, &t->device));
    must(sw_stream_open(t->device, &t->stream));
    must(sw_memory_open(t->device, "records", SW_MEMORY_DEVICE, SW_OPTIMIZER_VECTORS * bytes, &t->records));
    must(sw_memory_open(t->device, "gradients", SW_MEMORY_DEVICE, bytes, &t->grads));
    must(sw_memory_open(t->device, "weights", SW_MEMORY_DEVICE, bytes, &t->weights));
    must(sw_copy_to_device(t->stream, sw_memory_base(t->records), buffers->records, SW_OPTIMIZER_VECTORS * bytes));
}

/* Takes back what it computed. */
static void close_training(struct training *t, const struct buffers *buffers) {
    const int64_t bytes = buffers->grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    must(sw_copy_to_host(t->stream, buffers->records, sw_memory_base(t->records), SW_OPTIMIZER_VECTORS * bytes));
    must(sw_copy_to_host(t->stream, buffers->weights, sw_memory_base(t->weights), bytes));
    must(sw_stream_synchronize(t->stream));
    sw_stream_close(t->stream);
    sw_memory_close(t->records);
    sw_memory_close(t->grads);
    sw_memory_close(t->weights);
    sw_device_close(t->device);
}

static void step(const struct buffers *buffers, const struct training *t, const struct sw_adamw *adamw) {
    const struct sw_decay_run decay = {.end = buffers->grains * SW_GRAIN_ELEMS, .decay = true};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < buffers->length; i++)
        buffers->grads[i] = gradient(adamw->step, i) * LOSS_SCALE;
    must(sw_copy_to_device(t->stream, sw_memory_base(t->grads), buffers->grads, sw_memory_bytes(t->grads)));
    must(sw_update_adamw(t->stream, .type = SW_F32, .adamw = adamw, .grains = buffers->grains, .runs = &decay,
                         .run_count = 1, .grads = sw_memory_base(t->grads), .records = sw_memory_base(t->records),
                         .weights = sw_memory_base(t->weights)));
    must(sw_stream_synchronize(t->stream));
}

static void train(const struct run *run, const struct buffers *buffers) {
    struct training training;
    struct sw_adamw adamw = {
        .beta1 = number(run->golden, "beta1"),
        .beta2 = number(run->golden, "beta2"),
        .eps = number(run->golden, "eps"),
        .weight_decay = number(run->golden, "weight_decay"),
        .grad_scale = 1.0f / LOSS_SCALE,
    };
    open_training(run->device_name, buffers, &training);
    for (adamw.step = 1; adamw.step <= run->steps; adamw.step++) {
        adamw.lr = update_rate(adamw.step);
        step(buffers, &training, &adamw);
    }
    close_training(&training, buffers);
}

/* The error as a share of the tolerance: at most 1 is right, NaN is not. */
static double error_share(float actual, double expected, double absolute) {
    const double tolerance = absolute + RELATIVE_TOLERANCE * fabs(expected);
    const double error = fabs((double)actual - expected);
    return error == 0.0 ? 0.0 : error / tolerance;
}

static void check_share(const char *what, int64_t index, float actual, double expected, double absolute,
                        double *worst) {
    const double share = error_share(actual, expected, absolute);
    if (!(share <= 1.0))
        fail_msg("%s[%lld] is %.9g, PyTorch has %.9g: %.3g times the tolerance", what, (long long)index, (double)actual,
                 expected, share);
    *worst = fmax(*worst, share);
}

static void check_samples(const struct run *run, const struct buffers *buffers) {
    const int64_t samples = (int64_t)number(run->golden, "samples");
    const int64_t intervals = sw_max_i64(samples - 1, 1);
    double worst_p = 0.0, worst_m = 0.0, worst_v = 0.0;
    for (int64_t s = 0; s < samples; s++) {
        const int64_t i = s * (buffers->length - 1) / intervals;
        const float *p = record_of(buffers, i), *m = p + SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
        const double m_absolute = ABSOLUTE_TOLERANCE * (double)gradient_bound[i % CLASSES];
        check_share("p", i, *p, item(run->golden, "p", s), ABSOLUTE_TOLERANCE, &worst_p);
        check_share("m", i, *m, item(run->golden, "m", s), m_absolute, &worst_m);
        check_share("v", i, *v, item(run->golden, "v", s), SUBNORMAL_TOLERANCE, &worst_v);
    }
    print_message("# largest error over tolerance: p %.3f, m %.3f, v %.3f\n", worst_p, worst_m, worst_v);
}

/* The sums of each grain cover the elements between the samples. */
static void check_grain_sums(const struct run *run, const struct buffers *buffers) {
    for (int64_t grain = 0; grain < buffers->grains; grain++) {
        const int64_t begin = grain * SW_GRAIN_ELEMS, end = sw_min_i64(begin + SW_GRAIN_ELEMS, buffers->length);
        double sum = 0.0, tolerance = 0.0;
        for (int64_t i = begin; i < end; i++) {
            sum += (double)*record_of(buffers, i);
            tolerance += ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * fabs((double)*record_of(buffers, i));
        }
        const double expected = item(run->golden, "grain_sums", grain);
        if (!(fabs(sum - expected) <= tolerance))
            fail_msg("grain %lld sums to %.9g, PyTorch's to %.9g", (long long)grain, sum, expected);
    }
}

static void check_weights_and_padding(const struct buffers *buffers) {
    for (int64_t i = 0; i < buffers->grains * SW_GRAIN_ELEMS; i++) {
        const float *p = record_of(buffers, i);
        assert_memory_equal(&buffers->weights[i], p, sizeof *p);
        if (i >= buffers->length && (p[0] != 0.0f || p[SW_GRAIN_ELEMS] != 0.0f || p[2 * SW_GRAIN_ELEMS] != 0.0f))
            fail_msg("the padding at %lld is no longer zero", (long long)i);
    }
}

static void thousand_steps(void **state) {
    const struct run *run = *state;
    struct buffers buffers = make_buffers((int64_t)number(run->golden, "length"));
    train(run, &buffers);
    check_samples(run, &buffers);
    check_grain_sums(run, &buffers);
    check_weights_and_padding(&buffers);
    free_buffers(&buffers);
}

static json_t *load_golden(void) {
    const char *folder = getenv("SW_TEST_DATA");
    char path[4096];
    snprintf(path, sizeof path, "%s/update.json", folder ? folder : "tests/data");
    json_error_t error;
    json_t *golden = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!golden)
        print_error("%s:%d: %s\n", path, error.line, error.text);
    return golden;
}

struct suite {
    size_t count;
    struct run runs[MAX_TESTS];
    char names[MAX_TESTS][NAME_CHARS];
    struct CMUnitTest tests[MAX_TESTS]; /* cmocka passes over the empty ones */
};

static void add_tests(struct suite *suite, json_t *golden, const char *device_name, int64_t max_length) {
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(golden, "runs"), i, entry) {
        const int64_t length = json_integer_value(json_object_get(entry, "length"));
        if (length > max_length)
            continue;
        const size_t at = suite->count++;
        assert(at < MAX_TESTS);
        suite->runs[at] = (struct run){
            .golden = entry,
            .steps = json_integer_value(json_object_get(golden, "steps")),
            .device_name = device_name,
        };
        snprintf(suite->names[at], NAME_CHARS, "%s, %s, %lld elements", device_name,
                 json_string_value(json_object_get(entry, "name")), (long long)length);
        suite->tests[at] = (struct CMUnitTest){
            .name = suite->names[at], .test_func = thousand_steps, .initial_state = &suite->runs[at]};
    }
}

int main(void) {
    static struct suite suite;
    json_t *golden = load_golden();
    if (!golden)
        return 1;
    /* The long runs would take the reference minutes; the kernel tests show that both devices give the same bits. */
    const char *only = getenv("SW_TEST_DEVICE");
    if (only == NULL)
        add_tests(&suite, golden, "ref", SW_GRAIN_ELEMS);
    add_tests(&suite, golden, only != NULL ? only : "cpu", INT64_MAX);
    assert(suite.count > 0);
    const int failed = cmocka_run_group_tests_name("update_golden", suite.tests, NULL, NULL);
    json_decref(golden);
    return failed;
}
