/* The instruction set that arithmetic on the processor uses: the best that the machine has, or a lower one that the
 * environment names. */
#include "core/machine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[SW_ISA_COUNT] = {"baseline", "avx2", "avx512", "avx512_bf16"};

const char *sw_isa_name(sw_isa isa) {
    return names[isa];
}

sw_status sw_isa_parse(const char *name, sw_isa *out) {
    for (int isa = 0; isa < SW_ISA_COUNT; isa++)
        if (strcmp(name, names[isa]) == 0) {
            *out = (sw_isa)isa;
            return SW_OK;
        }
    return sw_fail(SW_ERR_ARG, "there is no instruction set '%s'; there are baseline, avx2, avx512 and avx512_bf16",
                   name);
}

#if defined(__x86_64__)
/* Returns whether the machine has what compilers assume for x86-64-v3. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

/* Returns whether the machine has what compilers assume for x86-64-v4. */
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

sw_isa sw_machine_isa(void) {
    if (!has_avx512())
        return has_avx2() ? SW_ISA_AVX2 : SW_ISA_BASELINE;
    return __builtin_cpu_supports("avx512bf16") ? SW_ISA_AVX512_BF16 : SW_ISA_AVX512;
}
#else
sw_isa sw_machine_isa(void) {
    return SW_ISA_BASELINE;
}
#endif

/* Returns what SW_CPU_ISA is set to; NULL: nothing. */
static const char *variable(void) {
    const char *name = getenv(SW_ISA_VARIABLE);
    return name != NULL && name[0] != '\0' ? name : NULL;
}

sw_status sw_isa_in_use(sw_isa *out, bool *out_named) {
    const char *name = variable();
    const sw_isa best = sw_machine_isa();
    sw_isa isa = best;
    if (name != NULL && sw_isa_parse(name, &isa) != SW_OK)
        return sw_fail_while(SW_ERR_ARG, "reading " SW_ISA_VARIABLE " in the environment");
    if (isa > best)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       SW_ISA_VARIABLE " in the environment asks for %s, which this processor lacks; its best is %s",
                       name, sw_isa_name(best));
    *out = isa;
    *out_named = name != NULL;
    return SW_OK;
}

sw_isa sw_isa_of_process(void) {
    static _Atomic int known = -1;
    int isa = atomic_load_explicit(&known, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)sw_machine_isa();
        for (int lower = 0; variable() != NULL && lower < isa; lower++)
            if (strcmp(variable(), names[lower]) == 0)
                isa = lower;
        atomic_store_explicit(&known, isa, memory_order_relaxed);
    }
    return (sw_isa)isa;
}
