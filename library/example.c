/* Fits two tensors to a target, with AdamW whose state lies in a store: `example STORE STEPS [HOST_MIB [WEIGHTS]]`.
 * Kill it at any time and start it again: it goes on after the last committed step. WEIGHTS: a file for the final
 * weights.
 *
 *     cc example.c $(pkg-config --cflags --libs spillway) -o example */
#include <inttypes.h>
#include <spillway.h>
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = 2, COUNT = 300000 };

static float weights[TENSORS][COUNT], gradients[TENSORS][COUNT];

static int failed(const char *what, int status, const spillway *store) {
    fprintf(stderr, "%s: %s (%s)\n", what, spillway_error(store), spillway_status_name(status));
    return 1;
}

/* The gradient of half the squared distance to a target that wobbles from step to step, as batches of data do. */
static void compute_gradients(int64_t step) {
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < COUNT; i++)
            gradients[t][i] = weights[t][i] - (float)(i % 100) * 0.01f - (float)((i + 7 * step) % 13 - 6) * 0.02f;
}

static int add_tensors(spillway *store) {
    static const char *const names[TENSORS] = {"first", "second"};
    int status = SPILLWAY_OK;
    for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        tensor.name = names[t];
        tensor.type = SPILLWAY_F32;
        tensor.count = COUNT;
        tensor.weights = weights[t];
        status = spillway_add(store, &tensor, NULL);
    }
    return status;
}

static int train(spillway *store, int64_t steps) {
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    rates.lr = 0.01;
    rates.clip = 1.0;
    while (spillway_last_step(store) < steps) {
        char note[32];
        int status = SPILLWAY_OK;
        compute_gradients(spillway_last_step(store) + 1);
        snprintf(note, sizeof note, "batch %" PRId64, spillway_last_step(store) + 1);
        rates.note = note;
        for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++)
            status = spillway_gradient(store, t, SPILLWAY_F32, gradients[t], SPILLWAY_SET);
        if (status == SPILLWAY_OK)
            status = spillway_step(store, &rates, &result);
        if (status != SPILLWAY_OK)
            return failed("step", status, store);
        printf("step %" PRId64 " norm %.6f%s\n", result.step, result.grad_norm, result.committed ? " committed" : "");
        fflush(stdout);
    }
    return 0;
}

static int write_weights(const char *path) {
    FILE *file = path != NULL ? fopen(path, "wb") : NULL;
    const int written = file != NULL && fwrite(weights, sizeof weights, 1, file) == 1;
    if (file != NULL && fclose(file) == 0 && written)
        return 0;
    if (path != NULL)
        perror(path);
    return path != NULL;
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
    options.save_every = 2;
    options.allow_buffered = 1;
    int status = spillway_create(&options, &store);
    if (status != SPILLWAY_OK)
        return failed("options", status, NULL);
    status = add_tensors(store);
    if (status == SPILLWAY_OK)
        status = spillway_open(store);
    int result = status == SPILLWAY_OK ? 0 : failed("open", status, store);
    if (result == 0) {
        printf("from step %" PRId64 " (%s)\n", spillway_last_step(store), spillway_note(store));
        result = train(store, strtoll(argv[2], NULL, 10));
    }
    if (result == 0 && (status = spillway_save(store)) != SPILLWAY_OK)
        result = failed("save", status, store);
    spillway_close(store);
    return result == 0 && argc > 4 ? write_weights(argv[4]) : result;
}
