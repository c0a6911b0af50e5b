#include "kernels/muon.h"

#include "core/dtype.h"
#include "core/size.h"
#include "kernels/device_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The iterations of each product by X, and 0; together SW_MUON_ITERATIONS. Few products suit long rows, unless
 * eigenvalues of G may be so small that rounding of G, which each iteration raises, would reach them: a long random
 * matrix has none. */
static const int runs_of_long[] = {3, 2, 0}, runs_of_others[] = {1, 1, 1, 1, 1, 0};
/* A row is long if the matrix has so many times as many columns as rows. */
enum { LONG = 2 };

/* Elements of a grain that a thread takes at once. */
enum { RUN_ELEMS = 4096 };
/* A block of a tensor's lines and of their elements, which passes between the tensor and X. */
enum { BLOCK_LINES = 16, BLOCK_ELEMS = 64 };

/* One matrix of a tensor. It is turned where it has more outputs than inputs: a row of X is then an input. */
struct matrix {
    int64_t outputs, inputs;
    int64_t first_output, output_step; /* output o of the matrix is output first_output + o·output_step of the tensor */
    int64_t turn, skip; /* and behind each `turn` outputs, if that is not 0, `skip` outputs are other matrices' */
    bool turned;
    int64_t rows, cols; /* of X */
};

static struct matrix matrix_of(const struct sw_muon_tensor *tensor, int part) {
    const int64_t before = part > 0 ? tensor->part_end[part - 1] : 0;
    struct matrix m = {.outputs = tensor->part_end[part] - before, .inputs = tensor->inputs};
    m.output_step = tensor->alternate ? tensor->parts : 1;
    m.first_output = tensor->alternate ? part : before;
    if (tensor->turn > 0)
        m.first_output = part * tensor->turn;
    m.turn = tensor->turn;
    m.skip = (tensor->parts - 1) * tensor->turn;
    m.turned = m.outputs > m.inputs;
    m.rows = m.turned ? m.inputs : m.outputs;
    m.cols = m.turned ? m.outputs : m.inputs;
    return m;
}

/* A symmetric matrix with as many rows as X. Its diagonal has zeros up to sw_muon_stride. */
struct square {
    sw_bf16 *at;
    float *diagonal;
};

/* Squares of a matrix: G and P, and of long rows Q and a product. */
enum { SQUARES = 4, SQUARES_OF_OTHERS = 2 };

static bool is_long(const struct matrix *m) {
    return m->cols >= LONG * m->rows;
}

static const int *runs_of(const struct matrix *m) {
    return is_long(m) ? runs_of_long : runs_of_others;
}

static int squares_of(const struct matrix *m) {
    return is_long(m) ? SQUARES : SQUARES_OF_OTHERS;
}

/* The scratch of a matrix: its update, and later the last X; X and the next X; squares. */
struct areas {
    float *update;
    sw_bf16 *x, *next;
    struct square square[SQUARES];
};

/* Returns the elements of a matrix in scratch. An odd last row has one of zeros behind it. */
static int64_t area_elems(int64_t rows, int64_t cols) {
    return sw_round_up(rows, 2) * sw_muon_stride(cols);
}

static struct areas areas_of(void *scratch, const struct matrix *m) {
    struct areas at = {.update = scratch};
    float *diagonals = at.update + area_elems(m->rows, m->cols);
    at.x = (sw_bf16 *)(diagonals + squares_of(m) * sw_muon_stride(m->rows));
    at.next = at.x + area_elems(m->rows, m->cols);
    for (int i = 0; i < squares_of(m); i++)
        at.square[i] = (struct square){.at = at.next + area_elems(m->rows, m->cols) + i * area_elems(m->rows, m->rows),
                                       .diagonal = diagonals + i * sw_muon_stride(m->rows)};
    return at;
}

