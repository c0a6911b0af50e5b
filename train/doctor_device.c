/* What doctor says of what computes: the CPU device, and a GPU if there is one. */
#include "core/size.h"
#include "core/system_file.h"
#include "kernels/device.h"
#include "train/doctor.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CHARS = 256, PROGRAM_CHARS = 1024, DISPLAY_CLASS = 0x03, CLASS_SHIFT = 16, VENDOR_NVIDIA = 0x10de };

void sw_doctor_device(struct sw_doctor *doctor) {
    struct sw_device *device;
    if (sw_device_open("cpu", 0, &device) != SW_OK) {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "%s", sw_error_message(SW_ERR_UNSUPPORTED));
        sw_error_clear();
        return;
    }
    const struct sw_device_info info = sw_device_info(device);
    json_t *facts = json_pack("{s:s, s:s, s:i, s:b}", "name", info.name, "isa", info.isa, "threads", info.threads,
                              "bf16_fast", info.bf16_fast);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "%s, %s, %s", info.name, info.isa,
                   info.bf16_fast ? "fast bf16" : "no bf16 instructions: fp32 is the default");
    sw_device_close(device);
}

static int64_t hexadecimal(const char *folder, const char *name) {
    char text[TEXT_CHARS];
    return sw_system_line("", text, sizeof text, "%s/%s", folder, name) ? strtoll(text, NULL, 16) : -1;
}

/* NVIDIA's display and 3D controllers on the PCI bus; -1 where /sys does not tell. */
static int count_gpus(const char *root) {
    char pattern[SW_SYSTEM_PATH_CHARS];
    glob_t found;
    int count = 0;
    snprintf(pattern, sizeof pattern, "%s/sys/bus/pci/devices/*", root);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
        return -1;
    for (size_t i = 0; i < found.gl_pathc; i++)
        count += hexadecimal(found.gl_pathv[i], "vendor") == VENDOR_NVIDIA &&
                 hexadecimal(found.gl_pathv[i], "class") >> CLASS_SHIFT == DISPLAY_CLASS;
    globfree(&found);
    return count;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  DATE": the first word that begins with a digit and has a
 * point. */
static void driver_version(const char *root, char out[TEXT_CHARS]) {
    char line[TEXT_CHARS], *rest = NULL;
    out[0] = '\0';
    if (!sw_system_line(root, line, sizeof line, "/proc/driver/nvidia/version"))
        return;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest))
        if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.') != NULL) {
            snprintf(out, TEXT_CHARS, "%s", word);
            return;
        }
    snprintf(out, TEXT_CHARS, "of unknown version");
}

/* Whether the GPU can be used, and what to say of it, in room for a message. */
static bool describe_cuda(char *out, size_t chars) {
    char size[SW_SIZE_CHARS];
    struct sw_device *device;
    if (sw_device_open("cuda", 0, &device) != SW_OK) {
        snprintf(out, chars, "%s", sw_error_message(SW_ERR_UNSUPPORTED));
        sw_error_clear();
        return false;
    }
    const struct sw_device_info info = sw_device_info(device);
    snprintf(out, chars, "%s (%s), %s free", info.model, info.isa, sw_format_size(info.memory_bytes, size));
    sw_device_close(device);
    return true;
}

void sw_doctor_gpu(struct sw_doctor *doctor) {
    char driver[TEXT_CHARS];
    const int gpus = count_gpus(doctor->root);
    const bool built_in = sw_device_has_cuda();
    char program[PROGRAM_CHARS];
    const bool works = describe_cuda(program, sizeof program);
    driver_version(doctor->root, driver);
    json_t *facts = json_pack("{s:o, s:o, s:b, s:b}", "nvidia_gpus", sw_fact_number(gpus), "driver",
                              sw_fact_text(driver), "cuda_built_in", built_in, "cuda_works", works);
    if (driver[0] != '\0')
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "NVIDIA, driver %s; %s", driver, program);
    else if (gpus > 0)
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = facts,
                                .fix = built_in ? "install NVIDIA's driver, then `nvidia-smi` lists it" : NULL},
            "%d of NVIDIA, without a driver; %s", gpus, program);
    else
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = gpus < 0}, "%s; %s",
                       gpus < 0 ? "/sys does not tell whether there is one" : "none of NVIDIA", program);
}
