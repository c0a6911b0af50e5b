/* Uploads and downloads at once, as in a step: two threads, each with a stream of its own. */
#ifndef SW_BENCH_KERNELS_COPY_BOTH_H
#define SW_BENCH_KERNELS_COPY_BOTH_H

#include "kernels/device.h"

struct sw_copy_both;

/* Takes memory on both sides for copies of up to so many bytes. The caller closes it, even after an error. */
sw_status sw_copy_both_open(struct sw_device *device, int64_t bytes, struct sw_copy_both **out);
void sw_copy_both_close(struct sw_copy_both *both);

/* Measures the bytes a second of each way while the other runs too, by chunks. */
sw_status sw_copy_both_run(struct sw_copy_both *both, int64_t chunk_bytes, double *out_upload, double *out_download);

#endif
