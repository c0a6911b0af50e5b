/* --place: what it accepts, where it puts units, and one clear sentence for everything else. */
#include "offload/plan/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

/* By state: d, h, n, s for shares, or a for automatic. */
static char letter_of(const struct sw_placement_request *request, int state) {
    static const char letters[SW_TIERS] = {[SW_DEVICE] = 'd', [SW_HOST] = 'h', [SW_NVME] = 'n'};
    if (request->automatic[state])
        return 'a';
    for (int t = 0; t < SW_TIERS; t++)
        if (request->share[state][t] == 1.0)
            return letters[t];
    return 's';
}

static struct sw_placement_request parse(const char *text) {
    struct sw_placement_request request;
    memset(&request, 0x55, sizeof request);
    if (sw_placement_parse(text, &request) != SW_OK)
        fail_msg("'%s': %s", text, sw_error_message(SW_ERR_ARG));
    return request;
}

static void expect(const char *text, const char *tiers) {
    const struct sw_placement_request request = parse(text);
    for (int s = 0; s < SW_STATES; s++)
        if (letter_of(&request, s) != tiers[s])
            fail_msg("'%s': %s is '%c', not '%c'", text, sw_state_name((sw_state)s), letter_of(&request, s), tiers[s]);
}

static void placements_are_read(void **state) {
    (void)state;
    expect("auto", "aaaa");
    expect("optimizer=nvme", "aana");
    expect("grads=host,optimizer=nvme", "ahna");
    expect("optimizer=device,grads=nvme", "anda");
    expect("weights=device,grads=device,optimizer=device,acts=device", "dddd");
    expect("weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", "nnnn");
    expect("grads=auto,optimizer=host", "aaha");
    expect("weights=device:20%/nvme,acts=host:100%", "saah");
}

static void shares_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double share[SW_TIERS];
    } cases[] = {
        {"optimizer=device:20%/host:30%/nvme", {0.2, 0.3, 0.5}},
        {"optimizer=device:20%/host:30%/nvme:50%", {0.2, 0.3, 0.5}},
        {"optimizer=device:25%/nvme", {0.25, 0.0, 0.75}},
        {"optimizer=host:12.5%/nvme:87.5%", {0.0, 0.125, 0.875}},
        {"optimizer=device:0%/host:100%", {0.0, 1.0, 0.0}},
        {"optimizer=device:100%/nvme", {1.0, 0.0, 0.0}},
        {"optimizer=device:70%/host", {0.7, 0.3, 0.0}},
        {"optimizer=device:10%/host:20%/nvme:70%", {0.1, 0.2, 0.7}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct sw_placement_request request = parse(cases[i].text);
        assert_false(request.automatic[SW_OPTIMIZER]);
        for (int t = 0; t < SW_TIERS; t++)
            if (fabs(request.share[SW_OPTIMIZER][t] - cases[i].share[t]) > 1e-12)
                fail_msg("'%s': the share of %s is %g", cases[i].text, sw_tier_name((sw_tier)t),
                         request.share[SW_OPTIMIZER][t]);
    }
}

/* Units by their sizes, and the tier of each, where its middle falls. */
static void units_land_where_their_middle_falls(void **state) {
    (void)state;
    enum { UNITS = 5 };
    static const struct {
        double share[SW_TIERS];
        int64_t bytes[UNITS];
        const char *tiers;
    } cases[] = {
        {{1.0, 0.0, 0.0}, {10, 10, 10, 10, 10}, "ddddd"},
        {{0.0, 1.0, 0.0}, {10, 10, 10, 10, 10}, "hhhhh"},
        {{0.0, 0.0, 1.0}, {10, 10, 10, 10, 10}, "nnnnn"},
        {{0.2, 0.3, 0.5}, {10, 10, 10, 10, 10}, "dhnnn"}, /* middles at 0.1, 0.3, 0.5, ...: 0.5 is not below 0.5 */
        {{0.2, 0.4, 0.4}, {10, 10, 10, 10, 10}, "dhhnn"},
        {{0.5, 0.5, 0.0}, {10, 10, 10, 10, 10}, "ddhhh"},
        {{0.05, 0.0, 0.95}, {10, 10, 10, 10, 10}, "nnnnn"}, /* no unit is cut */
        {{0.5, 0.0, 0.5}, {90, 1, 1, 4, 4}, "dnnnn"},
        {{0.4, 0.2, 0.4}, {90, 1, 1, 4, 4}, "hnnnn"},
        {{0.1, 0.2, 0.7}, {1, 1, 1, 1, 96}, "ddddn"},
        {{0.7, 0.3, 0.0}, {0, 10, 10, 10, 0}, "dddhh"}, /* what has no bytes is nowhere else than its neighbours */
    };
    static const char letters[SW_TIERS] = {[SW_DEVICE] = 'd', [SW_HOST] = 'h', [SW_NVME] = 'n'};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t total = 0, before = 0;
        for (int u = 0; u < UNITS; u++)
            total += cases[i].bytes[u];
        for (int u = 0; u < UNITS; u++) {
            const char found = letters[sw_placement_of(cases[i].share, before, cases[i].bytes[u], total)];
            if (found != cases[i].tiers[u])
                fail_msg("case %d: unit %d lands on '%c', not on '%c'", (int)i, u, found, cases[i].tiers[u]);
            before += cases[i].bytes[u];
        }
    }
}

