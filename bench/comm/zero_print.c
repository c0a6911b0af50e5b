/* The report of `bench zero`, for people and for programs. */
#include "bench/comm/zero.h"
#include "bench/report.h"
#include "core/size.h"

#include <stdio.h>

#define MB 1e-6

static const char *const names[SW_ZERO_FIGURES] = {[SW_ZERO_HELD_WEIGHTS] = "weights",
                                                   [SW_ZERO_HELD_GRADS] = "grads",
                                                   [SW_ZERO_HELD_OPTIMIZER] = "optimizer",
                                                   [SW_ZERO_HELD] = "states",
                                                   [SW_ZERO_SENT] = "sent"};

/* A rank alone sends nothing, which has no ratio. */
static bool has_ratio(const struct sw_zero_stage *stage, int figure) {
    return stage->formula_bytes[figure] > 0.0;
}

static double ratio(const struct sw_zero_stage *stage, int figure) {
    return (double)stage->bytes[figure] / stage->formula_bytes[figure];
}

static void print_figures(const struct sw_zero_stage *stage) {
    for (int figure = 0; figure < SW_ZERO_FIGURES; figure++) {
        printf(" |%9.2f %9.2f", (double)stage->bytes[figure] * MB, stage->formula_bytes[figure] * MB);
        if (has_ratio(stage, figure))
            printf(" %6.4f", ratio(stage, figure));
        else
            printf(" %6s", "-");
    }
    putchar('\n');
}

static void print_buffers(const struct sw_zero_stage *stage, sw_tier tier) {
    int64_t all = 0;
    for (int i = 0; i < stage->buffers; i++)
        all += stage->buffer[i].tier == tier ? stage->buffer[i].bytes : 0;
    printf("  %s, no state: %.2f MB", sw_tier_name(tier), (double)all * MB);
    const char *before = " (";
    for (int i = 0; i < stage->buffers; i++) {
        if (stage->buffer[i].tier != tier || stage->buffer[i].bytes == 0)
            continue;
        printf("%s%s %.2f", before, stage->buffer[i].name, (double)stage->buffer[i].bytes * MB);
        before = ", ";
    }
    puts(all > 0 ? ")" : "");
}

void sw_zero_print(const struct sw_zero_report *report) {
    const struct sw_comm_place *place = sw_comm_place(report->comm);
    printf("%s, %.2f million parameters, %s, %d ranks on %d machine%s by %s, %s; everything on the device\n"
           "MB that a rank holds and sends a step, what ZeRO says, and the ratio\nstage",
           report->model, (double)report->parameters * 1e-6, sw_dtype_name(report->type), place->ranks, place->nodes,
           place->nodes == 1 ? "" : "s", sw_comm_transport_name(report->comm), report->device);
    for (int figure = 0; figure < SW_ZERO_FIGURES; figure++)
        printf(" |%9s %9s %6s", names[figure], "formula", "ratio");
    putchar('\n');
    for (int zero = 0; zero < SW_ZERO_STAGES; zero++) {
        printf("%5d", zero);
        print_figures(&report->stage[zero]);
    }
    for (int zero = 0; zero < SW_ZERO_STAGES; zero++) {
        printf("stage %d\n", zero);
        print_buffers(&report->stage[zero], SW_DEVICE);
        print_buffers(&report->stage[zero], SW_HOST);
    }
}

static json_t *buffers_json(const struct sw_zero_stage *stage, sw_tier tier) {
    json_t *object = json_object();
    for (int i = 0; i < stage->buffers; i++)
        if (stage->buffer[i].tier == tier)
            json_object_set_new(object, stage->buffer[i].name, json_integer(stage->buffer[i].bytes));
    return object;
}

static json_t *stage_json(const struct sw_zero_stage *stage, int zero) {
    json_t *object =
        json_pack("{s:i, s:I, s:{s:o, s:o}}", "stage", zero, "planned_sent_bytes", (json_int_t)stage->planned_bytes,
                  "buffers", "device", buffers_json(stage, SW_DEVICE), "host", buffers_json(stage, SW_HOST));
    for (int figure = 0; figure < SW_ZERO_FIGURES; figure++)
        json_object_set_new(object, names[figure],
                            json_pack("{s:I, s:f, s:o}", "bytes", (json_int_t)stage->bytes[figure], "formula_bytes",
                                      stage->formula_bytes[figure], "ratio",
                                      has_ratio(stage, figure) ? json_real(ratio(stage, figure)) : json_null()));
    return object;
}

sw_status sw_zero_print_json(const struct sw_zero_report *report) {
    const struct sw_comm_place *place = sw_comm_place(report->comm);
    json_t *stages = json_array();
    for (int zero = 0; zero < SW_ZERO_STAGES; zero++)
        json_array_append_new(stages, stage_json(&report->stage[zero], zero));
    return sw_bench_print_json(json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:s, s:o}", "bench", "zero", "device", report->device, "model",
        report->model, "precision", sw_dtype_name(report->type), "parameters", (json_int_t)report->parameters, "ranks",
        place->ranks, "nodes", place->nodes, "transport", sw_comm_transport_name(report->comm), "stages", stages));
}
