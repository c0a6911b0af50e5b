/* Checks of processor and memory. */
#include "cli/commands.h"
#include "cli/doctor.h"
#include "core/machine.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "job/machine/devices.h"
#include "job/machine/drives.h"
#include "job/machine/gpu_trust.h"
#include "kernels/device.h"

#include <errno.h>
#include <glob.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A finding: printed at once, or kept for the JSON object. */

enum { FOUND_CHARS = 4608, FOUND_COLUMN = 17 };

/* Return a fact for JSON: null if the text is NULL or "", or the number is negative, which means that the system does
 * not tell. */
static json_t *fact_text(const char *text) {
    return text == NULL || text[0] == '\0' ? json_null() : json_string(text);
}

static json_t *fact_number(int64_t number) {
    return number < 0 ? json_null() : json_integer((json_int_t)number);
}

void sw_doctor_find(struct sw_doctor *doctor, struct sw_finding finding, const char *format, ...) {
    static const char *const states[] = {
        [SW_FOUND_FINE] = "ok", [SW_FOUND_PROBLEM] = "fix", [SW_FOUND_UNKNOWN] = "unknown"};
    static const char *const marks[] = {[SW_FOUND_FINE] = "ok", [SW_FOUND_PROBLEM] = "FIX", [SW_FOUND_UNKNOWN] = "?"};
    const sw_found state = finding.fix != NULL ? SW_FOUND_PROBLEM : finding.unknown ? SW_FOUND_UNKNOWN : SW_FOUND_FINE;
    char found[FOUND_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    doctor->problems += state == SW_FOUND_PROBLEM;
    json_array_append_new(doctor->findings,
                          json_pack("{s:s, s:s?, s:s, s:s, s:s?, s:o}", "what", doctor->what, "folder", doctor->folder,
                                    "state", states[state], "found", found, "fix", finding.fix, "facts",
                                    finding.facts != NULL ? finding.facts : json_object()));
    if (doctor->json)
        return;
    printf("%-3s %-12s ", marks[state], doctor->what);
    sw_command_print(FOUND_COLUMN, FOUND_COLUMN, "%s%s%s", doctor->folder != NULL ? doctor->folder : "",
                     doctor->folder != NULL ? ": " : "", found);
    if (finding.fix != NULL) {
        printf("%*s", FOUND_COLUMN, "");
        sw_command_print(FOUND_COLUMN, FOUND_COLUMN, "%s", finding.fix);
    }
    fflush(stdout);
}

/* Checks of the devices: the CPU device, and a GPU if there is one. */

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
    json_t *facts = json_pack("{s:o, s:o, s:b, s:b, s:o, s:o}", "nvidia_gpus", fact_number(gpus), "driver",
                              fact_text(driver), "cuda_built_in", built_in, "cuda_works", works, "products_library",
                              fact_text(libraries.products), "joining_library", fact_text(libraries.joining));
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

/* Below this part of the memory, plans are small. */
enum { LEAST_AVAILABLE_PART = 4 };
/* Locked memory that the rings of a few lanes register. */
#define MEMLOCK_ENOUGH_BYTES SW_GIB

/* If a quota allows less than all cores, writes which file sets it, and returns true. */
static bool quota_fix(const struct sw_machine *m, char *out, size_t chars) {
    out[0] = '\0';
    if (m->cpu_limit.cores >= m->all_cores)
        return false;
    snprintf(out, chars, "more would be faster: raise the quota in %s, or start it outside of that group",
             m->cpu_limit.setting);
    return true;
}

void sw_doctor_processor(struct sw_doctor *doctor) {
    const struct sw_machine *m = &doctor->machine;
    const int cores = sw_machine_cores(), all = m->all_cores, physical = m->physical_cores;
    char smt[TEXT_CHARS] = "", time[TEXT_CHARS] = "", fix[SW_CGROUP_CHARS + TEXT_CHARS];
    if (!doctor->machine_known) {
        sw_doctor_find(doctor, (struct sw_finding){.facts = json_pack("{s:i}", "cores", cores), .unknown = true},
                       "%s; /proc is not there to tell more", SW_COUNT(cores, "core"));
        return;
    }
    const int64_t threads = physical > 0 ? (all + physical - 1) / physical : -1;
    const bool quota = quota_fix(m, fix, sizeof fix);
    if (threads > 1)
        snprintf(smt, sizeof smt, " (%d physical, %lld threads each)", physical, (long long)threads);
    if (quota)
        snprintf(time, sizeof time, ", for the time of %.3g", m->cpu_limit.cores);
    json_t *facts = json_pack("{s:i, s:i, s:o, s:o, s:o, s:i, s:s}", "cores", cores, "all_cores", all, "quota_cores",
                              quota ? json_real(m->cpu_limit.cores) : json_null(), "physical_cores",
                              fact_number(physical > 0 ? physical : -1), "threads_per_core", fact_number(threads),
                              "numa_nodes", m->numa_nodes, "cpu", m->cpu);
    const char *cpuset_fix = cores < all ? "more would be faster: start it without `taskset`, or raise the container's "
                                           "cpuset"
                                         : NULL;
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .fix = quota ? fix : cpuset_fix},
                   "%d of %s may be used%s%s, %s, %s", cores, SW_COUNT(all, "core"), smt, time,
                   SW_COUNT(m->numa_nodes, "NUMA node"), m->cpu);
}

