/* The Muon update: momentum, orthogonalised by a Newton-Schulz iteration, of whole matrices (Jordan et al. 2024,
 * kellerjordan.github.io/posts/muon). As torch.optim.Muon defines it, with G = grad·grad_scale of each matrix:
 *   m += (1-momentum)·(G-m);  U = m + (1-momentum)·(G-m)                                    (Nesterov)
 *   X = U / max(|U|, 1e-7);  five times: A = X·Xᵀ, X = 3.4445·X + (-4.7750·A + 2.0315·A·A)·X
 *   p = p·(1 - lr·weight_decay) - lr·scale·X
 * A matrix of more outputs than inputs, or the other way round, is turned so that X has no more rows than columns. The
 * scale is Jordan's, sqrt(max(1, outputs/inputs)), or Moonshot's (arXiv 2502.16982, equation 4),
 * 0.2·sqrt(max(outputs, inputs)), which gives an update the size of AdamW's.
 *
 * An iteration multiplies X by P = 3.4445·I - 4.7750·G + 2.0315·G·G of G = X·Xᵀ. All such polynomials commute, so that
 * rows that are at least twice as long as there are need only two products by X, of three iterations and of two: with
 * Q = I before them, each iteration does Q = P·Q and G = P·G·P, and X = Q·X follows. These matrices have the rows of X
 * and are symmetric, so that half of each product is computed. Between the two, G is made anew from X, because in
 * directions that X lacks rounding leaves eigenvalues of G, which each iteration raises 12 times. Other matrices, whose
 * smallest singular values are smaller, have G made anew in each iteration.
 *
 * Momentum, norm and the last X are fp32. X before that, and all of G, P, Q and P·G off their diagonals, are rounded to
 * bf16, magnitudes below SW_MUON_LEAST to zero; their diagonals, which have most of a well-conditioned matrix, are fp32
 * and enter a product behind the sum of its other terms (struct sw_muon_product). This sum is one chain of fused
 * multiply-adds in fp32 over pairs of terms, of each pair the second term first: the order of AVX-512's VDPBF16PS.
 * Thanks to SW_MUON_LEAST each product of two numbers is exact and no sum is subnormal, so that it makes no difference
 * that this instruction flushes subnormals and that others round a product before they add it. So every implementation,
 * instruction set and number of threads gives the same bits.
 *
 * muon.c has the order of the work, an implementation its loops and products. */
#ifndef SW_KERNELS_MUON_H
#define SW_KERNELS_MUON_H

#include "core/optimizer_format.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { SW_MUON_MOONSHOT = 0, SW_MUON_JORDAN, SW_MUON_SCALES } sw_muon_scale;

/* The rates of a step. */
struct sw_muon {
    double lr, momentum, weight_decay;
    sw_muon_scale scale;
    float grad_scale; /* the clip coefficient over the loss scale */
    bool skip;        /* the step is skipped: the state stays as it is and the weights are rounded again */
};

enum { SW_MUON_PARTS = 3 };

/* A tensor that is one matrix, or several that a product takes as one: queries, keys and values, or gates and values.
 */
struct sw_muon_tensor {
    int64_t first_elem; /* in its unit */
    int64_t outputs, inputs;
    bool in_first;                   /* it lies as [inputs, outputs]; otherwise [outputs, inputs] */
    bool alternate;                  /* the outputs of two matrices take turns */
    int64_t turn;                    /* so many outputs of each matrix take turns; 0: they do not. Not with in_first */
    int parts;                       /* matrices, one behind the other along the outputs */
    int64_t part_end[SW_MUON_PARTS]; /* outputs before the end of each */
    bool decay;                      /* weight decay applies */
    double lr_scale;                 /* factor of the learning rate; 0 stands for 1 */
};

/* Updates `grains` grains of a unit from its element first_elem on, which hold the given tensors whole, and whose
 * records have a momentum (sw_muon_record_parts). U is that of the momentum as the record keeps it. */
