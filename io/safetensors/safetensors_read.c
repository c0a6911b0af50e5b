/* Reads elements of safetensors files: from what was read ahead, or from the file when they are asked for. */
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/read_ahead.h"
#include "io/safetensors/safetensors_private.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "tensors are read into place as the file has them");

static sw_status select_file(struct sw_safetensors *tensors, int file) {
    if (tensors->open_file == file)
        return SW_OK;
    if (tensors->fd >= 0)
        close(tensors->fd);
    tensors->open_file = -1;
    SW_TRY(sw_file_open_again(tensors->paths[file], &tensors->identities[file], &tensors->fd));
    tensors->open_file = file;
    return SW_OK;
}

static int64_t place_of(const struct sw_safetensor *tensor, int64_t elem) {
    return tensor->offset_bytes + elem * sw_dtype_bytes(tensor->type);
}

static_assert((int)SW_SAFETENSORS_BUFFER_BYTES >= (int)SW_READ_AHEAD_BLOCK_BYTES,
              "a block's elements are read at once");

/* Reads elements from their file. The caller holds the mutex. */
static sw_status read_now(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                          int64_t count, float *out) {
    SW_TRY(select_file(tensors, tensor->file));
    SW_TRY(sw_file_read(tensors->fd, tensors->paths[tensor->file], place_of(tensor, first), tensors->buffer,
                        count * sw_dtype_bytes(tensor->type)));
    sw_dtype_widen(tensor->type, tensors->buffer, count, out);
    return SW_OK;
}

/* Copies an element that lies across two blocks, as it does where the header has an odd length. */
static bool look_across(const struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t elem,
                        char bytes[sizeof(float)]) {
    int64_t there;
    for (int64_t b = 0; b < sw_dtype_bytes(tensor->type); b++) {
        const char *at = sw_read_ahead_look(tensors->ahead, tensor->file, place_of(tensor, elem) + b, &there);
        if (at == NULL)
            return false;
        bytes[b] = *at;
    }
    return true;
}

/* Returns how many of these elements, from the first on, were read ahead, and where they are in *out_from, as the file
 * has them: in a block, or one element in the caller's `across`. */
static int64_t look(const struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                    int64_t count, char across[sizeof(float)], const char **out_from) {
    int64_t bytes = 0;
    if (tensors->ahead == NULL)
        return 0;
    *out_from = sw_read_ahead_look(tensors->ahead, tensor->file, place_of(tensor, first), &bytes);
    const int64_t there = sw_min_i64(count, bytes / sw_dtype_bytes(tensor->type));
    if (there > 0 || bytes == 0 || !look_across(tensors, tensor, first, across))
        return there;
    *out_from = across;
    return 1;
}

static sw_status read_some(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                           int64_t count, float *out, int64_t *out_read) {
    char across[sizeof(float)];
    const char *from;
    *out_read = look(tensors, tensor, first, count, across, &from);
    if (*out_read > 0) {
        sw_dtype_widen(tensor->type, from, *out_read, out);
        return SW_OK;
    }
    /* The read ends with this block, because the next block may already be in memory. */
    const int64_t left_bytes = SW_READ_AHEAD_BLOCK_BYTES - place_of(tensor, first) % SW_READ_AHEAD_BLOCK_BYTES;
    *out_read = sw_min_i64(count, sw_max_i64(1, left_bytes / sw_dtype_bytes(tensor->type)));
    pthread_mutex_lock(&tensors->mutex);
    const sw_status status = read_now(tensors, tensor, first, *out_read, out);
    pthread_mutex_unlock(&tensors->mutex);
    return status;
}

sw_status sw_safetensors_read_f32(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                  int64_t count, float *out) {
    if (!tensor->supported)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: tensor %s has a type other than F32, BF16 and F16",
                       tensors->paths[tensor->file], tensor->name);
    assert(first >= 0 && count >= 0 && first <= tensor->elems - count);
    for (int64_t done = 0, now; done < count; done += now) {
        const sw_status status = read_some(tensors, tensor, first + done, count - done, out + done, &now);
        if (status != SW_OK)
            return sw_fail_while(status, "reading tensor %s", tensor->name);
    }
    return SW_OK;
}

sw_status sw_safetensors_announce(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                  int64_t count, int64_t position, bool *out_taken) {
    assert(tensor->supported && first >= 0 && count >= 0 && first <= tensor->elems - count);
    if (tensors->ahead == NULL)
        SW_TRY(sw_read_ahead_open((const char *const *)tensors->paths, tensors->identities, &tensors->ahead));
    return sw_read_ahead_announce(tensors->ahead, tensor->file, place_of(tensor, first),
                                  count * sw_dtype_bytes(tensor->type), position, out_taken);
}

void sw_safetensors_pass(struct sw_safetensors *tensors, int64_t position) {
    if (tensors->ahead != NULL)
        sw_read_ahead_pass(tensors->ahead, position);
}

sw_status sw_safetensors_await(struct sw_safetensors *tensors, int64_t end) {
    return tensors->ahead == NULL ? SW_OK : sw_read_ahead_await(tensors->ahead, end);
}

int64_t sw_safetensors_bytes_ahead(const struct sw_safetensors *tensors) {
    return tensors->ahead == NULL ? 0 : sw_read_ahead_bytes(tensors->ahead);
}
