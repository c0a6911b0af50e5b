#include "tests/kernels/planted.h"

#include "kernels/cuda/platform.cuh"

template <planted_mistake MISTAKE> static __global__ void reverse_kernel(const float *from, float *to) {
    enum { VECTOR = 4, LANE_SHIFT = 3 };
    SW_SHARED(float, block_values, [PLANTED_ELEMS]);
    float *const values = block_values;
    const int thread = (int)threadIdx.x, place = MISTAKE == PLANT_WRONG_SHARED_INDEX ? thread + 1 : thread;
    if (MISTAKE == PLANT_NO_WAIT && thread % VECTOR == 0)
        sw_copy16_later(values + thread, from + thread, false);
    if (MISTAKE == PLANT_MISALIGNED)
        sw_store16(values + place, sw_load16(from));
    else if (MISTAKE != PLANT_NO_WAIT)
        values[place] = from[thread];
    if (MISTAKE == PLANT_PARTED_WARP && thread % 2 == 0)
        values[thread] = __shfl_xor_sync(SW_ALL_LANES, values[thread], LANE_SHIFT);
    if (MISTAKE == PLANT_PARTED_BARRIER ? thread < SW_WARP : MISTAKE != PLANT_NO_BARRIER)
        __syncthreads();
    to[MISTAKE == PLANT_WRONG_INDEX ? thread + 1 : thread] = values[PLANTED_ELEMS - 1 - thread];
}

template <planted_mistake MISTAKE> static void reverse(const float *from, float *to) {
    const unsigned threads = MISTAKE == PLANT_TOO_MANY_THREADS ? 8 * PLANTED_ELEMS : PLANTED_ELEMS;
    cudaStream_t stream = nullptr;
    SW_LAUNCH(reverse_kernel<MISTAKE>, 1, threads, 0, stream, from, to);
}

void planted_reverse(planted_mistake mistake, const float *from, float *to) {
    typedef void (*function)(const float *from, float *to);
    static const function all[] = {
        reverse<PLANT_NOTHING>,     reverse<PLANT_NO_BARRIER>,  reverse<PLANT_PARTED_BARRIER>,
        reverse<PLANT_PARTED_WARP>, reverse<PLANT_WRONG_INDEX>, reverse<PLANT_WRONG_SHARED_INDEX>,
        reverse<PLANT_MISALIGNED>,  reverse<PLANT_NO_WAIT>,     reverse<PLANT_TOO_MANY_THREADS>};
    all[mistake](from, to);
}
