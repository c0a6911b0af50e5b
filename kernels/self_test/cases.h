/* The ops that the self-test compares. Each function takes the shape that the comment above it names. */
#ifndef SW_KERNELS_SELF_TEST_CASES_H
#define SW_KERNELS_SELF_TEST_CASES_H

#include "kernels/device_ops.h"
#include "kernels/self_test.h"

#include <stdbool.h>
#include <stdint.h>

/* One comparison: an op with its operands, run on the reference and on the device from the same bytes. */

/* The passes over a trial's function. DECLARE lays out the operands, PREPARE computes inputs that are results of other
 * ops (on the reference), REFERENCE and DEVICE run the op. */
typedef enum { TRIAL_DECLARE, TRIAL_PREPARE, TRIAL_REFERENCE, TRIAL_DEVICE } trial_pass;

typedef enum { FILL_POISON, FILL_NORMAL, FILL_POSITIVE, FILL_INDICES, FILL_DOCUMENTS, FILL_EDGES } trial_fill;
/* How to compare an output. SAMPLED: where the reference left its poison, the device need only be finite. */
typedef enum { COMPARE_NOT, COMPARE_CLOSE, COMPARE_SAMPLED, COMPARE_BITS } trial_compare;
/* Element types. A double and an index have no sw_dtype. */
typedef enum {
    ELEMENT_F32 = SW_F32,
    ELEMENT_BF16 = SW_BF16,
    ELEMENT_F16 = SW_F16,
    ELEMENT_F64,
    ELEMENT_I32
} trial_type;

/* |got - want| <= absolute + relative·|want|, plus one step of a 16-bit type. */
struct trial_tolerance {
    double relative, absolute;
};

struct trial_operand {
    const char *name;
    trial_type type;
    int64_t elems;
    trial_fill fill;
    float deviation;      /* the deviation of FILL_NORMAL */
    int64_t first, limit; /* FILL_INDICES: within [first, limit). FILL_DOCUMENTS: tokens of a sequence, most of one */
    trial_compare compare;
    struct trial_tolerance tolerance;
};

enum { TRIAL_OPERANDS = 16, TRIAL_NORMALS = 65521 /* a prime */ };
/* Rows with gaps between them begin at multiples of this many elements, like those of logits on a GPU. */
enum { TRIAL_ROW_MULTIPLE = 64 };

struct trial {
    struct sw_device *device, *reference;
    const void *shape; /* the shape of the op, as its function knows it */
    sw_dtype type;
    trial_pass pass;
    struct sw_stream *stream; /* the stream of the pass; NULL while operands are declared */
    char *base;               /* the pass's image of all operands; NULL while operands are declared */
    char *scratch;            /* the scratch of the pass */
    int64_t scratch_bytes, reference_scratch_bytes;
    struct trial_operand operand[TRIAL_OPERANDS];
    int64_t offset[TRIAL_OPERANDS];
    int count, next; /* operands declared, and the next one that the pass names */
    int64_t image_bytes;
    uint64_t seed;
};

/* Names the next operand and returns its address in the current pass; NULL while operands are declared. A function must
 * name the same operands in the same order in every pass. */
void *trial_operand(struct trial *trial, struct trial_operand operand);
/* Name the operands that most ops have. Elements of a 16-bit `type` are drawn in fp32 and rounded. */
const void *trial_input(struct trial *trial, const char *name, sw_dtype type, int64_t elems, float deviation);
void *trial_output(struct trial *trial, const char *name, sw_dtype type, int64_t elems, struct trial_tolerance within);
/* Names an output that the op adds to. */
void *trial_sum(struct trial *trial, const char *name, sw_dtype type, int64_t elems, struct trial_tolerance within);
/* Declares the scratch that a call needs on the device and on the reference; called while operands are declared. */
void trial_needs_scratch(struct trial *trial, int64_t bytes, int64_t reference_bytes);

typedef sw_status (*trial_function)(struct trial *trial);

/* The bench that trials run on: the two devices, their streams, and memory for the images, which grows as needed. */
struct trial_bench {
    struct sw_device *device, *reference;
    struct sw_stream *stream, *reference_stream;
    struct sw_memory *memory;
    char *scratch;            /* the scratch of the reference */
    char *start, *want, *got; /* the image before, after the reference, and after the device */
    int64_t bytes;            /* size of each of the three images */
    float *normals;           /* TRIAL_NORMALS drawn numbers, from which operands are filled */
    uint64_t trials;
};
sw_status trial_bench_open(struct sw_device *device, struct trial_bench *out);
void trial_bench_close(struct trial_bench *bench);
/* Runs a function on both devices, and notes the outcome in `op`. */
sw_status trial_run(struct trial_bench *bench, struct sw_self_test_op *op, trial_function function, const void *shape,
                    sw_dtype type);

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
sw_status trial_dropout(struct trial *trial);
sw_status trial_bias_gradient(struct trial *trial);
sw_status trial_cross_entropy(struct trial *trial);
sw_status trial_softmax_partial(struct trial *trial);
sw_status trial_softmax_combine(struct trial *trial);
sw_status trial_cross_entropy_tile(struct trial *trial);
sw_status trial_sum_losses(struct trial *trial);
sw_status trial_preference(struct trial *trial);
sw_status trial_cast(struct trial *trial);
sw_status trial_rank_sum(struct trial *trial);
sw_status trial_routing(struct trial *trial);
sw_status trial_expert_rows(struct trial *trial);
sw_status trial_grouped(struct trial *trial);
sw_status trial_clamped(struct trial *trial);
sw_status trial_expert_biases(struct trial *trial);
/* struct test_rows, as grains without columns */
sw_status trial_finish_gradient(struct trial *trial);
sw_status trial_round_gradient(struct trial *trial);
sw_status trial_square_sums(struct trial *trial);
sw_status trial_update(struct trial *trial);
sw_status trial_muon(struct trial *trial);
sw_status trial_quantize(struct trial *trial);
sw_status trial_dequantize(struct trial *trial);
sw_status trial_encode_fp8(struct trial *trial);
sw_status trial_pack_weights(struct trial *trial);
sw_status trial_base(struct trial *trial);

/* struct test_heads */
sw_status trial_rmsnorm_forward(struct trial *trial);
sw_status trial_rmsnorm_backward(struct trial *trial);
sw_status trial_rotate(struct trial *trial);
sw_status trial_embedding_forward(struct trial *trial);
sw_status trial_embedding_backward(struct trial *trial);
sw_status trial_attention_forward(struct trial *trial);
sw_status trial_attention_backward(struct trial *trial);
sw_status trial_sinks(struct trial *trial);

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
    bool alibi;       /* attention has biases by distance, and heads with gaps between them */
};

struct test_product {
    int64_t m, n, k;
};

#endif
