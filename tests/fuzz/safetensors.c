/* The header of a safetensors file. The first byte of an input says how many bytes of data follow the header that the
 * rest is; 255: the rest is the whole file, with its length. */
#include "tests/fuzz/target.h"

#include "tests/fuzz/tensors.h"

#include <string.h>

enum { WHOLE_FILE = 255, LENGTH_BYTES = 8 };
#define FILE_NAME "model.safetensors"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_folder();
    return 0;
}

static void put_around_header(const uint8_t *header, size_t header_bytes, size_t data_bytes) {
    const size_t bytes = LENGTH_BYTES + header_bytes + data_bytes;
    uint8_t *file = calloc(1, bytes);
    for (int i = 0; i < LENGTH_BYTES; i++)
        file[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + LENGTH_BYTES, header, header_bytes);
    fuzz_put(FILE_NAME, file, bytes);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_safetensors *tensors;
    if (bytes == 0)
        return 0;
    if (data[0] == WHOLE_FILE)
        fuzz_put(FILE_NAME, data + 1, bytes - 1);
    else
        put_around_header(data + 1, bytes - 1, data[0]);
    if (sw_safetensors_open(fuzz_folder(), &tensors) == SW_OK) {
        fuzz_read_all(tensors);
        sw_safetensors_close(tensors);
    }
    sw_error_clear();
    return 0;
}
