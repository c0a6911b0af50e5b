/* Tensors of awkward sizes for tests of the library, their gradients, and a store of them. */
#ifndef SW_TESTS_LIBRARY_SUPPORT_H
#define SW_TESTS_LIBRARY_SUPPORT_H

#include "core/dtype.h"
#include "core/size.h"
#include "library/spillway.h"
#include "tests/equipment/support.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

enum { TENSORS = 7, MOST_ELEMS = 100003 };

/* A folder of the test's own, with a store in "store". */
static inline const char *library_store(void *const *state, char buffer[SUPPORT_PATH_CHARS]) {
    return support_path(state, "store", buffer);
}

static inline int library_remove_store(void **state) {
    static const char *const names[] = {"store/store.spillway", "store/tensors.json", "store/store.lock",
                                        "store/tensors.json.partial", "store/other"};
    char path[SUPPORT_PATH_CHARS];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(support_path(state, names[i], path));
    rmdir(library_store(state, path));
    return 0;
}

/* Removes the stores of several processes. */
static inline void library_remove_stores(void *const *state) {
    char command[SUPPORT_PATH_CHARS + 16], path[SUPPORT_PATH_CHARS];
    snprintf(command, sizeof command, "rm -rf '%s'", library_store(state, path));
    assert_int_equal(system(command), 0);
}

/* Gathers parts of processes that are threads into `own`, which is data[number]: that of a process i is
 * [bounds[i], bounds[i+1]). */
static inline void library_gather(pthread_barrier_t *barrier, void **data, int count, int number, void *own,
                                  const uint64_t *bounds) {
    data[number] = own;
    pthread_barrier_wait(barrier);
    for (int i = 0; i < count; i++)
        if (i != number)
            memcpy((char *)own + bounds[i], (const char *)data[i] + bounds[i], bounds[i + 1] - bounds[i]);
    pthread_barrier_wait(barrier);
}

static inline int library_remove_folder(void **state) {
    library_remove_store(state);
    return support_remove_folder(state);
}

/* The tensors of a model: one element, less and more than a vector of the CPU, a grain, and more than a chunk's piece.
 */
struct model {
    int64_t count[TENSORS];
    sw_dtype type[TENSORS];
    const char *name[TENSORS];
    void *weights[TENSORS], *gradients[TENSORS];
    bool decays[TENSORS];
    double lr_scale[TENSORS];
};

/* Returns zeros at an address where the library reads and writes whole grains in place. */
static inline void *model_memory(int64_t count) {
    const size_t bytes = (size_t)sw_round_up(count * (int64_t)sizeof(float), SW_BUFFER_ALIGN_BYTES);
    void *memory = aligned_alloc(SW_BUFFER_ALIGN_BYTES, bytes);
    assert_non_null(memory);
    return memset(memory, 0, bytes);
}

static inline struct model model_make(void) {
    struct model m = {
        .count = {1, 7, 16384, 33, MOST_ELEMS, 4097, 40000},
        .type = {SW_F32, SW_BF16, SW_F32, SW_F16, SW_F32, SW_BF16, SW_F16},
        .name = {"one", "seven", "grain", "half", "large.weight", "bf16.weight", "fp16.weight"},
        .decays = {true, false, true, true, true, true, false},
        .lr_scale = {1, 1, 1, 0.5, 1, 1, 0},
    };
    for (int t = 0; t < TENSORS; t++) {
        m.weights[t] = model_memory(m.count[t]);
        m.gradients[t] = model_memory(m.count[t]);
        for (int64_t i = 0; i < m.count[t]; i++)
            sw_dtype_store(m.type[t], m.weights[t], i, (float)((i * 37 + t * 11) % 101 - 50) * 0.02f);
    }
    return m;
}

static inline void model_free(struct model *m) {
    for (int t = 0; t < TENSORS; t++) {
        free(m->weights[t]);
        free(m->gradients[t]);
    }
}

/* Fills the gradients of a step: they depend on the step and on the weights, so that a wrong weight shows later. */
static inline void model_gradients(struct model *m, int64_t step) {
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < m->count[t]; i++) {
            const uint32_t word = (uint32_t)(step * 7919 + t * 104729 + i * 31) * 2654435761u;
            const float noise = (float)(word >> 8) * 0x1p-24f - 0.5f;
            sw_dtype_store(m->type[t], m->gradients[t], i,
                           0.01f * noise + 0.002f * sw_dtype_load(m->type[t], m->weights[t], i));
        }
}

static inline void library_must(int status, const spillway *self, const char *what) {
    if (status != SPILLWAY_OK)
        fail_msg("%s: %s (%s)", what, spillway_error(self), spillway_status_name(status));
}

static inline struct spillway_options library_options(const char *store, int64_t host_memory_bytes) {
    struct spillway_options options = SPILLWAY_OPTIONS_INIT;
    options.store = store;
    options.host_memory_bytes = (uint64_t)host_memory_bytes;
    options.allow_buffered = 1;
    options.threads = 1;
    return options;
}

static inline struct spillway_tensor model_tensor(const struct model *m, int t) {
    struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    tensor.name = m->name[t];
    tensor.type = (int)m->type[t];
    tensor.count = m->count[t];
    tensor.weights = m->weights[t];
    tensor.lr_scale = m->lr_scale[t];
    tensor.decay = m->decays[t];
    return tensor;
}

/* Describes a store of the model, in this order of its tensors (NULL: their own). */
static inline spillway *model_describe(const struct model *m, const struct spillway_options *options,
                                       const int *order) {
    spillway *self = NULL;
    library_must(spillway_create(options, &self), NULL, "create");
    for (int i = 0; i < TENSORS; i++) {
        const struct spillway_tensor tensor = model_tensor(m, order != NULL ? order[i] : i);
        int64_t index;
        library_must(spillway_add(self, &tensor, &index), self, "add");
        assert_int_equal(index, i);
    }
    return self;
}

static inline spillway *model_open(const struct model *m, const struct spillway_options *options) {
    spillway *self = model_describe(m, options, NULL);
    library_must(spillway_open(self), self, "open");
    return self;
}

static inline void model_hand_in(const struct model *m, spillway *self, int how) {
    for (int t = 0; t < TENSORS; t++)
        library_must(spillway_gradient(self, t, (int)m->type[t], m->gradients[t], how), self, "gradient");
}

#endif
