#include "kernels/cpu/product.h"

#include "core/size.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/share.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN splits a product evenly, so the slowest thread decides, and a thread is slow where another program has part of
 * its core. A product is therefore cut into more pieces than there are threads, each multiplied by one thread. The sum
 * over k is never cut. A piece packs its operands anew, which costs little from LEAST_SIDE rows and columns on. */
enum { PIECES_OF_THREAD = 4, LEAST_PIECES_OF_THREAD = 2, LEAST_SIDE = 384 };
/* From so many rows on, threads first pack B once for all pieces (pack.h). The pieces are then rows of C:
 * oneDNN multiplies a packed B fast only where rows of A and C follow each other without gaps. */
enum { LEAST_PACKED_ROWS = 1024, LEAST_PIECE_ROWS = 64, MOST_PACKED_BYTES = 32 << 20 };
/* Sides of pieces are multiples of these, which oneDNN's kernels divide. */
enum { ROWS_MULTIPLE = 32, COLS_MULTIPLE = 64 };
/* The last row and the last column of pieces may be smaller, which makes four kinds. */
enum { LAST_ROW = 1, LAST_COL = 2, KINDS = 4 };
enum { A, B, BIAS, C, SCRATCHPAD, OPERANDS };

/* A grid of pieces; 1 x 1: the product is whole, and oneDNN splits it. */
struct grid {
    int64_t rows, cols;             /* pieces */
    int64_t piece_rows, piece_cols; /* elements of C in a piece that is not the last */
};

/* A thread's memory objects for one kind of piece; NULL: the product has no bias. They get their addresses at each
 * call.
 */
struct bound {
    dnnl_memory_t memory[OPERANDS];
};

struct sw_cpu_product {
    struct sw_gemm shape;
    struct grid grid;
    int64_t packed_bytes; /* size of the packed B, which begins the scratch; 0: B is multiplied as it is stored */
    int threads;
    int teams;                         /* threads that multiply pieces; 1: the product is whole */
    dnnl_primitive_t primitive[KINDS]; /* NULL: no piece is of this kind */
    struct bound *bound;               /* KINDS for each of the teams */
    dnnl_stream_t *stream;             /* one for each of the teams */
    int64_t scratchpad_bytes;          /* for each of the teams */
};

sw_status sw_cpu_check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success)
        return SW_OK;
    const sw_status code = status == dnnl_out_of_memory ? SW_ERR_NOMEM : SW_ERR_INTERNAL;
    return sw_fail(code, "oneDNN could not %s (its status %d)", what, (int)status);
}

/* oneDNN reads the number of threads where a primitive is made and where it runs; both must see the same, and get it:
 * with fewer, parts of the result stay unwritten. So the OpenMP runtime may not choose by itself. */
static int set_threads(int threads) {
    const int before = omp_get_max_threads();
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    return before;
}

static struct grid whole(const struct sw_gemm *shape) {
    return (struct grid){.rows = 1, .cols = 1, .piece_rows = shape->m, .piece_cols = shape->n};
}

/* Halves the longer side until there are pieces enough, or they would get too small. */
static struct grid cut(const struct sw_gemm *shape, int threads) {
    struct grid grid = whole(shape);
    while (threads > 1 && grid.rows * grid.cols < (int64_t)PIECES_OF_THREAD * threads &&
           sw_max_i64(grid.piece_rows, grid.piece_cols) >= 2 * LEAST_SIDE) {
        if (grid.piece_rows >= grid.piece_cols)
            grid.piece_rows = sw_round_up(sw_div_up(grid.piece_rows, 2), ROWS_MULTIPLE);
        else
            grid.piece_cols = sw_round_up(sw_div_up(grid.piece_cols, 2), COLS_MULTIPLE);
        grid.rows = sw_div_up(shape->m, grid.piece_rows);
        grid.cols = sw_div_up(shape->n, grid.piece_cols);
    }
    return grid.rows * grid.cols < (int64_t)LEAST_PIECES_OF_THREAD * threads ? whole(shape) : grid;
}

static int64_t packed_bytes(const struct sw_gemm *shape) {
    return shape->n * shape->k * sw_dtype_bytes(shape->in);
}

/* A transposed A would have to be packed as well, which takes as long as it saves. The head's table is too large. */
static bool packs(const struct sw_gemm *shape, int threads) {
    const bool gaps = sw_gemm_a_stride(shape) > sw_gemm_a_cols(shape) || sw_gemm_c_stride(shape) > shape->n;
    return !gaps && shape->in == SW_BF16 && !shape->transpose_a && shape->n % SW_PACK_COLS == 0 &&
           shape->k % SW_PACK_TERMS == 0 && packed_bytes(shape) <= MOST_PACKED_BYTES && shape->m >= LEAST_PACKED_ROWS &&
           shape->m >= (int64_t)LEAST_PIECE_ROWS * LEAST_PIECES_OF_THREAD * threads;
}

