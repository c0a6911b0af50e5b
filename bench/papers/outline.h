/* Plans of models of any size, for a described device without a limit: what the papers' formulas are beside. */
#ifndef SW_BENCH_PAPERS_OUTLINE_H
#define SW_BENCH_PAPERS_OUTLINE_H

#include "job/job.h"
#include "offload/simulate/simulate.h"

/* A model of the GPT-2 family, how it is trained and where its state lives. Members that are 0 take the default. */
struct sw_paper_case {
    int64_t layers, hidden;
    int64_t heads;      /* 0: heads of 128 */
    int64_t parameters; /* the vocabulary is as large as makes this number; 0: GPT-2's vocabulary */
    int64_t sequences;  /* of 1024 tokens in a micro-batch; 0: one */
    int64_t tiles;
    int ranks, zero;
    const char *place;    /* as --place; NULL: everything on the device */
    int64_t device_bytes; /* memory of the device; 0: no limit */
    bool two_generations; /* as by default; otherwise the store keeps one generation (--durability none) */
};
enum { SW_PAPER_SEQ = 1024 };

struct sw_paper_plan {
    struct sw_settings settings;
    struct sw_job job; /* its plan is an outline, until it is simulated */
    double parameters;
    double tokens; /* of a step and rank */
};

/* Makes the outline of rank 0. The caller closes it, even after an error. */
sw_status sw_paper_open(const struct sw_paper_case *which, struct sw_paper_plan *out);
void sw_paper_close(struct sw_paper_plan *plan);

/* Returns the bytes of the slots, in all tiers, that keep weights, gradients and optimizer state. */
double sw_paper_states_bytes(const struct sw_plan *plan);
/* Returns the bytes of all slots of a name; shared: of those that belong to no unit, else of those that do. */
double sw_paper_slot_bytes(const struct sw_plan *plan, const char *name, bool shared);

/* A machine of four rates. A lane without a rate takes no time. */
struct sw_paper_machine {
    double flops_per_s;
    double link_bytes_per_s; /* each way */
    double read_bytes_per_s, write_bytes_per_s;
    double host_bytes_per_s; /* memory traffic of updates on the host */
    double comm_bytes_per_s;
};
/* Completes the plan and simulates a step, whose products run at the machine's rate. */
sw_status sw_paper_simulate(struct sw_paper_plan *plan, sw_program_kind kind, const struct sw_paper_machine *machine,
                            struct sw_simulation *out);

#endif
