/* The life of a stream, and its calls. stream_ring.c decides what is in memory, stream_lane.c moves it, stream_order.c
 * knows what comes next. */
#include "core/machine.h"
#include "library/stream_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tensors of at most SMALL_BYTES, such as norms and biases, stay in memory while they take no more than the budget's
 * part of SMALL_SHARE. Granules are as large as gives some thousands: each may be a mapping of its own, and the system
 * allows 65,530. */
enum { SMALL_BYTES = 64 << 10, SMALL_SHARE = 8, MOST_GRANULES = 8192, LEAST_GRANULE = 64 << 10 };

static sw_status begin(const spillway_stream *self, bool open) {
    sw_error_clear();
    if (self == NULL)
        return sw_fail(SW_ERR_ARG, "the stream is NULL: spillway_stream_create makes one");
    if (self->owner != getpid())
        return sw_fail(SW_ERR_ARG,
                       "this process is a fork of the one that opened the stream in %s, whose threads it lacks: "
                       "offload after the fork",
                       self->folder);
    if (open != self->open)
        return sw_fail(SW_ERR_ARG, "the stream in %s is %s", self->folder,
                       open ? "not open yet: call spillway_stream_open first" : "open: this call comes before");
    return SW_OK;
}

static sw_status create(const struct spillway_stream_options *given, spillway_stream **out) {
    struct spillway_stream_options options = SPILLWAY_STREAM_OPTIONS_INIT;
    if (out == NULL)
        return sw_fail(SW_ERR_ARG, "there is nowhere to return the stream: out is NULL");
    *out = NULL;
    SW_TRY(sw_library_take_struct(&options, sizeof options, given, "the options", "SPILLWAY_STREAM_OPTIONS_INIT"));
    const bool on_cuda = options.cuda_device >= 0;
    if (!on_cuda &&
        (options.folder == NULL || options.folder[0] == '\0' || strlen(options.folder) >= LIBRARY_PATH_CHARS / 2))
        return sw_fail(SW_ERR_ARG, "`folder` is not the path of a folder");
    if (options.memory_bytes == 0 || options.memory_bytes > INT64_MAX / 4)
        return sw_fail(SW_ERR_ARG, "memory_bytes is not set: say how much memory the stream may take");
    spillway_stream *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    self->owner = getpid();
    if (on_cuda)
        snprintf(self->folder, sizeof self->folder, "CUDA device %d", options.cuda_device);
    else
        snprintf(self->folder, sizeof self->folder, "%s", options.folder);
    self->options = options;
    self->options.folder = NULL;
    self->file = self->memory = -1;
    self->match = -1;
    const sw_status status = on_cuda ? sw_streamed_cuda_create(self, options.cuda_device) : SW_OK;
    if (status != SW_OK) {
        if (self->cuda != NULL)
            sw_streamed_cuda_take_down(self, false);
        free(self);
        return status;
    }
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->work, NULL);
    pthread_cond_init(&self->progress, NULL);
    *out = self;
    return SW_OK;
}

int spillway_stream_create(const struct spillway_stream_options *options, spillway_stream **out) {
    sw_error_clear();
    return sw_library_end(NULL, create(options, out), false);
}

