/* Linked to tests that run on the machine's own GPU: where there is none that works, the whole program is one skipped
 * test. A process of its own asks, since CUDA would not survive the forks of some tests. SW_TEST_FILTER names the tests
 * of a program that are run (a pattern of cmocka's). */
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_GPU = 77 };
#define ASKING "SW_TEST_ASKS_FOR_GPU"

/* A GPU that is there and fails is no reason to skip. */
static int ask(void) {
    struct sw_device *device = NULL;
    const sw_status status = sw_device_open("cuda", 0, &device);
    if (status != SW_OK)
        fprintf(stderr, "%s\n", sw_error_message(status));
    sw_device_close(device);
    return status == SW_ERR_UNSUPPORTED ? NO_GPU : 0;
}

static int ask_another_process(void) {
    char program[] = "/proc/self/exe";
    char *const arguments[] = {program, NULL};
    pid_t other;
    int ended = 0;
    setenv(ASKING, "1", 1);
    const int failed = posix_spawn(&other, program, NULL, NULL, arguments, environ);
    unsetenv(ASKING);
    if (failed == 0)
        waitpid(other, &ended, 0);
    return failed == 0 && WIFEXITED(ended) ? WEXITSTATUS(ended) : 0;
}

__attribute__((constructor)) static void need_gpu(void) {
    const char *filter = getenv("SW_TEST_FILTER");
    if (getenv(ASKING) != NULL)
        _exit(ask());
    if (ask_another_process() == NO_GPU) {
        puts("1..0 # SKIP no GPU");
        fflush(stdout);
        _exit(0);
    }
    if (filter != NULL)
        cmocka_set_test_filter(filter);
}
