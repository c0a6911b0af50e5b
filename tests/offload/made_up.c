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
    m->rates.forward_s = m->forward_s;
    m->rates.backward_s = m->backward_s;
    m->rates.recompute_s = m->recompute_s;
    m->rates.derive_s = m->derive_s;
    m->rates.last_product_s = m->last_product_s;
    m->rates.first_product_s = m->first_product_s;
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
        m->forward_s[u] = unit_s * (double)plans_draw(random, 1, 8);
        m->backward_s[u] = unit_s * (double)plans_draw(random, 1, 16);
        m->recompute_s[u] = unit_s * (double)plans_draw(random, 0, 8);
        m->derive_s[u] = unit_s * (double)plans_draw(random, 0, 2);
        m->last_product_s[u] = m->backward_s[u] / 4.0;
        m->first_product_s[u] = m->backward_s[u] / 2.0;
    }
    made_up_point_at_units(m);
}
