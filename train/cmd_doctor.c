#include "core/machine.h"
#include "core/size.h"
#include "kernels/device.h"
#include "train/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct doctor_options {
    struct sw_option_list nvme;
    bool json;
};

#define AT(member) .offset = offsetof(struct doctor_options, member)
static const struct sw_option options[] = {
    {.name = "--nvme",
     .kind = SW_OPTION_LIST,
     AT(nvme),
     .value = "DIR",
     .what = "folder to look at, repeatable; default: the current one"},
    {.name = "--json", .kind = SW_OPTION_FLAG, AT(json), .what = "one object on standard output"},
};
static const struct sw_command_line line = {.command = "doctor",
                                            .summary = "what this machine has, what limits it, and the fix for each",
                                            .options = options,
                                            .option_count = sizeof options / sizeof options[0]};

/* A finding: what was looked at, what was found, and the fix where something is wrong. */
struct report {
    json_t *findings;
    bool json;
    int problems;
};

static void find(struct report *report, const char *what, const char *found, const char *fix) {
    report->problems += fix != NULL;
    json_array_append_new(report->findings, json_pack("{s:s, s:s, s:s?}", "what", what, "found", found, "fix", fix));
    if (report->json)
        return;
    printf("%s %-12s %s\n", fix == NULL ? "ok  " : "FIX ", what, found);
    if (fix != NULL)
        printf("%18s%s\n", "", fix);
}

static void look_at_machine(struct report *report) {
    struct sw_machine machine;
    char text[256], all[SW_SIZE_CHARS], available[SW_SIZE_CHARS];
    if (sw_machine_read(&machine) != SW_OK) {
        find(report, "memory", sw_error_message(SW_ERR_UNSUPPORTED), "mount /proc");
        sw_error_clear();
        return;
    }
    snprintf(text, sizeof text, "%d cores, %d NUMA node%s, %s", machine.cores, machine.numa_nodes,
             machine.numa_nodes == 1 ? "" : "s", machine.cpu);
    find(report, "processor", text, NULL);
    snprintf(text, sizeof text, "%s, %s available", sw_format_size(machine.memory_bytes, all),
             sw_format_size(machine.available_bytes, available));
    find(report, "memory", text, NULL);
    const bool unlimited = machine.memlock_bytes == INT64_MAX;
    snprintf(text, sizeof text, "%s may be locked",
             unlimited ? "all memory" : sw_format_size(machine.memlock_bytes, all));
    find(report, "memlock", text,
         unlimited || geteuid() == 0
             ? NULL
             : "registered I/O buffers need more: `ulimit -l unlimited`, or memlock in /etc/security/limits.conf");
}

static void look_at_device(struct report *report) {
    struct sw_device *device;
    char text[256];
    if (sw_device_open("cpu", 0, &device) != SW_OK) {
        find(report, "device", sw_error_message(SW_ERR_UNSUPPORTED), "see the message");
        sw_error_clear();
        return;
    }
    const struct sw_device_info info = sw_device_info(device);
    snprintf(text, sizeof text, "cpu, %s, %s", info.isa,
             info.bf16_fast ? "fast bf16" : "no bf16 instructions: fp32 is the default");
    find(report, "device", text, NULL);
    find(report, "gpu", "this version computes on the CPU only", NULL);
    sw_device_close(device);
}

static void look_at_io_uring(struct report *report) {
    struct io_uring ring;
    char text[256];
    const int error = io_uring_queue_init(8, &ring, 0);
    if (error == 0) {
        io_uring_queue_exit(&ring);
        find(report, "io_uring", "allowed", NULL);
        return;
    }
    snprintf(text, sizeof text, "not available: %s", strerror(-error));
    find(report, "io_uring", text,
         error == -ENOMEM
             ? "raise the memlock limit: `ulimit -l 8192` or more"
             : "`sysctl kernel.io_uring_disabled=0`; in a container, a seccomp profile that allows io_uring");
}

static void look_at_folder(struct report *report, const char *folder) {
    char text[4200], size[SW_SIZE_CHARS];
    struct statvfs space;
    if (statvfs(folder, &space) != 0) {
        snprintf(text, sizeof text, "%s: %s", folder, strerror(errno));
        find(report, "folder", text, "name a folder that exists");
        return;
    }
    snprintf(text, sizeof text, "%s: %s free", folder,
             sw_format_size((int64_t)space.f_bavail * (int64_t)space.f_frsize, size));
    find(report, "space", text, NULL);
    const int file = open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    snprintf(text, sizeof text, "%s: %s", folder, file >= 0 ? "direct I/O works" : strerror(errno));
    find(report, "O_DIRECT", text,
         file >= 0 ? NULL : "use a folder on ext4 or xfs that you may write to, or --allow-buffered, which is slower");
    if (file >= 0)
        close(file);
}

int sw_command_doctor(int argc, char **argv) {
    struct doctor_options given = {0};
    int code;
    if (sw_command_parse(&line, argc, argv, &given, &code)) {
        struct report report = {.findings = json_array(), .json = given.json};
        look_at_machine(&report);
        look_at_device(&report);
        look_at_io_uring(&report);
        for (int i = 0; i < given.nvme.count; i++)
            look_at_folder(&report, given.nvme.items[i]);
        if (given.nvme.count == 0)
            look_at_folder(&report, ".");
        if (given.json) {
            json_t *root = json_pack("{s:i, s:O}", "problems", report.problems, "findings", report.findings);
            json_dumpf(root, stdout, JSON_INDENT(2));
            putchar('\n');
            json_decref(root);
        }
        json_decref(report.findings);
        code = SW_EXIT_DONE;
    }
    sw_options_release(&line, &given);
    return code;
}
