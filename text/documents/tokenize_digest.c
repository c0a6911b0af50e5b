#include "text/documents/tokenize_digest.h"

#include "core/files/files.h"
#include "core/files/model_files.h"
#include "io/queue/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The digest says of so many files of a model, too, that they are not there. It did not know the others at first, and
 * stays what it was where they are not there. */
enum { READ_BYTES = 1 << 20, ALWAYS_NAMED = 6 };

void sw_digest_text(XXH3_state_t *hash, const char *text) {
    static const char none[] = "\0none";
    if (text == NULL)
        XXH3_64bits_update(hash, none, sizeof none);
    else
        XXH3_64bits_update(hash, text, strlen(text) + 1);
}

sw_status sw_digest_file(XXH3_state_t *hash, const char *path) {
    char *bytes = malloc(READ_BYTES);
    int fd = -1;
    ssize_t count = -1;
    sw_status status =
        bytes != NULL ? sw_file_open_to_read(path, &fd) : sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    while (fd >= 0 && (count = read(fd, bytes, READ_BYTES)) > 0)
        XXH3_64bits_update(hash, bytes, (size_t)count);
    if (status == SW_OK && count < 0)
        status = sw_fail(SW_ERR_ARG, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(bytes);
    return status;
}

sw_status sw_digest_model(XXH3_state_t *hash, const char *model) {
    struct stat info;
    if (stat(model, &info) == 0 && S_ISREG(info.st_mode))
        return sw_digest_file(hash, model);
    for (int i = 0; i < SW_MODEL_TEXT_FILES; i++) {
        char path[PATH_MAX];
        bool is_there;
        SW_TRY(sw_model_file_find(model, sw_model_file_names[i], path, &is_there));
        if (is_there || i < ALWAYS_NAMED)
            sw_digest_text(hash, sw_model_file_names[i]);
        if (is_there)
            SW_TRY(sw_digest_file(hash, path));
    }
    return SW_OK;
}
