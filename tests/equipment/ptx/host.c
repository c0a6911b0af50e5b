/* CUDA's calls by which nvcc's host objects register their kernels and launch them, for the interpreter in place of a
 * GPU. The rest of CUDA's runtime is the emulated one. */
#include "tests/equipment/cuda/gpu.h"
#include "tests/equipment/cuda/machine.h"
#include "tests/equipment/ptx/ptx.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* The arguments of nvcc's objects, in the layouts of its generated code. */
struct dim3 {
    uint32_t x, y, z;
};
struct fat_wrapper {
    int32_t magic, version;
    const char *data;
    void *unused;
};

struct image {
    struct sw_ptx_module *module; /* NULL until it is wanted */
    const char *data;
    char error[SW_PTX_ERROR_CHARS];
    struct image *next;
};

/* A kernel by the address of the host function that launches it. */
struct registered {
    const void *host_function;
    const char *name;
    struct image *image;
    const struct sw_ptx_kernel *kernel;
    size_t dynamic_limit_bytes; /* what cudaFuncSetAttribute allowed; 48 KiB until then */
    struct registered *next;
};

static struct {
    pthread_mutex_t mutex;
    struct registered *kernels;
    struct image *images;
    _Atomic size_t most_shared_bytes; /* of a block, as the runtime sets it */
} host = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The error of this thread's last launch, which the stream that ran it takes. */
static _Thread_local char last_error[SW_PTX_ERROR_CHARS + 256];
static _Thread_local bool has_error;

struct configuration {
    struct dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};
static _Thread_local struct configuration pushed;

enum { PLAIN_SHARED_BYTES = 48 * 1024, WORD_BYTES = 4 };
enum { IMAGE_HEADER_AT = 4, IMAGE_BYTES_AT = 8, IMAGE_COMPRESSED_AT = 16, IMAGE_WHOLE_AT = 56 };

void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host_function, char *device, const char *name, int limit,
                            void *tid, void *bid, void *block, void *grid, int *warp);
unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared_bytes, void *stream);
cudaError_t __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaGetKernel(void **out, const void *host_function);
cudaError_t __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared_bytes,
                               cudaStream_t stream);
cudaError_t cudaLaunchKernel(const void *host_function, struct dim3 grid, struct dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream);
cudaError_t cudaFuncSetAttribute(const void *host_function, int attribute, int value);
cudaError_t cudaFuncGetAttributes(void *out, const void *host_function);

void sw_emulation_set_most_shared(size_t bytes) {
    host.most_shared_bytes = bytes;
}

const char *sw_emulation_take_error(void) {
    const bool had = has_error;
    has_error = false;
    return had ? last_error : NULL;
}

static void report(void);

void **__cudaRegisterFatBinary(void *wrapper) {
    struct image *image = calloc(1, sizeof *image);
    assert(image != NULL);
    image->data = ((const struct fat_wrapper *)wrapper)->data;
    pthread_mutex_lock(&host.mutex);
    if (host.images == NULL)
        atexit(report);
    image->next = host.images;
    host.images = image;
    pthread_mutex_unlock(&host.mutex);
    return (void **)(void *)image;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

/* Images are named by what is registered, which lives as long as the process. */
void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host_function, char *device, const char *name, int limit,
                            void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    struct registered *kernel = calloc(1, sizeof *kernel);
    assert(kernel != NULL);
    *kernel = (struct registered){.host_function = host_function,
                                  .name = name,
                                  .image = (struct image *)(void *)handle,
                                  .dynamic_limit_bytes = PLAIN_SHARED_BYTES};
    pthread_mutex_lock(&host.mutex);
    kernel->next = host.kernels;
    host.kernels = kernel;
    pthread_mutex_unlock(&host.mutex);
}

/* SW_PTX_REACHED names a file to which what was reached of every kernel is appended at the process's end. */
static void report(void) {
    const char *path = getenv("SW_PTX_REACHED");
    FILE *to = path == NULL ? NULL : fopen(path, "a");
    for (const struct image *image = host.images; to != NULL && image != NULL; image = image->next) {
        if (image->module != NULL)
            sw_ptx_module_report(image->module, to);
    }
    if (to != NULL)
        fclose(to);
}

