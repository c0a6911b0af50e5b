/* Writing until the drive's fast cache is full and the rate has settled; then reading and writing at once, which is
 * what training does, before the drive can recover; then reading alone. With checksums, as the store makes them, so
 * that the cores are those of a training. */
#include "bench/io/io.h"
#include "bench/io/pass.h"
#include "bench/io/samples.h"
#include "bench/io/svg.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Parts of the time and of the bytes that the first phase may take; the rest is for the two after it. */
#define WRITING_PART 0.8
#define LONGEST_BOTH_S 20.0
#define LONGEST_READING_S 10.0
enum { READING, WRITING, BOTH_READ, BOTH_WRITE, LINES, NEWS_S = 10 };

struct sustain {
    struct sw_io_bench *bench;
    struct sw_io_cell cell;
    struct sw_io_samples lines[LINES];
    struct sw_io_rate reading, writing, both;
    double now_s; /* since the first phase began, without what lies between */
    bool settled;
    int fall; /* the writing's sample, or -1 */
};

static bool note(void *context, double seconds, int64_t bytes) {
    sw_io_samples_add(context, seconds, bytes);
    return true;
}

/* Ends the writing once its rate has fallen and settled; one that has not fallen may still do so. */
static bool note_writing(void *context, double seconds, int64_t bytes) {
    struct sustain *self = context;
    struct sw_io_samples *samples = &self->lines[WRITING];
    sw_io_samples_add(samples, seconds, bytes);
    if (!self->bench->given->json && samples->count % NEWS_S == 0) {
        char size[SW_SIZE_CHARS];
        printf("%5.0f s: %6.2f GB/s, %s written\n", seconds, samples->bytes_per_s[samples->count - 1] * 1e-9,
               sw_format_size(bytes, size));
        fflush(stdout);
    }
    return sw_io_samples_fall(samples) < 0 || !sw_io_samples_settled(samples);
}

/* Every phase that writes needs a queue full of blocks at least. */
static sw_status check_most(const struct sustain *self, int64_t most_bytes) {
    if (most_bytes >= self->cell.block_bytes * self->cell.depth)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "--most is too little for what is in flight at once: give more, or less --block or "
                               "--depth");
}

static sw_status write_long(struct sustain *self) {
    struct sw_io_target *target = &self->bench->target;
    const double limit_s = WRITING_PART * (double)self->bench->given->time_limit_s;
    struct sw_io_samples *samples = &self->lines[WRITING];
    struct sw_io_pass pass = {.cell = self->cell,
                              .seconds = limit_s,
                              .most_bytes = (int64_t)(WRITING_PART * (double)target->may_write_bytes),
                              .sums = true,
                              .tick = {NULL, note_writing},
                              .context = {NULL, self}};
    struct sw_io_done done;
    pass.cell.way = SW_IO_WRITE;
    SW_TRY(check_most(self, (int64_t)((1.0 - WRITING_PART) * (double)target->may_write_bytes)));
    SW_TRY(sw_io_samples_open(limit_s, 0.0, samples));
    SW_TRY(sw_io_run(target, &pass, &done));
    sw_io_samples_end(samples, (double)done.write_bytes / done.rate.bytes_per_s, done.write_bytes);
    self->now_s = samples->at_s[samples->count - 1];
    self->settled = sw_io_samples_settled(samples);
    self->fall = sw_io_samples_fall(samples);
    self->writing = done.rate;
    self->writing.bytes_per_s = sw_io_samples_last(samples);
    return SW_OK;
}

/* What has been written of each file: what lies behind is empty, and read without the drive. */
static int64_t written_span(const struct sustain *self) {
    const struct sw_io_target *target = &self->bench->target;
    const int64_t blocks = target->written_bytes / target->count / self->cell.block_bytes;
    return sw_min_i64(target->file_bytes, sw_max_i64(1, blocks) * self->cell.block_bytes);
}

static double rest_s(const struct sustain *self, double longest_s) {
    return fmin(longest_s, 0.5 * (1.0 - WRITING_PART) * (double)self->bench->given->time_limit_s);
}

