/* Operations of a whole warp: barriers, exchanges between lanes, and products by fragments and by warpgroups, with the
 * layouts that the PTX ISA gives ("Matrix Fragments for mma.m16n8k16", "Register Fragments for
 * wgmma.mma_async.m64nNk16", "Matrix Descriptor Format"). */
#include "tests/equipment/ptx/machine.h"

#include "core/dtype.h"

#include <math.h>

enum { DEPTH = 16, ROWS = 16, MOST_COLUMNS = 128, CUT_BITS = 24, CUT_DEPTH = 8 };

static bool check_mask(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int32_t place) {
    const uint32_t *mask = sw_ptx_register(warp, place);
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        if (mask[lane] != SW_PTX_ALL_LANES) {
            sw_ptx_fail(warp, op, lane, "an operation of a part of a warp (%#x) is not of the subset", mask[lane]);
            return false;
        }
    }
    return true;
}

void sw_ptx_warp_barrier(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)lanes;
    if (check_mask(warp, op, op->operands[0]))
        warp->epoch++;
}

/* Writes the lane that each lane reads, or -1 where its segment has no such lane. */
SW_WIDE_VECTORS static void find_lanes(int how, const uint32_t *by, const uint32_t *segments, int32_t *from) {
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        const int within = (int)(segments[lane] >> 8 & 31), clamp = (int)(segments[lane] & 31),
                  b = (int)(by[lane] & 31);
        const int least = lane & within, most = least | (clamp & ~within);
        const int asked = how == 'i' ? least | (b & ~within) : how == 'b' ? lane ^ b : how == 'u' ? lane - b : lane + b;
        from[lane] = (how == 'u' ? asked >= most : asked <= most) ? asked : -1;
    }
}

/* Operands: the result, whether the lane asked for is one, the value, the lane, the segment, the mask. */
void sw_ptx_shuffle(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)lanes;
    uint32_t *to = sw_ptx_register(warp, op->operands[0]), *found = sw_ptx_register(warp, op->operands[1]);
    uint32_t values[SW_PTX_LANES];
    int32_t from[SW_PTX_LANES];
    if (!check_mask(warp, op, op->operands[5]))
        return;
    memcpy(values, sw_ptx_register(warp, op->operands[2]), sizeof values);
    find_lanes(op->bytes, sw_ptx_register(warp, op->operands[3]), sw_ptx_register(warp, op->operands[4]), from);
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        to[lane] = values[from[lane] < 0 ? lane : from[lane]];
        found[lane] = from[lane] >= 0;
    }
}

void sw_ptx_ballot(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)lanes;
    uint32_t *to = sw_ptx_register(warp, op->operands[0]), votes = 0;
    const uint32_t *vote = sw_ptx_register(warp, op->operands[1]);
    if (!check_mask(warp, op, op->operands[2]))
        return;
    for (int lane = 0; lane < SW_PTX_LANES; lane++)
        votes |= (vote[lane] & 1u) << lane;
    for (int lane = 0; lane < SW_PTX_LANES; lane++)
        to[lane] = votes;
}

/* Four matrices of 8 rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8. op->bytes: transposed. */
void sw_ptx_load_matrices(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)lanes;
    const uint32_t *addresses = sw_ptx_register(warp, op->operands[4]);
    uint16_t rows[SW_PTX_LANES][8];
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        const void *from = sw_ptx_shared_read(warp, op, lane, addresses[lane], sizeof rows[0]);
        if (from == NULL)
            return;
        memcpy(rows[lane], from, sizeof rows[0]);
    }
    for (int matrix = 0; matrix < 4; matrix++) {
        uint32_t *to = sw_ptx_register(warp, op->operands[matrix]);
        for (int lane = 0; lane < SW_PTX_LANES; lane++) {
            const int g = lane / 4, t = lane % 4 * 2;
            const bool by_columns = op->bytes != 0;
            const uint16_t low = by_columns ? rows[matrix * 8 + t][g] : rows[matrix * 8 + g][t];
            const uint16_t high = by_columns ? rows[matrix * 8 + t + 1][g] : rows[matrix * 8 + g][t + 1];
            to[lane] = low | (uint32_t)high << 16;
        }
    }
}