static struct registered *find(const void *host_function) {
    pthread_mutex_lock(&host.mutex);
    struct registered *kernel = host.kernels;
    while (kernel != NULL && kernel->host_function != host_function)
        kernel = kernel->next;
    pthread_mutex_unlock(&host.mutex);
    return kernel;
}

static uint32_t word_at(const char *data, size_t at) {
    uint32_t word;
    memcpy(&word, data + at, sizeof word);
    return word;
}

/* A fat binary is a header, and images with a header each: kind, header's bytes, bytes, and where it is compressed,
 * those that it has then and before. Returns the header of the PTX, or NULL. */
static const char *find_ptx(const char *data) {
    enum { BYTES_AT = 8, KIND_PTX = 1 };
    static const uint32_t magic = 0xba55ed50u;
    const size_t header = word_at(data, WORD_BYTES) >> 16, end = header + word_at(data, BYTES_AT);
    for (size_t at = header; word_at(data, 0) == magic && at < end;) {
        if ((word_at(data, at) & 0xffff) == KIND_PTX)
            return data + at;
        at += word_at(data, at + IMAGE_HEADER_AT) + word_at(data, at + IMAGE_BYTES_AT);
    }
    return NULL;
}

/* nvcc 13 compresses PTX by zstd. */
static char *text_of(const char *image) {
    const char *begin = image + word_at(image, IMAGE_HEADER_AT);
    const size_t whole = word_at(image, IMAGE_WHOLE_AT), compressed = word_at(image, IMAGE_COMPRESSED_AT);
    char *text = calloc(1, whole + 1);
    assert(text != NULL);
    const size_t bytes = ZSTD_decompress(text, whole, begin, compressed);
    if (whole > 0 && !ZSTD_isError(bytes))
        return text;
    free(text);
    return NULL;
}

/* Writes over the number-th statement of a body that begins with `from`: removes it, or has `to` in place of `from`. */
static bool plant(char *body, char *end, long number, const char *from, const char *to) {
    char *at = body;
    for (long i = 0; i < number; i++) {
        at = strstr(i == 0 ? at : at + 1, from);
        if (at == NULL || at >= end)
            return false;
    }
    const size_t bytes = to[0] == '\0' ? strcspn(at, ";") + 1 : strlen(from);
    assert(strlen(to) <= bytes);
    memset(at, ' ', bytes);
    memcpy(at, to, strlen(to));
    return true;
}

/* A mistake for tests: SW_PTX_PLANT is "KERNEL|NUMBER|FROM|TO", of kernels whose names have KERNEL in them. */
static void plant_mistake(char *text) {
    char words[256], *state = NULL;
    snprintf(words, sizeof words, "%s", getenv("SW_PTX_PLANT"));
    const char *kernel = strtok_r(words, "|", &state), *number = strtok_r(NULL, "|", &state);
    const char *from = strtok_r(NULL, "|", &state), *to = strtok_r(NULL, "|", &state);
    assert(from != NULL);
    for (char *entry = strstr(text, ".entry "), *next; entry != NULL; entry = next) {
        next = strstr(entry + 1, ".entry ");
        char *end = next == NULL ? entry + strlen(entry) : next, *body = strchr(entry, '{');
        const char *named = strstr(entry, kernel);
        if (named != NULL && body != NULL && named < entry + strcspn(entry, "(") &&
            plant(body, end, strtol(number, NULL, 10), from, to == NULL ? "" : to))
            fprintf(stderr, "planted in %.*s\n", (int)strcspn(entry, "("), entry);
    }
}

static void open_image(struct image *image) {
    const char *ptx = find_ptx(image->data);
    char *text = ptx == NULL ? NULL : text_of(ptx);
    if (text == NULL) {
        snprintf(image->error, sizeof image->error, "the object has no PTX, or it is compressed in an unknown way");
        return;
    }
    if (getenv("SW_PTX_PLANT") != NULL)
        plant_mistake(text);
    image->module = sw_ptx_module_open(text, image->error);
}

