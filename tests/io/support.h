/* Helpers that the I/O tests share: directories of their own, checks that name the seed, a ring that misbehaves on
 * request. */
#ifndef SW_TESTS_IO_SUPPORT_H
#define SW_TESTS_IO_SUPPORT_H

/* cmocka needs the four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/queue/queue.h"
#include "io/store/store.h"

#include <stdbool.h>
#include <sys/types.h>

/* The seed of the case at hand; failing checks print it. */
extern uint64_t test_seed;

#define CHECK(condition) check_true(condition, #condition, __FILE__, __LINE__)
#define CHECK_OK(expression) check_status(expression, SW_OK, "", #expression, __FILE__, __LINE__)
/* The call must fail with this code and a message that contains the words. Clears the error. */
#define CHECK_FAILS(expression, code, words) check_status(expression, code, words, #expression, __FILE__, __LINE__)
void check_true(bool condition, const char *text, const char *file, int line);
void check_status(sw_status status, sw_status wanted, const char *words, const char *text, const char *file, int line);

/* Setup and teardown: *state is the path of a new directory; everything in it goes away. */
int make_directory(void **state);
int remove_directory(void **state);

/* A process in which a failing check ends it with status 1. */
pid_t fork_child(void);

/* Runs the function in a process of its own. Returns its exit status, 1 if a check failed, or minus the signal that
 * ended it. */
int run_in_child(void (*function)(void *context), void *context);
enum { CHILD_SKIPPED = 77 }; /* what a child exits with when the system does not let it do what it is for */

/* A path below the directory; static memory for the last few. */
const char *in_directory(const char *directory, const char *name);
const char *new_subdirectory(const char *directory, const char *name);

int64_t random_below(uint64_t *counter, int64_t limit);

void copy_file(const char *from, const char *to);
void write_file(const char *path, const void *bytes, int64_t count);
int64_t file_bytes(const char *path);
/* Flips one bit, or overwrites a stretch, of a file. */
void flip_bit(const char *path, int64_t offset_bytes);
void overwrite(const char *path, int64_t offset_bytes, int64_t count, unsigned char value);

/* Aligned memory for I/O; free() frees it. */
void *io_buffer(int64_t bytes);

/* A ring that does its work with pread and pwrite at once, and lets a test decide about each request and the order of
 * completions. */
struct fake_ring_script {
    /* Returns the result of the request: call fake_ring_do for the honest one. */
    int64_t (*carry_out)(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request);
    void *context;
    uint64_t seed; /* of the order of completions */
    int requests, batches, most_in_flight;
};
sw_status fake_ring_open(void *script, const struct sw_ring_spec *spec, struct sw_ring **out);
int64_t fake_ring_do(const int *files, const struct sw_ring_request *request);

#endif