static sw_status read_and_write(struct sustain *self) {
    struct sw_io_target *target = &self->bench->target;
    const double seconds = rest_s(self, LONGEST_BOTH_S);
    struct sw_io_pass pass = {.cell = self->cell,
                              .seconds = seconds,
                              .most_bytes = target->may_write_bytes,
                              .span_bytes = written_span(self),
                              .first_block = target->written_bytes / self->cell.block_bytes,
                              .sums = true,
                              .tick = {note, note},
                              .context = {&self->lines[BOTH_READ], &self->lines[BOTH_WRITE]}};
    struct sw_io_done done;
    pass.cell.way = SW_IO_BOTH;
    SW_TRY(sw_io_samples_open(seconds, self->now_s, &self->lines[BOTH_READ]));
    SW_TRY(sw_io_samples_open(seconds, self->now_s, &self->lines[BOTH_WRITE]));
    SW_TRY(sw_io_run(target, &pass, &done));
    self->both = done.rate;
    sw_io_samples_end(&self->lines[BOTH_READ], (double)done.read_bytes / done.rate.read_bytes_per_s, done.read_bytes);
    sw_io_samples_end(&self->lines[BOTH_WRITE], (double)done.write_bytes / done.rate.write_bytes_per_s,
                      done.write_bytes);
    self->now_s = self->lines[BOTH_READ].at_s[self->lines[BOTH_READ].count - 1];
    return SW_OK;
}

static sw_status read_long(struct sustain *self) {
    const double seconds = rest_s(self, LONGEST_READING_S);
    struct sw_io_pass pass = {.cell = self->cell,
                              .seconds = seconds,
                              .most_bytes = INT64_MAX,
                              .span_bytes = written_span(self),
                              .sums = true,
                              .tick = {note, NULL},
                              .context = {&self->lines[READING], NULL}};
    struct sw_io_done done;
    pass.cell.way = SW_IO_READ;
    SW_TRY(sw_io_samples_open(seconds, self->now_s, &self->lines[READING]));
    SW_TRY(sw_io_run(&self->bench->target, &pass, &done));
    self->reading = done.rate;
    sw_io_samples_end(&self->lines[READING], (double)done.read_bytes / done.rate.bytes_per_s, done.read_bytes);
    return SW_OK;
}

/* How much slower each is while both run, as the planner means it. */
static double slowdown(const struct sustain *self) {
    return fmax(1.0, 0.5 * (self->reading.bytes_per_s / self->both.read_bytes_per_s +
                            self->writing.bytes_per_s / self->both.write_bytes_per_s));
}

static double bytes_before_fall(const struct sustain *self) {
    const struct sw_io_samples *samples = &self->lines[WRITING];
    double bytes = 0.0;
    for (int i = 0; i < self->fall; i++)
        bytes += samples->bytes_per_s[i] * (samples->at_s[i] - (i > 0 ? samples->at_s[i - 1] : 0.0));
    return bytes;
}

static void print(const struct sustain *self) {
    const struct sw_io_samples *samples = &self->lines[WRITING];
    char size[SW_SIZE_CHARS];
    printf("writing: %.2f GB/s at first, %.2f GB/s at last, after %.0f s", sw_io_samples_burst(samples) * 1e-9,
           self->writing.bytes_per_s * 1e-9, samples->at_s[samples->count - 1]);
    if (self->fall >= 0)
        printf("; it fell after %s", sw_format_size((int64_t)bytes_before_fall(self), size));
    printf("; %s\n", self->settled ? "settled" : "not settled: give more of --time-limit and --most");
    printf("both at once: read %.2f GB/s, write %.2f GB/s, together %.2f GB/s\nreading: %.2f GB/s\n"
           "each is %.2f times slower while both run; %s written\n",
           self->both.read_bytes_per_s * 1e-9, self->both.write_bytes_per_s * 1e-9, self->both.bytes_per_s * 1e-9,
           self->reading.bytes_per_s * 1e-9, slowdown(self), sw_format_size(self->bench->target.written_bytes, size));
}

static json_t *samples_json(const struct sw_io_samples *samples) {
    json_t *array = json_array();
    for (int i = 0; i < samples->count; i++)
        json_array_append_new(array, json_pack("[f, f]", samples->at_s[i], samples->bytes_per_s[i]));
    return array;
}

