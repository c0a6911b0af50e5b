/* The life of a handle: its tensors are registered, its store is made or resumed, and it is closed.
 *
 * The library is the engine of `spillway train` without a model: one path to the drive, one
 * update, one proof of the plan, one crash-safe store. A plan that is `update_only` (offload/plan/plan.h) keeps neither
 * weights nor gradients, because the caller has both. A step is two of its programs. SW_PROGRAM_START takes every chunk
 * of gradients from the caller, widened to fp32, and sums its squares by grain; the norm adds these in the order of
 * units and grains, so that its bits do not depend on placement or threads. SW_PROGRAM_FLUSH_UPDATE streams the state:
 * read, take the chunk's gradients again, update, give the new weights, write, commit. Taking gradients twice costs a
 * pass over the caller's memory and saves a copy of them, 4 bytes for each parameter. Where a tensor of fp32 has whole
 * grains, nothing is taken or given: these ops, and the update, work on the caller's memory (sw_library_lend). The only
 * arithmetic of the library's own is the order of calls; casts and sums are ops of the device (kernels/ops.h). The
 * plan's type is fp32: what a 16-bit gradient or weight loses, it loses on the caller's side, by the same roundings as
 * in training. */
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "core/text/text.h"
#include "io/queue/file.h"
#include "library/device.h"
#include "library/stream_private.h"
#include "offload/engine/scratch.h"
#include "offload/plan/shard.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static_assert((int)SPILLWAY_F32 == (int)SW_F32 && (int)SPILLWAY_BF16 == (int)SW_BF16 &&
                  (int)SPILLWAY_F16 == (int)SW_F16,
              "element types are numbered alike");
static_assert((int)SPILLWAY_STATE_FP32 == (int)SW_OPTIMIZER_FP32 &&
                  (int)SPILLWAY_STATE_BF16 == (int)SW_OPTIMIZER_BF16 &&
                  (int)SPILLWAY_STATE_8BIT == (int)SW_OPTIMIZER_8BIT,
              "formats of the state are numbered alike");

/* A chunk is a few MiB, as in training. Tensors that fill less need no larger one. */
enum { CHUNK_GRAINS = LIBRARY_CHUNK_GRAINS, IO_DEPTH = 32 };
/* The device's tier is empty: its budget never decides. */
#define NO_LIMIT_BYTES (INT64_C(1) << 60)

/* Description. */

static sw_status check_options(const struct spillway_options *options) {
    if (options->store == NULL || options->store[0] == '\0' || strlen(options->store) >= LIBRARY_PATH_CHARS / 2)
        return sw_fail(SW_ERR_ARG, "`store` is not the path of a folder");
    if (options->state < 0 || options->state >= SW_OPTIMIZER_FORMATS)
        return sw_fail(SW_ERR_ARG, "state %d is not one of SPILLWAY_STATE_FP32, _BF16 and _8BIT", options->state);
    if (options->host_memory_bytes > NO_LIMIT_BYTES)
        return sw_fail(SW_ERR_ARG, "host_memory_bytes is %llu, which is no amount of memory",
                       (unsigned long long)options->host_memory_bytes);
    if (options->missing_gradients < SPILLWAY_MISSING_ERROR || options->missing_gradients > SPILLWAY_MISSING_SKIP)
        return sw_fail(SW_ERR_ARG, "missing_gradients %d is not one of SPILLWAY_MISSING_ERROR, _ZERO and _SKIP",
                       options->missing_gradients);
    if (options->threads < 0 || options->save_every < 0)
        return sw_fail(SW_ERR_ARG, "threads and save_every are not negative");
    if (options->ranks < 0 || options->rank < 0 || options->rank >= (options->ranks > 1 ? options->ranks : 1))
        return sw_fail(SW_ERR_ARG, "rank %d is not the number of one of %d processes: ranks count from 0",
                       options->rank, options->ranks);
    if (options->ranks > 1 && options->gather == NULL)
        return sw_fail(SW_ERR_ARG, "%d processes share the store, and `gather` is not set", options->ranks);
    return SW_OK;
}

static sw_status create(const struct spillway_options *given, spillway **out) {
    struct spillway_options options = SPILLWAY_OPTIONS_INIT;
    if (out == NULL)
        return sw_fail(SW_ERR_ARG, "there is nowhere to return the handle: out is NULL");
    *out = NULL;
    SW_TRY(sw_library_take_struct(&options, sizeof options, given, "the options", "SPILLWAY_OPTIONS_INIT"));
    SW_TRY(check_options(&options));
    spillway *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a store's handle");
    self->owner = getpid();
    snprintf(self->folder, sizeof self->folder, "%s", options.store);
    self->options = options;
    self->options.store = NULL;
    self->options.save_every = sw_max_i64(1, options.save_every);
    self->options.threads = (int)sw_min_i64(options.threads, sw_machine_cores());
    self->lock = -1;
    self->taking.piece = self->giving.piece = -1;
    self->last_step = self->committed_step = -1;
    self->rank = options.rank;
    self->ranks = options.ranks > 1 ? options.ranks : 1;
    self->sharers = options.sharded ? 1 : self->ranks;
    self->sharer = options.sharded ? 0 : self->rank;
    *out = self;
    return SW_OK;
}

