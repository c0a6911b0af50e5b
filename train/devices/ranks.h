/* The ranks that train one run together, as its start and its loop see them. NULL is a process alone. */
#ifndef SW_TRAIN_DEVICES_RANKS_H
#define SW_TRAIN_DEVICES_RANKS_H

#include "core/ranks/comm.h"
#include "core/ranks/watch.h"
#include "offload/plan/plan.h"
#include "train/devices/devices.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The watch's lane of what the program itself does between steps, behind those of the engine. */
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
    struct sw_watch *watch;                                   /* NULL alone, and before the ranks have agreed */
    const char *command;                                      /* for messages */
    void (*ended)(void *ranks, const char *text, bool print); /* as struct sw_watch_spec has it */
    struct sw_ranks_gpu gpu;
    bool told;          /* every rank has the same error, which is rank 0's to print */
    atomic_bool keeps;  /* what is there is worth keeping: a failure ends the process at once */
    atomic_bool undone; /* until then: what was made has been removed again */
};

int sw_ranks_count(const struct sw_ranks *ranks);
int sw_ranks_rank(const struct sw_ranks *ranks);
/* Return this rank's number on its machine, and the number of ranks there. */
int sw_ranks_local_rank(const struct sw_ranks *ranks);
int sw_ranks_local_count(const struct sw_ranks *ranks);

/* Return the comm and the watch for an engine; NULL where this rank is alone. Both belong to `ranks`. */
struct sw_comm *sw_ranks_comm(const struct sw_ranks *ranks);
struct sw_watch *sw_ranks_watch(const struct sw_ranks *ranks);

/* Between two parts of a start that each rank does for itself: goes on only where all have succeeded. Else every rank
 * gets the error of the first that failed, so that it is said once. */
sw_status sw_ranks_gate(struct sw_ranks *ranks, sw_status own);
/* The same, of a part that rank 0 does for all. */
#define sw_ranks_first(ranks, part) sw_ranks_gate(ranks, sw_ranks_rank(ranks) == 0 ? (part) : SW_OK)

/* Compares claims among the ranks, as sw_comm_agree does. */
sw_status sw_ranks_agree(struct sw_ranks *ranks, const struct sw_comm_claim *claims, int count);
/* Replaces each value by the least over the ranks. */
sw_status sw_ranks_least(struct sw_ranks *ranks, int64_t *values, int count);
/* Replaces the value by the sum over the ranks. */
sw_status sw_ranks_sum(struct sw_ranks *ranks, int64_t *value);
/* Copies rank 0's bytes to all ranks. */
sw_status sw_ranks_spread(struct sw_ranks *ranks, const char *what, void *data, int64_t bytes);
/* Cores for each rank, so that all ranks of a machine have as many and they do not share any: the least of all. */
sw_status sw_ranks_cores(struct sw_ranks *ranks, int64_t *out);

/* Where several ranks share a machine of several NUMA nodes: this thread and those that it starts from now on stay near
 * the rank's GPU (its place on the bus, or NULL), or near a node that it shares with as few as can be. */
void sw_ranks_keep_to_node(const struct sw_ranks *ranks, const char *gpu_bus);

/* From now on ranks that die or hang are noticed, and end the others; where that is so already, after another time. The
 * time is the same on all. The watch begins patient. */
sw_status sw_ranks_begin_watch(struct sw_ranks *ranks, int64_t rank_timeout_s);
/* As sw_watch_be_patient: for what takes long and shows nothing meanwhile, as starts and exports do, which flush, pin
 * memory and measure. */
void sw_ranks_be_patient(struct sw_ranks *ranks, bool patient);

/* Where GPUs compute, NCCL is to move what they hold; the devices then belong to the ranks. Refused where NCCL's
 * collectives give wrong results. */
sw_status sw_ranks_use_gpu(struct sw_ranks *ranks, const struct sw_devices *devices);
/* Compares NCCL's collectives on small buffers with what they should give. All ranks, on an idle comm. */
sw_status sw_ranks_check_gpu(struct sw_ranks *ranks, const struct sw_devices *devices);
bool sw_ranks_hold(const struct sw_ranks *ranks, const struct sw_devices *devices);
/* Closes the GPU objects. Call it once the comm is closed. */
void sw_ranks_release_gpu(struct sw_ranks *ranks);

/* Tell the watch that this rank begins work of its own for which others may wait, gets on with it, and has done it. */
void sw_ranks_enter(struct sw_ranks *ranks, const char *what, int64_t index);
void sw_ranks_tick(struct sw_ranks *ranks);
void sw_ranks_leave(struct sw_ranks *ranks);

/* The run has begun: from now on a rank's failure leaves everything as it is. */
void sw_ranks_keep(struct sw_ranks *ranks);

#endif
