/* Nothing below a confined folder leads out of it, also while another process swaps folders for links. */
#include "core/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATH_CHARS = 256, OPENINGS = 20000 };

/* A run's folder, and one of somebody else beside it that holds a file. */
struct folders {
    struct sw_confined *confined;
    char scratch[PATH_CHARS], run[PATH_CHARS], outside[PATH_CHARS];
};

static const char *in(const char *folder, const char *name) {
    static char paths[8][2 * PATH_CHARS];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void make_file(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "secret", 6), 6);
    close(fd);
}

static int begin(void **state) {
    struct folders *f = calloc(1, sizeof *f);
    const char *scratch = getenv("TMPDIR");
    snprintf(f->scratch, sizeof f->scratch, "%s/confine-XXXXXX", scratch != NULL ? scratch : "/tmp");
    assert_non_null(mkdtemp(f->scratch));
    snprintf(f->run, sizeof f->run, "%s", in(f->scratch, "run"));
    snprintf(f->outside, sizeof f->outside, "%s", in(f->scratch, "outside"));
    assert_int_equal(mkdir(f->run, 0700), 0);
    assert_int_equal(mkdir(f->outside, 0700), 0);
    make_file(in(f->outside, "file"));
    assert_int_equal(sw_confine(f->run, &f->confined), SW_OK);
    *state = f;
    return 0;
}

static int end(void **state) {
    struct folders *f = *state;
    char command[2 * PATH_CHARS];
    sw_confine_end(f->confined);
    snprintf(command, sizeof command, "rm -r '%s'", f->scratch);
    const int status = system(command); /* NOLINT(cert-env33-c): of a path of our own */
    free(f);
    return status;
}

static void expect_error(int result, int error) {
    assert_int_equal(result, -1);
    assert_int_equal(errno, error);
}

static void expect_untouched(const struct folders *f) {
    struct stat info;
    assert_int_equal(lstat(in(f->outside, "file"), &info), 0);
    assert_int_equal(info.st_size, 6);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(lstat(in(f->outside, "new"), &info), -1);
    assert_int_equal(lstat(f->outside, &info), 0);
    assert_int_equal(info.st_nlink, 2);
}

