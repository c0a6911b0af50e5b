/* Writes the folder of an export so that it ends up complete or absent, even after a kill or a power loss. */
#ifndef SW_MODEL_HF_EXPORT_FOLDER_H
#define SW_MODEL_HF_EXPORT_FOLDER_H

#include "core/status.h"

/* Calls `fill` to write the files of a folder, which must be new or empty. The files are written to FOLDER.partial, in
 * which the file spillway.partial is mark and lock: the remains of an unfinished export are removed, anything else of
 * that name is refused. */
sw_status sw_export_folder_write(const char *folder, sw_status (*fill)(void *context, const char *partial),
                                 void *context);

#endif
