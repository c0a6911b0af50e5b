#include "core/files/hub.h"

#include <stdbool.h>
#include <string.h>

enum { NAME_CHARS = 160 };

static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/* Returns what follows the address of a page on the Hub, and says whether there is one. */
static const char *without_address(const char *given, bool *out_address) {
    static const char *const addresses[] = {
        "https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/", "hf://"};
    static const char data[] = "datasets/";
    const char *name = given;
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0] && name == given; i++)
        if (strncmp(given, addresses[i], strlen(addresses[i])) == 0)
            name = given + strlen(addresses[i]);
    *out_address = name != given;
    return *out_address && strncmp(name, data, strlen(data)) == 0 ? name + strlen(data) : name;
}

/* Copies OWNER/NAME, without a revision behind it or, in an address, the rest of the page's path; false where it is no
 * name of the Hub. */
static bool read_name(const char *name, bool is_address, char out[NAME_CHARS]) {
    const size_t owner = strspn(name, allowed);
    if (owner == 0 || name[0] == '.' || name[owner] != '/')
        return false;
    const size_t chars = owner + 1 + strspn(name + owner + 1, allowed);
    const char *rest = name + chars;
    const bool ends = *rest == '\0' || *rest == '@' || *rest == ':' || strcmp(rest, "/") == 0 ||
                      (is_address && strchr("/?#", *rest) != NULL);
    if (chars == owner + 1 || chars >= NAME_CHARS || !ends)
        return false;
    memcpy(out, name, chars);
    out[chars] = '\0';
    return true;
}

/* Finds OWNER/NAME in a name or an address of the Hub. */
static bool find_name(const char *given, char out[NAME_CHARS], bool *out_address) {
    const char *begin = without_address(given, out_address);
    return read_name(begin, *out_address, out);
}

sw_status sw_hub_refuse_name(const char *model) {
    char name[NAME_CHARS];
    bool is_address;
    if (!find_name(model, name, &is_address))
        return SW_OK;
    const char *folder = strchr(name, '/') + 1;
    return sw_fail(SW_ERR_ARG,
                   "the model '%s' is no folder on this machine; if it is a model of the Hugging Face Hub, download it "
                   "with `hf download %s --local-dir %s` and give --model %s",
                   model, name, folder, folder);
}

sw_status sw_hub_refuse_data(const char *data) {
    char name[NAME_CHARS];
    bool is_address;
    /* A dot is rather that of a file's ending. */
    if (!find_name(data, name, &is_address) || (!is_address && strchr(name, '.') != NULL))
        return SW_OK;
    const char *folder = strchr(name, '/') + 1;
    return sw_fail(SW_ERR_ARG,
                   "%s is no file or folder on this machine; if it is a data set of the Hugging Face Hub, download it "
                   "with `hf download %s --repo-type dataset --local-dir %s` and give --data %s",
                   data, name, folder, folder);
}