void sw_doctor_memory(struct sw_doctor *doctor) {
    const struct sw_machine *m = &doctor->machine;
    char all[SW_SIZE_CHARS], available[SW_SIZE_CHARS];
    if (!doctor->machine_known) {
        sw_doctor_find(doctor, (struct sw_finding){.fix = "mount /proc: without it no budgets can be chosen"},
                       "not known");
        return;
    }
    const bool scarce = m->available_bytes < m->memory_bytes / LEAST_AVAILABLE_PART;
    json_t *facts = json_pack("{s:I, s:I, s:I}", "physical_bytes", (json_int_t)m->physical_bytes, "memory_bytes",
                              (json_int_t)m->memory_bytes, "available_bytes", (json_int_t)m->available_bytes);
    sw_doctor_find(
        doctor, (struct sw_finding){.facts = facts, .fix = scarce ? "end what else uses memory (`top -o %MEM`)" : NULL},
        "%s, %s available", sw_format_size(m->memory_bytes, all), sw_format_size(m->available_bytes, available));
}

void sw_doctor_limit(struct sw_doctor *doctor) {
    const struct sw_memory_limit *limit = &doctor->machine.limit;
    char fix[SW_CGROUP_CHARS + TEXT_CHARS], least[SW_SIZE_CHARS], all[SW_SIZE_CHARS], room[SW_SIZE_CHARS];
    const bool known = doctor->machine_known && limit->unread_error == 0;
    const char *none = known ? "no memory cgroup limits this process" : "not known";
    char unread[SW_CGROUP_CHARS + TEXT_CHARS];
    if (limit->unread_error != 0) {
        snprintf(unread, sizeof unread, "not known: %s cannot be read (%s)", limit->unread,
                 strerror(limit->unread_error));
        none = unread;
    }
    if (!doctor->machine_known || limit->limit_bytes >= doctor->machine.physical_bytes) {
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = json_pack("{s:n, s:n, s:n}", "limit_bytes", "room_bytes", "setting"),
                                .unknown = !known},
            "%s", none);
        return;
    }
    snprintf(fix, sizeof fix, "raise it in %s, or start the program outside of that group", limit->setting);
    json_t *facts = json_pack("{s:I, s:I, s:s}", "limit_bytes", (json_int_t)limit->limit_bytes, "room_bytes",
                              (json_int_t)limit->room_bytes, "setting", limit->setting);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .fix = fix}, "a memory cgroup allows %s of %s, %s left",
                   sw_format_size(limit->limit_bytes, least), sw_format_size(doctor->machine.physical_bytes, all),
                   sw_format_size(limit->room_bytes, room));
}

