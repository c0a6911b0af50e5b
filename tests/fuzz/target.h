/* A fuzz target is a file with the two functions of struct fuzz_target. libFuzzer calls them under clang, in a program
 * for each target; replay.c calls them in the ordinary tests, in one program of all targets (SW_FUZZ_JOINED). */
#ifndef SW_TESTS_FUZZ_TARGET_H
#define SW_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_target {
    const char *file; /* its path, which names it */
    int (*initialize)(int *argc, char ***argv);
    /* Gives one input to what is tested. A wrong answer of it aborts, as a wrong access does. Returns 0. */
    int (*test_one_input)(const uint8_t *data, size_t bytes);
};
/* Adds a target, before the program's main begins. */
void fuzz_add(const struct fuzz_target *target);

#ifdef SW_FUZZ_JOINED
static int LLVMFuzzerInitialize(int *argc, char ***argv);
static int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
__attribute__((constructor)) static void add_target(void) {
    fuzz_add(&(struct fuzz_target){__BASE_FILE__, LLVMFuzzerInitialize, LLVMFuzzerTestOneInput});
}
#else
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
#endif

/* A folder of this process, removed with all in it when it exits. */
const char *fuzz_folder(void);
/* "FOLDER/name" of that folder, in static memory for the last two. */
const char *fuzz_path(const char *name);
/* Makes the file of this name in that folder have these bytes. */
void fuzz_put(const char *name, const void *data, size_t bytes);

#endif
