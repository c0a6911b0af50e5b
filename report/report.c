#include "report/report.h"

#include "core/clock.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/status.h"
#include "report/curves.h"
#include "report/stages.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* More digits than a curve shows, but few enough for a small page: for stated numbers, and for drawn ones. */
enum { SW_STATED_DIGITS = 6, SW_DRAWN_DIGITS = 4 };

/* Numbers and texts of the page's data, which is JSON. */

/* Writes a number; null: it is not finite. */
static void put_digits(FILE *to, double value, int digits) {
    if (isfinite(value))
        fprintf(to, "%.*g", digits, value);
    else
        fputs("null", to);
}

/* Writes a member that is a whole number of any size, with all digits. */
static void put_whole(FILE *to, const char *name, double value) {
    fprintf(to, "\"%s\":%.0f,", name, isfinite(value) ? value : 0);
}

/* Write a value, or a member; NULL is null. */
static void put_value(FILE *to, const json_t *value) {
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII;
    if (value == NULL || json_dumpf(value, to, flags) != 0)
        fputs("null", to);
}

static void put_json(FILE *to, const char *name, const json_t *value) {
    fprintf(to, "\"%s\":", name);
    put_value(to, value);
    fputc(',', to);
}

/* Writes a text as a member. Names of folders may have any bytes; those that are not UTF-8 become question marks. */
static void put_text(FILE *to, const char *name, const char *text) {
    char shown[PATH_MAX];
    json_t *value = json_string(text);
    if (value == NULL) {
        size_t chars = 0;
        for (; text[chars] != 0 && chars + 1 < sizeof shown; chars++)
            shown[chars] = (unsigned char)text[chars] < 0x80 ? text[chars] : '?';
        shown[chars] = 0;
        value = json_string(shown);
    }
    put_json(to, name, value);
    json_decref(value);
}

enum { TIMELINE_JSON_BYTES = 1 << 20 };

/* Writes a group of medians as a member. */
static void put_medians(FILE *to, const char *name, const struct sw_curves *curves, int first, int count,
                        int64_t after_step) {
    fprintf(to, "\"%s\":{", name);
    for (int i = first; i < first + count; i++) {
        fprintf(to, "%s\"%s\":", i > first ? "," : "", sw_log_fields[i].name);
        put_digits(to, sw_curves_median(curves, i, after_step, NULL), SW_STATED_DIGITS);
    }
    fputs("},", to);
}

/* Returns the first step of the newest start. It fills the lanes, so it does not represent the steps after it. */
static int64_t first_of_start(const json_t *run, const struct sw_curves *curves) {
    const json_t *first = json_object_get(json_object_get(run, "prediction"), "first_step");
    return json_is_integer(first) ? json_integer_value(first) : curves->first_step;
}

/* Writes machine and prediction of run.json, and the medians of the steps after the first of that start. */
static void put_start(FILE *to, const json_t *run, const struct sw_curves *curves) {
    const int64_t after_step = first_of_start(run, curves);
    int64_t steps;
    put_json(to, "machine", json_object_get(run, "machine"));
    put_json(to, "prediction", json_object_get(run, "prediction"));
    fputs("\"measured\":{\"step_seconds\":", to);
    put_digits(to, sw_curves_median(curves, SW_LOG_SECONDS, after_step, &steps), SW_STATED_DIGITS);
    fputs(",\"tokens_per_second\":", to);
    put_digits(to, sw_curves_median(curves, SW_LOG_TOKENS_PER_SECOND, after_step, NULL), SW_STATED_DIGITS);
    fputc(',', to);
    put_medians(to, "lanes", curves, SW_LOG_LANES, SW_LOG_LANE_COUNT, after_step);
    put_medians(to, "bytes", curves, SW_LOG_BYTES, SW_LOG_BYTE_COUNT, after_step);
    put_medians(to, "peak", curves, SW_LOG_PEAKS, SW_LOG_PEAK_COUNT, after_step);
    fprintf(to, "\"steps\":%lld},", (long long)steps);
}

