#include "bench/io/drive.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/clock.h"
#include "core/files/files.h"
#include "core/json.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* fio on the same open files, if it is installed: the tool with which a user would measure a drive. */
struct sw_fio {
    char version[64];   /* "fio-3.33"; "": fio is not installed */
    bool fixed_buffers; /* fio registers buffers only with the right to lift the memlock limit */
    double start_s;     /* time of fio's start and end, while the drive rests */
};

/* Contenders of a round: ours and fio at the setting that was best for ours; fio at its own best. The sweep has the
 * first two. */
enum { SW_IO_OURS, SW_IO_FIO, SW_IO_FIO_BEST, SW_IO_CONTENDERS };
enum { SW_IO_RUNNERS = SW_IO_FIO + 1 };
static_assert((int)SW_IO_CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

struct sw_io_result {
    struct sw_io_cell cell;
    bool fits; /* into the files; else nothing was measured */
    struct sw_io_rate rate[SW_IO_RUNNERS];
};

/* One way at the best settings of ours and of fio. Without fio only ours are there. */
struct sw_io_best {
    const char *way;
    struct sw_io_result result[SW_IO_RUNNERS];
    struct sw_bench_rounds rates, cores;
    double core_s_per_gb[SW_IO_RUNNERS]; /* by the medians */
};

struct sw_io_report {
    struct sw_io_bench *bench;
    struct sw_fio fio;
    int runners;                                              /* SW_IO_RUNNERS, or 1 without fio */
    struct sw_io_result results[SW_IO_WAYS][SW_IO_MAX_CELLS]; /* by block size, then depth */
    struct sw_io_best best[SW_IO_WAYS];
};

enum { JOB, OUT, ERRORS, CHILD_FILES, NOT_FOUND = 127, OUTPUT_LIMIT_BYTES = 16 << 20, PROBE_BYTES = 4096 };

/* Our arenas are on huge pages if the kernel has them, and the drive of a virtual machine moves those up to twice as
 * fast, so fio's memory gets them too. The user's own setting stays. */
#define HUGE_PAGES "glibc.malloc.hugetlb=1"

/* Turns the child into fio, which dies with this program, so that it does not go on writing. */
static void become_fio(const int file[CHILD_FILES], const char *job, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(file[OUT], STDOUT_FILENO) < 0 || dup2(file[ERRORS], STDERR_FILENO) < 0)
        _exit(NOT_FOUND);
    setenv("GLIBC_TUNABLES", HUGE_PAGES, 0);
    execlp("fio", "fio", "--output-format=json", "--eta=never", job, (char *)NULL);
    _exit(NOT_FOUND);
}

/* Reads a whole file; the caller frees it. NULL: there is no memory, or far too much text. */
static char *read_all(int fd) {
    const off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = bytes < 0 || bytes > OUTPUT_LIMIT_BYTES ? NULL : calloc(1, (size_t)bytes + 1);
    if (text != NULL && pread(fd, text, (size_t)bytes, 0) != bytes)
        text[0] = '\0';
    return text;
}

static sw_status wait_for(pid_t child, const int file[CHILD_FILES]) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return sw_fail(SW_ERR_INTERNAL, "fio was lost: %s", strerror(errno));
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0)
        return SW_OK;
    char *text = read_all(file[ERRORS]);
    if (text != NULL)
        text[strcspn(text, "\n")] = '\0';
    const sw_status failed = sw_fail(code == NOT_FOUND ? SW_ERR_UNSUPPORTED : SW_ERR_IO,
                                     "fio failed (status %d: %.200s); --no-fio measures without it", code,
                                     text != NULL && text[0] != '\0' ? text : "no message");
    free(text);
    return failed;
}

/* Runs fio by a job file. Its files exist only in memory. Fails with SW_ERR_UNSUPPORTED if fio is not installed. The
 * caller frees *out_text. */
