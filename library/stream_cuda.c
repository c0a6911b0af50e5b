/* Tensors of a stream on a GPU: what is different there.
 *
 * The host's memory stands for the file, and the GPU's for the ring. Both are memory of the driver that is mapped, and
 * unmapped, behind addresses of the GPU: those of a piece lead to granules of the ring while it is used, else to the
 * host's memory, which the GPU then reads over its bus. So a use that nobody has announced is slower, as it is with
 * a file, and reads the same bytes. The host has addresses of its own for its memory.
 *
 * A mapping changes in two steps, and a kernel that runs between them would fail. So the thread that needs a piece
 * changes mappings, not the lane, after all work is done that the streams have which it and others have named. The lane
 * copies to the ring by addresses of the ring's own, beside that work.
 *
 * CUDA Driver API, "Virtual Memory Management"; a mapping is of a whole allocation, so each granule is one. */
#include "core/thread.h"
#include "library/cuda_driver.h"
#include "library/stream_private.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pieces whose copies the lane gives the GPU before it waits for the first of them. */
enum { COPIED_AT_ONCE = 8 };

struct stream_cuda {
    int number;
    CUdevice device;
    CUcontext context;
    int64_t unit_bytes; /* memory is taken and mapped in multiples of it */

    CUstream copies;
    CUevent copied[COPIED_AT_ONCE];
    CUstream *named; /* [named_room] the caller's streams */
    int64_t named_count, named_room;

    /* Addresses: of the ring for the lane; of the tensors on the GPU; of the tensors' copies on the host. */
    CUdeviceptr ring, tensors, copy;
    int64_t bytes; /* at `tensors`, and at `copy` */
    /* Memory: [granules]; of the small tensors; [tensor_count] the host's copies, and that of the small ones last. */
    CUmemGenericAllocationHandle *granule, small, *host;
};

static CUdeviceptr address_of(const void *at) {
    return (CUdeviceptr)(uintptr_t)at;
}

static sw_status enter(const struct stream_cuda *cuda) {
    return sw_cuda_driver_check(sw_cuda_driver.push(cuda->context), "choosing a GPU");
}

static sw_status leave(sw_status status) {
    CUcontext context;
    (void)sw_cuda_driver.pop(&context);
    return status;
}

/* Memory. */

static CUmemAllocationProp memory_of_device(const struct stream_cuda *cuda) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, cuda->device}};
}

/* Memory of the NUMA node that is nearest to the GPU; 0 where the system has none. */
static CUmemAllocationProp memory_of_host(const struct stream_cuda *cuda) {
    int node = -1;
    if (sw_cuda_driver.device_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, cuda->device) != CUDA_SUCCESS ||
        node < 0)
        node = 0;
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node}};
}

static sw_status take(CUmemGenericAllocationHandle *out, int64_t bytes, const CUmemAllocationProp *asked,
                      const char *doing) {
    const CUresult result = sw_cuda_driver.create(out, (size_t)bytes, asked, 0);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the driver refuses memory that is mapped behind addresses of the GPU: it has to be of CUDA "
                       "12.2 or newer, on Linux without a virtual GPU");
    return sw_cuda_driver_check(result, doing);
}

static sw_status map(CUdeviceptr at, int64_t bytes, CUmemGenericAllocationHandle handle) {
    return sw_cuda_driver_check(sw_cuda_driver.map(at, (size_t)bytes, 0, handle, 0), "mapping memory of a tensor");
}

