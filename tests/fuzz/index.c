/* model.safetensors.index.json beside two good shards. */
#include "tests/fuzz/target.h"

#include "tests/fuzz/tensors.h"

static void put_shard(const char *name, const char *tensor) {
    const struct sw_safetensors_declared declared = {.name = tensor, .dims = 2, .dim = {2, 3}};
    const float values[6] = {1, 2, 3, 4, 5, 6};
    struct sw_safetensors_writer *writer;
    sw_status status = sw_safetensors_writer_open(fuzz_path(name), SW_BF16, &declared, 1, &writer);
    assert(status == SW_OK);
    status = sw_safetensors_write_f32(writer, values, 6);
    assert(status == SW_OK);
    status = sw_safetensors_writer_finish(writer);
    assert(status == SW_OK);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    put_shard("model-00001-of-00002.safetensors", "a");
    put_shard("model-00002-of-00002.safetensors", "b");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_safetensors *tensors;
    fuzz_put("model.safetensors.index.json", data, bytes);
    if (sw_safetensors_open(fuzz_folder(), &tensors) == SW_OK) {
        fuzz_read_all(tensors);
        sw_safetensors_close(tensors);
    }
    sw_error_clear();
    return 0;
}
