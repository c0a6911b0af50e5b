/* Checks that io_uring works, and finds out who forbids it. */
#include "cli/doctor.h"
#include "core/system_file.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>

/* Causes of a failure, by errno and by kernel.io_uring_disabled, which Linux has since 6.6. */
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
    json_t *facts = json_pack("{s:b, s:o, s:o}", "allowed", error == 0, "disabled_setting", sw_fact_number(disabled),
                              "error", sw_fact_text(error == 0 ? NULL : strerror(error)));
    if (error == 0) {
        io_uring_queue_exit(&ring);
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "allowed");
        return;
    }
    const struct cause *cause = cause_of(error, disabled);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .fix = cause->fix}, "%s (%s)", cause->what,
                   strerror(error));
}
