#include "bench/io/fio.h"

#include "core/clock.h"
#include "core/size.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_FOUND = 127, OUTPUT_LIMIT_BYTES = 16 << 20, PROBE_BYTES = 4096 };

/* Files of a child that live in memory only. */
struct child_files {
    int job, out, err;
};

static void close_files(struct child_files *files) {
    const int fds[] = {files->job, files->out, files->err};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static sw_status open_files(struct child_files *files) {
    *files = (struct child_files){memfd_create("job", MFD_CLOEXEC), memfd_create("out", MFD_CLOEXEC),
                                  memfd_create("err", MFD_CLOEXEC)};
    if (files->job >= 0 && files->out >= 0 && files->err >= 0)
        return SW_OK;
    close_files(files);
    return sw_fail(SW_ERR_NOMEM, "no memory to run fio: %s", strerror(errno));
}

/* What our arenas have where the kernel can give it. A drive reached through a virtual machine moves memory of huge
 * pages up to twice as fast, and what is compared is the queue. A setting of the user's own stays. */
#define HUGE_PAGES "glibc.malloc.hugetlb=1"

/* In the child: fio must not go on writing when this program is killed. */
static void become_fio(const struct child_files *files, const char *argument, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(files->out, STDOUT_FILENO) < 0 || dup2(files->err, STDERR_FILENO) < 0)
        _exit(NOT_FOUND);
    setenv("GLIBC_TUNABLES", HUGE_PAGES, 0);
    execlp("fio", "fio", "--output-format=json", "--eta=never", argument, (char *)NULL);
    _exit(NOT_FOUND);
}

static sw_status read_output(int fd, char **out) {
    const off_t bytes = lseek(fd, 0, SEEK_END);
    if (bytes < 0 || bytes > OUTPUT_LIMIT_BYTES)
        return sw_fail(SW_ERR_UNSUPPORTED, "fio printed %lld bytes, which is no report", (long long)bytes);
    *out = calloc(1, (size_t)bytes + 1);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for what fio printed");
    return pread(fd, *out, (size_t)bytes, 0) == bytes
               ? SW_OK
               : sw_fail(SW_ERR_IO, "what fio printed cannot be read: %s", strerror(errno));
}

