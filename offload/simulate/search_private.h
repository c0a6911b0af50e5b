/* The parts of a search: candidates and their prices (search.c), the updates and the placement of one group size
 * (search_updates.c, search_placement.c). */
#ifndef SW_OFFLOAD_SIMULATE_SEARCH_PRIVATE_H
#define SW_OFFLOAD_SIMULATE_SEARCH_PRIVATE_H

#include "offload/simulate/search.h"

/* The part of a step that a change must save to be worth it: rates are not known more closely. */
#define SW_SEARCH_LEAST_SAVED 0.005

/* About how many ops of plans one round of placing updates may simulate. */
enum { SW_SEARCH_MOST_UPDATE_OPS = 1500000 };

/* A candidate: all that makes a plan beside what the specification fixes. */
struct sw_candidate {
    bool *streams; /* one entry per unit: its update runs on the device */
    struct sw_rise_order rises;
};

/* Prices of plans that were tried, by a hash of what they do, so that none is simulated twice. */
struct sw_seen {
    uint64_t hash; /* 0: a free entry */
    double step_s; /* a lower bound where it is not exact */
    bool exact;
};

/* The search within one group size, which is that of the specification. */
struct sw_search {
    struct sw_plan_spec spec; /* its update_on_device and rises are those of `next` */
    const struct sw_rates *rates;
    struct sw_candidate next; /* what is tried next */
    struct sw_candidate best; /* the candidate of `plan` */
    struct sw_plan *plan;     /* the cheapest so far of this climb; NULL: none yet */
    double best_s;
    struct sw_seen *seen;
    int64_t tried, simulated, ops;
    int64_t usual_nvme_bytes; /* of the first plan tried; -1: none yet */
    int64_t most_ops;         /* the search ends when it has simulated so many */
};

sw_status sw_search_begin(const struct sw_plan_spec *spec, const struct sw_rates *rates, int64_t most_ops,
                          struct sw_search *s);
void sw_search_end(struct sw_search *s);

/* Copies a candidate's arrays. */
void sw_search_copy(const struct sw_search *s, const struct sw_candidate *from, struct sw_candidate *to);

/* Outlines and prices `next` and keeps it where it is the cheapest. *out_s is infinite where it does not fit, and,
 * unless it is to be priced `always`, where it cannot be the cheapest. */
sw_status sw_search_try(struct sw_search *s, bool always, double *out_s);

/* Begins a climb anew from a candidate, which replaces the best; where it does not fit, there is none. */
sw_status sw_search_take(struct sw_search *s, const struct sw_candidate *candidate);

/* Searches where updates run, from the best so far. */
sw_status sw_search_updates(struct sw_search *s);
/* Searches what rises first and how far, from the best so far, until no change gains. */
struct sw_climb {
    bool orders_first; /* changes of the order come before those of shares, which leads to other summits */
    bool pairs;        /* also by changes of two things at a time */
};
sw_status sw_search_placement(struct sw_search *s, struct sw_climb how);

/* Sets `next` to the best, with all updates on one side. */
void sw_search_stream_all(struct sw_search *s, bool streams);

#endif
