/* The small files of the model that a run was made with: tokenizer, chat template, configuration. A run keeps copies in
 * its own folder, so that it goes on, talks and exports when it was moved, and when the model's folder is changed or
 * gone. Runs of older versions have no copies and read the model's folder. */
#ifndef SW_TRAIN_FOLDER_RUN_MODEL_H
#define SW_TRAIN_FOLDER_RUN_MODEL_H

#include "core/status.h"

/* The folder of the copies, below the run's. */
#define SW_RUN_MODEL_NAME "model"

/* Copies the files of `model`, if that is a folder, before run.json is written. Leaves out files that may not be copied
 * (sw_model_file_look) and warns of them. Copies nothing if one of those decides which tokens become of text: a part of
 * a tokenizer would be another one. */
sw_status sw_run_keep_model(const char *folder, const char *model);

/* Finds the folder of a model's small files: the run's copies, or else `model` if that is a folder. folder NULL: there
 * is no run yet. Frees *out, which must be NULL or such a path, and sets it to the new path, which the caller frees, or
 * to NULL where there is no such folder. */
sw_status sw_run_model_folder(const char *folder, const char *model, char **out);

/* Returns what a message says after "wrote EXPORT": why the export has no tokenizer.json; nothing where it has one.
 * `model` is what the weights were made from, `carried` the folder whose files the export has (NULL: none). */
enum { SW_RUN_MODEL_CHARS = 8192 };
const char *sw_run_model_lack(const char *export, const char *model, const char *carried,
                              char text[SW_RUN_MODEL_CHARS]);

#endif