static sw_status run_fio(const char *job, char **out_text) {
    int file[CHILD_FILES];
    char path[64];
    sw_status status = SW_OK;
    for (int i = 0; i < CHILD_FILES; i++) {
        file[i] = memfd_create("fio", MFD_CLOEXEC);
        if (file[i] < 0)
            status = sw_fail(SW_ERR_NOMEM, "no memory to run fio: %s", strerror(errno));
    }
    if (status == SW_OK && write(file[JOB], job, strlen(job)) != (ssize_t)strlen(job))
        status = sw_fail(SW_ERR_NOMEM, "no memory for fio's job file: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file[JOB]);
    const pid_t parent = getpid(), child = status == SW_OK ? fork() : -1;
    if (child == 0)
        become_fio(file, path, parent);
    if (status == SW_OK)
        status = child < 0 ? sw_fail(SW_ERR_NOMEM, "cannot start fio: %s", strerror(errno)) : wait_for(child, file);
    *out_text = status == SW_OK ? read_all(file[OUT]) : NULL;
    if (status == SW_OK && *out_text == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory for fio's report");
    for (int i = 0; i < CHILD_FILES; i++)
        if (file[i] >= 0)
            close(file[i]);
    return status;
}

/* The reader of a pass that also writes has no bytes of its own: it ends with the writer (exitall). */
static void write_job(FILE *to, const struct sw_io_turn *turn, int index, bool write, bool random) {
    const int64_t block_bytes = turn->cell.block_bytes;
    const int64_t most_bytes = write || turn->cell.way == SW_IO_READ ? turn->most_bytes : INT64_MAX;
    const bool first = !write || turn->cell.way == SW_IO_WRITE;
    fprintf(to, "[%d]\n%srw=%s%s\nbs=%lld\niodepth=%d\nruntime=%lldms\nio_size=%lld\n", index,
            first ? "stonewall\n" : "", random ? "rand" : "", write ? "write" : "read", (long long)block_bytes,
            turn->cell.depth, (long long)(turn->seconds * 1e3),
            (long long)sw_max_i64(block_bytes, most_bytes / block_bytes * block_bytes));
}

/* Our files have no names, so fio opens them by way of this process. `thread` leaves nothing in shared memory when fio
 * is killed. */
static void write_jobs(FILE *to, const struct sw_fio *fio, const struct sw_io_target *target, bool random,
                       const struct sw_io_turn *turns, int count) {
    fprintf(to,
            "[global]\nioengine=io_uring\ndirect=%d\nfixedbufs=%d\nregisterfiles=1\nthread=1\noverwrite=1\n"
            "exitall=1\ninvalidate=0\nfallocate=none\nscramble_buffers=0\nallow_mounted_write=1\nsize=%lld\n",
            target->direct, fio->fixed_buffers, (long long)(target->file_bytes * target->count));
    for (int i = 0; i < target->count; i++)
        fprintf(to, "%s/proc/%d/fd/%d", i == 0 ? "filename=" : ":", (int)getpid(), target->fd[i]);
    fputc('\n', to);
    for (int i = 0; i < count; i++) {
        if (turns[i].cell.way != SW_IO_WRITE)
            write_job(to, &turns[i], i, false, random);
        if (turns[i].cell.way != SW_IO_READ)
            write_job(to, &turns[i], i, true, random);
    }
}

static double number_at(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

/* fio rounds the milliseconds of a job up, so that on average the job took half of one less. */
static double seconds_of(const json_t *direction) {
    return fmax(0.0, (number_at(direction, "runtime") - 0.5) * 1e-3);
}

static double rate_of(const json_t *direction) {
    return seconds_of(direction) > 0.0 ? number_at(direction, "io_bytes") / seconds_of(direction) : 0.0;
}

/* Adds a job to the rate of its turn. */
static sw_status take_job(const json_t *job, int count, struct sw_io_rate *out, int64_t *written) {
    const char *name = json_string_value(json_object_get(job, "jobname"));
    char *end = NULL;
    const long index = name != NULL ? strtol(name, &end, 10) : -1;
    if (index < 0 || index >= count || end == name || number_at(job, "error") != 0.0)
        return sw_fail(SW_ERR_IO, "fio's report has a job '%s' that failed or was not asked for",
                       name != NULL ? name : "");
    const json_t *read = json_object_get(job, "read"), *write = json_object_get(job, "write");
    struct sw_io_rate *rate = &out[index];
    rate->read_bytes_per_s += rate_of(read);
    rate->write_bytes_per_s += rate_of(write);
    rate->bytes_per_s = rate->read_bytes_per_s + rate->write_bytes_per_s;
    rate->cores += (number_at(job, "usr_cpu") + number_at(job, "sys_cpu")) * 1e-2;
    rate->seconds = fmax(rate->seconds, fmax(seconds_of(read), seconds_of(write)));
    *written += (int64_t)number_at(write, "io_bytes");
    return SW_OK;
}

static sw_status take_report(const char *text, struct sw_fio *fio, int count, struct sw_io_rate *out,
                             int64_t *written) {
    const char *start = strchr(text, '{'), *end = strrchr(text, '}'); /* notes may stand around it */
    json_t *root = NULL;
    if (start != NULL && end > start)
        SW_TRY(sw_json_try(start, (size_t)(end - start) + 1, &root));
    const json_t *jobs = json_object_get(root, "jobs");
    sw_status status = json_is_array(jobs) ? SW_OK : sw_fail(SW_ERR_IO, "fio's report cannot be read: it is not JSON");
    for (size_t i = 0; status == SW_OK && i < json_array_size(jobs); i++)
        status = take_job(json_array_get(jobs, i), count, out, written);
    for (int i = 0; status == SW_OK && i < count; i++)
        if (out[i].bytes_per_s <= 0.0)
            status = sw_fail(SW_ERR_IO, "fio's report lacks a rate that was asked for; --no-fio measures without it");
    const char *version = json_string_value(json_object_get(root, "fio version"));
    snprintf(fio->version, sizeof fio->version, "%s", version != NULL ? version : "fio");
    json_decref(root);
    return status;
}

/* Runs fio once, for one turn after another. The target counts the bytes that it writes. */
static sw_status fio_run(struct sw_fio *fio, struct sw_io_target *target, bool random, const struct sw_io_turn *turns,
                         int count, struct sw_io_rate *out) {
    char *job = NULL, *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&job, &bytes);
    memset(out, 0, (size_t)count * sizeof *out);
    if (to == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for fio's job file");
    write_jobs(to, fio, target, random, turns, count);
    sw_status status =
        sw_text_stream_end(to, &job) ? run_fio(job, &text) : sw_fail(SW_ERR_NOMEM, "no memory for fio's job file");
    if (status == SW_OK)
        status = take_report(text, fio, count, out, &target->written_bytes);
    free(job);
    free(text);
    return status;
}

static sw_status probe(struct sw_fio *fio, struct sw_io_target *target) {
    const struct sw_io_turn turn = {{SW_IO_READ, PROBE_BYTES, 1}, 1e-3, PROBE_BYTES};
    const int64_t start_ns = sw_now_ns();
    struct sw_io_rate rate;
    SW_TRY(fio_run(fio, target, false, &turn, 1, &rate));
    fio->start_s = (double)(sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

/* Looks for fio and tries whether it may register buffers. A missing fio is no error. */
static sw_status fio_find(struct sw_io_target *target, struct sw_fio *out) {
    *out = (struct sw_fio){.fixed_buffers = true};
    sw_status status = probe(out, target);
    if (status != SW_OK && status != SW_ERR_UNSUPPORTED) {
        sw_error_clear();
        out->fixed_buffers = false;
        status = probe(out, target);
    }
    if (status != SW_ERR_UNSUPPORTED)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* A pass of both ways runs longer: fio's reader begins before its writer has filled its memory, and its reads alone
 * until then must not count for much. */
#define LONGER_BOTH 2.0

/* A pass of the comparison ends with its bytes. Where the drive has become this much slower, it ends by its time. */
#define LATEST 4.0

enum { MOST_ROUNDS = 5 };

/* Returns a turn of the cell. One that only reads may move anything. */
static struct sw_io_turn turn_of(const struct sw_io_bench *bench, const struct sw_io_cell *cell, double seconds) {
    return (struct sw_io_turn){.cell = *cell,
                               .seconds = seconds,
                               .most_bytes = cell->way == SW_IO_READ ? INT64_MAX : sw_io_share(bench, seconds)};
}

static sw_status run_turns(struct sw_io_report *report, bool fio, const struct sw_io_turn *turns, int count,
                           struct sw_io_rate *out) {
    struct sw_io_bench *bench = report->bench;
    SW_TRY(sw_long_work_at(&bench->progress, 0));
    if (fio)
        return fio_run(&report->fio, &bench->target, bench->given->random, turns, count, out);
    for (int i = 0; i < count; i++) {
        const struct sw_io_pass pass = {.turn = turns[i], .random = bench->given->random};
        struct sw_io_done done;
        SW_TRY(sw_io_run(&bench->target, &pass, &done));
        out[i] = done.rate;
    }
    return SW_OK;
}

/* Measures the cells once, in an order of the round. fio runs all of them at once, because its start takes longer than
 * a cell. */
static sw_status run_cells(struct sw_io_report *report, int runner, int round, struct sw_io_result *const *cells,
                           int count, struct sw_io_rate *out) {
    struct sw_io_turn turns[SW_IO_MAX_CELLS];
    struct sw_io_rate rates[SW_IO_MAX_CELLS];
    int order[SW_IO_MAX_CELLS];
    for (int i = 0; i < count; i++) {
        order[i] = (int)sw_rng_permute(0, (uint64_t)round, (uint64_t)i, (uint64_t)count);
        turns[i] = turn_of(report->bench, &cells[order[i]]->cell, report->bench->effort.seconds);
    }
    SW_TRY(run_turns(report, runner == SW_IO_FIO, turns, count, rates));
    for (int i = 0; i < count; i++)
        out[order[i]] = rates[i];
    return SW_OK;
}

/* Returns the whole measurement of the median rate, so that its parts belong together. */
static struct sw_io_rate middle(struct sw_io_rate (*rates)[SW_IO_MAX_CELLS], int cell, int rounds) {
    int best = 0;
    double sorted[MOST_ROUNDS];
    for (int i = 0; i < rounds; i++)
        sorted[i] = rates[i][cell].bytes_per_s;
    const double median = sw_median(sorted, rounds);
    for (int i = 1; i < rounds; i++)
        if (fabs(rates[i][cell].bytes_per_s - median) < fabs(rates[best][cell].bytes_per_s - median))
            best = i;
    return rates[best][cell];
}

/* Measures all cells of a way that fit, and chooses the best of ours and of fio. */
static sw_status io_sweep_way(struct sw_io_report *report, sw_io_way way) {
    struct sw_io_rate rates[SW_IO_RUNNERS][MOST_ROUNDS][SW_IO_MAX_CELLS];
    struct sw_io_result *cells[SW_IO_MAX_CELLS];
    const int rounds = report->bench->effort.sweep_rounds;
    int count = 0;
    assert(rounds <= MOST_ROUNDS);
    for (int i = 0; i < SW_IO_MAX_CELLS; i++)
        if (report->results[way][i].fits)
            cells[count++] = &report->results[way][i];
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < report->runners; i++) {
            const int runner = (round + i) % report->runners;
            SW_TRY(run_cells(report, runner, round, cells, count, rates[runner][round]));
        }
    struct sw_io_best *best = &report->best[way];
    best->way = sw_io_way_name(way);
    for (int runner = 0; runner < SW_IO_RUNNERS; runner++) {
        const int of = runner < report->runners ? runner : SW_IO_OURS;
        struct sw_io_result *fastest = cells[0]; /* one cell fits at least */
        for (int i = 0; i < count; i++) {
            cells[i]->rate[of] = middle(rates[of], i, rounds);
            fastest = cells[i]->rate[of].bytes_per_s > fastest->rate[of].bytes_per_s ? cells[i] : fastest;
        }
        best->result[runner] = *fastest;
    }
    return SW_OK;
}

/* Returns the time of a pass of the comparison. */
static double io_compared_seconds(const struct sw_io_bench *bench, sw_io_way way) {
    return bench->effort.seconds * (way == SW_IO_BOTH ? LONGER_BOTH : 1.0);
}

/* Returns the bytes that the slower of the best settings moves in the time of a pass. Passes of equal bytes take an
 * equal part of what a drive allows for a while, as passes of equal time do not. */
static int64_t pass_bytes(const struct sw_io_report *report, sw_io_way way) {
    const struct sw_io_result *best = report->best[way].result;
    double rate = best[SW_IO_OURS].rate[SW_IO_OURS].bytes_per_s;
    int64_t block_bytes = best[SW_IO_OURS].cell.block_bytes;
    if (report->runners > 1) {
        rate = fmin(rate, best[SW_IO_FIO].rate[SW_IO_FIO].bytes_per_s);
        block_bytes = sw_max_i64(block_bytes, best[SW_IO_FIO].cell.block_bytes);
    }
    return sw_max_i64((int64_t)(rate * report->bench->effort.seconds), block_bytes);
}

static sw_status run_contender(struct sw_io_report *report, sw_io_way way, int who, int round) {
    struct sw_io_best *best = &report->best[way];
    const struct sw_io_cell *cell = &best->result[who == SW_IO_FIO_BEST ? SW_IO_FIO : SW_IO_OURS].cell;
    struct sw_io_turn turn = turn_of(report->bench, cell, io_compared_seconds(report->bench, way));
    struct sw_io_rate rate;
    if (way != SW_IO_BOTH) {
        turn.seconds *= LATEST;
        turn.most_bytes = sw_min_i64(turn.most_bytes, pass_bytes(report, way));
    }
    if (who == SW_IO_OURS) /* the drive rests as long before ours as while fio starts */
        usleep((useconds_t)(report->fio.start_s * 1e6));
    SW_TRY(run_turns(report, who != SW_IO_OURS, &turn, 1, &rate));
    best->rates.rate[who][round] = rate.bytes_per_s;
    best->cores.rate[who][round] = rate.cores;
    return SW_OK;
}

/* Runs the contenders in turn. Over six rounds every contender directly follows every other one equally often, so that
 * the state in which one leaves the drive meets all alike. */
static sw_status run_round(struct sw_io_report *report, sw_io_way way, int round) {
    for (int i = 0; i < SW_IO_CONTENDERS; i++) {
        const int step = round % 2 == 0 ? i : SW_IO_CONTENDERS - i, who = (round + step) % SW_IO_CONTENDERS;
        if (who == SW_IO_OURS || report->runners > 1)
            SW_TRY(run_contender(report, way, who, round));
    }
    return SW_OK;
}

/* Measures the best settings of a way in turn. */
static sw_status io_compare(struct sw_io_report *report, sw_io_way way) {
    struct sw_io_best *best = &report->best[way];
    best->rates.rounds = best->cores.rounds = (int)report->bench->effort.rounds;
    for (int round = 0; round < best->rates.rounds; round++)
        SW_TRY(run_round(report, way, round));
    for (int runner = 0; runner < report->runners; runner++)
        best->core_s_per_gb[runner] =
            sw_io_core_s_per_gb(sw_bench_median(&best->cores, runner), sw_bench_median(&best->rates, runner));
    return SW_OK;
}

/* The report of the sweep: for people, and as JSON. */

#define ROW struct sw_io_best
#define CELL(runner, member) result[runner].cell.member
static const struct sw_bench_field ours_fields[] = {
    {.name = "way", .heading = "", SW_AT(SW_FIELD_TEXT, way)},
    {.name = "block_bytes", .heading = "block", SW_AT(SW_FIELD_SIZE, CELL(SW_IO_OURS, block_bytes))},
    {.name = "depth", .heading = "in flight", SW_AT(SW_FIELD_INT, CELL(SW_IO_OURS, depth))},
    {.name = "bytes_per_s", .heading = "GB/s", SW_MEDIAN(rates, SW_IO_OURS), SW_GIGA, .digits = 2},
    {.name = "cores", .heading = "cores", SW_MEDIAN(cores, SW_IO_OURS), .digits = 3},
    {.name = "core_s_per_gb", .heading = "core-s/GB", SW_AT(SW_FIELD_REAL, core_s_per_gb[SW_IO_OURS]), .digits = 4},
};

/* fio at the setting that is best for ours, and then at its own best. */
#define RATIO(name_, heading_, who, to)                                                                                \
    { .name = (name_), .heading = (heading_), SW_RATIO(rates, who, to), .digits = 3, .has_interval = true }
static const struct sw_bench_field same_fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, way)},
    {.name = "bytes_per_s", .heading = "GB/s", SW_MEDIAN(rates, SW_IO_FIO), SW_GIGA, .digits = 2},
    {.name = "cores", .heading = "cores", SW_MEDIAN(cores, SW_IO_FIO), .digits = 3},
    {.name = "core_s_per_gb", SW_AT(SW_FIELD_REAL, core_s_per_gb[SW_IO_FIO])},
    RATIO("ours_of_fio", "ours to fio", SW_IO_OURS, SW_IO_FIO),
};
static const struct sw_bench_field own_fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, way)},
    {.name = "best_block_bytes", .heading = "block", SW_AT(SW_FIELD_SIZE, CELL(SW_IO_FIO, block_bytes))},
    {.name = "best_depth", .heading = "in flight", SW_AT(SW_FIELD_INT, CELL(SW_IO_FIO, depth))},
    {.name = "best_bytes_per_s", .heading = "GB/s", SW_MEDIAN(rates, SW_IO_FIO_BEST), SW_GIGA, .digits = 2},
    RATIO("ours_of_fio_best", "ours to fio", SW_IO_OURS, SW_IO_FIO_BEST),
};

