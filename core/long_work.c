#include "core/long_work.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

/* A terminal shows progress often. A file keeps every line, and needs few. */
#define FIRST_SHOWN_NS INT64_C(2000000000)
#define SHOW_EVERY_NS INT64_C(500000000)
#define WRITE_EVERY_NS INT64_C(30000000000)
enum { LINE_CHARS = 160 };

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

static void describe(const struct sw_long_work *work, int64_t done, int64_t now_ns, char line[LINE_CHARS]) {
    char done_text[SW_SIZE_CHARS], total[SW_SIZE_CHARS];
    if (work->total_bytes == 0)
        snprintf(line, LINE_CHARS, "%s: %.0f s so far", work->what, (double)(now_ns - work->begun_ns) * 1e-9);
    else if (work->unit != NULL)
        snprintf(line, LINE_CHARS, "%s: %lld of %lld %s", work->what, (long long)done, (long long)work->total_bytes,
                 work->unit);
    else
        snprintf(line, LINE_CHARS, "%s: %s of %s", work->what, sw_format_size(done, done_text),
                 sw_format_size(work->total_bytes, total));
}

sw_status sw_long_work_at(struct sw_long_work *work, int64_t done) {
    const volatile sig_atomic_t *stop = stop_flag;
    const int64_t now_ns = sw_now_ns();
    const bool on_terminal = sw_log_takes_escapes(STDERR_FILENO);
    char line[LINE_CHARS];
    if (stop != NULL && *stop)
        return sw_fail(SW_ERR_STOPPED, "stopped while %s", work->what);
    if (work->total_bytes == SW_LONG_WORK_SILENT || now_ns - work->begun_ns < FIRST_SHOWN_NS ||
        now_ns - work->said_ns < (on_terminal ? SHOW_EVERY_NS : WRITE_EVERY_NS))
        return SW_OK;
    work->said_ns = now_ns;
    describe(work, done, now_ns, line);
    if (on_terminal)
        sw_log_progress(line);
    else
        sw_log_info("%s", line);
    return SW_OK;
}

void sw_long_work_end(const struct sw_long_work *work) {
    if (work->total_bytes != SW_LONG_WORK_SILENT)
        sw_log_end_progress();
}