static float widen(bool bf16, uint32_t bits) {
    return bf16 ? sw_bf16_to_f32((uint16_t)bits) : sw_f16_to_f32((uint16_t)bits);
}

/* Tensor cores bring all products of a step, and the sum so far, to the largest one's exponent, and cut off what is
 * below (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, 2021). */
static float cut_sum(float sum, const float *a, const float *b) {
    double terms[CUT_DEPTH + 1] = {sum}, total = 0.0;
    int largest = -1000;
    for (int k = 0; k < CUT_DEPTH; k++)
        terms[k + 1] = (double)a[k] * b[k];
    for (int k = 0; k <= CUT_DEPTH; k++) {
        int exponent = 0;
        if (!isfinite(terms[k]))
            return sum + (float)(terms[1] + terms[2] + terms[3] + terms[4] + terms[5] + terms[6] + terms[7] + terms[8]);
        frexp(terms[k], &exponent);
        largest = terms[k] != 0.0 && exponent > largest ? exponent : largest;
    }
    for (int k = 0; k <= CUT_DEPTH; k++)
        total += ldexp(trunc(ldexp(terms[k], CUT_BITS - largest)), largest - CUT_BITS);
    const float nearest = (float)total;
    return fabs((double)nearest) > fabs(total) ? nextafterf(nearest, 0.0f) : nearest;
}

/* Adds the products of A's rows and B's columns exactly, to 53 bits. */
SW_WIDE_VECTORS static void add_exactly(float a[ROWS][DEPTH], float b[DEPTH][MOST_COLUMNS], int columns,
                                        double totals[ROWS][MOST_COLUMNS]) {
    for (int row = 0; row < ROWS; row++) {
        for (int k = 0; k < DEPTH; k++) {
            for (int column = 0; column < columns; column++)
                totals[row][column] += (double)a[row][k] * b[k][column];
        }
    }
}

static void add_cut(float a[ROWS][DEPTH], float b[DEPTH][MOST_COLUMNS], int columns,
                    double totals[ROWS][MOST_COLUMNS]) {
    for (int column = 0; column < columns; column++) {
        float by_depth[DEPTH];
        for (int k = 0; k < DEPTH; k++)
            by_depth[k] = b[k][column];
        for (int row = 0; row < ROWS; row++) {
            const float half = cut_sum((float)totals[row][column], a[row], by_depth);
            totals[row][column] = cut_sum(half, a[row] + CUT_DEPTH, by_depth + CUT_DEPTH);
        }
    }
}

/* C += A·B by a warp, whose lanes hold C: sums[4·n + i] is at row lane / 4 + i / 2 · 8, column 8·n + lane % 4 · 2 + i
 * % 2. */
static void multiply(struct sw_ptx_warp *warp, float a[ROWS][DEPTH], float b[DEPTH][MOST_COLUMNS], int columns,
                     const int32_t *from, const int32_t *to) {
    double totals[ROWS][MOST_COLUMNS] = {0};
    for (int i = 0; i < columns / 2; i++) {
        const float *sums = from == NULL ? NULL : sw_ptx_register(warp, from[i]);
        for (int lane = 0; lane < SW_PTX_LANES && sums != NULL; lane++)
            totals[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[lane];
    }
    (warp->machine->launch->cut_sums ? add_cut : add_exactly)(a, b, columns, totals);
    for (int i = 0; i < columns / 2; i++) {
        float *sums = sw_ptx_register(warp, to[i]);
        for (int lane = 0; lane < SW_PTX_LANES; lane++)
            sums[lane] = (float)totals[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
    }
}

/* A's rows from a warp's four registers: row g and g+8, columns 2t, 2t+1 and 2t+8, 2t+9. */
static void read_a(const uint32_t *const words[4], bool bf16, float a[ROWS][DEPTH]) {
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        for (int i = 0; i < 8; i++)
            a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
                widen(bf16, words[i / 2][lane] >> (i % 2 * 16));
    }
}

/* Operands: 4 sums that are written, 4 registers of A, 2 of B, 4 sums that are read. */
void sw_ptx_multiply(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    enum { COLUMNS = 8 };
    (void)lanes;
    float a[ROWS][DEPTH], b[DEPTH][MOST_COLUMNS];
    const uint32_t *words[4];
    for (int i = 0; i < 4; i++)
        words[i] = sw_ptx_register(warp, op->operands[4 + i]);
    read_a(words, op->bf16, a);
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        for (int i = 0; i < 4; i++) {
            const uint32_t *of_b = sw_ptx_register(warp, op->operands[8 + i / 2]);
            b[lane % 4 * 2 + i % 2 + i / 2 * 8][lane / 4] = widen(op->bf16, of_b[lane] >> (i % 2 * 16));
        }
    }
    multiply(warp, a, b, COLUMNS, op->operands + 10, op->operands);
}

