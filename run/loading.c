#include "run/loading.h"

#include "core/clock.h"
#include "core/log.h"
#include "job/writes.h"
#include "run/folder/frozen.h"
#include "run/progress.h"

#include <unistd.h>

#define GB 1e-9

struct loading {
    const struct sw_trainer *trainer;
    struct sw_progress progress;
    int64_t total_bytes; /* bytes to read and to write */
};

/* Shows the progress. A request to stop ends the loading at once, because before the first commit nothing is worth
 * finishing. */
static sw_status show_progress(void *context, int64_t done_grains, int64_t total_grains) {
    struct loading *loading = context;
    if (*loading->trainer->stop)
        return sw_fail(SW_ERR_STOPPED, "stopped before the first commit, so nothing is left of the run");
    const double share = (double)done_grains / (double)total_grains;
    sw_progress_at(&loading->progress, (int64_t)(share * (double)loading->total_bytes), loading->total_bytes,
                   sw_now_ns());
    return SW_OK;
}

static void say_rate(int64_t read_bytes, int64_t written_bytes, int64_t nanoseconds) {
    const double seconds = (double)nanoseconds * 1e-9, total = (double)(read_bytes + written_bytes);
    sw_log_info("loaded the weights in %.2f s: %.2f GB read and %.2f GB written, %.2f GB/s", seconds,
                GB * (double)read_bytes, GB * (double)written_bytes, GB * total / seconds);
}

sw_status sw_loading_run(struct sw_trainer *trainer) {
    const int64_t start_ns = sw_now_ns(), written_before = sw_store_counters(trainer->store).write_bytes;
    struct loading loading = {
        .trainer = trainer,
        .progress = sw_progress_begin("loading the weights", stderr, sw_log_takes_escapes(STDERR_FILENO), start_ns),
        .total_bytes = sw_source_bytes_to_read(trainer->source) + sw_writes_of_loading(trainer->plan)};
    const struct sw_load source = sw_source_load(trainer->source);
    struct sw_load load = sw_frozen_load(trainer->frozen, &source);
    load.progress = show_progress;
    load.progress_context = &loading;
    const sw_status status = sw_engine_load(trainer->engine, &load);
    sw_progress_break(&loading.progress);
    if (status == SW_OK)
        say_rate(sw_source_bytes_read(trainer->source), sw_store_counters(trainer->store).write_bytes - written_before,
                 sw_now_ns() - start_ns);
    sw_source_close(trainer->source);
    trainer->source = NULL;
    return status;
}
