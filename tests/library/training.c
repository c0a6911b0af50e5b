/* The program's own training by way of the library: 50 steps of `spillway train`, and the same steps by the model's own
 * arithmetic and the library, whose state then has the same bits, in host memory and on the drive. */
#include "job/settings/schedule.h"
#include "job/settings_plan.h"
#include "run/data/data.h"
#include "run/folder/state.h"
#include "tests/equipment/must.h"
#include "tests/library/support.h"

#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

enum {
    TRAINING_STEPS = 50,
    WORDS = 48,
    OPEN_FOLDERS = 16,
    HOST_BYTES = 256 << 20,
    LEAST_BYTES = 1 << 20,
    MORE_BYTES = 1 << 16,
    STORES = 2
};

/* Matrices are larger than the tensors that keep fp32 moments in any format. */
static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_embd\": 96, \"n_layer\": 2, \"n_head\": 2, \"vocab_size\": 256, "
    "\"n_positions\": 96}";
static const char llama[] = "{\"model_type\": \"llama\", \"hidden_size\": 96, \"intermediate_size\": 160, "
                            "\"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"num_key_value_heads\": 3, "
                            "\"vocab_size\": 256, \"max_position_embeddings\": 96, \"rms_norm_eps\": 1e-5, "
                            "\"tie_word_embeddings\": false}";

struct training {
    const char *model, *precision, *state, *place;
};

/* The program. */

static void write_inputs(void *const *state, const char *config) {
    char path[SUPPORT_PATH_CHARS], text[1 << 14];
    size_t used = 0;
    assert_int_equal(mkdir(support_path(state, "model", path), 0700), 0);
    support_write(state, "model/config.json", config, strlen(config), path);
    for (unsigned line = 0; used + 64 < sizeof text; line++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%u times %u is %u.\n", line % 13, line % 7,
                                 line % 13 * (line % 7));
    support_write(state, "data.txt", text, used, path);
}