/* A descriptor, in bytes. */
struct matrix {
    uint32_t start, leading, stride;
};

static bool decode(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint64_t descriptor, struct matrix *out) {
    enum {
        FIELD = 0x3fff,
        UNIT_BITS = 4,
        LEADING_BIT = 16,
        STRIDE_BIT = 32,
        BASE_BIT = 49,
        SWIZZLE_BIT = 62,
        ROW = 128
    };
    *out = (struct matrix){(uint32_t)(descriptor & FIELD) << UNIT_BITS,
                           (uint32_t)(descriptor >> LEADING_BIT & FIELD) << UNIT_BITS,
                           (uint32_t)(descriptor >> STRIDE_BIT & FIELD) << UNIT_BITS};
    if (descriptor >> SWIZZLE_BIT != 1 || (descriptor >> BASE_BIT & 7) != 0)
        sw_ptx_fail(warp, op, -1,
                    "a descriptor without the 128-byte swizzle, or with a base offset, is not of the subset");
    else if (out->start % (8 * ROW) >= ROW)
        sw_ptx_fail(warp, op, -1, "a descriptor of a matrix that begins within the swizzle's pattern, at %u",
                    out->start);
    return !sw_ptx_failed(warp);
}

/* Eight elements that lie side by side: of row `row`, the elements from 8·piece on. Where B's columns lie side by side,
 * a row is one of its depth, and pieces beyond the pattern's eight lie `leading` further. */
static const uint16_t *elements_at(struct sw_ptx_warp *warp, const struct sw_ptx_product *product,
                                   const struct matrix *m, bool columns, int row, int piece) {
    const uint32_t at = m->start + (uint32_t)(row % 8) * 128 + (uint32_t)(row / 8) * m->stride +
                        (columns ? (uint32_t)(piece / 8) * m->leading : 0) +
                        (uint32_t)(columns ? piece % 8 : piece) * 16;
    return sw_ptx_shared_product(warp, product->op, at ^ (at >> 7 & 7) << 4, product->time);
}

static bool read_b(struct sw_ptx_warp *warp, const struct sw_ptx_product *product, float b[DEPTH][MOST_COLUMNS]) {
    const int columns = product->op->bytes;
    struct matrix m;
    if (!decode(warp, product->op, product->b, &m))
        return false;
    const bool by_columns = product->op->columns_of_b;
    const int rows = by_columns ? DEPTH : columns, pieces = (by_columns ? columns : DEPTH) / 8;
    for (int i = 0; i < rows * pieces; i++) {
        const uint16_t *from = elements_at(warp, product, &m, by_columns, i / pieces, i % pieces);
        for (int k = 0; k < 8 && from != NULL; k++) {
            const int other = i % pieces * 8 + k;
            b[by_columns ? i / pieces : other][by_columns ? other : i / pieces] = widen(product->op->bf16, from[k]);
        }
        if (from == NULL)
            return false;
    }
    return true;
}

static bool read_shared_a(struct sw_ptx_warp *warp, const struct sw_ptx_product *product, float a[ROWS][DEPTH]) {
    struct matrix m;
    if (!decode(warp, product->op, product->a, &m))
        return false;
    for (int i = 0; i < ROWS * 2; i++) {
        const uint16_t *from = elements_at(warp, product, &m, false, warp->number % 4 * ROWS + i / 2, i % 2);
        if (from == NULL)
            return false;
        for (int k = 0; k < 8; k++)
            a[i / 2][i % 2 * 8 + k] = widen(product->op->bf16, from[k]);
    }
    return true;
}

