#include "job/machine/devices.h"

#include "core/machine.h"
#include "core/size.h"

#include <stdio.h>
#include <string.h>

enum { NAME_CHARS = 24, MESSAGE_CHARS = 1024 };
/* A plan leaves this share of a GPU's free memory, at most GPU_MOST_REST_BYTES, to kernels that are loaded at their
 * first use, to buffers of NCCL, and to page tables of pinned memory, which take 2 GiB per TiB. */
#define GPU_REST_SHARE 0.08
#define GPU_MOST_REST_BYTES (2 * SW_GIB)

static sw_status open_gpu(int local_rank, struct sw_device **out) {
    const int gpus = sw_device_gpus();
    char name[NAME_CHARS];
    snprintf(name, sizeof name, "cuda:%d", gpus > 0 ? local_rank % gpus : 0);
    return sw_device_open(name, 0, out);
}

/* Explains why the GPU that was found cannot be used, for a command that did not name it. */
static sw_status refuse_gpu(sw_status status) {
    static const char asked[] = "--device cuda: ", way_on[] = "--device cpu";
    char text[MESSAGE_CHARS];
    snprintf(text, sizeof text, "%s", sw_error_message(status));
    sw_error_clear();
    const char *why = strncmp(text, asked, sizeof asked - 1) == 0 ? text + sizeof asked - 1 : text;
    return sw_fail(status, "--device auto found a GPU that fails: %s%s", why,
                   strstr(why, way_on) == NULL ? "; --device cpu computes without it" : "");
}

/* Opens the GPU if there is one, else the CPU. A GPU that cannot be used is refused: falling back to the CPU would take
 * a hundred times as long without anybody having asked for it. */
static sw_status open_best(int local_rank, struct sw_devices *out) {
    const sw_status status = open_gpu(local_rank, &out->compute);
    if (status == SW_OK)
        return SW_OK;
    if (status != SW_ERR_UNSUPPORTED || sw_device_gpus() > 0)
        return refuse_gpu(status);
    sw_error_clear();
    out->compute = out->host;
    return SW_OK;
}

sw_status sw_devices_open(sw_device_choice which, int threads, int local_rank, struct sw_devices *out) {
    *out = (struct sw_devices){0};
    SW_TRY(sw_device_open("cpu", threads, &out->host));
    if (which == SW_DEVICE_AUTO)
        return open_best(local_rank, out);
    if (which == SW_DEVICE_CUDA)
        return open_gpu(local_rank, &out->compute);
    out->compute = out->host;
    return SW_OK;
}

void sw_devices_close(struct sw_devices *devices) {
    if (devices->compute != NULL && devices->compute != devices->host)
        sw_device_close(devices->compute);
    if (devices->host != NULL)
        sw_device_close(devices->host);
    *devices = (struct sw_devices){0};
}

struct sw_device_info sw_devices_info(const struct sw_devices *devices) {
    struct sw_device_info info = sw_device_info(devices->compute);
    info.threads = sw_device_info(devices->host).threads;
    return info;
}

int64_t sw_devices_gpu_budget(const struct sw_device_info *gpu) {
    return gpu->memory_bytes - sw_min_i64((int64_t)(GPU_REST_SHARE * (double)gpu->memory_bytes), GPU_MOST_REST_BYTES);
}

/* Finds the first word that begins with a digit and has a point, as in "NVRM version: NVIDIA UNIX x86_64 Kernel Module
 * 535.129.03 DATE". */
void sw_driver_version(const char *root, char out[SW_DRIVER_VERSION_CHARS]) {
    char line[SW_DRIVER_VERSION_CHARS], *rest = NULL;
    out[0] = '\0';
    if (!sw_system_line(root, line, sizeof line, "/proc/driver/nvidia/version"))
        return;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest))
        if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.') != NULL) {
            snprintf(out, SW_DRIVER_VERSION_CHARS, "%s", word);
            return;
        }
    snprintf(out, SW_DRIVER_VERSION_CHARS, "of unknown version");
}
