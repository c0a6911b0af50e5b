#include "kernels/self_test/cases.h"

#include "core/rng.h"
#include "core/size.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A margin around every operand that no op may touch, as long as a stray write is likely to be off. */
enum { GUARD_BYTES = 4096, GUARD_VALUE = 0xa5, POISON_VALUE = 0xff, FAILURE_CHARS = 200 };
#define SEED UINT64_C(20240607)

static int64_t bytes_of(trial_type type) {
    static const int64_t bytes[] = {
        [ELEMENT_F32] = 4, [ELEMENT_BF16] = 2, [ELEMENT_F16] = 2, [ELEMENT_F64] = 8, [ELEMENT_I32] = 4};
    return bytes[type];
}

void *trial_operand(struct trial *trial, struct trial_operand operand) {
    const int i = trial->next++;
    assert(i < TRIAL_OPERANDS);
    if (trial->pass != TRIAL_DECLARE)
        return trial->base + trial->offset[i];
    trial->operand[i] = operand;
    trial->offset[i] = trial->image_bytes + GUARD_BYTES;
    trial->image_bytes =
        sw_round_up(trial->offset[i] + operand.elems * bytes_of(operand.type) + GUARD_BYTES, SW_BUFFER_ALIGN_BYTES);
    trial->count = trial->next;
    return NULL;
}

const void *trial_input(struct trial *trial, const char *name, sw_dtype type, int64_t elems, float deviation) {
    return trial_operand(
        trial,
        (struct trial_operand){
            .name = name, .type = (trial_type)type, .elems = elems, .fill = FILL_NORMAL, .deviation = deviation});
}

void *trial_output(struct trial *trial, const char *name, sw_dtype type, int64_t elems, struct trial_tolerance within) {
    return trial_operand(
        trial,
        (struct trial_operand){
            .name = name, .type = (trial_type)type, .elems = elems, .compare = COMPARE_CLOSE, .tolerance = within});
}

void *trial_sum(struct trial *trial, const char *name, sw_dtype type, int64_t elems, struct trial_tolerance within) {
    return trial_operand(trial, (struct trial_operand){.name = name,
                                                       .type = (trial_type)type,
                                                       .elems = elems,
                                                       .fill = FILL_NORMAL,
                                                       .deviation = 1.0f,
                                                       .compare = COMPARE_CLOSE,
                                                       .tolerance = within});
}

void trial_needs_scratch(struct trial *trial, int64_t bytes, int64_t reference_bytes) {
    trial->scratch_bytes = sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
    trial->reference_scratch_bytes = sw_round_up(reference_bytes, SW_BUFFER_ALIGN_BYTES);
}

/* Every kind of fp32 number: zeros, subnormal numbers, ties of both 16-bit types, and the limits of their ranges. */
static float edge(uint64_t index, float normal) {
    static const float edges[] = {0.0f,        -0.0f,       0x1p-149f,   -0x1p-140f,      0x1p-24f,    0x1.8p-25f,
                                  0x1.01p0f,   0x1.03p0f,   0x1.002p0f,  0x1.006p0f,      0x1.0101p0f, -0x1.ffdp15f,
                                  0x1.ffep15f, 0x1.fep127f, 0x1.ffp127f, -0x1.fffffep127f};
    enum { EDGES = sizeof edges / sizeof edges[0], EVERY = 7 };
    return index % EVERY == 0 ? edges[index / EVERY % EDGES] : normal;
}

static void store(const struct trial_operand *operand, void *to, int64_t index, float value) {
    if (operand->type == ELEMENT_F64)
        ((double *)to)[index] = (double)value;
    else
        sw_dtype_store((sw_dtype)operand->type, to, index, value);
}

/* Fills each sequence with consecutive documents of drawn lengths. */
static void fill_documents(const struct trial_operand *operand, uint64_t seed, uint64_t stream, int32_t *to) {
    for (int64_t i = 0, first = 0, end = 0; i < operand->elems; i++) {
        const int64_t token = i % operand->first;
        if (token == 0)
            end = 0;
        if (token == end) {
            first = token;
            end += 1 + (int64_t)(sw_rng(seed, stream, (uint64_t)i).word[0] % (uint64_t)operand->limit);
        }
        to[i] = (int32_t)first;
    }
}

/* Numbers are drawn once. Operands begin at different ones of them, and no row length divides their number, so that an
 * element in another's place shows. */
