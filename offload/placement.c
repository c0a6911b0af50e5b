#include "offload/placement.h"

#include <stdio.h>
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

static sw_status parse_item(const char *item, size_t length, struct sw_placement_request *out) {
    const char *equals = memchr(item, '=', length);
    const size_t name_length = equals == NULL ? length : (size_t)(equals - item);
    const int state = find_name(state_names, SW_STATES, item, name_length);
    if (equals == NULL || state < 0)
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not STATE=TIER; states: weights, grads, optimizer, acts",
                       (int)length, item);
    const char *value = equals + 1;
    const size_t value_length = length - name_length - 1;
    if (memchr(value, ':', value_length) != NULL || memchr(value, '/', value_length) != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "shares in --place ('%.*s') are not supported by this version; name one tier", (int)length,
                       item);
    if (value_length == 4 && strncmp(value, "auto", 4) == 0)
        return SW_OK;
    const int tier = find_name(tier_names, SW_TIERS, value, value_length);
    if (tier < 0)
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not a tier; tiers: device, host, nvme", (int)value_length,
                       value);
    if (!out->automatic[state])
        return sw_fail(SW_ERR_ARG, "--place names %s twice", state_names[state]);
    if ((state == SW_WEIGHTS || state == SW_ACTS) && tier != SW_DEVICE)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s on the %s tier are not supported by this version; they live on the device",
                       state_names[state], tier_names[tier]);
    out->automatic[state] = false;
    out->tier[state] = (sw_tier)tier;
    return SW_OK;
}

sw_status sw_placement_parse(const char *text, struct sw_placement_request *out) {
    for (int s = 0; s < SW_STATES; s++) {
        out->automatic[s] = true;
        out->tier[s] = SW_DEVICE;
    }
    if (strcmp(text, "auto") == 0)
        return SW_OK;
    const char *item = text;
    for (;;) {
        const size_t length = strcspn(item, ",");
        SW_TRY(parse_item(item, length, out));
        if (item[length] == '\0')
            return SW_OK;
        item += length + 1;
    }
}
