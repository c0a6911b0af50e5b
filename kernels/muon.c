#include "kernels/muon.h"

#include "core/dtype.h"
#include "core/quant.h"
#include "core/size.h"
#include "kernels/device_ops.h"

#include <assert.h>
#include <math.h>

/* The coefficients and the number of iterations are Jordan's. */
#define LINEAR 3.4445f
#define CUBIC (-4.7750f)
#define QUINTIC 2.0315f
enum { ITERATIONS = 5 };
/* The norm of a matrix counts as at least this much. */
#define LEAST_NORM 1e-7

/* Elements of a tensor that a thread takes at once. */
enum { RUN_ELEMS = 4096 };

/* One matrix of a tensor. It is turned where it has more outputs than inputs: a row of X is then an input. */
struct matrix {
    int64_t outputs, inputs;
    int64_t first_output, output_step; /* output o of the matrix is output first_output + o·output_step of the tensor */
    bool turned;
    int64_t rows, cols; /* of X */
};

static struct matrix matrix_of(const struct sw_muon_tensor *tensor, int part) {
    const int64_t before = part > 0 ? tensor->part_end[part - 1] : 0;
    struct matrix m = {.outputs = tensor->part_end[part] - before, .inputs = tensor->inputs};
    m.output_step = tensor->alternate ? tensor->parts : 1;
    m.first_output = tensor->alternate ? part : before;
    m.turned = m.outputs > m.inputs;
    m.rows = m.turned ? m.inputs : m.outputs;
    m.cols = m.turned ? m.outputs : m.inputs;
    return m;
}

/* The scratch of a tensor: its update, X and the next X of its largest matrix, and two squares of this. */
struct areas {
    float *update, *x, *next, *square, *polynomial;
};

/* Returns the elements of an area, so that the next one is aligned. */
static int64_t area_elems(int64_t rows, int64_t cols) {
    return sw_round_up(rows * cols, SW_TENSOR_ALIGN_ELEMS);
}

static struct areas areas_of(float *scratch, const struct sw_muon_tensor *tensor, const struct matrix *m) {
    struct areas at = {.update = scratch, .x = scratch + area_elems(tensor->outputs, tensor->inputs)};
    at.next = at.x + area_elems(m->rows, m->cols);
    at.square = at.next + area_elems(m->rows, m->cols);
    at.polynomial = at.square + area_elems(m->rows, m->rows);
    return at;
}

static int64_t tensor_scratch_elems(const struct sw_muon_tensor *tensor) {
    int64_t most = 0;
    for (int part = 0; part < tensor->parts; part++) {
        const struct matrix m = matrix_of(tensor, part);
        most = sw_max_i64(most, 2 * (area_elems(m.rows, m.cols) + area_elems(m.rows, m.rows)));
    }
    return area_elems(tensor->outputs, tensor->inputs) + most;
}

int64_t sw_muon_scratch_bytes(const struct sw_muon_tensor *tensor, int64_t tensors) {
    int64_t most = 0;
    for (int64_t t = 0; t < tensors; t++)
        most = sw_max_i64(most, tensor_scratch_elems(&tensor[t]));
    return most * (int64_t)sizeof(float);
}

double sw_muon_flops(const struct sw_muon_tensor *tensor, int64_t tensors) {
    double flops = 0.0;
    for (int64_t t = 0; t < tensors; t++)
        for (int part = 0; part < tensor[t].parts; part++) {
            const struct matrix m = matrix_of(&tensor[t], part);
            const double rows = (double)m.rows, cols = (double)m.cols;
            flops += ITERATIONS * rows * rows * (cols + rows + 2.0 * cols);
        }
    return flops;
}

double sw_muon_scale_of(sw_muon_scale scale, int64_t outputs, int64_t inputs) {
    return scale == SW_MUON_JORDAN ? sqrt(fmax(1.0, (double)outputs / (double)inputs))
                                   : 0.2 * sqrt((double)sw_max_i64(outputs, inputs));
}