struct sw_update_muon {
    sw_dtype type; /* of grads and weights */
    const struct sw_muon *muon;
    sw_optimizer_format format; /* a layout that has Muon's records */
    /* The rounding of momenta in bf16, with the random words of moments.h. */
    sw_rounding rounding;
    uint64_t seed;
    int64_t unit, step;
    int64_t first_elem, grains;
    const struct sw_muon_tensor *tensor; /* [tensors], in the order of their elements */
    int64_t tensors;
    sw_grads_format grads_format;
    const void *grads; /* [grains·SW_GRAIN_ELEMS], or records as grads_format says; NULL if the step is skipped */
    void *records;
    void *weights; /* [grains·SW_GRAIN_ELEMS] receives the rounded master weights; NULL: they are not wanted */
    void *scratch; /* aligned to SW_BUFFER_ALIGN_BYTES; NULL if the step is skipped */
};
sw_status sw_update_muon(struct sw_stream *stream, const struct sw_update_muon *args);

/* Prepares a device's update of these tensors before the first step. *out_scratch_bytes: the scratch of a call. */
sw_status sw_muon_prepare(struct sw_device *device, const struct sw_muon_tensor *tensor, int64_t tensors,
                          int64_t *out_scratch_bytes);

/* Returns the scratch that an update of these tensors on the CPU needs, in bytes. */
int64_t sw_muon_scratch_bytes(const struct sw_muon_tensor *tensor, int64_t tensors);
/* Returns the floating-point operations of the iterations of these tensors, of each symmetric product one half: of n
 * rows of n columns 20·n³, of n rows of 4·n columns 38·n³. */
double sw_muon_flops(const struct sw_muon_tensor *tensor, int64_t tensors);
/* Returns those on a GPU, which computes whole products. */
double sw_muon_gpu_flops(const struct sw_muon_tensor *tensor, int64_t tensors);
/* Returns the factor of the learning rate of a matrix. */
double sw_muon_scale_of(sw_muon_scale scale, int64_t outputs, int64_t inputs);

/* The coefficients of an iteration, and their number, are Jordan's. The norm of a matrix counts as at least so much. */
#define SW_MUON_LINEAR 3.4445f
#define SW_MUON_CUBIC (-4.7750f)
#define SW_MUON_QUINTIC 2.0315f
enum { SW_MUON_ITERATIONS = 5 };
#define SW_MUON_LEAST_NORM 1e-7

/* Magnitudes below this become zero where a matrix is rounded to bf16; the norm of the whole is at most about 1. */
#define SW_MUON_LEAST 0x1p-50f

static inline sw_bf16 sw_muon_round(float value) {
    return value > -SW_MUON_LEAST && value < SW_MUON_LEAST ? 0 : sw_f32_to_bf16(value);
}

/* Returns the distance of the rows of a matrix in scratch, in elements. Elements behind a row's last are zero. */
static inline int64_t sw_muon_stride(int64_t cols) {
    enum { STRIDE_ELEMS = 32 };
    return (cols + STRIDE_ELEMS - 1) / STRIDE_ELEMS * STRIDE_ELEMS;
}

/* A product with what is added to it: to = factor·left·right + right_factor·right + identity·I. Rows lie
 * sw_muon_stride of their columns apart. A square matrix may have its diagonal elsewhere, in fp32, and zeros in its
 * place. Of element (i, j), with l and r for the diagonals, one after the other, each by one fused multiply-add:
 * - sum of left[i][k]·right[k][j] in the order above
 * - sum += l[i]·right[i][j], where right[i][i] is r[i]
 * - sum += left[i][j]·r[j], unless i is j
 * - result = factor·sum + (right_factor·right[i][j])
 * - result += identity where i is j and the result has a diagonal
 * A result with a diagonal is symmetric: the elements above it are copied to below it. */