void sw_doctor_swap(struct sw_doctor *doctor) {
    const struct sw_machine *m = &doctor->machine;
    char all[SW_SIZE_CHARS], used[SW_SIZE_CHARS];
    if (!doctor->machine_known) {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "not known");
        return;
    }
    json_t *facts =
        json_pack("{s:I, s:I}", "swap_bytes", (json_int_t)m->swap_bytes, "used_bytes", (json_int_t)m->swap_used_bytes);
    if (m->swap_bytes == 0)
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "none, and none is needed");
    else
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "%s, %s used; training never counts on it",
                       sw_format_size(m->swap_bytes, all), sw_format_size(m->swap_used_bytes, used));
}

void sw_doctor_memlock(struct sw_doctor *doctor) {
    const int64_t bytes = doctor->machine.memlock_bytes;
    const bool unlimited = bytes == INT64_MAX, enough = bytes >= MEMLOCK_ENOUGH_BYTES || geteuid() == 0;
    char size[SW_SIZE_CHARS];
    json_t *facts = json_pack("{s:o, s:b}", "limit_bytes", fact_number(unlimited ? -1 : bytes), "enough", enough);
    sw_doctor_find(doctor,
                   (struct sw_finding){.facts = facts,
                                       .fix = enough ? NULL
                                                     : "registered I/O buffers and pinned memory need more: `ulimit -l "
                                                       "unlimited`, or memlock in /etc/security/limits.conf"},
                   "%s may be locked%s", unlimited ? "all memory" : sw_format_size(bytes, size),
                   geteuid() == 0 && !unlimited ? ", which does not bind root" : "");
}

void sw_doctor_huge_pages(struct sw_doctor *doctor) {
    char line[TEXT_CHARS], mode[TEXT_CHARS] = "";
    const bool known = sw_system_line(doctor->root, line, sizeof line, "/sys/kernel/mm/transparent_hugepage/enabled");
    const char *chosen = strchr(line, '[');
    if (chosen != NULL)
        snprintf(mode, sizeof mode, "%.*s", (int)strcspn(chosen + 1, "]"), chosen + 1);
    const int64_t reserved = sw_system_number(doctor->root, "/proc/sys/vm/nr_hugepages");
    json_t *facts = json_pack("{s:o, s:o}", "transparent", fact_text(mode), "reserved", fact_number(reserved));
    if (!known || mode[0] == '\0') {
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = true},
                       "/sys does not tell whether there are transparent ones");
        return;
    }
    sw_doctor_find(doctor,
                   (struct sw_finding){.facts = facts,
                                       .fix = strcmp(mode, "never") == 0
                                                  ? "they can double the rate of reads: `echo madvise > "
                                                    "/sys/kernel/mm/transparent_hugepage/enabled`"
                                                  : NULL},
                   "transparent: %s; %lld reserved, which are not used", mode, (long long)sw_max_i64(0, reserved));
}

/* Checks that io_uring works, or finds out what forbids it. */

/* Causes of a failure, by errno and by kernel.io_uring_disabled, which exists since Linux 6.6. */
static const struct cause {
    int error;
    int64_t disabled; /* value of the setting; -1: any */
    const char *what, *fix;
} causes[] = {
    {EPERM, 2, "forbidden to all by kernel.io_uring_disabled", "`sysctl kernel.io_uring_disabled=0`"},
    {EPERM, 1, "forbidden to ordinary users by kernel.io_uring_disabled",
     "`sysctl kernel.io_uring_disabled=0`, or join the group of kernel.io_uring_group"},
    {EPERM, -1, "forbidden, as by a container's seccomp profile",
     "start the container with a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register"},
    {ENOSYS, -1, "not there: an older kernel, or hidden by a container",
     "use Linux 5.6 or later, and a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register"},
    {ENOMEM, -1, "no memory may be locked for it", "`ulimit -l 8192` or more"},
    {EMFILE, -1, "too many files are open", "`ulimit -n 4096` or more"},
    {0, -1, "not available", "look at `dmesg`; Linux 5.6 or later is needed"},
};

static const struct cause *cause_of(int error, int64_t disabled) {
    const struct cause *cause = causes;
    while (cause->error != 0 && (cause->error != error || (cause->disabled >= 0 && cause->disabled != disabled)))
        cause++;
    return cause;
}

