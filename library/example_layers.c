/* Fits a chain of bf16 layers, several micro-batches a step, while the update of each step ends behind the next forward
 * pass: `example_layers STORE STEPS [HOST_MIB [WEIGHTS]]`. Kill it at any time and start it again: the note of the last
 * commit says where the data goes on. WEIGHTS: a file for the final weights.
 *
 *     cc example_layers.c $(pkg-config --cflags --libs spillway) -o example_layers */
#include <inttypes.h>
#include <spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, COUNT = 60000, MICRO_BATCHES = 3, NAME_CHARS = 32 };

static uint16_t weights[LAYERS][COUNT], gradient[COUNT];
static float activations[LAYERS][COUNT]; /* the weights as the forward pass read them */

static float from_bf16(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even. */
static uint16_t to_bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static int failed(const char *what, int status, const spillway *store) {
    fprintf(stderr, "%s: %s (%s)\n", what, spillway_error(store), spillway_status_name(status));
    return 1;
}

static int add_layers(spillway *store) {
    int status = SPILLWAY_OK;
    for (int l = 0; l < LAYERS && status == SPILLWAY_OK; l++) {
        char name[NAME_CHARS];
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        snprintf(name, sizeof name, "layer.%d.weight", l);
        tensor.name = name;
        tensor.type = SPILLWAY_BF16;
        tensor.count = COUNT;
        tensor.weights = weights[l];
        status = spillway_add(store, &tensor, NULL);
    }
    return status;
}

/* Waits for each layer only when it is its turn, while the update works on those behind it. */
static int run_forward(spillway *store) {
    int status = SPILLWAY_OK;
    for (int l = 0; l < LAYERS && status == SPILLWAY_OK; l++) {
        status = spillway_wait_tensor(store, l);
        for (int i = 0; i < COUNT; i++)
            activations[l][i] = from_bf16(weights[l][i]);
    }
    return status;
}

/* Adds the gradients of a micro-batch: those of half the squared distance to a target that wobbles with the data,
 * divided by the number of micro-batches. One buffer does for all layers, because adding does not keep the pointer. */
static int run_backward(spillway *store, int64_t batch) {
    int status = SPILLWAY_OK;
    for (int l = LAYERS - 1; l >= 0 && status == SPILLWAY_OK; l--) {
        for (int i = 0; i < COUNT; i++) {
            const float target = (float)((i + l) % 100) * 0.01f + (float)((i + 7 * batch) % 13 - 6) * 0.02f;
            gradient[i] = to_bf16((activations[l][i] - target) / MICRO_BATCHES);
        }
        status = spillway_gradient(store, l, SPILLWAY_BF16, gradient, SPILLWAY_ADD);
    }
    return status;
}

/* Waits for the step that runs, and tells of it. */
static int end_step(spillway *store) {
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    const int status = spillway_wait(store, &result);
    if (status == SPILLWAY_OK && result.step > 0) {
        printf("step %" PRId64 " norm %.6f%s\n", result.step, result.grad_norm, result.committed ? " committed" : "");
        fflush(stdout);
    }
    return status;
}

/* batch: the next one of the data. */
static int train(spillway *store, int64_t steps, int64_t batch) {
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    int status = SPILLWAY_OK;
    rates.lr = 0.01;
    rates.clip = 1.0;
    while (status == SPILLWAY_OK && spillway_last_step(store) < steps) {
        char note[NAME_CHARS];
        for (int micro = 0; micro < MICRO_BATCHES && status == SPILLWAY_OK; micro++) {
            status = run_forward(store);
            if (status == SPILLWAY_OK)
                status = run_backward(store, batch++);
        }
        if (status == SPILLWAY_OK)
            status = end_step(store);
        snprintf(note, sizeof note, "%" PRId64, batch);
        rates.note = note;
        if (status == SPILLWAY_OK)
            status = spillway_step_start(store, &rates, NULL);
    }
    return status == SPILLWAY_OK ? end_step(store) : status;
}

static int write_weights(const char *path) {
    FILE *file = fopen(path, "wb");
    const int written = file != NULL && fwrite(weights, sizeof weights, 1, file) == 1;
    if (file != NULL && fclose(file) == 0 && written)
        return 0;
    perror(path);
    return 1;
}

int main(int argc, char **argv) {
    struct spillway_options options = SPILLWAY_OPTIONS_INIT;
    spillway *store = NULL;
    if (argc < 3 || argc > 5) {
        fprintf(stderr, "usage: %s STORE STEPS [HOST_MIB [WEIGHTS]]\n", argv[0]);
        return 2;
    }
    options.store = argv[1];
    options.host_memory_bytes = (argc > 3 ? strtoull(argv[3], NULL, 10) : 64) << 20;
    options.state = SPILLWAY_STATE_8BIT;
    options.save_every = 2;
    options.accumulate = 1;
    options.allow_buffered = 1;
    int status = spillway_create(&options, &store);
    if (status != SPILLWAY_OK)
        return failed("options", status, NULL);
    status = add_layers(store);
    if (status == SPILLWAY_OK)
        status = spillway_open(store);
    if (status == SPILLWAY_OK) {
        printf("from step %" PRId64 " (batch %s)\n", spillway_last_step(store), spillway_note(store));
        status = train(store, strtoll(argv[2], NULL, 10), strtoll(spillway_note(store), NULL, 10));
    }
    if (status == SPILLWAY_OK)
        status = spillway_save(store);
    const int result = status == SPILLWAY_OK ? 0 : failed("training", status, store);
    spillway_close(store);
    return result == 0 && argc > 4 ? write_weights(argv[4]) : result;
}