static int64_t matrix_scratch_bytes(const struct matrix *m) {
    const int64_t fp32 = (int64_t)sizeof(float), bf16 = (int64_t)sizeof(sw_bf16);
    return (fp32 + 2 * bf16) * area_elems(m->rows, m->cols) +
           squares_of(m) * (bf16 * area_elems(m->rows, m->rows) + fp32 * sw_muon_stride(m->rows));
}

int64_t sw_muon_scratch_bytes(const struct sw_muon_tensor *tensor, int64_t tensors) {
    int64_t most = 0;
    for (int64_t t = 0; t < tensors; t++)
        for (int part = 0; part < tensor[t].parts; part++) {
            const struct matrix m = matrix_of(&tensor[t], part);
            most = sw_max_i64(most, matrix_scratch_bytes(&m));
        }
    return most;
}

/* Returns the operations of iterations between products by X: of X·Xᵀ, of a square for each P, of two for each G and
 * one for each Q but the first, and of Q·X. */
static double run_flops(const struct matrix *m, int iterations) {
    const double rows = (double)m->rows, cols = (double)m->cols;
    const double squares = iterations + 3.0 * (iterations - 1);
    return rows * rows * (cols + squares * rows + 2.0 * cols);
}

double sw_muon_flops(const struct sw_muon_tensor *tensor, int64_t tensors) {
    double flops = 0.0;
    for (int64_t t = 0; t < tensors; t++)
        for (int part = 0; part < tensor[t].parts; part++) {
            const struct matrix m = matrix_of(&tensor[t], part);
            for (const int *run = runs_of(&m); *run > 0; run++)
                flops += run_flops(&m, *run);
        }
    return flops;
}

double sw_muon_gpu_flops(const struct sw_muon_tensor *tensor, int64_t tensors) {
    double flops = 0.0;
    for (int64_t t = 0; t < tensors; t++)
        for (int part = 0; part < tensor[t].parts; part++) {
            const struct matrix m = matrix_of(&tensor[t], part);
            const double rows = (double)m.rows, cols = (double)m.cols;
            flops += SW_MUON_ITERATIONS * 2.0 * rows * rows * (cols + rows + cols);
        }
    return flops;
}

double sw_muon_scale_of(sw_muon_scale scale, int64_t outputs, int64_t inputs) {
    return scale == SW_MUON_JORDAN ? sqrt(fmax(1.0, (double)outputs / (double)inputs))
                                   : 0.2 * sqrt((double)sw_max_i64(outputs, inputs));
}

/* The factors of masters and of the last X. */
struct factors {
    float decay, minus_step;
};

static struct factors factors_of(const struct sw_muon *muon, const struct sw_muon_tensor *tensor,
                                 const struct matrix *m) {
    const double lr = muon->lr * (tensor->lr_scale == 0.0 ? 1.0 : tensor->lr_scale);
    return (struct factors){.decay = tensor->decay ? (float)(1.0 - lr * muon->weight_decay) : 1.0f,
                            .minus_step = (float)(-lr * sw_muon_scale_of(muon->scale, m->outputs, m->inputs))};
}

/* A pass over a matrix, or over the grains of the call. */
struct pass {
    const struct sw_update_muon *op;
    const struct sw_muon_loops *loops;
    const struct sw_muon_tensor *tensor;
    struct areas at;
    struct matrix matrix;
    double *row_sums, inverse; /* row_sums lie where the next X will be */
    struct factors factors;
};

static void add_momentum(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t run = first; run < end; run++)
        p->loops->momentum(p->op, run * RUN_ELEMS, RUN_ELEMS);
}

/* Returns the lines of a matrix, the first of which begins at an element of the unit. */
static struct sw_muon_lines lines_of_matrix(const struct sw_muon_tensor *tensor, const struct matrix *m) {
    assert(!tensor->in_first || m->turn == 0);
    if (tensor->in_first)
        return (struct sw_muon_lines){.count = m->inputs,
                                      .first = tensor->first_elem + m->first_output,
                                      .distance = tensor->outputs,
                                      .elems = m->outputs,
                                      .step = m->output_step,
                                      .are_rows = m->turned};
    return (struct sw_muon_lines){.count = m->outputs,
                                  .first = tensor->first_elem + m->first_output * m->inputs,
                                  .distance = m->output_step * m->inputs,
                                  .elems = m->inputs,
                                  .step = 1,
                                  .turn = m->turn,
                                  .skip = m->skip * m->inputs,
                                  .are_rows = !m->turned};
}