/* Makes room for pieces. An open stream has room for all, so that they stay where they are while the lane uses them. */
static sw_status reserve(spillway_stream *self, int64_t count) {
    if (count <= self->piece_room)
        return SW_OK;
    const int64_t room = 2 * count + 64;
    struct stream_piece *grown = realloc(self->piece, (size_t)room * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    self->piece = grown;
    self->piece_room = room;
    return SW_OK;
}

/* Appends `count` pieces without names and bytes. */
static sw_status append(spillway_stream *self, int64_t count) {
    SW_TRY(reserve(self, self->piece_count + count));
    for (int64_t p = self->piece_count; p < self->piece_count + count; p++)
        self->piece[p] = (struct stream_piece){.backward_at = -1, .gradient = -1};
    self->piece_count += count;
    return SW_OK;
}

static sw_status add(spillway_stream *self, const char *name, int64_t bytes, int64_t *out_index) {
    SW_TRY(begin(self, false));
    if (name == NULL || strlen(name) >= SPILLWAY_NAME_CHARS)
        return sw_fail(SW_ERR_ARG, "a tensor's name is missing, or longer than %d bytes", SPILLWAY_NAME_CHARS - 1);
    if (bytes < 1 || bytes > INT64_MAX / 4096)
        return sw_fail(SW_ERR_ARG, "'%s' has %lld bytes; a tensor has at least one", name, (long long)bytes);
    if (self->piece_count == INT32_MAX / 4)
        return sw_fail(SW_ERR_ARG, "a stream has room for %d tensors", INT32_MAX / 4);
    char *copy = strdup(name);
    const sw_status status = copy != NULL ? append(self, 1) : sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    if (status != SW_OK) {
        free(copy);
        return status;
    }
    self->piece[self->piece_count - 1].name = copy;
    self->piece[self->piece_count - 1].bytes = bytes;
    if (out_index != NULL)
        *out_index = self->piece_count - 1;
    return SW_OK;
}

int spillway_stream_add(spillway_stream *self, const char *name, int64_t bytes, int64_t *out_index) {
    return sw_library_end(NULL, add(self, name, bytes, out_index), false);
}

/* Returns how many granules are ever used. */
static int64_t most_granules(const spillway_stream *self, int64_t all) {
    int64_t count = 0;
    /* Gradients may come later, of up to twice the bytes of the weights, and stay on the host if there is a GPU. */
    if (self->cuda == NULL)
        return 3 * sw_div_up(all, self->granule_bytes) + 3 * self->piece_count;
    for (int64_t p = 0; p < self->piece_count; p++)
        count += self->piece[p].small ? 0 : sw_div_up(self->piece[p].bytes, self->granule_bytes);
    return count;
}

/* Divides the memory: small tensors stay, the rest is the ring. */
static sw_status divide(spillway_stream *self) {
    const int64_t unit = self->cuda != NULL ? sw_streamed_cuda_unit(self) : SW_BUFFER_ALIGN_BYTES;
    const int64_t least = self->cuda != NULL ? unit : LEAST_GRANULE;
    const int64_t budget = (int64_t)self->options.memory_bytes / unit * unit;
    int64_t largest = 0, all = 0;
    for (int64_t p = 0; p < self->piece_count; p++) {
        struct stream_piece *piece = &self->piece[p];
        const int64_t bytes = sw_round_up(piece->bytes, SW_BUFFER_ALIGN_BYTES);
        piece->small = piece->bytes <= SMALL_BYTES && self->small_bytes + bytes <= budget / SMALL_SHARE;
        self->small_bytes += piece->small ? bytes : 0;
        largest = piece->small ? largest : sw_max_i64(largest, bytes);
        all += piece->small ? 0 : sw_round_up(bytes, LEAST_GRANULE);
    }
    self->small_bytes = sw_round_up(self->small_bytes, unit);
    const int64_t left = budget - self->small_bytes;
    self->granule_bytes = least;
    while (left / self->granule_bytes > MOST_GRANULES)
        self->granule_bytes *= 2;
    if (largest > 0 && sw_round_up(largest, self->granule_bytes) > left) {
        char text[2][SW_SIZE_CHARS];
        return sw_fail(SW_ERR_BUDGET,
                       "memory_bytes, %s, is too small: the largest tensor alone takes %s. Give some times as much, so "
                       "that tensors are read while others are used",
                       sw_format_size(budget, text[0]),
                       sw_format_size(self->small_bytes + sw_round_up(largest, self->granule_bytes), text[1]));
    }
    self->granules = sw_min_i64(left / self->granule_bytes, most_granules(self, all));
    self->granules = largest > 0 ? self->granules : 0;
    self->ring_bytes = self->granules * self->granule_bytes;
    return SW_OK;
}

static sw_status open_stream(spillway_stream *self) {
    SW_TRY(begin(self, false));
    if (self->piece_count == 0)
        return sw_fail(SW_ERR_ARG, "no tensor is registered: call spillway_stream_add first");
    self->tensor_count = self->piece_count;
    SW_TRY(reserve(self, 2 * self->tensor_count));
    SW_TRY(divide(self));
    char *absolute = self->cuda == NULL ? realpath(self->folder, NULL) : NULL;
    if (absolute != NULL && strlen(absolute) < sizeof self->folder)
        memcpy(self->folder, absolute, strlen(absolute) + 1);
    free(absolute);
    SW_TRY(self->cuda != NULL ? sw_streamed_cuda_start(self) : sw_streamed_start(self));
    self->open = true;
    return SW_OK;
}

int spillway_stream_open(spillway_stream *self) {
    const struct sw_library_signals signals = sw_library_block_signals(false);
    const int status = sw_library_end(NULL, open_stream(self), false);
    sw_library_allow_signals(&signals);
    return status;
}

void *spillway_stream_address(const spillway_stream *self, int64_t index) {
    return self != NULL && self->open && index >= 0 && index < self->tensor_count ? self->piece[index].address : NULL;
}

static sw_status check_tensors(const spillway_stream *self, const int64_t *tensors, int64_t count) {
    SW_TRY(begin(self, true));
    for (int64_t i = 0; i < count; i++)
        if (tensors[i] < 0 || tensors[i] >= self->tensor_count)
            return sw_fail(SW_ERR_ARG, "there is no tensor %lld in the stream in %s", (long long)tensors[i],
                           self->folder);
    return SW_OK;
}

static sw_status need(spillway_stream *self, const int64_t *tensors, int64_t count, int direction) {
    SW_TRY(check_tensors(self, tensors, count));
    if (direction < SPILLWAY_FORWARD || direction > SPILLWAY_CHANGE)
        return sw_fail(SW_ERR_ARG, "%d is not one of SPILLWAY_FORWARD, _BACKWARD and _CHANGE", direction);
    return sw_streamed_hold(self, tensors, count, direction == SPILLWAY_CHANGE ? STREAM_CHANGE : STREAM_READ,
                            direction);
}

int spillway_stream_need(spillway_stream *self, const int64_t *tensors, int64_t count, int direction) {
    return sw_library_end(NULL, need(self, tensors, count, direction), false);
}

static sw_status done(spillway_stream *self, const int64_t *tensors, int64_t count) {
    SW_TRY(check_tensors(self, tensors, count));
    return sw_streamed_release(self, tensors, count, false);
}

int spillway_stream_done(spillway_stream *self, const int64_t *tensors, int64_t count) {
    return sw_library_end(NULL, done(self, tensors, count), false);
}

static sw_status changed(spillway_stream *self, const int64_t *tensors, int64_t count) {
    SW_TRY(check_tensors(self, tensors, count));
    return sw_streamed_take_changes(self, tensors, count);
}

int spillway_stream_changed(spillway_stream *self, const int64_t *tensors, int64_t count) {
    return sw_library_end(NULL, changed(self, tensors, count), false);
}

static sw_status use_cuda(spillway_stream *self, void *stream) {
    SW_TRY(begin(self, true));
    if (self->cuda == NULL)
        return sw_fail(SW_ERR_ARG,
                       "the tensors of the stream in %s are in host memory: set cuda_device when it is made",
                       self->folder);
    pthread_mutex_lock(&self->lock);
    const sw_status status = sw_streamed_cuda_name(self, stream);
    pthread_mutex_unlock(&self->lock);
    return status;
}

int spillway_stream_use_cuda(spillway_stream *self, void *stream) {
    return sw_library_end(NULL, use_cuda(self, stream), false);
}

static sw_status get_usage(spillway_stream *self, struct spillway_stream_usage *out) {
    SW_TRY(begin(self, true));
    SW_TRY(sw_library_check_result(out, sizeof *out, "the usage", "SPILLWAY_STREAM_USAGE_INIT"));
    pthread_mutex_lock(&self->lock);
    struct spillway_stream_usage made = self->used;
    pthread_mutex_unlock(&self->lock);
    for (int64_t t = 0; t < self->tensor_count; t++)
        made.tensor_bytes += self->piece[t].bytes;
    made.memory_bytes = self->ring_bytes + self->small_bytes;
    made.drive_bytes = self->file_bytes;
    sw_library_give_struct(out, &made, sizeof made);
    return SW_OK;
}

int spillway_stream_get_usage(spillway_stream *self, struct spillway_stream_usage *out) {
    return sw_library_end(NULL, get_usage(self, out), false);
}

int spillway_stream_close(spillway_stream *self, int keep) {
    if (self == NULL || self->owner != getpid())
        return SPILLWAY_OK;
    SW_HANDLES_ERRORS();
    if (self->users > 0)
        return sw_library_end(
            NULL, sw_fail(SW_ERR_BUSY, "a store still writes to the stream in %s: close it before", self->folder),
            false);
    sw_streamed_stop(self);
    if (self->cuda != NULL)
        sw_streamed_cuda_take_down(self, keep != 0);
    else
        sw_streamed_take_down(self, keep != 0);
    for (int64_t p = 0; p < self->piece_count; p++)
        free(self->piece[p].name);
    free(self->piece);
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->work);
    pthread_cond_destroy(&self->progress);
    free(self);
    return SPILLWAY_OK;
}

