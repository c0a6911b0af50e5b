/* Measures what this machine does, each thing alone, for the simulator and for the benches. Everything is measured as
 * the engine does it: in arenas, by chunks of the same size, through the same device and store. The best or the
 * median of a few rounds; a second or two in all. Calls belong to one thread and allocate what they measure with, for
 * their duration.
 */
#ifndef SW_OFFLOAD_SIMULATE_MEASURE_H
#define SW_OFFLOAD_SIMULATE_MEASURE_H

#include "core/dtype.h"
#include "kernels/device.h"
#include "offload/simulate/rates.h"

/* What the chunks of a plan are like. */
struct sw_measure_shape {
    sw_dtype type;
    int64_t chunk_grains, ring_chunks;
};

/* upload and download of chunks of weights. */
sw_status sw_measure_copies(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out_upload,
                            struct sw_rate *out_download);

/* The fused update of chunks, by its memory traffic: records and gradients read, records and weights written. */
sw_status sw_measure_update(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out);

/* Copies of chunks within the device, by what they read and write. */
sw_status sw_measure_device_copy(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out);

/* Accumulator chunks to gradients, by the bytes of both, and clearing accumulators, by theirs. */
sw_status sw_measure_accumulators(struct sw_device *device, const struct sw_measure_shape *shape,
                                  struct sw_rate *out_finish, struct sw_rate *out_zero);

/* A store of its own in the directories, of files without a name, so that nothing is left of it: SW_MEASURE_STORE_BYTES
 * a generation over all of them. */
#define SW_MEASURE_STORE_BYTES (INT64_C(256) << 20)
struct sw_store_rates {
    struct sw_rate read, write;
    double read_write_slowdown;
    double latency_s, commit_s;
};
sw_status sw_measure_store(const char *const *directories, int directory_count, bool allow_buffered, int depth,
                           const struct sw_measure_shape *shape, struct sw_store_rates *out);

/* What a chunk's update takes beyond its traffic at that rate, when a thread must be woken for it by another lane's. */
sw_status sw_measure_handover(struct sw_device *device, const struct sw_measure_shape *shape,
                              const struct sw_rate *update, double *out_s);

/* What an op takes at least that a stream of the device has queued, with the marks that the engine sets around it. For
 * a device that is asynchronous. */
sw_status sw_measure_queued(struct sw_device *device, double *out_s);

/* The median of some measurements, which are sorted. */
double sw_median(double *values, int count);

/* Processor seconds that this process has used, all threads. */
double sw_cpu_seconds(void);

#endif