bool sw_device_has_muon(const struct sw_device *device) {
    return device->ops.update_muon != NULL;
}

/* Returns where a unit's element has its master; its momentum lies SW_GRAIN_ELEMS floats behind. */
static float *master_of(const struct sw_update_muon *op, int64_t elem) {
    const int64_t at = elem - op->first_elem;
    return (float *)op->records + at / SW_GRAIN_ELEMS * 2 * SW_GRAIN_ELEMS + at % SW_GRAIN_ELEMS;
}

static float gradient_at(const struct sw_update_muon *op, int64_t elem) {
    const int64_t at = elem - op->first_elem;
    return op->grads_format == SW_GRADS_8BIT ? sw_grads_8bit_at(op->grads, at) : sw_dtype_load(op->type, op->grads, at);
}

/* A pass over a tensor, or over one of its matrices. */
struct pass {
    const struct sw_update_muon *op;
    const struct sw_muon_tensor *tensor;
    struct areas at;
    struct matrix matrix;
    double *row_sums, inverse; /* row_sums lie where the next X will be */
    float factor, minus_step;  /* of the masters, and of X */
};

/* Adds gradients to the momentum, and leaves the update in scratch. */
static void add_momentum(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    const struct sw_update_muon *op = p->op;
    const float rest = (float)(1.0 - op->muon->momentum), grad_scale = op->muon->grad_scale;
    const int64_t elems = sw_min_i64(end * RUN_ELEMS, p->tensor->outputs * p->tensor->inputs);
    (void)thread;
    for (int64_t i = first * RUN_ELEMS; i < elems; i++) {
        float *m = master_of(op, p->tensor->first_elem + i) + SW_GRAIN_ELEMS;
        const float g = gradient_at(op, p->tensor->first_elem + i) * grad_scale;
        *m = fmaf(rest, g - *m, *m);
        p->at.update[i] = fmaf(rest, g - *m, *m);
    }
}

/* Returns the index in the tensor of the first element of a row of X; those that follow lie *step apart. */
static int64_t row_in_tensor(const struct pass *p, int64_t row, int64_t *step) {
    const struct matrix *m = &p->matrix;
    const int64_t of_output = p->tensor->in_first ? 1 : m->inputs;
    const int64_t of_input = p->tensor->in_first ? p->tensor->outputs : 1;
    const int64_t first = m->first_output * of_output, next_output = m->output_step * of_output;
    *step = m->turned ? next_output : of_input;
    return first + row * (m->turned ? of_input : next_output);
}

static void take_rows(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t row = first; row < end; row++) {
        int64_t step;
        const int64_t from = row_in_tensor(p, row, &step);
        double sum = 0.0;
        for (int64_t i = 0; i < p->matrix.cols; i++) {
            const float u = p->at.update[from + i * step];
            p->at.x[row * p->matrix.cols + i] = u;
            sum += (double)u * (double)u; /* the product is exact */
        }
        p->row_sums[row] = sum;
    }
}

static void scale_rows(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t i = first * p->matrix.cols; i < end * p->matrix.cols; i++)
        p->at.x[i] = (float)((double)p->at.x[i] * p->inverse);
}

/* Replaces rows of A·A by those of the polynomial in A. */
static void add_square(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t i = first * p->matrix.rows; i < end * p->matrix.rows; i++)
        p->at.polynomial[i] = fmaf(QUINTIC, p->at.polynomial[i], CUBIC * p->at.square[i]);
}

static void add_linear(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t i = first * p->matrix.cols; i < end * p->matrix.cols; i++)
        p->at.next[i] = fmaf(LINEAR, p->at.x[i], p->at.next[i]);
}

static void put_rows(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t row = first; row < end; row++) {
        int64_t step;
        const int64_t from = row_in_tensor(p, row, &step);
        for (int64_t i = 0; i < p->matrix.cols; i++) {
            float *master = master_of(p->op, p->tensor->first_elem + from + i * step);
            *master = fmaf(p->minus_step, p->at.x[row * p->matrix.cols + i], *master * p->factor);
        }
    }
}