/* Writes the run's timeline.json; null: there is no readable one. A timeline of more than most_bytes is replaced by a
 * note. */
static void put_timeline(FILE *to, const char *folder, size_t most_bytes) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX], *text = NULL;
    json_t *timeline = NULL;
    if (sw_path_join(path, sizeof path, folder, "timeline.json") == SW_OK)
        (void)sw_json_read_own_file(path, TIMELINE_JSON_BYTES, SW_ERR_CORRUPT, &timeline);
    (void)json_object_del(timeline, "pipeline"); /* the page has it as text */
    if (timeline != NULL)
        text = json_dumps(timeline, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(7));
    if (text != NULL && strlen(text) > most_bytes)
        fputs("\"timeline\":\"left out\",", to);
    else
        fprintf(to, "\"timeline\":%s,", text != NULL ? text : "null");
    free(text);
    json_decref(timeline);
}

static void put_samples(FILE *to, const struct sw_samples *samples) {
    put_whole(to, "samples_seen", (double)samples->seen);
    put_whole(to, "samples_unreadable", (double)samples->unreadable);
    fputs("\"samples\":[", to);
    for (int64_t i = 0; i < samples->count; i++) {
        fprintf(to, "%s[%lld,", i > 0 ? "," : "", (long long)samples->sample[i].step);
        put_value(to, samples->sample[i].prompt);
        fputc(',', to);
        put_value(to, samples->sample[i].text);
        fputc(']', to);
    }
    fputs("],", to);
}

/* A page stays below 2 MB: with more runs than WIDE_RUNS, curves have half as many points, and the runs share these
 * bytes of samples and timelines. */
enum { WIDE_RUNS = 3, SAMPLES_BYTES = 200000, TIMELINES_BYTES = 280000 };

typedef double (*column_value)(const struct sw_curve_point *point, int column);

static double mean_of(const struct sw_curve_point *point, int column) {
    const struct sw_curve_value *value = &point->value[column];
    return value->count > 0 ? value->sum / (double)value->count : NAN;
}

static double least_of(const struct sw_curve_point *point, int column) {
    return point->value[column].count > 0 ? point->value[column].least : NAN;
}

static double most_of(const struct sw_curve_point *point, int column) {
    return point->value[column].count > 0 ? point->value[column].most : NAN;
}

/* Returns the share of the steps' time for which a lane was busy, or bytes per second. */
static double by_second(const struct sw_curve_point *point, int column) {
    const double seconds = point->value[SW_LOG_SECONDS].sum;
    return seconds > 0 && point->value[column].count > 0 ? point->value[column].sum / seconds : NAN;
}

static double step_of(const struct sw_curve_point *point, int column) {
    (void)column;
    return (double)point->step;
}

static double tokens_of(const struct sw_curve_point *point, int column) {
    (void)column;
    return point->tokens;
}

static double seconds_of(const struct sw_curve_point *point, int column) {
    (void)column;
    return point->seconds;
}

static double clipped_of(const struct sw_curve_point *point, int column) {
    const int64_t steps = point->value[column].count;
    return steps > 0 ? (double)point->clipped / (double)steps : NAN;
}

static const struct {
    const char *name;
    column_value value;
    int column;
} page_columns[] = {
    {"step", step_of, 0},
    {"tokens", tokens_of, 0},
    {"seconds", seconds_of, 0},
    {"loss", mean_of, SW_LOG_LOSS},
    {"loss_tokens", mean_of, SW_LOG_LOSS_TOKENS},
    {"loss_least", least_of, SW_LOG_LOSS},
    {"loss_most", most_of, SW_LOG_LOSS},
    {"grad_norm", mean_of, SW_LOG_GRAD_NORM},
    {"grad_norm_least", least_of, SW_LOG_GRAD_NORM},
    {"grad_norm_most", most_of, SW_LOG_GRAD_NORM},
    {"clipped", clipped_of, SW_LOG_GRAD_NORM},
    {"lr", mean_of, SW_LOG_LR},
    {"step_s", mean_of, SW_LOG_SECONDS},
    {"tokens_per_second", mean_of, SW_LOG_TOKENS_PER_SECOND},
    {"tokens_per_second_least", least_of, SW_LOG_TOKENS_PER_SECOND},
    {"tokens_per_second_most", most_of, SW_LOG_TOKENS_PER_SECOND},
    {"mfu", mean_of, SW_LOG_MFU},
};