int spillway_create(const struct spillway_options *options, spillway **out) {
    sw_error_clear();
    return sw_library_end(NULL, create(options, out), false);
}

/* tensors.json keeps names as UTF-8, and nothing else. */
static bool is_printable(const char *name) {
    size_t left = strlen(name);
    const bool has_some = left > 0;
    for (struct sw_utf8_sequence next; left > 0; name += next.bytes, left -= next.bytes) {
        next = sw_utf8_first(name, left);
        if (next.kind != SW_UTF8_WHOLE || next.code < 0x20 || next.code == 0x7f)
            return false;
    }
    return has_some;
}

static sw_status check_factor(const char *name, double lr_scale) {
    return lr_scale >= 0.0 && lr_scale <= 1e30
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "lr_scale %g of '%s' is not a factor from 0 on", lr_scale, name);
}

static sw_status check_tensor(const spillway *self, const struct spillway_tensor *tensor, bool on_cuda) {
    if (tensor->name == NULL || !is_printable(tensor->name) || strlen(tensor->name) >= SPILLWAY_NAME_CHARS)
        return sw_fail(SW_ERR_ARG,
                       "a tensor's name is missing, is longer than %d bytes, is not UTF-8, or has control characters",
                       SPILLWAY_NAME_CHARS - 1);
    if (tensor->type < 0 || tensor->type >= SW_DTYPES)
        return sw_fail(SW_ERR_ARG, "type %d of '%s' is not one of SPILLWAY_F32, _BF16 and _F16", tensor->type,
                       tensor->name);
    if (self->options.sharded && tensor->whole_count != 0 &&
        (tensor->count < 0 || tensor->first < 0 || tensor->first > tensor->whole_count - tensor->count))
        return sw_fail(SW_ERR_ARG, "'%s' has no %lld elements from %lld on: its whole_count is %lld", tensor->name,
                       (long long)tensor->count, (long long)tensor->first, (long long)tensor->whole_count);
    if (tensor->count == 0 && self->options.sharded)
        return check_factor(tensor->name, tensor->lr_scale);
    if (tensor->count < 1 || tensor->count > INT64_MAX / 4096)
        return sw_fail(SW_ERR_ARG, "'%s' has %lld elements; a tensor has at least one", tensor->name,
                       (long long)tensor->count);
    if (tensor->weights == NULL || (uintptr_t)tensor->weights % (uintptr_t)sw_dtype_bytes((sw_dtype)tensor->type) != 0)
        return sw_fail(SW_ERR_ARG, "the weights of '%s' are NULL, or not aligned to their elements", tensor->name);
    if (on_cuda && !sw_library_streams_on_cuda(self, tensor->weights))
        SW_TRY(sw_library_cuda_check(self, tensor->weights, "weights", tensor->name));
    return check_factor(tensor->name, tensor->lr_scale);
}

/* The kernels read a factor of 0 as 1, so 0 becomes a factor that moves no fp32 weight. */
static double factor_of(double lr_scale) {
    return lr_scale == 0.0 ? 0x1p-1000 : lr_scale;
}

