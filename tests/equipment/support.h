/* Helpers that tests of several folders share: a temporary directory, files in it, and failures by their message. */
#ifndef SW_TESTS_EQUIPMENT_SUPPORT_H
#define SW_TESTS_EQUIPMENT_SUPPORT_H

#include "core/status.h"
#include "model/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUPPORT_PATH_CHARS = 512 };

struct support_folder {
    char path[SUPPORT_PATH_CHARS];
};

/* cmocka's set-up and tear-down of a test; the state is the folder. */
static inline int support_make_folder(void **state) {
    struct support_folder *folder = calloc(1, sizeof *folder);
    const char *base = getenv("TMPDIR");
    assert_non_null(folder);
    snprintf(folder->path, sizeof folder->path, "%s/spillway-train-XXXXXX", base != NULL ? base : ".");
    assert_non_null(mkdtemp(folder->path));
    *state = folder;
    sw_error_clear();
    return 0;
}

static inline int support_remove_folder(void **state) {
    struct support_folder *folder = *state;
    DIR *files = opendir(folder->path);
    for (const struct dirent *entry = NULL; files != NULL && (entry = readdir(files)) != NULL;) {
        const int is_folder = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!is_folder)
            unlinkat(dirfd(files), entry->d_name, 0);
    }
    if (files != NULL)
        closedir(files);
    rmdir(folder->path);
    free(folder);
    return 0;
}

static inline const char *support_path(void *const *state, const char *name, char buffer[SUPPORT_PATH_CHARS]) {
    const struct support_folder *folder = *state;
    assert_true(snprintf(buffer, SUPPORT_PATH_CHARS, "%s/%s", folder->path, name) < SUPPORT_PATH_CHARS);
    return buffer;
}

/* Makes a file in the folder and writes its path into buffer. */
static inline const char *support_write(void *const *state, const char *name, const void *content, size_t bytes,
                                        char buffer[SUPPORT_PATH_CHARS]) {
    FILE *file = fopen(support_path(state, name, buffer), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return buffer;
}

/* The call failed with this code and a message that holds this text. */
static inline void support_expect_failure(sw_status status, sw_status code, const char *text, const char *what) {
    if (status != code || strstr(sw_error_message(status), text) == NULL)
        fail_msg("%s: status %d (%s), expected %d with \"%s\"", what, status, sw_error_message(status), code, text);
    sw_error_clear();
}

/* A window without documents. */
static inline struct sw_tokens support_window(int32_t *inputs, int32_t *targets) {
    return (struct sw_tokens){.inputs = inputs, .targets = targets};
}

static inline void support_expect_ok(sw_status status, const char *what) {
    if (status != SW_OK)
        fail_msg("%s: %s", what, sw_error_message(status));
}

#endif
