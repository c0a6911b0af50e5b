/* Limits of memory and processor time, from captured trees of both versions of cgroups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/machine.h"

enum { FILES = 16, PATH_CHARS = 1024 };

/* Paths below a root, each with what it holds. */
struct file {
    const char *path, *text;
};

struct tree {
    const char *what;
    struct file file[FILES];
    int64_t limit, room;
    const char *setting;       /* its end */
    double quota;              /* in cores; 0: none */
    int of_four;               /* cores of four that the quota allows */
    const char *quota_setting; /* its end */
};

static const struct tree trees[] = {
    {.what = "no /proc", .limit = INT64_MAX, .room = INT64_MAX},
    {.what = "version 2, its own limit",
     .file = {{"proc/self/cgroup", "0::/user.slice/app.scope\n"},
              {"sys/fs/cgroup/user.slice/app.scope/memory.max", "1000000\n"},
              {"sys/fs/cgroup/user.slice/app.scope/memory.current", "400000\n"},
              {"sys/fs/cgroup/user.slice/app.scope/memory.stat", "anon 1\ninactive_file 50000\nactive_file 50000\n"},
              {"sys/fs/cgroup/user.slice/memory.max", "max\n"}},
     .limit = 1000000,
     .room = 700000,
     .setting = "user.slice/app.scope/memory.max"},
    {.what = "version 2, an outer group limits, and a further one is fuller",
     .file = {{"proc/self/cgroup", "0::/a/b/c\n"},
              {"sys/fs/cgroup/a/b/c/memory.max", "max\n"},
              {"sys/fs/cgroup/a/b/memory.max", "3000000\n"},
              {"sys/fs/cgroup/a/b/memory.current", "1000000\n"},
              {"sys/fs/cgroup/a/memory.max", "4000000\n"},
              {"sys/fs/cgroup/a/memory.current", "3900000\n"}},
     .limit = 3000000,
     .room = 100000,
     .setting = "/a/b/memory.max"},
    {.what = "version 2, a limit that slows down",
     .file = {{"proc/self/cgroup", "0::/a\n"},
              {"sys/fs/cgroup/a/memory.max", "3000000\n"},
              {"sys/fs/cgroup/a/memory.high", "2000000\n"},
              {"sys/fs/cgroup/a/memory.current", "2500000\n"}},
     .limit = 2000000,
     .room = 0,
     .setting = "memory.high"},
    {.what = "version 2, a container that sees its group as the outermost",
     .file = {{"proc/self/cgroup", "0::/../../other\n"},
              {"sys/fs/cgroup/memory.max", "5000000\n"},
              {"sys/fs/cgroup/memory.current", "1\n"}},
     .limit = 5000000,
     .room = 4999999,
     .setting = "/sys/fs/cgroup/memory.max"},
    {.what = "version 1, an outer group, beside version 2 without controllers",
     .file = {{"proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/x/y\n0::/x\n"},
              {"sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n"},
              {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2000000\n"},
              {"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "600000\n"},
              {"sys/fs/cgroup/memory/x/memory.stat", "total_active_file 100000\n"}},
     .limit = 2000000,
     .room = 1500000,
     .setting = "memory/x/memory.limit_in_bytes"},
    {.what = "version 1, an outer group that does not limit those within",
     .file = {{"proc/self/cgroup", "4:memory:/x/y\n"},
              {"sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "3000000\n"},
              {"sys/fs/cgroup/memory/x/y/memory.usage_in_bytes", "1000000\n"},
              {"sys/fs/cgroup/memory/x/memory.use_hierarchy", "0\n"},
              {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000\n"}},
     .limit = 3000000,
     .room = 2000000,
     .setting = "x/y/memory.limit_in_bytes"},
    {.what = "version 1, a container that is told a path from further out",
     .file = {{"proc/self/cgroup", "4:memory:/docker/0123\n"},
              {"sys/fs/cgroup/memory/memory.limit_in_bytes", "1500000\n"},
              {"sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n"}},
     .limit = 1500000,
     .room = 1000000,
     .setting = "memory/memory.limit_in_bytes"},
    {.what = "version 2, half a core",
     .file = {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/a/cpu.max", "50000 100000\n"}},
     .limit = INT64_MAX,
     .room = INT64_MAX,
     .quota = 0.5,
     .of_four = 1,
     .quota_setting = "a/cpu.max"},
    {.what = "version 2, an outer group's quota is less",
     .file = {{"proc/self/cgroup", "0::/a/b/c\n"},
              {"sys/fs/cgroup/a/b/c/cpu.max", "300000 100000\n"},
              {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
              {"sys/fs/cgroup/a/cpu.max", "300000 200000\n"}},
     .limit = INT64_MAX,
     .room = INT64_MAX,
     .quota = 1.5,
     .of_four = 2,
     .quota_setting = "group/a/cpu.max"},
    {.what = "version 2, a container that sees its group as the outermost, with more than there is",
     .file = {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "1600000 100000\n"}},
     .limit = INT64_MAX,
     .room = INT64_MAX,
     .quota = 16.0,
     .of_four = 4,
     .quota_setting = "group/cpu.max"},
    {.what = "version 1, an outer group, beside another controller whose name begins alike",
     .file = {{"proc/self/cgroup", "7:cpuset:/z\n5:cpuacct,cpu:/x/y\n0::/\n"},
              {"sys/fs/cgroup/cpu/z/cpu.cfs_quota_us", "1000\n"},
              {"sys/fs/cgroup/cpu/z/cpu.cfs_period_us", "100000\n"},
              {"sys/fs/cgroup/cpu/x/y/cpu.cfs_quota_us", "-1\n"},
              {"sys/fs/cgroup/cpu/x/y/cpu.cfs_period_us", "100000\n"},
              {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "250000\n"},
              {"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"}},
     .limit = INT64_MAX,
     .room = INT64_MAX,
     .quota = 2.5,
     .of_four = 3,
     .quota_setting = "cpu/x/cpu.cfs_quota_us"},
    {.what = "damaged files",
     .file = {{"proc/self/cgroup", "0:\n:\nx\n0::/a\n"},
              {"sys/fs/cgroup/a/memory.max", "lots\n"},
              {"sys/fs/cgroup/a/memory.high", ""},
              {"sys/fs/cgroup/a/cpu.max", "50000\n"},
              {"sys/fs/cgroup/cpu.max", "50000 0\n"}},
     .limit = INT64_MAX,
     .room = INT64_MAX},
};

static void write_tree(const char *root, const struct tree *tree) {
    char path[PATH_CHARS];
    for (int i = 0; i < FILES && tree->file[i].path != NULL; i++) {
        const size_t start = (size_t)snprintf(path, sizeof path, "%s/%s", root, tree->file[i].path);
        for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
            *slash = '\0';
            mkdir(path, 0700);
            *slash = '/';
        }
        assert_true(start < sizeof path);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(tree->file[i].text, file);
        fclose(file);
    }
}

/* Makes the folder of a tree. */
static void make_root(char root[PATH_CHARS]) {
    const char *parent = getenv("TMPDIR");
    snprintf(root, PATH_CHARS, "%s/spillway-cgroup-XXXXXX", parent != NULL ? parent : ".");
    assert_non_null(mkdtemp(root));
}

static void remove_tree(const char *root) {
    char command[PATH_CHARS + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static void check_memory(const struct tree *tree, const struct sw_memory_limit *found) {
    if (found->limit_bytes != tree->limit || found->room_bytes != tree->room)
        fail_msg("%s: %lld bytes, %lld of them left, instead of %lld and %lld", tree->what,
                 (long long)found->limit_bytes, (long long)found->room_bytes, (long long)tree->limit,
                 (long long)tree->room);
    if (tree->setting != NULL && strstr(found->setting, tree->setting) == NULL)
        fail_msg("%s: set by %s", tree->what, found->setting);
}

static void check_cpu(const struct tree *tree, const struct sw_cpu_limit *found) {
    const double quota = tree->quota > 0.0 ? tree->quota : INFINITY;
    const int of_four = tree->of_four > 0 ? tree->of_four : 4;
    if (!(found->cores == quota) || sw_cpu_limit_cores(found, 4) != of_four)
        fail_msg("%s: %g cores, %d of 4, instead of %g, %d", tree->what, found->cores, sw_cpu_limit_cores(found, 4),
                 quota, of_four);
    if (tree->quota_setting != NULL && strstr(found->setting, tree->quota_setting) == NULL)
        fail_msg("%s: set by %s", tree->what, found->setting);
}

static void all_levels_limit(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof trees / sizeof trees[0]; i++) {
        const struct tree *tree = &trees[i];
        struct sw_memory_limit memory;
        struct sw_cpu_limit cpu;
        char root[PATH_CHARS];
        make_root(root);
        write_tree(root, tree);
        sw_memory_limit_read(root, &memory);
        sw_cpu_limit_read(root, &cpu);
        remove_tree(root);
        check_memory(tree, &memory);
        check_cpu(tree, &cpu);
    }
}

static void this_machine(void **state) {
    (void)state;
    struct sw_machine machine;
    if (sw_machine_read(&machine) != SW_OK)
        fail_msg("%s", sw_error_message(SW_ERR_UNSUPPORTED));
    assert_true(machine.cores >= 1 && machine.all_cores >= machine.cores && machine.numa_nodes >= 1);
    assert_true(machine.memory_bytes > 0 && machine.memory_bytes <= machine.physical_bytes);
    assert_true(machine.available_bytes >= 0 && machine.available_bytes <= machine.memory_bytes);
    assert_true(machine.swap_used_bytes >= 0 && machine.swap_used_bytes <= machine.swap_bytes);
}

/* Fails with this error for names that end so. */
static const char *failing_end;
static int failing_error;

FILE *fopen(const char *path, const char *mode) {
    if (failing_end != NULL && strlen(path) >= strlen(failing_end) &&
        strcmp(path + strlen(path) - strlen(failing_end), failing_end) == 0) {
        errno = failing_error;
        return NULL;
    }
    return ((__typeof__(&fopen))dlsym(RTLD_NEXT, "fopen"))(path, mode);
}

static void fail_to_open(const char *end, int error) {
    failing_end = end;
    failing_error = error;
}

static void what_cannot_be_read_is_noted(void **state) {
    (void)state;
    const struct tree tree = {.file = {{"proc/self/cgroup", "0::/a\n"},
                                       {"sys/fs/cgroup/a/memory.max", "1000\n"},
                                       {"sys/fs/cgroup/a/memory.current", "400\n"},
                                       {"sys/fs/cgroup/a/memory.stat", "active_file 1\n"}}};
    static const char *const files[] = {"/proc/self/cgroup", "/sys/fs/cgroup/a/memory.max",
                                        "/sys/fs/cgroup/a/memory.current", "/sys/fs/cgroup/a/memory.stat"};
    static const int errors[] = {EMFILE, EACCES, ENOENT};
    struct sw_memory_limit found;
    char root[PATH_CHARS];
    make_root(root);
    write_tree(root, &tree);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        for (size_t j = 0; j < sizeof errors / sizeof errors[0]; j++) {
            const bool is_there = errors[j] != ENOENT;
            fail_to_open(files[i], errors[j]);
            sw_memory_limit_read(root, &found);
            assert_string_equal(found.unread, is_there ? files[i] : "");
            assert_int_equal(found.unread_error, is_there ? errors[j] : 0);
        }
    fail_to_open(NULL, 0);
    sw_memory_limit_read(root, &found);
    assert_string_equal(found.unread, "");
    assert_true(found.limit_bytes == 1000 && found.room_bytes == 601);
    remove_tree(root);
}

/* Returns how often `words` are printed by two readings of the machine, both of which end with the status. */
static int count_said(sw_status status, const char *words) {
    char said[8192] = "";
    struct sw_machine machine;
    FILE *file = tmpfile();
    const int before = dup(STDERR_FILENO);
    assert_true(file != NULL && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    for (int i = 0; i < 2; i++) {
        const sw_status got = sw_machine_read(&machine);
        if (got != SW_OK)
            fprintf(stderr, "%s\n", sw_error_message(got));
        sw_error_clear();
        assert_int_equal(got, status);
    }
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    (void)!fread(said, 1, sizeof said - 1, file);
    fclose(file);
    int count = 0;
    for (const char *at = said; (at = strstr(at, words)) != NULL; at++)
        count++;
    return count;
}

static void no_limit_is_overlooked_in_silence(void **state) {
    (void)state;
    fail_to_open("/proc/self/cgroup", EMFILE);
    assert_int_equal(count_said(SW_ERR_IO, "cannot be read from /proc/self/cgroup: Too many open files"), 2);
    fail_to_open("/proc/self/cgroup", EACCES);
    assert_int_equal(count_said(SW_OK, "from /proc/self/cgroup"), 1);
    fail_to_open("/proc/self/cgroup", ENOENT);
    assert_int_equal(count_said(SW_OK, "cgroup"), 0);
    fail_to_open(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_levels_limit), cmocka_unit_test(this_machine),
                                       cmocka_unit_test(what_cannot_be_read_is_noted),
                                       cmocka_unit_test(no_limit_is_overlooked_in_silence)};
    return cmocka_run_group_tests_name("core cgroup", tests, NULL, NULL);
}