static void iterate(struct sw_stream *stream, const struct sw_muon_products *products, struct pass *p) {
    const int64_t rows = p->matrix.rows, cols = p->matrix.cols;
    for (int i = 0; i < ITERATIONS; i++) {
        products->gram(stream, rows, cols, p->at.x, p->at.square);
        products->gram(stream, rows, rows, p->at.square, p->at.polynomial);
        products->share(stream, rows * rows, rows, add_square, p);
        products->product(stream, rows, cols, p->at.polynomial, p->at.x, p->at.next);
        products->share(stream, rows * cols, rows, add_linear, p);
        float *next = p->at.next;
        p->at.next = p->at.x;
        p->at.x = next;
    }
}

static void update_matrix(struct sw_stream *stream, const struct sw_muon_products *products, struct pass *p, int part) {
    const struct sw_muon *muon = p->op->muon;
    const double lr = muon->lr * (p->tensor->lr_scale == 0.0 ? 1.0 : p->tensor->lr_scale);
    double total = 0.0;
    const struct matrix m = p->matrix = matrix_of(p->tensor, part);
    p->at = areas_of(p->op->scratch, p->tensor, &m);
    p->row_sums = (double *)(void *)p->at.next;
    p->factor = p->tensor->decay ? (float)(1.0 - lr * muon->weight_decay) : 1.0f;
    p->minus_step = (float)(-lr * sw_muon_scale_of(muon->scale, m.outputs, m.inputs));
    products->share(stream, m.rows * m.cols, m.rows, take_rows, p);
    for (int64_t row = 0; row < m.rows; row++)
        total += p->row_sums[row];
    p->inverse = 1.0 / fmax(sqrt(total), LEAST_NORM);
    products->share(stream, m.rows * m.cols, m.rows, scale_rows, p);
    iterate(stream, products, p);
    products->share(stream, m.rows * m.cols, m.rows, put_rows, p);
}

static void round_grains(const void *context, int64_t first, int64_t end, int thread) {
    const struct sw_update_muon *op = context;
    (void)thread;
    for (int64_t i = first * SW_GRAIN_ELEMS; i < end * SW_GRAIN_ELEMS; i++)
        sw_dtype_store(op->type, op->weights, i, *master_of(op, op->first_elem + i));
}

void sw_muon_update(struct sw_stream *stream, const struct sw_muon_products *products,
                    const struct sw_update_muon *op) {
    for (int64_t t = 0; t < op->tensors && !op->muon->skip; t++) {
        const struct sw_muon_tensor *tensor = &op->tensor[t];
        struct pass p = {.op = op, .tensor = tensor, .at = {.update = op->scratch}};
        const int64_t elems = tensor->outputs * tensor->inputs;
        products->share(stream, elems, sw_div_up(elems, RUN_ELEMS), add_momentum, &p);
        for (int part = 0; part < tensor->parts; part++)
            update_matrix(stream, products, &p, part);
    }
    if (op->weights != NULL)
        products->share(stream, op->grains * SW_GRAIN_ELEMS, op->grains, round_grains, op);
}

sw_status sw_update_muon(struct sw_stream *stream, const struct sw_update_muon *op) {
    assert(op->muon != NULL && op->records != NULL && op->first_elem % SW_GRAIN_ELEMS == 0 && op->grains >= 0);
    assert(op->muon->skip || (op->grads != NULL && op->scratch != NULL));
    for (int64_t t = 0; t < op->tensors; t++)
        assert(op->tensor[t].first_elem >= op->first_elem &&
               op->tensor[t].first_elem + op->tensor[t].outputs * op->tensor[t].inputs <=
                   op->first_elem + op->grains * SW_GRAIN_ELEMS);
    const sw_status status = stream->device->ops.update_muon(stream, op);
    if (stream->first_error == SW_OK)
        stream->first_error = status;
    return status;
}
