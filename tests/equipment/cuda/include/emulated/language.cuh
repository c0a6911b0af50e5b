/* CUDA's words for the host's C++ compiler, on top of the emulated machine. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_EMULATED_LANGUAGE_CUH
#define SW_TESTS_EQUIPMENT_CUDA_EMULATED_LANGUAGE_CUH

#include "tests/equipment/cuda/machine.h"
#include "tests/equipment/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ inline
#define __launch_bounds__(...)

#define threadIdx (sw_emulation_position()->thread)
#define blockIdx (sw_emulation_position()->block)
#define blockDim (sw_emulation_position()->block_dim)
#define gridDim (sw_emulation_position()->grid_dim)

#define __syncthreads() sw_emulation_barrier(__FILE__, __LINE__)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
};

/* A launch, which takes place when its stream comes to it, with the arguments as they are now. */
template <typename Kernel, typename... Arguments> struct sw_emulation_grid {
    const char *name;
    dim3 grid, block;
    size_t shared_bytes;
    Kernel kernel;
    std::tuple<Arguments...> arguments;

    static void call(void *self) {
        sw_emulation_grid *g = (sw_emulation_grid *)self;
        std::apply(g->kernel, g->arguments);
    }

    static void launch(void *self) {
        sw_emulation_grid *g = (sw_emulation_grid *)self;
        sw_emulation_launch(g->name, {g->grid.x, g->grid.y, g->grid.z}, {g->block.x, g->block.y, g->block.z},
                            g->shared_bytes, call, g);
        delete g;
    }
};

template <typename Kernel, typename... Arguments>
static inline void sw_emulation_run(const char *name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                                    Kernel kernel, Arguments... arguments) {
    typedef sw_emulation_grid<Kernel, Arguments...> launch;
    sw_emulation_give(stream, launch::launch,
                      new launch{name, grid, block, shared_bytes, kernel, std::tuple<Arguments...>(arguments...)});
}

template <typename T> static inline T sw_emulation_lane(T mine, unsigned from, const char *what) {
    const char *lanes = (const char *)sw_emulation_exchange(&mine, sizeof mine, what);
    T value;
    memcpy(&value, lanes + (size_t)(from % SW_EMULATION_WARP_LANES) * SW_EMULATION_LANE_BYTES, sizeof value);
    return value;
}

static inline unsigned sw_emulation_lane_index(void) {
    const struct sw_emulation_position *p = sw_emulation_position();
    return (p->thread.x + p->block_dim.x * (p->thread.y + p->block_dim.y * p->thread.z)) % SW_EMULATION_WARP_LANES;
}

static inline void sw_emulation_check_mask(unsigned mask) {
    if (mask != 0xffffffffu)
        sw_emulation_fail("an operation of a part of a warp");
}

template <typename T> static inline T __shfl_sync(unsigned mask, T mine, int from) {
    sw_emulation_check_mask(mask);
    return sw_emulation_lane(mine, (unsigned)from, "__shfl_sync");
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T mine, int with) {
    sw_emulation_check_mask(mask);
    return sw_emulation_lane(mine, sw_emulation_lane_index() ^ (unsigned)with, "__shfl_xor_sync");
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    sw_emulation_check_mask(mask);
    const char *lanes = (const char *)sw_emulation_exchange(&predicate, sizeof predicate, "__ballot_sync");
    unsigned votes = 0;
    for (unsigned lane = 0; lane < SW_EMULATION_WARP_LANES; lane++) {
        int vote;
        memcpy(&vote, lanes + (size_t)lane * SW_EMULATION_LANE_BYTES, sizeof vote);
        votes |= (vote != 0 ? 1u : 0u) << lane;
    }
    return votes;
}

static inline void __syncwarp(void) {
    const char nothing = 0;
    sw_emulation_exchange(&nothing, sizeof nothing, "__syncwarp");
}

/* Counts the bits that are set. For a processor of no known age, the compiler's own would be a call of a function for
 * each lane. */
static inline int __popc(unsigned value) {
    value -= value >> 1 & 0x55555555u;
    value = (value & 0x33333333u) + (value >> 2 & 0x33333333u);
    return (int)(((value + (value >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}

#endif
