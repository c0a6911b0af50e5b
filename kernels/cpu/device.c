#include "core/machine.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/share.h"
#include "kernels/ref/ref.h"

#include <omp.h>
#include <stdlib.h>

void sw_cpu_add_ops_baseline(struct sw_device_ops *ops);
#ifdef SW_HAVE_X86_ISAS
void sw_cpu_add_ops_avx2(struct sw_device_ops *ops);
void sw_cpu_add_ops_avx512(struct sw_device_ops *ops);
void sw_cpu_add_ops_avx512_bf16(struct sw_device_ops *ops);
#endif

/* The code of each instruction set; NULL: not in this build. */
static void (*const add_ops[SW_ISA_COUNT])(struct sw_device_ops *ops) = {
    [SW_ISA_BASELINE] = sw_cpu_add_ops_baseline,
#ifdef SW_HAVE_X86_ISAS
    [SW_ISA_AVX2] = sw_cpu_add_ops_avx2,
    [SW_ISA_AVX512] = sw_cpu_add_ops_avx512,
    [SW_ISA_AVX512_BF16] = sw_cpu_add_ops_avx512_bf16,
#endif
};

/* Finds the best instruction set that a device may use. oneDNN makes the products of bf16, and the user may have
 * limited it by its own variable. */
static sw_status most_isa(sw_isa *out) {
    bool named;
    SW_TRY(sw_isa_in_use(out, &named));
#ifdef SW_HAVE_X86_ISAS
    if (named)
        SW_TRY(sw_cpu_gemm_hold(*out));
#endif
    while (add_ops[*out] == NULL || (*out == SW_ISA_AVX512_BF16 && !sw_cpu_has_bf16_products()))
        (*out)--;
    return SW_OK;
}

static sw_status choose_isa(const char *name, sw_isa *out) {
    sw_isa most;
    SW_TRY(most_isa(&most));
    *out = most;
    if (name == NULL)
        return SW_OK;
    if (sw_isa_parse(name, out) != SW_OK)
        return sw_fail_while(SW_ERR_UNSUPPORTED, "opening the device 'cpu:%s'; 'cpu' takes the best, %s", name,
                             sw_isa_name(most));
    if (*out > most)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "this CPU has no %s, or " SW_ISA_VARIABLE " forbids it; 'cpu' takes the best, %s", name,
                       sw_isa_name(most));
    return SW_OK;
}

static void close_cpu(struct sw_device *device) {
    sw_cpu_gemm_close(device->backend);
    free(device->backend);
}

sw_status sw_cpu_device_init(struct sw_device *device, const char *isa_name, int threads) {
    sw_isa isa;
    SW_TRY(choose_isa(isa_name, &isa));
    struct sw_cpu *cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the CPU device");
    const sw_status status = sw_cpu_gemm_open(cpu);
    if (status != SW_OK) {
        free(cpu);
        return status;
    }
    sw_ref_ops(&device->ops);
    sw_cpu_add_gemm(&device->ops);
    sw_cpu_add_streams(&device->ops);
    add_ops[isa](&device->ops);
    device->ops.close = close_cpu;
    device->backend = cpu;
    const int wanted = threads == 0 ? sw_machine_cores() : threads;
    const int limit = omp_get_thread_limit();
    device->info = (struct sw_device_info){.name = "cpu",
                                           .isa = sw_isa_name(isa),
                                           .threads = wanted < limit ? wanted : limit,
                                           .bf16_fast = isa == SW_ISA_AVX512_BF16,
                                           .fp32_in_blocks = isa < SW_ISA_AVX512,
                                           .host_memory = true};
    for (int type = 0; type < SW_DTYPES; type++)
        device->info.threads_keep_bits[type] = sw_cpu_multiplies_blocks(device, (sw_dtype)type);
    return SW_OK;
}