static void put_column(FILE *to, const char *name, const struct sw_curves *curves, column_value value, int column) {
    const char *comma = "";
    fprintf(to, "\"%s\":[", name);
    for (int64_t i = 0; i < curves->points; i++) {
        if (curves->point[i].step == 0)
            continue;
        fputs(comma, to);
        if (value == step_of || value == tokens_of)
            fprintf(to, "%.0f", value(&curves->point[i], column));
        else
            put_digits(to, value(&curves->point[i], column), value == by_second ? SW_DRAWN_DIGITS : SW_STATED_DIGITS);
        comma = ",";
    }
    fputs("]", to);
}

static void put_group(FILE *to, const char *name, const struct sw_curves *curves, column_value value, int first,
                      int count) {
    fprintf(to, "\"%s\":{", name);
    for (int i = first; i < first + count; i++) {
        put_column(to, sw_log_fields[i].name, curves, value, i);
        fputs(i + 1 < first + count ? "," : "},", to);
    }
}

static void put_columns(FILE *to, const struct sw_curves *curves) {
    fputs("\"columns\":{", to);
    for (size_t i = 0; i < sizeof page_columns / sizeof page_columns[0]; i++) {
        fputs(i > 0 ? "," : "", to);
        put_column(to, page_columns[i].name, curves, page_columns[i].value, page_columns[i].column);
    }
    fputs("},", to);
    put_group(to, "lanes", curves, by_second, SW_LOG_LANES, SW_LOG_LANE_COUNT);
    put_group(to, "rates", curves, by_second, SW_LOG_BYTES, SW_LOG_BYTE_COUNT);
    put_group(to, "peaks", curves, most_of, SW_LOG_PEAKS, SW_LOG_PEAK_COUNT);
    if (isfinite(curves->last.value[SW_LOG_EXPERTS]))
        put_group(to, "routing", curves, mean_of, SW_LOG_EXPERTS, SW_LOG_EXPERT_COUNT);
    if (curves->last.value[SW_LOG_REWARDS] > 0.0) /* pairs: a run with --dpo */
        put_group(to, "rewards", curves, mean_of, SW_LOG_REWARDS, SW_LOG_REWARD_COUNT);
}

static void put_evaluations(FILE *to, const struct sw_curves *curves) {
    fputs("\"evaluations\":[", to);
    for (int64_t i = 0; i < curves->evaluations; i++) {
        fprintf(to, "%s[%lld,", i > 0 ? "," : "", (long long)curves->evaluation[i].step);
        put_digits(to, curves->evaluation[i].loss, SW_STATED_DIGITS);
        fputc(']', to);
    }
    fputs("],", to);
    const struct sw_curve_evaluation *ends[] = {&curves->best, &curves->last_evaluation};
    for (int i = 0; i < 2; i++) {
        fprintf(to, "\"%s\":", i == 0 ? "best" : "last_evaluation");
        if (ends[i]->step == 0) {
            fputs("null,", to);
            continue;
        }
        fprintf(to, "[%lld,", (long long)ends[i]->step);
        put_digits(to, ends[i]->loss, SW_STATED_DIGITS);
        fputs("],", to);
    }
}