static struct sw_muon_lines lines_of(const struct pass *p) {
    struct sw_muon_lines lines = lines_of_matrix(p->tensor, &p->matrix);
    lines.first -= p->op->first_elem;
    return lines;
}

/* Returns the first element of a line in the call. */
static int64_t line_at(const struct sw_muon_lines *lines, int64_t line) {
    return lines->first + line * lines->distance + (lines->turn > 0 ? line / lines->turn * lines->skip : 0);
}

/* Copies a block of X, which lies by lines, to or from where it lies by rows. */
static void copy_block(const struct pass *p, const struct sw_muon_lines *lines, int64_t line, int64_t count,
                       int64_t elem, int64_t elems, bool to_x, float (*block)[BLOCK_ELEMS]) {
    const int64_t stride = sw_muon_stride(p->matrix.cols);
    for (int64_t i = 0; i < count && lines->are_rows; i++) {
        float *x = p->at.update + (line + i) * stride + elem;
        memcpy(to_x ? x : block[i], to_x ? block[i] : x, (size_t)elems * sizeof *x);
    }
    for (int64_t j = 0; j < elems && !lines->are_rows; j++) {
        float *x = p->at.update + (elem + j) * stride + line;
        for (int64_t i = 0; i < count && to_x; i++)
            x[i] = block[i][j];
        for (int64_t i = 0; i < count && !to_x; i++)
            block[i][j] = x[i];
    }
}

/* Passes over the elements of a matrix in groups of lines: takes their updates, or gives them X. */
static void pass_groups(const struct pass *p, int64_t first, int64_t end, bool take) {
    const struct sw_muon_lines lines = lines_of(p);
    float block[BLOCK_LINES][BLOCK_ELEMS];
    for (int64_t line = first * BLOCK_LINES; line < sw_min_i64(end * BLOCK_LINES, lines.count); line += BLOCK_LINES)
        for (int64_t elem = 0; elem < lines.elems; elem += BLOCK_ELEMS) {
            const int64_t count = sw_min_i64(BLOCK_LINES, lines.count - line);
            const int64_t elems = sw_min_i64(BLOCK_ELEMS, lines.elems - elem);
            const int64_t run = lines.step == 1 ? elems : 1; /* neighbours in memory */
            if (!take)
                copy_block(p, &lines, line, count, elem, elems, false, block);
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < elems; j += run) {
                    const int64_t at = line_at(&lines, line + i) + (elem + j) * lines.step;
                    if (take)
                        p->loops->update(p->op, at, run, &block[i][j]);
                    else
                        p->loops->descend(p->op, at, run, &block[i][j], p->factors.decay, p->factors.minus_step);
                }
            if (take)
                copy_block(p, &lines, line, count, elem, elems, true, block);
        }
}

static void take_updates(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    pass_groups(context, first, end, true);
}

static void give_updates(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    pass_groups(context, first, end, false);
}

static void sum_rows(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    const int64_t cols = p->matrix.cols;
    (void)thread;
    for (int64_t row = first; row < end; row++)
        p->row_sums[row] = p->loops->square_sum(cols, p->at.update + row * sw_muon_stride(cols));
}

static void scale_rows(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    const int64_t cols = p->matrix.cols, stride = sw_muon_stride(cols);
    (void)thread;
    for (int64_t row = first; row < end; row++)
        p->loops->scale(cols, p->at.update + row * stride, p->inverse, p->at.x + row * stride);
}

static void swap(struct square *a, struct square *b) {
    const struct square was = *a;
    *a = *b;
    *b = was;
}