static void fill_numbers(const struct trial_operand *operand, const float *normals, uint64_t begin, char *to) {
    for (int64_t i = 0; i < operand->elems; i++) {
        const float normal = operand->deviation * normals[(begin + (uint64_t)i) % TRIAL_NORMALS];
        const float value = operand->fill == FILL_POSITIVE ? 0.5f + fabsf(normal)
                            : operand->fill == FILL_EDGES  ? edge((uint64_t)i, normal)
                                                           : normal;
        store(operand, to, i, value);
    }
}

static void fill(const struct trial *trial, int number, const struct trial_bench *bench) {
    const struct trial_operand *operand = &trial->operand[number];
    char *to = bench->start + trial->offset[number];
    const uint64_t stream = (uint64_t)number + 1;
    switch (operand->fill) {
    case FILL_POISON: memset(to, POISON_VALUE, (size_t)(operand->elems * bytes_of(operand->type))); return;
    case FILL_DOCUMENTS: fill_documents(operand, trial->seed, stream, (int32_t *)(void *)to); return;
    case FILL_INDICES:
        for (int64_t i = 0; i < operand->elems; i++)
            ((int32_t *)(void *)to)[i] =
                (int32_t)(operand->first + (int64_t)(sw_rng(trial->seed, stream, (uint64_t)i).word[0] %
                                                     (uint64_t)(operand->limit - operand->first)));
        return;
    default: fill_numbers(operand, bench->normals, sw_rng(trial->seed, stream, 0).word[0], to); return;
    }
}

static double load(const struct trial_operand *operand, const char *from, int64_t index) {
    return operand->type == ELEMENT_F64 ? ((const double *)(const void *)from)[index]
                                        : (double)sw_dtype_load((sw_dtype)operand->type, from, index);
}

static bool poisoned(const char *element, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if ((unsigned char)element[i] != POISON_VALUE)
            return false;
    return true;
}

/* Returns the tolerance. Two sums that differ only in their order can round to neighbours: bf16 has 8 bits and fp16 11.
 * The smallest numbers of fp16 are further apart than that. */
static double allowed(const struct trial_operand *operand, double want) {
    const double step = operand->type == ELEMENT_BF16 ? 0x1p-7 : operand->type == ELEMENT_F16 ? 0x1p-10 : 0.0;
    const double least = operand->type == ELEMENT_F16 ? 0x1p-24 : 0.0;
    return operand->tolerance.absolute + least + (operand->tolerance.relative + step) * fabs(want);
}

static void note_failure(const struct trial *trial, struct sw_self_test_op *op, const char *text) {
    if (!op->failed)
        snprintf(op->failure, sizeof op->failure, "%s: %s", sw_dtype_name(trial->type), text);
    op->failed = true;
}

/* Returns the error as a share of the tolerance. */
static double error_of(const struct trial_operand *operand, const char *got, const char *want, int64_t i) {
    const int64_t bytes = bytes_of(operand->type);
    if (memcmp(got + i * bytes, want + i * bytes, (size_t)bytes) == 0)
        return 0.0;
    const double x = load(operand, got, i), y = load(operand, want, i);
    const bool unwritten = poisoned(want + i * bytes, bytes);
    if (operand->compare == COMPARE_BITS || (unwritten && operand->compare != COMPARE_SAMPLED))
        return INFINITY;
    if (unwritten)
        return isfinite(x) ? 0.0 : INFINITY;
    const double share = fabs(x - y) / allowed(operand, y);
    return isnan(share) ? INFINITY : share;
}

static void compare_operand(const struct trial *trial, int number, const struct trial_bench *bench,
                            struct sw_self_test_op *op) {
    const struct trial_operand *operand = &trial->operand[number];
    const char *got = bench->got + trial->offset[number], *want = bench->want + trial->offset[number];
    char text[FAILURE_CHARS];
    for (int64_t i = 0; i < operand->elems; i++) {
        const double error = error_of(operand, got, want, i);
        op->worst = fmax(op->worst, error);
        if (!(error <= 1.0) && !op->failed) {
            snprintf(text, sizeof text, "element %lld of %lld of %s is %.9g and should be %.9g", (long long)i,
                     (long long)operand->elems, operand->name, load(operand, got, i), load(operand, want, i));
            note_failure(trial, op, text);
        }
    }
}

/* Checks that all bytes that are not output are unchanged: inputs, and the margins of every operand. */
static void compare_rest(const struct trial *trial, const struct trial_bench *bench, struct sw_self_test_op *op) {
    char text[FAILURE_CHARS];
    int64_t at = 0;
    for (int i = 0; i <= trial->count; i++) {
        const bool output = i < trial->count && trial->operand[i].compare != COMPARE_NOT;
        if (i < trial->count && !output)
            continue;
        const int64_t end = i < trial->count ? trial->offset[i] : trial->image_bytes;
        if (memcmp(bench->got + at, bench->start + at, (size_t)(end - at)) != 0) {
            snprintf(text, sizeof text, "memory that is not its output was written, %s %s",
                     i < trial->count ? "before" : "behind",
                     i < trial->count ? trial->operand[i].name : "the last one");
            note_failure(trial, op, text);
        }
        if (i < trial->count)
            at = end + trial->operand[i].elems * bytes_of(trial->operand[i].type);
    }
}

