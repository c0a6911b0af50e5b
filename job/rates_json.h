/* Reads and writes rates as JSON, each by its name. */
#ifndef SW_JOB_RATES_JSON_H
#define SW_JOB_RATES_JSON_H

#include "core/status.h"
#include "offload/simulate/rates.h"

#include <jansson.h>
#include <stdbool.h>

/* Sets of rates, which may be joined by |. None has the units' seconds. */
typedef enum {
    SW_RATES_OF_MACHINE = 1,
    SW_RATES_OF_DRIVES = 2,
    SW_RATES_ALL = SW_RATES_OF_MACHINE | SW_RATES_OF_DRIVES
} sw_rate_set;

/* Adds a set of rates to the object. */
void sw_rates_to_json(const struct sw_rates *rates, sw_rate_set set, json_t *object);
/* Reads a set of rates, and leaves the others as they are. Errors name `path` and the rate that is missing or wrong. */
sw_status sw_rates_from_json(const json_t *object, sw_rate_set set, const char *path, struct sw_rates *out);
/* Tells whether a set of rates may be those of a machine: faster or slower than any by orders of magnitude, they are
 * damaged. */
bool sw_rates_are_plausible(const struct sw_rates *rates, sw_rate_set set);
/* Refuses an object with a field that sw_rates_from_json does not read. Errors name `path`. */
sw_status sw_rates_refuse_unknown(const json_t *object, const char *path);

/* Write the rates of some ranks' collectives, and read them. SW_ERR_ARG or SW_ERR_CORRUPT names `path`. */
json_t *sw_scope_rates_to_json(const struct sw_scope_rates *rates);
sw_status sw_scope_rates_from_json(const json_t *object, const char *path, struct sw_scope_rates *out);

/* Reads a member that must be a finite number above 0, or 0 if it may be. It is the number alone or, for a machine that
 * nobody measured, {"low", "expected", "high", "why"}, of which the expected number counts. */
sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out);

#endif