/* Reads all operands, which a product does at any time while it is under way. */
static void perform(struct sw_ptx_warp *warp, const struct sw_ptx_product *product) {
    float a[ROWS][DEPTH], b[DEPTH][MOST_COLUMNS];
    const uint32_t *const words[4] = {product->a_words[0], product->a_words[1], product->a_words[2],
                                      product->a_words[3]};
    if (product->op->vector != 0)
        read_a(words, product->op->bf16, a);
    else if (!read_shared_a(warp, product, a))
        return;
    if (!read_b(warp, product, b))
        return;
    multiply(warp, a, b, product->op->bytes, product->add ? product->op->operands : NULL, product->op->operands);
}

static bool is_uniform(struct sw_ptx_warp *warp, int32_t place, bool wide) {
    const char *value = sw_ptx_register(warp, place);
    const size_t bytes = wide ? 8 : 4;
    for (size_t lane = 1; lane < SW_PTX_LANES; lane++) {
        if (memcmp(value, value + lane * bytes, bytes) != 0)
            return false;
    }
    return true;
}

static void hold(struct sw_ptx_warp *warp, const struct sw_ptx_product *product) {
    const int sums = product->op->bytes / 2;
    for (int i = 0; i < sums + product->op->vector; i++)
        warp->held[product->op->operands[i] / SW_PTX_REGISTER_BYTES] = i < sums ? 2 : 1;
}

/* Operands: the sums, A (four registers or a descriptor), B's descriptor, and whether sums are added to. The
 * first product of several may take place at once, by chance; the others do when they are waited for. */
void sw_ptx_products_start(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)lanes;
    const int sums = op->bytes / 2, of_a = op->vector == 0 ? 1 : 4;
    struct sw_ptx_product *product = &warp->products[warp->product_count];
    const int32_t b_place = op->operands[sums + of_a], add_place = op->operands[sums + of_a + 1];
    if (!warp->registers_shown || warp->product_count == SW_PTX_MOST_PRODUCTS) {
        sw_ptx_fail(warp, op, -1,
                    warp->registers_shown ? "too many products are under way"
                                          : "a product without a fence after the last wait");
        return;
    }
    if (!is_uniform(warp, b_place, true) || !is_uniform(warp, add_place, false) ||
        (of_a == 1 && !is_uniform(warp, op->operands[sums], true))) {
        sw_ptx_fail(warp, op, -1, "the lanes of a warp start different products");
        return;
    }
    *product = (struct sw_ptx_product){.op = op, .group = warp->product_groups, .time = warp->machine->time};
    product->b = *(const uint64_t *)sw_ptx_register(warp, b_place);
    product->add = *(const uint32_t *)sw_ptx_register(warp, add_place) != 0;
    if (of_a == 1)
        product->a = *(const uint64_t *)sw_ptx_register(warp, op->operands[sums]);
    for (int i = 0; of_a == 4 && i < 4; i++)
        memcpy(product->a_words[i], sw_ptx_register(warp, op->operands[sums + i]), sizeof product->a_words[i]);
    product->early = warp->product_count == 0 && sw_ptx_draw(warp->machine) >> 63 != 0;
    const uint64_t digest[] = {product->a, product->b, (uint64_t)op->bytes, (uint64_t)of_a, product->add};
    for (size_t i = 0; i < sizeof digest / sizeof digest[0]; i++)
        warp->started = (warp->started ^ digest[i]) * UINT64_C(0x100000001b3) + 1;
    hold(warp, product);
    warp->product_count++;
    if (product->early)
        perform(warp, product);
}

void sw_ptx_products_fence(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)op;
    (void)lanes;
    warp->registers_shown = true;
}

void sw_ptx_products_commit(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)op;
    (void)lanes;
    warp->product_groups++;
}

void sw_ptx_products_wait(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)lanes;
    int ended = 0;
    while (ended < warp->product_count && warp->products[ended].group + (uint32_t)op->number < warp->product_groups) {
        if (!warp->products[ended].early)
            perform(warp, &warp->products[ended]);
        ended++;
    }
    warp->product_count -= ended;
    memmove(warp->products, warp->products + ended, (size_t)warp->product_count * sizeof warp->products[0]);
    memset(warp->held, 0, (size_t)warp->machine->kernel->file_bytes / SW_PTX_REGISTER_BYTES + 1);
    for (int i = 0; i < warp->product_count; i++)
        hold(warp, &warp->products[i]);
    warp->registers_shown = false;
}
