#include "run/progress.h"

#include "core/log.h"
#include "core/size.h"

#define SILENT_NS INT64_C(1000000000)
#define TERMINAL_EVERY_NS INT64_C(200000000)
#define PLAIN_EVERY_NS INT64_C(5000000000)

struct sw_progress sw_progress_begin(const char *what, FILE *to, bool on_terminal, int64_t now_ns) {
    return (struct sw_progress){
        .what = what, .to = to, .on_terminal = on_terminal, .start_ns = now_ns, .shown_ns = now_ns};
}

static double gb(double bytes) {
    return bytes * 1e-9;
}

void sw_progress_at(struct sw_progress *progress, int64_t done_bytes, int64_t total_bytes, int64_t now_ns) {
    if (progress->working_ns == 0)
        progress->working_ns = now_ns;
    if (sw_log_is_quiet())
        return;
    const int64_t first_ns = progress->on_terminal ? SILENT_NS : PLAIN_EVERY_NS;
    const int64_t every_ns = progress->on_terminal ? TERMINAL_EVERY_NS : PLAIN_EVERY_NS;
    if (now_ns - progress->start_ns < first_ns || now_ns - progress->shown_ns < every_ns || done_bytes <= 0 ||
        now_ns == progress->working_ns)
        return;
    char left[SW_TIME_TEXT_CHARS];
    const double seconds = (double)(now_ns - progress->working_ns) / 1e9, rate = (double)done_bytes / seconds;
    sw_format_duration(seconds * (double)(total_bytes - done_bytes) / (double)done_bytes, left);
    fprintf(progress->to, "%s%s: %.2f of %.2f GB, %.2f GB/s, %s left%s", progress->on_terminal ? "\r" : "",
            progress->what, gb((double)done_bytes), gb((double)total_bytes), gb(rate), left,
            progress->on_terminal ? "\033[K" : "\n");
    fflush(progress->to);
    progress->shown_ns = now_ns;
    progress->line_open = progress->on_terminal;
}

void sw_progress_end(struct sw_progress *progress, int64_t total_bytes, int64_t now_ns) {
    const double seconds = (double)(now_ns - progress->start_ns) / 1e9;
    if (now_ns - progress->start_ns >= SILENT_NS && !sw_log_is_quiet())
        fprintf(progress->to, "%s%s: %.2f GB in %.1f s, %.2f GB/s%s\n", progress->line_open ? "\r" : "", progress->what,
                gb((double)total_bytes), seconds, gb((double)total_bytes / seconds),
                progress->line_open ? "\033[K" : "");
    progress->line_open = false;
}

void sw_progress_break(struct sw_progress *progress) {
    if (progress->line_open)
        fputc('\n', progress->to);
    progress->line_open = false;
}
