/* Machines made up at random, any part of which may be the slow one. */
#ifndef SW_TESTS_OFFLOAD_MADE_UP_H
#define SW_TESTS_OFFLOAD_MADE_UP_H

#include "offload/simulate/rates.h"
#include "tests/offload/plans.h"

struct made_up {
    struct sw_rates rates;
    struct sw_unit_seconds units[PLANS_MOST_UNITS];
};

/* Draws a number between least and most, each order of magnitude as likely. */
double made_up_draw_between(struct plans_random *random, double least, double most);
void made_up_draw(struct plans_random *random, struct made_up *m);
/* Points the rates at the machine's own arrays, after it was copied. */
void made_up_point_at_units(struct made_up *m);

#endif