/* Prints the answer in one sentence, for a reader who stops there. */
static void print_verdict(const struct sw_io_report *report) {
    double rate[SW_IO_WAYS], ratio[SW_IO_WAYS];
    for (int way = 0; way < SW_IO_WAYS; way++) {
        rate[way] = sw_bench_median(&report->best[way].rates, SW_IO_OURS) * 1e-9;
        ratio[way] = sw_bench_ratio(&report->best[way].rates, SW_IO_OURS, SW_IO_FIO_BEST);
    }
    printf("The drive reads %.2f GB/s, writes %.2f GB/s, and moves %.2f GB/s when both go\n", rate[SW_IO_READ],
           rate[SW_IO_WRITE], rate[SW_IO_BOTH]);
    if (report->runners == 1)
        puts("on at once, by the queue that a training uses.\n");
    else
        printf("on at once: %.2f, %.2f and %.2f times what %s reaches at its own best.\n\n", ratio[SW_IO_READ],
               ratio[SW_IO_WRITE], ratio[SW_IO_BOTH], report->fio.version);
}

/* A row of the sweep for people: one way and block size, with a rate for each depth. */
struct sweep_row {
    const char *way;
    int64_t block_bytes;
    double gb_per_s[SW_IO_MAX_DEPTHS];
};

