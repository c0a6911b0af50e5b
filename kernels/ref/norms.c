#include "kernels/ref/ref.h"

#include <math.h>

static sw_status layernorm_forward(struct sw_stream *stream, const void *args) {
    const struct sw_layernorm_forward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        const int64_t at = row * op->cols;
        double sum = 0.0, squares = 0.0;
        for (int64_t col = 0; col < op->cols; col++)
            sum += sw_dtype_load(op->type, op->x, at + col);
        const double centre = sum / (double)op->cols;
        for (int64_t col = 0; col < op->cols; col++) {
            const double centred = sw_dtype_load(op->type, op->x, at + col) - centre;
            squares += centred * centred;
        }
        const double scale = 1.0 / sqrt(squares / (double)op->cols + op->epsilon);
        op->mean[row] = (float)centre;
        op->rstd[row] = (float)scale;
        for (int64_t col = 0; col < op->cols; col++) {
            const double normal = (sw_dtype_load(op->type, op->x, at + col) - centre) * scale;
            const double value =
                normal * sw_dtype_load(op->type, op->gamma, col) + sw_dtype_load(op->type, op->beta, col);
            sw_dtype_store(op->type, op->y, at + col, (float)value);
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

static sw_status layernorm_backward(struct sw_stream *stream, const void *args) {
    const struct sw_layernorm_backward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        const int64_t at = row * op->cols;
        for (int64_t col = 0; col < op->cols; col++) {
            const float gradient = sw_dtype_load(op->type, op->dy, at + col);
            const float normal = (sw_dtype_load(op->type, op->x, at + col) - op->mean[row]) * op->rstd[row];
            op->gamma_acc[col] += gradient * normal;
            op->beta_acc[col] += gradient;
        }
        row_dx(op->type, op->cols, at, op->dy, op->x, op->gamma, op->mean[row], op->rstd[row], op->add_to_dx, op->dx);
    }
    return SW_OK;
}

void sw_ref_add_layernorm(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_LAYERNORM_FORWARD] = layernorm_forward;
    ops->op[SW_DEVICE_LAYERNORM_BACKWARD] = layernorm_backward;
}

static int64_t row_at(const struct sw_rmsnorm *shape, int64_t stride, int64_t row) {
    return row / shape->groups * stride + row % shape->groups * shape->cols;
}

static double gamma_at(sw_dtype type, const struct sw_rmsnorm *shape, const void *gamma, int64_t col) {
    return shape->gamma_base + sw_dtype_load(type, gamma, col);
}

static sw_status rmsnorm_forward(struct sw_stream *stream, const void *args) {
    const struct sw_rmsnorm_forward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->shape->rows; row++) {
        const int64_t x_at = row_at(op->shape, op->shape->x_stride, row),
                      y_at = row_at(op->shape, op->shape->y_stride, row);
        double squares = 0.0;
        for (int64_t col = 0; col < op->shape->cols; col++) {
            const double value = sw_dtype_load(op->type, op->x, x_at + col);
            squares += value * value;
        }
        const double scale = 1.0 / sqrt(squares / (double)op->shape->cols + op->shape->epsilon);
        op->rstd[row] = (float)scale;
        for (int64_t col = 0; col < op->shape->cols; col++) {
            const double value =
                sw_dtype_load(op->type, op->x, x_at + col) * scale * gamma_at(op->type, op->shape, op->gamma, col);
            sw_dtype_store(op->type, op->y, y_at + col, (float)value);
        }
    }
    return SW_OK;
}

/* Implements the definition of the fused op: an addition, then a norm, each by the device's own op. */
static sw_status add_norm_forward(struct sw_stream *stream, const void *args) {
    const struct sw_add_norm_forward *op = args;
    struct sw_rmsnorm shape = sw_plain_rows(op->rows, op->cols, op->epsilon);
    shape.gamma_base = op->gamma_base;
    SW_TRY(sw_add(stream, op->type, op->rows * op->cols, op->a, op->b, op->sum));
    return op->mean == NULL ? sw_rmsnorm_forward(stream, op->type, &shape, op->sum, op->gamma, op->y, op->rstd)
                            : sw_layernorm_forward(stream, op->type, op->rows, op->cols, op->epsilon, op->sum,
                                                   op->gamma, op->beta, op->y, op->mean, op->rstd);
}

/* With n = x·rstd and g = dy·gamma, dx = rstd·(g - n·average(g·n)) over the row. */
static void rms_row_dx(const struct sw_rmsnorm_backward *op, int64_t y_at, int64_t x_at, double rstd) {
    const sw_dtype type = op->type;
    const int64_t cols = op->shape->cols;
    double sum_normal = 0.0;
    for (int64_t col = 0; col < cols; col++) {
        const double g = sw_dtype_load(type, op->dy, y_at + col) * gamma_at(type, op->shape, op->gamma, col);
        sum_normal += g * sw_dtype_load(type, op->x, x_at + col) * rstd;
    }
    for (int64_t col = 0; col < cols; col++) {
        const double g = sw_dtype_load(type, op->dy, y_at + col) * gamma_at(type, op->shape, op->gamma, col);
        const double normal = sw_dtype_load(type, op->x, x_at + col) * rstd;
        const double before = op->add_to_dx ? sw_dtype_load(type, op->dx, x_at + col) : 0.0;
        sw_dtype_store(type, op->dx, x_at + col, (float)(before + rstd * (g - normal * sum_normal / (double)cols)));
    }
}

static sw_status rmsnorm_backward(struct sw_stream *stream, const void *args) {
    const struct sw_rmsnorm_backward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->shape->rows; row++) {
        const int64_t x_at = row_at(op->shape, op->shape->x_stride, row),
                      y_at = row_at(op->shape, op->shape->y_stride, row);
        for (int64_t col = 0; col < op->shape->cols; col++)
            op->gamma_acc[col] += sw_dtype_load(op->type, op->dy, y_at + col) *
                                  (sw_dtype_load(op->type, op->x, x_at + col) * op->rstd[row]);
        rms_row_dx(op, y_at, x_at, op->rstd[row]);
    }
    return SW_OK;
}

void sw_ref_add_rmsnorm(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_RMSNORM_FORWARD] = rmsnorm_forward;
    ops->op[SW_DEVICE_RMSNORM_BACKWARD] = rmsnorm_backward;
    ops->op[SW_DEVICE_ADD_NORM_FORWARD] = add_norm_forward;
}
