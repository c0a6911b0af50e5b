/* The report of `bench zero`, for people and for programs. */
#include "bench/comm/zero.h"
#include "bench/table.h"

#include <stdio.h>

#define ROW struct sw_zero_stage
#define MB .scale = 1e-6, .digits = 2
#define FIGURE(name_, heading_, at)                                                                                    \
    {.name = name_ ".bytes", .heading = (heading_), SW_AT(SW_FIELD_COUNT, bytes[at]), MB},                             \
        {.name = name_ ".formula_bytes", .heading = "formula", SW_AT(SW_FIELD_REAL, formula_bytes[at]), MB},           \
        {.name = name_ ".ratio", SW_AT(SW_FIELD_REAL, ratio[at]), .nullable = true}, {                                 \
        .name = name_ ".deviation_percent", .heading = "% off", SW_AT(SW_FIELD_REAL, deviation_percent[at]),           \
        .digits = 2, .nullable = true                                                                                  \
    }
/* A figure that not all jobs have. */
#define SOME_FIGURE(name_, heading_, at)                                                                               \
    {.name = name_ ".bytes", .heading = (heading_), SW_AT(SW_FIELD_COUNT, bytes[at]), MB},                             \
        {.name = name_ ".formula_bytes", .heading = "formula", SW_AT(SW_FIELD_REAL, formula_bytes[at]), MB},           \
        {.name = name_ ".ratio", SW_AT(SW_FIELD_REAL, ratio[at])}, {                                                   \
        .name = name_ ".deviation_percent", .heading = "% off", SW_AT(SW_FIELD_REAL, deviation_percent[at]),           \
        .digits = 2                                                                                                    \
    }
#define PAPER_FIELD(name_, member)                                                                                     \
    { .name = (name_), .heading = "paper", SW_AT(SW_FIELD_REAL, member), MB }
#define SHARE_FIELD(name_, heading_, member)                                                                           \
    { .name = (name_), .heading = (heading_), SW_AT(SW_FIELD_REAL, member), .scale = 100.0, .digits = 1 }
static const struct sw_bench_field fields[] = {
    {.name = "stage", SW_AT(SW_FIELD_INT, stage)},
    {.name = "name", .heading = "stage", SW_AT(SW_FIELD_TEXT, name), .key = true},
    FIGURE("weights", "weights", SW_ZERO_HELD_WEIGHTS),
    FIGURE("grads", "grads", SW_ZERO_HELD_GRADS),
    FIGURE("optimizer", "optimizer", SW_ZERO_HELD_OPTIMIZER),
    FIGURE("states", "states", SW_ZERO_HELD),
    FIGURE("acts", "acts", SW_ZERO_HELD_ACTS),
    PAPER_FIELD("acts.paper_bytes", paper_acts_bytes),
    FIGURE("sent", "sent", SW_ZERO_SENT),
    SOME_FIGURE("tensor_sent", "tensor", SW_ZERO_SENT_TENSOR),
    PAPER_FIELD("tensor_sent.paper_bytes", paper_tensor_bytes),
    SOME_FIGURE("data_sent", "data", SW_ZERO_SENT_DATA),
    SHARE_FIELD("partition.added_share", "Pa adds %", added_share),
    SHARE_FIELD("partition.formula_share", "formula", formula_added_share),
    SHARE_FIELD("partition.paper_share", "paper", paper_added_share),
    {.name = "planned_sent_bytes", SW_AT(SW_FIELD_COUNT, planned_bytes)},
    SOME_FIGURE("secondary", "secondary", SW_ZERO_HELD_SECONDARY),
    SOME_FIGURE("inside", "inside", SW_ZERO_INSIDE),
    SOME_FIGURE("between", "between", SW_ZERO_BETWEEN),
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
           "MB that a rank holds and sends a step, what formulas give, and the deviation\n"
           "acts: kept inputs of blocks\n",
           report->model, report->job.parameters * 1e-6, sw_dtype_name(report->type), identity->ranks, nodes,
           nodes == identity->nodes ? "machine" : "node", nodes == 1 ? "" : "s", sw_comm_transport_name(report->comm),
           report->device);
    if (report->job.tensor_ranks > 1.0)
        printf("tensor groups of %.0f ranks: %.0f\n"
               "tensor, data: what is sent within a group and to other groups; Pa: each rank\n"
               "keeps its rows of inputs alone; paper: its account of one kept input a block\n",
               report->job.tensor_ranks, report->job.data_ranks);
    else if (nodes > 1)
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
    json_t *stages = json_array(), *plus = json_array(), *partitioned = json_array();
    for (int row = 0; row < report->rows; row++) {
        json_t *more = report->stage[row].partitioned ? partitioned : plus;
        json_array_append_new(row < SW_ZERO_STAGES ? stages : more, row_json(report, row));
    }
    return sw_bench_print_json(
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:s, s:o, s:o, s:o}", "bench", "zero", "device",
                  report->device, "model", report->model, "precision", sw_dtype_name(report->type), "parameters",
                  (json_int_t)report->job.parameters, "ranks", identity->ranks, "tensor", (int)report->job.tensor_ranks,
                  "nodes", sw_comm_nodes(report->comm)->nodes, "transport", sw_comm_transport_name(report->comm),
                  "stages", stages, "plus", plus, "partitioned", partitioned));
}
