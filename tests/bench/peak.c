/* Peaks of GPUs by the names that drivers give them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/kernels/harness.h"

static void names(void **state) {
    (void)state;
    static const struct {
        const char *model;
        sw_dtype type;
        double tera;
    } cases[] = {{"NVIDIA H100 80GB HBM3", SW_BF16, 989.4},
                 {"NVIDIA H100 PCIe", SW_F16, 756.0},
                 {"NVIDIA H100 80GB HBM3", SW_F32, 66.9},
                 {"NVIDIA H200", SW_BF16, 989.4},
                 {"NVIDIA L40S", SW_BF16, 362.0},
                 {"NVIDIA L4", SW_BF16, 121.0},
                 {"NVIDIA A100-SXM4-80GB", SW_BF16, 312.0},
                 {"NVIDIA GeForce RTX 4090", SW_BF16, 165.2},
                 {"Emulated GPU", SW_BF16, 0.0},
                 {NULL, SW_BF16, 0.0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct sw_device_info info = {.name = "cuda", .model = cases[i].model};
        const double found = sw_peak_flops_per_s(&info, cases[i].type) * 1e-12;
        if (!(found > cases[i].tera - 0.01 && found < cases[i].tera + 0.01))
            fail_msg("%s: %g", cases[i].model == NULL ? "a CPU" : cases[i].model, found);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
