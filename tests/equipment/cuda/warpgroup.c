#include "tests/equipment/cuda/warpgroup.h"

#include "tests/equipment/cuda/machine.h"
#include "tests/equipment/vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* The offset of dynamic shared memory, off every pattern, so that a kernel that does not look where its memory
       begins fails. */
    SHARED_BEGIN = 1152,
    ROW_BYTES = 128,
    PATTERN_BYTES = 8 * ROW_BYTES,
    DEPTH = 16,
    ROWS = 16, /* of A and of the sums, for each warp */
    MOST_COLUMNS = 128,
    LANES = SW_EMULATION_WARP_LANES
};
/* Apart from the others, whose type it would change. */
enum { NEVER = UINT32_MAX };

/* A descriptor, decoded (PTX ISA, matrix descriptor of wgmma), in bytes. */
struct matrix {
    uint32_t start, leading, stride;
};

void sw_products_begin(struct sw_product_block *block, char *shared, size_t shared_bytes) {
    block->shared = shared;
    block->shared_bytes = shared_bytes;
    memset(block->granules, 0,
           (shared_bytes + SW_EMULATION_GRANULE_BYTES - 1) / SW_EMULATION_GRANULE_BYTES * sizeof block->granules[0]);
    memset(block->started, 0, sizeof block->started);
}

const char *sw_products_end(const struct sw_product_block *block, int warps) {
    for (int w = 0; w < warps; w++) {
        if (block->started[w] != block->started[w / SW_EMULATION_GROUP_WARPS * SW_EMULATION_GROUP_WARPS])
            return "the warps of a warpgroup have started different products";
    }
    return NULL;
}

void sw_products_reset(struct sw_products *products) {
    products->count = products->commits = 0;
    products->registers_shown = false;
}

void sw_products_copy(struct sw_product_block *block, const void *to, size_t bytes, int thread, uint32_t arrived) {
    const size_t offset = (size_t)((const char *)to - block->shared);
    if ((const char *)to < block->shared || offset + bytes > block->shared_bytes)
        return;
    block->granules[offset / SW_EMULATION_GRANULE_BYTES] = (struct sw_granule){(uint16_t)(thread + 1), arrived};
}

uint32_t sw_emulation_shared_address(const void *shared) {
    return SHARED_BEGIN + (uint32_t)((const char *)shared - sw_emulation_product_block()->shared);
}

static struct matrix decode(uint64_t descriptor) {
    enum { FIELD = 0x3fff, UNIT_BITS = 4, LEADING_BIT = 16, STRIDE_BIT = 32, BASE_BIT = 49, SWIZZLE_BIT = 62 };
    const struct matrix m = {(uint32_t)(descriptor & FIELD) << UNIT_BITS,
                             (uint32_t)(descriptor >> LEADING_BIT & FIELD) << UNIT_BITS,
                             (uint32_t)(descriptor >> STRIDE_BIT & FIELD) << UNIT_BITS};
    if (descriptor >> SWIZZLE_BIT != 1 || (descriptor >> BASE_BIT & 7) != 0)
        sw_emulation_fail("a descriptor without the 128-byte swizzle, or with a base offset");
    if (m.start % PATTERN_BYTES >= ROW_BYTES)
        sw_emulation_fail("a descriptor of a matrix that begins within the swizzle's pattern, at %u", m.start);
    return m;
}

/* Returns the granule at an address before the swizzle, which moves whole granules. */
static size_t granule_at(uint32_t address) {
    const struct sw_product_block *block = sw_emulation_product_block();
    const uint32_t swizzled = address ^ (address >> 7 & 7) << 4;
    const size_t offset = swizzled - SHARED_BEGIN;
    if (swizzled < SHARED_BEGIN || offset + SW_EMULATION_GRANULE_BYTES > block->shared_bytes)
        sw_emulation_fail("a product reads beyond the shared memory of its block");
    return offset / SW_EMULATION_GRANULE_BYTES;
}

static const uint16_t *elements_at(uint32_t address) {
    const struct sw_product_block *block = sw_emulation_product_block();
    return (const uint16_t *)(block->shared + granule_at(address) * SW_EMULATION_GRANULE_BYTES);
}

/* Eight elements that lie side by side. Rows beside each other: elements 8·half to 8·half + 7 of row `row`; columns
 * beside each other: columns 8·half to 8·half + 7 of row `row`. */
