/* Has one call of a function fail. Tests that include it put their own functions in front of the C library's, which ask
 * here. */
#ifndef SW_TESTS_IO_FAILING_CALLS_H
#define SW_TESTS_IO_FAILING_CALLS_H

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* The function that is to fail, how many calls of it that takes (0: none fails), and its errno. */
static struct {
    const char *name;
    int in, error;
} failing_call;

static void fail_call(const char *name, int number, int error) {
    failing_call.name = name;
    failing_call.in = number;
    failing_call.error = error;
}

static bool fails(const char *name) {
    if (failing_call.in == 0 || strcmp(name, failing_call.name) != 0 || --failing_call.in > 0)
        return false;
    errno = failing_call.error;
    return true;
}

#endif
