/* Linked to a `spillway` of the tests, whose GPU is the emulated one. SW_EMULATED_GPU is what is wrong with it, words
 * of the table with a comma between; where it is not set, nothing is. */
#include "core/size.h"
#include "kernels/cuda/emulation/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES ((size_t)(2 * SW_MIB))
enum { BAD_WORD = 3, OLD_DRIVER = 12020 /* CUDA 12.2, as CUDA writes it */ };

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
    gpu->pinnable_bytes = SW_MIB;
}

static const struct {
    const char *word;
    void (*spoil)(struct sw_emulation_gpu *gpu);
} defects[] = {{"no-driver", no_driver}, {"old-driver", old_driver},   {"no-gpu", no_gpu}, {"too-old", too_old},
               {"held", held},           {"mostly-held", mostly_held}, {"small", small},   {"cannot-pin", cannot_pin}};
enum { DEFECTS = sizeof defects / sizeof defects[0] };

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
}
