/* Inputs made of the corpus by random changes, each a function of seed and number. */
#ifndef SW_TESTS_FUZZ_MUTATE_H
#define SW_TESTS_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_INPUT_BYTES = 1 << 16 };

struct fuzz_input {
    size_t bytes;
    uint8_t *data;
};

/* Writes the input into out, which has room for FUZZ_INPUT_BYTES; returns its bytes. */
size_t fuzz_mutate(const struct fuzz_input *corpus, int count, uint64_t seed, uint64_t number, uint8_t *out);

#endif