static uint32_t address_of(const struct matrix *m, bool columns, int row, int half) {
    const uint32_t in_pattern = (uint32_t)(row % 8) * ROW_BYTES + (uint32_t)(row / 8) * m->stride;
    const uint32_t panel = columns ? (uint32_t)(half / 8) * m->leading : 0;
    return m->start + in_pattern + panel + (uint32_t)(columns ? half % 8 : half) * SW_EMULATION_GRANULE_BYTES;
}

static void check_granule(uint32_t address) {
    const struct sw_granule *granule = &sw_emulation_product_block()->granules[granule_at(address)];
    if (granule->writer == 0 || granule->arrived == NEVER)
        sw_emulation_fail("a product reads shared memory that a copy has not reached");
    if (sw_emulation_own_products(granule->writer - 1)->fences <= granule->arrived)
        sw_emulation_fail("a product reads a copy that no fence has shown to products");
}

/* Checks all bytes that a warp's share of a product reads. One lane checks for all. */
static void check_operands(const struct sw_emulation_product *product) {
    const int warp = sw_emulation_thread() / LANES % SW_EMULATION_GROUP_WARPS;
    const struct matrix b = decode(product->b);
    const int rows = product->columns_of_b ? DEPTH : product->columns;
    const int pieces = product->columns_of_b ? product->columns / 8 : DEPTH / 8;
    for (int i = 0; i < rows * pieces; i++)
        check_granule(address_of(&b, product->columns_of_b, i / pieces, i % pieces));
    if (product->a_words != NULL)
        return;
    const struct matrix a = decode(product->a);
    for (int i = 0; i < 2 * DEPTH; i++)
        check_granule(address_of(&a, false, warp * DEPTH + i / 2, i % 2));
}

/* The lanes of a warp start the same product. */
static void check_lanes(const struct sw_emulation_product *product) {
    const uint64_t mine[4] = {product->a, product->b, (uint64_t)product->columns, product->a_words != NULL};
    const char *lanes = sw_emulation_exchange(mine, sizeof mine, "wgmma");
    if (memcmp(lanes, mine, sizeof mine) != 0)
        sw_emulation_fail("the lanes of a warp start different products");
    if (sw_emulation_thread() % LANES != 0)
        return;
    uint64_t *started = &sw_emulation_product_block()->started[sw_emulation_thread() / LANES];
    for (int i = 0; i < 4; i++)
        *started = (*started ^ mine[i]) * UINT64_C(0x100000001b3) + 1;
    check_operands(product);
}

void sw_emulation_product_start(const struct sw_emulation_product *product) {
    struct sw_products *own = sw_emulation_own_products(sw_emulation_thread());
    if (!own->registers_shown)
        sw_emulation_fail("a product without a fence after the last wait");
    if (own->under_way == NULL)
        own->under_way = calloc(SW_EMULATION_MOST_PRODUCTS, sizeof *own->under_way);
    if (own->under_way == NULL || own->count == SW_EMULATION_MOST_PRODUCTS)
        sw_emulation_fail("a thread has too many products under way");
    check_lanes(product);
    own->under_way[own->count] = *product;
    own->under_way[own->count++].commit = own->commits;
}

void sw_emulation_products_fence(const char *file, int line) {
    if (!sw_emulation_leaves_out(file, line))
        sw_emulation_own_products(sw_emulation_thread())->registers_shown = true;
}

void sw_emulation_fence_copies(const char *file, int line) {
    if (!sw_emulation_leaves_out(file, line))
        sw_emulation_own_products(sw_emulation_thread())->fences++;
}

void sw_emulation_products_commit(void) {
    sw_emulation_own_products(sw_emulation_thread())->commits++;
}

static float widen(sw_dtype type, uint16_t bits) {
    return type == SW_BF16 ? sw_bf16_to_f32(bits) : sw_f16_to_f32(bits);
}

/* Returns the first thread of the running warp. */
static int first_lane(void) {
    return sw_emulation_thread() / LANES * LANES;
}

static const struct sw_emulation_product *product_of_lane(int lane, int number) {
    return &sw_emulation_own_products(first_lane() + lane)->under_way[number];
}

