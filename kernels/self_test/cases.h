/* The ops that the self-test compares. Each function takes the shape that the comment above it names. */
#ifndef SW_KERNELS_SELF_TEST_CASES_H
#define SW_KERNELS_SELF_TEST_CASES_H

#include "kernels/self_test/trial.h"

#include <stdbool.h>
#include <stdint.h>

/* struct test_rows */
sw_status trial_layernorm_forward(struct trial *trial);
sw_status trial_layernorm_backward(struct trial *trial);
sw_status trial_add_layernorm(struct trial *trial);
sw_status trial_add_rmsnorm(struct trial *trial);
sw_status trial_activations(struct trial *trial);
sw_status trial_activation_gradients(struct trial *trial);
sw_status trial_gated(struct trial *trial);
sw_status trial_gated_gradients(struct trial *trial);
sw_status trial_add(struct trial *trial);
sw_status trial_bias_gradient(struct trial *trial);
sw_status trial_cross_entropy(struct trial *trial);
sw_status trial_softmax_partial(struct trial *trial);
sw_status trial_softmax_combine(struct trial *trial);
sw_status trial_cross_entropy_tile(struct trial *trial);
sw_status trial_sum_losses(struct trial *trial);
sw_status trial_cast(struct trial *trial);
sw_status trial_rank_sum(struct trial *trial);
/* struct test_rows, as grains without columns */
sw_status trial_finish_gradient(struct trial *trial);
sw_status trial_round_gradient(struct trial *trial);
sw_status trial_square_sums(struct trial *trial);
sw_status trial_update(struct trial *trial);
sw_status trial_quantize(struct trial *trial);
sw_status trial_dequantize(struct trial *trial);
sw_status trial_encode_fp8(struct trial *trial);
sw_status trial_pack_weights(struct trial *trial);

/* struct test_heads */
sw_status trial_rmsnorm_forward(struct trial *trial);
sw_status trial_rmsnorm_backward(struct trial *trial);
sw_status trial_rotate(struct trial *trial);
sw_status trial_embedding_forward(struct trial *trial);
sw_status trial_embedding_backward(struct trial *trial);
sw_status trial_attention_forward(struct trial *trial);
sw_status trial_attention_backward(struct trial *trial);

/* struct sw_gemm */
sw_status trial_gemm(struct trial *trial);
sw_status trial_gemm_tf32(struct trial *trial);
/* struct sw_gemm with operands in 8 bits; the device must multiply them. */
sw_status trial_gemm_fp8(struct trial *trial);

/* Rows of `cols` elements: of activations, of norms, of a vocabulary. */
struct test_rows {
    int64_t rows, cols;
};

struct test_heads {
    int64_t batch, seq, past, heads, kv_heads, head_dim;
    int64_t gap; /* columns between rows that belong to other tensors */
    int64_t window;
    int64_t document; /* the most tokens of a document; 0: no documents */
};

struct test_product {
    int64_t m, n, k;
};

#endif