static struct grid cut_rows(const struct sw_gemm *shape, int threads) {
    struct grid grid = whole(shape);
    if (threads > 1) {
        const int64_t even = sw_div_up(shape->m, (int64_t)PIECES_OF_THREAD * threads);
        grid.piece_rows = sw_round_up(sw_max_i64(even, LEAST_PIECE_ROWS), ROWS_MULTIPLE);
        grid.rows = sw_div_up(shape->m, grid.piece_rows);
    }
    return grid;
}

/* Describes a [rows, cols] part of a row-major matrix whose rows are `stride` apart, or of the transposed view of one.
 */
static sw_status describe(sw_onednn_layout *out, int64_t rows, int64_t cols, int64_t stride, bool transposed,
                          sw_dtype type) {
    const dnnl_data_type_t data_type = type == SW_F32 ? dnnl_f32 : dnnl_bf16;
    return sw_cpu_check(
        sw_onednn_layout_by_strides(rows, cols, data_type, transposed ? 1 : stride, transposed ? stride : 1, out),
        "describe a matrix");
}

/* Describes the operands of a piece of these rows and columns. */
static sw_status describe_piece(const struct sw_gemm *shape, bool packed, int64_t rows, int64_t cols,
                                sw_onednn_layout *layout) {
    const int64_t b_stride = shape->transpose_b ? shape->k : shape->n;
    SW_TRY(describe(&layout[A], rows, shape->k, sw_gemm_a_stride(shape), shape->transpose_a, shape->in));
    if (packed)
        SW_TRY(sw_cpu_check(sw_onednn_layout_by_tag(shape->k, cols, dnnl_bf16, dnnl_BA16a64b2a, &layout[B]),
                            "describe a packed matrix"));
    else
        SW_TRY(describe(&layout[B], shape->k, cols, b_stride, shape->transpose_b, shape->in));
    if (shape->bias)
        SW_TRY(describe(&layout[BIAS], 1, cols, shape->n, false, shape->in));
    return describe(&layout[C], rows, cols, sw_gemm_c_stride(shape), false, shape->out);
}

/* Refuses to multiply a packed matrix by oneDNN's reference, which is slow. oneDNN 2 names its fast implementations
 * "brg:...", oneDNN 3 "brg_matmul:...". */
static sw_status check_packed(const_dnnl_primitive_desc_t primitive_desc) {
    const char *implementation = "";
    SW_TRY(sw_cpu_check(dnnl_primitive_desc_query(primitive_desc, dnnl_query_impl_info_str, 0, &implementation),
                        "name its implementation"));
    return strncmp(implementation, "brg", strlen("brg")) == 0
               ? SW_OK
               : sw_fail(SW_ERR_INTERNAL, "oneDNN multiplies a packed matrix by '%s'", implementation);
}

/* Makes the memory objects of one kind of piece for every team. */
static sw_status bind(dnnl_engine_t engine, struct sw_cpu_product *p, int kind, const sw_onednn_const_layout *layout) {
    for (int team = 0; team < p->teams; team++)
        for (int i = 0; i < OPERANDS; i++)
            if (layout[i] != NULL)
                SW_TRY(sw_cpu_check(
                    dnnl_memory_create(&p->bound[team * KINDS + kind].memory[i], layout[i], engine, DNNL_MEMORY_NONE),
                    "make a memory object"));
    return SW_OK;
}

/* Makes the primitive of one kind of piece, and what its calls need. */
static sw_status make_piece(dnnl_engine_t engine, struct sw_cpu_product *p, int kind, const sw_onednn_layout *layout) {
    dnnl_primitive_desc_t desc = NULL;
    sw_status status = SW_OK;
    SW_TRY(sw_cpu_check(
        sw_onednn_product(engine, layout[A], layout[B], layout[BIAS], layout[C], p->shape.accumulate, &desc),
        "find a way to multiply matrices of this shape"));
    const sw_onednn_const_layout all[OPERANDS] = {
        layout[A], layout[B], layout[BIAS],
        layout[C], [SCRATCHPAD] = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)};
    if (p->packed_bytes > 0)
        SW_TRY_GOTO(check_packed(desc), out);
    SW_TRY_GOTO(sw_cpu_check(dnnl_primitive_create(&p->primitive[kind], desc), "prepare a matrix product"), out);
    const int64_t scratchpad_bytes = (int64_t)dnnl_memory_desc_get_size(all[SCRATCHPAD]);
    p->scratchpad_bytes = sw_max_i64(p->scratchpad_bytes, sw_round_up(scratchpad_bytes, SW_BUFFER_ALIGN_BYTES));
    status = bind(engine, p, kind, all);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static sw_status make_kind(dnnl_engine_t engine, struct sw_cpu_product *p, int kind) {
    const struct grid *grid = &p->grid;
    const bool last_row = (kind & LAST_ROW) != 0, last_col = (kind & LAST_COL) != 0;
    if ((!last_row && grid->rows == 1) || (!last_col && grid->cols == 1))
        return SW_OK;
    const int64_t rows = last_row ? p->shape.m - (grid->rows - 1) * grid->piece_rows : grid->piece_rows;
    const int64_t cols = last_col ? p->shape.n - (grid->cols - 1) * grid->piece_cols : grid->piece_cols;
    sw_onednn_layout layout[SCRATCHPAD] = {NULL};
    sw_status status = describe_piece(&p->shape, p->packed_bytes > 0, rows, cols, layout);
    if (status == SW_OK)
        status = make_piece(engine, p, kind, layout);
    for (int i = 0; i < SCRATCHPAD; i++)
        sw_onednn_layout_destroy(layout[i]);
    return status;
}

