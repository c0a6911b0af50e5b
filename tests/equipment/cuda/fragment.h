/* The warp's matrix product m16n8k16 on the emulated machine. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_FRAGMENT_H
#define SW_TESTS_EQUIPMENT_CUDA_FRAGMENT_H

#ifdef __cplusplus
extern "C" {
#endif

/* The elements of both operands that a lane holds, widened, and its four sums. With g = lane / 4 and t = lane % 4, `a`
 * has A's rows g and g + 8 in turn, two columns from 2t on each, and then those from 2t + 8 on; `b` has the rows 2t, 2t
 * + 1, 2t + 8 and 2t + 9 of B's column g; `sums` are the columns 2t and 2t + 1 of C's row g, and of row g + 8. */
struct sw_emulation_fragments {
    float a[8], b[4];
    float *sums;
};

/* C += A·B, called by each lane of a warp. */
void sw_emulation_multiply(const struct sw_emulation_fragments *mine);

#ifdef __cplusplus
}
#endif

#endif