/* Writes the totals; each is followed by a comma. */
static void put_totals(FILE *to, const struct sw_curves *curves) {
    const struct sw_curve_point *last = curves->points > 0 ? &curves->point[curves->points - 1] : NULL;
    int64_t clipped = 0, skipped = 0, empty = 0;
    for (int64_t i = 0; i < curves->points; i++) {
        clipped += curves->point[i].clipped;
        skipped += curves->point[i].skipped;
        empty += curves->point[i].empty;
    }
    put_whole(to, "steps", (double)curves->steps);
    put_whole(to, "width", (double)curves->width);
    put_whole(to, "saved", (double)curves->saved);
    put_whole(to, "clipped", (double)clipped);
    put_whole(to, "skipped", (double)skipped);
    put_whole(to, "empty", (double)empty);
    put_whole(to, "tokens", last != NULL ? last->tokens : 0);
    fputs("\"seconds\":", to);
    put_digits(to, last != NULL ? last->seconds : 0, SW_STATED_DIGITS);
    fputs(",\"bytes\":{", to);
    for (int i = 0; i < SW_LOG_BYTE_COUNT; i++)
        fprintf(to, "%s\"%s\":%.0f", i > 0 ? "," : "", sw_log_fields[SW_LOG_BYTES + i].name, curves->bytes[i]);
    fputs("},\"lane_seconds\":{", to);
    for (int i = 0; i < SW_LOG_LANE_COUNT; i++) {
        fprintf(to, "%s\"%s\":", i > 0 ? "," : "", sw_log_fields[SW_LOG_LANES + i].name);
        put_digits(to, curves->lane_seconds[i], SW_STATED_DIGITS);
    }
    fputs("},", to);
    static const int of_last[] = {SW_LOG_RANKS, SW_LOG_ZERO, SW_LOG_ETA_SECONDS};
    for (size_t i = 0; curves->steps > 0 && i < sizeof of_last / sizeof of_last[0]; i++) {
        fprintf(to, "\"%s\":", sw_log_fields[of_last[i]].name);
        put_digits(to, curves->last.value[of_last[i]], SW_STATED_DIGITS);
        fputc(',', to);
    }
    put_text(to, "first_time", curves->first_time);
    put_text(to, "last_time", curves->last_time);
}

static void put_load(FILE *to, const struct sw_expert_load *load) {
    if (load->layers == NULL)
        return;
    fprintf(to, "\"load\":{\"step\":%lld,\"steps\":%lld,", (long long)load->step, (long long)load->steps);
    put_json(to, "layers", load->layers);
    fputs("\"end\":0},", to);
}

/* Returns how much of each run fits into a page of `count` runs. */
static struct sw_curve_spec spec_of(int count) {
    return (struct sw_curve_spec){.most_points = count <= WIDE_RUNS ? SW_CURVE_POINTS : SW_CURVE_POINTS / 2,
                                  .most_sample_bytes = SAMPLES_BYTES / count};
}

/* Writes a run as the page's data, and the description of its pipeline, if it has one, to `said` (may be NULL). */
static sw_status put_run(FILE *to, const char *folder, int count, FILE *said) {
    char path[PATH_MAX], *stages = NULL;
    json_t *run = NULL;
    struct sw_curves *curves = NULL;
    struct sw_curve_spec spec = spec_of(count);
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    SW_TRY(sw_json_read_checked_file(path, SW_JSON_MOST_WRITTEN_BYTES, SW_ERR_CORRUPT, &run));
    const json_t *settings = json_object_get(run, "settings");
    spec.clip = json_number_value(json_object_get(settings, "clip"));
    sw_status status = json_is_object(settings)
                           ? sw_curves_read(folder, &spec, &curves)
                           : sw_fail(SW_ERR_CORRUPT, "%s has no settings, so it is no run of this program", path);
    if (status == SW_OK)
        status = sw_stages_describe(folder, curves, first_of_start(run, curves), &stages);
    if (status == SW_OK && stages != NULL && said != NULL)
        fprintf(said, "%s:\n%s", folder, stages);
    if (status == SW_OK) {
        fputc('{', to);
        put_text(to, "folder", folder);
        put_json(to, "version", json_object_get(run, "spillway"));
        put_json(to, "settings", settings);
        put_json(to, "architecture", json_object_get(json_object_get(run, "config"), "model_type"));
        put_json(to, "gpu", json_object_get(json_object_get(run, "products"), "gpu"));
        put_totals(to, curves);
        put_columns(to, curves);
        put_evaluations(to, curves);
        put_start(to, run, curves);
        if (stages != NULL)
            put_text(to, "stages", stages);
        put_timeline(to, folder, TIMELINES_BYTES / count);
        put_samples(to, &curves->samples);
        put_load(to, &curves->load);
        fputs("\"end\":0}", to);
    }
    sw_curves_free(curves);
    json_decref(run);
    free(stages);
    return status;
}

