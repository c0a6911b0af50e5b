/* Matrix products on the CPU: chooses between oneDNN, blocks (block_product.c) and single rows (row_product.c), and
 * runs oneDNN in pieces.
 *
 * oneDNN divides a product evenly among threads, so a thread whose core another program uses delays all. More pieces
 * than threads, each multiplied by one thread and taken in order, cost a little packing and avoid that. The sum over k
 * is never cut, so the bits do not depend on the threads.
 *
 * oneDNN reads a matrix at a fraction of memory speed when there is one row, so single rows, which is all that
 * generation does, have code of their own. */
#include "core/size.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/share.h"
#include "kernels/device.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct product;

/* The operands of a whole call. */
struct operands {
    const void *a, *b, *bias; /* bias: NULL if the shape has none */
    void *c;
};

/* oneDNN splits a product evenly, so the slowest thread decides, and a thread is slow if another program has part of
 * its core. A product is therefore cut into more pieces than threads, each multiplied by one thread. The sum over k is
 * never cut. Each piece packs its operands again, which costs little from LEAST_SIDE rows and columns on. */
enum { PIECES_OF_THREAD = 4, LEAST_PIECES_OF_THREAD = 2, LEAST_SIDE = 384 };
/* From this many rows on, threads first pack B once for all pieces (pack.h). The pieces are then rows of C: oneDNN
 * multiplies a packed B fast only if rows of A and C have no gaps. */
enum { LEAST_PACKED_ROWS = 1024, LEAST_PIECE_ROWS = 64, MOST_PACKED_BYTES = 32 << 20 };
/* Sides of pieces are multiples of these, which oneDNN's kernels divide. */
enum { ROWS_MULTIPLE = 32, COLS_MULTIPLE = 64 };
/* The last row and the last column of pieces may be smaller, which makes four kinds. */
enum { LAST_ROW = 1, LAST_COL = 2, KINDS = 4 };
enum { A, B, BIAS, C, SCRATCHPAD, OPERANDS };

/* A grid of pieces. 1 x 1: the product is whole, and oneDNN splits it. */
struct grid {
    int64_t rows, cols;             /* pieces */
    int64_t piece_rows, piece_cols; /* elements of C in a piece that is not the last */
};

/* A thread's memory objects for one kind of piece. They get their addresses at each call. NULL: the product has no
 * bias. */
struct bound {
    dnnl_memory_t memory[OPERANDS];
};

struct product {
    struct sw_gemm shape;
    struct grid grid;
    int64_t packed_bytes; /* size of the packed B at the beginning of the scratch; 0: B is not packed */
    int threads;
    int teams;                         /* threads that multiply pieces; 1: the product is whole */
    dnnl_primitive_t primitive[KINDS]; /* NULL: no piece is of this kind */
    struct bound *bound;               /* KINDS per team */
    dnnl_stream_t *stream;             /* one per team */
    int64_t scratchpad_bytes;          /* per team */
};

/* Returns SW_OK, or an error that says what oneDNN could not do. */
static sw_status cpu_check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success)
        return SW_OK;
    if (status == dnnl_out_of_memory)
        return sw_fail(SW_ERR_NOMEM, "no memory for oneDNN to %s", what);
    return sw_fail(SW_ERR_INTERNAL, "oneDNN could not %s (its status %d)", what, (int)status);
}

/* oneDNN reads the number of threads when a primitive is made and when it runs. Both must see the same number and get
 * that many: with fewer, parts of the result stay unwritten. So the OpenMP runtime must not choose. */
static int set_threads(int threads) {
    const int before = omp_get_max_threads();
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    return before;
}

static struct grid whole(const struct sw_gemm *shape) {
    return (struct grid){.rows = 1, .cols = 1, .piece_rows = shape->m, .piece_cols = shape->n};
}

/* Halves the longer side until there are enough pieces, or they would become too small. */
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

/* A transposed A would have to be packed too, which takes as long as it saves. The head's table is too large. */
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

