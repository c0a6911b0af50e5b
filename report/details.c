#include "report/details.h"

#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "report/page_data.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { TIMELINE_JSON_BYTES = 1 << 20 };

/* Writes a group of medians as a member. */
static void put_medians(FILE *to, const char *name, const struct sw_curves *curves, int first, int count,
                        int64_t after_step) {
    fprintf(to, "\"%s\":{", name);
    for (int i = first; i < first + count; i++) {
        fprintf(to, "%s\"%s\":", i > first ? "," : "", sw_log_column_name(i));
        sw_put_digits(to, sw_curves_median(curves, i, after_step, NULL), SW_STATED_DIGITS);
    }
    fputs("},", to);
}

/* The first step of a start fills the pipeline, so it is no measure of those after it. */
void sw_put_start(FILE *to, const json_t *run, const struct sw_curves *curves) {
    const json_t *prediction = json_object_get(run, "prediction");
    const json_t *first = json_object_get(prediction, "first_step");
    const int64_t after_step = json_is_integer(first) ? json_integer_value(first) : curves->first_step;
    int64_t steps;
    sw_put_json(to, "machine", json_object_get(run, "machine"));
    sw_put_json(to, "prediction", prediction);
    fputs("\"measured\":{\"step_seconds\":", to);
    sw_put_digits(to, sw_curves_median(curves, SW_LOG_SECONDS, after_step, &steps), SW_STATED_DIGITS);
    fputs(",\"tokens_per_second\":", to);
    sw_put_digits(to, sw_curves_median(curves, SW_LOG_TOKENS_PER_SECOND, after_step, NULL), SW_STATED_DIGITS);
    fputc(',', to);
    put_medians(to, "lanes", curves, SW_LOG_LANES, SW_LOG_LANE_COUNT, after_step);
    put_medians(to, "bytes", curves, SW_LOG_BYTES, SW_LOG_BYTE_COUNT, after_step);
    put_medians(to, "peak", curves, SW_LOG_PEAKS, SW_LOG_PEAK_COUNT, after_step);
    fprintf(to, "\"steps\":%lld},", (long long)steps);
}

void sw_put_timeline(FILE *to, const char *folder, size_t most_bytes) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX], *text = NULL;
    json_t *timeline = NULL;
    if (sw_path_join(path, sizeof path, folder, "timeline.json") == SW_OK)
        (void)sw_json_read_own_file(path, TIMELINE_JSON_BYTES, SW_ERR_CORRUPT, &timeline);
    if (timeline != NULL)
        text = json_dumps(timeline, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(7));
    if (text != NULL && strlen(text) > most_bytes)
        fputs("\"timeline\":\"left out\",", to);
    else
        fprintf(to, "\"timeline\":%s,", text != NULL ? text : "null");
    free(text);
    json_decref(timeline);
}

void sw_put_samples(FILE *to, const struct sw_samples *samples) {
    sw_put_whole(to, "samples_seen", (double)samples->seen);
    sw_put_whole(to, "samples_unreadable", (double)samples->unreadable);
    fputs("\"samples\":[", to);
    for (int64_t i = 0; i < samples->count; i++) {
        fprintf(to, "%s[%lld,", i > 0 ? "," : "", (long long)samples->sample[i].step);
        sw_put_value(to, samples->sample[i].prompt);
        fputc(',', to);
        sw_put_value(to, samples->sample[i].text);
        fputc(']', to);
    }
    fputs("],", to);
}
