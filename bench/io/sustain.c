/* Three phases: writing until the drive's fast cache is full and the rate has settled; then reading and writing at
 * once, as training does, before the drive can recover; then only reading. Checksums are computed as the store
 * computes them, so that the cores are those of a training. */
#include "bench/io/sustain.h"

#include "bench/io/drive.h"
#include "cli/commands.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Samples beyond one a second: a phase may end a little after its limit. */
enum { SPARE = 8 };
#define SETTLED_PART 0.05
#define FALLEN_PART 0.8

sw_status sw_io_samples_open(double seconds, double start_s, struct sw_io_samples *out) {
    const int room = (int)fmin(seconds, 1e7) + SPARE;
    *out = (struct sw_io_samples){.at_s = calloc((size_t)room, sizeof(double)),
                                  .bytes_per_s = calloc((size_t)room, sizeof(double)),
                                  .room = room,
                                  .start_s = start_s};
    return out->at_s != NULL && out->bytes_per_s != NULL
               ? SW_OK
               : sw_fail(SW_ERR_NOMEM, "no memory for the rates of %.0f seconds", seconds);
}

void sw_io_samples_close(struct sw_io_samples *samples) {
    free(samples->at_s);
    free(samples->bytes_per_s);
    *samples = (struct sw_io_samples){0};
}

void sw_io_samples_add(struct sw_io_samples *samples, double seconds, int64_t bytes) {
    const double passed_s = seconds - samples->last_s;
    if (samples->count == samples->room || passed_s <= 0.0)
        return;
    samples->at_s[samples->count] = samples->start_s + seconds;
    samples->bytes_per_s[samples->count++] = (double)(bytes - samples->last_bytes) / passed_s;
    samples->last_s = seconds;
    samples->last_bytes = bytes;
}

/* Adds the whole phase as one sample if it was too short to have any. */
static void io_samples_end(struct sw_io_samples *samples, double seconds, int64_t bytes) {
    if (samples->count == 0)
        sw_io_samples_add(samples, seconds, bytes);
}

static double mean(const struct sw_io_samples *samples, int first, int count) {
    double sum = 0.0;
    for (int i = first; i < first + count; i++)
        sum += samples->bytes_per_s[i];
    return count > 0 ? sum / count : 0.0;
}

static int window_of(const struct sw_io_samples *samples) {
    return (int)sw_min_i64(samples->count, SW_IO_WINDOW);
}

/* Return the mean rate of the first and of the last window, or of the samples that there are. */
static double io_samples_burst(const struct sw_io_samples *samples) {
    return mean(samples, 0, window_of(samples));
}

double sw_io_samples_last(const struct sw_io_samples *samples) {
    const int window = window_of(samples);
    return mean(samples, samples->count - window, window);
}

bool sw_io_samples_settled(const struct sw_io_samples *samples) {
    if (samples->count < 2 * SW_IO_WINDOW)
        return false;
    const double last = sw_io_samples_last(samples);
    const double before = mean(samples, samples->count - 2 * SW_IO_WINDOW, SW_IO_WINDOW);
    return fabs(last - before) <= SETTLED_PART * before;
}

int sw_io_samples_fall(const struct sw_io_samples *samples) {
    const double below = FALLEN_PART * io_samples_burst(samples);
    if (samples->count < 2 * SW_IO_WINDOW || sw_io_samples_last(samples) >= below)
        return -1;
    int first = 1;
    while (samples->bytes_per_s[first] >= below || mean(samples, first, samples->count - first) >= below)
        first++;
    return first;
}

/* Part of the time and of the bytes that the first phase may take; the rest is for the two after it. */
#define WRITING_PART 0.8
#define LONGEST_BOTH_S 20.0
#define LONGEST_READING_S 10.0
enum { READING, WRITING, BOTH_READ, BOTH_WRITE, LINES, NEWS_S = 10 };

struct sustain {
    struct sw_io_bench *bench;
    struct sw_io_cell cell;
    struct sw_io_samples lines[LINES];
    struct sw_io_rate rate[SW_IO_WAYS]; /* of writing: the rate at its end */
    double now_s;                       /* since the first phase began, without the time between phases */
    bool settled;
    int fall; /* the writing's sample, or -1 */
};

static bool note(void *context, double seconds, int64_t bytes) {
    sw_io_samples_add(context, seconds, bytes);
    return true;
}

