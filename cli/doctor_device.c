/* Checks of the devices: the CPU device, and a GPU if there is one. */
#include "cli/doctor.h"
#include "core/machine.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "job/machine/devices.h"
#include "job/machine/gpu_trust.h"
#include "kernels/device.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_CHARS = 256,
    LIBRARY_CHARS = 1280,
    PROGRAM_CHARS = 3072,
    DISPLAY_CLASS = 0x03,
    CLASS_SHIFT = 16,
    VENDOR_NVIDIA = 0x10de
};

void sw_doctor_device(struct sw_doctor *doctor) {
    struct sw_device *device;
    if (sw_device_open("cpu", 0, &device) != SW_OK) {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "%s", sw_error_message(SW_ERR_UNSUPPORTED));
        sw_error_clear();
        return;
    }
    const struct sw_device_info info = sw_device_info(device);
    const char *best = sw_isa_name(sw_machine_isa());
    json_t *facts = json_pack("{s:s, s:s, s:s, s:i, s:b}", "name", info.name, "isa", info.isa, "best_isa", best,
                              "threads", info.threads, "bf16_fast", info.bf16_fast);
    char held[TEXT_CHARS] = "";
    if (strcmp(info.isa, best) != 0)
        snprintf(held, sizeof held, " where the processor has %s (the environment's " SW_ISA_VARIABLE " asks for less)",
                 best);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "%s, %s%s, %s", info.name, info.isa, held,
                   info.bf16_fast ? "fast bf16" : "no bf16 instructions: fp32 is the default");
    sw_device_close(device);
}

static int64_t hexadecimal(const char *folder, const char *name) {
    char text[TEXT_CHARS];
    return sw_system_line("", text, sizeof text, "%s/%s", folder, name) ? strtoll(text, NULL, 16) : -1;
}

/* Counts NVIDIA's display and 3D controllers on the PCI bus; -1: /sys does not tell. */
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

/* Libraries that the GPU needs (for matrix products, and for joining GPUs), with version and file. "": not loaded. */
struct libraries {
    char products[LIBRARY_CHARS], joining[LIBRARY_CHARS];
};

/* Describes the GPU, or why it cannot be used. Returns whether it can be used. */
static bool describe_cuda(char *out, size_t chars, struct libraries *libraries) {
    char size[SW_SIZE_CHARS];
    struct sw_device *device;
    if (sw_device_open("cuda", 0, &device) != SW_OK) {
        snprintf(out, chars, "%s", sw_error_message(SW_ERR_UNSUPPORTED));
        sw_error_clear();
        return false;
    }
    const struct sw_device_info info = sw_device_info(device);
    snprintf(libraries->products, sizeof libraries->products, "%s", info.library_name);
    if (sw_comm_nccl_name(libraries->joining, sizeof libraries->joining) != SW_OK)
        sw_error_clear();
    snprintf(out, chars, "%s (%s), %s free; %s; %s", info.model, info.isa, sw_format_size(info.memory_bytes, size),
             libraries->products, libraries->joining[0] != '\0' ? libraries->joining : "no NCCL, which joins GPUs");
    sw_device_close(device);
    return true;
}

void sw_doctor_gpu(struct sw_doctor *doctor) {
    char driver[SW_DRIVER_VERSION_CHARS];
    const int gpus = count_gpus(doctor->root);
    const bool built_in = sw_device_has_cuda();
    char program[PROGRAM_CHARS];
    struct libraries libraries = {0};
    const bool works = describe_cuda(program, sizeof program, &libraries);
    sw_driver_version(doctor->root, driver);
    json_t *facts = json_pack("{s:o, s:o, s:b, s:b, s:o, s:o}", "nvidia_gpus", sw_fact_number(gpus), "driver",
                              sw_fact_text(driver), "cuda_built_in", built_in, "cuda_works", works, "products_library",
                              sw_fact_text(libraries.products), "joining_library", sw_fact_text(libraries.joining));
    if (driver[0] != '\0')
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "NVIDIA, driver %s; %s", driver, program);
    else if (gpus > 0)
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = facts,
                                .fix = built_in ? "install NVIDIA's driver, then `nvidia-smi` lists it" : NULL},
            "%d from NVIDIA, but no driver; %s", gpus, program);
    else
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = gpus < 0}, "%s; %s",
                       gpus < 0 ? "/sys does not tell whether there is one" : "none from NVIDIA", program);
}

/* Reports the self-test. Reports nothing without a working GPU, which the check before has reported. */
static void judge(struct sw_doctor *doctor, const struct sw_device_info *gpu) {
    struct sw_gpu_verdict verdict;
    const bool known = sw_gpu_verdict_read(gpu, &verdict);
    if (!known && !doctor->measures) {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true},
                       "the self-test has not run; the first training runs it, or doctor without --quick");
        return;
    }
    if (!known && sw_gpu_verdict_make(gpu, &verdict) != SW_OK) {
        sw_doctor_find(doctor, (struct sw_finding){.fix = "free the GPU, or use --device cpu"},
                       "the self-test cannot run: %s", sw_error_message(SW_ERR_DEVICE));
        sw_error_clear();
        return;
    }
    const struct sw_self_test_op *failed = sw_self_test_failed(&verdict.report);
    json_t *facts = sw_gpu_verdict_to_json(&verdict.report);
    if (failed != NULL)
        sw_doctor_find(doctor,
                       (struct sw_finding){.facts = facts, .fix = "use --device cpu, and report it with this output"},
                       "%s computes wrongly: %s failed (%s)", gpu->model, failed->name, failed->failure);
    else
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "%d ops compared with the reference, all correct",
                       verdict.report.count);
}

void sw_doctor_self_test(struct sw_doctor *doctor) {
    struct sw_device *device;
    if (sw_device_open("cuda", 0, &device) != SW_OK) {
        sw_error_clear();
        return;
    }
    const struct sw_device_info gpu = sw_device_info(device);
    judge(doctor, &gpu);
    sw_device_close(device);
}
