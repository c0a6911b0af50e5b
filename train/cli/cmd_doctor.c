#include "train/cli/commands.h"
#include "train/cli/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct doctor_options {
    struct sw_option_list nvme;
    bool quick, json;
};

#define AT(member) .offset = offsetof(struct doctor_options, member)
static const struct sw_option options[] = {
    {.name = "--nvme",
     .kind = SW_OPTION_LIST,
     AT(nvme),
     .value = "DIR",
     .what = "folder whose drive is examined; repeat for several; default: the current folder"},
    {.name = "--quick", .kind = SW_OPTION_FLAG, AT(quick), .what = "leave out the measurements, which take seconds"},
    {.name = "--json", .kind = SW_OPTION_FLAG, AT(json), .what = "print one JSON object on standard output"},
};
static const struct sw_command_line line = {
    .command = "doctor",
    .summary = "Prints what this machine has, what limits training on it, and how to lift each limit.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = {"spillway doctor", "spillway doctor --quick --json", "spillway doctor --nvme runs --nvme ."}};

struct check {
    const char *what;
    void (*look)(struct sw_doctor *doctor);
    bool measures;
};

static const struct check of_machine[] = {
    {"processor", sw_doctor_processor, false},    {"memory", sw_doctor_memory, false},
    {"memory limit", sw_doctor_limit, false},     {"swap", sw_doctor_swap, false},
    {"memlock", sw_doctor_memlock, false},        {"huge pages", sw_doctor_huge_pages, false},
    {"device", sw_doctor_device, false},          {"gpu", sw_doctor_gpu, false},
    {"self-test", sw_doctor_self_test, false},    {"io_uring", sw_doctor_io_uring, false},
    {"memory rate", sw_doctor_memory_rate, true}, {"compute rate", sw_doctor_compute_rate, true},
};
static const struct check of_folder[] = {
    {"space", sw_doctor_space, false},          {"file system", sw_doctor_file_system, false},
    {"O_DIRECT", sw_doctor_direct, false},      {"drive", sw_doctor_drive, false},
    {"scheduler", sw_doctor_scheduler, false},  {"write cache", sw_doctor_write_cache, false},
    {"drive rate", sw_doctor_drive_rate, true},
};
#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))
enum { FOUND_CHARS = 4608, FOUND_COLUMN = 17 };

json_t *sw_fact_text(const char *text) {
    return text == NULL || text[0] == '\0' ? json_null() : json_string(text);
}

json_t *sw_fact_number(int64_t number) {
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

static void look_at_all(struct sw_doctor *doctor, const struct check *checks, int count, const char *folder,
                        bool measures) {
    doctor->folder = folder;
    for (int i = 0; i < count; i++) {
        doctor->what = checks[i].what;
        if (measures || !checks[i].measures)
            checks[i].look(doctor);
    }
}

static void examine(struct sw_doctor *doctor, bool measures) {
    doctor->machine_known = sw_machine_read(&doctor->machine) == SW_OK;
    sw_error_clear();
    look_at_all(doctor, of_machine, COUNT(of_machine), NULL, measures);
    for (int i = 0; i < doctor->folder_count; i++)
        look_at_all(doctor, of_folder, COUNT(of_folder), doctor->folders[i], measures);
}

static sw_status examine_and_print(const void *target) {
    static const char *const here[] = {"."};
    const struct doctor_options *given = target;
    struct sw_doctor doctor = {.root = "",
                               .folders = given->nvme.count > 0 ? (const char *const *)given->nvme.items : here,
                               .folder_count = given->nvme.count > 0 ? given->nvme.count : 1,
                               .json = given->json,
                               .measures = !given->quick,
                               .findings = json_array()};
    examine(&doctor, !given->quick);
    sw_status status = SW_OK;
    if (given->json)
        status =
            sw_command_print_json(json_pack("{s:i, s:O}", "problems", doctor.problems, "findings", doctor.findings));
    json_decref(doctor.findings);
    return status;
}

int sw_command_doctor(int argc, char **argv) {
    struct doctor_options given = {0};
    return sw_command_run(&line, argc, argv, &given, examine_and_print);
}