/* Ends the writing once its rate has fallen and settled; a rate that has not fallen may still do so. */
static bool note_writing(void *context, double seconds, int64_t bytes) {
    struct sustain *self = context;
    struct sw_io_samples *samples = &self->lines[WRITING];
    char size[SW_SIZE_CHARS];
    sw_io_samples_add(samples, seconds, bytes);
    if (!self->bench->given->json && samples->count % NEWS_S == 0) {
        printf("%5.0f s: %6.2f GB/s, %s written\n", seconds, samples->bytes_per_s[samples->count - 1] * 1e-9,
               sw_format_size(bytes, size));
        fflush(stdout);
    }
    return sw_io_samples_fall(samples) < 0 || !sw_io_samples_settled(samples);
}

/* Returns the bytes of each file that hold data; later bytes would be read without touching the drive. */
static int64_t written_span(const struct sustain *self) {
    const struct sw_io_target *target = &self->bench->target;
    const int64_t blocks = target->written_bytes / target->count / self->cell.block_bytes;
    return sw_min_i64(target->file_bytes, sw_max_i64(1, blocks) * self->cell.block_bytes);
}

static double end_s(const struct sw_io_samples *samples) {
    return samples->at_s[samples->count - 1];
}

/* Runs a phase and takes its samples, a line for each direction (-1: there is none). */
static sw_status run_phase(struct sustain *self, sw_io_way way, double seconds, int64_t most_bytes, int read,
                           int write) {
    struct sw_io_target *target = &self->bench->target;
    struct sw_io_pass pass = {.turn = {self->cell, seconds, most_bytes}, .sums = true};
    struct sw_io_done done;
    pass.turn.cell.way = way;
    if (way != SW_IO_WRITE) {
        pass.span_bytes = written_span(self);
        pass.first_block = way == SW_IO_BOTH ? target->written_bytes / self->cell.block_bytes : 0;
    }
    for (int i = 0; i < 2; i++) {
        const int line = i == 0 ? read : write;
        if (line < 0)
            continue;
        SW_TRY(sw_io_samples_open(seconds, self->now_s, &self->lines[line]));
        pass.tick[i] = line == WRITING ? note_writing : note;
        pass.context[i] = line == WRITING ? (void *)self : (void *)&self->lines[line];
    }
    SW_TRY(sw_io_run(target, &pass, &done));
    self->rate[way] = done.rate;
    if (read >= 0)
        io_samples_end(&self->lines[read], (double)done.read_bytes / done.rate.read_bytes_per_s, done.read_bytes);
    if (write >= 0)
        io_samples_end(&self->lines[write], (double)done.write_bytes / done.rate.write_bytes_per_s, done.write_bytes);
    self->now_s = end_s(&self->lines[read >= 0 ? read : write]);
    return SW_OK;
}

static sw_status run_phases(struct sustain *self) {
    const struct sw_io_options *given = self->bench->given;
    const int64_t writing_bytes = (int64_t)(WRITING_PART * (double)given->most_bytes);
    const double limit_s = (double)given->time_limit_s, rest_s = 0.5 * (1.0 - WRITING_PART) * limit_s;
    const struct sw_io_samples *samples = &self->lines[WRITING];
    /* Either phase that writes needs a queue full of blocks. */
    if (given->most_bytes - writing_bytes < self->cell.block_bytes * self->cell.depth)
        return sw_fail(SW_ERR_USAGE, "--most is too little for the blocks in flight: give more, or less --block or "
                                     "--depth");
    SW_TRY(run_phase(self, SW_IO_WRITE, WRITING_PART * limit_s, writing_bytes, -1, WRITING));
    self->settled = sw_io_samples_settled(samples);
    self->fall = sw_io_samples_fall(samples);
    self->rate[SW_IO_WRITE].bytes_per_s = sw_io_samples_last(samples);
    SW_TRY(run_phase(self, SW_IO_BOTH, fmin(LONGEST_BOTH_S, rest_s),
                     given->most_bytes - self->bench->target.written_bytes, BOTH_READ, BOTH_WRITE));
    return run_phase(self, SW_IO_READ, fmin(LONGEST_READING_S, rest_s), INT64_MAX, READING, -1);
}

