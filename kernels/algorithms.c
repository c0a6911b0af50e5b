#include "kernels/algorithms.h"

#include "kernels/device_ops.h"

#include <assert.h>
#include <stdlib.h>

const char *const sw_algorithm_field_names[SW_ALGORITHM_FIELDS] = {
    "id", "tile", "split_k", "reduction", "swizzle", "custom_option", "stages", "inner_shape", "cluster_shape"};

void sw_gemm_algorithms_release(struct sw_gemm_algorithms *list) {
    free(list->item);
    *list = (struct sw_gemm_algorithms){0};
}

struct sw_gemm_algorithm *sw_gemm_algorithms_find(const struct sw_gemm_algorithms *list, const struct sw_gemm *shape,
                                                  bool tf32) {
    for (int64_t i = 0; i < list->count; i++)
        if (list->item[i].tf32 == tf32 && sw_gemm_same(&list->item[i].shape, shape))
            return &list->item[i];
    return NULL;
}

sw_status sw_gemm_algorithms_put(struct sw_gemm_algorithms *list, const struct sw_gemm_algorithm *algorithm) {
    struct sw_gemm_algorithm *there = sw_gemm_algorithms_find(list, &algorithm->shape, algorithm->tf32);
    if (there == NULL) {
        struct sw_gemm_algorithm *item = realloc(list->item, (size_t)(list->count + 1) * sizeof *item);
        if (item == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the table of algorithms");
        list->item = item;
        there = &item[list->count++];
    }
    *there = *algorithm;
    return SW_OK;
}

sw_status sw_device_use_algorithms(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure) {
    assert(device->gemms.count == 0);
    if (device->ops.use_algorithms == NULL)
        return SW_OK;
    return device->ops.use_algorithms(device, list, measure);
}

sw_status sw_device_algorithms(const struct sw_device *device, struct sw_gemm_algorithms *out, int64_t *out_refused) {
    sw_status status = SW_OK;
    *out = (struct sw_gemm_algorithms){0};
    *out_refused = 0;
    for (int64_t i = 0; device->ops.algorithm != NULL && status == SW_OK && i < device->gemms.count; i++) {
        struct sw_gemm_algorithm algorithm;
        bool refused;
        device->ops.algorithm(device->gemms.entries[i], &algorithm, &refused);
        *out_refused += refused;
        status = sw_gemm_algorithms_put(out, &algorithm);
    }
    if (status != SW_OK)
        sw_gemm_algorithms_release(out);
    return status;
}