/* to = left·right of symmetric matrices that commute. */
static void multiply_squares(struct sw_stream *stream, const struct pass *p, struct square left, struct square right,
                             struct square to) {
    p->loops->product(stream, &(struct sw_muon_product){.rows = p->matrix.rows,
                                                        .cols = p->matrix.rows,
                                                        .terms = p->matrix.rows,
                                                        .left = left.at,
                                                        .left_diagonal = left.diagonal,
                                                        .right = right.at,
                                                        .right_diagonal = right.diagonal,
                                                        .factor = 1.0f,
                                                        .to = to.at,
                                                        .to_diagonal = to.diagonal});
}

/* Returns the product of the polynomials of some iterations that begin with X. */
static struct square polynomials_of(struct sw_stream *stream, struct pass *p, int iterations) {
    const int64_t rows = p->matrix.rows, cols = p->matrix.cols;
    struct square g = p->at.square[0], all = p->at.square[1], one = p->at.square[2], free_one = p->at.square[3];
    p->loops->product(stream, &(struct sw_muon_product){.rows = rows,
                                                        .cols = rows,
                                                        .terms = cols,
                                                        .left = p->at.x,
                                                        .factor = 1.0f,
                                                        .to = g.at,
                                                        .to_diagonal = g.diagonal});
    for (int i = 0; i < iterations; i++) {
        const struct square polynomial = i == 0 ? all : one;
        p->loops->product(stream, &(struct sw_muon_product){.rows = rows,
                                                            .cols = rows,
                                                            .terms = rows,
                                                            .left = g.at,
                                                            .left_diagonal = g.diagonal,
                                                            .right = g.at,
                                                            .right_diagonal = g.diagonal,
                                                            .factor = SW_MUON_QUINTIC,
                                                            .right_factor = SW_MUON_CUBIC,
                                                            .identity = SW_MUON_LINEAR,
                                                            .to = polynomial.at,
                                                            .to_diagonal = polynomial.diagonal});
        if (i + 1 < iterations) {
            multiply_squares(stream, p, polynomial, g, free_one);
            multiply_squares(stream, p, free_one, polynomial, g);
        }
        if (i > 0) {
            multiply_squares(stream, p, one, all, free_one);
            swap(&all, &free_one);
        }
    }
    return all;
}

/* Zeroes the row behind an odd last one. */
static void zero_behind(sw_bf16 *matrix, int64_t rows, int64_t cols) {
    const int64_t stride = sw_muon_stride(cols);
    for (int64_t row = rows; row < sw_round_up(rows, 2); row++)
        memset(matrix + row * stride, 0, (size_t)stride * sizeof *matrix);
}

/* Leaves the last X where the update was. */
static void iterate(struct sw_stream *stream, struct pass *p) {
    const int64_t rows = p->matrix.rows, cols = p->matrix.cols;
    zero_behind(p->at.x, rows, cols);
    zero_behind(p->at.next, rows, cols);
    for (int i = 0; i < squares_of(&p->matrix); i++) {
        zero_behind(p->at.square[i].at, rows, rows);
        memset(p->at.square[i].diagonal + rows, 0, (size_t)(sw_muon_stride(rows) - rows) * sizeof(float));
    }
    for (const int *run = runs_of(&p->matrix); *run > 0; run++) {
        const struct square polynomials = polynomials_of(stream, p, *run);
        p->loops->product(stream, &(struct sw_muon_product){.rows = rows,
                                                            .cols = cols,
                                                            .terms = rows,
                                                            .left = polynomials.at,
                                                            .left_diagonal = polynomials.diagonal,
                                                            .right = p->at.x,
                                                            .factor = 1.0f,
                                                            .to = run[1] > 0 ? p->at.next : NULL,
                                                            .to_fp32 = p->at.update});
        sw_bf16 *next = p->at.next;
        p->at.next = p->at.x;
        p->at.x = next;
    }
}

