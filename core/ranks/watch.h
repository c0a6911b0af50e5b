/* The watch over a job's ranks: when one dies, hangs or fails, every other learns it within seconds, with its number
 * and what it was doing.
 *
 * It has a thread of its own on each rank and TCP connections to rank 0, found by way of the comm's host memory and
 * used by nothing else, so it works where MPI or NCCL wait for ever. Each rank tells what its lanes have entered; rank
 * 0 judges. Where rank 0 itself is lost, the others judge that alone. A library does not end the process: `ended` is
 * told and decides.
 *
 * A rank alone has no watch, nor have ranks that are threads of one process, which live and end together: *out is NULL,
 * which all calls take. Any thread may report what a lane does. */
#ifndef SW_CORE_RANKS_WATCH_H
#define SW_CORE_RANKS_WATCH_H

#include "core/ranks/comm.h"

struct sw_watch;

enum {
    SW_WATCH_COMM = 0,   /* the comm's own lane; those of the caller begin behind it */
    SW_WATCH_LANES = 12, /* at most, with that one */
    SW_WATCH_TEXT_CHARS = 512,
};

struct sw_watch_spec {
    int64_t rank_timeout_ns;  /* a rank may give no sign of life, or make no progress while others wait, for so long */
    const char *remedy;       /* advice where a rank was only slow: "give ..."; NULL: none */
    const char *const *lanes; /* names of the caller's lanes 1, 2, ...; literals */
    int lane_count;           /* length of lanes; the comm's own lane is not among them */
    /* Called once, on the watch's thread, after every rank that still listens has been told. `print` is set on one of
     * the ranks that are left, which is to print the text. */
    void (*ended)(void *context, const char *text, bool print);
    void *context;
};

/* Opens the watch. All ranks call it at once, before sw_comm_use_nccl, and within the timeout. From then on the comm's
 * collectives are watched. */
sw_status sw_watch_open(struct sw_comm *comm, const struct sw_watch_spec *spec, struct sw_watch **out);
/* Says that this rank ends as it should, and closes the watch. Call it before the comm is closed. */
void sw_watch_close(struct sw_watch *watch);

/* Changes the timeout, which must be equal on all ranks. */
void sw_watch_set_timeout(struct sw_watch *watch, int64_t rank_timeout_ns);
/* Gives this rank SW_WATCH_PATIENCE times the timeout before it is taken to hang, or, without `patient`, the timeout
 * again. A start is healthy for long without progress to report. A rank that died or was stopped is found as ever. */
enum { SW_WATCH_PATIENCE = 10 };
void sw_watch_relax_timeout(struct sw_watch *watch, bool patient);

/* Report that a lane begins a piece of work, gets on with it, has done all that it was given. `what` is a literal. */
void sw_watch_enter(struct sw_watch *watch, int lane, const char *what, int64_t index);
void sw_watch_tick(struct sw_watch *watch, int lane);
void sw_watch_leave(struct sw_watch *watch, int lane);

/* Ends the job with the message of this rank's failure. Waits until `ended` is about to be called. Returns false where
 * nobody has answered, so that the message is still the caller's to print. */
bool sw_watch_fail(struct sw_watch *watch, const char *message);

#endif
