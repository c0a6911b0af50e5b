/* The small files of the model that a run was made with: tokenizer, chat template, configuration. A run keeps copies in
 * its folder, so that it can resume, generate and export after it was moved, or after the model's folder was changed or
 * removed. Runs of older versions have no copies and read the model's folder. */
#ifndef SW_RUN_FOLDER_RUN_MODEL_H
#define SW_RUN_FOLDER_RUN_MODEL_H

#include "core/status.h"

#include <jansson.h>

/* Copies the files of `model`, if that is a folder, before run.json is written. Leaves out files that may not be copied
 * (sw_model_file_look), with a warning. Copies nothing if one of those is part of the tokenizer: half a tokenizer would
 * be another one. *out, which run.json keeps, maps each copy's name to its digest; NULL: nothing was copied. */
sw_status sw_run_keep_model(const char *folder, const char *model, json_t **out);
/* Compares the copies with their digests (NULL: none are expected). Returns a new list of the damaged or missing ones,
 * each with its `file` and a `reason`; NULL: no memory. */
json_t *sw_run_damaged_copies(const char *folder, const json_t *digests);

/* Finds the folder of a model's small files: the run's, if it has any of them, else `model`, if that is a folder.
 * folder NULL: there is no run yet. *out must be NULL or an earlier result, which is freed; it becomes the new path,
 * which the caller frees, or NULL if there is no such folder. Refuses links among the copies. */
sw_status sw_run_model_folder(const char *folder, const char *model, char **out);
/* Finds the folder of the tokenizer of a run, or of a model if it is not a run. The caller frees *out. */
sw_status sw_run_or_model_folder(const char *run_or_model, char **out);

/* The small files of the model that an export was made from. */
struct sw_run_model {
    const char *model;     /* folder or preset that the weights come from */
    const char *folder;    /* folder of the small files (sw_run_model_folder); NULL: none */
    const json_t *digests; /* digests of a run's copies; NULL: no copies */
};
/* Returns the end of the message "wrote EXPORT...": which copies the export lacks, or why it has no tokenizer.json;
 * empty if it lacks nothing. */
enum { SW_RUN_MODEL_CHARS = 8192 };
const char *sw_run_model_lack(const char *export, const struct sw_run_model *from, char text[SW_RUN_MODEL_CHARS]);

#endif
