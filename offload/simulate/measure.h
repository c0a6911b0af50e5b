/* Measures the rates of this machine, one at a time, for the simulator and for the benches. Everything is measured as
 * the engine does it: in arenas, by chunks of the same size, through the same device and store. A rate is the best or
 * the median of a few rounds, and all of them take a second or two. Calls belong to one thread and allocate their
 * memory only for their duration. */
#ifndef SW_OFFLOAD_SIMULATE_MEASURE_H
#define SW_OFFLOAD_SIMULATE_MEASURE_H

#include "core/dtype.h"
#include "kernels/device.h"
#include "offload/simulate/rates.h"

/* The shape of a plan's chunks. */
struct sw_measure_shape {
    sw_dtype type; /* compute type */
    int64_t chunk_grains, ring_chunks;
    sw_optimizer_format optimizer; /* format of the optimizer state that is updated */
    sw_rounding rounding;          /* rounding of its moments */
};

/* Measures the upload and the download of chunks of weights. */
sw_status sw_measure_copies(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out_upload,
                            struct sw_rate *out_download);

/* Measures the fused update of chunks by its memory traffic: optimizer state and gradients read, optimizer state and
 * weights written. */
sw_status sw_measure_update(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out);

/* Measures copies of chunks within the device, by the bytes read and written. */
sw_status sw_measure_device_copy(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out);

/* Measures the rounding of accumulators to gradients, by the bytes of both, and the clearing of accumulators. */
sw_status sw_measure_accumulators(struct sw_device *device, const struct sw_measure_shape *shape,
                                  struct sw_rate *out_finish, struct sw_rate *out_zero);

/* Measures a store that is made for it in the directories, of SW_MEASURE_STORE_BYTES a generation over all of them. Its
 * files have no name, so nothing remains. */
#define SW_MEASURE_STORE_BYTES (INT64_C(256) << 20)
struct sw_store_rates {
    struct sw_rate read, write;
    double read_write_slowdown; /* factor of each direction's time while both run: 1 full duplex, 2 half duplex */
    double latency_s;           /* a read of one grain on an idle lane */
    double commit_s;
};
sw_status sw_measure_store(const char *const *directories, int directory_count, bool allow_buffered, int depth,
                           const struct sw_measure_shape *shape, struct sw_store_rates *out);

/* Measures the iteration of Muon on the CPU, in bytes as SW_MUON_FLOP_BYTES says. */
sw_status sw_measure_muon(struct sw_device *device, struct sw_rate *out);

/* Measures how much longer a chunk's update takes when another lane's thread must wake the thread that runs it, and
 * when it follows another update and wakes a thread at its end. */
sw_status sw_measure_handover(struct sw_device *device, const struct sw_measure_shape *shape, double *out_waited_s,
                              double *out_s);

/* Measures the least time of an op that is queued in a stream of an asynchronous device, with the marks that the engine
 * sets around it. */
sw_status sw_measure_queued(struct sw_device *device, double *out_s);

/* Returns the share of their usual time and memory that measurements take: 1, or less if SW_MEASURE_SHARE in the
 * environment says so. Rates are then coarse: tests that need any rates use it to be fast. */
double sw_measure_share(void);

/* Returns the median of some values, and sorts them. */
double sw_median(double *values, int count);

/* Returns the processor seconds that all threads of this process have used. */
double sw_cpu_seconds(void);

#endif