static void print_sweep(const struct sw_io_report *report) {
    const struct sw_io_grid *grid = &report->bench->grid;
    const struct sw_io_target *target = &report->bench->target;
    char size[SW_SIZE_CHARS], headings[SW_IO_MAX_DEPTHS][12];
    struct sweep_row rows[SW_IO_WAYS * SW_IO_MAX_BLOCKS];
    struct sw_bench_field fields[2 + SW_IO_MAX_DEPTHS] = {
        {.heading = "", .kind = SW_FIELD_TEXT, .offset = offsetof(struct sweep_row, way)},
        {.heading = "block", .kind = SW_FIELD_SIZE, .offset = offsetof(struct sweep_row, block_bytes)}};
    for (int d = 0; d < grid->depths; d++) {
        snprintf(headings[d], sizeof headings[d], "%d", grid->depth[d]);
        fields[2 + d] = (struct sw_bench_field){.heading = headings[d],
                                                .kind = SW_FIELD_REAL,
                                                .offset = offsetof(struct sweep_row, gb_per_s) + d * sizeof(double),
                                                .digits = 2};
    }
    for (int i = 0; i < SW_IO_WAYS * grid->blocks; i++) {
        const int way = i / grid->blocks, block = i % grid->blocks;
        rows[i] = (struct sweep_row){block == 0 ? sw_io_way_name((sw_io_way)way) : "", grid->block_bytes[block], {0}};
        for (int d = 0; d < grid->depths; d++) {
            const struct sw_io_result *result = &report->results[way][block * grid->depths + d];
            rows[i].gb_per_s[d] = result->fits ? result->rate[SW_IO_OURS].bytes_per_s * 1e-9 : NAN;
        }
    }
    printf("\nall settings, %s in %d file%s%s, %s: GB/s by requests in flight\n",
           sw_format_size(report->bench->target.file_bytes * target->count, size), target->count,
           target->count == 1 ? "" : "s", target->direct ? "" : " through the page cache",
           report->bench->given->random ? "random" : "sequential");
    sw_table_print(&(struct sw_bench_table){fields, 2 + grid->depths, rows, SW_IO_WAYS * grid->blocks, sizeof *rows});
}

