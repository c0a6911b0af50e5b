/* Parses arguments, reports errors and prints JSON, the same way for all commands. */
#include "cli/commands.h"
#include "core/clock.h"
#include "core/log.h"

#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Training seldom overtakes a reader: the reader is as fast as the drive, and a step seldom is. */
enum { MOST_ATTEMPTS = 20, PAUSE_US = 20000 };
enum { LINE_CHARS = 4608 };

int sw_command_fail(const char *command, sw_status status) {
    sw_log_error("spillway %s: %s", command, sw_error_message(status));
    return status == SW_ERR_USAGE ? SW_EXIT_USAGE : SW_EXIT_FAILED;
}

/* Fills target with the defaults and the arguments. Returns true if the command should run; otherwise *out_exit is its
 * exit status. */
static bool parse(const struct sw_command_line *line, int argc, char **argv, void *target, int *out_exit) {
    bool help = false;
    sw_status status = sw_options_defaults(line, target);
    if (status == SW_OK)
        status = sw_options_parse(line, argc, argv, target, &help);
    if (status != SW_OK) {
        /* SW_ERR_UNSUPPORTED is no usage error: a later version may accept the same arguments. */
        *out_exit = sw_command_fail(line->command, sw_as_usage(status));
        return false;
    }
    if (!help)
        return true;
    sw_options_help(line, stdout);
    *out_exit = SW_EXIT_DONE;
    return false;
}

int sw_command_run(const struct sw_command_line *line, int argc, char **argv, void *target,
                   sw_status (*run)(const void *target)) {
    int code;
    if (parse(line, argc, argv, target, &code)) {
        const sw_status status = run(target);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(line->command, status);
    }
    sw_options_release(line, target);
    return code;
}

