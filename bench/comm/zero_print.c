/* The report of `bench zero`, for people and for programs. */
#include "bench/comm/zero.h"
#include "bench/table.h"

#include <stdio.h>

#define ROW struct sw_zero_stage
#define MB .scale = 1e-6, .digits = 2
#define FIGURE(name_, heading_, at)                                                                                    \
    {.name = name_ ".bytes", .heading = (heading_), SW_AT(SW_FIELD_COUNT, bytes[at]), MB},                             \
        {.name = name_ ".formula_bytes", .heading = "formula", SW_AT(SW_FIELD_REAL, formula_bytes[at]), MB}, {         \
        .name = name_ ".ratio", .heading = "ratio", SW_AT(SW_FIELD_REAL, ratio[at]), .digits = 4, .nullable = true     \
    }
/* A figure that not all jobs have. */
#define NODES_FIGURE(name_, at)                                                                                        \
    {.name = name_ ".bytes", .heading = name_, SW_AT(SW_FIELD_COUNT, bytes[at]), MB},                                  \
        {.name = name_ ".formula_bytes", .heading = "formula", SW_AT(SW_FIELD_REAL, formula_bytes[at]), MB}, {         \
        .name = name_ ".ratio", .heading = "ratio", SW_AT(SW_FIELD_REAL, ratio[at]), .digits = 4                       \
    }
static const struct sw_bench_field fields[] = {
    {.name = "stage", SW_AT(SW_FIELD_INT, stage)},
    {.name = "name", .heading = "stage", SW_AT(SW_FIELD_TEXT, name), .key = true},
    FIGURE("weights", "weights", SW_ZERO_HELD_WEIGHTS),
    FIGURE("grads", "grads", SW_ZERO_HELD_GRADS),
    FIGURE("optimizer", "optimizer", SW_ZERO_HELD_OPTIMIZER),
    FIGURE("states", "states", SW_ZERO_HELD),
    FIGURE("sent", "sent", SW_ZERO_SENT),
    {.name = "planned_sent_bytes", SW_AT(SW_FIELD_COUNT, planned_bytes)},
    NODES_FIGURE("secondary", SW_ZERO_HELD_SECONDARY),
    NODES_FIGURE("inside", SW_ZERO_INSIDE),
    NODES_FIGURE("between", SW_ZERO_BETWEEN),
    {.name = "planned_between_bytes", .heading = "planned", SW_AT(SW_FIELD_COUNT, planned_between_bytes), MB},
    {.name = "between_times", .heading = "times W", SW_AT(SW_FIELD_REAL, between_times), .digits = 2},
};

static void print_buffers(const struct sw_zero_stage *stage, sw_tier tier) {
    int64_t all = 0;
    for (int i = 0; i < stage->buffers; i++)
        all += stage->buffer[i].tier == tier ? stage->buffer[i].bytes : 0;
    printf("  %s, no state: %.2f MB\n", sw_tier_name(tier), (double)all * 1e-6);
    for (int i = 0; i < stage->buffers; i++)
        if (stage->buffer[i].tier == tier && stage->buffer[i].bytes > 0)
            printf("    %s %.2f\n", stage->buffer[i].name, (double)stage->buffer[i].bytes * 1e-6);
}

void sw_zero_print(const struct sw_zero_report *report) {
    const struct sw_comm_identity *identity = sw_comm_identity(report->comm);
    const int nodes = sw_comm_nodes(report->comm)->nodes;
    printf("%s, %.2f million parameters, %s, %d ranks on %d %s%s by %s,\n%s; everything on the device\n"
           "MB that a rank holds and sends a step, what formulas give, and the ratio\n",
           report->model, (double)report->parameters * 1e-6, sw_dtype_name(report->type), identity->ranks, nodes,
           nodes == identity->nodes ? "machine" : "node", nodes == 1 ? "" : "s", sw_comm_transport_name(report->comm),
           report->device);
    if (nodes > 1)
        puts("inside, between: what is sent within a node and to other nodes; times W: between\nnodes, over one gather "
             "of "
             "all weights");
    sw_table_print(SW_TABLE(fields, report->stage, report->rows));
    for (int row = 0; row < report->rows; row++) {
        printf("stage %s\n", report->stage[row].name);
        print_buffers(&report->stage[row], SW_DEVICE);
        print_buffers(&report->stage[row], SW_HOST);
    }
}

static json_t *buffers_json(const struct sw_zero_stage *stage, sw_tier tier) {
    json_t *object = json_object();
    for (int i = 0; i < stage->buffers; i++)
        if (stage->buffer[i].tier == tier)
            json_object_set_new(object, stage->buffer[i].name, json_integer(stage->buffer[i].bytes));
    return object;
}

static json_t *row_json(const struct sw_zero_report *report, int row) {
    const struct sw_zero_stage *stage = &report->stage[row];
    return sw_bench_join(sw_table_row_json(SW_TABLE(fields, report->stage, report->rows), row),
                         json_pack("{s:{s:o, s:o}}", "buffers", "device", buffers_json(stage, SW_DEVICE), "host",
                                   buffers_json(stage, SW_HOST)));
}

sw_status sw_zero_print_json(const struct sw_zero_report *report) {
    const struct sw_comm_identity *identity = sw_comm_identity(report->comm);
    json_t *stages = json_array(), *plus = json_array();
    for (int row = 0; row < report->rows; row++)
        json_array_append_new(row < SW_ZERO_STAGES ? stages : plus, row_json(report, row));
    return sw_bench_print_json(
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:s, s:o, s:o}", "bench", "zero", "device", report->device,
                  "model", report->model, "precision", sw_dtype_name(report->type), "parameters",
                  (json_int_t)report->parameters, "ranks", identity->ranks, "nodes", sw_comm_nodes(report->comm)->nodes,
                  "transport", sw_comm_transport_name(report->comm), "stages", stages, "plus", plus));
}
