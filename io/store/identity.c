/* Makes, writes and parses identities of stores. */
#include "io/store/store_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static_assert(SW_STORE_ID_CHARS == 2 * SW_FORMAT_ID_BYTES + 1, "two digits a byte");

static void write_id(const uint8_t id[SW_FORMAT_ID_BYTES], char text[SW_STORE_ID_CHARS]) {
    for (int i = 0; i < SW_FORMAT_ID_BYTES; i++)
        snprintf(text + (ptrdiff_t)(2 * i), 3, "%02x", id[i]);
}

const char *sw_store_id(const struct sw_store *store, char text[SW_STORE_ID_CHARS]) {
    write_id(store->id, text);
    return text;
}

sw_status sw_store_new_id(char text[SW_STORE_ID_CHARS]) {
    uint8_t id[SW_FORMAT_ID_BYTES];
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id)
        return sw_fail(SW_ERR_IO, "the system gave no random bytes: %s", strerror(errno));
    write_id(id, text);
    return SW_OK;
}

sw_status sw_store_id_parse(const char *text, uint8_t out[SW_FORMAT_ID_BYTES]) {
    bool right = strlen(text) == SW_STORE_ID_CHARS - 1;
    for (int i = 0; right && i < SW_FORMAT_ID_BYTES; i++)
        right = sscanf(text + (ptrdiff_t)(2 * i), "%2hhx", &out[i]) == 1;
    return right ? SW_OK : sw_fail(SW_ERR_CORRUPT, "'%s' is not the identity of a store", text);
}
