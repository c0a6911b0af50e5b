/* --place: what it accepts, and one clear sentence for everything else. */
#include "offload/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

/* By state: d, h, n, or a for automatic. */
static void expect(const char *text, const char *tiers) {
    static const char letters[SW_TIERS] = {[SW_DEVICE] = 'd', [SW_HOST] = 'h', [SW_NVME] = 'n'};
    struct sw_placement_request request;
    memset(&request, 0x55, sizeof request);
    if (sw_placement_parse(text, &request) != SW_OK)
        fail_msg("'%s': %s", text, sw_error_message(SW_ERR_ARG));
    for (int s = 0; s < SW_STATES; s++) {
        const char found = request.automatic[s] ? 'a' : letters[request.tier[s]];
        if (found != tiers[s])
            fail_msg("'%s': %s is '%c', not '%c'", text, sw_state_name((sw_state)s), found, tiers[s]);
    }
}

static void placements_are_read(void **state) {
    (void)state;
    expect("auto", "aaaa");
    expect("optimizer=nvme", "aana");
    expect("grads=host,optimizer=nvme", "ahna");
    expect("optimizer=device,grads=nvme", "anda");
    expect("weights=device,grads=device,optimizer=device,acts=device", "dddd");
    expect("grads=auto,optimizer=host", "aaha");
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
        {"weights=host", SW_ERR_UNSUPPORTED, "weights"},
        {"acts=nvme", SW_ERR_UNSUPPORTED, "acts"},
        {"optimizer=device:20%/nvme", SW_ERR_UNSUPPORTED, "shares"},
        {"optimizer=device/nvme", SW_ERR_UNSUPPORTED, "shares"},
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
        cmocka_unit_test(wrong_placements_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("offload placement", tests, NULL, NULL);
}
