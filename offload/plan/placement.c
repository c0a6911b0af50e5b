#include "offload/plan/placement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tier_names[SW_TIERS] = {"device", "host", "nvme"};
static const char *const state_names[SW_STATES] = {"weights", "grads", "optimizer", "acts"};

const char *sw_tier_name(sw_tier tier) {
    return tier_names[tier];
}

const char *sw_state_name(sw_state state) {
    return state_names[state];
}

static int find_name(const char *const *names, int count, const char *text, size_t length) {
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0)
            return i;
    return -1;
}

/* Parses "device" or "host:30%". A share of -1 means that none was given. */
static sw_status parse_part(const char *part, size_t length, int *out_tier, double *out_share) {
    const char *colon = memchr(part, ':', length);
    const size_t name_length = colon == NULL ? length : (size_t)(colon - part);
    *out_tier = find_name(tier_names, SW_TIERS, part, name_length);
    *out_share = -1.0;
    if (*out_tier < 0)
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not a tier; tiers: device, host, nvme", (int)name_length,
                       part);
    if (colon == NULL)
        return SW_OK;
    char *end;
    const double percent = strtod(colon + 1, &end);
    if (end != part + length - 1 || *end != '%' || end == colon + 1 || !(percent >= 0.0 && percent <= 100.0))
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not TIER:P%% with P from 0 to 100", (int)length, part);
    *out_share = percent / 100.0;
    return SW_OK;
}

/* Parses "nvme" or "device:20%/host:30%/nvme". */
static sw_status parse_shares(const char *value, size_t length, sw_state state, double share[SW_TIERS]) {
    const char *const end = value + length;
    double total = 0.0;
    bool named[SW_TIERS] = {false};
    int previous = -1;
    while (value <= end) {
        const char *slash = memchr(value, '/', (size_t)(end - value));
        const char *stop = slash == NULL ? end : slash;
        int tier;
        double part;
        SW_TRY(parse_part(value, (size_t)(stop - value), &tier, &part));
        if (named[tier] || tier < previous)
            return sw_fail(SW_ERR_ARG,
                           "--place names the tiers of %s twice or out of order; the order is device, host, nvme",
                           state_names[state]);
        if (part < 0.0 && slash != NULL)
            return sw_fail(SW_ERR_ARG, "only the last tier of %s in --place may go without a share",
                           state_names[state]);
        named[tier] = true;
        previous = tier;
        share[tier] = part < 0.0 ? fmax(0.0, 1.0 - total) : part;
        total += share[tier];
        value = stop + 1;
    }
    if (fabs(total - 1.0) > 1e-9)
        return sw_fail(SW_ERR_ARG, "the shares of %s in --place add up to %g%%, not to 100%%", state_names[state],
                       total * 100.0);
    return SW_OK;
}

static sw_status parse_item(const char *item, size_t length, struct sw_placement_request *out, bool seen[SW_STATES]) {
    const char *equals = memchr(item, '=', length);
    const size_t name_length = equals == NULL ? length : (size_t)(equals - item);
    const int state = find_name(state_names, SW_STATES, item, name_length);
    if (equals == NULL || state < 0)
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not STATE=TIER; states: weights, grads, optimizer, acts",
                       (int)length, item);
    if (seen[state])
        return sw_fail(SW_ERR_ARG, "--place names %s twice", state_names[state]);
    seen[state] = true;
    const char *value = equals + 1;
    const size_t value_length = length - name_length - 1;
    if (value_length == 4 && strncmp(value, "auto", 4) == 0)
        return SW_OK;
    out->automatic[state] = false;
    return parse_shares(value, value_length, (sw_state)state, out->share[state]);
}

sw_status sw_placement_parse(const char *text, struct sw_placement_request *out) {
    bool seen[SW_STATES] = {false};
    *out = (struct sw_placement_request){0};
    for (int s = 0; s < SW_STATES; s++)
        out->automatic[s] = true;
    if (strcmp(text, "auto") == 0)
        return SW_OK;
    const char *item = text;
    for (;;) {
        const size_t length = strcspn(item, ",");
        SW_TRY(parse_item(item, length, out, seen));
        if (item[length] == '\0')
            return SW_OK;
        item += length + 1;
    }
}

sw_tier sw_placement_of(const double share[SW_TIERS], int64_t before_bytes, int64_t bytes, int64_t total_bytes) {
    const double middle = ((double)before_bytes + 0.5 * (double)bytes) / (double)total_bytes;
    double end = 0.0;
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++) {
        end += share[tier];
        if (middle < end)
            return (sw_tier)tier;
    }
    /* Rounding may leave the middle of the last unit just beyond shares that add up to one. */
    if (share[SW_NVME] > 0.0)
        return SW_NVME;
    return share[SW_HOST] > 0.0 ? SW_HOST : SW_DEVICE;
}
