#include "kernels/ref/ref.h"

#include <math.h>

static sw_status layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * cols;
        double sum = 0.0, squares = 0.0;
        for (int64_t col = 0; col < cols; col++)
            sum += sw_dtype_load(type, x, at + col);
        const double centre = sum / (double)cols;
        for (int64_t col = 0; col < cols; col++) {
            const double centred = sw_dtype_load(type, x, at + col) - centre;
            squares += centred * centred;
        }
        const double scale = 1.0 / sqrt(squares / (double)cols + epsilon);
        mean[row] = (float)centre;
        rstd[row] = (float)scale;
        for (int64_t col = 0; col < cols; col++) {
            const double normal = (sw_dtype_load(type, x, at + col) - centre) * scale;
            const double value = normal * sw_dtype_load(type, gamma, col) + sw_dtype_load(type, beta, col);
            sw_dtype_store(type, y, at + col, (float)value);
        }
    }
    return SW_OK;
}

/* With n = (x - mean)·rstd and g = dy·gamma, dx = rstd·(g - average(g) - n·average(g·n)) over the row. */
static void row_dx(sw_dtype type, int64_t cols, int64_t at, const void *dy, const void *x, const void *gamma,
                   double mean, double rstd, bool add_to_dx, void *dx) {
    double sum = 0.0, sum_normal = 0.0;
    for (int64_t col = 0; col < cols; col++) {
        const double g = (double)sw_dtype_load(type, dy, at + col) * sw_dtype_load(type, gamma, col);
        sum += g;
        sum_normal += g * (sw_dtype_load(type, x, at + col) - mean) * rstd;
    }
    for (int64_t col = 0; col < cols; col++) {
        const double g = (double)sw_dtype_load(type, dy, at + col) * sw_dtype_load(type, gamma, col);
        const double normal = (sw_dtype_load(type, x, at + col) - mean) * rstd;
        const double value = rstd * (g - sum / (double)cols - normal * sum_normal / (double)cols);
        const double before = add_to_dx ? sw_dtype_load(type, dx, at + col) : 0.0;
        sw_dtype_store(type, dx, at + col, (float)(before + value));
    }
}

static sw_status layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                    const void *x, const void *gamma, const float *mean, const float *rstd,
                                    bool add_to_dx, void *dx, float *gamma_acc, float *beta_acc) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * cols;
        for (int64_t col = 0; col < cols; col++) {
            const float gradient = sw_dtype_load(type, dy, at + col);
            const float normal = (sw_dtype_load(type, x, at + col) - mean[row]) * rstd[row];
            gamma_acc[col] += gradient * normal;
            beta_acc[col] += gradient;
        }
        row_dx(type, cols, at, dy, x, gamma, mean[row], rstd[row], add_to_dx, dx);
    }
    return SW_OK;
}

void sw_ref_add_layernorm(struct sw_device_ops *ops) {
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
}
