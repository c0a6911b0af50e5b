/* Reads and writes rates as JSON, each by its name. */
#ifndef SW_TRAIN_PLAN_RATES_JSON_H
#define SW_TRAIN_PLAN_RATES_JSON_H

#include "core/status.h"
#include "offload/simulate/rates.h"

#include <jansson.h>
#include <stdbool.h>

/* Adds all rates but the units' seconds to the object. */
void sw_rates_to_json(const struct sw_rates *rates, json_t *object);
/* Reads all rates but the units' seconds. Errors name `path` and the rate that is missing or wrong. */
sw_status sw_rates_from_json(const json_t *object, const char *path, struct sw_rates *out);
/* Refuses an object with a field that sw_rates_from_json does not read. Errors name `path`. */
sw_status sw_rates_refuse_unknown(const json_t *object, const char *path);

/* Reads a member that must be a finite number above 0, or 0 if it may be. It is the number alone or, for a machine that
 * nobody measured, {"low", "expected", "high", "why"}, of which the expected number counts. */
sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out);

#endif