static sw_status make_data(const char *const *folders, int count, int64_t reload_s, FILE *said, char **out) {
    size_t bytes = 0;
    FILE *to = open_memstream(out, &bytes);
    if (to == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the report");
    sw_status status = SW_OK;
    fprintf(to, "{\"version\":\"" SW_VERSION "\",\"reload_s\":%lld,\"runs\":[", (long long)reload_s);
    for (int i = 0; status == SW_OK && i < count; i++) {
        fputs(i > 0 ? "," : "", to);
        status = put_run(to, folders[i], count, said);
    }
    fputs("]}", to);
    if (!sw_text_stream_end(to, out) && status == SW_OK)
        status = sw_fail(SW_ERR_NOMEM, "no memory for the report");
    return status;
}

/* Writes angle brackets and ampersands, which only strings in JSON have, as escapes. So no name in a run can end the
 * script that holds the data. */
static void put_escaped(FILE *to, const char *data) {
    for (; *data != 0; data++)
        if (*data == '<' || *data == '>' || *data == '&')
            fprintf(to, "\\u%04x", (unsigned)*data);
        else
            fputc(*data, to);
}

sw_status sw_report_make(const char *const *folders, int count, int64_t reload_s, FILE *said, char **out_page,
                         size_t *out_bytes) {
    char *data = NULL;
    sw_status status = make_data(folders, count, reload_s, said, &data);
    FILE *to = status == SW_OK ? open_memstream(out_page, out_bytes) : NULL;
    if (status == SW_OK && to == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory for the report");
    if (to != NULL) {
        fwrite(sw_page_before, 1, sw_page_before_bytes, to);
        put_escaped(to, data);
        fwrite(sw_page_after, 1, sw_page_after_bytes, to);
        if (!sw_text_stream_end(to, out_page))
            status = sw_fail(SW_ERR_NOMEM, "no memory for the report");
    }
    free(data);
    return status;
}

/* Returns whether a file begins like one of our pages. */
static bool is_page(const char *path) {
    static const char mark[] = "<!doctype html>\n<!-- spillway report -->";
    char begin[sizeof mark] = "";
    struct stat info;
    FILE *file = stat(path, &info) == 0 && S_ISREG(info.st_mode) ? fopen(path, "re") : NULL;
    if (file == NULL)
        return false;
    const size_t chars = fread(begin, 1, sizeof mark - 1, file);
    fclose(file);
    return chars == sizeof mark - 1 && memcmp(begin, mark, chars) == 0;
}

sw_status sw_report_write(const char *path, const char *page, size_t bytes) {
    struct stat info;
    if (lstat(path, &info) == 0 && !is_page(path))
        return sw_fail(SW_ERR_ARG, "%s is there and is no report; choose another --out, or remove it", path);
    return sw_file_replace(path, page, bytes, SW_FILE_SHARED);
}

/* A responder for one page, not a web server. It speaks as much HTTP/1.1 as a browser needs, and closes each connection
 * after its answer.
 *
 * All users of a machine can connect to its loopback address, so the page has a secret address, connections that send
 * nothing make room for those that do, and one user holds at most half of the connections. A general HTTP library would
 * add a dependency and more surface for a page that is read by one browser. */

enum {
    REQUEST_CHARS = 8192,
    HEAD_CHARS = 512,
    POLL_MS = 200,
    BACKLOG = 64,
    CONNECTIONS = 32,
    CONNECTIONS_OF_USER = 16
};
/* The longest time for a request to arrive, and for its answer to be sent. */
enum { TIMEOUT_MS = 3000 };
/* Making the page takes at most one part in this of the time; a reader reloads at most this often. */
enum { IDLE_PARTS = 20, LEAST_RELOAD_S = 3 };
enum { SECRET_BYTES = 16, SECRET_CHARS = 2 * SECRET_BYTES };

/* A connection, which first sends its request and then gets its answer. */
struct connection {
    int fd;        /* -1: free */
    uint32_t user; /* who made it (user_of) */
    int64_t deadline_ns;
    char request[REQUEST_CHARS]; /* zero-terminated */
    size_t request_chars;
    char *answer; /* NULL: the request is incomplete */
    size_t answer_bytes, sent_bytes;
};

struct server {
    const char *const *folders;
    int count;
    int socket;
    int port;
    char path[SECRET_CHARS + 3]; /* of the page: "/", the secret, "/" */
    int64_t make_ns;             /* how long making the page took last time */
    const volatile sig_atomic_t *stop;
    struct connection connections[CONNECTIONS];
};

struct answer {
    int code;
    const char *reason, *type;
    const char *body;
    size_t bytes;
};

static struct answer plain(int code, const char *reason, const char *text) {
    return (struct answer){
        .code = code, .reason = reason, .type = "text/plain; charset=utf-8", .body = text, .bytes = strlen(text)};
}

/* Returns whether the request names this address as its host. Otherwise a foreign page, whose name was made to resolve
 * to this machine, could read the answer. */
static bool is_for_us(const struct server *server, const char *request) {
    static const char *const names[] = {"127.0.0.1", "localhost"};
    const char *host = strcasestr(request, "\r\nhost:");
    if (host == NULL)
        return false;
    host += strlen("\r\nhost:");
    host += strspn(host, " \t");
    const size_t chars = strcspn(host, " \t\r\n");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char wanted[32];
        const int length = snprintf(wanted, sizeof wanted, "%s:%d", names[i], server->port);
        if (chars == (size_t)length && strncasecmp(host, wanted, chars) == 0)
            return true;
    }
    return false;
}

/* Makes the page, which the caller frees by *out_page. If that fails, the answer is the error's message. */
static struct answer answer_page(struct server *server, char **out_page) {
    const int64_t begin_ns = sw_now_ns();
    const int64_t reload_s = LEAST_RELOAD_S + IDLE_PARTS * server->make_ns / 1000000000;
    size_t bytes = 0;
    const sw_status status = sw_report_make(server->folders, server->count, reload_s, NULL, out_page, &bytes);
    server->make_ns = sw_now_ns() - begin_ns;
    if (status == SW_OK)
        return (struct answer){
            .code = 200, .reason = "OK", .type = "text/html; charset=utf-8", .body = *out_page, .bytes = bytes};
    *out_page = strdup(sw_error_message(status));
    sw_error_clear();
    return plain(500, "Internal Server Error", *out_page != NULL ? *out_page : "no memory");
}

/* Returns whether the request is for the page. Compares all characters, so that the time reveals nothing. */
static bool is_for_page(const struct server *server, const char *request) {
    const char *path = request + strlen("GET ");
    const size_t chars = strlen(server->path);
    if (strlen(path) < chars)
        return false;
    unsigned char differs = 0;
    for (size_t i = 0; i < chars; i++)
        differs |= (unsigned char)(path[i] ^ server->path[i]);
    return differs == 0 && strncmp(path + chars, " HTTP/1.", strlen(" HTTP/1.")) == 0;
}

/* Makes the answer to a connection's request. Returns false if there is no memory for it. */
static bool make_answer(struct server *server, struct connection *connection) {
    const char *request = connection->request;
    char head[HEAD_CHARS], *page = NULL;
    struct answer answer;
    if (!is_for_us(server, request))
        answer = plain(403, "Forbidden", "this report is served only to this machine\n");
    else if (strncmp(request, "GET ", 4) != 0)
        answer = plain(405, "Method Not Allowed", "only GET is answered\n");
    else if (!is_for_page(server, request))
        answer = plain(404, "Not Found", "the report is at the whole address that --watch printed\n");
    else
        answer = answer_page(server, &page);
    const int chars =
        snprintf(head, sizeof head,
                 "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
                 "Content-Security-Policy: frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\n"
                 "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
                 answer.code, answer.reason, answer.type, answer.bytes);
    connection->answer_bytes = (size_t)chars + answer.bytes;
    connection->answer = malloc(connection->answer_bytes);
    if (connection->answer != NULL) {
        memcpy(connection->answer, head, (size_t)chars);
        memcpy(connection->answer + chars, answer.body, answer.bytes);
    }
    connection->deadline_ns = sw_now_ns() + TIMEOUT_MS * INT64_C(1000000);
    free(page);
    return connection->answer != NULL;
}

/* Reads more of a request, and answers it once its head is complete. Returns false if the connection is of no more use.
 */
static bool read_request(struct server *server, struct connection *connection) {
    char *end = connection->request + connection->request_chars;
    const ssize_t got = recv(connection->fd, end, REQUEST_CHARS - 1 - connection->request_chars, MSG_DONTWAIT);
    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    connection->request_chars += (size_t)got;
    end[got] = '\0';
    if (strstr(connection->request, "\r\n\r\n") != NULL)
        return make_answer(server, connection);
    return got > 0 && connection->request_chars < REQUEST_CHARS - 1;
}

/* Sends as much of the answer as the connection accepts. Returns false if all is sent or nothing can be. */
static bool send_answer(struct connection *connection) {
    const ssize_t put = send(connection->fd, connection->answer + connection->sent_bytes,
                             connection->answer_bytes - connection->sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0)
        return errno == EINTR || errno == EAGAIN;
    connection->sent_bytes += (size_t)put;
    return connection->sent_bytes < connection->answer_bytes;
}

static void end_connection(struct connection *connection) {
    /* Closing a connection with unread bytes would discard the answer. */
    (void)shutdown(connection->fd, SHUT_WR);
    close(connection->fd);
    free(connection->answer);
    *connection = (struct connection){.fd = -1};
}

/* Returns the user who made the other end of a local connection. All users whom the kernel does not tell are one user,
 * UINT32_MAX. */
static uint32_t user_of(int fd) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } question = {
        .head = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .body = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = UINT32_MAX}};
    struct {
        struct nlmsghdr head;
        struct inet_diag_msg body;
        char more[512];
    } told = {0};
    struct sockaddr_in own, other;
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
    const int asked = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    bool is_told = asked >= 0 && getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 &&
                   getpeername(fd, (struct sockaddr *)&other, &other_bytes) == 0;
    if (is_told) {
        struct inet_diag_sockid *id = &question.body.id;
        id->idiag_sport = other.sin_port;
        id->idiag_dport = own.sin_port;
        id->idiag_src[0] = other.sin_addr.s_addr;
        id->idiag_dst[0] = own.sin_addr.s_addr;
        id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
        is_told = send(asked, &question, sizeof question, 0) == (ssize_t)sizeof question &&
                  recv(asked, &told, sizeof told, 0) >= (ssize_t)offsetof(typeof(told), more) &&
                  told.head.nlmsg_type == SOCK_DIAG_BY_FAMILY;
    }
    if (asked >= 0)
        close(asked);
    return is_told ? told.body.idiag_uid : UINT32_MAX;
}

