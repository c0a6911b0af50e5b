/* Arithmetic intensities, and efficiencies without overlap, as ZeRO-Infinity counts them (section 4): by the lanes of
 * simulated steps, whose bytes are those of the plan's ops, and whose seconds of compute are those of their flops. */
#include "bench/papers/outline.h"
#include "bench/papers/papers.h"

#include <stdio.h>
#include <string.h>

#define PEAK_FLOPS_PER_S 70e12 /* a V100's, as the paper takes it */
#define GB 1e9
#define K INT64_C(1024)

#define STATES_ON_HOST "weights=host,grads=host,optimizer=host,acts=device"
#define OPTIMIZER_ON_NVME "weights=device,grads=device,optimizer=nvme,acts=device"
#define INPUTS_ON_HOST "weights=device,grads=device,optimizer=device,acts=host"

/* A step whose link or drive is as fast as `bytes_per_s` each way. */
struct balance {
    double compute_s, moved_s; /* moved_s: both directions, one after the other */
};

static sw_status weigh(const struct sw_paper_case *which, double bytes_per_s, struct balance *out) {
    const bool drives = which->place != NULL && strcmp(which->place, OPTIMIZER_ON_NVME) == 0;
    const struct sw_paper_machine machine = {.flops_per_s = PEAK_FLOPS_PER_S,
                                             .link_bytes_per_s = drives ? 0.0 : bytes_per_s,
                                             .read_bytes_per_s = drives ? bytes_per_s : 0.0,
                                             .write_bytes_per_s = drives ? bytes_per_s : 0.0};
    struct sw_paper_plan plan;
    struct sw_simulation step;
    sw_status status = sw_paper_open(which, &plan);
    if (status == SW_OK)
        status = sw_paper_simulate(&plan, SW_PROGRAM_UPDATE, &machine, &step);
    if (status == SW_OK) {
        out->compute_s = step.lane_busy_s[SW_LANE_COMPUTE];
        out->moved_s = drives ? step.lane_busy_s[SW_LANE_READ] + step.lane_busy_s[SW_LANE_WRITE]
                              : step.lane_busy_s[SW_LANE_UPLOAD] + step.lane_busy_s[SW_LANE_DOWNLOAD];
    }
    sw_paper_close(&plan);
    return status;
}

/* A kind of bytes, the rate at which they move, and the intensity that the paper counts: flops of a step for each byte.
 */
struct flow {
    const char *name, *place;
    int64_t layers, hidden;
    double intensity, bytes_per_s;
    const char *printed_percent; /* efficiency that the paper prints; NULL: none */
};
/* One sequence of 1,024 tokens a step and device. */
static const struct flow flows[] = {
    {"weights, gradients, 10K", STATES_ON_HOST, 80, 10 * K, SW_PAPER_SEQ, 70 * GB, "50.6"},
    {"optimizer, 10K", OPTIMIZER_ON_NVME, 80, 10 * K, SW_PAPER_SEQ / 4.0, GB, NULL},
    {"checkpoints, 2K", INPUTS_ON_HOST, 80, 2 * K, 24.0 * 2 * K, 2 * GB, "58"},
    {"checkpoints, 8K", INPUTS_ON_HOST, 80, 8 * K, 24.0 * 8 * K, 3 * GB, "89"},
};
enum { FLOWS = sizeof flows / sizeof flows[0] };

static sw_status weigh_flow(const struct flow *flow, struct balance *out) {
    const struct sw_paper_case which = {.layers = flow->layers, .hidden = flow->hidden, .place = flow->place};
    return weigh(&which, flow->bytes_per_s, out);
}

sw_status sw_paper_infinity_intensity(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "infinity_intensity",
        .title = "Arithmetic intensity at 1024 tokens a step",
        .source = "ZeRO-Infinity, arXiv 2104.07857, section 4.1",
        .unit = "flops a byte",
        .column = {{.heading = "intensity",
                    .low = -0.01,
                    .high = 0.4,
                    .reason = "weights and gradients move 6 bytes a parameter and not 8, because the backward pass "
                              "recomputes with the weights that it fetches; the optimizer moves 24 and not 32, without "
                              "fp32 gradients. Attention and head add flops, most to the narrow model."}},
        .columns = 1,
    };
    for (int f = 0; f < FLOWS; f++) {
        struct sw_paper_row *row = &out->row[out->rows++];
        struct balance balance;
        SW_TRY(weigh_flow(&flows[f], &balance));
        snprintf(row->name, sizeof row->name, "%s", flows[f].name);
        row->number[0].paper = flows[f].intensity;
        row->number[0].ours = balance.compute_s * PEAK_FLOPS_PER_S / (balance.moved_s * flows[f].bytes_per_s);
    }
    return SW_OK;
}

sw_status sw_paper_infinity_efficiency(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "infinity_efficiency",
        .title = "Efficiency without overlap, at 70 TFLOP/s",
        .source = "ZeRO-Infinity, arXiv 2104.07857, section 4.2, figure 3",
        .unit = "% of the peak",
        .column = {{.heading = "efficiency", .low = -0.01, .high = 0.16, .reason = "by those intensities."}},
        .columns = 1,
    };
    for (int f = 0; f < FLOWS; f++) {
        if (flows[f].printed_percent == NULL)
            continue;
        const double flops_per_s = flows[f].intensity * flows[f].bytes_per_s;
        struct sw_paper_row *row = &out->row[out->rows++];
        struct balance balance;
        SW_TRY(weigh_flow(&flows[f], &balance));
        snprintf(row->name, sizeof row->name, "%s, %.0f GB/s", flows[f].name, flows[f].bytes_per_s / GB);
        row->number[0].printed = flows[f].printed_percent;
        row->number[0].paper = 100.0 * flops_per_s / (flops_per_s + PEAK_FLOPS_PER_S);
        row->number[0].ours = 100.0 * balance.compute_s / (balance.compute_s + balance.moved_s);
    }
    return SW_OK;
}
