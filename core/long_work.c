#include "core/long_work.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"

#include <stdio.h>
#include <unistd.h>

/* A person at a terminal is told soon; a file that keeps the messages needs few. */
#define SAY_EVERY_NS INT64_C(3000000000)
#define WRITE_EVERY_NS INT64_C(30000000000)

static const volatile sig_atomic_t *_Atomic stop_flag;

void sw_long_work_stop_by(const volatile sig_atomic_t *stop) {
    stop_flag = stop;
}

struct sw_long_work sw_long_work_begin(const char *what, int64_t total_bytes) {
    const int64_t now_ns = sw_now_ns();
    struct sw_long_work work = {.total_bytes = total_bytes, .begun_ns = now_ns, .said_ns = now_ns};
    snprintf(work.what, sizeof work.what, "%s", what);
    return work;
}

sw_status sw_long_work_at(struct sw_long_work *work, int64_t done_bytes) {
    const volatile sig_atomic_t *stop = stop_flag;
    const int64_t now_ns = sw_now_ns();
    char done[SW_SIZE_CHARS], total[SW_SIZE_CHARS];
    if (stop != NULL && *stop)
        return sw_fail(SW_ERR_STOPPED, "stopped while %s", work->what);
    if (work->total_bytes == SW_LONG_WORK_SILENT || now_ns - work->said_ns < SAY_EVERY_NS ||
        (now_ns - work->said_ns < WRITE_EVERY_NS && isatty(STDERR_FILENO) != 1))
        return SW_OK;
    work->said_ns = now_ns;
    if (work->total_bytes > 0)
        sw_log_info("%s: %s of %s", work->what, sw_format_size(done_bytes, done),
                    sw_format_size(work->total_bytes, total));
    else
        sw_log_info("%s: %.0f s so far", work->what, (double)(now_ns - work->begun_ns) * 1e-9);
    return SW_OK;
}
