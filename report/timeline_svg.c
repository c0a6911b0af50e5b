#include "report/timeline_svg.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/size.h"
#include "offload/engine/trace.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The image's dimensions in pixels. */
enum { WIDTH = 1080, LEFT = 80, RIGHT = 1060, TOP = 40, ROW = 26, BAR = 20, LEGEND_STEP = 98, LEGEND_BOX = 12 };
#define LEAST_BAR 0.5

/* The members of a span of the timeline. */
enum { START_US, LENGTH_US, WORK, FIRST_UNIT, LAST_UNIT, OPS };

struct image {
    FILE *to;
    const json_t *lanes;
    int rows;
    double zero_s;       /* the step's first work on the device: the axis's 0 */
    double from_s, to_s; /* of the first and the last span, relative to zero_s */
    bool works[SW_WORKS];
};

static double seconds_of(const json_t *span, int member) {
    return json_number_value(json_array_get(span, (size_t)member)) * 1e-6;
}

static int work_of(const json_t *span) {
    const char *name = json_string_value(json_array_get(span, WORK));
    int work = 0;
    while (work + 1 < SW_WORKS && strcmp(sw_work_name((sw_work)work), name) != 0)
        work++;
    return work;
}

static const json_t *spans_of(const struct image *image, int lane) {
    return json_object_get(image->lanes, sw_lane_name((sw_lane)lane));
}

/* Finds the limits of the axis, the kinds of work, and the lanes that did something. */
static void measure(struct image *image) {
    double first_s = INFINITY, last_s = 0.0, zero_s = INFINITY;
    for (int lane = 0; lane < SW_LANES; lane++) {
        const json_t *spans = spans_of(image, lane);
        image->rows += json_array_size(spans) > 0;
        for (size_t i = 0; i < json_array_size(spans); i++) {
            const json_t *span = json_array_get(spans, i);
            const double start_s = seconds_of(span, START_US);
            first_s = fmin(first_s, start_s);
            last_s = fmax(last_s, start_s + seconds_of(span, LENGTH_US));
            image->works[work_of(span)] = true;
            if (lane == SW_LANE_COMPUTE && work_of(span) <= SW_WORK_HEAD)
                zero_s = fmin(zero_s, start_s);
        }
    }
    image->zero_s = isfinite(zero_s) ? zero_s : 0.0;
    image->from_s = (isfinite(first_s) ? first_s : 0.0) - image->zero_s;
    image->to_s = last_s - image->zero_s;
}

static double x_of(const struct image *image, double seconds) {
    return LEFT + (seconds - image->from_s) / (image->to_s - image->from_s) * (RIGHT - LEFT);
}

/* Writes text as XML. The name of a model may be a path in any encoding; only its ASCII is written. */
static void put_text(FILE *to, const char *text) {
    for (; *text != '\0'; text++)
        switch (*text) {
        case '<': fputs("&lt;", to); break;
        case '&': fputs("&amp;", to); break;
        default: fputc(*text >= ' ' && *text <= '~' ? *text : '?', to);
        }
}

static void put_head(const struct image *image, const char *title) {
    const int height = TOP + image->rows * ROW + 72;
    fprintf(image->to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n"
            "<style>text{font:13px system-ui,sans-serif}",
            WIDTH, height, WIDTH, height);
    fwrite(sw_page_colors, 1, sw_page_colors_bytes, image->to);
    fputs("</style>\n<title>", image->to);
    put_text(image->to, title);
    fprintf(image->to,
            "</title>\n<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n<text class=\"ink\" x=\"%d\" y=\"22\">",
            WIDTH, height, LEFT);
    put_text(image->to, title);
    fputs("</text>\n", image->to);
}

/* Returns the smallest of 1, 2 and 5 times a power of ten that makes at most ten ticks. */
static double tick_of(double length_s) {
    enum { MOST_TICKS = 10 };
    const double least = length_s / MOST_TICKS, power = pow(10.0, floor(log10(least)));
    const double steps[] = {1.0, 2.0, 5.0};
    for (int i = 0; i < 3; i++)
        if (steps[i] * power >= least)
            return steps[i] * power;
    return 10.0 * power;
}