/* Returns how much slower each way is while both run, as the planner counts it. */
static double slowdown(const struct sustain *self) {
    const struct sw_io_rate *both = &self->rate[SW_IO_BOTH];
    return fmax(1.0, 0.5 * (self->rate[SW_IO_READ].bytes_per_s / both->read_bytes_per_s +
                            self->rate[SW_IO_WRITE].bytes_per_s / both->write_bytes_per_s));
}

static double bytes_before_fall(const struct sustain *self) {
    const struct sw_io_samples *samples = &self->lines[WRITING];
    double bytes = 0.0;
    for (int i = 0; i < self->fall; i++)
        bytes += samples->bytes_per_s[i] * (samples->at_s[i] - (i > 0 ? samples->at_s[i - 1] : 0.0));
    return bytes;
}

static void print(const struct sustain *self) {
    const struct sw_io_rate *both = &self->rate[SW_IO_BOTH];
    char size[SW_SIZE_CHARS];
    printf("writing: %.2f GB/s at first, %.2f GB/s at last, after %.0f s",
           io_samples_burst(&self->lines[WRITING]) * 1e-9, self->rate[SW_IO_WRITE].bytes_per_s * 1e-9,
           end_s(&self->lines[WRITING]));
    if (self->fall >= 0)
        printf("; it fell after %s", sw_format_size((int64_t)bytes_before_fall(self), size));
    printf("; %s\n", self->settled ? "settled" : "not settled: give more of --time-limit and --most");
    printf("both at once: read %.2f GB/s, write %.2f GB/s, together %.2f GB/s\nreading: %.2f GB/s\n"
           "each is %.2f times slower while both run; %s written\n",
           both->read_bytes_per_s * 1e-9, both->write_bytes_per_s * 1e-9, both->bytes_per_s * 1e-9,
           self->rate[SW_IO_READ].bytes_per_s * 1e-9, slowdown(self),
           sw_format_size(self->bench->target.written_bytes, size));
}

static json_t *samples_json(const struct sw_io_samples *samples) {
    json_t *array = json_array();
    for (int i = 0; i < samples->count; i++)
        json_array_append_new(array, json_pack("[f, f]", samples->at_s[i], samples->bytes_per_s[i]));
    return array;
}

/* The members of `rates` are named as in a file of `plan --rates`. */
static sw_status print_json(const struct sustain *self) {
    const struct sw_io_target *target = &self->bench->target;
    const struct sw_io_rate *rate = self->rate;
    json_t *head =
        json_pack("{s:s, s:i, s:I, s:b, s:I, s:i, s:f, s:f, s:b, s:b, s:f, s:f, s:f, s:I}", "bench", "io", "files",
                  target->count, "file_bytes", (json_int_t)target->file_bytes, "direct", target->direct, "block_bytes",
                  (json_int_t)self->cell.block_bytes, "depth", self->cell.depth, "burst_bytes_per_s",
                  io_samples_burst(&self->lines[WRITING]), "settled_bytes_per_s", rate[SW_IO_WRITE].bytes_per_s,
                  "settled", self->settled, "fell", self->fall >= 0, "bytes_before_fall", bytes_before_fall(self),
                  "both_read_bytes_per_s", rate[SW_IO_BOTH].read_bytes_per_s, "both_write_bytes_per_s",
                  rate[SW_IO_BOTH].write_bytes_per_s, "written_bytes", (json_int_t)target->written_bytes);
    json_t *rest = json_pack(
        "{s:{s:{s:f, s:f}, s:{s:f, s:f}, s:f}, s:{s:o, s:o, s:o, s:o}}", "rates", "read", "bytes_per_s",
        rate[SW_IO_READ].bytes_per_s, "cores", rate[SW_IO_READ].cores, "write", "bytes_per_s",
        rate[SW_IO_WRITE].bytes_per_s, "cores", rate[SW_IO_WRITE].cores, "read_write_slowdown", slowdown(self),
        "samples", "write", samples_json(&self->lines[WRITING]), "both_read", samples_json(&self->lines[BOTH_READ]),
        "both_write", samples_json(&self->lines[BOTH_WRITE]), "read", samples_json(&self->lines[READING]));
    return sw_command_print_json(sw_bench_join(head, rest));
}

static sw_status run(struct sustain *self) {
    const struct sw_io_options *given = self->bench->given;
    SW_TRY(run_phases(self));
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