/* *out_exit is the exit status, or -1 for a signal. */
static sw_status run_child(const struct child_files *files, const char *argument, int *out_exit) {
    const pid_t parent = getpid(), child = fork();
    int status;
    if (child < 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start fio: %s", strerror(errno));
    if (child == 0)
        become_fio(files, argument, parent);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return sw_fail(SW_ERR_INTERNAL, "fio was lost: %s", strerror(errno));
    *out_exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return SW_OK;
}

static sw_status explain_failure(const struct child_files *files, int code) {
    char *text = NULL;
    if (read_output(files->err, &text) == SW_OK)
        text[strcspn(text, "\n")] = '\0';
    const sw_status status = sw_fail(SW_ERR_IO, "fio failed (status %d: %.200s); --no-fio measures without it", code,
                                     text != NULL && text[0] != '\0' ? text : "no message");
    free(text);
    return status;
}

/* The program's files have no names: fio opens them by way of this process. */
static void write_names(FILE *job, const struct sw_io_target *target) {
    for (int i = 0; i < target->count; i++)
        fprintf(job, "%s/proc/%d/fd/%d", i == 0 ? "filename=" : ":", (int)getpid(), target->fd[i]);
    fprintf(job, "\nsize=%lld\n", (long long)(target->file_bytes * target->count));
}

/* thread: so that nothing of fio's is left in shared memory when it is killed. exitall: a reader and a writer end
 * together. */
static void write_globals(FILE *job, const struct sw_fio *fio, const struct sw_io_target *target) {
    fprintf(job,
            "[global]\nioengine=io_uring\ndirect=%d\nfixedbufs=%d\nregisterfiles=1\nthread=1\noverwrite=1\n"
            "exitall=1\ninvalidate=0\nfallocate=none\nscramble_buffers=0\nallow_mounted_write=1\n",
            target->direct, fio->fixed_buffers);
    write_names(job, target);
}

/* A reader beside a writer has no end of its own: its time ends with the writer's. */
static void write_job(FILE *job, const struct sw_io_turn *turn, int index, bool write, bool random, bool first) {
    const int64_t block_bytes = turn->cell.block_bytes;
    const int64_t most_bytes = write || turn->cell.way == SW_IO_READ ? turn->most_bytes : INT64_MAX;
    fprintf(job, "[%d]\n%srw=%s%s\nbs=%lld\niodepth=%d\nruntime=%lldms\nio_size=%lld\n", index,
            first ? "stonewall\n" : "", random ? "rand" : "", write ? "write" : "read", (long long)block_bytes,
            turn->cell.depth, (long long)(turn->seconds * 1e3),
            (long long)sw_max_i64(block_bytes, most_bytes / block_bytes * block_bytes));
}

static sw_status write_jobs(int fd, const struct sw_fio *fio, const struct sw_io_target *target, bool random,
                            const struct sw_io_turn *turns, int count) {
    const int copy = dup(fd);
    FILE *job = copy < 0 ? NULL : fdopen(copy, "w");
    if (job == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for what fio shall do: %s", strerror(errno));
    write_globals(job, fio, target);
    for (int i = 0; i < count; i++) {
        const sw_io_way way = turns[i].cell.way;
        if (way != SW_IO_WRITE)
            write_job(job, &turns[i], i, false, random, true);
        if (way != SW_IO_READ)
            write_job(job, &turns[i], i, true, random, way == SW_IO_WRITE);
    }
    return fclose(job) == 0 ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for what fio shall do: %s", strerror(errno));
}

static double number_at(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

/* fio rounds the milliseconds that a job took up, so that on average it took half of one less. */
static double seconds_of(const json_t *direction) {
    const double rounded_ms = number_at(direction, "runtime");
    return rounded_ms > 0.0 ? (rounded_ms - 0.5) * 1e-3 : 0.0;
}

static double rate_of(const json_t *direction) {
    const double seconds = seconds_of(direction);
    return seconds > 0.0 ? number_at(direction, "io_bytes") / seconds : 0.0;
}

/* Adds a job to its turn. */
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

static sw_status take_report(const char *text, int count, struct sw_io_rate *out, int64_t *written) {
    const char *start = strchr(text, '{'); /* notes may stand before it */
    json_error_t error;
    json_t *root = json_loads(start != NULL ? start : "", JSON_DISABLE_EOF_CHECK, &error);
    const json_t *jobs = json_object_get(root, "jobs");
    sw_status status = json_is_array(jobs) ? SW_OK : sw_fail(SW_ERR_IO, "fio's report cannot be read: %s", error.text);
    for (size_t i = 0; status == SW_OK && i < json_array_size(jobs); i++)
        status = take_job(json_array_get(jobs, i), count, out, written);
    for (int i = 0; status == SW_OK && i < count; i++)
        if (out[i].bytes_per_s <= 0.0)
            status = sw_fail(SW_ERR_IO, "fio's report lacks a rate that was asked for; --no-fio measures without it");
    json_decref(root);
    return status;
}

sw_status sw_fio_run(const struct sw_fio *fio, struct sw_io_target *target, bool random, const struct sw_io_turn *turns,
                     int count, struct sw_io_rate *out) {
    struct child_files files;
    char path[64];
    char *text = NULL;
    int code;
    int64_t written = 0, shares = 0;
    sw_status status;
    for (int i = 0; i < count; i++)
        shares += turns[i].cell.way == SW_IO_READ ? 0 : turns[i].most_bytes;
    memset(out, 0, (size_t)count * sizeof *out);
    SW_TRY(open_files(&files));
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), files.job);
    SW_TRY_GOTO(write_jobs(files.job, fio, target, random, turns, count), end);
    SW_TRY_GOTO(run_child(&files, path, &code), end);
    if (code != 0) {
        status = explain_failure(&files, code);
        goto end;
    }
    SW_TRY_GOTO(read_output(files.out, &text), end);
    status = take_report(text, count, out, &written);
    sw_io_target_count(target, shares, written);
end:
    free(text);
    close_files(&files);
    return status;
}

static sw_status read_version(struct sw_fio *out) {
    struct child_files files;
    char *text = NULL;
    int code;
    sw_status status;
    SW_TRY(open_files(&files));
    SW_TRY_GOTO(run_child(&files, "--version", &code), end);
    if (code != 0)
        goto end;
    SW_TRY_GOTO(read_output(files.out, &text), end);
    text[strcspn(text, "\n")] = '\0';
    snprintf(out->version, sizeof out->version, "%s", text);
end:
    free(text);
    close_files(&files);
    return status;
}

static sw_status probe(struct sw_fio *fio, struct sw_io_target *target) {
    const struct sw_io_turn turn = {{SW_IO_READ, PROBE_BYTES, 1}, 1e-3, PROBE_BYTES};
    const int64_t start_ns = sw_now_ns();
    struct sw_io_rate rate;
    SW_TRY(sw_fio_run(fio, target, false, &turn, 1, &rate));
    fio->start_s = (double)(sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

sw_status sw_fio_find(struct sw_io_target *target, struct sw_fio *out) {
    *out = (struct sw_fio){.fixed_buffers = true};
    SW_TRY(read_version(out));
    if (out->version[0] == '\0' || probe(out, target) == SW_OK)
        return SW_OK;
    sw_error_clear();
    out->fixed_buffers = false;
    return probe(out, target);
}
