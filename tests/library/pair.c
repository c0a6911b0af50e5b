/* Measures a step of the library beside that of the program's own engine, in one process and in turn, on the parameters
 * of GPT-2 124M in fp32, with all state in host memory. tools/library_bench.py runs it.
 *
 *     pair ROUNDS THREADS LAYERS FOLDER
 *
 * The program's step, behind the backward pass, rounds the gradients and sums their squares (sw_finish_gradient), and
 * updates by the plan's program (sw_engine_settle), with weights in host memory too, so that nothing goes to a device.
 * The library's step sums squares and updates. Prints a line of JSON for each round after the first: seconds, and those
 * of the processors, of each. */
#include "core/clock.h"
#include "tests/e2e/harness.h"
#include "tests/equipment/must.h"
#include "tests/library/support.h"

#include <sys/resource.h>

enum { ARGUMENTS = 5, SEQ = 8, CHUNK = 16 };
#define MEMORY_BYTES (INT64_C(3) << 30)

struct pair {
    struct harness harness;
    const struct sw_units *units;
    spillway *library;
    float **weights, **gradients, *rounded; /* one entry per unit; rounded: as large as the largest */
    double *sums;
};

struct taken {
    double wall, cpu;
};

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static struct taken since(const struct taken *begun) {
    return (struct taken){1e-9 * (double)sw_now_ns() - begun->wall, cpu_seconds() - begun->cpu};
}

static struct taken now(void) {
    return since(&(struct taken){0});
}

static void open_program(struct pair *p, int threads, int64_t layers) {
    static struct sw_model_config config = {.family = "gpt2",
                                            .vocab = 50257,
                                            .hidden = 768,
                                            .heads = 12,
                                            .kv_heads = 12,
                                            .head_dim = 64,
                                            .ffn = 3072,
                                            .max_positions = 1024,
                                            .norm_epsilon = 1e-5,
                                            .init_std = 0.02,
                                            .activation = SW_GELU_TANH,
                                            .tied_embeddings = true};
    config.layers = layers;
    const struct harness_spec spec = {.config = &config,
                                      .shape = {.type = SW_F32, .batch = 1, .seq = SEQ},
                                      .micro_batches = 1,
                                      .place = "weights=host,grads=host,optimizer=host,acts=device",
                                      .chunk_grains = CHUNK,
                                      .ring_chunks = 2,
                                      .compute_threads = threads,
                                      .update_threads = threads,
                                      .seed = 1};
    must(harness_open(&spec, &p->harness));
    p->units = sw_model_get_units(p->harness.model);
}

static void add_unit(struct pair *p, int64_t u) {
    const struct sw_unit *unit = &p->units->unit[u];
    p->weights[u] = model_memory(unit->elems);
    p->gradients[u] = model_memory(unit->elems);
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        tensor.name = unit->tensor[t].name;
        tensor.count = unit->tensor[t].elems;
        tensor.weights = p->weights[u] + unit->tensor[t].offset;
        tensor.decay = unit->tensor[t].decay;
        tensor.begins_unit = t == 0;
        for (int64_t i = 0; i < tensor.count; i++) {
            p->weights[u][unit->tensor[t].offset + i] = 0.0005f * (float)(i % 79 - 39);
            p->gradients[u][unit->tensor[t].offset + i] = 0.0001f * (float)(i % 101 - 50);
        }
        library_must(spillway_add(p->library, &tensor, NULL), p->library, "add");
    }
}

static void open_library(struct pair *p, int threads, const char *folder) {
    char path[SUPPORT_PATH_CHARS];
    int64_t most = 0;
    snprintf(path, sizeof path, "%s/pair", folder);
    struct spillway_options options = library_options(path, MEMORY_BYTES);
    options.threads = threads;
    options.save_every = INT64_MAX;
    library_must(spillway_create(&options, &p->library), NULL, "create");
    p->weights = calloc((size_t)p->units->count, sizeof *p->weights);
    p->gradients = calloc((size_t)p->units->count, sizeof *p->gradients);
    for (int64_t u = 0; u < p->units->count; u++) {
        most = sw_max_i64(most, p->units->unit[u].elems);
        add_unit(p, u);
    }
    p->rounded = model_memory(most);
    p->sums = model_memory(2 * most / SW_GRAIN_ELEMS);
    library_must(spillway_open(p->library), p->library, "open");
}

/* Rounds the gradients of the library's step, of as many elements as the program's. */
static struct taken round_gradients(struct pair *p, struct sw_stream *stream) {
    const struct taken begun = now();
    for (int64_t u = 0; u < p->units->count; u++)
        must(sw_finish_gradient(stream, .type = SW_F32, .elems = p->units->unit[u].elems, .acc = p->gradients[u],
                                .grads = p->rounded, .sums = p->sums));
    must(sw_stream_synchronize(stream));
    return since(&begun);
}

static struct taken update_by_program(struct pair *p, int64_t step) {
    struct sw_step_result result;
    must(harness_begin(&p->harness, step, 1.0));
    must(harness_wait(&p->harness, &result));
    assert_false(result.skipped);
    const struct taken begun = now();
    must(sw_engine_settle(p->harness.engine));
    return since(&begun);
}

static struct taken step_by_library(struct pair *p) {
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    int64_t index = 0;
    const struct taken begun = now();
    for (int64_t u = 0; u < p->units->count; u++)
        for (int64_t t = 0; t < p->units->unit[u].tensor_count; t++)
            library_must(spillway_gradient(p->library, index++, SPILLWAY_F32,
                                           p->gradients[u] + p->units->unit[u].tensor[t].offset, SPILLWAY_SET),
                         p->library, "gradient");
    library_must(spillway_step(p->library, &rates, &result), p->library, "step");
    const struct taken taken = since(&begun);
    assert_int_equal(result.skipped, 0);
    return taken;
}

static void close_pair(struct pair *p) {
    spillway_close(p->library);
    for (int64_t u = 0; u < p->units->count; u++) {
        free(p->weights[u]);
        free(p->gradients[u]);
    }
    free(p->weights);
    free(p->gradients);
    free(p->rounded);
    free(p->sums);
    harness_close(&p->harness);
}

int main(int argc, char **argv) {
    struct pair pair = {0};
    struct sw_stream *stream;
    if (argc != ARGUMENTS) {
        fprintf(stderr, "usage: %s ROUNDS THREADS LAYERS FOLDER\n", argv[0]);
        return 2;
    }
    const int rounds = atoi(argv[1]), threads = atoi(argv[2]);
    open_program(&pair, threads, atoi(argv[3]));
    open_library(&pair, threads, argv[4]);
    must(sw_stream_open(pair.harness.update, &stream));
    for (int round = 0; round <= rounds; round++) {
        /* The order changes from round to round. */
        const struct taken first = round % 2 == 1 ? step_by_library(&pair) : (struct taken){0};
        const struct taken update = update_by_program(&pair, round + 1);
        const struct taken rounding = round_gradients(&pair, stream);
        const struct taken library = round % 2 == 1 ? first : step_by_library(&pair);
        if (round > 0)
            printf("{\"parameters\": %lld, \"update\": [%.6f, %.6f], \"rounding\": [%.6f, %.6f], \"library\": [%.6f, "
                   "%.6f]}\n",
                   (long long)sw_units_parameters(pair.units), update.wall, update.cpu, rounding.wall, rounding.cpu,
                   library.wall, library.cpu);
        fflush(stdout);
    }
    sw_stream_close(stream);
    close_pair(&pair);
    return 0;
}
