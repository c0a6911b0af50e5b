/* The algorithms of a library's matrix products. An algorithm decides the bits of the result, so it is measured once,
 * kept and used again. A device without such a choice (the CPU) keeps nothing. */
#ifndef SW_KERNELS_ALGORITHMS_H
#define SW_KERNELS_ALGORITHMS_H

#include "kernels/device.h"

enum { SW_ALGORITHM_WORDS = 8, SW_ALGORITHM_FIELDS = 9 };

struct sw_gemm_algorithm {
    struct sw_gemm shape;
    bool tf32;
    int64_t workspace_bytes;
    uint64_t word[SW_ALGORITHM_WORDS];  /* the library's own representation, valid for its version only */
    int64_t field[SW_ALGORITHM_FIELDS]; /* the algorithm for a reader, named by sw_algorithm_field_names */
};
extern const char *const sw_algorithm_field_names[SW_ALGORITHM_FIELDS];

struct sw_gemm_algorithms {
    struct sw_gemm_algorithm *item; /* from malloc; NULL if count is 0 */
    int64_t count;
};
void sw_gemm_algorithms_release(struct sw_gemm_algorithms *list);
/* Returns the algorithm of a shape; NULL: the list has none. */
struct sw_gemm_algorithm *sw_gemm_algorithms_find(const struct sw_gemm_algorithms *list, const struct sw_gemm *shape,
                                                  bool tf32);
/* Adds an algorithm, or replaces the one of the same shape. */
sw_status sw_gemm_algorithms_put(struct sw_gemm_algorithms *list, const struct sw_gemm_algorithm *algorithm);

/* Chooses the algorithms of the products that are prepared from now on; call it before the first. Shapes in the list,
 * which is copied, get its algorithms if the library accepts them. Other shapes get the cheapest of the library's
 * suggestions, found by measuring if `measure` is set, else the first. */
sw_status sw_device_use_algorithms(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure);
/* Fills `out` with the algorithms of all prepared products; the caller releases it. *out_refused: how many algorithms
 * of the given list the library rejected. */
sw_status sw_device_algorithms(const struct sw_device *device, struct sw_gemm_algorithms *out, int64_t *out_refused);

#endif