/* Runs `spillway train` in the folder. Clips some of the steps. */
static void train(void *const *state, const struct training *training) {
    char model[SUPPORT_PATH_CHARS], data[SUPPORT_PATH_CHARS], run[SUPPORT_PATH_CHARS], errors[SUPPORT_PATH_CHARS];
    const char *words[WORDS] = {"spillway",
                                "train",
                                "--model",
                                support_path(state, "model", model),
                                "--init",
                                "--data",
                                support_path(state, "data.txt", data),
                                "--run",
                                support_path(state, "run", run),
                                "--steps",
                                "50",
                                "--seq",
                                "32",
                                "--micro-batch",
                                "1",
                                "--batch-tokens",
                                "64",
                                "--lr",
                                "0.01",
                                "--warmup",
                                "10",
                                "--schedule",
                                "cosine",
                                "--weight-decay",
                                "0.1",
                                "--clip",
                                "1.5",
                                "--seed",
                                "7",
                                "--threads",
                                "1",
                                "--rounding",
                                "nearest",
                                "--order",
                                "layer",
                                "--device",
                                "cpu",
                                "--precision",
                                training->precision,
                                "--optimizer-state",
                                training->state,
                                "--place",
                                training->place,
                                "--allow-buffered",
                                "--quiet"};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int ended = -1;
    const char *program = getenv("SW_PROGRAM");
    assert_non_null(program);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, support_path(state, "errors", errors),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    assert_int_equal(posix_spawn(&child, program, &actions, NULL, (char *const *)(uintptr_t)words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (ended != 0) {
        char said[1024] = "";
        FILE *file = fopen(errors, "r");
        said[file != NULL ? fread(said, 1, sizeof said - 1, file) : 0] = '\0';
        fail_msg("%s train ended with %d: %s", program, ended, said);
    }
}

/* The model: one unit after the other, all micro-batches of a unit together, as `--order layer` says. */

/* Vectors of a unit. One entry per micro-batch: output, intermediates. */
enum { MICROS = 2 };
struct layer {
    void *weights, *grads;
    float *acc;
    void *out[MICROS], *saved[MICROS], *derived[MICROS];
};

struct pupil {
    struct sw_run run;
    struct sw_state_reader *reader;
    struct sw_data *data;
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_model *model;
    const struct sw_units *units;
    struct sw_unit_ops ops;
    struct layer *layer;
    int32_t *tokens[MICROS];
    void *grad[MICROS], *work;
    double *sums, loss;
    float loss_scale;
};

static void open_pupil(void *const *state, struct pupil *p) {
    char path[SUPPORT_PATH_CHARS];
    *p = (struct pupil){0};
    must(sw_state_open_run(support_path(state, "run", path), &(struct sw_run_moved){0}, &p->run, &p->reader));
    const struct sw_settings *settings = &p->run.settings;
    assert_int_equal(sw_settings_micro_batches(settings), MICROS);
    const struct sw_data_spec data = {.files = (const char *const *)settings->data.items,
                                      .file_count = settings->data.count,
                                      .vocab = p->run.config.vocab,
                                      .seq = settings->seq,
                                      .seed = (uint64_t)settings->seed};
    must(sw_data_open(&data, &p->data));
    must(sw_device_open("cpu", 1, &p->device));
    must(sw_stream_open(p->device, &p->stream));
    const struct sw_model_shape shape = sw_settings_shape(settings);
    must(sw_model_create(&p->run.config, &shape, p->device, &p->model));
    p->units = sw_model_get_units(p->model);
    p->ops = sw_model_ops(p->model);
    p->layer = calloc((size_t)p->units->count, sizeof *p->layer);
    const struct sw_model_bytes bytes = sw_model_bytes(p->model);
    int64_t grains = 1;
    for (int64_t u = 0; u < p->units->count; u++) {
        struct layer *layer = &p->layer[u];
        grains = sw_max_i64(grains, p->units->unit[u].grains);
        layer->weights = model_memory(p->units->unit[u].elems);
        layer->grads = model_memory(p->units->unit[u].elems);
        layer->acc = model_memory(p->units->unit[u].elems);
        for (int m = 0; m < MICROS; m++) {
            layer->out[m] = model_memory(bytes.cost[u].output_bytes + 1);
            layer->saved[m] = model_memory(bytes.cost[u].saved_bytes + 1);
            layer->derived[m] = model_memory(bytes.cost[u].derived_bytes + 1);
        }
    }
    for (int m = 0; m < MICROS; m++) {
        p->tokens[m] = model_memory(bytes.token);
        p->grad[m] = model_memory(bytes.cost[0].output_bytes);
    }
    p->sums = model_memory(2 * grains);
    p->work = model_memory(bytes.work + 1);
    if (p->ops.begin != NULL)
        must(p->ops.begin(p->ops.context, p->stream, p->work));
}

static void close_pupil(struct pupil *p) {
    for (int64_t u = 0; u < p->units->count; u++) {
        free(p->layer[u].weights);
        free(p->layer[u].grads);
        free(p->layer[u].acc);
        for (int m = 0; m < MICROS; m++) {
            free(p->layer[u].out[m]);
            free(p->layer[u].saved[m]);
            free(p->layer[u].derived[m]);
        }
    }
    for (int m = 0; m < MICROS; m++) {
        free(p->tokens[m]);
        free(p->grad[m]);
    }
    free(p->layer);
    free(p->sums);
    free(p->work);
    sw_model_destroy(p->model);
    sw_stream_close(p->stream);
    sw_device_close(p->device);
    sw_data_close(p->data);
    sw_state_close(p->reader);
    sw_run_release(&p->run);
}

static struct sw_unit_call call_of(struct pupil *p, int64_t step, int64_t unit, int micro) {
    struct layer *layer = &p->layer[unit];
    const int64_t rows = p->run.settings.micro_batch * p->run.settings.seq;
    const void *in = unit > 0 ? p->layer[unit - 1].out[micro] : NULL;
    const bool ties = p->units->tied && unit == p->units->count - 1;
    return (struct sw_unit_call){.stream = p->stream,
                                 .unit = unit,
                                 .micro = micro,
                                 .seed = (uint64_t)p->run.settings.seed,
                                 .draw = (uint64_t)((step - 1) * MICROS + micro + 1),
                                 .weights = layer->weights,
                                 .table = ties ? p->layer[0].weights : NULL,
                                 .table_acc = ties ? p->layer[0].acc : NULL,
                                 .tokens = p->tokens[micro],
                                 .in = in,
                                 .own_in = in,
                                 .out = layer->out[micro],
                                 .saved = layer->saved[micro],
                                 .derived = layer->derived[micro],
                                 .recompute = SW_RECOMPUTE_NOTHING,
                                 .own_rows = {0, rows},
                                 .grad = p->grad[micro],
                                 .own_grad = p->grad[micro],
                                 .acc = layer->acc,
                                 .work = p->work,
                                 .loss_scale = p->loss_scale,
                                 .micro_scale = 1.0 / MICROS,
                                 .loss = &p->loss};
}

static void fill_tokens(struct pupil *p, int64_t step) {
    const int64_t batch = p->run.settings.micro_batch, all = MICROS * batch;
    int64_t targets, loss_tokens = 0;
    for (int64_t s = 0; s < all; s++) {
        const uint64_t position = (uint64_t)((step - 1) * all + s);
        const struct sw_tokens tokens = sw_model_tokens(p->model, p->tokens[s / batch]);
        must(sw_data_train_window(p->data, position, sw_tokens_from(tokens, s % batch * p->run.settings.seq)));
        must(sw_data_train_targets(p->data, position, &targets));
        loss_tokens += targets;
    }
    p->loss_scale = (float)(1.0 / (double)loss_tokens);
}

/* Leaves the rounded gradients of a step in the layers' `grads`. */
static void compute_gradients(struct pupil *p, int64_t step) {
    const int64_t head = p->units->count - 1;
    fill_tokens(p, step);
    for (int64_t u = 0; u <= head; u++)
        must(sw_zero(p->stream, p->layer[u].acc, p->units->unit[u].elems * (int64_t)sizeof(float)));
    for (int64_t u = 0; u <= head; u++)
        for (int m = 0; m < MICROS; m++) {
            const struct sw_unit_call call = call_of(p, step, u, m);
            must((u == head ? p->ops.head : p->ops.forward)(p->ops.context, &call));
        }
    for (int64_t u = head - 1; u >= 0; u--)
        for (int m = 0; m < MICROS; m++) {
            const struct sw_unit_call call = call_of(p, step, u, m);
            must(p->ops.backward(p->ops.context, &call));
        }
    for (int64_t u = 0; u <= head; u++)
        must(sw_finish_gradient(p->stream, .type = sw_model_type(p->model), .elems = p->units->unit[u].elems,
                                .acc = p->layer[u].acc, .grads = p->layer[u].grads, .sums = p->sums));
    must(sw_stream_synchronize(p->stream));
}

/* The library. The first store writes the weights that the model computes with, the second a copy. */

struct library_store {
    spillway *self;
    const char *folder; /* in that of the test */
    int64_t memory_bytes;
    void **weights; /* one entry per unit */
};

static void *at(const struct pupil *p, void *vector, int64_t offset) {
    return (char *)vector + offset * sw_dtype_bytes(sw_model_type(p->model));
}

static void add_tensors(const struct pupil *p, const struct library_store *store, bool is_new) {
    for (int64_t u = 0; u < p->units->count; u++)
        for (int64_t t = 0; t < p->units->unit[u].tensor_count; t++) {
            const struct sw_tensor *own = &p->units->unit[u].tensor[t];
            struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
            tensor.name = own->name;
            tensor.type = (int)sw_model_type(p->model);
            tensor.count = own->elems;
            tensor.weights = at(p, store->weights[u], own->offset);
            tensor.decay = own->decay;
            tensor.begins_unit = is_new && t == 0;
            library_must(spillway_add(store->self, &tensor, NULL), store->self, "add");
        }
}

/* Random weights are no numbers of 16 bits, so masters are given by themselves. */
static void write_masters(const struct pupil *p, spillway *self) {
    const struct sw_model_init init = {&p->run.config, p->units, (uint64_t)p->run.settings.seed};
    const float *master[1024];
    float *vector[64];
    int64_t tensors = 0;
    for (int64_t u = 0; u < p->units->count; u++) {
        vector[u] = model_memory(p->units->unit[u].elems);
        must(sw_model_fill_random((void *)(uintptr_t)&init, u, 0, p->units->unit[u].elems, vector[u]));
        for (int64_t t = 0; t < p->units->unit[u].tensor_count; t++)
            master[tensors++] = vector[u] + p->units->unit[u].tensor[t].offset;
    }
    struct spillway_state state = SPILLWAY_STATE_INIT;
    state.master = master;
    library_must(spillway_write(self, &state), self, "write");
    for (int64_t u = 0; u < p->units->count; u++)
        free(vector[u]);
}

static int open_in(void *const *state, const struct pupil *p, struct library_store *store, bool is_new) {
    char path[SUPPORT_PATH_CHARS];
    struct spillway_options options = library_options(support_path(state, store->folder, path), store->memory_bytes);
    options.state = (int)p->run.optimizer;
    options.save_every = TRAINING_STEPS;
    library_must(spillway_create(&options, &store->self), NULL, "create");
    add_tensors(p, store, is_new);
    return spillway_open(store->self);
}

/* The store on the drive has the smallest budget that is enough. */
static struct library_store make_store(void *const *state, const struct pupil *p, bool on_drive) {
    struct library_store store = {.folder = on_drive ? "drive" : "host",
                                  .memory_bytes = on_drive ? LEAST_BYTES : HOST_BYTES,
                                  .weights = calloc((size_t)p->units->count, sizeof *store.weights)};
    struct spillway_usage usage = SPILLWAY_USAGE_INIT;
    int opened;
    for (int64_t u = 0; u < p->units->count; u++)
        store.weights[u] = on_drive ? model_memory(p->units->unit[u].elems) : p->layer[u].weights;
    while ((opened = open_in(state, p, &store, true)) == SPILLWAY_ERROR_BUDGET) {
        spillway_close(store.self);
        store.memory_bytes += MORE_BYTES;
    }
    library_must(opened, store.self, "open");
    library_must(spillway_get_usage(store.self, &usage), store.self, "usage");
    assert_int_equal(usage.state_host_bytes, on_drive ? 0 : usage.state_bytes);
    write_masters(p, store.self);
    return store;
}

/* A store keeps its units, whatever is asked for later. */
static void open_again(void *const *state, const struct pupil *p, struct library_store *store) {
    library_must(spillway_save(store->self), store->self, "save");
    spillway_close(store->self);
    library_must(open_in(state, p, store, false), store->self, "open again");
}

static double step_by_library(const struct pupil *p, spillway *self, int64_t step) {
    const struct sw_settings *settings = &p->run.settings;
    const struct sw_schedule schedule = sw_settings_schedule(settings);
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    int64_t index = 0;
    for (int64_t u = 0; u < p->units->count; u++)
        for (int64_t t = 0; t < p->units->unit[u].tensor_count; t++)
            library_must(spillway_gradient(self, index++, (int)sw_model_type(p->model),
                                           at(p, p->layer[u].grads, p->units->unit[u].tensor[t].offset), SPILLWAY_SET),
                         self, "gradient");
    rates.lr = sw_schedule_lr(&schedule, step);
    rates.beta1 = settings->beta1;
    rates.beta2 = settings->beta2;
    rates.eps = settings->eps;
    rates.weight_decay = settings->weight_decay;
    rates.clip = settings->clip;
    library_must(spillway_step(self, &rates, &result), self, "step");
    assert_int_equal(result.skipped, 0);
    return result.grad_norm;
}

static void expect_same_tensor(const struct pupil *p, spillway *self, int64_t index, const struct sw_tensor *tensor) {
    float *trained[SW_STATE_PARTS], *own = model_memory(tensor->elems);
    for (int part = 0; part < SW_STATE_PARTS; part++)
        trained[part] = model_memory(tensor->elems);
    must(sw_state_read(p->reader, tensor->name, 0, tensor->elems, trained));
    for (int part = 0; part < SW_STATE_PARTS; part++) {
        library_must(spillway_read(self, index, part, 0, tensor->elems, own), self, "read");
        if (memcmp(own, trained[part], (size_t)tensor->elems * sizeof *own) != 0)
            fail_msg("part %d of '%s' has other bits", part, tensor->name);
        free(trained[part]);
    }
    free(own);
}

static void expect_same_state(const struct pupil *p, spillway *self) {
    int64_t index = 0;
    for (int64_t u = 0; u < p->units->count; u++)
        for (int64_t t = 0; t < p->units->unit[u].tensor_count; t++)
            expect_same_tensor(p, self, index++, &p->units->unit[u].tensor[t]);
}

/* The commit tells the norms of the run's last steps. */
static void expect_same_norms(const struct pupil *p, const double norm[TRAINING_STEPS]) {
    struct sw_run_position position;
    must(sw_run_position_read(sw_state_commit(p->reader)->meta, p->run.data_digest, &position));
    assert_int_equal(position.step, TRAINING_STEPS);
    assert_int_equal(position.skipped_steps, 0);
    for (int i = 0; i < SW_RUN_RECENT_STEPS; i++) {
        const struct sw_run_step *step = &position.recent[i];
        assert_int_equal(step->step, TRAINING_STEPS - SW_RUN_RECENT_STEPS + 1 + i);
        if (memcmp(&step->grad_norm, &norm[step->step - 1], sizeof *norm) != 0)
            fail_msg("step %lld has the norm %.17g, and %.17g by the library", (long long)step->step, step->grad_norm,
                     norm[step->step - 1]);
    }
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk) {
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int remove_all(void **state) {
    struct support_folder *folder = *state;
    nftw(folder->path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    free(folder);
    return 0;
}

static void compare(void **state, const struct training *training) {
    struct pupil pupil;
    struct library_store store[STORES];
    double norm[TRAINING_STEPS];
    int clipped = 0;
    write_inputs(state, training->model);
    train(state, training);
    open_pupil(state, &pupil);
    for (int s = 0; s < STORES; s++)
        store[s] = make_store(state, &pupil, s == 1);
    for (int64_t step = 1; step <= TRAINING_STEPS; step++) {
        compute_gradients(&pupil, step);
        norm[step - 1] = step_by_library(&pupil, store[0].self, step);
        assert_true(step_by_library(&pupil, store[1].self, step) == norm[step - 1]);
        clipped += norm[step - 1] > pupil.run.settings.clip;
        if (step == TRAINING_STEPS / 2)
            open_again(state, &pupil, &store[1]);
    }
    assert_true(clipped > 0 && clipped < TRAINING_STEPS);
    expect_same_norms(&pupil, norm);
    for (int s = 0; s < STORES; s++) {
        expect_same_state(&pupil, store[s].self);
        spillway_close(store[s].self);
    }
    for (int64_t u = 0; u < pupil.units->count; u++) {
        assert_memory_equal(store[0].weights[u], store[1].weights[u],
                            (size_t)(pupil.units->unit[u].elems * sw_dtype_bytes(sw_model_type(pupil.model))));
        free(store[1].weights[u]);
    }
    for (int s = 0; s < STORES; s++)
        free(store[s].weights);
    printf("# %s, state in %s, %s: the same bits after %d steps, %d of them clipped\n", training->precision,
           training->state, training->place, TRAINING_STEPS, clipped);
    close_pupil(&pupil);
}

#define ON_DEVICE "weights=device,grads=device,optimizer=device,acts=device"
#define ON_HOST "weights=host,grads=host,optimizer=host,acts=host"
#define ON_DRIVE "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme"

/* Each precision meets each placement, and each format of state two of them. */
#define TRAINING(name, ...)                                                                                            \
    static void name(void **state) {                                                                                   \
        compare(state, &(const struct training){__VA_ARGS__});                                                         \
    }
TRAINING(gpt2_in_fp32_on_the_device, gpt2, "fp32", "fp32", ON_DEVICE)
TRAINING(gpt2_in_fp32_with_bf16_moments_in_host_memory, gpt2, "fp32", "bf16", ON_HOST)
TRAINING(gpt2_in_fp32_with_8_bit_moments_on_the_drive, gpt2, "fp32", "8bit", ON_DRIVE)
TRAINING(gpt2_in_bf16_on_the_drive, gpt2, "bf16", "fp32", ON_DRIVE)
TRAINING(gpt2_in_bf16_with_bf16_moments_on_the_device, gpt2, "bf16", "bf16", ON_DEVICE)
TRAINING(gpt2_in_bf16_with_8_bit_moments_in_host_memory, gpt2, "bf16", "8bit", ON_HOST)
TRAINING(llama_in_bf16_in_host_memory, llama, "bf16", "fp32", ON_HOST)
TRAINING(llama_in_fp32_with_8_bit_moments_on_the_device, llama, "fp32", "8bit", ON_DEVICE)

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, remove_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(gpt2_in_fp32_on_the_device),
        IN_FOLDER(gpt2_in_fp32_with_bf16_moments_in_host_memory),
        IN_FOLDER(gpt2_in_fp32_with_8_bit_moments_on_the_drive),
        IN_FOLDER(gpt2_in_bf16_on_the_drive),
        IN_FOLDER(gpt2_in_bf16_with_bf16_moments_on_the_device),
        IN_FOLDER(gpt2_in_bf16_with_8_bit_moments_in_host_memory),
        IN_FOLDER(llama_in_bf16_in_host_memory),
        IN_FOLDER(llama_in_fp32_with_8_bit_moments_on_the_device),
    };
    return cmocka_run_group_tests_name("library training", tests, NULL, NULL);
}
