/* Weights that a checkpoint keeps in fewer bits, and that config.json describes by quantization_config: fp8 with scales
 * for blocks, rows or whole matrices (DeepSeek-V3, Qwen3-FP8, and "float-quantized" of compressed-tensors), and MXFP4
 * (gpt-oss). core/base_format.h defines what codes and scales stand for.
 *
 * In fp8, a matrix has its name and the type F8_E4M3, and its scales the same name with "_scale_inv" or "_scale". In
 * MXFP4 the name has "_blocks" for codes, [..., columns / 32, 16], of which two share a byte, the first in the lower
 * half; and "_scales" for a byte for each 32 columns. Experts that are one tensor are [experts, out, in] there, and
 * [experts, in, out] in the model, unless its base keeps them as they are stored. */
#ifndef SW_MODEL_HF_QUANTIZED_H
#define SW_MODEL_HF_QUANTIZED_H

#include "core/base_format.h"
#include "core/status.h"
#include "io/safetensors/safetensors.h"
#include "offload/plan/unit.h"

#include <jansson.h>
#include <stdint.h>

/* How config.json says that weights are quantized. */
struct sw_quantization {
    sw_base_format format;          /* SW_BASE_TYPED: they are not; SW_BASE_FP8 or SW_BASE_MXFP4 */
    int64_t block_rows, block_cols; /* elements of a matrix in fp8 that share a scale; 0: a row's, or all */
};

/* Reads the description from config.json; origin names it in messages. Refuses kinds that cannot be read. */
sw_status sw_quantization_read(const json_t *root, const char *origin, struct sw_quantization *out);
/* Reads it from a folder's config.json. A folder without one is not quantized. */
sw_status sw_quantization_load(const char *folder, struct sw_quantization *out);
/* Returns what follows a matrix's name in the names of its codes and scales; ended by NULL. */
const char *const *sw_quantization_endings(sw_base_format format);

/* The matrices of experts that were read last, transposed: MXFP4 has a tensor of experts [experts, out, in] and the
 * model [experts, in, out], so that an element's neighbours come from all of the matrix. They are kept as codes and
 * scales, 4.25 bits a weight: at most 18 MB for the two largest matrices of gpt-oss. Any number of threads may read. */
struct sw_transposed_experts;
sw_status sw_transposed_experts_create(struct sw_transposed_experts **out);
void sw_transposed_experts_destroy(struct sw_transposed_experts *experts);

/* How a folder keeps a tensor of the model. */
struct sw_stored_tensor {
    const struct sw_safetensor *values;        /* numbers, or codes; NULL: the tensor is not read */
    const struct sw_safetensor *scales;        /* NULL: `values` are numbers */
    sw_base_format format;                     /* SW_BASE_TYPED: `values` are numbers */
    int64_t first;                             /* the tensor's first element in `values`, if they are numbers */
    int64_t cols;                              /* elements of a row of the whole tensor */
    int64_t block_rows, block_cols, grid_cols; /* fp8: elements that share a scale, and scales of a row of blocks */
    float *scale;                              /* fp8: the scales; owned; else NULL */
    int64_t rows;                              /* rows of each matrix of a tensor of experts that the model has
                                                  transposed; 0: it is stored as the model has it */
    struct sw_transposed_experts *transposed;  /* with rows: borrowed, and shared by tensors */
};

/* Fills in *out for codes and scales that were found; out->transposed is set before. Refuses other types and shapes
 * than the tensor's, and scales that are not finite. The caller releases *out, also after a failure. */
sw_status sw_stored_tensor_open(const struct sw_quantization *quantization, struct sw_safetensors *tensors,
                                const char *folder, const struct sw_tensor *tensor, struct sw_stored_tensor *out);
void sw_stored_tensor_release(struct sw_stored_tensor *stored);

/* Reads the values of elements [first, first+count). Threads as for sw_safetensors_read_f32. */
sw_status sw_stored_tensor_read(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                int64_t count, float *out);
/* Takes the codes and scales of these elements into the record of a grain, where they begin at element `at`. The format
 * is not SW_BASE_TYPED, and all three numbers are multiples of sw_base_stored_elems. */
sw_status sw_stored_tensor_take(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                int64_t count, int64_t at, void *record);
/* Announces these elements, as sw_safetensors_announce does. */
sw_status sw_stored_tensor_announce(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored,
                                    int64_t first, int64_t count, int64_t position, bool *out_taken);
/* Returns the offset of an element's value or code in its file. */
int64_t sw_stored_tensor_offset(const struct sw_stored_tensor *stored, int64_t elem);

#endif
