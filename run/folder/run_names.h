/* The names of a run's files while it trains. Removing or moving a file that is in use makes the next resume
 * impossible, and no write reports it. So the names are checked every second, and before a run says that it is saved.
 */
#ifndef SW_RUN_FOLDER_RUN_NAMES_H
#define SW_RUN_FOLDER_RUN_NAMES_H

#include "core/confine.h"
#include "core/status.h"
#include "io/store/store.h"
#include "run/folder/frozen.h"

struct sw_run_names;

/* The files whose names are checked. The caller keeps all of them alive. */
struct sw_run_names_spec {
    const char *folder;
    const struct sw_confined *confined; /* the folder; NULL: it is not checked */
    const struct sw_store *store;
    const struct sw_frozen *frozen; /* NULL: the run has none */
    bool shared;                    /* this rank is responsible for run.json and the frozen weights */
};

/* Remembers the run.json of a run that is about to train. */
sw_status sw_run_names_open(const struct sw_run_names_spec *spec, struct sw_run_names **out);
void sw_run_names_close(struct sw_run_names *names);

/* Makes sure that the names lead to the run's files. Restores, with a warning, what can be restored: the name of a file
 * that has another one, and the contents of run.json. SW_ERR_IO says what is gone. */
sw_status sw_run_names_keep(struct sw_run_names *names);
/* Does the same after the last commit, and also writes removed files again. */
sw_status sw_run_names_put_back(struct sw_run_names *names);

/* Returns the path of the run's folder, which differs if the folder was moved; NULL: it has none. */
const char *sw_run_names_folder(struct sw_run_names *names);

#endif