struct sw_muon_product {
    int64_t rows, cols, terms;
    const sw_bf16 *left;        /* [rows][terms] */
    const float *left_diagonal; /* [rows]; NULL: it is in its place. Not where right is NULL */
    const sw_bf16 *right; /* [terms][cols], and a row of zeros behind an odd last one; NULL: the transposed left side,
                             and right_factor is 0 */
    const float *right_diagonal; /* [cols], and zeros up to sw_muon_stride; NULL: it is in its place */
    float factor, right_factor, identity;
    sw_bf16 *to; /* [rows][cols] */
    /* [rows] receives the diagonal, and `to` zeros in its place. NULL: it is rounded to its place. */
    float *to_diagonal;
    float *to_fp32; /* receives the result unrounded where `to` is NULL */
};

/* Does the items [first, end) of a pass. */
typedef void (*sw_muon_items)(const void *context, int64_t first, int64_t end, int thread);

/* The loops of an implementation, for sw_muon_update. Elements `at` count from the first of the call. */
struct sw_muon_loops {
    /* Adds gradients to momenta. at, count: multiples of 4096 within a grain */
    void (*momentum)(const struct sw_update_muon *op, int64_t at, int64_t count);
    /* to[count] = the updates U of elements, after their momentum */
    void (*update)(const struct sw_update_muon *op, int64_t at, int64_t count, float *to);
    /* Returns the square sum of a row: element i belongs to sum i%16, and these are added in order. */
    double (*square_sum)(int64_t cols, const float *row);
    /* to[stride] = from[cols]·factor, and zeros */
    void (*scale)(int64_t cols, const float *from, double factor, sw_bf16 *to);
    void (*product)(struct sw_stream *stream, const struct sw_muon_product *product);
    /* masters = masters·decay + minus_step·x */
    void (*descend)(const struct sw_update_muon *op, int64_t at, int64_t count, const float *x, float decay,
                    float minus_step);
    /* Rounds masters within a grain to weights. */
    void (*weights)(const struct sw_update_muon *op, int64_t at, int64_t count);
    /* Does items [0, items), which have so many elements together, by calls of `run`. The results do not depend on
     * which thread does which. */
    void (*share)(struct sw_stream *stream, int64_t elems, int64_t items, sw_muon_items run, const void *context);
};
enum { SW_MUON_SUMS = 16 };
void sw_muon_update(struct sw_stream *stream, const struct sw_muon_loops *loops, const struct sw_update_muon *args);

/* A matrix as its tensor's lines, which are rows of the tensor as it lies in memory: element e of line l is element
 * first + l·distance + (turn > 0 ? l/turn·skip : 0) + e·step of the unit. */
struct sw_muon_lines {
    int64_t count, elems; /* lines, and elements of each */
    int64_t first, distance, step;
    int64_t turn, skip;
    bool are_rows; /* of X; otherwise lines are its columns */
};

/* A matrix for a GPU (cuda/muon.c). Sides of X there are multiples of SW_MUON_GPU_SIDE, with zeros behind the matrix,
 * as cuBLASLt has its fastest products for such sides. Momenta have the bits of the CPU; sums of products have
 * cuBLASLt's order, and so X has other last digits, but the same ones in every call. */
enum { SW_MUON_GPU_SIDE = 32, SW_MUON_GPU_MOST_SIDE = 65535 * SW_MUON_GPU_SIDE /* by CUDA's limit of a grid */ };
struct sw_muon_matrix {
    int64_t rows, cols, wide_rows, wide_cols; /* of X; and with the zeros */
    struct sw_muon_lines lines;
    float decay, minus_step; /* factors of masters and of the last X */
    /* The products X·Xᵀ, A·A and P·X, all to fp32. */
    struct sw_gemm square, fourth, step;
    /* The areas of the scratch: U, later fp32 sums; X; A and P; the row sums of the norm, behind the inverse norm; the
     * scratch of products. */
    int64_t sums_at, x_at, square_at, norms_at, product_at;
};
struct sw_muon_matrix sw_muon_matrix_of(const struct sw_muon *muon, const struct sw_muon_tensor *tensor, int part);

#endif
