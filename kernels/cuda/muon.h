/* The launchers of the Muon update's kernels, between which muon.c multiplies. */
#ifndef SW_KERNELS_CUDA_MUON_H
#define SW_KERNELS_CUDA_MUON_H

#include "kernels/cuda/launch.h"
#include "kernels/muon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Add gradients to the momenta, and round masters to weights, of all elements of a call, a struct sw_update_muon. */
sw_cuda_launcher sw_cuda_muon_momentum, sw_cuda_muon_weights;

/* One matrix of a call. The areas have the sides of the matrix with its zeros. */
struct sw_cuda_muon {
    const struct sw_update_muon *op;
    const struct sw_muon_matrix *matrix;
    float *sums;  /* U, later sums of products */
    void *x;      /* bf16: X */
    void *square; /* bf16: A, later P */
    double *norms;
};
/* take: writes U, and X by its norm. square, polynomial, next: round sums to A, to P where A was, to the next X.
 * give: subtracts the last X, whose product is in the sums, from the masters. */
sw_cuda_launcher sw_cuda_muon_take, sw_cuda_muon_square, sw_cuda_muon_polynomial, sw_cuda_muon_next, sw_cuda_muon_give;

#ifdef __cplusplus
}
#endif
#endif