static sw_status make(dnnl_engine_t engine, struct sw_cpu_product *p) {
    sw_status status = SW_OK;
    const int threads_before = set_threads(p->teams > 1 ? 1 : p->threads);
    for (int kind = 0; status == SW_OK && kind < KINDS; kind++)
        status = make_kind(engine, p, kind);
    for (int team = 0; status == SW_OK && team < p->teams; team++)
        status = sw_cpu_check(dnnl_stream_create(&p->stream[team], engine, dnnl_stream_default_flags), "make a stream");
    omp_set_num_threads(threads_before);
    return status;
}

static sw_status open_cut(dnnl_engine_t engine, const struct sw_gemm *shape, int threads, struct grid grid,
                          int64_t packed, struct sw_cpu_product **out) {
    const int teams = grid.rows * grid.cols > 1 ? threads : 1;
    struct sw_cpu_product *p = calloc(1, sizeof *p);
    struct bound *bound = calloc((size_t)teams * KINDS, sizeof *bound);
    dnnl_stream_t *stream = calloc((size_t)teams, sizeof *stream);
    if (p == NULL || bound == NULL || stream == NULL) {
        free(p);
        free(bound);
        free(stream);
        return sw_fail(SW_ERR_NOMEM, "no memory to prepare a matrix product");
    }
    *p = (struct sw_cpu_product){.shape = *shape,
                                 .grid = grid,
                                 .packed_bytes = packed,
                                 .threads = threads,
                                 .teams = teams,
                                 .bound = bound,
                                 .stream = stream};
    const sw_status status = make(engine, p);
    if (status == SW_OK)
        *out = p;
    else
        sw_cpu_product_close(p);
    return status;
}

/* Returns where in the scratch oneDNN's own begins. */
static int64_t pad_at(const struct sw_cpu_product *p) {
    return sw_round_up(p->packed_bytes, SW_BUFFER_ALIGN_BYTES);
}

/* Tries the fastest way first: oneDNN refuses packed operands and pieces of some matrices that it multiplies whole. */
sw_status sw_cpu_product_open(dnnl_engine_t engine, const struct sw_gemm *shape, int threads, bool may_pack,
                              struct sw_cpu_product **out, int64_t *out_scratch_bytes) {
    sw_status status = SW_ERR_INTERNAL;
    if (may_pack && packs(shape, threads))
        status = open_cut(engine, shape, threads, cut_rows(shape, threads), packed_bytes(shape), out);
    const struct grid unpacked[] = {cut(shape, threads), whole(shape)};
    for (size_t i = 0; status == SW_ERR_INTERNAL && i < sizeof unpacked / sizeof unpacked[0]; i++) {
        sw_error_clear();
        status = open_cut(engine, shape, threads, unpacked[i], 0, out);
    }
    if (status == SW_OK)
        *out_scratch_bytes = pad_at(*out) + (*out)->scratchpad_bytes * (*out)->teams;
    return status;
}

void sw_cpu_product_close(struct sw_cpu_product *product) {
    if (product == NULL)
        return;
    for (int i = 0; i < product->teams * KINDS; i++)
        for (int operand = 0; operand < OPERANDS; operand++)
            dnnl_memory_destroy(product->bound[i].memory[operand]);
    for (int team = 0; team < product->teams; team++)
        dnnl_stream_destroy(product->stream[team]);
    for (int kind = 0; kind < KINDS; kind++)
        dnnl_primitive_destroy(product->primitive[kind]);
    free(product->bound);
    free(product->stream);
    free(product);
}

/* oneDNN's handles are not const, although it only reads the inputs. */
static void *at_element(const void *matrix, int64_t element, sw_dtype type) {
    return (char *)(uintptr_t)matrix + element * sw_dtype_bytes(type);
}

