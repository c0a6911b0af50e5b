/* Disks for tests, on loop devices: only where the tests run as root and there are such devices. */
#ifndef SW_TESTS_IO_LOOP_H
#define SW_TESTS_IO_LOOP_H

#include "tests/io/support.h"

enum { LOOP_NAME_CHARS = 32 };

/* A loop device on a new file, gone with its last user. Gives its descriptor, or -1. */
int loop_open(const char *backing, int64_t bytes, int sector_bytes, char name[LOOP_NAME_CHARS]);

/* Tells whether the device could be given an ext4 file system. */
bool loop_make_file_system(const char *device);

/* Runs the function in a process of its own, or skips where that ends with CHILD_SKIPPED. */
void loop_run_or_skip(void (*function)(void *context), void *context);

#endif
