#include "train/files/hub.h"

#include <stdbool.h>
#include <string.h>

/* Tells whether a name has the form of one of the Hub, "OWNER/NAME". */
static bool is_hub_name(const char *model) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t owner = strspn(model, allowed);
    if (owner == 0 || model[0] == '.' || model[owner] != '/')
        return false;
    const char *name = model + owner + 1;
    return *name != 0 && strspn(name, allowed) == strlen(name);
}

/* Returns the model's name behind the address of its page on the Hub. */
static const char *without_address(const char *model) {
    static const char *const addresses[] = {
        "https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/", "hf://"};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++)
        if (strncmp(model, addresses[i], strlen(addresses[i])) == 0)
            return model + strlen(addresses[i]);
    return model;
}

sw_status sw_hub_refuse_name(const char *model) {
    const char *name = without_address(model);
    if (!is_hub_name(name))
        return SW_OK;
    const char *folder = strchr(name, '/') + 1;
    return sw_fail(SW_ERR_ARG,
                   "the model '%s' is no folder on this machine; if it is a model of the Hugging Face Hub, download it "
                   "with `hf download %s --local-dir %s` and give --model %s",
                   model, name, folder, folder);
}