/* The store's side. */

sw_status sw_streamed_find(const spillway_stream *self, const char *name, const void *address, int64_t bytes,
                           int64_t *out) {
    *out = -1;
    for (int64_t t = 0; t < self->tensor_count && *out < 0; t++)
        if (self->piece[t].address == address || (self->cuda != NULL && self->piece[t].host == address))
            *out = t;
    if (*out >= 0 && self->piece[*out].bytes != bytes)
        return sw_fail(SW_ERR_ARG, "'%s' has %lld bytes, and in the stream %lld", name, (long long)bytes,
                       (long long)self->piece[*out].bytes);
    return SW_OK;
}

static sw_status refuse_gradients(const spillway_stream *self, int64_t granules) {
    char text[2][SW_SIZE_CHARS];
    return sw_fail(
        SW_ERR_BUDGET,
        "the stream's memory_bytes leaves %s, and the largest gradient and the largest weights together take %s",
        sw_format_size(self->ring_bytes, text[0]), sw_format_size(granules * self->granule_bytes, text[1]));
}

/* A store before this one may have left the piece. */
static sw_status add_gradient(spillway_stream *self, struct stream_piece *tensor, int64_t bytes) {
    if (tensor->gradient >= 0)
        return SW_OK;
    SW_TRY(append(self, 1));
    struct stream_piece *piece = &self->piece[self->piece_count - 1];
    piece->name = strdup(tensor->name);
    piece->bytes = bytes;
    tensor->gradient = self->piece_count - 1;
    return piece->name != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a stream");
}

