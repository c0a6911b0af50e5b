/* The warp's matrix instructions on the host: lanes hand over what they hold, and each works out its own part.
 * kernels/cuda/attention/fragment.cuh includes this file and says which elements a lane holds. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_EMULATED_FRAGMENT_CUH
#define SW_TESTS_EQUIPMENT_CUDA_EMULATED_FRAGMENT_CUH

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

/* A lane's elements of both operands, widened. */
struct sw_emulation_operands {
    float a[8], b[4];
};

template <typename T> static inline void sw_emulation_widen(const uint32_t *words, int count, float *values) {
    for (int i = 0; i < count; i++) {
        T value;
        value.bits = (uint16_t)(words[i / 2] >> (i % 2 * 16));
        values[i] = sw_widen(value);
    }
}

template <typename T>
static inline sw_emulation_operands sw_emulation_held(const sw_fragment_a<T> &a, const sw_fragment_b<T> &b) {
    sw_emulation_operands held;
    sw_emulation_widen<T>(a.words, 8, held.a);
    sw_emulation_widen<T>(b.words, 4, held.b);
    return held;
}

static inline sw_emulation_operands sw_emulation_held(const sw_fragment_a<float> &a, const sw_fragment_b<float> &b) {
    sw_emulation_operands held;
    memcpy(held.a, a.values, sizeof held.a);
    memcpy(held.b, b.values, sizeof held.b);
    return held;
}

template <typename T>
static inline void sw_multiply(sw_fragment_c *c, const sw_fragment_a<T> &a, const sw_fragment_b<T> &b) {
    const sw_emulation_operands mine = sw_emulation_held(a, b);
    const char *lanes = (const char *)sw_emulation_exchange(&mine, sizeof mine, "mma");
    const int g = sw_lane() / 4, t = sw_lane() % 4;
    for (int holder = 0; holder < 4; holder++) {
        const float *row = (const float *)(lanes + (g * 4 + holder) * SW_EMULATION_LANE_BYTES);
        const float *left = (const float *)(lanes + (2 * t * 4 + holder) * SW_EMULATION_LANE_BYTES) + 8;
        const float *right = (const float *)(lanes + ((2 * t + 1) * 4 + holder) * SW_EMULATION_LANE_BYTES) + 8;
        for (int i = 0; i < 4; i++) {
            const int of_a = i / 2 * 4 + i % 2;
            c->values[0] += row[of_a] * left[i];
            c->values[1] += row[of_a] * right[i];
            c->values[2] += row[of_a + 2] * left[i];
            c->values[3] += row[of_a + 2] * right[i];
        }
    }
}

#endif
