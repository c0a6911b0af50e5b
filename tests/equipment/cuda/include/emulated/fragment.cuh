/* The warp's matrix instructions on the host: lanes hand over what they hold, and one of them multiplies for all.
 * kernels/cuda/attention/fragment.cuh includes this file and says which elements a lane holds. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_EMULATED_FRAGMENT_CUH
#define SW_TESTS_EQUIPMENT_CUDA_EMULATED_FRAGMENT_CUH

#include "tests/equipment/cuda/fragment.h"

template <bool TRANSPOSED> static inline void sw_load_matrices(const void *row, uint32_t words[4]) {
    sw_emulation_check_aligned(row, 16);
    const char *lanes = (const char *)sw_emulation_exchange(&row, sizeof row, "ldmatrix");
    const int g = sw_lane() / 4, t = sw_lane() % 4;
    for (int matrix = 0; matrix < 4; matrix++) {
        words[matrix] = 0;
        for (int i = 0; i < 2; i++) {
            const int of_row = TRANSPOSED ? 2 * t + i : g, column = TRANSPOSED ? g : 2 * t + i;
            const uint16_t *from;
            memcpy(&from, lanes + (matrix * 8 + of_row) * SW_EMULATION_LANE_BYTES, sizeof from);
            words[matrix] |= (uint32_t)from[column] << (16 * i);
        }
    }
}

template <typename T> static inline void sw_emulation_widen(const uint32_t *words, int count, float *values) {
    for (int i = 0; i < count; i++) {
        T value;
        value.bits = (uint16_t)(words[i / 2] >> (i % 2 * 16));
        values[i] = sw_widen(value);
    }
}

template <typename T>
static inline sw_emulation_fragments sw_emulation_held(const sw_fragment_a<T> &a, const sw_fragment_b<T> &b) {
    sw_emulation_fragments held;
    sw_emulation_widen<T>(a.words, 8, held.a);
    sw_emulation_widen<T>(b.words, 4, held.b);
    return held;
}

static inline sw_emulation_fragments sw_emulation_held(const sw_fragment_a<float> &a, const sw_fragment_b<float> &b) {
    sw_emulation_fragments held;
    memcpy(held.a, a.values, sizeof held.a);
    memcpy(held.b, b.values, sizeof held.b);
    return held;
}

template <typename T>
static inline void sw_multiply(sw_fragment_c *c, const sw_fragment_a<T> &a, const sw_fragment_b<T> &b) {
    sw_emulation_fragments mine = sw_emulation_held(a, b);
    mine.sums = c->values;
    sw_emulation_multiply(&mine);
}

#endif
