/* The small files of the model that a run was made with: tokenizer, chat template, configuration. A run keeps copies in
 * its folder, beside run.json, so that it goes on, talks and exports when it was moved, and when the model's folder is
 * changed or gone. Runs of older versions have no copies and read the model's folder. */
#ifndef SW_RUN_FOLDER_RUN_MODEL_H
#define SW_RUN_FOLDER_RUN_MODEL_H

#include "core/status.h"

#include <jansson.h>

/* Copies the files of `model`, if that is a folder, before run.json is written. Leaves out files that may not be copied
 * (sw_model_file_look) and warns of them. Copies nothing if one of those decides which tokens become of text: a part of
 * a tokenizer would be another one. *out, which run.json keeps, has a digest for each copy by its name, and is NULL
 * where nothing was copied. */
sw_status sw_run_keep_model(const char *folder, const char *model, json_t **out);
/* Compares the copies with their digests (NULL: none are expected). Returns a new list of those that are damaged or
 * gone, each with its `file` and a `reason`; NULL: no memory. */
json_t *sw_run_damaged_copies(const char *folder, const json_t *digests);

/* Finds the folder of a model's small files: the run's if it has any of them, or else `model` if that is a folder.
 * folder NULL: there is no run yet. Frees *out, which must be NULL or such a path, and sets it to the new path, which
 * the caller frees, or to NULL where there is no such folder. Refuses links among the copies. */
sw_status sw_run_model_folder(const char *folder, const char *model, char **out);
/* Finds the folder of the tokenizer of a run, or of what is no run and is taken for a model. The caller frees *out. */
sw_status sw_run_or_model_folder(const char *run_or_model, char **out);

/* The small files of the model that an export was made from. */
struct sw_run_model {
    const char *model;     /* folder or preset of which the weights were made */
    const char *folder;    /* the folder that the export has them from (sw_run_model_folder); NULL: none */
    const json_t *digests; /* of a run's copies; NULL: it has none */
};
/* Returns what a message says after "wrote EXPORT": which copies the export lacks, or why it has no tokenizer.json;
 * nothing where it lacks neither. */
enum { SW_RUN_MODEL_CHARS = 8192 };
const char *sw_run_model_lack(const char *export, const struct sw_run_model *from, char text[SW_RUN_MODEL_CHARS]);

#endif
