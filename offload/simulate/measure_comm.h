/* Measures the ranks' collectives as the engine uses them: in memory of the device, one request at a time, with this
 * rank's share of a gather in a buffer of its own. All ranks make the same calls at once, on an idle comm that has its
 * staging memory, and get the same numbers, which come from the slowest rank. */
#ifndef SW_OFFLOAD_SIMULATE_MEASURE_COMM_H
#define SW_OFFLOAD_SIMULATE_MEASURE_COMM_H

#include "core/ranks/comm.h"
#include "kernels/device.h"
#include "offload/simulate/rates.h"

/* The best of a few rounds, on the slowest rank, of something that all ranks do at once. */
struct sw_together {
    double seconds; /* time of doing it once */
    double cores;   /* cores that it keeps busy */
};
/* Calls `run` `times` times in each round, on all ranks at once. The first round only touches the memory. */
sw_status sw_measure_together(struct sw_comm *comm, sw_status (*run)(void *context), void *context, int64_t times,
                              struct sw_together *out);
/* Returns how often to move a vector of so many bytes, so that the time is long enough to be measured. */
int64_t sw_measure_comm_times(int64_t bytes);

struct sw_measure_comm;

/* Takes memory for vectors of up to most_bytes. The caller closes it. */
sw_status sw_measure_comm_open(struct sw_comm *comm, struct sw_device *device, sw_dtype type, int64_t most_bytes,
                               struct sw_measure_comm **out);
void sw_measure_comm_close(struct sw_measure_comm *measure);
/* Measure vectors of about `bytes` bytes, all shares together; the rate counts bytes that a rank gives to the others.
 */
sw_status sw_measure_gather(struct sw_measure_comm *measure, int64_t bytes, struct sw_rate *out);
sw_status sw_measure_reduce(struct sw_measure_comm *measure, int64_t bytes, struct sw_rate *out);

/* Measures rates->gather, reduce and comm_latency_s, in about a second, and rates->in_node if every node has the same
 * number of neighbouring ranks, more than one; otherwise in_node becomes 0. A single rank measures nothing. */
sw_status sw_measure_comm_rates(struct sw_comm *comm, struct sw_device *device, sw_dtype type, struct sw_rates *rates);

#endif