static void wrong_placements_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text;
        sw_status status;
        const char *says;
    } wrong[] = {
        {"", SW_ERR_ARG, "STATE=TIER"},
        {"nvme", SW_ERR_ARG, "'nvme'"},
        {"optimizer", SW_ERR_ARG, "'optimizer'"},
        {"optimiser=nvme", SW_ERR_ARG, "'optimiser=nvme'"},
        {"optimizer=", SW_ERR_ARG, "tiers: device, host, nvme"},
        {"optimizer=disk", SW_ERR_ARG, "'disk'"},
        {"optimizer=nvm", SW_ERR_ARG, "'nvm'"},
        {"optimizer=nvmes", SW_ERR_ARG, "'nvmes'"},
        {"optimizer=NVMe", SW_ERR_ARG, "'NVMe'"},
        {"optimizer=nvme,", SW_ERR_ARG, "STATE=TIER"},
        {",optimizer=nvme", SW_ERR_ARG, "STATE=TIER"},
        {"optimizer=nvme, grads=host", SW_ERR_ARG, "' grads=host'"},
        {"grads=host,grads=host", SW_ERR_ARG, "grads twice"},
        {"grads=host,optimizer=nvme,grads=nvme", SW_ERR_ARG, "grads twice"},
        {"=nvme", SW_ERR_ARG, "'=nvme'"},
        {"auto,grads=host", SW_ERR_ARG, "'auto'"},
        {"optimizer=device/nvme", SW_ERR_ARG, "only the last tier of optimizer"},
        {"optimizer=device:20%/host/nvme", SW_ERR_ARG, "only the last tier of optimizer"},
        {"optimizer=device:20%/host:30%/nvme:40%", SW_ERR_ARG, "add up to 90%, not to 100%"},
        {"optimizer=device:60%/host:60%", SW_ERR_ARG, "add up to 120%, not to 100%"},
        {"optimizer=device:60%/host:60%/nvme", SW_ERR_ARG, "add up to 120%, not to 100%"},
        {"optimizer=device:60%", SW_ERR_ARG, "add up to 60%, not to 100%"},
        {"weights=device:0%", SW_ERR_ARG, "add up to 0%, not to 100%"},
        {"optimizer=nvme:50%/device:50%", SW_ERR_ARG, "out of order"},
        {"optimizer=host:50%/device", SW_ERR_ARG, "out of order"},
        {"optimizer=device:50%/device:50%", SW_ERR_ARG, "optimizer twice"},
        {"optimizer=device:50%/device", SW_ERR_ARG, "optimizer twice"},
        {"optimizer=device:20%/disk", SW_ERR_ARG, "'disk'"},
        {"optimizer=device:20%/auto", SW_ERR_ARG, "'auto'"},
        {"optimizer=device:20%/", SW_ERR_ARG, "'' in --place is not a tier"},
        {"optimizer=/nvme", SW_ERR_ARG, "'' in --place is not a tier"},
        {"optimizer=device:20/nvme", SW_ERR_ARG, "'device:20'"},
        {"optimizer=device:%/nvme", SW_ERR_ARG, "'device:%'"},
        {"optimizer=device:20%%/nvme", SW_ERR_ARG, "'device:20%%'"},
        {"optimizer=device:-20%/nvme", SW_ERR_ARG, "'device:-20%'"},
        {"optimizer=device:120%/nvme", SW_ERR_ARG, "'device:120%'"},
        {"optimizer=device:nan%/nvme", SW_ERR_ARG, "'device:nan%'"},
        {"weights=nvme,trained=device", SW_ERR_ARG, "trained=auto, host or nvme"},
        {"trained=host,trained=nvme", SW_ERR_ARG, "trained twice"},
        {"trained=host:50%/nvme", SW_ERR_ARG, "trained=host:50%/nvme"},
        {"optimizer=device:inf%/nvme", SW_ERR_ARG, "'device:inf%'"},
        {"optimizer=device:two%/nvme", SW_ERR_ARG, "'device:two%'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sw_placement_request request;
        const sw_status status = sw_placement_parse(wrong[i].text, &request);
        if (status != wrong[i].status)
            fail_msg("'%s' gives %s", wrong[i].text, sw_status_name(status));
        if (strstr(sw_error_message(status), wrong[i].says) == NULL)
            fail_msg("'%s' is refused with: %s", wrong[i].text, sw_error_message(status));
        sw_error_clear();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placements_are_read),
        cmocka_unit_test(shares_are_read),
        cmocka_unit_test(units_land_where_their_middle_falls),
        cmocka_unit_test(wrong_placements_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("offload placement", tests, NULL, NULL);
}
