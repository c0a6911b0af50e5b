/* The instructions of kernels/cuda/attention/warpgroup.cuh on the host, which includes this file and says what they do.
 */
#ifndef SW_TESTS_EQUIPMENT_CUDA_EMULATED_WARPGROUP_CUH
#define SW_TESTS_EQUIPMENT_CUDA_EMULATED_WARPGROUP_CUH

#include "tests/equipment/cuda/warpgroup.h"

static inline uint32_t sw_shared_address(const void *shared) {
    return sw_emulation_shared_address(shared);
}

static inline void sw_fence_copies(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    sw_emulation_fence_copies(file, line);
}

static inline void sw_warpgroup_fence(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    sw_emulation_products_fence(file, line);
}

static inline void sw_warpgroup_commit(void) {
    sw_emulation_products_commit();
}

template <int newest>
static inline void sw_warpgroup_wait(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    sw_emulation_products_wait(newest, file, line);
}

template <int newest> static inline void sw_warpgroup_release(void) {
    sw_warpgroup_wait<newest>();
}

static inline void sw_warpgroup_wait_behind(float, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    sw_emulation_products_wait(0, file, line);
}

/* The emulation reads and writes the arrays themselves. */
template <typename V, int COUNT> static inline void sw_finished(V (&)[COUNT]) {
}

template <typename T> struct sw_emulation_type;
template <> struct sw_emulation_type<sw_cuda_bf16> { static constexpr sw_dtype type = SW_BF16; };
template <> struct sw_emulation_type<sw_cuda_f16> { static constexpr sw_dtype type = SW_F16; };

template <typename T> struct sw_warpgroup_product {
    template <int COLUMNS, int COUNT>
    static inline void start(float (&c)[COUNT], const uint32_t *a_words, uint64_t a, uint64_t b, bool add) {
        static_assert(COUNT == 32 || COUNT == 64, "a product has 64 or 128 columns");
        const struct sw_emulation_product product = {
            sw_emulation_type<T>::type, 2 * COUNT, add, COLUMNS != 0, a_words, a, b, c, 0};
        sw_emulation_product_start(&product);
    }

    template <int COLUMNS, int COUNT> static inline void multiply(float (&c)[COUNT], uint64_t a, uint64_t b, bool add) {
        start<COLUMNS>(c, nullptr, a, b, add);
    }

    template <int COLUMNS, int COUNT>
    static inline void multiply(float (&c)[COUNT], const uint32_t *a, uint64_t b, bool add) {
        start<COLUMNS>(c, a, 0, b, add);
    }
};

#endif