/* Prints what people read: a sentence that answers, the best settings, then all cells. */
static void io_print(const struct sw_io_report *report) {
    const bool no_fio = report->runners == 1 && !report->bench->given->no_fio;
    print_verdict(report);
    printf("best settings, medians of %s%s\n", SW_COUNT(report->bench->effort.rounds, "round"),
           no_fio ? "; fio is not installed, so there is no comparison" : "");
    sw_table_print(SW_TABLE(ours_fields, report->best, SW_IO_WAYS));
    if (report->runners > 1) {
        printf("\n%s in turn with it at the same settings%s (ratios: 95%% intervals)\n", report->fio.version,
               report->fio.fixed_buffers ? "" : ", without registered buffers");
        sw_table_print(SW_TABLE(same_fields, report->best, SW_IO_WAYS));
        printf("\n%s at its own best settings\n", report->fio.version);
        sw_table_print(SW_TABLE(own_fields, report->best, SW_IO_WAYS));
    }
    print_sweep(report);
}

static json_t *cells_json(const struct sw_io_report *report) {
    json_t *cells = json_array();
    for (int i = 0; i < SW_IO_WAYS * SW_IO_MAX_CELLS; i++) {
        const struct sw_io_result *result = &report->results[i / SW_IO_MAX_CELLS][i % SW_IO_MAX_CELLS];
        const struct sw_io_rate *rate = &result->rate[SW_IO_OURS];
        json_t *fio = report->runners > 1 ? json_real(result->rate[SW_IO_FIO].bytes_per_s) : NULL;
        if (result->fits)
            json_array_append_new(cells, json_pack("{s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:O*}", "way",
                                                   sw_io_way_name(result->cell.way), "block_bytes",
                                                   (json_int_t)result->cell.block_bytes, "depth", result->cell.depth,
                                                   "bytes_per_s", rate->bytes_per_s, "read_bytes_per_s",
                                                   rate->read_bytes_per_s, "write_bytes_per_s", rate->write_bytes_per_s,
                                                   "cores", rate->cores, "fio_bytes_per_s", fio));
        json_decref(fio);
    }
    return cells;
}