static sw_status pass(struct trial *trial, trial_function function, trial_pass which, struct sw_stream *stream,
                      char *base) {
    trial->pass = which;
    trial->stream = stream;
    trial->base = base;
    trial->next = 0;
    return function(trial);
}

static void free_images(struct trial_bench *bench) {
    free(bench->start);
    free(bench->want);
    free(bench->got);
    free(bench->scratch);
    sw_memory_close(bench->memory);
    bench->start = bench->want = bench->got = bench->scratch = NULL;
    bench->memory = NULL;
}

static sw_status grow(struct trial_bench *bench, int64_t bytes) {
    if (bytes <= bench->bytes)
        return SW_OK;
    free_images(bench);
    bench->bytes = 0;
    char **images[] = {&bench->start, &bench->want, &bench->got, &bench->scratch};
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++) {
        *images[i] = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)bytes);
        if (*images[i] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to test the device");
    }
    SW_TRY(sw_memory_open(bench->device, "self-test", SW_MEMORY_DEVICE, bytes, &bench->memory));
    bench->bytes = bytes;
    return SW_OK;
}

static sw_status run_on_device(struct trial_bench *bench, struct trial *trial, trial_function function) {
    char *base = sw_memory_base(bench->memory);
    trial->scratch = base + trial->image_bytes;
    SW_TRY(sw_copy_to_device(bench->stream, base, bench->start, trial->image_bytes));
    SW_TRY(pass(trial, function, TRIAL_DEVICE, bench->stream, base));
    SW_TRY(sw_stream_synchronize(bench->stream));
    SW_TRY(sw_copy_to_host(bench->stream, bench->got, base, trial->image_bytes));
    return sw_stream_synchronize(bench->stream);
}

sw_status trial_run(struct trial_bench *bench, struct sw_self_test_op *op, trial_function function, const void *shape,
                    sw_dtype type) {
    struct trial trial = {.device = bench->device,
                          .reference = bench->reference,
                          .shape = shape,
                          .type = type,
                          .seed = SEED + bench->trials++};
    SW_TRY(pass(&trial, function, TRIAL_DECLARE, NULL, NULL));
    SW_TRY(grow(bench, trial.image_bytes + sw_max_i64(trial.scratch_bytes, trial.reference_scratch_bytes)));
    trial.scratch = bench->scratch;
    memset(bench->start, GUARD_VALUE, (size_t)trial.image_bytes);
    for (int i = 0; i < trial.count; i++)
        fill(&trial, i, bench);
    SW_TRY(pass(&trial, function, TRIAL_PREPARE, bench->reference_stream, bench->start));
    memcpy(bench->want, bench->start, (size_t)trial.image_bytes);
    SW_TRY(pass(&trial, function, TRIAL_REFERENCE, bench->reference_stream, bench->want));
    SW_TRY(run_on_device(bench, &trial, function));
    op->comparisons++;
    for (int i = 0; i < trial.count; i++)
        if (trial.operand[i].compare != COMPARE_NOT)
            compare_operand(&trial, i, bench, op);
    compare_rest(&trial, bench, op);
    return SW_OK;
}

sw_status trial_bench_open(struct sw_device *device, struct trial_bench *out) {
    *out = (struct trial_bench){.device = device};
    out->normals = malloc(TRIAL_NORMALS * sizeof *out->normals);
    if (out->normals == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to test the device");
    for (uint64_t i = 0; i < TRIAL_NORMALS; i++)
        out->normals[i] = sw_rng_normal(SEED, 0, i);
    sw_status status = sw_device_open("ref", 0, &out->reference);
    if (status == SW_OK)
        status = sw_stream_open(out->reference, &out->reference_stream);
    if (status == SW_OK)
        status = sw_stream_open(device, &out->stream);
    if (status != SW_OK)
        trial_bench_close(out);
    return status;
}

void trial_bench_close(struct trial_bench *bench) {
    free_images(bench);
    if (bench->stream != NULL)
        sw_stream_close(bench->stream);
    if (bench->reference_stream != NULL)
        sw_stream_close(bench->reference_stream);
    sw_device_close(bench->reference);
    free(bench->normals);
    *bench = (struct trial_bench){0};
}