/* Describes a [rows, cols] part of a row-major matrix with rows `stride` apart, or of its transposed view. */
static sw_status describe(sw_onednn_layout *out, int64_t rows, int64_t cols, int64_t stride, bool transposed,
                          sw_dtype type) {
    const dnnl_data_type_t data_type = type == SW_F32 ? dnnl_f32 : dnnl_bf16;
    return cpu_check(
        sw_onednn_layout_by_strides(rows, cols, data_type, transposed ? 1 : stride, transposed ? stride : 1, out),
        "describe a matrix");
}

/* Describes the operands of a piece of these rows and columns. */
static sw_status describe_piece(const struct sw_gemm *shape, bool packed, int64_t rows, int64_t cols,
                                sw_onednn_layout *layout) {
    const int64_t b_stride = shape->transpose_b ? shape->k : shape->n;
    SW_TRY(describe(&layout[A], rows, shape->k, sw_gemm_a_stride(shape), shape->transpose_a, shape->in));
    if (packed)
        SW_TRY(cpu_check(sw_onednn_layout_by_tag(shape->k, cols, dnnl_bf16, dnnl_BA16a64b2a, &layout[B]),
                         "describe a packed matrix"));
    else
        SW_TRY(describe(&layout[B], shape->k, cols, b_stride, shape->transpose_b, shape->in));
    if (shape->bias)
        SW_TRY(describe(&layout[BIAS], 1, cols, shape->n, false, shape->in));
    return describe(&layout[C], rows, cols, sw_gemm_c_stride(shape), false, shape->out);
}

/* Refuses to multiply a packed matrix by oneDNN's slow reference. oneDNN 2 names its fast implementations "brg:...",
 * oneDNN 3 "brg_matmul:...". */
static sw_status check_packed(const_dnnl_primitive_desc_t primitive_desc) {
    const char *implementation = "";
    SW_TRY(cpu_check(dnnl_primitive_desc_query(primitive_desc, dnnl_query_impl_info_str, 0, &implementation),
                     "name its implementation"));
    return strncmp(implementation, "brg", strlen("brg")) == 0
               ? SW_OK
               : sw_fail(SW_ERR_INTERNAL, "oneDNN multiplies a packed matrix by '%s'", implementation);
}

/* Makes the memory objects of one kind of piece for every team. */
static sw_status bind(dnnl_engine_t engine, struct product *p, int kind, const sw_onednn_const_layout *layout) {
    for (int team = 0; team < p->teams; team++)
        for (int i = 0; i < OPERANDS; i++)
            if (layout[i] != NULL)
                SW_TRY(cpu_check(
                    dnnl_memory_create(&p->bound[team * KINDS + kind].memory[i], layout[i], engine, DNNL_MEMORY_NONE),
                    "make a memory object"));
    return SW_OK;
}