/* Lets the GPU touch what is mapped, and the host too. */
static sw_status allow(const struct stream_cuda *cuda, CUdeviceptr at, int64_t bytes, bool on_host) {
    const CUmemAccessDesc access[] = {{{CU_MEM_LOCATION_TYPE_DEVICE, cuda->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                      {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    return sw_cuda_driver_check(sw_cuda_driver.set_access(at, (size_t)bytes, access, on_host ? 2 : 1),
                                "mapping memory of a tensor");
}

static sw_status unmap(CUdeviceptr at, int64_t bytes) {
    return sw_cuda_driver_check(sw_cuda_driver.unmap(at, (size_t)bytes), "unmapping memory of a tensor");
}

static int64_t mapped_bytes(const spillway_stream *self, const struct stream_piece *piece) {
    return piece->granules * self->granule_bytes;
}

/* Waits for the work that the caller's streams have. */
static sw_status drain(const struct stream_cuda *cuda) {
    for (int64_t s = 0; s < cuda->named_count; s++)
        SW_TRY(sw_cuda_driver_check(sw_cuda_driver.stream_synchronize(cuda->named[s]), "waiting for the GPU"));
    return SW_OK;
}

static sw_status to_ring(const spillway_stream *self, const struct stream_piece *piece) {
    const struct stream_cuda *cuda = self->cuda;
    const CUdeviceptr at = address_of(piece->address);
    SW_TRY(drain(cuda));
    SW_TRY(unmap(at, mapped_bytes(self, piece)));
    for (int64_t g = 0; g < piece->granules; g++)
        SW_TRY(map(at + (CUdeviceptr)(g * self->granule_bytes), self->granule_bytes, cuda->granule[piece->granule[g]]));
    return allow(cuda, at, mapped_bytes(self, piece), false);
}

static sw_status to_host(const spillway_stream *self, const struct stream_piece *piece) {
    const CUdeviceptr at = address_of(piece->address);
    SW_TRY(drain(self->cuda));
    SW_TRY(unmap(at, mapped_bytes(self, piece)));
    SW_TRY(map(at, mapped_bytes(self, piece), self->cuda->host[piece - self->piece]));
    return allow(self->cuda, at, mapped_bytes(self, piece), false);
}

sw_status sw_streamed_cuda_map(const spillway_stream *self, const struct stream_piece *piece, bool ring) {
    SW_TRY(enter(self->cuda));
    return leave(ring ? to_ring(self, piece) : to_host(self, piece));
}

/* The host's copies. */

static sw_status copy_to_device(const struct stream_cuda *cuda, CUdeviceptr to, const char *from, int64_t bytes) {
    return sw_cuda_driver_check(sw_cuda_driver.copy_to_device(to, from, (size_t)bytes, cuda->copies),
                                "copying to the GPU");
}

static sw_status wait_for_copies(const struct stream_cuda *cuda) {
    return sw_cuda_driver_check(sw_cuda_driver.stream_synchronize(cuda->copies), "waiting for the GPU");
}

static sw_status take_changes(spillway_stream *self, const int64_t *pieces, int64_t count) {
    struct stream_cuda *cuda = self->cuda;
    SW_TRY(drain(cuda));
    for (int64_t i = 0; i < count; i++) {
        const struct stream_piece *piece = &self->piece[pieces[i]];
        SW_TRY(sw_cuda_driver_check(
            sw_cuda_driver.copy_to_host(piece->host, address_of(piece->address), (size_t)piece->bytes, cuda->copies),
            "copying from the GPU"));
        self->used.written_bytes += piece->bytes;
    }
    return wait_for_copies(cuda);
}

sw_status sw_streamed_cuda_take_changes(spillway_stream *self, const int64_t *pieces, int64_t count) {
    SW_TRY(enter(self->cuda));
    return leave(take_changes(self, pieces, count));
}

sw_status sw_streamed_cuda_drain(spillway_stream *self) {
    SW_TRY(enter(self->cuda));
    pthread_mutex_lock(&self->lock);
    const sw_status status = drain(self->cuda);
    pthread_mutex_unlock(&self->lock);
    return leave(status);
}

sw_status sw_streamed_cuda_renew_small(spillway_stream *self) {
    SW_TRY(enter(self->cuda));
    sw_status status = SW_OK;
    for (int64_t t = 0; t < self->tensor_count && status == SW_OK; t++) {
        const struct stream_piece *piece = &self->piece[t];
        if (piece->small)
            status = copy_to_device(self->cuda, address_of(piece->address), piece->host, piece->bytes);
    }
    if (status == SW_OK)
        status = wait_for_copies(self->cuda);
    return leave(status);
}

/* The lane. */

/* Gives the GPU the copies of a piece, granule by granule. */
static sw_status give(const spillway_stream *self, const struct stream_piece *piece, CUevent copied) {
    const struct stream_cuda *cuda = self->cuda;
    for (int64_t g = 0, at = 0; g < piece->granules; g++, at += self->granule_bytes)
        SW_TRY(copy_to_device(cuda, cuda->ring + (CUdeviceptr)(piece->granule[g] * self->granule_bytes),
                              piece->host + at, sw_min_i64(self->granule_bytes, piece->bytes - at)));
    return sw_cuda_driver_check(sw_cuda_driver.event_record(copied, cuda->copies), "recording an event");
}

/* Copies some pieces, without the lock. A piece that is being read stays as it is until it has landed. */
static void copy_pieces(spillway_stream *self, const int64_t *pieces, int count) {
    sw_status status = SW_OK;
    pthread_mutex_unlock(&self->lock);
    for (int i = 0; i < count && status == SW_OK; i++)
        status = give(self, &self->piece[pieces[i]], self->cuda->copied[i]);
    for (int i = 0; i < count; i++) {
        if (status == SW_OK)
            status =
                sw_cuda_driver_check(sw_cuda_driver.event_synchronize(self->cuda->copied[i]), "waiting for the GPU");
        pthread_mutex_lock(&self->lock);
        if (status == SW_OK)
            self->piece[pieces[i]].state = STREAM_LANDED;
        self->used.read_bytes += self->piece[pieces[i]].bytes;
        pthread_cond_broadcast(&self->progress);
        pthread_mutex_unlock(&self->lock);
    }
    pthread_mutex_lock(&self->lock);
    sw_streamed_fail(self, status);
}

static void *run_lane(void *argument) {
    spillway_stream *self = argument;
    pthread_mutex_lock(&self->lock);
    sw_streamed_fail(self, enter(self->cuda));
    while (!self->stopping) {
        int64_t pieces[COPIED_AT_ONCE];
        int count = 0;
        while (count < COPIED_AT_ONCE && self->reads.count > 0 && self->status == SW_OK) {
            pieces[count++] = self->reads.piece[self->reads.first];
            self->reads.first = (self->reads.first + 1) % self->piece_count;
            self->reads.count--;
        }
        if (count > 0)
            copy_pieces(self, pieces, count);
        else
            pthread_cond_wait(&self->work, &self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    (void)leave(SW_OK);
    return NULL;
}

/* Life. */

sw_status sw_streamed_cuda_create(spillway_stream *self, int number) {
    struct stream_cuda *cuda = calloc(1, sizeof *cuda);
    size_t unit = 0;
    if (cuda == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    cuda->number = number;
    sw_status status = sw_cuda_driver_choose(number, &cuda->device, &cuda->context);
    if (status != SW_OK) {
        free(cuda);
        return status;
    }
    self->cuda = cuda;
    const CUmemAllocationProp device = memory_of_device(cuda), host = memory_of_host(cuda);
    status = sw_cuda_driver_check(sw_cuda_driver.granularity(&unit, &device, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                                  "asking for units of memory");
    cuda->unit_bytes = (int64_t)unit;
    if (status == SW_OK)
        status = sw_cuda_driver_check(sw_cuda_driver.granularity(&unit, &host, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                                      "asking for units of memory");
    cuda->unit_bytes = sw_max_i64(cuda->unit_bytes, (int64_t)unit);
    return status;
}

int64_t sw_streamed_cuda_unit(const spillway_stream *self) {
    return self->cuda->unit_bytes;
}

sw_status sw_streamed_cuda_name(spillway_stream *self, CUstream stream) {
    struct stream_cuda *cuda = self->cuda;
    for (int64_t s = 0; s < cuda->named_count; s++)
        if (cuda->named[s] == stream)
            return SW_OK;
    if (cuda->named_count == cuda->named_room) {
        const int64_t room = 2 * cuda->named_room + 4;
        CUstream *grown = realloc(cuda->named, (size_t)room * sizeof(CUstream));
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
        cuda->named = grown;
        cuda->named_room = room;
    }
    cuda->named[cuda->named_count++] = stream;
    return SW_OK;
}

static sw_status reserve(CUdeviceptr *out, int64_t bytes) {
    return sw_cuda_driver_check(sw_cuda_driver.reserve(out, (size_t)bytes, 0, 0, 0), "reserving addresses");
}

static sw_status make_ring(spillway_stream *self) {
    struct stream_cuda *cuda = self->cuda;
    const CUmemAllocationProp asked = memory_of_device(cuda);
    if (self->granules == 0)
        return SW_OK;
    SW_TRY(reserve(&cuda->ring, self->ring_bytes));
    for (int64_t g = 0; g < self->granules; g++) {
        SW_TRY(take(&cuda->granule[g], self->granule_bytes, &asked, "taking memory of the GPU"));
        SW_TRY(map(cuda->ring + (CUdeviceptr)(g * self->granule_bytes), self->granule_bytes, cuda->granule[g]));
    }
    return allow(cuda, cuda->ring, self->ring_bytes, false);
}

/* Maps the host's copy at `at` for the host, and for the tensor's address unless its memory is on the GPU for good. */
static sw_status make_copy(const spillway_stream *self, CUmemGenericAllocationHandle *out, int64_t at, int64_t bytes,
                           bool small) {
    struct stream_cuda *cuda = self->cuda;
    const CUmemAllocationProp host = memory_of_host(cuda), device = memory_of_device(cuda);
    SW_TRY(take(out, bytes, &host, "taking memory of the host that the GPU reads"));
    SW_TRY(map(cuda->copy + (CUdeviceptr)at, bytes, *out));
    SW_TRY(allow(cuda, cuda->copy + (CUdeviceptr)at, bytes, true));
    memset((void *)(uintptr_t)(cuda->copy + (CUdeviceptr)at), 0, (size_t)bytes);
    if (small)
        SW_TRY(take(&cuda->small, bytes, &device, "taking memory of the GPU"));
    SW_TRY(map(cuda->tensors + (CUdeviceptr)at, bytes, small ? cuda->small : *out));
    return allow(cuda, cuda->tensors + (CUdeviceptr)at, bytes, false);
}

/* Small tensors come first, side by side. */
static sw_status place(spillway_stream *self) {
    struct stream_cuda *cuda = self->cuda;
    int64_t small_at = 0, at = self->small_bytes;
    for (int64_t t = 0; t < self->tensor_count; t++) {
        struct stream_piece *piece = &self->piece[t];
        piece->granules = piece->small ? 0 : sw_div_up(piece->bytes, self->granule_bytes);
        piece->granule = calloc((size_t)piece->granules + 1, sizeof *piece->granule);
        if (piece->granule == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
        piece->file_at = piece->small ? small_at : at;
        *(piece->small ? &small_at : &at) +=
            sw_round_up(piece->bytes, piece->small ? SW_BUFFER_ALIGN_BYTES : self->granule_bytes);
        piece->filled = true;
        piece->state = piece->small ? STREAM_PRESENT : STREAM_ABSENT;
    }
    cuda->bytes = at;
    SW_TRY(reserve(&cuda->tensors, at));
    SW_TRY(reserve(&cuda->copy, at));
    if (self->small_bytes > 0)
        SW_TRY(make_copy(self, &cuda->host[self->tensor_count], 0, self->small_bytes, true));
    for (int64_t t = 0; t < self->tensor_count; t++) {
        struct stream_piece *piece = &self->piece[t];
        if (!piece->small)
            SW_TRY(make_copy(self, &cuda->host[t], piece->file_at, mapped_bytes(self, piece), false));
        piece->address = (char *)(uintptr_t)(cuda->tensors + (CUdeviceptr)piece->file_at);
        piece->host = (char *)(uintptr_t)(cuda->copy + (CUdeviceptr)piece->file_at);
    }
    return SW_OK;
}

static sw_status start(spillway_stream *self) {
    struct stream_cuda *cuda = self->cuda;
    self->free_granules = self->granules;
    self->taken = calloc((size_t)self->granules + 1, sizeof *self->taken);
    self->reads.piece = malloc((size_t)self->piece_count * sizeof *self->reads.piece);
    cuda->granule = calloc((size_t)self->granules + 1, sizeof *cuda->granule);
    cuda->host = calloc((size_t)self->tensor_count + 1, sizeof *cuda->host);
    if (self->taken == NULL || self->reads.piece == NULL || cuda->granule == NULL || cuda->host == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    SW_TRY(make_ring(self));
    SW_TRY(place(self));
    SW_TRY(
        sw_cuda_driver_check(sw_cuda_driver.stream_create(&cuda->copies, CU_STREAM_NON_BLOCKING), "making a stream"));
    for (int i = 0; i < COPIED_AT_ONCE; i++)
        SW_TRY(sw_cuda_driver_check(
            sw_cuda_driver.event_create(&cuda->copied[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
            "making an event"));
    SW_TRY(sw_streamed_cuda_renew_small(self));
    if (sw_thread_start(&self->lane, run_lane, self) != 0)
        return sw_fail(SW_ERR_NOMEM, "the system refuses a thread");
    self->lane_runs = true;
    return SW_OK;
}

sw_status sw_streamed_cuda_start(spillway_stream *self) {
    SW_TRY(enter(self->cuda));
    return leave(start(self));
}

static void release(CUmemGenericAllocationHandle handle) {
    if (handle != 0)
        (void)sw_cuda_driver.destroy(handle);
}

/* Gives up addresses; what was never mapped there is refused, and that is all. */
static void give_back(CUdeviceptr at, int64_t bytes) {
    if (at != 0)
        (void)sw_cuda_driver.unreserve(at, (size_t)bytes);
}

static void unmap_all(spillway_stream *self) {
    struct stream_cuda *cuda = self->cuda;
    for (int64_t g = 0; g < self->granules && cuda->granule != NULL; g++)
        if (cuda->granule[g] != 0)
            (void)unmap(cuda->ring + (CUdeviceptr)(g * self->granule_bytes), self->granule_bytes);
    for (int64_t t = 0; t < self->tensor_count && cuda->copy != 0; t++) {
        const struct stream_piece *piece = &self->piece[t];
        if (!piece->small) {
            (void)unmap(cuda->tensors + (CUdeviceptr)piece->file_at, mapped_bytes(self, piece));
            (void)unmap(cuda->copy + (CUdeviceptr)piece->file_at, mapped_bytes(self, piece));
        }
    }
    if (self->small_bytes > 0 && cuda->copy != 0) {
        (void)unmap(cuda->tensors, self->small_bytes);
        (void)unmap(cuda->copy, self->small_bytes);
    }
    sw_error_clear();
}

/* After a kernel that failed each call returns that error, and what was made is still there. */
static void take_down(spillway_stream *self) {
    struct stream_cuda *cuda = self->cuda;
    (void)drain(cuda);
    unmap_all(self);
    for (int64_t g = 0; g < self->granules && cuda->granule != NULL; g++)
        release(cuda->granule[g]);
    for (int64_t t = 0; t <= self->tensor_count && cuda->host != NULL; t++)
        release(cuda->host[t]);
    release(cuda->small);
    give_back(cuda->ring, self->ring_bytes);
    give_back(cuda->tensors, cuda->bytes);
    give_back(cuda->copy, cuda->bytes);
    for (int i = 0; i < COPIED_AT_ONCE; i++)
        if (cuda->copied[i] != NULL)
            (void)sw_cuda_driver.event_destroy(cuda->copied[i]);
    if (cuda->copies != NULL)
        (void)sw_cuda_driver.stream_destroy(cuda->copies);
}

void sw_streamed_cuda_take_down(spillway_stream *self, bool keep) {
    struct stream_cuda *cuda = self->cuda;
    const CUresult entered = keep ? CUDA_SUCCESS : sw_cuda_driver.push(cuda->context);
    if (!keep && !sw_cuda_driver_is_gone(entered))
        take_down(self);
    if (!keep && entered == CUDA_SUCCESS)
        (void)leave(SW_OK);
    for (int64_t p = 0; p < self->piece_count; p++)
        free(self->piece[p].granule);
    if (!keep)
        (void)sw_cuda_driver.release(cuda->device);
    free(self->taken);
    free(self->reads.piece);
    free(self->history);
    free(cuda->granule);
    free(cuda->host);
    free(cuda->named);
    free(cuda);
}
