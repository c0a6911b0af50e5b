/* Rates by their names, in files. */
#ifndef SW_TRAIN_PLAN_RATES_JSON_H
#define SW_TRAIN_PLAN_RATES_JSON_H

#include "core/status.h"
#include "offload/simulate/rates.h"

#include <jansson.h>
#include <stdbool.h>

/* Puts all but the units' seconds into the object. */
void sw_rates_to_json(const struct sw_rates *rates, json_t *object);
/* Reads them; path is named where one is missing or wrong. The units' seconds stay as they are. */
sw_status sw_rates_from_json(const json_t *object, const char *path, struct sw_rates *out);
/* Refuses rates with a field that sw_rates_from_json does not read; path is named. */
sw_status sw_rates_refuse_unknown(const json_t *object, const char *path);

/* Reads a member that must be a finite number above 0, or 0 where it may be: given as the number alone, or, of a
 * machine that nobody measured, as {"low", "expected", "high", "why"}, of which the expected one counts. */
sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out);

#endif