/* Multiplies one piece, as one of the teams. */
static dnnl_status_t run_piece(const struct sw_cpu_product *p, const struct sw_cpu_operands *at, void *scratch,
                               int64_t piece, int team) {
    const struct sw_gemm *shape = &p->shape;
    const int64_t row = piece / p->grid.cols, col = piece % p->grid.cols;
    const int64_t first_row = row * p->grid.piece_rows, first_col = col * p->grid.piece_cols;
    const int kind = (row == p->grid.rows - 1 ? LAST_ROW : 0) | (col == p->grid.cols - 1 ? LAST_COL : 0);
    const dnnl_memory_t *memory = p->bound[team * KINDS + kind].memory;
    void *const address[OPERANDS] = {
        [A] = at_element(at->a, first_row * (shape->transpose_a ? 1 : sw_gemm_a_stride(shape)), shape->in),
        [B] = at_element(at->b, first_col * (shape->transpose_b ? shape->k : 1), shape->in),
        [BIAS] = shape->bias ? at_element(at->bias, first_col, shape->in) : NULL,
        [C] = at_element(at->c, first_row * sw_gemm_c_stride(shape) + first_col, shape->out),
        [SCRATCHPAD] = (char *)scratch + team * p->scratchpad_bytes};
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, memory[A]},
                                         {DNNL_ARG_WEIGHTS, memory[B]},
                                         {DNNL_ARG_DST, memory[C]},
                                         {DNNL_ARG_SCRATCHPAD, memory[SCRATCHPAD]},
                                         {DNNL_ARG_BIAS, memory[BIAS]}};
    const int count = (int)(sizeof arguments / sizeof arguments[0]) - (shape->bias ? 0 : 1);
    dnnl_status_t status = dnnl_success;
    for (int i = 0; status == dnnl_success && i < OPERANDS; i++)
        if (memory[i] != NULL)
            status = dnnl_memory_set_data_handle(memory[i], address[i]);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive[kind], p->stream[team], count, arguments);
    return status == dnnl_success ? dnnl_stream_wait(p->stream[team]) : status;
}

/* A call in pieces. */
struct call {
    const struct sw_cpu_product *product;
    const struct sw_cpu_operands *at;
    void *scratch;
    _Atomic int status; /* oneDNN's, of any piece that failed */
};

static void run_pieces(const void *context, int64_t first, int64_t end, int thread) {
    struct call *call = (struct call *)(uintptr_t)context;
    const int threads_before = set_threads(1);
    for (int64_t piece = first; piece < end; piece++) {
        const dnnl_status_t status = run_piece(call->product, call->at, call->scratch, piece, thread);
        if (status != dnnl_success)
            call->status = (int)status;
    }
    omp_set_num_threads(threads_before);
}

static dnnl_status_t run_whole(const struct sw_cpu_product *p, const struct sw_cpu_operands *at, void *scratch) {
    const int threads_before = set_threads(p->threads);
    const dnnl_status_t status = run_piece(p, at, scratch, 0, 0);
    omp_set_num_threads(threads_before);
    return status;
}

/* The packing of a call: the device's function and its arguments. */
struct packing {
    void (*pack_panel)(const struct sw_pack *pack, int64_t panel);
    struct sw_pack pack;
};

static void pack_panels(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct packing *packing = context;
    for (int64_t panel = first; panel < end; panel++)
        packing->pack_panel(&packing->pack, panel);
}

/* Returns the packed copy of B in the scratch. */
static const void *pack(const struct sw_gemm *shape, struct sw_stream *stream, const void *b, void *scratch) {
    const struct packing packing = {.pack_panel = stream->device->ops.pack_panel,
                                    .pack = {.transposed = shape->transpose_b,
                                             .k = shape->k,
                                             .from = b,
                                             .from_stride = shape->transpose_b ? shape->k : shape->n,
                                             .to = scratch}};
    sw_cpu_share_long(stream, shape->n / SW_PACK_COLS, pack_panels, &packing);
    return scratch;
}

sw_status sw_cpu_product_run(struct sw_cpu_product *product, struct sw_stream *stream, const struct sw_cpu_operands *at,
                             void *scratch) {
    struct sw_cpu_operands operands = *at;
    if (product->packed_bytes > 0)
        operands.b = pack(&product->shape, stream, at->b, scratch);
    void *pad = (char *)scratch + pad_at(product);
    if (product->teams == 1)
        return sw_cpu_check(run_whole(product, &operands, pad), "multiply matrices");
    struct call call = {.product = product, .at = &operands, .scratch = pad};
    sw_cpu_share_long(stream, product->grid.rows * product->grid.cols, run_pieces, &call);
    return sw_cpu_check((dnnl_status_t)call.status, "multiply matrices");
}
