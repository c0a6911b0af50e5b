/* The small files of a model's folder, which describe the model, its tokenizer, its chats and how it generates. Runs
 * keep them and exports carry them. */
#ifndef SW_CORE_FILES_MODEL_FILES_H
#define SW_CORE_FILES_MODEL_FILES_H

#include "core/status.h"

#include <limits.h>
#include <stdbool.h>

/* Names of the files, with NULL at the end. The first SW_MODEL_TEXT_FILES decide which tokens become of text. */
extern const char *const sw_model_file_names[];
enum { SW_MODEL_TEXT_FILES = 7 };
#define SW_MODEL_CONFIG "config.json"

/* A file of a model's folder. */
struct sw_model_file {
    bool is_there;               /* a link that leads nowhere is there, too */
    char path[PATH_MAX];         /* of the file itself, after links were followed */
    char refused[PATH_MAX + 64]; /* why it is not to be copied, as in "it is no regular file"; empty: it may be */
};

/* Looks at a file that is to be copied. Refuses links that lead out of the folder, unless to a blob of the same model
 * in a Hugging Face cache: a folder from somebody else could give away any file of this user. Refuses what is no
 * regular file of at most 256 MiB, too. */
void sw_model_file_look(const char *folder, const char *name, struct sw_model_file *out);

/* Writes the path of a file of the folder and finds out whether it is there. A link to nothing, and what cannot be
 * looked at, are errors: to pass them over would change what the model says. */
sw_status sw_model_file_find(const char *folder, const char *name, char path[PATH_MAX], bool *out);

/* Fails with the command that downloads a model if its name is "OWNER/NAME", or the address of its page; else returns
 * SW_OK. Call it for paths that do not exist. */
sw_status sw_hub_refuse_name(const char *model);
/* Does the same for a data set. */
sw_status sw_hub_refuse_data(const char *data);

#endif
