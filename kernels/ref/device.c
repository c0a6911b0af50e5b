#include "kernels/ref/ref.h"

#include <assert.h>

/* Ranks on the host add with the host's own code, so a device of the host has no SW_DEVICE_RANK_SUM. */
static sw_status run(struct sw_stream *stream, sw_device_op op, const void *args) {
    assert(stream->device->ops.op[op] != NULL);
    return stream->device->ops.op[op](stream, args);
}

void sw_ref_ops(struct sw_device_ops *ops) {
    ops->run = run;
    sw_ref_add_memory(ops);
    sw_ref_add_gemm(ops);
    sw_ref_add_layernorm(ops);
    sw_ref_add_rmsnorm(ops);
    sw_ref_add_rotate(ops);
    sw_ref_add_attention(ops);
    sw_ref_add_elementwise(ops);
    sw_ref_add_embedding(ops);
    sw_ref_add_cross_entropy(ops);
    sw_ref_add_gradient(ops);
    sw_ref_add_update(ops);
    sw_ref_add_quant(ops);
    sw_ref_add_fp8(ops);
}

sw_status sw_ref_device_init(struct sw_device *device) {
    sw_ref_ops(&device->ops);
    device->info = (struct sw_device_info){
        .name = "ref", .isa = "plain C", .threads = 1, .threads_keep_bits = {true, true, true}, .host_memory = true};
    return SW_OK;
}
