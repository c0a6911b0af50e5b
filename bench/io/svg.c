#include "bench/io/svg.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All in pixels. */
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

/* Told apart by people who see few colours, too (after Okabe and Ito). */
static const char *const colours[SW_SVG_MAX_SERIES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#e69f00", "#56b4e9", "#000000", "#999999"};

struct frame {
    FILE *to;
    const struct sw_svg_chart *chart;
    int top; /* of the chart in the picture */
    double x_min, x_max, y_max;
};

static void write_text(FILE *to, const char *text) {
    for (const char *at = text; *at != '\0'; at++) {
        switch (*at) {
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '&': fputs("&amp;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc(*at, to);
        }
    }
}

static double x_of(const struct frame *frame, double x) {
    const double part = frame->x_max > frame->x_min ? (x - frame->x_min) / (frame->x_max - frame->x_min) : 0.5;
    return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *frame, double y) {
    return frame->top + HEIGHT - BOTTOM - y / frame->y_max * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten: about as many steps as wanted. */
static double step_of(double range) {
    const double rough = range / WANTED_TICKS, power = pow(10.0, floor(log10(rough)));
    const double factor = rough / power;
    return power * (factor <= 1.0 ? 1.0 : factor <= 2.0 ? 2.0 : factor <= 5.0 ? 5.0 : 10.0);
}

static void find_range(struct frame *frame) {
    const struct sw_svg_chart *chart = frame->chart;
    frame->x_min = INFINITY;
    frame->x_max = -INFINITY;
    for (int s = 0; s < chart->series_count; s++)
        for (int i = 0; i < chart->series[s].count; i++) {
            frame->x_min = fmin(frame->x_min, chart->series[s].x[i]);
            frame->x_max = fmax(frame->x_max, chart->series[s].x[i]);
            frame->y_max = fmax(frame->y_max, chart->series[s].y[i]);
        }
    if (frame->x_min > frame->x_max)
        frame->x_min = frame->x_max = 0.0;
    frame->y_max = frame->y_max > 0.0 ? frame->y_max * 1.05 : 1.0;
}

static void write_x_tick(const struct frame *frame, double at, const char *text) {
    fprintf(frame->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", x_of(frame, at),
            frame->top + HEIGHT - BOTTOM + 18);
    write_text(frame->to, text);
    fputs("</text>\n", frame->to);
}

static void write_axes(const struct frame *frame) {
    const struct sw_svg_chart *chart = frame->chart;
    char text[SW_SVG_LABEL_CHARS];
    const double y_step = step_of(frame->y_max);
    for (int i = 0; i * y_step <= frame->y_max; i++) {
        const double y = i * y_step;
        fprintf(frame->to,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, WIDTH - RIGHT, y_of(frame, y), y_of(frame, y), LEFT - 8, y_of(frame, y) + 4.0, y);
    }
    for (int i = 0; i < chart->tick_count; i++)
        write_x_tick(frame, chart->tick_at[i], chart->tick[i]);
    if (chart->tick_count > 0 || frame->x_max <= frame->x_min)
        return;
    const double x_step = step_of(frame->x_max - frame->x_min);
    const double first_x = ceil(frame->x_min / x_step) * x_step;
    for (int i = 0; first_x + i * x_step <= frame->x_max; i++) {
        const double x = first_x + i * x_step;
        snprintf(text, sizeof text, "%g", x);
        write_x_tick(frame, x, text);
    }
}

static void write_titles(const struct frame *frame) {
    fprintf(frame->to, "<text x=\"%d\" y=\"%d\" font-size=\"15\">", LEFT, frame->top + TOP - 16);
    write_text(frame->to, frame->chart->title);
    fprintf(frame->to, "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2,
            frame->top + HEIGHT - 14);
    write_text(frame->to, frame->chart->x_label);
    fprintf(frame->to, "</text>\n<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">",
            frame->top + HEIGHT / 2);
    write_text(frame->to, frame->chart->y_label);
    fputs("</text>\n", frame->to);
}

static void write_line(const struct frame *frame, const struct sw_svg_series *series, const char *colour, int y) {
    const char *dashes = series->dashed ? " stroke-dasharray=\"5 4\"" : "";
    fprintf(frame->to, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour, dashes);
    for (int i = 0; i < series->count; i++)
        fprintf(frame->to, "%s%.1f,%.1f", i == 0 ? "" : " ", x_of(frame, series->x[i]), y_of(frame, series->y[i]));
    fprintf(frame->to, "\"/>\n<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
            WIDTH - RIGHT + 10, WIDTH - RIGHT + 34, y, y, colour, dashes);
}

static void write_dot(const struct frame *frame, double x, double y, const char *colour) {
    fprintf(frame->to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"white\" stroke=\"%s\" stroke-width=\"2\"/>\n", x,
            y, colour);
}

static void write_series(const struct frame *frame, int index) {
    const struct sw_svg_series *series = &frame->chart->series[index];
    const char *colour = colours[series->colour];
    const int y = frame->top + TOP + index * LEGEND_STEP + 8;
    if (!series->dots)
        write_line(frame, series, colour, y);
    for (int i = 0; series->dots && i < series->count; i++)
        write_dot(frame, x_of(frame, series->x[i]), y_of(frame, series->y[i]), colour);
    if (series->dots)
        write_dot(frame, WIDTH - RIGHT + 22, y, colour);
    fprintf(frame->to, "<text x=\"%d\" y=\"%d\">", WIDTH - RIGHT + 40, y + 4);
    write_text(frame->to, series->name);
    fputs("</text>\n", frame->to);
}

static void write_chart(FILE *to, const struct sw_svg_chart *chart, int index) {
    struct frame frame = {.to = to, .chart = chart, .top = CAPTION + index * HEIGHT};
    find_range(&frame);
    write_titles(&frame);
    write_axes(&frame);
    for (int s = 0; s < chart->series_count; s++)
        write_series(&frame, s);
}

sw_status sw_svg_check(const char *path) {
    if (access(path, F_OK) == 0)
        return sw_fail(SW_ERR_ARG, "%s exists already: name a new file", path);
    char *copy = strdup(path);
    if (copy == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a path");
    const char *folder = dirname(copy);
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
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, CAPTION + count * HEIGHT, WIDTH, CAPTION + count * HEIGHT);
    fprintf(to, "<text x=\"%d\" y=\"%d\" font-size=\"15\" font-weight=\"bold\">", LEFT, CAPTION - 8);
    write_text(to, caption);
    fputs("</text>\n", to);
    for (int i = 0; i < count; i++)
        write_chart(to, &charts[i], i);
    fputs("</svg>\n", to);
    const bool failed = ferror(to) != 0;
    if (fclose(to) == 0 && !failed)
        return SW_OK;
    const sw_status status = sw_fail(SW_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    unlink(path);
    return status;
}
