#include "kernels/cpu/share.h"

#include "core/size.h"
#include "core/status.h"
#include "core/team.h"

/* With this many pieces per thread, no thread waits long for a slow one, and handing them out costs nothing compared
 * with the work. */
enum { PIECES_OF_THREAD = 8 };

struct share {
    sw_cpu_items run;
    const void *context;
    int64_t items, piece;
};

static void do_piece(void *context, int64_t index, int thread) {
    const struct share *share = context;
    const int64_t first = index * share->piece;
    share->run(share->context, first, sw_min_i64(first + share->piece, share->items), thread);
}

/* Starts the stream's threads on first use: most streams only copy. Without memory for them the calling thread does all
 * the work, more slowly. */
static struct sw_team *team_of(struct sw_stream *stream) {
    struct sw_team *team = stream->backend;
    if (team == NULL) {
        SW_HANDLES_ERRORS();
        (void)sw_team_open(stream->device->info.threads, &team);
    }
    stream->backend = team;
    return team;
}

static void share_out(struct sw_stream *stream, const struct share *share) {
    struct sw_team *team = team_of(stream);
    if (team == NULL) {
        share->run(share->context, 0, share->items, 0);
        return;
    }
    sw_team_begin(team, do_piece, (void *)(uintptr_t)share, sw_div_up(share->items, share->piece));
    sw_team_finish(team);
}

void sw_cpu_share(struct sw_stream *stream, bool enough, int64_t items, sw_cpu_items run, const void *context) {
    const int64_t pieces = (int64_t)PIECES_OF_THREAD * stream->device->info.threads;
    const struct share share = {
        .run = run, .context = context, .items = items, .piece = sw_max_i64(1, sw_div_up(items, pieces))};
    if (enough && stream->device->info.threads > 1 && items > 1)
        share_out(stream, &share);
    else if (items > 0)
        run(context, 0, items, 0);
}

void sw_cpu_share_long(struct sw_stream *stream, int64_t items, sw_cpu_items run, const void *context) {
    const struct share share = {.run = run, .context = context, .items = items, .piece = 1};
    if (stream->device->info.threads > 1 && items > 1)
        share_out(stream, &share);
    else if (items > 0)
        run(context, 0, items, 0);
}

static sw_status open_stream(struct sw_stream *stream) {
    stream->backend = NULL;
    return SW_OK;
}

static void close_stream(struct sw_stream *stream) {
    sw_team_close(stream->backend);
}

void sw_cpu_add_streams(struct sw_device_ops *ops) {
    ops->open_stream = open_stream;
    ops->close_stream = close_stream;
}
