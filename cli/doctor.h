/* `spillway doctor`: a table of checks, each in a small function. A check reports what it found; it never fails. */
#ifndef SW_CLI_DOCTOR_H
#define SW_CLI_DOCTOR_H

#include "core/machine.h"

#include <jansson.h>
#include <stdbool.h>

typedef enum { SW_FOUND_FINE, SW_FOUND_PROBLEM, SW_FOUND_UNKNOWN } sw_found;

struct sw_doctor {
    const char *root; /* prefix of /proc and /sys; "": this machine (core/machine.h) */
    const char *const *folders;
    int folder_count;
    bool json;
    bool measures; /* checks that take seconds are allowed */
    bool profiles; /* measures the machine's profile, even if there is one */
    bool machine_known;
    struct sw_machine machine;
    const char *what, *folder; /* name of the current check; folder NULL: it concerns the machine */
    json_t *findings;
    int problems;
};

/* A finding: a sentence, its facts as fields (owned by the callee, may be NULL), and the remedy if it is a problem. */
struct sw_finding {
    json_t *facts;
    const char *fix; /* what to do; NULL: no problem */
    bool unknown;    /* the system does not tell */
};
__attribute__((format(printf, 3, 4))) void sw_doctor_find(struct sw_doctor *doctor, struct sw_finding finding,
                                                          const char *format, ...);

/* Checks of the machine. */
void sw_doctor_processor(struct sw_doctor *doctor);
void sw_doctor_memory(struct sw_doctor *doctor);
void sw_doctor_limit(struct sw_doctor *doctor);
void sw_doctor_swap(struct sw_doctor *doctor);
void sw_doctor_memlock(struct sw_doctor *doctor);
void sw_doctor_huge_pages(struct sw_doctor *doctor);
void sw_doctor_device(struct sw_doctor *doctor);
void sw_doctor_gpu(struct sw_doctor *doctor);
void sw_doctor_self_test(struct sw_doctor *doctor);
void sw_doctor_io_uring(struct sw_doctor *doctor);
/* Checks of a folder. */
void sw_doctor_space(struct sw_doctor *doctor);
void sw_doctor_file_system(struct sw_doctor *doctor);
void sw_doctor_direct(struct sw_doctor *doctor);
void sw_doctor_drive(struct sw_doctor *doctor);
void sw_doctor_scheduler(struct sw_doctor *doctor);
void sw_doctor_write_cache(struct sw_doctor *doctor);
/* Measurements of a second or two each. */
void sw_doctor_drive_rate(struct sw_doctor *doctor);
void sw_doctor_memory_rate(struct sw_doctor *doctor);
void sw_doctor_compute_rate(struct sw_doctor *doctor);
/* Measures the profile, in up to a minute (job/profile.h). */
void sw_doctor_profile(struct sw_doctor *doctor);

#endif
