#include "core/machine.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/share.h"
#include "kernels/ref/ref.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

void sw_cpu_add_ops_baseline(struct sw_device_ops *ops);
#ifdef SW_HAVE_X86_ISAS
void sw_cpu_add_ops_avx2(struct sw_device_ops *ops);
void sw_cpu_add_ops_avx512(struct sw_device_ops *ops);
void sw_cpu_add_ops_avx512_bf16(struct sw_device_ops *ops);
#endif

/* The instruction sets, from the plainest to the best; the device takes the last that the machine has. */
struct isa {
    const char *name;
    bool (*available)(void);
    void (*add_ops)(struct sw_device_ops *ops);
    bool bf16_products;
};

static bool always(void) {
    return true;
}

#ifdef SW_HAVE_X86_ISAS
/* These check for the instruction sets that the compiler assumes for x86-64-v3 and v4. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_avx512_bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") && sw_cpu_has_bf16_products();
}
#endif

static const struct isa isas[] = {
    {.name = "baseline", .available = always, .add_ops = sw_cpu_add_ops_baseline},
#ifdef SW_HAVE_X86_ISAS
    {.name = "avx2", .available = has_avx2, .add_ops = sw_cpu_add_ops_avx2},
    {.name = "avx512", .available = has_avx512, .add_ops = sw_cpu_add_ops_avx512},
    {.name = "avx512_bf16", .available = has_avx512_bf16, .add_ops = sw_cpu_add_ops_avx512_bf16, .bf16_products = true},
#endif
};

static const struct isa *best_isa(void) {
    const struct isa *best = &isas[0];
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (isas[i].available())
            best = &isas[i];
    }
    return best;
}

static sw_status choose_isa(const char *name, const struct isa **out) {
    if (name == NULL) {
        *out = best_isa();
        return SW_OK;
    }
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (strcmp(isas[i].name, name) != 0)
            continue;
        if (!isas[i].available())
            return sw_fail(SW_ERR_UNSUPPORTED, "this CPU has no %s; 'cpu' takes its best, %s", name, best_isa()->name);
        *out = &isas[i];
        return SW_OK;
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "there is no instruction set named '%s' in this build; 'cpu' takes the best, %s",
                   name, best_isa()->name);
}

static void close_cpu(struct sw_device *device) {
    sw_cpu_gemm_close(device->backend);
    free(device->backend);
}

sw_status sw_cpu_device_init(struct sw_device *device, const char *isa_name, int threads) {
    const struct isa *isa = NULL;
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
    isa->add_ops(&device->ops);
    device->ops.close = close_cpu;
    device->backend = cpu;
    const int wanted = threads == 0 ? sw_machine_cores() : threads;
    const int limit = omp_get_thread_limit();
    device->info = (struct sw_device_info){.name = "cpu",
                                           .isa = isa->name,
                                           .threads = wanted < limit ? wanted : limit,
                                           .bf16_fast = isa->bf16_products,
                                           .host_memory = true};
    return SW_OK;
}