void sw_command_print_to(FILE *to, int column, int indent, const char *format, ...) {
    char line[LINE_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sw_print_wrapped(line, column, indent, to);
    fputc('\n', to);
}

sw_status sw_command_print_json(json_t *object) {
    if (object == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the JSON object of --json");
    sw_log_end_folding();
    json_dumpf(object, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(object);
    return SW_OK;
}

sw_status sw_command_read_run(sw_status (*attempt)(void *context), void (*end)(void *context), void *context) {
    for (int attempts = 1;; attempts++) {
        const sw_status status = attempt(context);
        if (status != SW_ERR_OVERTAKEN || attempts == MOST_ATTEMPTS)
            return status;
        end(context);
        sw_error_clear();
        usleep(PAUSE_US);
    }
}

/* How long a rank that is creating a run may take to remove it before another rank's failure ends it. */
#define UNDO_NS INT64_C(10000000000)
enum { UNDO_POLL_US = 10000, SPOKEN_SECONDS = 2, SHOWN_SECONDS = 5 };

/* Ends all ranks after one message. A launcher ends the others as soon as one rank fails, so all meet here after the
 * message is printed, and ignore the signal that the launcher then sends. */
static int end_together(struct sw_ranks *ranks, sw_status status) {
    if (!sw_comm_is_threads(ranks->comm))
        signal(SIGTERM, SIG_IGN);
    if (sw_ranks_rank(ranks) == 0)
        sw_command_fail(ranks->command, status);
    (void)sw_comm_barrier(ranks->comm, "refusal");
    return status == SW_ERR_USAGE ? SW_EXIT_USAGE : SW_EXIT_FAILED;
}

/* Prints the error of the first thread that fails. The collectives of the others then fail with the same message, which
 * they do not print again. */
static int end_threads(const struct sw_ranks *ranks, sw_status status) {
    char message[SW_WATCH_TEXT_CHARS];
    snprintf(message, sizeof message, "%s", sw_error_message(status));
    if (!sw_comm_abandon(ranks->comm, message))
        return SW_EXIT_FAILED;
    sw_error_clear();
    return sw_command_fail(ranks->command, sw_fail(status, "rank %d: %s", sw_ranks_rank(ranks), message));
}

int sw_command_fail_ranks(struct sw_ranks *ranks, sw_status status) {
    if (sw_ranks_count(ranks) == 1)
        return sw_command_fail(ranks->command, status);
    if (ranks->told)
        return end_together(ranks, status);
    if (sw_comm_is_threads(ranks->comm))
        return end_threads(ranks, status);
    ranks->undone = true;
    if (!sw_watch_fail(ranks->watch, sw_error_message(status))) {
        /* All ranks that wait for an absent one know it. One prints the error, before the launcher ends the others. */
        const int absent = sw_comm_absent(ranks->comm), speaker = absent == 0;
        if (absent >= 0 && sw_ranks_rank(ranks) != speaker)
            sleep(SPOKEN_SECONDS);
        return sw_command_fail(ranks->command, status);
    }
    /* The watch's thread ends this process. */
    sleep(SHOWN_SECONDS);
    return SW_EXIT_FAILED;
}

static sw_status agree_on_program(struct sw_ranks *ranks) {
    unsigned char digest[SW_COMM_DIGEST_BYTES] = {0};
    if (!sw_comm_is_threads(ranks->comm)) /* threads have one program */
        SW_TRY(sw_ranks_agree_on_error(ranks, sw_comm_program_digest(digest)));
    const struct sw_comm_claim claims[] = {{.kind = SW_CLAIM_EQUAL,
                                            .what = "program",
                                            .remedy = "start the same build of spillway on every machine",
                                            .value = digest,
                                            .bytes = sizeof digest},
                                           {.kind = SW_CLAIM_EQUAL,
                                            .what = "command",
                                            .remedy = "start the same one on every rank",
                                            .value = ranks->command,
                                            .bytes = (int64_t)strlen(ranks->command)}};
    return sw_ranks_agree(ranks, claims, sizeof claims / sizeof claims[0]);
}

/* Ends this process, on the watch's thread. First lets the other threads, whose collectives have failed, remove what a
 * start has made. */
static void ended(void *context, const char *text, bool print) {
    struct sw_ranks *ranks = context;
    /* The rank that prints must exit first, because the launcher then ends all ranks. */
    if (print)
        dprintf(STDERR_FILENO, "spillway %s: %s\n", ranks->command, text);
    else
        sleep(SPOKEN_SECONDS);
    for (const int64_t until_ns = sw_now_ns() + UNDO_NS; !ranks->keeps && !ranks->undone && sw_now_ns() < until_ns;)
        usleep(UNDO_POLL_US);
    _exit(SW_EXIT_FAILED);
}

bool sw_command_begin(struct sw_ranks *ranks, const char *command, int *out_exit) {
    *ranks = (struct sw_ranks){.command = command, .ended = ended};
    sw_status status = sw_comm_open(&ranks->comm);
    if (status != SW_OK) {
        *out_exit = sw_command_fail(command, status);
        return false;
    }
    if (sw_ranks_count(ranks) > 1)
        status = agree_on_program(ranks);
    if (status == SW_OK)
        return true;
    *out_exit = sw_command_fail_ranks(ranks, status);
    sw_command_end(ranks, *out_exit);
    return false;
}

bool sw_command_parse_ranks(struct sw_ranks *ranks, const struct sw_command_line *line, int argc, char **argv,
                            void *target, int *out_exit) {
    bool help = false;
    sw_status status = sw_options_defaults(line, target);
    if (status == SW_OK)
        status = sw_options_parse(line, argc, argv, target, &help);
    status = sw_ranks_agree_on_error(ranks, status);
    const struct sw_comm_claim claim = {.kind = SW_CLAIM_EQUAL,
                                        .what = "--help",
                                        .remedy = "give all ranks the same flags",
                                        .value = &help,
                                        .bytes = sizeof help};
    if (status == SW_OK)
        status = sw_ranks_agree(ranks, &claim, 1);
    if (status != SW_OK) {
        *out_exit = sw_command_fail_ranks(ranks, sw_as_usage(status));
        return false;
    }
    if (help && sw_ranks_rank(ranks) == 0)
        sw_options_help(line, stdout);
    *out_exit = SW_EXIT_DONE;
    return !help;
}

void sw_command_end(struct sw_ranks *ranks, int exit_status) {
    const bool together = exit_status != SW_EXIT_FAILED && exit_status != SW_EXIT_USAGE;
    if (together && sw_ranks_count(ranks) > 1)
        (void)sw_comm_barrier(ranks->comm, "the end");
    sw_watch_close(ranks->watch);
    sw_comm_close(ranks->comm);
    sw_ranks_release_gpu(ranks);
    *ranks = (struct sw_ranks){0};
}

bool sw_command_is_alone(const char *command, int *out_exit) {
    struct sw_ranks ranks = {.command = command};
    sw_status status = sw_comm_open(&ranks.comm);
    if (status == SW_OK && sw_ranks_count(&ranks) > 1) {
        status = sw_fail(SW_ERR_UNSUPPORTED,
                         "%d ranks were started, and only plan, train, resume, eval and generate share their work "
                         "among ranks; start one "
                         "process, without mpirun or srun",
                         sw_ranks_count(&ranks));
        *out_exit = end_together(&ranks, status);
    } else if (status != SW_OK) {
        *out_exit = sw_command_fail(command, status);
    }
    sw_comm_close(ranks.comm);
    return status == SW_OK;
}
