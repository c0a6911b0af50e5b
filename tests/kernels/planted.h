/* A kernel that reverses PLANTED_ELEMS values, whole and with mistakes that the emulation must show. */
#ifndef SW_TESTS_KERNELS_PLANTED_H
#define SW_TESTS_KERNELS_PLANTED_H

#ifdef __cplusplus
extern "C" {
#endif

enum { PLANTED_ELEMS = 256 };
typedef enum {
    PLANT_NOTHING,
    PLANT_NO_BARRIER,
    PLANT_PARTED_BARRIER,
    PLANT_PARTED_WARP,
    PLANT_WRONG_INDEX,
    PLANT_WRONG_SHARED_INDEX,
    PLANT_MISALIGNED,
    PLANT_NO_WAIT,
    PLANT_TOO_MANY_THREADS
} planted_mistake;

void planted_reverse(planted_mistake mistake, const float *from, float *to);

#ifdef __cplusplus
}
#endif
#endif
