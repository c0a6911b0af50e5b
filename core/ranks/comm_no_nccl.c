/* Replaces comm_nccl.c if the CUDA Toolkit or NCCL was not found. */
#include "core/ranks/comm_private.h"

sw_status sw_comm_nccl_id(void *id) {
    (void)id;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "spillway was built without NCCL; install the CUDA Toolkit and NCCL's headers and "
                   "build again, or use --device cpu");
}

sw_status sw_comm_nccl_name(char *out, size_t chars) {
    (void)out, (void)chars;
    return sw_comm_nccl_id(NULL);
}

sw_status sw_comm_nccl_open(const void *id, int rank, int ranks, void *stream, const struct sw_comm_transport **out,
                            void **out_state) {
    (void)id, (void)rank, (void)ranks, (void)stream, (void)out, (void)out_state;
    return sw_comm_nccl_id(NULL);
}