/* Named as in a file of `plan --rates`. */
static json_t *rates_json(const struct sustain *self) {
    return json_pack("{s:{s:f, s:f}, s:{s:f, s:f}, s:f}", "read", "bytes_per_s", self->reading.bytes_per_s, "cores",
                     self->reading.cores, "write", "bytes_per_s", self->writing.bytes_per_s, "cores",
                     self->writing.cores, "read_write_slowdown", slowdown(self));
}

static sw_status print_json(const struct sustain *self) {
    const struct sw_io_target *target = &self->bench->target;
    return sw_bench_print_json(json_pack(
        "{s:s, s:i, s:I, s:b, s:I, s:i, s:f, s:f, s:b, s:b, s:f, s:f, s:f, s:I, s:o, s:{s:o, s:o, s:o, s:o}}", "bench",
        "io", "files", target->count, "file_bytes", (json_int_t)target->file_bytes, "direct", target->direct,
        "block_bytes", (json_int_t)self->cell.block_bytes, "depth", self->cell.depth, "burst_bytes_per_s",
        sw_io_samples_burst(&self->lines[WRITING]), "settled_bytes_per_s", self->writing.bytes_per_s, "settled",
        self->settled, "fell", self->fall >= 0, "bytes_before_fall", bytes_before_fall(self), "both_read_bytes_per_s",
        self->both.read_bytes_per_s, "both_write_bytes_per_s", self->both.write_bytes_per_s, "written_bytes",
        (json_int_t)target->written_bytes, "rates", rates_json(self), "samples", "write",
        samples_json(&self->lines[WRITING]), "both_read", samples_json(&self->lines[BOTH_READ]), "both_write",
        samples_json(&self->lines[BOTH_WRITE]), "read", samples_json(&self->lines[READING])));
}

static sw_status draw(const struct sustain *self, const char *path) {
    static const char *const names[LINES] = {
        [READING] = "read", [WRITING] = "write", [BOTH_READ] = "both: read", [BOTH_WRITE] = "both: write"};
    struct sw_svg_chart chart = {.title = "writing until it settles, then both at once, then reading",
                                 .x_label = "seconds",
                                 .y_label = "GB/s",
                                 .series_count = LINES};
    char caption[SW_SVG_CAPTION_CHARS];
    double *gb[LINES] = {NULL};
    sw_status status = SW_OK;
    for (int i = 0; i < LINES && status == SW_OK; i++) {
        const struct sw_io_samples *samples = &self->lines[i];
        gb[i] = calloc((size_t)samples->count, sizeof *gb[i]);
        if (gb[i] == NULL)
            status = sw_fail(SW_ERR_NOMEM, "no memory to draw %d samples", samples->count);
        for (int j = 0; j < samples->count && status == SW_OK; j++)
            gb[i][j] = samples->bytes_per_s[j] * 1e-9;
        chart.series[i] = (struct sw_svg_series){.x = samples->at_s,
                                                 .y = gb[i],
                                                 .count = samples->count,
                                                 .dashed = i == BOTH_READ || i == BOTH_WRITE,
                                                 .colour = i};
        snprintf(chart.series[i].name, sizeof chart.series[i].name, "%s", names[i]);
    }
    sw_io_caption(&self->bench->target, caption, sizeof caption);
    if (status == SW_OK)
        status = sw_svg_write(path, caption, &chart, 1);
    for (int i = 0; i < LINES; i++)
        free(gb[i]);
    return status;
}

static sw_status run(struct sustain *self) {
    const struct sw_io_options *given = self->bench->given;
    SW_TRY(write_long(self));
    SW_TRY(read_and_write(self));
    SW_TRY(read_long(self));
    if (given->svg != NULL)
        SW_TRY(draw(self, given->svg));
    if (given->json)
        return print_json(self);
    print(self);
    return SW_OK;
}

sw_status sw_io_sustain(struct sw_io_bench *bench) {
    struct sustain self = {.bench = bench,
                           .cell = {.block_bytes = bench->grid.block_bytes[0], .depth = bench->grid.depth[0]}};
    const sw_status status = run(&self);
    for (int i = 0; i < LINES; i++)
        sw_io_samples_close(&self.lines[i]);
    return status;
}
