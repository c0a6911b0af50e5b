/* Linked to a test whose GPU has as many multiprocessors as an H100: kernels choose other grids there, and the
 * self-test its larger table, which takes long enough that only it is run. */
#include "tests/kernels/support.h"

#include "tests/equipment/cuda/runtime.h"

enum { MULTIPROCESSORS = 132 };

__attribute__((constructor)) static void enlarge(void) {
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    gpu.multiprocessors = MULTIPROCESSORS;
    sw_emulation_set_gpu(&gpu);
    cmocka_set_test_filter("passes");
}
