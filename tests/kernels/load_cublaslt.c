/* Loads cuBLASLt as the device does and says on standard output which, or what is wrong with it. */
#include "core/status.h"
#include "kernels/cuda/cuda.h"

#include <stdio.h>

int main(void) {
    if (sw_cublaslt_load() == SW_OK)
        printf("loaded: %s\n", sw_cublaslt_name());
    else
        printf("refused: %s\n", sw_error_message(SW_ERR_UNSUPPORTED));
    return 0;
}