static json_t *best_json(const struct sw_io_report *report) {
    json_t *list = json_array();
    for (int way = 0; way < SW_IO_WAYS; way++) {
        const struct sw_io_best *best = &report->best[way];
        json_t *fio = report->runners == 1 ? json_null()
                                           : sw_bench_join(sw_table_row_json(SW_TABLE(same_fields, best, 1), 0),
                                                           sw_table_row_json(SW_TABLE(own_fields, best, 1), 0));
        json_array_append_new(
            list, sw_bench_join(sw_table_row_json(SW_TABLE(ours_fields, best, 1), 0), json_pack("{s:o}", "fio", fio)));
    }
    return list;
}

static sw_status io_print_json(const struct sw_io_report *report) {
    const struct sw_io_bench *bench = report->bench;
    const bool fio = report->runners > 1;
    return sw_command_print_json(
        json_pack("{s:s, s:i, s:I, s:b, s:b, s:b, s:f, s:i, s:s?, s:b, s:I, s:o, s:o}", "bench", "io", "files",
                  bench->target.count, "file_bytes", (json_int_t)report->bench->target.file_bytes, "direct",
                  bench->target.direct, "random", bench->given->random, "thorough", bench->given->thorough, "seconds",
                  bench->effort.seconds, "rounds", (int)bench->effort.rounds, "fio", fio ? report->fio.version : NULL,
                  "fio_fixed_buffers", fio && report->fio.fixed_buffers, "written_bytes",
                  (json_int_t)bench->target.written_bytes, "cells", cells_json(report), "best", best_json(report)));
}

