/* The Muon update: momentum, orthogonalised by a Newton-Schulz iteration, of whole matrices (Jordan et al. 2024,
 * kellerjordan.github.io/posts/muon). As torch.optim.Muon defines it, with G = grad·grad_scale of each matrix:
 *   m += (1-momentum)·(G-m);  U = m + (1-momentum)·(G-m)                                    (Nesterov)
 *   X = U / max(|U|, 1e-7);  five times: A = X·Xᵀ, X = 3.4445·X + (-4.7750·A + 2.0315·A·A)·X
 *   p = p·(1 - lr·weight_decay) - lr·scale·X
 * A matrix of more outputs than inputs, or the other way round, is turned so that X has no more rows than columns. The
 * scale is Jordan's, sqrt(max(1, outputs/inputs)), or Moonshot's (arXiv 2502.16982, equation 4),
 * 0.2·sqrt(max(outputs, inputs)), which gives an update the size of AdamW's.
 *
 * All of it is fp32: a processor multiplies and adds as many numbers in fp32 by one instruction whatever it has for
 * bf16, and only so the bits can be the same on all. Each element of a product is a chain of fused multiply-adds in the
 * order of its terms, the square sum is in double along rows and then over them. So every implementation, instruction
 * set and number of threads gives the same bits.
 *
 * muon.c has all but the two products, which an implementation gives it. */
#ifndef SW_KERNELS_MUON_H
#define SW_KERNELS_MUON_H

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
    int parts;                       /* matrices, one behind the other along the outputs */
    int64_t part_end[SW_MUON_PARTS]; /* outputs before the end of each */
    bool decay;                      /* weight decay applies */
    double lr_scale;                 /* factor of the learning rate; 0 stands for 1 */
};

/* Updates `grains` grains of a unit from its element first_elem on, which hold the given tensors whole. A grain's
 * record has its masters and, from element SW_GRAIN_ELEMS on, its momentum, both in fp32 (core/optimizer_format.h). */
struct sw_update_muon {
    sw_dtype type; /* of grads and weights */
    const struct sw_muon *muon;
    int64_t first_elem, grains;
    const struct sw_muon_tensor *tensor; /* [tensors], in the order of their elements */
    int64_t tensors;
    sw_grads_format grads_format;
    const void *grads; /* [grains·SW_GRAIN_ELEMS], or records as grads_format says; NULL if the step is skipped */
    void *records;
    void *weights;  /* [grains·SW_GRAIN_ELEMS] receives the rounded master weights; NULL: they are not wanted */
    float *scratch; /* sw_muon_scratch_bytes of the tensors; NULL if the step is skipped */
};
sw_status sw_update_muon(struct sw_stream *stream, const struct sw_update_muon *args);

/* Tells whether a device has the update. */
bool sw_device_has_muon(const struct sw_device *device);

/* Returns the scratch that an update of these tensors needs, in bytes. */
int64_t sw_muon_scratch_bytes(const struct sw_muon_tensor *tensor, int64_t tensors);
/* Returns the floating-point operations of the iterations of these tensors, of each symmetric product one half. */
double sw_muon_flops(const struct sw_muon_tensor *tensor, int64_t tensors);
/* Returns the factor of the learning rate of a matrix. */
double sw_muon_scale_of(sw_muon_scale scale, int64_t outputs, int64_t inputs);

/* Does the items [first, end) of a pass. */
typedef void (*sw_muon_items)(const void *context, int64_t first, int64_t end, int thread);

/* The products of an implementation, for sw_muon_update. Matrices are row-major without gaps. */
struct sw_muon_products {
    /* to[rows][rows] = from[rows][terms]·fromᵀ */
    void (*gram)(struct sw_stream *stream, int64_t rows, int64_t terms, const float *from, float *to);
    /* to[rows][cols] = left[rows][rows]·right[rows][cols] */
    void (*product)(struct sw_stream *stream, int64_t rows, int64_t cols, const float *left, const float *right,
                    float *to);
    /* Does items [0, items), which have so many elements together, by calls of `run`. The results do not depend on
     * which thread does which. */
    void (*share)(struct sw_stream *stream, int64_t elems, int64_t items, sw_muon_items run, const void *context);
};
void sw_muon_update(struct sw_stream *stream, const struct sw_muon_products *products,
                    const struct sw_update_muon *args);

#endif
