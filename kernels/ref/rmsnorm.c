#include "kernels/ref/ref.h"

#include <math.h>

static int64_t row_at(const struct sw_rmsnorm *shape, int64_t stride, int64_t row) {
    return row / shape->groups * stride + row % shape->groups * shape->cols;
}

static sw_status rmsnorm_forward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                                 const void *gamma, void *y, float *rstd) {
    (void)stream;
    for (int64_t row = 0; row < shape->rows; row++) {
        const int64_t x_at = row_at(shape, shape->x_stride, row), y_at = row_at(shape, shape->y_stride, row);
        double squares = 0.0;
        for (int64_t col = 0; col < shape->cols; col++) {
            const double value = sw_dtype_load(type, x, x_at + col);
            squares += value * value;
        }
        const double scale = 1.0 / sqrt(squares / (double)shape->cols + shape->epsilon);
        rstd[row] = (float)scale;
        for (int64_t col = 0; col < shape->cols; col++) {
            const double value = sw_dtype_load(type, x, x_at + col) * scale * sw_dtype_load(type, gamma, col);
            sw_dtype_store(type, y, y_at + col, (float)value);
        }
    }
    return SW_OK;
}

/* Runs the definition of the fused op: an addition and then a norm, each by the device's own op. */
static sw_status add_norm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                  const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                                  float *mean, float *rstd) {
    const struct sw_device_ops *ops = &stream->device->ops;
    const struct sw_rmsnorm shape = {
        .rows = rows, .cols = cols, .groups = 1, .x_stride = cols, .y_stride = cols, .epsilon = epsilon};
    SW_TRY(ops->add(stream, type, rows * cols, a, b, sum));
    return mean == NULL ? ops->rmsnorm_forward(stream, type, &shape, sum, gamma, y, rstd)
                        : ops->layernorm_forward(stream, type, rows, cols, epsilon, sum, gamma, beta, y, mean, rstd);
}

/* With n = x·rstd and g = dy·gamma, dx = rstd·(g - n·average(g·n)) over the row. */
static void row_dx(sw_dtype type, int64_t cols, const void *dy, int64_t y_at, const void *x, int64_t x_at,
                   const void *gamma, double rstd, bool add_to_dx, void *dx) {
    double sum_normal = 0.0;
    for (int64_t col = 0; col < cols; col++) {
        const double g = (double)sw_dtype_load(type, dy, y_at + col) * sw_dtype_load(type, gamma, col);
        sum_normal += g * sw_dtype_load(type, x, x_at + col) * rstd;
    }
    for (int64_t col = 0; col < cols; col++) {
        const double g = (double)sw_dtype_load(type, dy, y_at + col) * sw_dtype_load(type, gamma, col);
        const double normal = sw_dtype_load(type, x, x_at + col) * rstd;
        const double before = add_to_dx ? sw_dtype_load(type, dx, x_at + col) : 0.0;
        sw_dtype_store(type, dx, x_at + col, (float)(before + rstd * (g - normal * sum_normal / (double)cols)));
    }
}

static sw_status rmsnorm_backward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape,
                                  const void *dy, const void *x, const void *gamma, const float *rstd, bool add_to_dx,
                                  void *dx, float *gamma_acc) {
    (void)stream;
    for (int64_t row = 0; row < shape->rows; row++) {
        const int64_t x_at = row_at(shape, shape->x_stride, row), y_at = row_at(shape, shape->y_stride, row);
        for (int64_t col = 0; col < shape->cols; col++)
            gamma_acc[col] += sw_dtype_load(type, dy, y_at + col) * (sw_dtype_load(type, x, x_at + col) * rstd[row]);
        row_dx(type, shape->cols, dy, y_at, x, x_at, gamma, rstd[row], add_to_dx, dx);
    }
    return SW_OK;
}

void sw_ref_add_rmsnorm(struct sw_device_ops *ops) {
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_backward = rmsnorm_backward;
    ops->add_norm_forward = add_norm_forward;
}
