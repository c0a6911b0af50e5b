/* Measures what the ranks' collectives move, as the engine uses them: memory of the device, one request at a time, the
 * own share of a gather lying apart. All ranks call the same at once, on an idle comm that has its staging, and get the
 * same numbers: those of the slowest. */
#ifndef SW_OFFLOAD_SIMULATE_MEASURE_COMM_H
#define SW_OFFLOAD_SIMULATE_MEASURE_COMM_H

#include "core/ranks/comm.h"
#include "kernels/device.h"
#include "offload/simulate/rates.h"

/* One thing that all ranks do at once, in a few rounds of so many times; of the best, on the slowest rank. The first
 * round only touches the memory. */
struct sw_together {
    double seconds; /* of doing it once */
    double cores;
};
sw_status sw_measure_together(struct sw_comm *comm, sw_status (*run)(void *context), void *context, int64_t times,
                              struct sw_together *out);
/* Larger vectors than caches together; small ones are moved often enough to be timed. */
int64_t sw_measure_comm_times(int64_t bytes);

struct sw_measure_comm;

/* Takes memory for vectors of up to so many bytes. */
sw_status sw_measure_comm_open(struct sw_comm *comm, struct sw_device *device, sw_dtype type, int64_t most_bytes,
                               struct sw_measure_comm **out);
void sw_measure_comm_close(struct sw_measure_comm *measure);
/* Of vectors of about so many bytes, all shares together: bytes that a rank gives to the others. */
sw_status sw_measure_gather(struct sw_measure_comm *measure, int64_t bytes, struct sw_rate *out);
sw_status sw_measure_reduce(struct sw_measure_comm *measure, int64_t bytes, struct sw_rate *out);

/* What a simulator needs, into the rates of that name; a second or so. Of a rank alone nothing. */
sw_status sw_measure_comm_rates(struct sw_comm *comm, struct sw_device *device, sw_dtype type, struct sw_rates *rates);

#endif
