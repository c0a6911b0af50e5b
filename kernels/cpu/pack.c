#include "kernels/cpu/pack.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/pairs.h"

#if defined(__AVX512BF16__)
enum { SQUARE = SW_LANES, SQUARE_ROUNDS = 4 };
static_assert(SQUARE == 1 << SQUARE_ROUNDS, "a side is halved as often as it can be");
static_assert(SW_PACK_TERMS == 2 * SQUARE, "a square of words has that many terms");
static_assert(SW_PACK_COLS % SQUARE == 0, "a panel is a whole number of squares");

/* Transposes a square of words by interleaving its upper and lower halves as often as a side can be halved. */
SW_INLINE void transpose(sw_vec_bits row[SQUARE]) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    for (int round = 0; round < SQUARE_ROUNDS; round++) {
        sw_vec_bits next[SQUARE];
        for (int i = 0; i < SQUARE / 2; i++) {
            const __m512i upper = (__m512i)row[i], lower = (__m512i)row[i + SQUARE / 2];
            next[2 * i] = (sw_vec_bits)_mm512_permutex2var_epi32(upper, low, lower);
            next[2 * i + 1] = (sw_vec_bits)_mm512_permutex2var_epi32(upper, high, lower);
        }
        memcpy(row, next, sizeof next);
    }
}

static void pack_rows(const struct sw_pack *pack, int64_t panel) {
    const uint16_t *from = pack->from + panel * SW_PACK_COLS;
    uint16_t *to = pack->to + panel * SW_PACK_COLS * pack->k;
    for (int64_t term = 0; term < pack->k; term += 2, from += 2 * pack->from_stride, to += 2 * SW_PACK_COLS) {
        for (int64_t col = 0; col < SW_PACK_COLS; col += SW_LANES)
            sw_store_words(to + 2 * col, sw_pairs_of_rows(from + col, from + pack->from_stride + col));
    }
}

static void pack_columns(const struct sw_pack *pack, int64_t panel) {
    const uint16_t *from = pack->from + panel * SW_PACK_COLS * pack->from_stride;
    uint16_t *to = pack->to + panel * SW_PACK_COLS * pack->k;
    for (int64_t term = 0; term < pack->k; term += SW_PACK_TERMS) {
        for (int64_t col = 0; col < SW_PACK_COLS; col += SQUARE) {
            sw_vec_bits square[SQUARE];
            for (int64_t i = 0; i < SQUARE; i++)
                square[i] = sw_load_words(from + (col + i) * pack->from_stride + term);
            transpose(square);
            for (int64_t i = 0; i < SQUARE; i++)
                sw_store_words(to + (term + 2 * i) * SW_PACK_COLS + 2 * col, square[i]);
        }
    }
}

static void pack_panel(const struct sw_pack *pack, int64_t panel) {
    if (pack->transposed)
        pack_columns(pack, panel);
    else
        pack_rows(pack, panel);
}
#endif

void SW_ISA_NAME(sw_cpu_add_pack)(struct sw_device_ops *ops) {
#if defined(__AVX512BF16__)
    ops->pack_panel = pack_panel;
#else
    ops->pack_panel = NULL;
#endif
}