static void lay_out(struct sw_io_report *report) {
    const struct sw_io_grid *grid = &report->bench->grid;
    for (int way = 0; way < SW_IO_WAYS; way++)
        for (int i = 0; i < grid->blocks * grid->depths; i++) {
            const struct sw_io_cell cell = {.way = (sw_io_way)way,
                                            .block_bytes = grid->block_bytes[i / grid->depths],
                                            .depth = grid->depth[i % grid->depths]};
            report->results[way][i] =
                (struct sw_io_result){.cell = cell, .fits = sw_io_fits(report->bench, cell.block_bytes, cell.depth)};
        }
}

static double planned_write_s(const struct sw_io_report *report) {
    const struct sw_io_effort *effort = &report->bench->effort;
    const int contenders = report->runners > 1 ? SW_IO_CONTENDERS : 1;
    double seconds = 0.0;
    for (int way = SW_IO_WRITE; way < SW_IO_WAYS; way++) {
        for (int i = 0; i < SW_IO_MAX_CELLS; i++)
            seconds += report->results[way][i].fits ? effort->seconds * effort->sweep_rounds * report->runners : 0.0;
        seconds += io_compared_seconds(report->bench, (sw_io_way)way) * (double)effort->rounds * contenders;
    }
    return seconds;
}

/* Shares the bytes of --most among the passes by their time, after the files have been written once. Refuses shares of
 * less than two blocks. */
