/* A fuzz target is a program with these two functions. libFuzzer calls them under clang; replay.c does in the ordinary
 * tests. */
#ifndef SW_TESTS_FUZZ_TARGET_H
#define SW_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
/* Gives one input to what is tested. A wrong answer of it aborts, as a wrong access does. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A folder of this process, removed with all in it when it exits. */
const char *fuzz_folder(void);
/* "FOLDER/name" of that folder, in static memory for the last two. */
const char *fuzz_path(const char *name);
/* Makes the file of this name in that folder have these bytes. */
void fuzz_put(const char *name, const void *data, size_t bytes);

#endif
