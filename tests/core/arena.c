/* An arena gives aligned pieces that do not overlap, refuses what does not fit, and nothing once it is sealed. */
#include "core/arena.h"
#include "core/log.h"
#include "core/size.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void pieces_are_aligned_zero_and_apart(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 4095, 4096, 4097, 100000};
    enum { PIECES = sizeof sizes / sizeof sizes[0] };
    struct sw_arena *arena = NULL;
    unsigned char *pieces[PIECES];
    assert_int_equal(sw_arena_create("test", SW_MIB, false, NULL, &arena), SW_OK);
    for (int i = 0; i < PIECES; i++) {
        void *piece = NULL;
        assert_int_equal(sw_arena_take(arena, sizes[i], &piece), SW_OK);
        assert_int_equal((uintptr_t)piece % SW_BUFFER_ALIGN_BYTES, 0);
        pieces[i] = piece;
        for (int64_t byte = 0; byte < sizes[i]; byte++)
            assert_int_equal(pieces[i][byte], 0);
        memset(pieces[i], i + 1, (size_t)sizes[i]);
    }
    for (int i = 0; i < PIECES; i++)
        for (int64_t byte = 0; byte < sizes[i]; byte++)
            assert_int_equal(pieces[i][byte], i + 1);
    sw_arena_destroy(arena);
}

static void pieces_take_whole_pages(void **state) {
    (void)state;
    struct sw_arena *arena = NULL;
    void *piece = NULL;
    assert_int_equal(sw_arena_create("test", 3 * 4096 + 1, false, NULL, &arena), SW_OK);
    assert_int_equal(sw_arena_bytes(arena), 4 * 4096);
    assert_int_equal(sw_arena_take(arena, 0, &piece), SW_OK);
    assert_int_equal(sw_arena_take(arena, 4097, &piece), SW_OK);
    assert_ptr_equal(piece, sw_arena_base(arena));
    assert_int_equal(sw_arena_take(arena, 4096, &piece), SW_OK);
    assert_ptr_equal(piece, (char *)sw_arena_base(arena) + 2 * 4096);
    sw_arena_destroy(arena);
}

static void too_much_is_refused_with_the_numbers(void **state) {
    (void)state;
    struct sw_arena *arena = NULL;
    void *piece = NULL;
    assert_int_equal(sw_arena_create("host", 64 * SW_KIB, false, NULL, &arena), SW_OK);
    assert_int_equal(sw_arena_take(arena, 40 * SW_KIB, &piece), SW_OK);
    void *const before = piece;
    sw_error_clear();
    assert_int_equal(sw_arena_take(arena, 24 * SW_KIB + 1, &piece), SW_ERR_BUDGET);
    assert_non_null(strstr(sw_error_message(SW_ERR_BUDGET), "host"));
    assert_non_null(strstr(sw_error_message(SW_ERR_BUDGET), "24.00 KiB"));
    sw_error_clear();
    assert_int_equal(sw_arena_take(arena, INT64_MAX - SW_BUFFER_ALIGN_BYTES, &piece), SW_ERR_BUDGET);
    sw_error_clear();
    assert_ptr_equal(piece, before);
    assert_int_equal(sw_arena_take(arena, 24 * SW_KIB, &piece), SW_OK);
    assert_int_equal(sw_arena_take(arena, 1, &piece), SW_ERR_BUDGET);
    sw_error_clear();
    sw_arena_destroy(arena);
}

/* Several threads take the pages of a large arena; none is left out, the last and short piece included. */
static void all_pages_are_there(void **state) {
    (void)state;
    const int64_t bytes = 130 * SW_MIB + 4096;
    struct sw_arena *arena = NULL;
    assert_int_equal(sw_arena_create("test", bytes, false, NULL, &arena), SW_OK);
    const size_t pages = (size_t)(bytes / 4096);
    unsigned char *there = calloc(pages, 1);
    assert_non_null(there);
    assert_int_equal(mincore(sw_arena_base(arena), (size_t)bytes, there), 0);
    for (size_t i = 0; i < pages; i++)
        if ((there[i] & 1) == 0)
            fail_msg("page %zu of %zu is not there", i, pages);
    free(there);
    sw_arena_destroy(arena);
}

/* A user who asks to stop need not wait until all memory is taken. */
static void a_stop_ends_the_taking(void **state) {
    (void)state;
    volatile sig_atomic_t stop = 1;
    struct sw_arena *arena = NULL;
    sw_long_work_stop_by(&stop);
    sw_error_clear();
    assert_int_equal(sw_arena_create("host", 130 * SW_MIB, false, NULL, &arena), SW_ERR_STOPPED);
    assert_null(arena);
    assert_non_null(strstr(sw_error_message(SW_ERR_STOPPED), "while taking memory for the host tier"));
    sw_error_clear();
    sw_long_work_stop_by(NULL);
    assert_int_equal(sw_arena_create("host", SW_MIB, false, NULL, &arena), SW_OK);
    sw_arena_destroy(arena);
}