/* Drops the pieces from `first` on, which were not used yet. */
static void drop_gradients(spillway_stream *self, int64_t first) {
    for (int64_t p = first; p < self->piece_count; p++) {
        free(self->piece[p].name);
        free(self->piece[p].sum);
        free(self->piece[p].granule);
    }
    for (int64_t t = 0; t < self->tensor_count; t++)
        self->piece[t].gradient = self->piece[t].gradient >= first ? -1 : self->piece[t].gradient;
    self->piece_count = first;
}

sw_status sw_streamed_add_gradients(spillway_stream *self, const int64_t *tensors, const int64_t *bytes,
                                    int64_t count) {
    int64_t gradient = 0, weights = 0;
    for (int64_t i = 0; i < count; i++) {
        gradient = sw_max_i64(gradient, sw_div_up(bytes[i], self->granule_bytes));
        weights = sw_max_i64(weights, self->piece[tensors[i]].granules);
    }
    if (gradient + weights > self->granules)
        return refuse_gradients(self, gradient + weights);
    pthread_mutex_lock(&self->lock);
    const int64_t first = self->piece_count;
    sw_status status = SW_OK;
    for (int64_t i = 0; i < count && status == SW_OK; i++)
        status = add_gradient(self, &self->piece[tensors[i]], bytes[i]);
    if (status == SW_OK)
        status = sw_streamed_place(self, first, self->piece_count - first);
    if (status != SW_OK)
        drop_gradients(self, first);
    pthread_mutex_unlock(&self->lock);
    return status;
}
