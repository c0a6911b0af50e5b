/* Tensors in the memory of a CUDA device: copies between them and pinned staging memory of the host, which the
 * engine's chunks pass through. Gradients of the next chunk come while this one is updated, and new weights leave while
 * the next chunk is. The order with the caller's work on the GPU is that of the stream which spillway_use_cuda names.
 */
#ifndef SW_LIBRARY_DEVICE_H
#define SW_LIBRARY_DEVICE_H

#include "library/library_private.h"

/* The most elements of a unit that are taken or given at once. */
enum { LIBRARY_CHUNK_GRAINS = 16, LIBRARY_CHUNK_ELEMS = LIBRARY_CHUNK_GRAINS * SW_GRAIN_ELEMS };

/* Takes SPILLWAY_CUDA out of a type, and returns whether it was there. */
static inline bool sw_library_split_type(int *type) {
    const bool on_cuda = *type >= 0 && (*type & SPILLWAY_CUDA) != 0;
    *type -= on_cuda ? SPILLWAY_CUDA : 0;
    return on_cuda;
}

/* Returns the staging memory of a handle, 0 if it has no GPU. */
int64_t sw_library_cuda_bytes(const spillway *self);
/* Returns the memory that a handle takes beside that of its plan. */
static inline int64_t sw_library_own_bytes(const spillway *self) {
    return self->sums_bytes + self->gathered_bytes + sw_library_cuda_bytes(self);
}
/* Takes staging memory, streams and events, and waits for the caller's work on the GPU. Without a GPU it does nothing,
 * as all of the following. */
sw_status sw_library_cuda_start(spillway *self);
/* Gives back what sw_library_cuda_start took; the GPU itself stays chosen. */
void sw_library_cuda_stop(spillway *self);
/* Forgets the GPU. */
void sw_library_cuda_close(spillway *self);

/* Refuses an address that is not [count] elements in the chosen GPU's memory. `what` begins the message. */
sw_status sw_library_cuda_check(const spillway *self, const void *address, const char *what, const char *name);
/* Notes that a gradient is ready once the work that the caller has given its stream by now is done. */
sw_status sw_library_cuda_handed_in(spillway *self);
/* Begins a step: its gradients are those handed in, and new weights wait for the caller's work up to now. */
sw_status sw_library_cuda_begin(spillway *self);
/* Tells that the step takes gradients for the last time, so nothing is fetched behind the last chunk. */
void sw_library_cuda_last_pass(spillway *self);

/* Returns in *out where the gradients of elements [first, first+count) of a unit that are in device memory have been
 * copied: element i of the range at *out + 4·i, in its tensor's type. Valid until the next call. Called by one thread
 * at a time. */
sw_status sw_library_cuda_fetch(spillway *self, int64_t unit, int64_t first, int64_t count, const char **out);
/* Returns staging memory for new weights of LIBRARY_CHUNK_ELEMS elements, laid out in the same way. */
sw_status sw_library_cuda_room(spillway *self, char **out);
/* Sends what was put there for elements [first, first+count) of a unit to the tensors in device memory. */
sw_status sw_library_cuda_send(spillway *self, int64_t unit, int64_t first, int64_t count);
/* Waits until the weights that were sent by now are in the tensors. Any thread may call it. */
sw_status sw_library_cuda_sent(spillway *self);

/* Receives a piece of a tensor in host memory: elements [at, at+count). */
typedef sw_status (*sw_library_piece)(void *context, const void *piece, int64_t at, int64_t count);
/* Calls `use` with all pieces of a tensor in device memory, in order, of at most LIBRARY_ADDED_AT_ONCE elements; the
 * next piece is copied meanwhile. Returns when the tensor is read no more. Several threads may call it, one after the
 * other. made_by_caller: what the caller's stream has to do now makes the tensor, and comes before. */
sw_status sw_library_cuda_pieces(spillway *self, const void *tensor, sw_dtype type, int64_t count, bool made_by_caller,
                                 sw_library_piece use, void *context);
/* Copies bytes from host to device memory, and waits. */
sw_status sw_library_cuda_write(spillway *self, void *to, int64_t bytes, const void *from);

#endif
