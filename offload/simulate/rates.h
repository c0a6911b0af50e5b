/* The rates of a machine, each measured by itself, with which the simulator prices a plan. measure.h measures all of
 * them except the times of a model's units, which come from the caller that has the units' arithmetic. */
#ifndef SW_OFFLOAD_SIMULATE_RATES_H
#define SW_OFFLOAD_SIMULATE_RATES_H

/* The rate of one way of moving or working on bytes. */
#include <stdbool.h>

struct sw_rate {
    double bytes_per_s;
    double cores; /* cores kept busy meanwhile, among those that the device's arithmetic uses too; 0 on a GPU */
};

/* Two flops, a multiplication and an addition, count as one fp32 number. */
enum { SW_MUON_FLOP_BYTES = 2 };

/* The rates of collectives among some of a job's ranks. gather.bytes_per_s 0: these collectives take as long as those
 * of all ranks. */
struct sw_scope_rates {
    struct sw_rate gather, reduce; /* by the bytes that a rank gives to the others */
    double latency_s;              /* a collective that moves next to nothing */
};

/* The times of a unit's arithmetic, of one micro-batch. */
struct sw_unit_seconds {
    double forward_s, backward_s; /* the head's backward is its whole op: loss and gradients */
    double recompute_s, derive_s; /* extra backward time to recompute all intermediates, or the derived ones */
    double last_product_s, first_product_s; /* the part of backward_s that the gradients of the weights of a block's
                                               last and first product take, which in a tensor group are ops */
};

struct sw_rates {
    double cores;         /* cores that compute, update, copies and I/O share */
    double compute_cores; /* cores that an op of the compute lane keeps busy; 0 on a GPU */
    struct sw_rate upload, download;
    struct sw_rate update; /* updates on the host, by their memory traffic: bytes of SW_OP_UPDATE_ON_HOST */
    struct sw_rate update_bf16,
        update_8bit; /* updates of narrow state on the host; bytes_per_s 0: as long per parameter as fp32 state */
    /* The products of Muon's iteration by the cores, where one flop counts as SW_MUON_FLOP_BYTES; bytes_per_s 0: as
     * fast as the passes of the unit. */
    struct sw_rate muon;
    struct sw_rate update_on_device; /* updates on the device, by their memory traffic */
    struct sw_rate finish, zero;     /* rounding accumulators to gradients, by op bytes; clearing them, by theirs */
    struct sw_rate read, write;      /* the store, each direction by itself */
    double read_write_slowdown;      /* factor of each direction's time while both run: 1 full duplex, 2 half duplex */
    double io_latency_s;             /* first transfer of an idle lane */
    double commit_s;
    struct sw_rate gather,
        reduce; /* all-gather and reduce-scatter among all ranks, by the bytes that a rank gives to the others */
    double comm_latency_s;            /* a collective of all ranks that moves next to nothing */
    struct sw_scope_rates in_node;    /* collectives among the ranks of one node */
    struct sw_scope_rates among_data; /* collectives among the ranks with the same part of every layer */
    /* With expert groups: among the ranks with the same part of layers without experts. */
    struct sw_scope_rates among_sharers;
    /* Exchanges of a tensor group, and of an expert group. gather and reduce count the bytes that stay within a node;
     * bytes that leave the node move at between_bytes_per_s. */
    struct sw_scope_rates in_group, in_experts;
    double between_bytes_per_s; /* rate of bytes from a rank to ranks of other nodes; 0: all ranks are equally near */
    double op_s;                /* from the end of an op to the start of one that waited for it */
    double queued_op_s; /* time from the end of an op to the start of the next: queued by a GPU, or on a CPU's lane */
    const struct sw_unit_seconds *units; /* one entry per unit */
    bool frozen_left_out;                /* the unit times are of a model whose frozen tensors got no gradients */
};

#endif