/* Reads the warp's 16 rows of A, of which a lane's registers hold rows g and g+8. */
static void read_a(int number, float a[ROWS][DEPTH]) {
    const struct sw_emulation_product *product = product_of_lane(0, number);
    if (product->a_words == NULL) {
        const struct matrix m = decode(product->a);
        const int row = first_lane() / LANES % SW_EMULATION_GROUP_WARPS * ROWS;
        for (int i = 0; i < 2 * ROWS; i++) {
            const uint16_t *from = elements_at(address_of(&m, false, row + i / 2, i % 2));
            for (int k = 0; k < 8; k++)
                a[i / 2][i % 2 * 8 + k] = widen(product->type, from[k]);
        }
        return;
    }
    for (int lane = 0; lane < LANES; lane++) {
        const uint32_t *words = product_of_lane(lane, number)->a_words;
        for (int i = 0; i < 8; i++)
            a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
                widen(product->type, (uint16_t)(words[i / 2] >> (i % 2 * 16)));
    }
}

static void read_b(const struct sw_emulation_product *product, float b[DEPTH][MOST_COLUMNS]) {
    const struct matrix m = decode(product->b);
    const bool by_columns = product->columns_of_b;
    const int rows = by_columns ? DEPTH : product->columns, pieces = (by_columns ? product->columns : DEPTH) / 8;
    for (int i = 0; i < rows * pieces; i++) {
        const uint16_t *from = elements_at(address_of(&m, by_columns, i / pieces, i % pieces));
        for (int j = 0; j < 8; j++) {
            const int other = i % pieces * 8 + j;
            b[by_columns ? i / pieces : other][by_columns ? other : i / pieces] = widen(product->type, from[j]);
        }
    }
}

/* Adds the products one after the other, in fp32. */
SW_WIDE_VECTORS static void add_products(float a[ROWS][DEPTH], float b[DEPTH][MOST_COLUMNS], int columns,
                                         float sums[ROWS][MOST_COLUMNS]) {
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < DEPTH; k++)
            for (int column = 0; column < columns; column++)
                sums[row][column] += a[row][k] * b[k][column];
}

/* Returns the place of a lane's sum `at` among the warp's: of every eight columns it has the two from l % 4 · 2 on, of
 * rows l / 4 and l / 4 + 8. */
static float *sum_of_lane(float sums[ROWS][MOST_COLUMNS], int lane, int at) {
    return &sums[lane / 4 + at % 4 / 2 * 8][at / 4 * 8 + lane % 4 * 2 + at % 2];
}

/* Performs a product of the running warp for all of its lanes, which wait for it. Lanes are the outer loops: their
 * stacks lie such a power of two apart that the cache keeps few of them. */
static void perform(int number) {
    const struct sw_emulation_product *product = product_of_lane(0, number);
    float a[ROWS][DEPTH], b[DEPTH][MOST_COLUMNS], sums[ROWS][MOST_COLUMNS];
    check_operands(product);
    read_a(number, a);
    read_b(product, b);
    for (int lane = 0; lane < LANES; lane++) {
        const float *of_lane = product_of_lane(lane, number)->sums;
        for (int at = 0; at < product->columns / 2; at++)
            *sum_of_lane(sums, lane, at) = product->add ? of_lane[at] : 0.0f;
    }
    add_products(a, b, product->columns, sums);
    for (int lane = 0; lane < LANES; lane++) {
        float *of_lane = product_of_lane(lane, number)->sums;
        for (int at = 0; at < product->columns / 2; at++)
            of_lane[at] = *sum_of_lane(sums, lane, at);
    }
}

/* The lanes of a warp wait together, and for as many products. */
static void perform_all(int count) {
    const char *lanes = sw_emulation_gather(&count, sizeof count, "wgmma.wait_group");
    if (lanes == NULL)
        return;
    for (int lane = 0; lane < LANES; lane++)
        if (memcmp(lanes + lane * SW_EMULATION_LANE_BYTES, &count, sizeof count) != 0)
            sw_emulation_fail("the lanes of a warp wait for different products");
    for (int i = 0; i < count; i++)
        perform(i);
}

static void spoil(const struct sw_emulation_product *product) {
    for (int i = 0; i < product->columns / 2; i++)
        product->sums[i] = NAN;
}

void sw_emulation_products_wait(int newest, const char *file, int line) {
    struct sw_products *own = sw_emulation_own_products(sw_emulation_thread());
    const bool left_out = sw_emulation_leaves_out(file, line);
    int ended = 0;
    while (ended < own->count && own->under_way[ended].commit < own->commits - newest)
        ended++;
    for (int i = 0; left_out && i < ended; i++)
        spoil(&own->under_way[i]);
    if (!left_out && ended > 0)
        perform_all(ended);
    own->count -= ended;
    if (ended > 0)
        memmove(own->under_way, own->under_way + ended, (size_t)own->count * sizeof *own->under_way);
    own->registers_shown = false;
}
