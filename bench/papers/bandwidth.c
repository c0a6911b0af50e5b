/* Arithmetic intensities, and efficiencies without overlap, as ZeRO-Infinity counts them (section 4): by the lanes of
 * simulated steps, whose bytes are those of the plan's ops, and whose seconds of compute are those of their flops. */
#include "bench/papers/outline.h"
#include "bench/papers/papers.h"

#include <stdio.h>

#define PEAK_FLOPS_PER_S 70e12 /* a V100's, as the paper takes it */
#define GB 1e9
#define K INT64_C(1024)
#define PERCENT 100.0

/* A kind of bytes, the link or the drive that moves it, and flops of a step for each byte as the paper counts them, at
 * one sequence a device. */
struct flow {
    const char *name, *place;
    bool drives;
    double intensity, intensity_per_hidden;
};
enum { STATES, OPTIMIZER, CHECKPOINTS, FLOWS };
static const struct flow flows[FLOWS] = {
    [STATES] = {"weights, gradients", "weights=host,grads=host,optimizer=host,acts=device", false, SW_PAPER_SEQ, 0.0},
    [OPTIMIZER] = {"optimizer", "weights=device,grads=device,optimizer=nvme,acts=device", true, SW_PAPER_SEQ / 4.0,
                   0.0},
    [CHECKPOINTS] = {"checkpoints", "weights=device,grads=device,optimizer=device,acts=host", false, 0.0, 24.0},
};
enum { LAYERS = 80 };

static double intensity_of(const struct flow *flow, int64_t hidden) {
    return flow->intensity + flow->intensity_per_hidden * (double)hidden;
}

/* Seconds of a step, where a link or drive moves `bytes_per_s` each way; moved_s: both ways, one after the other. */
struct balance {
    double compute_s, moved_s;
};

static sw_status weigh(const struct flow *flow, int64_t hidden, double bytes_per_s, struct balance *out) {
    const struct sw_paper_case which = {.layers = LAYERS, .hidden = hidden, .place = flow->place};
    const struct sw_paper_machine machine = {.flops_per_s = PEAK_FLOPS_PER_S,
                                             .link_bytes_per_s = flow->drives ? 0.0 : bytes_per_s,
                                             .read_bytes_per_s = flow->drives ? bytes_per_s : 0.0,
                                             .write_bytes_per_s = flow->drives ? bytes_per_s : 0.0};
    struct sw_paper_plan plan;
    struct sw_simulation step;
    sw_status status = sw_paper_open(&which, &plan);
    if (status == SW_OK)
        status = sw_paper_simulate(&plan, SW_PROGRAM_UPDATE, &machine, &step);
    if (status == SW_OK) {
        out->compute_s = step.lane_busy_s[SW_LANE_COMPUTE];
        out->moved_s = flow->drives ? step.lane_busy_s[SW_LANE_READ] + step.lane_busy_s[SW_LANE_WRITE]
                                    : step.lane_busy_s[SW_LANE_UPLOAD] + step.lane_busy_s[SW_LANE_DOWNLOAD];
    }
    sw_paper_close(&plan);
    return status;
}

sw_status sw_paper_infinity_intensity(struct sw_paper_table *out) {
    static const int64_t widths[] = {2 * K, 8 * K, 10 * K};
    *out = (struct sw_paper_table){
        .name = "infinity_intensity",
        .title = "Arithmetic intensity at 1024 tokens a step, by hidden size",
        .source = "ZeRO-Infinity, arXiv 2104.07857, section 4.1",
        .unit = "flops a byte",
        .column = {{.heading = "weights",
                    .low = 0.33,
                    .high = 0.45,
                    .reason = "weights and gradients move 6 bytes a parameter and not 8, because the backward pass "
                              "recomputes with the "
                              "weights that it fetches. Attention and head add flops, most to the narrow model."},
                   {.heading = "optimizer",
                    .low = 0.33,
                    .high = 0.45,
                    .reason = "24 bytes a parameter move and not 32, as there are no fp32 gradients."},
                   {.heading = "checkpoints", .low = -0.01, .high = 0.07}},
        .columns = FLOWS,
        .rows = sizeof widths / sizeof widths[0],
    };
    for (int r = 0; r < out->rows; r++)
        for (int f = 0; f < FLOWS; f++) {
            struct balance balance;
            SW_TRY(weigh(&flows[f], widths[r], GB, &balance));
            snprintf(out->row[r].name, sizeof out->row[r].name, "%lldK", (long long)(widths[r] / K));
            out->row[r].number[f].paper = intensity_of(&flows[f], widths[r]);
            out->row[r].number[f].ours = balance.compute_s * PEAK_FLOPS_PER_S / (balance.moved_s * GB);
        }
    return SW_OK;
}

/* The efficiencies that the paper names. */
static const struct {
    int flow;
    int64_t hidden;
    double bytes_per_s;
    const char *printed;
} named[] = {{STATES, 10 * K, 70 * GB, "50.6"}, {CHECKPOINTS, 2 * K, 2 * GB, "58"}, {CHECKPOINTS, 8 * K, 3 * GB, "89"}};

sw_status sw_paper_infinity_efficiency(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "infinity_efficiency",
        .title = "Efficiency without overlap, at 70 TFLOP/s",
        .source = "ZeRO-Infinity, arXiv 2104.07857, section 4.2, figure 3",
        .unit = "% of the peak",
        .column = {{.heading = "efficiency", .low = -0.01, .high = 0.16, .reason = "as the intensities deviate."}},
        .columns = 1,
        .rows = sizeof named / sizeof named[0],
    };
    for (int r = 0; r < out->rows; r++) {
        const struct flow *flow = &flows[named[r].flow];
        const double flops_per_s = intensity_of(flow, named[r].hidden) * named[r].bytes_per_s;
        struct balance balance;
        SW_TRY(weigh(flow, named[r].hidden, named[r].bytes_per_s, &balance));
        snprintf(out->row[r].name, sizeof out->row[r].name, "%s, %lldK, %.0f GB/s", flow->name,
                 (long long)(named[r].hidden / K), named[r].bytes_per_s / GB);
        out->row[r].number[0].printed = named[r].printed;
        out->row[r].number[0].paper = PERCENT * flops_per_s / (flops_per_s + PEAK_FLOPS_PER_S);
        out->row[r].number[0].ours = PERCENT * balance.compute_s / (balance.compute_s + balance.moved_s);
    }
    return SW_OK;
}
