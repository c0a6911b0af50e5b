/* The least bytes that a parameter moves in a step by layer, and the tokens whose compute hides them. */
#include "bench/papers/outline.h"
#include "bench/papers/papers.h"

#include <math.h>
#include <stdio.h>

#define GB 1e9
#define FLOPS_PER_PARAMETER 8.0 /* of a token: forward, backward, and the forward pass again */

/* A machine like bench/machines/rtx4090.json expects. */
static const struct sw_paper_machine machine = {.flops_per_s = 150e12,
                                                .link_bytes_per_s = 26 * GB,
                                                .read_bytes_per_s = 6.5 * GB,
                                                .write_bytes_per_s = 5 * GB,
                                                .host_bytes_per_s = 55 * GB};

/* A direction of a placement: the least bytes a parameter on its lane. */
struct traffic {
    const char *name, *place;
    sw_program_kind kind;
    sw_lane lane;
    double bytes;
};
#define RESIDENT "weights=device,grads=host,optimizer=host,acts=device"
#define STREAMED "weights=host,grads=host,optimizer=host,acts=device"
#define DRIVES "weights=nvme,grads=host,optimizer=nvme,acts=device"
#define ALL_DRIVES "weights=nvme,grads=nvme,optimizer=nvme,acts=device"
static const struct traffic traffics[] = {
    {"weights resident: down", RESIDENT, SW_PROGRAM_UPDATE, SW_LANE_DOWNLOAD, 2},
    {"weights resident: up", RESIDENT, SW_PROGRAM_UPDATE, SW_LANE_UPLOAD, 2},
    {"weights streamed: down", STREAMED, SW_PROGRAM_UPDATE, SW_LANE_DOWNLOAD, 2},
    {"weights streamed: up", STREAMED, SW_PROGRAM_UPDATE, SW_LANE_UPLOAD, 4},
    {"states on NVMe: read", DRIVES, SW_PROGRAM_UPDATE, SW_LANE_READ, 14},
    {"states on NVMe: written", DRIVES, SW_PROGRAM_UPDATE, SW_LANE_WRITE, 14},
    {"speculated update: read", DRIVES, SW_PROGRAM_REDO_SPECULATE, SW_LANE_READ, 16},
    {"gradients there too: read", ALL_DRIVES, SW_PROGRAM_UPDATE, SW_LANE_READ, 16},
    {"gradients there too: written", ALL_DRIVES, SW_PROGRAM_UPDATE, SW_LANE_WRITE, 16},
    {"update on the CPU: memory", DRIVES, SW_PROGRAM_UPDATE, SW_LANE_UPDATE, 28},
};
enum { TRAFFICS = sizeof traffics / sizeof traffics[0] };

static double rate_of(sw_lane lane) {
    switch (lane) {
    case SW_LANE_READ: return machine.read_bytes_per_s;
    case SW_LANE_WRITE: return machine.write_bytes_per_s;
    case SW_LANE_UPDATE: return machine.host_bytes_per_s;
    default: return machine.link_bytes_per_s;
    }
}

/* A lane's seconds of a step beside those of compute. */
struct lanes {
    double parameters, tokens, compute_s, lane_s;
};

static sw_status simulate(const struct traffic *traffic, struct lanes *out) {
    const struct sw_paper_case which = {.layers = 36, .hidden = 4096, .place = traffic->place, .two_generations = true};
    struct sw_paper_plan plan;
    struct sw_simulation step;
    sw_status status = sw_paper_open(&which, &plan);
    if (status == SW_OK)
        status = sw_paper_simulate(&plan, traffic->kind, &machine, &step);
    if (status == SW_OK)
        *out = (struct lanes){plan.parameters, plan.tokens, step.lane_busy_s[SW_LANE_COMPUTE],
                              step.lane_busy_s[traffic->lane]};
    sw_paper_close(&plan);
    return status;
}

static sw_status fill_row(const struct traffic *traffic, struct sw_paper_row *out) {
    const double bytes_per_s = rate_of(traffic->lane);
    struct lanes lanes;
    SW_TRY(simulate(traffic, &lanes));
    snprintf(out->name, sizeof out->name, "%s", traffic->name);
    out->number[0].paper = traffic->bytes;
    out->number[0].ours = lanes.lane_s * bytes_per_s / lanes.parameters;
    out->number[1].paper = traffic->bytes / bytes_per_s * machine.flops_per_s / FLOPS_PER_PARAMETER;
    out->number[1].ours = lanes.tokens * lanes.lane_s / lanes.compute_s;
    return SW_OK;
}

sw_status sw_paper_least_bytes(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "least_bytes",
        .title = "Least bytes a parameter and step by layer, and tokens whose compute hides them",
        .source = "counted by hand as ZeRO-Infinity counts; bytes / rate = 8 flops x tokens / rate, at 150 TFLOP/s, "
                  "link 26 GB/s each way, drive 6.5 and 5, host memory 55",
        .unit = "one device",
        .column = {{.heading = "bytes",
                    .low = -0.04,
                    .high = 0.01,
                    .reason = "the last block, where the passes meet, and the tied table are fetched once a step."},
                   {.heading = "tokens",
                    .low = -0.05,
                    .high = 0.01,
                    .reason = "attention computes too, and what is fetched once hides sooner."}},
        .columns = 2,
        .rows = TRAFFICS,
    };
    for (int t = 0; t < TRAFFICS; t++)
        SW_TRY(fill_row(&traffics[t], &out->row[t]));
    return SW_OK;
}
