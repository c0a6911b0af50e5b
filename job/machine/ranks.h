/* The ranks that train one run together. For every function here, a NULL pointer means a single process. */
#ifndef SW_JOB_MACHINE_RANKS_H
#define SW_JOB_MACHINE_RANKS_H

#include "core/ranks/comm.h"
#include "core/ranks/watch.h"
#include "job/machine/devices.h"
#include "offload/plan/plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The watch's lane for work of the program between steps. The engine's lanes come before it. */
enum { SW_RANKS_LANE = 1 + SW_LANES };

/* The GPU objects that NCCL uses. They outlive the trainer, and are closed after the comm. */
struct sw_ranks_gpu {
    struct sw_devices devices;
    struct sw_stream *stream;
    struct sw_comm_device comm;
    bool used; /* comm is open */
};

struct sw_ranks {
    struct sw_comm *comm;
    struct sw_watch *watch; /* NULL: a single process, or sw_ranks_begin_watch was not called yet */
    const char *command;    /* name of the command, for messages */
    void (*ended)(void *ranks, const char *text,
                  bool print); /* called when the watch ends this process (struct sw_watch_spec) */
    struct sw_ranks_gpu gpu;
    bool told;          /* all ranks have the same error, which rank 0 prints */
    atomic_bool keeps;  /* the run has begun: a failure ends the process at once and removes nothing */
    atomic_bool undone; /* what a failed start made has been removed */
};

int sw_ranks_count(const struct sw_ranks *ranks);
int sw_ranks_rank(const struct sw_ranks *ranks);
/* Return this rank's number on its machine, and the number of ranks there. */
int sw_ranks_local_rank(const struct sw_ranks *ranks);
int sw_ranks_local_count(const struct sw_ranks *ranks);

/* Return the comm and the watch for an engine; NULL for a single process. `ranks` owns both. */
struct sw_comm *sw_ranks_comm(const struct sw_ranks *ranks);
struct sw_watch *sw_ranks_watch(const struct sw_ranks *ranks);

/* Agrees on the outcome of a part that each rank does by itself; own is this rank's status. Returns SW_OK if all ranks
 * succeeded, or on every rank the error of the first that failed. All ranks call it together. */
sw_status sw_ranks_agree_on_error(struct sw_ranks *ranks, sw_status own);
/* Forgets an error that all ranks have agreed on, because they go on without what failed. */
void sw_ranks_forget_error(struct sw_ranks *ranks);
/* Agrees on the status of a part that rank 0 does for all. The other ranks do not evaluate `part`. */
#define sw_ranks_first(ranks, part) sw_ranks_agree_on_error(ranks, sw_ranks_rank(ranks) == 0 ? (part) : SW_OK)

/* Compares claims among the ranks, as sw_comm_agree does. */
sw_status sw_ranks_agree(struct sw_ranks *ranks, const struct sw_comm_claim *claims, int count);
/* Replaces each value by its minimum over the ranks. */
sw_status sw_ranks_least(struct sw_ranks *ranks, int64_t *values, int count);
/* Replaces the value by its sum over the ranks. */
sw_status sw_ranks_sum(struct sw_ranks *ranks, int64_t *value);
/* Copies rank 0's bytes to all ranks. */
sw_status sw_ranks_spread(struct sw_ranks *ranks, const char *what, void *data, int64_t bytes);
/* Collects `bytes` bytes from each rank, at `own`, in rank order. The caller frees *out, which is NULL on failure. All
 * ranks fail together if one has no memory. */
sw_status sw_ranks_collect(struct sw_ranks *ranks, const char *what, const void *own, int64_t bytes, void **out);
/* Returns how many cores each rank may use without sharing any: the smallest number over all ranks, so that all use the
 * same. */
sw_status sw_ranks_cores(struct sw_ranks *ranks, int64_t *out);

/* Binds this thread, and the threads it starts later, to the NUMA node of the rank's GPU (gpu_bus: its bus address;
 * NULL: no GPU), or to a node that as few ranks as possible share. Does nothing for the only rank of a machine. */
void sw_ranks_keep_to_node(const struct sw_ranks *ranks, const char *gpu_bus);

/* Begins to watch: a rank that dies or is silent for rank_timeout_s ends all others. If the watch already runs, changes
 * only the timeout. The timeout must be the same on all ranks. The watch begins with a relaxed timeout. */
sw_status sw_ranks_begin_watch(struct sw_ranks *ranks, int64_t rank_timeout_s);
/* Relaxes the timeout (sw_watch_relax_timeout) for long work that shows no progress, such as flushing, pinning memory
 * and measuring during starts and exports. */
void sw_ranks_relax_timeout(struct sw_ranks *ranks, bool relaxed);

/* Makes NCCL the transport if GPUs compute; `ranks` then owns the devices. Fails if NCCL's collectives give wrong
 * results. */
sw_status sw_ranks_use_gpu(struct sw_ranks *ranks, const struct sw_devices *devices);
/* Compares NCCL's collectives on small buffers with the expected results. All ranks call it together, on an idle comm.
 */
sw_status sw_ranks_check_gpu(struct sw_ranks *ranks, const struct sw_devices *devices);
/* Returns the stream on which an engine runs NCCL's collectives; NULL: the comm exchanges host memory. */
struct sw_stream *sw_ranks_stream(const struct sw_ranks *ranks);
bool sw_ranks_hold(const struct sw_ranks *ranks, const struct sw_devices *devices);
/* Closes the GPU objects. Call it after the comm is closed. */
void sw_ranks_release_gpu(struct sw_ranks *ranks);

/* Tell the watch that this rank begins work that others may wait for, makes progress, or has finished it. */
void sw_ranks_enter(struct sw_ranks *ranks, const char *what, int64_t index);
void sw_ranks_tick(struct sw_ranks *ranks);
void sw_ranks_leave(struct sw_ranks *ranks);

/* Declares that the run has begun: from now on a failure leaves everything as it is. */
void sw_ranks_keep(struct sw_ranks *ranks);

#endif