/* Returns a free connection for a user. If there is none, or the user has as many as allowed, returns the one that
 * times out first: among all, or the user's, that have sent no complete request, or else among all of them. */
static struct connection *take_connection(struct server *server, uint32_t user) {
    struct connection *first = NULL, *free_one = NULL;
    int count = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        if (server->connections[i].fd < 0)
            free_one = &server->connections[i];
        else
            count += server->connections[i].user == user;
    }
    const bool has_all = count >= CONNECTIONS_OF_USER;
    if (!has_all && free_one != NULL)
        return free_one;
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *each = &server->connections[i];
        if (each->fd < 0 || (has_all && each->user != user))
            continue;
        const bool is_idler = first == NULL || (each->answer == NULL && first->answer != NULL);
        const bool is_older = first != NULL && (each->answer == NULL) == (first->answer == NULL) &&
                              each->deadline_ns < first->deadline_ns;
        if (is_idler || is_older)
            first = each;
    }
    end_connection(first);
    return first;
}

static sw_status listen_on(struct server *server, int64_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof address;
    const int yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->socket < 0)
        return sw_fail(SW_ERR_IO, "no socket for --watch: %s", strerror(errno));
    (void)setsockopt(server->socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server->socket, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(server->socket, BACKLOG) != 0 || getsockname(server->socket, (struct sockaddr *)&address, &bytes) != 0)
        return errno == EADDRINUSE
                   ? sw_fail(
                         SW_ERR_BUSY,
                         "--port %lld is in use by another program; choose another, or leave --port out for a free one",
                         (long long)port)
                   : sw_fail(SW_ERR_IO, "--port %lld cannot be served: %s", (long long)port, strerror(errno));
    server->port = ntohs(address.sin_port);
    return SW_OK;
}

