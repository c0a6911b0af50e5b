/* `spillway doctor`: a table of checks, each with its job in a small file. A check reports findings; it never fails. */
#ifndef SW_TRAIN_CLI_DOCTOR_H
#define SW_TRAIN_CLI_DOCTOR_H

#include "core/machine.h"

#include <jansson.h>
#include <stdbool.h>

typedef enum { SW_FOUND_FINE, SW_FOUND_PROBLEM, SW_FOUND_UNKNOWN } sw_found;

struct sw_doctor {
    const char *root; /* before /proc and /sys: "" for this machine (core/system_file.h) */
    const char *const *folders;
    int folder_count;
    bool json;
    bool measures; /* what takes seconds may run */
    bool machine_known;
    struct sw_machine machine;
    const char *what, *folder; /* of the check at hand; no folder: of the machine */
    json_t *findings;
    int problems;
};

/* What was found, in words, and where it is a problem the fix. facts (may be NULL) is taken over: the same as fields.
 */
struct sw_finding {
    json_t *facts;
    const char *fix; /* NULL: no problem */
    bool unknown;    /* the system does not tell */
};
__attribute__((format(printf, 3, 4))) void sw_doctor_find(struct sw_doctor *doctor, struct sw_finding finding,
                                                          const char *format, ...);

/* A fact that the system need not tell: null for NULL or "", and for a number below 0. */
json_t *sw_fact_text(const char *text);
json_t *sw_fact_number(int64_t number);

/* Of the machine. */
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
/* Of a folder. */
void sw_doctor_space(struct sw_doctor *doctor);
void sw_doctor_file_system(struct sw_doctor *doctor);
void sw_doctor_direct(struct sw_doctor *doctor);
void sw_doctor_drive(struct sw_doctor *doctor);
void sw_doctor_scheduler(struct sw_doctor *doctor);
void sw_doctor_write_cache(struct sw_doctor *doctor);
/* Measured: a second or two each. */
void sw_doctor_drive_rate(struct sw_doctor *doctor);
void sw_doctor_memory_rate(struct sw_doctor *doctor);
void sw_doctor_compute_rate(struct sw_doctor *doctor);

#endif
