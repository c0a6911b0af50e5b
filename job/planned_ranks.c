#include "job/planned_ranks.h"

#include <stdlib.h>
#include <string.h>

/* A rank may work alone for as long. Measuring its rates takes longest. */
enum { RANK_TIMEOUT_S = 120 };

sw_status sw_planned_begin_ranks(struct sw_ranks *ranks, struct sw_settings *settings) {
    sw_settings_take_ranks(settings, ranks);
    SW_TRY(sw_settings_group_ranks(settings, ranks));
    SW_TRY(sw_ranks_begin_watch(ranks, RANK_TIMEOUT_S));
    return settings->threads == SW_OPTION_AUTO ? sw_ranks_cores(ranks, &settings->threads) : SW_OK;
}

static sw_status agree_on(struct sw_ranks *ranks, const struct sw_settings *settings, const char *config,
                          const char *device) {
    const struct sw_comm_claim claims[] = {
        {.what = "model", .remedy = "give all ranks the same one", .value = config, .bytes = (int64_t)strlen(config)},
        {.what = "precision",
         .remedy = "name one by --precision",
         .value = &settings->precision,
         .bytes = sizeof settings->precision},
        {.what = "kind of device", .remedy = "name one by --device", .value = device, .bytes = (int64_t)strlen(device)},
    };
    return sw_ranks_agree(ranks, claims, sizeof claims / sizeof claims[0]);
}

sw_status sw_planned_agree(struct sw_ranks *ranks, struct sw_settings *settings, const struct sw_model_config *config,
                           const struct sw_devices *devices) {
    char *text = NULL;
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_config_to_json(config, &text)));
    const sw_status status = agree_on(ranks, settings, text, sw_devices_info(devices).name);
    free(text);
    SW_TRY(status);
    int64_t budgets[] = {settings->device_memory, settings->host_memory};
    SW_TRY(sw_ranks_least(ranks, budgets, 2));
    settings->device_memory = budgets[0];
    settings->host_memory = budgets[1];
    return sw_ranks_use_gpu(ranks, devices);
}
