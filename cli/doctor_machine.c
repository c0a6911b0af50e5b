/* Checks of processor and memory. */
#include "cli/doctor.h"
#include "core/number.h"
#include "core/size.h"
#include "core/system_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* If less than one part in LEAST_AVAILABLE_PART of the memory is available, plans get small. */
enum { LEAST_AVAILABLE_PART = 4, TEXT_CHARS = 256 };
/* Locked memory that the rings of a few lanes register. */
#define MEMLOCK_ENOUGH_BYTES SW_GIB

/* Writes which file limits the processor time, and returns true, where a quota allows less than all cores; else writes
 * nothing. */
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
                              sw_fact_number(physical > 0 ? physical : -1), "threads_per_core", sw_fact_number(threads),
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
    json_t *facts = json_pack("{s:o, s:b}", "limit_bytes", sw_fact_number(unlimited ? -1 : bytes), "enough", enough);
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
    json_t *facts = json_pack("{s:o, s:o}", "transparent", sw_fact_text(mode), "reserved", sw_fact_number(reserved));
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
