/* The description of a machine: what is accepted has rates and memory to plan with. */
#include "tests/fuzz/target.h"

#include "job/profile.h"

#include <assert.h>
#include <math.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const struct sw_node_ranks job = {
        .ranks = 1024, .nodes = 64, .tensor_ranks = 32, .tensor_node_ranks = 16, .data_node_ranks = 1};
    struct sw_profile machine;
    fuzz_put("machine.json", data, bytes);
    for (int bound = SW_MACHINE_EXPECTED; bound <= SW_MACHINE_FAST; bound++) {
        if (sw_profile_describe(fuzz_path("machine.json"), (sw_machine_bound)bound, &machine) != SW_OK)
            break;
        assert(machine.device.memory_bytes > 0 && machine.host_bytes > 0 && machine.device.name[0] != '\0');
        assert(isfinite(machine.device.memory_bytes_per_s) && machine.device.memory_bytes_per_s > 0.0);
        sw_rates_over_nodes(&machine.node, &job, &machine.rates);
        assert(machine.rates.gather.bytes_per_s > 0.0 && machine.rates.comm_latency_s >= 0.0);
        assert(machine.node.devices == 0 || machine.rates.among_data.reduce.bytes_per_s > 0.0);
        assert(isfinite(machine.rates.update.bytes_per_s) && machine.rates.update.bytes_per_s > 0.0);
    }
    sw_error_clear();
    return 0;
}