/* Returns what long work says into a file; the program's own standard error is given back. */
static void say_after(int64_t begun_s, int64_t done, char *text, size_t chars) {
    FILE *file = tmpfile();
    const int own = dup(STDERR_FILENO);
    assert_true(file != NULL && own >= 0);
    struct sw_long_work work = sw_long_work_begin("evaluating", 3000);
    work.unit = "tokens";
    work.begun_ns -= begun_s * 1000000000;
    work.said_ns = work.begun_ns;
    fflush(stderr);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    const sw_status status = sw_long_work_at(&work, done);
    sw_long_work_end(&work);
    fflush(stderr);
    assert_true(dup2(own, STDERR_FILENO) >= 0);
    close(own);
    rewind(file);
    text[fread(text, 1, chars - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(status, SW_OK);
}

static void work_that_takes_long_says_how_far_it_is(void **state) {
    (void)state;
    char text[256];
    say_after(31, 1200, text, sizeof text);
    assert_string_equal(text, "evaluating: 1200 of 3000 tokens\n");
    say_after(0, 1200, text, sizeof text);
    assert_string_equal(text, "");
}

static void more_than_the_address_space_is_an_error(void **state) {
    (void)state;
    struct sw_arena *arena = NULL;
    sw_error_clear();
    assert_int_equal(sw_arena_create("nvme", INT64_C(1) << 60, false, NULL, &arena), SW_ERR_NOMEM);
    assert_null(arena);
    assert_non_null(strstr(sw_error_message(SW_ERR_NOMEM), "nvme"));
    sw_error_clear();
    sw_arena_destroy(NULL);
}

static void taking_from_a_sealed_arena_is_our_own_mistake(void **state) {
    (void)state;
    struct sw_arena *arena = NULL;
    assert_int_equal(sw_arena_create("test", SW_MIB, false, NULL, &arena), SW_OK);
    sw_arena_seal(arena);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        void *piece = NULL;
        signal(SIGABRT, SIG_DFL);
        setrlimit(RLIMIT_CORE, &no_core);
        (void)!close(STDERR_FILENO);
        (void)sw_arena_take(arena, 1, &piece);
        _exit(0);
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT);
    sw_arena_destroy(arena);
}

/* The sanitizers replace mlock with a function that does nothing. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MLOCK_IS_REAL false
#endif
#endif
#ifndef MLOCK_IS_REAL
#define MLOCK_IS_REAL true
#endif

static int64_t locked_kib(void) {
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    char line[256];
    long long kib = -1;
    while (kib < 0 && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "VmLck: %lld", &kib);
    fclose(file);
    return kib;
}

static void locking_is_reported_as_it_is(void **state) {
    (void)state;
    struct sw_arena *arena = NULL;
    bool locked = false;
    const int64_t before_kib = locked_kib();
    assert_int_equal(sw_arena_create("host", 64 * SW_KIB, true, &locked, &arena), SW_OK);
    assert_int_equal(locked_kib() - before_kib, locked && MLOCK_IS_REAL ? 64 : 0);
    sw_arena_destroy(arena);
    assert_int_equal(sw_arena_create("host", 64 * SW_KIB, false, &locked, &arena), SW_OK);
    assert_false(locked);
    sw_arena_destroy(arena);
}

/* Without the right to lock, the arena is there all the same, and says that it is not locked. */
static void a_lock_that_is_refused_is_reported(void **state) {
    (void)state;
    enum { NOBODY = 65534 };
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit nothing = {0, 0};
        struct sw_arena *arena = NULL;
        bool locked = true;
        if (setrlimit(RLIMIT_MEMLOCK, &nothing) != 0 || (geteuid() == 0 && seteuid(NOBODY) != 0))
            _exit(2);
        const bool created = sw_arena_create("host", 64 * SW_KIB, true, &locked, &arena) == SW_OK;
        _exit(created && locked != MLOCK_IS_REAL ? 0 : 1);
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zero_and_apart),
        cmocka_unit_test(pieces_take_whole_pages),
        cmocka_unit_test(too_much_is_refused_with_the_numbers),
        cmocka_unit_test(all_pages_are_there),
        cmocka_unit_test(a_stop_ends_the_taking),
        cmocka_unit_test(work_that_takes_long_says_how_far_it_is),
        cmocka_unit_test(more_than_the_address_space_is_an_error),
        cmocka_unit_test(taking_from_a_sealed_arena_is_our_own_mistake),
        cmocka_unit_test(locking_is_reported_as_it_is),
        cmocka_unit_test(a_lock_that_is_refused_is_reported),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
