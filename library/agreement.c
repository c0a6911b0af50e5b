/* Processes agree on errors. Where a call can refuse, all exchange their verdicts before anything changes. Where one
 * fails amid a call, it says so in its part of the next exchange, in which the others are or to which they come: each
 * call of all processes ends with one (core/ranks/comm_caller.c). */
#include "core/ranks/comm.h"
#include "library/library_private.h"

#include <stdio.h>
#include <stdlib.h>

sw_status sw_library_open_comm(spillway *self) {
    const struct sw_comm_caller caller = {.rank = self->rank,
                                          .ranks = self->ranks,
                                          .gather = self->options.gather,
                                          .context = self->options.gather_context};
    if (self->ranks == 1)
        return SW_OK;
    self->verdict = calloc((size_t)self->ranks, sizeof *self->verdict);
    return self->verdict != NULL ? sw_comm_open_caller(&caller, &self->comm)
                                 : sw_fail(SW_ERR_NOMEM, "no memory for %d processes", self->ranks);
}

/* Returns the process whose error counts: the first that cannot go on, else the first with a wrong argument; -1: none.
 */
static int worst_of(const spillway *self) {
    int worst = -1;
    for (int rank = self->ranks - 1; rank >= 0; rank--) {
        const int64_t status = self->verdict[rank].status;
        if (status != SW_OK && (worst < 0 || status != SW_ERR_ARG || self->verdict[worst].status == SW_ERR_ARG))
            worst = rank;
    }
    return worst;
}

static sw_status share_verdict(const spillway *self, sw_status status, const char *what) {
    struct verdict *own = &self->verdict[self->rank];
    *own = (struct verdict){.status = status};
    if (status == SW_OK)
        return sw_comm_share_records(self->comm, what, self->verdict, sizeof *own);
    snprintf(own->text, sizeof own->text, "%s", sw_error_message(status));
    /* The error stays the one of this process, whatever becomes of the others. */
    SW_HANDLES_ERRORS();
    return sw_comm_share_records(self->comm, what, self->verdict, sizeof *own);
}

sw_status sw_library_agree(spillway *self, sw_status status, const char *what) {
    if (self->comm == NULL || status == SW_ERR_STOPPED)
        return status;
    const sw_status shared = share_verdict(self, status, what);
    if (shared != SW_OK)
        return status != SW_OK ? status : shared;
    const int worst = worst_of(self);
    self->agreed = worst >= 0;
    if (worst < 0 || (status != SW_OK && (status != SW_ERR_ARG || self->verdict[worst].status == SW_ERR_ARG)))
        return status;
    sw_error_clear();
    return sw_fail(self->verdict[worst].status == SW_ERR_ARG ? SW_ERR_ARG : SW_ERR_STOPPED, "process %d failed: %s",
                   worst, self->verdict[worst].text);
}

sw_status sw_library_meet(const spillway *self) {
    return self->comm != NULL ? sw_comm_barrier(self->comm, "end") : SW_OK;
}

void sw_library_tell(spillway *self, const char *message) {
    char text[LIBRARY_ERROR_CHARS];
    if (self->comm == NULL || self->agreed)
        return;
    snprintf(text, sizeof text, "%s", message);
    SW_HANDLES_ERRORS();
    sw_engine_close(self->engine);
    self->engine = NULL;
    sw_comm_tell(self->comm, text);
}