static sw_status plan_writing(struct sw_io_report *report) {
    struct sw_io_bench *bench = report->bench;
    int64_t largest = 0;
    for (int i = 0; i < SW_IO_MAX_CELLS; i++)
        if (report->results[SW_IO_WRITE][i].fits)
            largest = sw_max_i64(largest, report->results[SW_IO_WRITE][i].cell.block_bytes);
    bench->planned_write_s = planned_write_s(report);
    bench->planned_write_bytes = bench->given->most_bytes - bench->target.file_bytes * bench->target.count;
    if (sw_io_share(bench, bench->effort.seconds) >= 2 * largest)
        return SW_OK;
    return sw_fail(SW_ERR_USAGE, "--most is too little for so many measurements of such blocks: give more, or fewer "
                                 "cells by --block and --depth");
}

static sw_status measure(struct sw_io_report *report) {
    struct sw_io_bench *bench = report->bench;
    if (!bench->given->no_fio)
        SW_TRY(fio_find(&bench->target, &report->fio));
    report->runners = report->fio.version[0] != '\0' ? SW_IO_RUNNERS : 1;
    SW_TRY(plan_writing(report));
    SW_TRY(sw_io_fill(&bench->target));
    for (int way = 0; way < SW_IO_WAYS; way++)
        SW_TRY(io_sweep_way(report, (sw_io_way)way));
    for (int way = 0; way < SW_IO_WAYS; way++)
        SW_TRY(io_compare(report, (sw_io_way)way));
    return SW_OK;
}

static sw_status show(const struct sw_io_report *report) {
    const struct sw_io_options *given = report->bench->given;
    sw_long_work_end(&report->bench->progress);
    if (given->json)
        return io_print_json(report);
    io_print(report);
    return SW_OK;
}

sw_status sw_io_sweep(struct sw_io_bench *bench) {
    struct sw_io_report *report = calloc(1, sizeof *report);
    if (report == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the rates of the drive");
    report->bench = bench;
    lay_out(report);
    sw_status status = measure(report);
    if (status == SW_OK)
        status = show(report);
    free(report);
    return status;
}
