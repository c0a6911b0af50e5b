/* The small files of a model's folder, which describe the model, its tokenizer, its chats and its generation. Runs keep
 * them, and exports contain them. */
#ifndef SW_CORE_FILES_MODEL_FILES_H
#define SW_CORE_FILES_MODEL_FILES_H

#include "core/status.h"

#include <limits.h>
#include <stdbool.h>

/* Names of the files, ended by NULL. The first SW_MODEL_TEXT_FILES decide how text becomes tokens. */
extern const char *const sw_model_file_names[];
enum { SW_MODEL_TEXT_FILES = 7 };
#define SW_MODEL_CONFIG "config.json"

/* A file of a model's folder. */
struct sw_model_file {
    bool is_there;               /* true for a broken link too */
    char path[PATH_MAX];         /* of the file itself, with links followed */
    char refused[PATH_MAX + 64]; /* why it may not be copied, such as "it is no regular file"; empty: it may */
};

/* Examines a file before it is copied. Refuses links that lead out of the folder, unless to a blob of the same model in
 * a Hugging Face cache: a folder from somebody else could otherwise give away any file of this user. Also refuses
 * anything but a regular file of at most 256 MiB. */
void sw_model_file_look(const char *folder, const char *name, struct sw_model_file *out);

/* Writes the path of a file of the folder and finds out whether it exists. A broken link, or a file that cannot be
 * examined, is an error: ignoring it would change what the model says. */
sw_status sw_model_file_find(const char *folder, const char *name, char path[PATH_MAX], bool *out);

/* Fails, with the command that downloads the model, if the name is "OWNER/NAME" or the address of its page; else
 * returns SW_OK. Call it for paths that do not exist. */
sw_status sw_hub_refuse_name(const char *model);
/* Does the same for a data set. */
sw_status sw_hub_refuse_data(const char *data);

#endif
