/* Prepares the Muon update of a device before the first step. */
#include "core/size.h"
#include "core/status.h"
#include "kernels/device_ops.h"
#include "kernels/muon.h"

/* Prepares the products of a matrix on a GPU, and makes its scratch count. */
static sw_status prepare_matrix(struct sw_device *device, const struct sw_muon_matrix *matrix, int64_t *most_bytes) {
    const struct sw_gemm *const shapes[] = {&matrix->square, &matrix->fourth, &matrix->step};
    if (matrix->wide_cols > SW_MUON_GPU_MOST_SIDE)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--optimizer muon: a matrix of %lld x %lld is too large for the update on a GPU; leave it to "
                       "AdamW by --optimizer-for",
                       (long long)matrix->rows, (long long)matrix->cols);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int64_t bytes;
        SW_TRY(sw_device_prepare_gemm(device, shapes[i], &bytes));
        *most_bytes = sw_max_i64(*most_bytes, matrix->product_at + bytes);
    }
    return SW_OK;
}

sw_status sw_muon_prepare(struct sw_device *device, const struct sw_muon_tensor *tensor, int64_t tensors,
                          int64_t *out_scratch_bytes) {
    static const struct sw_muon no_rates = {0};
    *out_scratch_bytes = 0;
    if (device->info.host_memory) {
        *out_scratch_bytes = sw_muon_scratch_bytes(tensor, tensors);
        return SW_OK;
    }
    for (int64_t t = 0; t < tensors; t++)
        for (int part = 0; part < tensor[t].parts; part++) {
            const struct sw_muon_matrix matrix = sw_muon_matrix_of(&no_rates, &tensor[t], part);
            SW_TRY(prepare_matrix(device, &matrix, out_scratch_bytes));
        }
    return SW_OK;
}