/* Accepts one connection: waiting ones are served in between. */
static void accept_one(struct server *server) {
    const int fd = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    const uint32_t user = user_of(fd);
    struct connection *connection = take_connection(server, user);
    connection->fd = fd;
    connection->user = user;
    connection->deadline_ns = sw_now_ns() + TIMEOUT_MS * INT64_C(1000000);
}

static void serve(struct server *server) {
    struct pollfd entries[CONNECTIONS + 1];
    while (!*server->stop) {
        for (int i = 0; i < CONNECTIONS; i++) {
            const struct connection *each = &server->connections[i];
            entries[i] = (struct pollfd){.fd = each->fd, .events = each->answer != NULL ? POLLOUT : POLLIN};
        }
        entries[CONNECTIONS] = (struct pollfd){.fd = server->socket, .events = POLLIN};
        const int ready = poll(entries, CONNECTIONS + 1, POLL_MS);
        for (int i = 0; i < CONNECTIONS; i++) {
            struct connection *each = &server->connections[i];
            bool stays = each->fd < 0 || sw_now_ns() < each->deadline_ns;
            if (ready > 0 && each->fd >= 0 && entries[i].revents != 0)
                stays = each->answer == NULL ? read_request(server, each) : send_answer(each);
            if (!stays)
                end_connection(each);
        }
        if (ready > 0 && entries[CONNECTIONS].revents != 0)
            accept_one(server);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        if (server->connections[i].fd >= 0)
            end_connection(&server->connections[i]);
}

static sw_status choose_path(struct server *server) {
    unsigned char secret[SECRET_BYTES];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        return sw_fail(SW_ERR_IO, "the system gives no random numbers for the address of --watch: %s", strerror(errno));
    server->path[0] = '/';
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(server->path + 1 + 2 * i, 3, "%02x", secret[i]);
    server->path[SECRET_CHARS + 1] = '/';
    return SW_OK;
}

/* Serves the page on the port until the user stops it. */
static sw_status watch(struct server *server, int64_t port) {
    SW_TRY(choose_path(server));
    SW_TRY(listen_on(server, port));
    fprintf(stderr, "open http://127.0.0.1:%d%s in a browser; Ctrl-C ends\n", server->port, server->path);
    serve(server);
    return SW_OK;
}

sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop) {
    struct server *server = calloc(1, sizeof *server);
    char *page = NULL;
    size_t bytes = 0;
    if (server == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for --watch");
    *server = (struct server){.folders = folders, .count = count, .socket = -1, .stop = stop};
    for (int i = 0; i < CONNECTIONS; i++)
        server->connections[i].fd = -1;
    /* Refuses a folder that is not a run at once, instead of in the browser. */
    sw_status status = sw_report_make(folders, count, LEAST_RELOAD_S, NULL, &page, &bytes);
    free(page);
    if (status == SW_OK)
        status = watch(server, port);
    if (server->socket >= 0)
        close(server->socket);
    free(server);
    return status;
}
