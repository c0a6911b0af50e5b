/* Folders that no path below them can leave. A folder from somebody else may hold symbolic links, and another process
 * may swap a folder for a link while files are opened. So a confined folder is opened once, and each path below it is
 * followed from there, one name at a time, through no link. Other paths are the user's own choice and are followed as
 * the system does. So are paths with "..", which this program never makes.
 *
 * Each call is the C library's function without the prefix sw_path_: it returns -1 and sets errno likewise. Below a
 * confined folder, a link on the way is ENOTDIR, and a link at the end is ELOOP if it would be opened. Threads: all
 * calls may run at once. Only sw_confine and sw_confine_end allocate memory. */
#ifndef SW_CORE_CONFINE_H
#define SW_CORE_CONFINE_H

#include "core/status.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

struct sw_confined;

/* Confines a folder until sw_confine_end. A path counts as below the folder if it begins with the folder's path, as
 * given or made absolute. If the folder does not exist, *out is NULL and nothing is confined. */
sw_status sw_confine(const char *folder, struct sw_confined **out);
void sw_confine_end(struct sw_confined *folder);

/* Returns whether a path has "..", and so may leave any folder. */
bool sw_path_goes_up(const char *path);

/* Returns whether the folder's path still leads to the folder. `now` receives the folder's current path, empty if it
 * has none. */
bool sw_confine_holds(const struct sw_confined *folder, char now[PATH_MAX]);
/* Writes the current path of an open file or folder. Returns false if it has none. */
bool sw_path_of(int fd, char path[PATH_MAX]);

int sw_path_open(const char *path, int flags, mode_t mode);
/* Gives an open file one more name. Fails with ENOENT if the file has no name left. */
int sw_path_link(int fd, const char *path);
int sw_path_mkdir(const char *path, mode_t mode);
int sw_path_unlink(const char *path);
int sw_path_rmdir(const char *path);
/* Below a confined folder, changes the mode of the name itself, following no link. */
int sw_path_chmod(const char *path, mode_t mode);
int sw_path_rename(const char *from, const char *to);
int sw_path_stat(const char *path, struct stat *out); /* below a confined folder, a link's own status */
int sw_path_lstat(const char *path, struct stat *out);
/* Returns whether something is at the path, by sw_path_stat. Returns true if that cannot be told, for lack of memory,
 * files or permission: opening the path then reports the reason. */
bool sw_path_exists(const char *path);
/* Finds out the same. Fails if the system cannot tell. */
sw_status sw_path_find(const char *path, bool *out);

#endif
