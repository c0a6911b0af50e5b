#include "tests/offload/made_up.h"

#include <math.h>

double made_up_draw_between(struct plans_random *random, double least, double most) {
    return least * pow(most / least, (double)plans_draw(random, 0, 1000) / 1000.0);
}

static struct sw_rate draw_rate(struct plans_random *random, double cores) {
    return (struct sw_rate){.bytes_per_s = made_up_draw_between(random, 1e8, 1e11),
                            .cores = (double)plans_draw(random, 0, 8) / 8.0 * cores};
}

void made_up_point_at_units(struct made_up *m) {
    m->rates.units = m->units;
}

void made_up_draw(struct plans_random *random, struct made_up *m) {
    *m = (struct made_up){.rates = {.cores = (double)plans_draw(random, 1, 8)}};
    struct sw_rates *r = &m->rates;
    struct sw_rate *const moves[] = {&r->upload, &r->download, &r->update, &r->update_on_device,
                                     &r->finish, &r->zero,     &r->read,   &r->write};
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++)
        *moves[i] = draw_rate(random, r->cores);
    r->compute_cores = (double)plans_draw(random, 0, 8) / 8.0 * r->cores;
    r->read_write_slowdown = 1.0 + (double)plans_draw(random, 0, 4) / 4.0;
    r->io_latency_s = made_up_draw_between(random, 1e-6, 1e-3);
    r->commit_s = made_up_draw_between(random, 1e-6, 1e-2);
    r->op_s = made_up_draw_between(random, 1e-8, 1e-4);
    r->queued_op_s = made_up_draw_between(random, 1e-8, 1e-4);
    const double unit_s = made_up_draw_between(random, 1e-6, 1e-2);
    for (int u = 0; u < PLANS_MOST_UNITS; u++) {
        m->units[u].forward_s = unit_s * (double)plans_draw(random, 1, 8);
        m->units[u].backward_s = unit_s * (double)plans_draw(random, 1, 16);
        m->units[u].recompute_s = unit_s * (double)plans_draw(random, 0, 8);
        m->units[u].derive_s = unit_s * (double)plans_draw(random, 0, 2);
        m->units[u].last_product_s = m->units[u].backward_s / 4.0;
        m->units[u].first_product_s = m->units[u].backward_s / 2.0;
    }
    made_up_point_at_units(m);
}
