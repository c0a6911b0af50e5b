#include "bench/io/svg.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sizes are in pixels. */
enum {
    WIDTH = 760,
    HEIGHT = 340,
    LEFT = 64,
    RIGHT = 140,
    TOP = 40,
    BOTTOM = 52,
    LEGEND_STEP = 18,
    CAPTION = 32,
    WANTED_TICKS = 6,
};

/* Colours that people who see few of them tell apart (after Okabe and Ito). */
static const char *const colours[SW_SVG_MAX_SERIES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#e69f00", "#56b4e9", "#000000", "#999999"};

/* One chart in the picture. */
struct frame {
    FILE *to;
    const struct sw_svg_chart *chart;
    int top;                    /* of the chart, from the picture's */
    double x_min, x_max, y_max; /* of the axes: x or its logarithm, y in GB/s */
};

/* Text at a point, with an anchor ("start", "middle" or "end"). */
static void write_text(FILE *to, double x, double y, const char *anchor, int size, const char *text) {
    fprintf(to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y, anchor, size);
    for (const char *at = text; *at != '\0'; at++) {
        switch (*at) {
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '&': fputs("&amp;", to); break;
        default: fputc(*at, to);
        }
    }
    fputs("</text>\n", to);
}

static double scaled_x(const struct sw_svg_chart *chart, double x) {
    return chart->log2_x ? log2(x) : x;
}

static double x_of(const struct frame *frame, double scaled) {
    const double range = frame->x_max - frame->x_min;
    return LEFT + (range > 0.0 ? (scaled - frame->x_min) / range : 0.5) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *frame, double y) {
    return frame->top + HEIGHT - BOTTOM - y / frame->y_max * (HEIGHT - TOP - BOTTOM);
}

/* Returns 1, 2 or 5 times a power of ten: about as many steps as wanted. */
static double step_of(double range) {
    static const double factors[] = {1.0, 2.0, 5.0, 10.0};
    const double rough = range / WANTED_TICKS, power = pow(10.0, floor(log10(rough)));
    int i = 0;
    while (i < 3 && factors[i] * power < rough)
        i++;
    return factors[i] * power;
}

static void find_range(struct frame *frame) {
    const struct sw_svg_chart *chart = frame->chart;
    frame->x_min = INFINITY;
    frame->x_max = -INFINITY;
    for (int s = 0; s < chart->series_count; s++)
        for (int i = 0; i < chart->series[s].count; i++) {
            frame->x_min = fmin(frame->x_min, scaled_x(chart, chart->series[s].x[i]));
            frame->x_max = fmax(frame->x_max, scaled_x(chart, chart->series[s].x[i]));
            frame->y_max = fmax(frame->y_max, chart->series[s].y[i] * 1e-9);
        }
    if (frame->x_min > frame->x_max)
        frame->x_min = frame->x_max = 0.0;
    frame->y_max = frame->y_max > 0.0 ? frame->y_max * 1.05 : 1.0;
}

static void write_axes(const struct frame *frame) {
    const int bottom = frame->top + HEIGHT - BOTTOM;
    const double range = frame->x_max - frame->x_min, y_step = step_of(frame->y_max);
    const double x_step = frame->chart->log2_x || range <= 0.0 ? 1.0 : step_of(range);
    char text[SW_SVG_LABEL_CHARS];
    for (int i = 0; i * y_step <= frame->y_max; i++) {
        const double y = i * y_step;
        fprintf(frame->to, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", LEFT,
                WIDTH - RIGHT, y_of(frame, y), y_of(frame, y));
        snprintf(text, sizeof text, "%g", y);
        write_text(frame->to, LEFT - 8, y_of(frame, y) + 4.0, "end", 12, text);
    }
    const double first_x = ceil(frame->x_min / x_step) * x_step;
    for (int i = 0; first_x + i * x_step <= frame->x_max; i++) {
        const double x = first_x + i * x_step;
        snprintf(text, sizeof text, "%g", frame->chart->log2_x ? exp2(x) : x);
        write_text(frame->to, x_of(frame, x), bottom + 18, "middle", 12, text);
    }
    write_text(frame->to, LEFT, frame->top + TOP - 16, "start", 15, frame->chart->title);
    write_text(frame->to, 0.5 * (LEFT + WIDTH - RIGHT), frame->top + HEIGHT - 14, "middle", 12, frame->chart->x_label);
    write_text(frame->to, 8, frame->top + TOP - 2, "start", 12, "GB/s");
}

static void write_dot(FILE *to, double x, double y, const char *colour) {
    fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"white\" stroke=\"%s\" stroke-width=\"2\"/>\n", x, y,
            colour);
}

/* Draws a series and its key, at the right of the chart. */
static void write_series(const struct frame *frame, int index) {
    const struct sw_svg_series *series = &frame->chart->series[index];
    const char *colour = colours[series->colour], *dashes = series->dashed ? " stroke-dasharray=\"6 4\"" : "";
    const int key = frame->top + TOP + index * LEGEND_STEP + 8;
    if (!series->dots)
        fprintf(frame->to,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"%s/>\n"
                "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"",
                WIDTH - RIGHT + 10, WIDTH - RIGHT + 34, key, key, colour, dashes, colour, dashes);
    else
        write_dot(frame->to, WIDTH - RIGHT + 22, key, colour);
    for (int i = 0; i < series->count; i++) {
        const double x = x_of(frame, scaled_x(frame->chart, series->x[i])), y = y_of(frame, series->y[i] * 1e-9);
        if (series->dots)
            write_dot(frame->to, x, y, colour);
        else
            fprintf(frame->to, "%.1f,%.1f ", x, y);
    }
    if (!series->dots)
        fputs("\"/>\n", frame->to);
    write_text(frame->to, WIDTH - RIGHT + 40, key + 4, "start", 12, series->name);
}

sw_status sw_svg_check(const char *path) {
    if (access(path, F_OK) == 0)
        return sw_fail(SW_ERR_ARG, "%s exists already: name a new file", path);
    char *copy = strdup(path);
    const char *folder = copy != NULL ? dirname(copy) : ".";
    sw_status status = SW_OK;
    if (access(folder, W_OK) != 0)
        status = sw_fail(SW_ERR_ARG, "%s cannot be written in %s: %s", path, folder, strerror(errno));
    free(copy);
    return status;
}

sw_status sw_svg_write(const char *path, const char *caption, const struct sw_svg_chart *charts, int count) {
    FILE *to = fopen(path, "wxe");
    if (to == NULL)
        return sw_fail(SW_ERR_IO, "%s cannot be made: %s", path, strerror(errno));
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, CAPTION + count * HEIGHT);
    write_text(to, LEFT, CAPTION - 8, "start", 15, caption);
    for (int i = 0; i < count; i++) {
        struct frame frame = {.to = to, .chart = &charts[i], .top = CAPTION + i * HEIGHT};
        find_range(&frame);
        write_axes(&frame);
        for (int s = 0; s < charts[i].series_count; s++)
            write_series(&frame, s);
    }
    fputs("</svg>\n", to);
    const bool failed = ferror(to) != 0;
    if (fclose(to) == 0 && !failed)
        return SW_OK;
    const sw_status status = sw_fail(SW_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    unlink(path);
    return status;
}
