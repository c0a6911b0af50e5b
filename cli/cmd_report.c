#include "cli/commands.h"
#include "core/log.h"
#include "report/report.h"
#include "run/signals.h"

#include <stdlib.h>

struct report_options {
    struct sw_option_list runs;
    char *out;
    bool watch;
    int64_t port;
};

#define AT(member) .offset = offsetof(struct report_options, member)

/* With one member per line the table would not be visible at a glance. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "RUN", .kind = SW_OPTION_LIST, AT(runs), .group = "Input", .required = true,
     .what = "folder of a run, which may still be training; up to 10 are drawn over each other"},
    {.name = "--out", .kind = SW_OPTION_STRING, AT(out), .group = SW_OPTION_OUTPUT, .value = "FILE",
     .what = "file to write; replaces an older report; default: report.html"},
    {.name = "--watch", .kind = SW_OPTION_FLAG, AT(watch), .group = SW_OPTION_OUTPUT,
     .what = "write no file; serve the page of the running runs to browsers on this machine until Ctrl-C"},
    {.name = "--port", .kind = SW_OPTION_INT, AT(port), .group = SW_OPTION_OUTPUT, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = 65535, .allow_auto = true, .what = "port of --watch; auto: any that is free"},
};
/* clang-format on */

static sw_status check(const void *target) {
    const struct report_options *given = target;
    if (given->runs.count > SW_REPORT_RUNS)
        return sw_fail(SW_ERR_ARG, "a report shows at most %d runs", SW_REPORT_RUNS);
    if (given->watch && given->out != NULL)
        return sw_fail(SW_ERR_ARG, "give either --out or --watch");
    if (!given->watch && given->port != SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "--port is for --watch");
    return SW_OK;
}

static const struct sw_command_line line = {
    .command = "report",
    .summary = "Writes a page that shows runs: whether they learn, where the time goes, what to change.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check,
    .examples = {"spillway report runs/a", "spillway report runs/a runs/b --out both.html",
                 "spillway report runs/b --out runs/b/report.html"}};

static sw_status write_page(const struct report_options *given) {
    const char *out = given->out != NULL ? given->out : "report.html";
    char *page = NULL;
    size_t bytes = 0;
    sw_status status =
        sw_report_make((const char *const *)given->runs.items, given->runs.count, 0, stdout, &page, &bytes);
    if (status == SW_OK)
        status = sw_report_write(out, page, bytes);
    if (status == SW_OK)
        sw_log_info("wrote %s: open it in a browser", out);
    free(page);
    return status;
}

static sw_status run(const void *target) {
    const struct report_options *given = target;
    if (!given->watch)
        return write_page(given);
    return sw_report_watch((const char *const *)given->runs.items, given->runs.count,
                           given->port == SW_OPTION_AUTO ? 0 : given->port, sw_signals_catch(false));
}

int sw_command_report(int argc, char **argv) {
    struct report_options given = {0};
    return sw_command_run(&line, argc, argv, &given, run);
}
