#include "run/trace_file.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "offload/engine/trace.h"
#include "report/stages.h"
#include "run/folder/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Steps of a start until it runs evenly; the largest number of ops of a step, whose times take 16 MiB; and room for two
 * timelines of up to 100 kB each. */
enum { WARM_STEPS = 9, MOST_OPS = 1 << 20, TEXT_BYTES = 1 << 18 };

struct sw_timeline_file {
    const struct sw_plan *plan;
    char name[SW_TIMELINE_NAME_CHARS];
    int64_t step, ops;
    bool written;
    FILE *to; /* a stream that writes to `text` */
    char text[TEXT_BYTES];
};

/* The other stages of a pipeline write only what they did as a stage, each to a file of its own. */
static bool is_first_stage(const struct sw_plan *plan) {
    return plan->spec.pipeline.stage == 0;
}

static int64_t most_ops(const struct sw_plan *plan) {
    int64_t ops = 0;
    for (int kind = 0; kind < SW_PROGRAMS; kind++)
        if (sw_program_repeats((sw_program_kind)kind))
            ops = sw_max_i64(ops, plan->program[kind].op_count);
    return ops;
}

sw_status sw_timeline_file_open(const struct sw_timeline_spec *spec, struct sw_timeline_file **out) {
    const int64_t ops = most_ops(spec->plan);
    *out = NULL;
    if (spec->first_step > spec->last_step || ops > MOST_OPS)
        return SW_OK;
    struct sw_timeline_file *file = calloc(1, sizeof *file);
    FILE *to = file != NULL ? fmemopen(file->text, sizeof file->text, "w") : NULL;
    if (to == NULL) {
        free(file);
        return sw_fail(SW_ERR_NOMEM, "no memory for the timeline of a step");
    }
    file->plan = spec->plan;
    file->step = sw_min_i64(spec->first_step + WARM_STEPS, spec->last_step);
    file->ops = ops;
    file->to = to;
    /* A stream takes its buffer on the first write. */
    if (is_first_stage(spec->plan))
        fprintf(to, "{\"predicted\":%s,\n", spec->predicted != NULL ? spec->predicted : "null");
    else
        fputc('{', to);
    sw_timeline_name(spec->plan->spec.pipeline.stage, file->name);
    *out = file;
    return SW_OK;
}

void sw_timeline_file_close(struct sw_timeline_file *file) {
    if (file == NULL)
        return;
    fclose(file->to);
    free(file);
}

int64_t sw_timeline_file_step(const struct sw_timeline_file *file) {
    return file != NULL ? file->step : 0;
}

int64_t sw_timeline_file_ops(const struct sw_timeline_file *file) {
    return file != NULL ? file->ops : 0;
}

static sw_status write_file(struct sw_timeline_file *file, const char *folder, const struct sw_trace *trace,
                            int64_t number) {
    char path[SW_RUN_PATH_CHARS];
    const struct sw_program *program = sw_trace_program(trace, number);
    const struct sw_op_times *times = sw_trace_times(trace, number);
    SW_TRY(sw_path_join(path, sizeof path, folder, file->name));
    fprintf(file->to, "\"step\":%lld", (long long)sw_trace_step(trace, number));
    if (is_first_stage(file->plan)) {
        fputs(",\n\"measured\":", file->to);
        sw_timeline_write(file->plan, program, times, file->to);
    }
    if (sw_plan_stages(file->plan) > 1) {
        fputs(",\n\"pipeline\":", file->to);
        sw_stage_write(file->plan, program, times, file->to);
    }
    fputs("}\n", file->to);
    if (fflush(file->to) != 0 || ferror(file->to))
        return sw_fail(SW_ERR_INTERNAL, "it is longer than %d bytes", TEXT_BYTES);
    return sw_file_replace(path, file->text, (size_t)ftell(file->to), SW_FILE_PRIVATE);
}

void sw_timeline_file_after(struct sw_timeline_file *file, const char *folder, const struct sw_trace *trace,
                            int64_t step) {
    SW_HANDLES_ERRORS();
    if (file->written || step < file->step)
        return;
    const int64_t number = sw_trace_find_steady(trace, file->step);
    if (number < 0 || sw_trace_step(trace, number) > step)
        return;
    file->written = true;
    const sw_status status = write_file(file, folder, trace, number);
    if (status == SW_OK)
        return;
    sw_log_warn("the timeline of step %lld is not kept: %s", (long long)step, sw_error_message(status));
}

enum { PATH_CHARS = 4096 };

/* A trace never replaces a file: the path may be mistyped, and name state or data. */
static sw_status must_be_free(const char *path) {
    struct stat there;
    if (sw_path_lstat(path, &there) == 0)
        return sw_fail(SW_ERR_ARG, "--trace %s exists already; name a new file", path);
    return SW_OK;
}

static sw_status open_beside(const char *path, char beside[PATH_CHARS], FILE **out) {
    const int used = snprintf(beside, PATH_CHARS, "%s.partial", path);
    if (used < 0 || used >= PATH_CHARS)
        return sw_fail(SW_ERR_ARG, "the path of --trace is too long: %.64s...", path);
    const int fd = sw_path_open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (*out != NULL)
        return SW_OK;
    const sw_status status = sw_fail(SW_ERR_IO, "cannot write the trace %s: %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        sw_path_unlink(beside);
    }
    return status;
}

sw_status sw_trace_file_check(const char *path) {
    char beside[PATH_CHARS];
    FILE *file;
    SW_TRY(must_be_free(path));
    SW_TRY(open_beside(path, beside, &file));
    fclose(file);
    sw_path_unlink(beside);
    return SW_OK;
}

sw_status sw_trace_file_write(const char *path, const struct sw_trace *trace) {
    char beside[PATH_CHARS];
    FILE *file;
    SW_TRY(must_be_free(path));
    SW_TRY(open_beside(path, beside, &file));
    sw_trace_write(trace, file);
    const bool written = fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
    const int write_error = errno;
    const bool closed = fclose(file) == 0;
    if (written && closed && sw_path_rename(beside, path) == 0)
        return sw_file_flush_folder_of(path);
    const int error = written ? errno : write_error;
    sw_path_unlink(beside);
    return sw_fail(error == ENOSPC ? SW_ERR_SPACE : SW_ERR_IO, "cannot write the trace %s: %s", path, strerror(error));
}