void sw_doctor_io_uring(struct sw_doctor *doctor) {
    struct io_uring ring;
    const int64_t disabled = sw_system_number(doctor->root, "/proc/sys/kernel/io_uring_disabled");
    const int error = -io_uring_queue_init(8, &ring, 0);
    json_t *facts = json_pack("{s:b, s:o, s:o}", "allowed", error == 0, "disabled_setting", fact_number(disabled),
                              "error", fact_text(error == 0 ? NULL : strerror(error)));
    if (error == 0) {
        io_uring_queue_exit(&ring);
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "allowed");
        return;
    }
    const struct cause *cause = cause_of(error, disabled);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .fix = cause->fix}, "%s (%s)", cause->what,
                   strerror(error));
}

/* Checks a folder for the store: its space, its file system, and its drives. */

/* Bytes of the store per parameter: two generations of master weight and both moments, in fp32. */
enum { STATE_BYTES_PER_PARAMETER = 24 };
/* Less space than this is a problem: the smallest model that anybody would place here needs it. */
#define LEAST_FREE_BYTES (4 * SW_GIB)

void sw_doctor_space(struct sw_doctor *doctor) {
    struct statvfs space;
    struct stat info;
    char size[SW_SIZE_CHARS], parameters[SW_COUNT_CHARS];
    if (statvfs(doctor->folder, &space) != 0 || stat(doctor->folder, &info) != 0) {
        sw_doctor_find(doctor, (struct sw_finding){.fix = "name a folder that exists"}, "%s", strerror(errno));
        return;
    }
    if (!S_ISDIR(info.st_mode)) {
        sw_doctor_find(doctor, (struct sw_finding){.fix = "name a folder on the drive"}, "this is not a folder");
        return;
    }
    const int64_t free_bytes = (int64_t)space.f_bavail * (int64_t)space.f_frsize;
    json_t *facts = json_pack("{s:I}", "free_bytes", (json_int_t)free_bytes);
    sw_doctor_find(
        doctor,
        (struct sw_finding){.facts = facts,
                            .fix = free_bytes < LEAST_FREE_BYTES ? "free some space, or name another folder" : NULL},
        "%s free: room for the optimizer of %s parameters", sw_format_size(free_bytes, size),
        sw_format_large((int64_t)((double)free_bytes / STATE_BYTES_PER_PARAMETER), parameters));
}

/* File systems that cannot hold a store, or need a setting. */
static const struct advice {
    const char *type, *what, *fix;
} advice[] = {
    {"tmpfs", "in memory", "name a folder on a drive: this one takes memory and is gone after a restart"},
    {"ramfs", "in memory", "name a folder on a drive: this one takes memory and is gone after a restart"},
    {"btrfs", "which copies what is written again elsewhere",
     "`chattr +C` on an empty folder, before the store is made, or a folder on ext4 or xfs"},
    {"zfs", "which copies what is written again elsewhere", "name a folder on ext4 or xfs"},
    {"overlay", "a container's layers", "mount a folder of the machine's ext4 or xfs into the container and name that"},
    {"nfs", "over the network", "name a folder on a drive of this machine"},
    {"nfs4", "over the network", "name a folder on a drive of this machine"},
    {"cifs", "over the network", "name a folder on a drive of this machine"},
    {"smb3", "over the network", "name a folder on a drive of this machine"},
    {"ceph", "over the network", "name a folder on a drive of this machine"},
    {"lustre", "over the network", "name a folder on a drive of this machine"},
    {"9p", "a folder of the host machine", "name a folder on a drive that this machine has itself"},
    {"virtiofs", "a folder of the host machine", "name a folder on a drive that this machine has itself"},
    {"fuseblk", "through a process", "name a folder on ext4 or xfs"},
};

static const struct advice *advice_on(const char *type) {
    for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++)
        if (strcmp(advice[i].type, type) == 0)
            return &advice[i];
    return NULL;
}

