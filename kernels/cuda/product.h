/* A matrix product in cuBLASLt's terms (gemm.c), and the choice of its algorithm (algorithms.c). */
#ifndef SW_KERNELS_CUDA_PRODUCT_H
#define SW_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/cuda.h"

/* The alignment of operands that cuBLASLt is told: that of tensors of a unit and of rows of areas. */
enum { SW_CUDA_OPERAND_ALIGN_BYTES = 64, SW_CUDA_WORKSPACE_ALIGN_BYTES = 256 };

struct sw_cuda_product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    struct sw_gemm_algorithm algorithm;
    bool refused; /* the library does not accept the algorithm that was recorded for the product */
    float beta;
};

struct sw_cuda_operands {
    const void *a, *b, *bias, *addend; /* bias and addend are NULL where the shape has none */
    void *c, *workspace;
    const float *a_scale, *b_scale; /* of operands in 8 bits, which are codes then; NULL: none are */
};

/* Starts a product on a stream, by an algorithm in the library's own form. */
cublasStatus_t sw_cuda_multiply(const struct sw_cuda *cuda, const struct sw_cuda_product *product,
                                const cublasLtMatmulAlgo_t *algorithm, int64_t workspace_bytes,
                                const struct sw_cuda_operands *operands, cudaStream_t stream);

/* Fills the product's algorithm: the one that was recorded for its shape, or the cheapest, or the first. */
sw_status sw_cuda_choose_algorithm(struct sw_cuda *cuda, struct sw_cuda_product *product);

#endif
