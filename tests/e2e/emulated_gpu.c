/* Linked to a `spillway` of the tests, whose GPU is the emulated one. SW_EMULATED_GPU is what is wrong with it, words
 * of the table with a comma between; where it is not set, nothing is. Where SW_EMULATED_DELAY_NS is set, each task of a
 * stream runs up to so much late, drawn from SW_TEST_SEED and the rank. */
#include "core/size.h"
#include "tests/equipment/cuda/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SMALL_BYTES ((size_t)(2 * SW_MIB))
enum { BAD_WORD = 3, POLL_NS = 1000000, OLD_DRIVER = 12020 /* CUDA 12.2, as CUDA writes it */ };

static void no_driver(struct sw_emulation_gpu *gpu) {
    gpu->start = cudaErrorInsufficientDriver;
    gpu->driver = 0;
}

static void old_driver(struct sw_emulation_gpu *gpu) {
    gpu->start = cudaErrorInsufficientDriver;
    gpu->driver = OLD_DRIVER;
}

static void no_gpu(struct sw_emulation_gpu *gpu) {
    gpu->start = cudaErrorNoDevice;
}

static void too_old(struct sw_emulation_gpu *gpu) {
    gpu->major = 7;
}

static void without_fp8(struct sw_emulation_gpu *gpu) {
    gpu->major = 8;
    gpu->minor = 6;
}

static void held(struct sw_emulation_gpu *gpu) {
    gpu->held_bytes = gpu->memory_bytes;
}

static void mostly_held(struct sw_emulation_gpu *gpu) {
    gpu->held_bytes = gpu->memory_bytes - SMALL_BYTES;
}

static void small(struct sw_emulation_gpu *gpu) {
    gpu->memory_bytes = SMALL_BYTES;
}

static void cannot_pin(struct sw_emulation_gpu *gpu) {
    gpu->pinnable_bytes = SW_MIB / 16;
}

static void wrong_products(struct sw_emulation_gpu *gpu) {
    gpu->blas.wrong = true;
}

static void other_library(struct sw_emulation_gpu *gpu) {
    gpu->blas.version++;
}

static void fewer_algorithms(struct sw_emulation_gpu *gpu) {
    gpu->blas.algorithms--;
}

/* The errors that end a GPU's work for good, and come in the middle of a step: once the file that
 * SW_EMULATED_FAULT_WHEN names is there and not empty, and on the rank that SW_EMULATED_FAULT_RANK names, or on all. */
static cudaError_t fault;
static bool hangs;

static void hang(struct sw_emulation_gpu *gpu) {
    (void)gpu;
    hangs = true;
}

static void ecc(struct sw_emulation_gpu *gpu) {
    (void)gpu;
    fault = cudaErrorECCUncorrectable;
}

static void launch_failure(struct sw_emulation_gpu *gpu) {
    (void)gpu;
    fault = cudaErrorLaunchFailure;
}

static void off_the_bus(struct sw_emulation_gpu *gpu) {
    (void)gpu;
    fault = cudaErrorUnknown;
}

static void *wait_and_break(void *path) {
    struct stat info;
    while (stat(path, &info) != 0 || info.st_size == 0)
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    if (hangs)
        sw_emulation_hang();
    else
        sw_emulation_break_as(fault, cudaGetErrorString(fault));
    return NULL;
}

static const struct {
    const char *word;
    void (*spoil)(struct sw_emulation_gpu *gpu);
} defects[] = {{"no-driver", no_driver},
               {"old-driver", old_driver},
               {"no-gpu", no_gpu},
               {"too-old", too_old},
               {"without-fp8", without_fp8},
               {"held", held},
               {"mostly-held", mostly_held},
               {"small", small},
               {"cannot-pin", cannot_pin},
               {"wrong-products", wrong_products},
               {"other-library", other_library},
               {"fewer-algorithms", fewer_algorithms},
               {"ecc", ecc},
               {"launch-failure", launch_failure},
               {"off-the-bus", off_the_bus},
               {"hangs", hang}};
enum { DEFECTS = sizeof defects / sizeof defects[0] };

static uint64_t number_of(const char *variable) {
    const char *given = getenv(variable);
    return given != NULL ? strtoull(given, NULL, 10) : 0;
}

__attribute__((constructor)) static void make_gpu(void) {
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    const char *given = getenv("SW_EMULATED_GPU");
    char *words = strdup(given != NULL ? given : ""), *rest = NULL;
    for (char *word = strtok_r(words, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        int i = 0;
        while (i < DEFECTS && strcmp(defects[i].word, word) != 0)
            i++;
        if (i == DEFECTS) {
            fprintf(stderr, "SW_EMULATED_GPU: nothing is called '%s'\n", word);
            _Exit(BAD_WORD);
        }
        defects[i].spoil(&gpu);
    }
    free(words);
    sw_emulation_set_gpu(&gpu);
    sw_emulation_set_delays((int64_t)number_of("SW_EMULATED_DELAY_NS"),
                            number_of("SW_TEST_SEED") + number_of("OMPI_COMM_WORLD_RANK"));
    pthread_t thread;
    char *when = getenv("SW_EMULATED_FAULT_WHEN");
    const bool here = getenv("SW_EMULATED_FAULT_RANK") == NULL ||
                      number_of("SW_EMULATED_FAULT_RANK") == number_of("OMPI_COMM_WORLD_RANK");
    if ((fault != cudaSuccess || hangs) && here && when != NULL &&
        pthread_create(&thread, NULL, wait_and_break, when) == 0)
        pthread_detach(thread);
}