void sw_doctor_file_system(struct sw_doctor *doctor) {
    struct sw_mount mount;
    struct sw_drives drives;
    sw_drives_of_folder(doctor->root, doctor->folder, &mount, &drives);
    const struct advice *found = advice_on(mount.type);
    json_t *facts = json_pack("{s:o, s:o}", "type", fact_text(mount.type), "source", fact_text(mount.source));
    if (mount.type[0] == '\0')
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = true}, "not known");
    else
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .fix = found != NULL ? found->fix : NULL},
                       "%s on %s%s%s", mount.type, mount.source, found != NULL ? ", " : "",
                       found != NULL ? found->what : "");
}

/* Checks direct I/O as the store uses it. */
void sw_doctor_direct(struct sw_doctor *doctor) {
    int file;
    const bool works = sw_file_create_unnamed(doctor->folder, false, &file) == SW_OK;
    json_t *facts = json_pack("{s:b}", "works", works);
    if (works) {
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "direct I/O works");
        sw_file_close(file);
        return;
    }
    sw_doctor_find(doctor,
                   (struct sw_finding){.facts = facts,
                                       .fix = "name a folder on ext4 or xfs that you may write to, or accept the page "
                                              "cache with --allow-buffered, which is slower"},
                   "%s", sw_error_message(SW_ERR_UNSUPPORTED));
    sw_error_clear();
}

static void find_drives(struct sw_doctor *doctor, struct sw_drives *out) {
    struct sw_mount mount;
    sw_drives_of_folder(doctor->root, doctor->folder, &mount, out);
    if (out->count == 0)
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "the system does not tell the drive");
}

/* Tells whether a drive is virtual (virtio or Xen), so that the real drive is unknown. */
static bool is_virtual(const struct sw_drive *drive) {
    return strncmp(drive->name, "vd", 2) == 0 || strncmp(drive->name, "xvd", 3) == 0;
}

void sw_doctor_drive(struct sw_doctor *doctor) {
    struct sw_drives drives;
    find_drives(doctor, &drives);
    for (int i = 0; i < drives.count; i++) {
        const struct sw_drive *drive = &drives.drive[i];
        const bool known = drive->rotational == 0 || (drive->rotational > 0 && !is_virtual(drive));
        const bool turns = known && drive->rotational > 0;
        json_t *facts = json_pack("{s:s, s:o, s:o}", "name", drive->name, "model", fact_text(drive->model),
                                  "rotational", known ? json_boolean(turns) : json_null());
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = facts, .fix = turns ? "name a folder on an SSD" : NULL, .unknown = !known},
            "%s%s%s, %s", drive->name, drive->model[0] != '\0' ? ", " : "", drive->model,
            !known  ? "not known whether it is a rotating disk: see its rates"
            : turns ? "a rotating disk"
                    : "an SSD");
    }
}

void sw_doctor_scheduler(struct sw_doctor *doctor) {
    struct sw_drives drives;
    char fix[2 * SW_DRIVE_CHARS + 64];
    find_drives(doctor, &drives);
    for (int i = 0; i < drives.count; i++) {
        const struct sw_drive *drive = &drives.drive[i];
        json_t *facts = json_pack("{s:s, s:o}", "name", drive->name, "scheduler", fact_text(drive->scheduler));
        /* Bfq schedules for fairness, which costs fast drives most of their rate. */
        const bool slow = strcmp(drive->scheduler, "bfq") == 0;
        snprintf(fix, sizeof fix, "it slows fast drives: `echo none > /sys/block/%s/queue/scheduler`", drive->name);
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = facts, .fix = slow ? fix : NULL, .unknown = drive->scheduler[0] == '\0'},
            "%s: %s", drive->name, drive->scheduler[0] != '\0' ? drive->scheduler : "not known");
    }
}

void sw_doctor_write_cache(struct sw_doctor *doctor) {
    struct sw_drives drives;
    find_drives(doctor, &drives);
    for (int i = 0; i < drives.count; i++) {
        const struct sw_drive *drive = &drives.drive[i];
        const bool known = drive->write_cache[0] != '\0', back = strcmp(drive->write_cache, "write back") == 0;
        json_t *facts = json_pack("{s:s, s:o}", "name", drive->name, "write_cache", fact_text(drive->write_cache));
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = !known}, "%s: %s%s", drive->name,
                       known ? drive->write_cache : "not known", back ? ", which every commit flushes" : "");
    }
}
