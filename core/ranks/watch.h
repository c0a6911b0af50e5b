/* The watch over a job's ranks: if one dies, hangs or fails, all others learn within seconds which one, and what it was
 * doing.
 *
 * It has its own thread on each rank and TCP connections to rank 0, found through the comm's host memory and used by
 * nothing else, so it works while MPI or NCCL wait for ever. Each rank reports what its lanes have entered; rank 0
 * judges. If rank 0 itself is lost, the others judge only that. A library does not end the process: `ended` is told,
 * and decides.
 *
 * A single process has no watch, nor do ranks that are threads of one process, which live and end together: *out is
 * NULL, which all calls accept. Any thread may report what a lane does. */
#ifndef SW_CORE_RANKS_WATCH_H
#define SW_CORE_RANKS_WATCH_H

#include "core/ranks/comm.h"

struct sw_watch;

enum {
    SW_WATCH_COMM = 0,   /* the comm's own lane; the caller's lanes follow it */
    SW_WATCH_LANES = 12, /* the most lanes, including that one */
    SW_WATCH_TEXT_CHARS = 512,
};

struct sw_watch_spec {
    int64_t rank_timeout_ns;  /* how long a rank may give no sign of life, or make no progress while others wait */
    const char *remedy;       /* advice if a rank was only slow: "give ..."; NULL: none */
    const char *const *lanes; /* names of the caller's lanes 1, 2, ...; literals */
    int lane_count;           /* number of names, without the comm's own lane */
    /* Called once, on the watch's thread, after every rank that still listens has been told. `print` is set on one of
     * the remaining ranks, which must print the text. */
    void (*ended)(void *context, const char *text, bool print);
    void *context;
};

/* Opens the watch. All ranks call it together, before sw_comm_use_nccl, and within the timeout. From then on the comm's
 * collectives are watched. */
sw_status sw_watch_open(struct sw_comm *comm, const struct sw_watch_spec *spec, struct sw_watch **out);
/* Announces that this rank ends normally, and closes the watch. Call it before the comm is closed. */
void sw_watch_close(struct sw_watch *watch);

/* Changes the timeout, which must be equal on all ranks. */
void sw_watch_set_timeout(struct sw_watch *watch, int64_t rank_timeout_ns);
/* Gives this rank SW_WATCH_RELAXED_FACTOR times the timeout before it counts as hanging; without `relaxed`, the plain
 * timeout again. A healthy start may show no progress for long. A rank that dies or is stopped is still found as
 * before. */
enum { SW_WATCH_RELAXED_FACTOR = 10 };
void sw_watch_relax_timeout(struct sw_watch *watch, bool relaxed);

/* Report that a lane begins a piece of work, makes progress, or has done everything it was given. `what` is a literal.
 */
void sw_watch_enter(struct sw_watch *watch, int lane, const char *what, int64_t index);
void sw_watch_tick(struct sw_watch *watch, int lane);
void sw_watch_leave(struct sw_watch *watch, int lane);

/* Ends the job with this rank's failure message. Waits until `ended` is about to be called. Returns false if nobody
 * answered; the caller must then print the message. */
bool sw_watch_fail(struct sw_watch *watch, const char *message);

#endif
