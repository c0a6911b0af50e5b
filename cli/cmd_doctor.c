#include "cli/commands.h"
#include "cli/doctor.h"

#include <stdarg.h>
#include <stdio.h>

struct doctor_options {
    struct sw_option_list nvme;
    bool quick, measure, json;
};

#define AT(member) .offset = offsetof(struct doctor_options, member)
static const struct sw_option options[] = {
    {.name = "--nvme",
     .kind = SW_OPTION_LIST,
     AT(nvme),
     .value = "DIR",
     .what = "folder whose drive is examined; repeat for several; default: the current folder"},
    {.name = "--quick", .kind = SW_OPTION_FLAG, AT(quick), .what = "leave out the measurements, which take seconds"},
    {.name = "--measure",
     .kind = SW_OPTION_FLAG,
     AT(measure),
     .what = "measure the profile by which plan predicts, again if there is one: up to a minute"},
    {.name = "--json", .kind = SW_OPTION_FLAG, AT(json), .what = "print one JSON object on standard output"},
};
static const struct sw_command_line line = {
    .command = "doctor",
    .summary = "Prints what this machine has, what limits training on it, and how to lift each limit.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = {"spillway doctor", "spillway doctor --measure --nvme runs", "spillway doctor --quick --json"}};

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
    {"profile", sw_doctor_profile, false},
};
static const struct check of_folder[] = {
    {"space", sw_doctor_space, false},          {"file system", sw_doctor_file_system, false},
    {"O_DIRECT", sw_doctor_direct, false},      {"drive", sw_doctor_drive, false},
    {"scheduler", sw_doctor_scheduler, false},  {"write cache", sw_doctor_write_cache, false},
    {"drive rate", sw_doctor_drive_rate, true},
};
#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

static void look_at_all(struct sw_doctor *doctor, const struct check *checks, int count, const char *folder) {
    doctor->folder = folder;
    for (int i = 0; i < count; i++) {
        doctor->what = checks[i].what;
        if (doctor->measures || !checks[i].measures)
            checks[i].look(doctor);
    }
}

static void examine(struct sw_doctor *doctor) {
    doctor->machine_known = sw_machine_read(&doctor->machine) == SW_OK;
    sw_error_clear();
    look_at_all(doctor, of_machine, COUNT(of_machine), NULL);
    for (int i = 0; i < doctor->folder_count; i++)
        look_at_all(doctor, of_folder, COUNT(of_folder), doctor->folders[i]);
}

static sw_status examine_and_print(const void *target) {
    static const char *const here[] = {"."};
    const struct doctor_options *given = target;
    struct sw_doctor doctor = {.root = "",
                               .folders = given->nvme.count > 0 ? (const char *const *)given->nvme.items : here,
                               .folder_count = given->nvme.count > 0 ? given->nvme.count : 1,
                               .json = given->json,
                               .measures = !given->quick,
                               .profiles = given->measure,
                               .findings = json_array()};
    examine(&doctor);
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
