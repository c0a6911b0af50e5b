/* Placement: for each unit and state the tier where it lives. Decided here, obeyed by the plan. */
#ifndef SW_OFFLOAD_PLACEMENT_H
#define SW_OFFLOAD_PLACEMENT_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { SW_DEVICE = 0, SW_HOST = 1, SW_NVME = 2, SW_TIERS = 3 } sw_tier;
typedef enum { SW_WEIGHTS = 0, SW_GRADS = 1, SW_OPTIMIZER = 2, SW_ACTS = 3, SW_STATES = 4 } sw_state;

const char *sw_tier_name(sw_tier tier);
const char *sw_state_name(sw_state state);

/* What the user asked for: a tier for all of a state, or auto. */
struct sw_placement_request {
    bool automatic[SW_STATES];
    sw_tier tier[SW_STATES];
};

/* Parses "auto" or "grads=host,optimizer=nvme" (states not named are auto). */
sw_status sw_placement_parse(const char *text, struct sw_placement_request *out);

struct sw_unit_placement {
    sw_tier tier[SW_STATES];
};

#endif
