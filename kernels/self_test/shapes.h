/* The shapes of the self-test. A table has a row for each size of GPU, as the reference takes its time on one thread.
 */
#ifndef SW_KERNELS_SELF_TEST_SHAPES_H
#define SW_KERNELS_SELF_TEST_SHAPES_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of `cols` elements: of activations, of norms, of a vocabulary. */
struct test_rows {
    int64_t rows, cols;
};

struct test_heads {
    int64_t batch, seq, past, heads, kv_heads, head_dim;
    int64_t gap; /* columns between rows, which belong to other tensors */
    int64_t window;
    int64_t document; /* the most tokens of a document; 0: no documents */
};

struct test_product {
    int64_t m, n, k;
};

#endif