/* Returns the kernel, decoded at its first launch. */
static const struct sw_ptx_kernel *decoded(struct registered *registered, char error[SW_PTX_ERROR_CHARS]) {
    pthread_mutex_lock(&host.mutex);
    struct image *image = registered->image;
    if (image->module == NULL && image->error[0] == '\0')
        open_image(image);
    snprintf(error, SW_PTX_ERROR_CHARS, "%s", image->error);
    if (registered->kernel == NULL && image->module != NULL)
        registered->kernel = sw_ptx_kernel_find(image->module, registered->name, error);
    pthread_mutex_unlock(&host.mutex);
    return registered->kernel;
}

unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared_bytes, void *stream) {
    pushed = (struct configuration){grid, block, shared_bytes, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(void **out, const void *host_function) {
    *out = find(host_function);
    return *out == NULL ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host_function, int attribute, int value) {
    enum { MAX_DYNAMIC_SHARED_BYTES = 8 };
    struct registered *kernel = find(host_function);
    if (kernel == NULL || attribute != MAX_DYNAMIC_SHARED_BYTES || value < 0 || (size_t)value > host.most_shared_bytes)
        return cudaErrorInvalidValue;
    kernel->dynamic_limit_bytes = (size_t)value < PLAIN_SHARED_BYTES ? PLAIN_SHARED_BYTES : (size_t)value;
    return cudaSuccess;
}

/* Only whether there is code for this GPU is asked for. */
cudaError_t cudaFuncGetAttributes(void *out, const void *host_function) {
    (void)out;
    return find(host_function) == NULL ? cudaErrorInvalidDeviceFunction : sw_emulated_machine.gpu.kernels;
}

/* A launch waits in its stream with the arguments as they were. */
struct waiting {
    struct registered *registered;
    const struct sw_ptx_kernel *kernel;
    struct sw_ptx_launch launch;
    char params[];
};

static uint64_t next_seed(void) {
    static _Atomic uint64_t launches;
    const char *text = getenv("SW_PTX_SEED");
    return (text == NULL ? 1 : strtoull(text, NULL, 10)) * UINT64_C(0x9e3779b97f4a7c15) + ++launches;
}

static void run_launch(void *argument) {
    struct waiting *waiting = argument;
    char error[SW_PTX_ERROR_CHARS];
    if (!sw_ptx_launch_run(waiting->kernel, &waiting->launch, error) && !has_error) {
        has_error = true;
        snprintf(last_error, sizeof last_error, "%.*s: %s", 200, waiting->registered->name, error);
    }
    free(waiting);
}

static cudaError_t give_launch(struct registered *registered, const struct configuration *configuration,
                               void **arguments) {
    char error[SW_PTX_ERROR_CHARS];
    const struct sw_ptx_kernel *kernel = decoded(registered, error);
    const char *sums = getenv("SW_PTX_SUMS");
    if (kernel == NULL) {
        fprintf(stderr, "%s: %s\n", registered->name, error);
        return cudaErrorInvalidPtx;
    }
    struct waiting *waiting = calloc(1, sizeof *waiting + sw_ptx_kernel_param_bytes(kernel));
    if (waiting == NULL)
        return cudaErrorMemoryAllocation;
    const struct dim3 grid = configuration->grid, block = configuration->block;
    waiting->registered = registered;
    waiting->kernel = kernel;
    waiting->launch = (struct sw_ptx_launch){.grid = {grid.x, grid.y, grid.z},
                                             .block = {block.x, block.y, block.z},
                                             .dynamic_bytes = configuration->shared_bytes,
                                             .dynamic_limit_bytes = registered->dynamic_limit_bytes,
                                             .shared_limit_bytes = host.most_shared_bytes,
                                             .params = waiting->params,
                                             .seed = next_seed(),
                                             .cut_sums = sums != NULL && strcmp(sums, "cut") == 0};
    sw_ptx_kernel_pack(kernel, arguments, waiting->params);
    return sw_emulated_give(configuration->stream, run_launch, waiting);
}

cudaError_t __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared_bytes,
                               cudaStream_t stream) {
    sw_ptx_set_memory(sw_emulated_range);
    return give_launch(kernel, &(struct configuration){grid, block, shared_bytes, stream}, arguments);
}

cudaError_t cudaLaunchKernel(const void *host_function, struct dim3 grid, struct dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream) {
    return __cudaLaunchKernel(find(host_function), grid, block, arguments, shared_bytes, stream);
}