/* Makes the primitive of one kind of piece, and what its calls need. */
static sw_status make_piece(dnnl_engine_t engine, struct product *p, int kind, const sw_onednn_layout *layout) {
    dnnl_primitive_desc_t desc = NULL;
    sw_status status = SW_OK;
    SW_TRY(
        cpu_check(sw_onednn_product(engine, layout[A], layout[B], layout[BIAS], layout[C], p->shape.accumulate, &desc),
                  "find a way to multiply matrices of this shape"));
    const sw_onednn_const_layout all[OPERANDS] = {
        layout[A], layout[B], layout[BIAS],
        layout[C], [SCRATCHPAD] = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)};
    if (p->packed_bytes > 0)
        SW_TRY_GOTO(check_packed(desc), out);
    SW_TRY_GOTO(cpu_check(dnnl_primitive_create(&p->primitive[kind], desc), "prepare a matrix product"), out);
    const int64_t scratchpad_bytes = (int64_t)dnnl_memory_desc_get_size(all[SCRATCHPAD]);
    p->scratchpad_bytes = sw_max_i64(p->scratchpad_bytes, sw_round_up(scratchpad_bytes, SW_BUFFER_ALIGN_BYTES));
    status = bind(engine, p, kind, all);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static sw_status make_kind(dnnl_engine_t engine, struct product *p, int kind) {
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

static sw_status make(dnnl_engine_t engine, struct product *p) {
    sw_status status = SW_OK;
    const int threads_before = set_threads(p->teams > 1 ? 1 : p->threads);
    for (int kind = 0; status == SW_OK && kind < KINDS; kind++)
        status = make_kind(engine, p, kind);
    for (int team = 0; status == SW_OK && team < p->teams; team++)
        status = cpu_check(dnnl_stream_create(&p->stream[team], engine, dnnl_stream_default_flags), "make a stream");
    omp_set_num_threads(threads_before);
    return status;
}

/* NULL is allowed. */
static void product_close(struct product *product) {
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

static sw_status open_cut(dnnl_engine_t engine, const struct sw_gemm *shape, int threads, struct grid grid,
                          int64_t packed, struct product **out) {
    const int teams = grid.rows * grid.cols > 1 ? threads : 1;
    struct product *p = calloc(1, sizeof *p);
    struct bound *bound = calloc((size_t)teams * KINDS, sizeof *bound);
    dnnl_stream_t *stream = calloc((size_t)teams, sizeof *stream);
    if (p == NULL || bound == NULL || stream == NULL) {
        free(p);
        free(bound);
        free(stream);
        return sw_fail(SW_ERR_NOMEM, "no memory to prepare a matrix product");
    }
    *p = (struct product){.shape = *shape,
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
        product_close(p);
    return status;
}

/* Returns where oneDNN's part of the scratch begins. */
static int64_t pad_at(const struct product *p) {
    return sw_round_up(p->packed_bytes, SW_BUFFER_ALIGN_BYTES);
}

/* Tries the fastest way first: oneDNN refuses packed operands and pieces of some matrices that it can multiply whole.
 */
/* Prepares a product of this shape, in fp32 or bf16, for `threads` threads. *out_scratch_bytes: the memory that a call
 * needs. may_pack: the device can pack B (pack.h). */
static sw_status product_open(dnnl_engine_t engine, const struct sw_gemm *shape, int threads, bool may_pack,
                              struct product **out, int64_t *out_scratch_bytes) {
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

/* oneDNN's handles are not const, although it only reads the inputs. */
static void *at_element(const void *matrix, int64_t element, sw_dtype type) {
    return (char *)(uintptr_t)matrix + element * sw_dtype_bytes(type);
}

/* Multiplies one piece, as one of the teams. */
static dnnl_status_t run_piece(const struct product *p, const struct operands *at, void *scratch, int64_t piece,
                               int team) {
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
    const struct product *product;
    const struct operands *at;
    void *scratch;
    _Atomic int status; /* oneDNN's status of any piece that failed */
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

static dnnl_status_t run_whole(const struct product *p, const struct operands *at, void *scratch) {
    const int threads_before = set_threads(p->threads);
    const dnnl_status_t status = run_piece(p, at, scratch, 0, 0);
    omp_set_num_threads(threads_before);
    return status;
}

/* The arguments for packing: the device's function and its struct. */
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

static sw_status product_run(struct product *product, struct sw_stream *stream, const struct operands *at,
                             void *scratch) {
    struct operands operands = *at;
    if (product->packed_bytes > 0)
        operands.b = pack(&product->shape, stream, at->b, scratch);
    void *pad = (char *)scratch + pad_at(product);
    if (product->teams == 1)
        return cpu_check(run_whole(product, &operands, pad), "multiply matrices");
    struct call call = {.product = product, .at = &operands, .scratch = pad};
    sw_cpu_share_long(stream, product->grid.rows * product->grid.cols, run_pieces, &call);
    return cpu_check((dnnl_status_t)call.status, "multiply matrices");
}

/* A product by oneDNN, which runs one call at a time. */
struct cpu_gemm {
    struct product *product;
    pthread_mutex_t lock;
};

sw_status sw_cpu_gemm_hold(sw_isa isa) {
    static const dnnl_cpu_isa_t names[SW_ISA_COUNT] = {[SW_ISA_BASELINE] = dnnl_cpu_isa_sse41,
                                                       [SW_ISA_AVX2] = dnnl_cpu_isa_avx2,
                                                       [SW_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
                                                       [SW_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16};
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool asked;
    static dnnl_status_t status;
    pthread_mutex_lock(&lock);
    if (!asked)
        status = dnnl_set_max_cpu_isa(names[isa]);
    asked = true;
    pthread_mutex_unlock(&lock);
    return cpu_check(status, "hold itself to the instruction set of " SW_ISA_VARIABLE);
}

sw_status sw_cpu_gemm_open(struct sw_cpu *cpu) {
    return cpu_check(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0), "open the CPU");
}

void sw_cpu_gemm_close(struct sw_cpu *cpu) {
    dnnl_engine_destroy(cpu->engine);
}

bool sw_cpu_has_bf16_products(void) {
    const int need = (int)dnnl_cpu_isa_avx512_core_bf16;
    return ((int)dnnl_get_effective_cpu_isa() & need) == need;
}

static void destroy(struct cpu_gemm *gemm) {
    product_close(gemm->product);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

/* oneDNN reads the matrix of such a product at a fraction of the memory's rate. */
static bool is_row_product(const struct sw_gemm *shape) {
    return shape->m == 1 && !shape->accumulate;
}

/* Without instructions for a type oneDNN cannot multiply it (fp16: never), and without AVX-512 it divides sums of fp32
 * by the number of threads. */
bool sw_cpu_multiplies_blocks(const struct sw_device *device, sw_dtype type) {
    switch (type) {
    case SW_F32: return device->info.fp32_in_blocks;
    case SW_BF16: return !device->info.bf16_fast;
    default: return true;
    }
}

static sw_status prepare_onednn(struct sw_device *device, struct sw_gemm_entry *entry) {
    struct sw_cpu *cpu = device->backend;
    struct cpu_gemm *gemm = calloc(1, sizeof *gemm);
    if (gemm == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to prepare a matrix product");
    pthread_mutex_init(&gemm->lock, NULL);
    const sw_status status = product_open(cpu->engine, &entry->shape, device->info.threads,
                                          device->ops.pack_panel != NULL, &gemm->product, &entry->scratch_bytes);
    if (status == SW_OK)
        entry->prepared = gemm;
    else
        destroy(gemm);
    return status == SW_OK
               ? SW_OK
               : sw_fail_while(status, "preparing a matrix product of %lld x %lld x %lld", (long long)entry->shape.m,
                               (long long)entry->shape.n, (long long)entry->shape.k);
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    const struct sw_gemm *shape = &entry->shape;
    if (is_row_product(shape))
        entry->scratch_bytes = device->ops.row_product_scratch_bytes(shape);
    else if (sw_cpu_multiplies_blocks(device, shape->in))
        entry->scratch_bytes = device->ops.block_product_scratch_bytes(shape, device->info.threads);
    else
        return prepare_onednn(device, entry);
    return SW_OK;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    if (entry->prepared != NULL)
        destroy(entry->prepared);
}

static sw_status product(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                         const void *bias, void *c, void *scratch) {
    const struct sw_device_ops *ops = &stream->device->ops;
    struct cpu_gemm *gemm = entry->prepared;
    if (is_row_product(&entry->shape))
        return ops->row_product(stream, &entry->shape, a, b, bias, c, scratch);
    if (gemm == NULL) {
        ops->block_product(stream, &entry->shape, a, b, bias, c, scratch);
        return SW_OK;
    }
    const struct operands at = {.a = a, .b = b, .bias = bias, .c = c};
    pthread_mutex_lock(&gemm->lock);
    const sw_status status = product_run(gemm->product, stream, &at, scratch);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

/* Adds the addend to the rounded product, which gives the bits of the two ops in turn. */
static sw_status gemm_call(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                           const void *bias, const void *addend, void *c, void *scratch) {
    const struct sw_gemm *shape = &entry->shape;
    SW_TRY(product(stream, entry, a, b, bias, c, scratch));
    return addend == NULL ? SW_OK : sw_add(stream, shape->out, shape->m * shape->n, addend, c, c);
}

void sw_cpu_add_gemm(struct sw_device_ops *ops) {
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm_call;
}