static void put_axis(const struct image *image) {
    const double tick = tick_of(image->to_s - image->from_s);
    const int bottom = TOP + image->rows * ROW;
    for (double k = ceil(image->from_s / tick); k * tick <= image->to_s; k += 1.0) {
        const double x = x_of(image, k * tick);
        fprintf(image->to,
                "<line class=\"line\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                "<text class=\"quiet\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
                x, x, TOP, bottom, x, bottom + 16, k * tick + 0.0);
    }
    fprintf(image->to, "<text class=\"quiet\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">seconds</text>\n",
            (LEFT + RIGHT) / 2, bottom + 34);
}

static void put_lane(const struct image *image, int lane, int y) {
    const json_t *spans = spans_of(image, lane);
    fprintf(image->to, "<text class=\"ink\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8, y + 15,
            sw_lane_name((sw_lane)lane));
    for (size_t i = 0; i < json_array_size(spans); i++) {
        const json_t *span = json_array_get(spans, i);
        const double start_s = seconds_of(span, START_US) - image->zero_s, length_s = seconds_of(span, LENGTH_US);
        const double x = x_of(image, start_s), width = fmax(LEAST_BAR, x_of(image, start_s + length_s) - x);
        fprintf(image->to,
                "<rect class=\"w%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>%s, %s: %.3g s from "
                "%.4g s</title></rect>\n",
                work_of(span), x, y, width, BAR, sw_work_name(work_of(span)),
                SW_COUNT(json_integer_value(json_array_get(span, OPS)), "op"), length_s, start_s);
    }
}

static void put_legend(const struct image *image) {
    const int y = TOP + image->rows * ROW + 46;
    int shown = 0;
    for (int work = 0; work < SW_WORKS; work++) {
        const int x = LEFT + shown * LEGEND_STEP;
        if (!image->works[work])
            continue;
        shown++;
        fprintf(image->to,
                "<rect class=\"w%d\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/><text class=\"ink\" x=\"%d\" "
                "y=\"%d\">%s</text>\n",
                work, x, y, LEGEND_BOX, LEGEND_BOX, x + LEGEND_BOX + 5, y + 11, sw_work_name((sw_work)work));
    }
}

static void put_image(struct image *image, const char *title) {
    int row = 0;
    measure(image);
    put_head(image, title);
    put_axis(image);
    for (int lane = 0; lane < SW_LANES; lane++)
        if (json_array_size(spans_of(image, lane)) > 0)
            put_lane(image, lane, TOP + ROW * row++ + (ROW - BAR) / 2);
    put_legend(image);
    fputs("</svg>\n", image->to);
}

sw_status sw_timeline_svg_check(const char *path) {
    struct stat there;
    if (sw_path_lstat(path, &there) == 0)
        return sw_fail(SW_ERR_ARG, "--svg %s exists already; name a new file", path);
    return SW_OK;
}

sw_status sw_timeline_svg_write(const char *path, const char *timeline, const char *title) {
    json_t *root;
    char *text = NULL;
    size_t bytes = 0;
    SW_TRY(sw_timeline_svg_check(path));
    SW_TRY(sw_json_parse(timeline, "the timeline", SW_ERR_INTERNAL, &root));
    struct image image = {.to = open_memstream(&text, &bytes), .lanes = json_object_get(root, "lanes")};
    sw_status status = image.to != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the image of a timeline");
    if (status == SW_OK) {
        put_image(&image, title);
        if (!sw_text_stream_end(image.to, &text))
            status = sw_fail(SW_ERR_NOMEM, "no memory for the image of a timeline");
    }
    if (status == SW_OK)
        status = sw_file_replace(path, text, bytes, SW_FILE_SHARED);
    free(text);
    json_decref(root);
    return status;
}
