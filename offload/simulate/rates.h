/* What a machine does, each thing alone: what the simulator prices a plan with. Measured by measure.h and, for a
 * model's units, by whoever has their arithmetic. */
#ifndef SW_OFFLOAD_SIMULATE_RATES_H
#define SW_OFFLOAD_SIMULATE_RATES_H

/* One way of moving or working on bytes. */
struct sw_rate {
    double bytes_per_s;
    double cores; /* that it keeps busy meanwhile, of those that the device's arithmetic uses too; 0 on a GPU */
};

struct sw_rates {
    double cores;         /* that compute, update, copies and I/O share */
    double compute_cores; /* that an op of the compute lane keeps busy; 0 on a GPU */
    struct sw_rate upload, download;
    struct sw_rate update;           /* on the host, by its memory traffic: op bytes of SW_OP_UPDATE_ON_HOST */
    struct sw_rate update_on_device; /* the same on the device */
    struct sw_rate finish, zero;     /* accumulator to gradient, by op bytes; clearing one, by its bytes */
    struct sw_rate read, write;      /* of the store, alone */
    double read_write_slowdown;      /* of each while both run at once: 1 full duplex, 2 half duplex */
    double io_latency_s;             /* of the first transfer of an idle lane */
    double commit_s;
    /* Between ranks, by the bytes that one gives to the others: shares to all, and parts of sums with the adding. What
     * a collective takes however little it moves. */
    struct sw_rate gather, reduce;
    double comm_latency_s;
    double op_s; /* from the end of an op to the start of one that waited for it */
    /* The same on the lanes of a device that works on its own, where ops wait in its queues; op_s where threads do. */
    double queued_op_s;
    /* Of each unit, seconds of one micro-batch. The head's backward is its whole op: loss and gradients. */
    const double *forward_s, *backward_s;
    /* What a backward takes longer where its intermediates are computed again: all of them, or those that are derived.
     */
    const double *recompute_s, *derive_s;
};

#endif
