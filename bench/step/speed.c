#include "bench/step/speed.h"

#include "bench/kernels/peak.h"
#include "bench/kernels/products.h"

#include <math.h>

sw_status sw_step_measure_products(struct sw_step_bench *b) {
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    struct sw_bench_products products;
    double *rate = &b->planned.rates.products_flops_per_s;
    if (*rate > 0.0)
        return SW_OK;
    const int count = sw_model_products(b->planned.model, product);
    sw_status status = sw_bench_products_open(b->planned.devices.compute, product, count, &products);
    if (status == SW_OK)
        status = sw_bench_products_rate(&products, product, count, rate);
    sw_bench_products_close(&products);
    return status == SW_OK ? sw_planned_keep_rates(&b->planned) : status;
}

static void slower(struct sw_step_speed *speed, sw_lane lane, double seconds) {
    if (!(seconds > speed->light_s))
        return;
    speed->light_s = seconds;
    speed->light_lane = sw_lane_name(lane);
}

struct sw_step_speed sw_step_speed(const struct sw_step_bench *b) {
    const struct sw_settings *s = &b->planned.settings;
    const struct sw_rates *rates = &b->planned.rates.rates;
    const struct sw_device_info info = sw_devices_info(&b->planned.devices);
    const int64_t tokens = s->batch_tokens / sw_settings_ranks(s); /* this rank's, per step */
    const double flops = sw_model_flops_per_token(&b->planned.config, s->seq) * (double)tokens;
    const double placed_s = b->median_s[SW_STEP_PLACED];
    const struct {
        sw_lane lane;
        double bytes_per_s;
    } links[] = {{SW_LANE_UPLOAD, rates->upload.bytes_per_s},
                 {SW_LANE_DOWNLOAD, rates->download.bytes_per_s},
                 {SW_LANE_READ, rates->read.bytes_per_s},
                 {SW_LANE_WRITE, rates->write.bytes_per_s}};
    struct sw_step_speed speed = {.flops_per_s = flops / placed_s,
                                  .peak_flops_per_s = sw_peak_flops_per_s(&info, sw_settings_type(s))};
    const bool known = speed.peak_flops_per_s > 0.0;
    speed.of_peak = known ? speed.flops_per_s / speed.peak_flops_per_s : NAN;
    speed.of_products = speed.flops_per_s / b->planned.rates.products_flops_per_s;
    slower(&speed, SW_LANE_COMPUTE, flops / (known ? speed.peak_flops_per_s : b->planned.rates.products_flops_per_s));
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        if (b->least[links[i].lane] > 0 && links[i].bytes_per_s > 0.0)
            slower(&speed, links[i].lane, (double)b->least[links[i].lane] / links[i].bytes_per_s);
    speed.of_light = speed.light_s / placed_s;
    return speed;
}