static sw_status add(spillway *self, const struct spillway_tensor *given, int64_t *out_index) {
    struct spillway_tensor own = SPILLWAY_TENSOR_INIT;
    const struct spillway_tensor *tensor = &own;
    SW_TRY(sw_library_begin(self, false));
    SW_TRY(sw_library_take_struct(&own, sizeof own, given, "the tensor", "SPILLWAY_TENSOR_INIT"));
    const bool on_cuda = sw_library_split_type(&own.type);
    SW_TRY(check_tensor(self, tensor, on_cuda));
    if (self->tensor_count == self->tensor_room) {
        const int64_t room = 2 * self->tensor_room + 64;
        struct tensor *grown = realloc(self->tensor, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the tensor '%s'", tensor->name);
        self->tensor = grown;
        self->tensor_room = room;
    }
    struct tensor *added = &self->tensor[self->tensor_count];
    *added = (struct tensor){.type = (sw_dtype)tensor->type,
                             .count = sw_max_i64(1, tensor->count),
                             .empty = tensor->count == 0,
                             .whole = self->options.sharded ? tensor->whole_count : tensor->count,
                             .first = self->options.sharded ? tensor->first : 0,
                             .most = sw_max_i64(1, tensor->count),
                             .weights = tensor->count == 0 ? NULL : tensor->weights,
                             .lr_scale = factor_of(tensor->lr_scale),
                             .decay = tensor->decay != 0,
                             .begins_unit = tensor->begins_unit != 0,
                             .streamed = -1,
                             .streamed_sum = -1,
                             .cuda = on_cuda};
    snprintf(added->name, sizeof added->name, "%s", tensor->name);
    if (out_index != NULL)
        *out_index = self->tensor_count;
    self->tensor_count++;
    return SW_OK;
}

int spillway_add(spillway *self, const struct spillway_tensor *tensor, int64_t *out_index) {
    return sw_library_end(self, add(self, tensor, out_index), false);
}

static sw_status set_factors(spillway *self, int64_t index, double lr_scale, int decay) {
    SW_TRY(sw_library_begin(self, true));
    if (index < 0 || index >= self->tensor_count)
        return sw_fail(SW_ERR_ARG, "there is no tensor %lld", (long long)index);
    struct tensor *tensor = &self->tensor[index];
    SW_TRY(check_factor(tensor->name, lr_scale));
    if (tensor->lr_scale == factor_of(lr_scale) && tensor->decay == (decay != 0))
        return SW_OK;
    SW_TRY(sw_library_finish(self));
    tensor->lr_scale = factor_of(lr_scale);
    tensor->decay = decay != 0;
    struct sw_tensor *of_unit = &self->units->unit[tensor->unit].tensor[tensor->within];
    of_unit->lr_scale = tensor->lr_scale;
    of_unit->decay = tensor->decay;
    self->factors_changed = true;
    return SW_OK;
}

int spillway_set_factors(spillway *self, int64_t index, double lr_scale, int decay) {
    return sw_library_end(self, set_factors(self, index, lr_scale, decay), false);
}

/* Opening. */

static int by_name(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static sw_status check_names(const spillway *self) {
    const char **names = calloc((size_t)self->tensor_count + 1, sizeof *names);
    sw_status status = SW_OK;
    if (names == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld tensors", (long long)self->tensor_count);
    for (int64_t t = 0; t < self->tensor_count; t++)
        names[t] = self->tensor[t].name;
    qsort(names, (size_t)self->tensor_count, sizeof *names, by_name);
    for (int64_t t = 1; t < self->tensor_count && status == SW_OK; t++)
        if (strcmp(names[t - 1], names[t]) == 0)
            status = sw_fail(SW_ERR_ARG, "two tensors have the name '%s'", names[t]);
    free(names);
    return status;
}

static sw_status find_in_folder(const spillway *self, const char *name, bool *found) {
    char path[LIBRARY_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, self->folder, name));
    return sw_path_find(path, found);
}

/* Refuses a folder of other files before anything is made in it. A process that makes a store there makes its lock
 * first, so whoever sees more of that store finds the lock. */
static sw_status refuse_other_folder(const spillway *self) {
    bool has_lock, has_record;
    const sw_status status = sw_folder_must_be_free(self->folder, "store.lock");
    {
        SW_HANDLES_ERRORS();
        if (status != SW_ERR_ARG || find_in_folder(self, "store.lock", &has_lock) != SW_OK ||
            find_in_folder(self, "tensors.json", &has_record) != SW_OK || (!has_lock && !has_record))
            return status;
    }
    sw_error_clear();
    return SW_OK;
}

/* Makes the path of the folder absolute, because the program may change its directory. */
static void take_absolute_path(spillway *self) {
    char *absolute = realpath(self->folder, NULL);
    if (absolute != NULL && strlen(absolute) < sizeof self->folder)
        memcpy(self->folder, absolute, strlen(absolute) + 1);
    free(absolute);
}

/* Makes the folder, and locks it before anything in it is read: the store's own lock begins only with its file. Of
 * several processes, process 0 locks it for all. */
static sw_status lock_folder(spillway *self) {
    char path[LIBRARY_PATH_CHARS];
    SW_TRY(refuse_other_folder(self));
    SW_TRY(sw_folder_make(self->folder, 0700));
    take_absolute_path(self);
    SW_TRY(sw_path_join(path, sizeof path, self->folder, "store.lock"));
    self->lock = sw_path_open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (self->lock < 0)
        return sw_fail(sw_file_write_error(errno), "%s cannot be opened for writing: %s", path, strerror(errno));
    SW_TRY(sw_lock_take(self->lock, self->folder));
    /* A process that died while it wrote tensors.json leaves this one. */
    SW_TRY(sw_path_join(path, sizeof path, self->folder, "tensors.json.partial"));
    return sw_path_unlink(path) == 0 || errno == ENOENT
               ? SW_OK
               : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
}

static sw_status use_stream(spillway *self, spillway_stream *stream) {
    SW_TRY(sw_library_begin(self, false));
    if (stream == NULL || !stream->open || stream->owner != getpid())
        return sw_fail(SW_ERR_ARG, "the stream is NULL, not open, or of another process");
    if (self->ranks > 1)
        return sw_fail(SW_ERR_ARG, "%d processes share %s, and weights stream in one process only", self->ranks,
                       self->folder);
    if (self->weights_stream != NULL)
        return sw_fail(SW_ERR_ARG, "%s uses a stream already, and a store uses one", self->folder);
    self->weights_stream = stream;
    stream->users++;
    return SW_OK;
}

int spillway_use_stream(spillway *self, spillway_stream *stream) {
    return sw_library_end(self, use_stream(self, stream), false);
}

/* Lets the stream keep the sums of gradients of those of its tensors that are not small. */
static sw_status stream_sums(spillway *self) {
    int64_t count = 0;
    sw_status status = SW_ERR_NOMEM;
    int64_t *tensors = calloc((size_t)self->tensor_count + 1, sizeof *tensors);
    int64_t *bytes = calloc((size_t)self->tensor_count + 1, sizeof *bytes);
    if (tensors == NULL || bytes == NULL) {
        sw_fail(status, "no memory for sums of gradients");
        goto done;
    }
    for (int64_t t = 0; t < self->tensor_count; t++)
        if (self->tensor[t].streamed >= 0 && !self->weights_stream->piece[self->tensor[t].streamed].small) {
            tensors[count] = self->tensor[t].streamed;
            bytes[count++] = self->tensor[t].count * (int64_t)sizeof(float);
        }
    SW_TRY_GOTO(sw_streamed_add_gradients(self->weights_stream, tensors, bytes, count), done);
    for (int64_t t = 0; t < self->tensor_count; t++)
        if (self->tensor[t].streamed >= 0 && !self->weights_stream->piece[self->tensor[t].streamed].small) {
            self->tensor[t].streamed_sum = self->weights_stream->piece[self->tensor[t].streamed].gradient;
            self->tensor[t].sum = (float *)sw_streamed_address(self->weights_stream, self->tensor[t].streamed_sum);
        }
done:
    free(tensors);
    free(bytes);
    return status;
}

static sw_status find_streamed(spillway *self) {
    for (int64_t t = 0; self->weights_stream != NULL && t < self->tensor_count; t++) {
        struct tensor *tensor = &self->tensor[t];
        tensor->streamed_sum = -1;
        SW_TRY(sw_streamed_find(self->weights_stream, tensor->name, tensor->weights,
                                tensor->count * sw_dtype_bytes(tensor->type), &tensor->streamed));
        if (self->weights_stream->cuda == NULL || tensor->streamed < 0)
            continue;
        /* The update reaches the host's copy, from which the GPU gets the new weights when it needs them. */
        tensor->weights = self->weights_stream->piece[tensor->streamed].host;
        tensor->cuda = false;
        tensor->streamed = -1;
    }
    return SW_OK;
}

static int64_t sum_elems(const struct tensor *tensor) {
    return tensor->streamed_sum >= 0 ? 0 : sw_round_up(tensor->count, SW_TENSOR_ALIGN_ELEMS);
}

/* Makes room for gradients that are added up. */
static sw_status make_sums(spillway *self) {
    int64_t elems = LIBRARY_ADDED_AT_ONCE;
    if (!self->options.accumulate)
        return SW_OK;
    if (self->weights_stream != NULL && self->weights_stream->cuda == NULL)
        SW_TRY(stream_sums(self));
    for (int64_t t = 0; t < self->tensor_count; t++)
        elems += sum_elems(&self->tensor[t]);
    self->sums_bytes = sw_round_up(elems * (int64_t)sizeof(float), SW_BUFFER_ALIGN_BYTES);
    self->sums = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)self->sums_bytes);
    if (self->sums == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for sums of gradients");
    elems = LIBRARY_ADDED_AT_ONCE;
    for (int64_t t = 0; t < self->tensor_count; t++) {
        if (self->tensor[t].streamed_sum < 0)
            self->tensor[t].sum = self->sums + elems;
        elems += sum_elems(&self->tensor[t]);
    }
    return SW_OK;
}

/* Makes room for the weights of a chunk of each process, and for what passes between processes. */
static sw_status make_room(spillway *self) {
    if (self->comm != NULL)
        self->gathered_bytes = sw_comm_caller_bytes(self->ranks);
    if (self->sharers == 1)
        return SW_OK;
    const int64_t bytes = self->ranks * CHUNK_GRAINS * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    self->gathered = malloc((size_t)bytes);
    self->gathered_bytes += bytes;
    return self->gathered != NULL ? SW_OK
                                  : sw_fail(SW_ERR_NOMEM, "no memory for what %d processes gather", self->ranks);
}

/* Where the options leave the budget open, half of what is free is taken. Several processes may share one machine, so
 * each takes its part of that, and all take the least of them. */
static sw_status find_host_bytes(spillway *self) {
    struct sw_machine machine = {0};
    self->host_bytes = (int64_t)self->options.host_memory_bytes;
    sw_status status = self->host_bytes == 0 ? sw_machine_read_memory(&machine) : SW_OK;
    if (self->host_bytes == 0)
        self->host_bytes = machine.available_bytes / 2 / self->ranks;
    status = sw_library_agree(self, status, "memory");
    if (status == SW_OK && self->comm != NULL) {
        int64_t negative = -self->host_bytes;
        status = sw_comm_max(self->comm, "memory", &negative, 1);
        self->host_bytes = -negative;
    }
    return status;
}

/* Refuses a plan that takes more memory than the machine has, or than its cgroup leaves: the system would end the
 * process. */
static sw_status check_machine(const spillway *self) {
    char given[SW_SIZE_CHARS], taken[SW_SIZE_CHARS], left[SW_SIZE_CHARS];
    struct sw_machine machine;
    SW_TRY(sw_machine_read_memory(&machine));
    const int64_t needed = sw_library_own_bytes(self) + self->plan->tier_bytes[SW_HOST];
    const int64_t room = sw_min_i64(machine.physical_bytes, machine.limit.room_bytes);
    return needed <= room
               ? SW_OK
               : sw_fail(SW_ERR_BUDGET,
                         "of host_memory_bytes, %s, the state in %s would take %s, and this machine allows %s: give "
                         "less, and the rest of the state lives on the drive",
                         sw_format_size(self->host_bytes, given), self->folder, sw_format_size(needed, taken),
                         sw_format_size(room, left));
}

/* plan_bytes: what the plan was allowed, which is 0 where the sums of gradients take everything. */
static sw_status refuse_memory(const spillway *self, const struct sw_plan_lack *lack, int64_t plan_bytes) {
    char given[SW_SIZE_CHARS], needed[SW_SIZE_CHARS];
    sw_error_clear();
    return sw_fail(SW_ERR_BUDGET, "host_memory_bytes, %s, is too small for %s: at least %s are needed",
                   sw_format_size(self->host_bytes, given), self->folder,
                   sw_format_size(sw_library_own_bytes(self) + plan_bytes + lack->missing_bytes, needed));
}

static int64_t most_grains(const struct sw_units *units) {
    int64_t most = 1;
    for (int64_t u = 0; u < units->count; u++)
        most = sw_max_i64(most, units->unit[u].grains);
    return most;
}

/* Places the state: as much of it in host memory as the budget allows, and the rest, or all if `on_drive`, on the
 * drive. Nothing else is kept, and nothing goes to a device. */
static sw_status make_plan(spillway *self, bool on_drive) {
    struct sw_rise_order rises = sw_rises_usual;
    struct sw_plan_lack lack = {0};
    for (int rise = 0; rise < SW_RISES; rise++)
        rises.share[rise] = rise == SW_RISE_OPTIMIZER_TO_HOST && !on_drive ? 1.0 : 0.0;
    const int64_t plan_bytes = sw_max_i64(0, self->host_bytes - sw_library_own_bytes(self));
    struct sw_unit_cost *cost = calloc((size_t)self->units->count, sizeof *cost);
    if (cost == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    struct sw_plan_spec spec = {.lack = &lack,
                                .units = self->units,
                                .type = SW_F32,
                                .train = true,
                                .update_only = true,
                                .ranks = self->sharers > 1 ? self->sharers : 0,
                                .rank = self->sharer,
                                .zero = self->sharers > 1 ? SW_ZERO_WEIGHTS : SW_ZERO_NONE,
                                .micro_batches = 1,
                                .group = 1,
                                .cost = cost,
                                .chunk_grains = sw_min_i64(CHUNK_GRAINS, most_grains(self->units)),
                                .ring_chunks = 1,
                                .ring_auto = true,
                                .unit_slots = 2,
                                .budget_bytes = {NO_LIMIT_BYTES, plan_bytes},
                                .rises = &rises};
    for (int state = 0; state < SW_STATES; state++)
        spec.place.automatic[state] = true;
    sw_status status = sw_plan_create(&spec, &self->plan);
    free(cost);
    if (status == SW_ERR_BUDGET)
        return refuse_memory(self, &lack, plan_bytes);
    return status == SW_OK ? sw_plan_check(self->plan) : status;
}

static sw_status open_engine(spillway *self) {
    const struct sw_engine_spec spec = {
        .plan = self->plan,
        .device = self->device,
        .host = self->device,
        .store = self->store,
        .comm = self->sharers > 1 ? self->comm : NULL,
        .io_depth = IO_DEPTH,
        .speculation = SW_SPECULATE_NEVER,
        .ops = {.context = self,
                .take = sw_library_take,
                .give = sw_library_give,
                .lend = sw_library_lend,
                .stamp = sw_library_stamp,
                .join_squares = self->comm != NULL && self->sharers == 1 ? sw_library_join_squares : NULL},
        .described = true,
        .applied_steps = self->applied_steps,
        .skipped_steps = self->skipped_steps};
    return sw_engine_open(&spec, &self->engine);
}

/* Makes a store, and commits the caller's weights as step 0. tensors.json comes first, so that a process which finds
 * the remains of this one knows whose they are; it says that the store has started once step 0 is committed. */
static sw_status start(spillway *self) {
    struct store_record record = {.state = (sw_optimizer_format)self->options.state,
                                  .sharded = self->options.sharded != 0};
    char text[SW_STORE_META_BYTES];
    record.set.ranks = self->ranks;
    SW_TRY(sw_library_new_id(self, record.set.id));
    SW_TRY(sw_library_share_record(self, &record));
    SW_TRY(sw_library_create_store(self, &record.set, &self->store));
    SW_TRY(sw_library_agree(self, open_engine(self), "opening"));
    SW_TRY(sw_library_write_text(self, 0, "", text));
    sw_engine_describe(self->engine, 0, text);
    const struct sw_load load = {.fill = sw_library_fill, .context = self};
    SW_TRY(sw_engine_load(self->engine, &load));
    self->last_step = self->committed_step = 0;
    record.started = true;
    SW_TRY(sw_library_share_record(self, &record));
    SW_TRY(sw_library_gather_weights(self));
    return sw_library_meet(self);
}

/* Refuses a store of other units than those of the tensors, which only a changed file can be. */
static sw_status check_layout(const spillway *self) {
    bool alike = sw_store_unit_count(self->store) == self->units->count &&
                 sw_store_optimizer(self->store) == self->units->optimizer;
    for (int64_t u = 0; alike && u < self->units->count; u++)
        alike = sw_store_unit_whole_grains(self->store, u) == self->units->unit[u].grains &&
                sw_store_unit_grains(self->store, u) ==
                    sw_shard(self->units->unit[u].grains, self->sharers, self->sharer).grains;
    return alike ? SW_OK
                 : sw_fail(SW_ERR_CORRUPT, "the store in %s and its tensors.json do not belong together", self->folder);
}

/* Warns where a step that was committed is or may be lost, because the record of its commit was damaged later. */
static void warn_of_lost_steps(const spillway *self) {
    const struct sw_store_bad_record *bad;
    const int count = sw_store_bad_records(self->store, &bad);
    for (int i = 0; i < count; i++)
        if (bad[i].loss != SW_STORE_RECORD_HARMLESS)
            sw_log_warn("%s: the record of a commit after step %lld %s damaged at offset %lld, so a later step %s lost",
                        bad[i].path, (long long)sw_store_last_commit(self->store)->step,
                        bad[i].loss == SW_STORE_RECORD_LOST ? "was" : "may have been", (long long)bad[i].offset_bytes,
                        bad[i].loss == SW_STORE_RECORD_LOST ? "is" : "may be");
}

/* Opens the engine on the store that was opened, and takes the last commit's text. */
static sw_status open_resumed(spillway *self) {
    SW_TRY(check_layout(self));
    warn_of_lost_steps(self);
    SW_TRY(sw_library_read_text(self, sw_store_last_commit(self->store)->meta));
    SW_TRY(open_engine(self));
    self->last_step = self->committed_step = sw_store_last_commit(self->store)->step;
    return SW_OK;
}

static sw_status resume(spillway *self, struct store_record *record) {
    if (record->converts || record->set.ranks != self->ranks)
        SW_TRY(sw_library_replace_set(self, record));
    SW_TRY(sw_library_open_store(self, &record->set));
    SW_TRY(sw_library_agree(self, open_resumed(self), "opening"));
    SW_TRY(sw_library_before_weights(self));
    SW_TRY(sw_library_agree(self, sw_engine_restore(self->engine), "restoring"));
    SW_TRY(sw_library_let_go(self));
    SW_TRY(sw_library_take_counts(self));
    SW_TRY(sw_library_gather_weights(self));
    return sw_library_meet(self);
}

/* Reads what the folder holds. *found: a store that has started. */
static sw_status look(spillway *self, struct store_record *record, bool *found) {
    SW_TRY(sw_library_read_record(self, record, found));
    if (!*found && self->rank == 0)
        return sw_folder_must_be_free(self->folder, "store.lock");
    if (*found && record->started && (int)record->state != self->options.state)
        return sw_fail(SW_ERR_ARG, "%s keeps its state in %s, and state %s was asked for: a store keeps its format",
                       self->folder, sw_optimizer_format_name(record->state),
                       sw_optimizer_format_name((sw_optimizer_format)self->options.state));
    return SW_OK;
}

/* Removes what processes that died have left: a store that never started, in which nothing but the caller's own weights
 * can be, and a set that was not adopted, or is superseded. */
static sw_status clear_remains(spillway *self, struct store_record *record, bool *found) {
    if (*found && !record->started) {
        *found = false;
        return sw_library_remove_set(self, &record->set, 0);
    }
    if (*found && record->orphan.ranks > 0) {
        SW_TRY(sw_library_remove_set(self, &record->orphan, SW_STORE_NEWEST));
        record->orphan = (struct store_set){0};
    }
    return SW_OK;
}

/* The device may start threads, in which no signal of the program should arrive. */
static sw_status open_device(spillway *self) {
    const struct sw_library_signals signals = sw_library_block_signals(true);
    sw_status status = sw_device_open("cpu", self->options.threads, &self->device);
    if (status == SW_OK)
        status = sw_stream_open(self->device, &self->stream);
    if (status == SW_OK)
        status = sw_stream_open(self->device, &self->add_stream);
    sw_library_allow_signals(&signals);
    return status;
}

/* Lays out the tensors, and makes all but the store. found: a store is there that has these parts of the tensors. */
static sw_status prepare(spillway *self, bool found) {
    SW_TRY(find_streamed(self));
    SW_TRY(make_sums(self));
    SW_TRY(sw_library_lay_out(self, found));
    for (int64_t t = 0; t < self->tensor_count; t++)
        self->by_listed[self->tensor[t].listed] = t;
    if (found)
        SW_TRY(sw_library_check_places(self));
    SW_TRY(make_room(self));
    SW_TRY(make_plan(self, false));
    SW_TRY(check_machine(self));
    SW_TRY(sw_library_cuda_start(self));
    return open_device(self);
}

/* Processes that have elements of their own commit alike: if the budget leaves the whole state of one on the drive,
 * where each step is committed, that of all is there, though others have less of it. */
static sw_status place_alike(spillway *self) {
    int64_t on_drive = self->plan->commit_every_step;
    if (self->comm == NULL || !self->options.sharded)
        return SW_OK;
    SW_TRY(sw_comm_max(self->comm, "placement", &on_drive, 1));
    if (on_drive == 0 || self->plan->commit_every_step)
        return sw_library_agree(self, SW_OK, "plan");
    sw_plan_destroy(self->plan);
    self->plan = NULL;
    return sw_library_agree(self, make_plan(self, true), "plan");
}

/* Opens the store whose record is in the folder, or makes one. */
static sw_status open_found(spillway *self, struct store_record *record, bool *started) {
    bool found;
    SW_TRY(sw_library_agree(self, look(self, record, &found), "tensors.json"));
    SW_TRY(sw_library_check_found(self, record, found));
    SW_TRY(clear_remains(self, record, &found));
    SW_TRY(sw_library_agree(self, prepare(self, found && !record->converts), "plan"));
    SW_TRY(place_alike(self));
    SW_TRY(sw_library_check_plans(self));
    *started = !found;
    return found ? resume(self, record) : start(self);
}

/* Takes the tensors, and memory for their order. */
static sw_status begin_opening(spillway *self) {
    if (self->tensor_count == 0)
        return sw_fail(SW_ERR_ARG, "no tensor is registered: call spillway_add first");
    SW_TRY(check_names(self));
    SW_TRY(sw_library_add_counts(self));
    self->order = calloc((size_t)sw_library_all_tensors(self), sizeof *self->order);
    self->by_listed = calloc((size_t)self->tensor_count, sizeof *self->by_listed);
    self->has_gradient = calloc((size_t)self->ranks, (size_t)self->tensor_count);
    if (self->order == NULL || self->by_listed == NULL || self->has_gradient == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld tensors", (long long)self->tensor_count);
    sw_library_order_as_added(self);
    return SW_OK;
}

static sw_status open_store(spillway *self, bool *started) {
    struct store_record record = {0};
    SW_TRY(sw_library_open_comm(self));
    SW_TRY(sw_library_agree(self, begin_opening(self), "tensors"));
    SW_TRY(sw_library_agree(self, self->rank == 0 ? lock_folder(self) : SW_OK, "folder"));
    if (self->rank > 0)
        take_absolute_path(self);
    SW_TRY(find_host_bytes(self));
    SW_TRY(sw_library_check_alike(self));
    SW_TRY(sw_library_share_parts(self));
    const sw_status status = open_found(self, &record, started);
    sw_library_release_record(&record);
    return status;
}

/* Takes down what opening has made. `undo`: also from the drive, as a start that failed. */
static void release(spillway *self, bool undo) {
    char path[LIBRARY_PATH_CHARS];
    sw_engine_close(self->engine);
    (void)sw_library_let_go(self);
    if (self->store != NULL && undo && sw_store_last_commit(self->store)->step < 0)
        sw_store_discard(self->store);
    else if (self->store != NULL)
        sw_store_close(self->store);
    if (undo && self->ranks == 1 && sw_path_join(path, sizeof path, self->folder, "tensors.json") == SW_OK &&
        !sw_store_is_at(self->folder))
        (void)sw_path_unlink(path);
    sw_library_cuda_stop(self);
    sw_stream_close(self->stream);
    sw_stream_close(self->add_stream);
    if (self->device != NULL)
        sw_device_close(self->device);
    sw_plan_destroy(self->plan);
    sw_units_destroy(self->units);
    sw_comm_close(self->comm);
    free(self->verdict);
    free(self->gathered);
    free(self->sums);
    free(self->has_gradient);
    free(self->part);
    free(self->by_listed);
    free(self->order);
    free(self->unit_first);
    if (self->lock >= 0)
        sw_file_close(self->lock);
    for (int64_t t = 0; t < self->tensor_count; t++) {
        self->tensor[t].sum = NULL;
        self->tensor[t].gradient = self->tensor[t].taken = NULL;
    }
    self->running = false;
    self->engine = NULL;
    self->store = NULL;
    self->stream = self->add_stream = NULL;
    self->device = NULL;
    self->plan = NULL;
    self->units = NULL;
    self->sums = NULL;
    self->comm = NULL;
    self->verdict = NULL;
    self->gathered = NULL;
    self->has_gradient = NULL;
    self->part = NULL;
    self->by_listed = NULL;
    self->order = self->unit_first = NULL;
    self->sums_bytes = self->gathered_bytes = 0;
    self->lock = -1;
}

static int open_signals_blocked(spillway *self) {
    bool started = false;
    sw_status status = sw_library_begin(self, false);
    if (status != SW_OK)
        return sw_library_end(self, status, false);
    status = open_store(self, &started);
    const int known = sw_library_end(self, status, true);
    self->open = known == SPILLWAY_OK;
    if (!self->open) {
        SW_HANDLES_ERRORS();
        release(self, started);
    }
    return known;
}

int spillway_open(spillway *self) {
    const struct sw_library_signals signals = sw_library_block_signals(false);
    const int status = open_signals_blocked(self);
    sw_library_allow_signals(&signals);
    return status;
}

int64_t spillway_last_step(const spillway *self) {
    return self != NULL ? self->last_step : -1;
}

const char *spillway_note(const spillway *self) {
    return self != NULL ? self->note : "";
}

/* Lets a step that runs end, so that its commit is whole. Nobody can be told but by a warning. */
static void finish_running(spillway *self) {
    self->agreed = false;
    const sw_status status = self->failed ? SW_OK : sw_library_finish(self);
    if (status != SW_OK)
        sw_log_warn("step %lld in %s was not finished: %s", (long long)self->last_step, self->folder,
                    sw_error_message(status));
}

/* Gives the store's file its name back if it was removed. Nobody can be told but by a warning. */
static void put_back_names(const spillway *self) {
    const sw_status status = sw_store_put_back_names(self->store);
    if (status != SW_OK)
        sw_log_warn("the store in %s is lost: %s", self->folder, sw_error_message(status));
}

void spillway_close(spillway *self) {
    if (self == NULL || self->owner != getpid())
        return;
    SW_HANDLES_ERRORS();
    const struct sw_library_signals signals = sw_library_block_signals(false);
    if (self->open) {
        finish_running(self);
        put_back_names(self);
    }
    release(self, false);
    sw_library_cuda_close(self);
    if (self->weights_stream != NULL)
        self->weights_stream->users--;
    sw_library_allow_signals(&signals);
    free(self->tensor);
    free(self);
}