static void test_folders_and_files(void **state) {
    struct folders *f = *state;
    struct stat info;
    assert_int_equal(sw_path_mkdir(in(f->run, "exports/"), 0700), 0);
    assert_int_equal(sw_path_mkdir(in(f->run, "exports//deep"), 0755), 0);
    assert_int_equal(sw_path_chmod(in(f->run, "exports/deep"), 0700), 0);
    const int fd = sw_path_open(in(f->run, "exports/deep/file"), O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_true(sw_path_exists(in(f->run, "exports/./deep/file")));
    assert_int_equal(sw_path_rename(in(f->run, "exports/deep/file"), in(f->run, "moved")), 0);
    assert_int_equal(lstat(in(f->run, "moved"), &info), 0);
    assert_int_equal(sw_path_unlink(in(f->run, "moved")), 0);
    assert_int_equal(sw_path_rmdir(in(f->run, "exports/deep")), 0);
    const int folder = sw_path_open(f->run, O_RDONLY | O_DIRECTORY, 0);
    assert_true(folder >= 0);
    close(folder);
    assert_false(sw_path_exists(in(f->run, "exports/deep")));
    assert_int_equal(errno, ENOENT);
    /* Only a whole name is the folder's. */
    assert_int_equal(sw_path_mkdir(in(f->scratch, "runs"), 0700), 0);
    assert_int_equal(lstat(in(f->scratch, "runs"), &info), 0);
}

static void test_links_are_not_followed(void **state) {
    struct folders *f = *state;
    struct stat info;
    assert_int_equal(symlink(f->outside, in(f->run, "exports")), 0);
    assert_int_equal(symlink(in(f->outside, "file"), in(f->run, "link")), 0);
    assert_int_equal(symlink(in(f->outside, "new"), in(f->run, "dangling")), 0);
    expect_error(sw_path_open(in(f->run, "exports/new"), O_WRONLY | O_CREAT, 0600), ENOTDIR);
    expect_error(sw_path_open(in(f->run, "exports/file"), O_RDONLY, 0), ENOTDIR);
    expect_error(sw_path_open(in(f->run, "exports"), O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
    expect_error(sw_path_open(in(f->run, "link"), O_WRONLY | O_TRUNC, 0), ELOOP);
    expect_error(sw_path_open(in(f->run, "dangling"), O_WRONLY | O_CREAT, 0600), ELOOP);
    expect_error(sw_path_mkdir(in(f->run, "exports/new"), 0700), ENOTDIR);
    expect_error(sw_path_unlink(in(f->run, "exports/file")), ENOTDIR);
    expect_error(sw_path_rename(in(f->run, "link"), in(f->run, "exports/new")), ENOTDIR);
    expect_error(sw_path_rename(in(f->run, "exports/file"), in(f->run, "mine")), ENOTDIR);
    expect_error(sw_path_stat(in(f->run, "exports/file"), &info), ENOTDIR);
    assert_int_not_equal(sw_path_chmod(in(f->run, "link"), 0644), 0);
    assert_int_equal(sw_path_stat(in(f->run, "link"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_true(sw_path_exists(in(f->run, "dangling")));
    expect_untouched(f);
    assert_int_equal(sw_path_unlink(in(f->run, "exports")), 0);
    expect_untouched(f);
}

/* A user may name a place by way of the folder. */
static void test_a_way_up_is_the_users(void **state) {
    struct folders *f = *state;
    static const char *const ups[] = {"..", "../a", "a/..", "/..", "a/../b"};
    static const char *const others[] = {"", "...", "a..", "..a/b", "a/..b", "a/.../b", "./a"};
    for (size_t i = 0; i < sizeof ups / sizeof ups[0]; i++)
        assert_true(sw_path_goes_up(ups[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(sw_path_goes_up(others[i]));
    assert_true(sw_path_exists(in(f->run, "../outside/file")));
    assert_int_equal(sw_path_mkdir(in(f->run, "..a"), 0700), 0);
}

/* The folder itself is confined, and not another one that gets its name later. */
static void test_a_folder_that_is_replaced(void **state) {
    struct folders *f = *state;
    struct stat info;
    assert_int_equal(rename(f->run, in(f->scratch, "elsewhere")), 0);
    assert_int_equal(symlink(f->outside, f->run), 0);
    assert_int_equal(sw_path_mkdir(in(f->run, "new"), 0700), 0);
    assert_int_equal(lstat(in(f->scratch, "elsewhere/new"), &info), 0);
    expect_untouched(f);
    sw_confine_end(f->confined);
    f->confined = NULL;
    assert_true(sw_path_exists(in(f->run, "file")));
}

static void test_a_relative_path(void **state) {
    struct folders *f = *state;
    sw_confine_end(f->confined);
    assert_int_equal(chdir(f->scratch), 0);
    struct sw_confined *none;
    assert_int_equal(sw_confine("nothing", &none), SW_OK);
    assert_null(none);
    assert_int_equal(sw_confine("run/", &f->confined), SW_OK);
    assert_int_equal(symlink(f->outside, in(f->run, "exports")), 0);
    expect_error(sw_path_unlink("run/exports/file"), ENOTDIR);
    expect_error(sw_path_unlink(in(f->run, "exports/file")), ENOTDIR);
    assert_int_equal(chdir("/"), 0);
}

struct swapping {
    const struct folders *folders;
    atomic_bool over;
};

/* Swaps a folder and a link to the other one, as fast as it can. */
static void *swap(void *context) {
    struct swapping *swapping = context;
    const char *run = swapping->folders->run;
    char folder[2 * PATH_CHARS], link[2 * PATH_CHARS];
    snprintf(folder, sizeof folder, "%s/exports", run);
    snprintf(link, sizeof link, "%s/link", run);
    while (!atomic_load(&swapping->over))
        (void)renameat2(AT_FDCWD, folder, AT_FDCWD, link, RENAME_EXCHANGE);
    return NULL;
}

static void test_a_race_with_links(void **state) {
    struct folders *f = *state;
    struct swapping swapping = {.folders = f};
    struct stat info;
    pthread_t thread;
    int made = 0, refused = 0;
    assert_int_equal(mkdir(in(f->run, "exports"), 0700), 0);
    assert_int_equal(symlink(f->outside, in(f->run, "link")), 0);
    assert_int_equal(pthread_create(&thread, NULL, swap, &swapping), 0);
    char path[2 * PATH_CHARS], file[2 * PATH_CHARS], outside[2 * PATH_CHARS];
    snprintf(path, sizeof path, "%s", in(f->run, "exports/new"));
    snprintf(file, sizeof file, "%s", in(f->run, "exports/file"));
    snprintf(outside, sizeof outside, "%s", in(f->outside, "new"));
    int reached = 0;
    for (int i = 0; i < OPENINGS; i++) {
        const int fd = sw_path_open(path, O_WRONLY | O_CREAT, 0600);
        made += fd >= 0;
        refused += fd < 0;
        if (fd >= 0)
            close(fd);
        reached += sw_path_exists(file) || lstat(outside, &info) == 0;
        (void)sw_path_unlink(path);
        (void)sw_path_unlink(file);
    }
    atomic_store(&swapping.over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    printf("# %d made, %d refused\n", made, refused);
    assert_int_equal(reached, 0);
    expect_untouched(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folders_and_files, begin, end),
        cmocka_unit_test_setup_teardown(test_links_are_not_followed, begin, end),
        cmocka_unit_test_setup_teardown(test_a_way_up_is_the_users, begin, end),
        cmocka_unit_test_setup_teardown(test_a_folder_that_is_replaced, begin, end),
        cmocka_unit_test_setup_teardown(test_a_relative_path, begin, end),
        cmocka_unit_test_setup_teardown(test_a_race_with_links, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