static void update_matrix(struct sw_stream *stream, struct pass *p, int part) {
    const struct sw_muon_loops *loops = p->loops;
    double total = 0.0;
    const struct matrix m = p->matrix = matrix_of(p->tensor, part);
    const int64_t elems = m.rows * m.cols, groups = sw_div_up(lines_of(p).count, BLOCK_LINES);
    p->at = areas_of(p->op->scratch, &m);
    p->row_sums = (double *)(void *)p->at.next;
    p->factors = factors_of(p->op->muon, p->tensor, &m);
    loops->share(stream, elems, groups, take_updates, p);
    loops->share(stream, elems, m.rows, sum_rows, p);
    for (int64_t row = 0; row < m.rows; row++)
        total += p->row_sums[row];
    p->inverse = 1.0 / fmax(sqrt(total), SW_MUON_LEAST_NORM);
    loops->share(stream, elems, m.rows, scale_rows, p);
    iterate(stream, p);
    loops->share(stream, elems, groups, give_updates, p);
}

static void round_weights(const void *context, int64_t first, int64_t end, int thread) {
    const struct pass *p = context;
    (void)thread;
    for (int64_t run = first; run < end; run++)
        p->loops->weights(p->op, run * RUN_ELEMS, RUN_ELEMS);
}

void sw_muon_update(struct sw_stream *stream, const struct sw_muon_loops *loops, const struct sw_update_muon *op) {
    struct pass p = {.op = op, .loops = loops};
    const int64_t elems = op->grains * SW_GRAIN_ELEMS, runs = elems / RUN_ELEMS;
    if (!op->muon->skip)
        loops->share(stream, elems, runs, add_momentum, &p);
    for (int64_t t = 0; t < op->tensors && !op->muon->skip; t++) {
        p.tensor = &op->tensor[t];
        for (int part = 0; part < p.tensor->parts; part++)
            update_matrix(stream, &p, part);
    }
    if (op->weights != NULL)
        loops->share(stream, elems, runs, round_weights, &p);
}

/* Returns the next place of an area of so many bytes in the scratch of a GPU. */
static int64_t place(int64_t *end, int64_t bytes) {
    const int64_t at = *end;
    *end += sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
    return at;
}

struct sw_muon_matrix sw_muon_matrix_of(const struct sw_muon *muon, const struct sw_muon_tensor *tensor, int part) {
    const struct matrix m = matrix_of(tensor, part);
    const struct factors factors = factors_of(muon, tensor, &m);
    const int64_t rows = sw_round_up(m.rows, SW_MUON_GPU_SIDE), cols = sw_round_up(m.cols, SW_MUON_GPU_SIDE);
    const struct sw_gemm square = {.m = rows, .n = rows, .transpose_b = true, .in = SW_BF16, .out = SW_F32};
    struct sw_muon_matrix made = {.rows = m.rows,
                                  .cols = m.cols,
                                  .wide_rows = rows,
                                  .wide_cols = cols,
                                  .lines = lines_of_matrix(tensor, &m),
                                  .decay = factors.decay,
                                  .minus_step = factors.minus_step,
                                  .square = square,
                                  .fourth = square,
                                  .step = {.m = rows, .n = cols, .k = rows, .in = SW_BF16, .out = SW_F32}};
    made.square.k = cols;
    made.fourth.k = rows;
    int64_t end = 0;
    made.sums_at = place(&end, rows * cols * (int64_t)sizeof(float));
    made.x_at = place(&end, rows * cols * (int64_t)sizeof(sw_bf16));
    made.square_at = place(&end, rows * rows * (int64_t)sizeof(sw_bf16));
    made.norms_at = place(&end, (1 + rows) * (int64_t)sizeof(double));
    made.product_at = end;
    return made;
}

sw_status sw_update_muon(struct sw_stream *stream, const struct sw_update_muon *op) {
    assert(op->muon != NULL && op->records != NULL && op->first_elem % SW_GRAIN_ELEMS == 0 && op->grains >= 0);
    assert(sw_optimizer_has_muon(op->format));
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
