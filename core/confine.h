/* Folders that none of their paths leads out of. A folder that came from somebody else may hold symbolic links, and
 * another process may swap a folder for a link while files are opened. So a confined folder is opened once, and each
 * path below it is followed from there, one name at a time and through no link. Other paths are the user's own choice
 * and are followed as the system does; so are those with a "..", which are never made here.
 *
 * Each call is that of the C library without the sw_path_: it returns -1 and sets errno where that does. Below a
 * confined folder a link on the way is ENOTDIR, and a link at the end is ELOOP where it would be opened.
 * Threads: all calls may run at once. Only sw_confine and sw_confine_end allocate memory. */
#ifndef SW_CORE_CONFINE_H
#define SW_CORE_CONFINE_H

#include "core/status.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

struct sw_confined;

/* Confines a folder until the caller ends that. A path is below the folder where it begins with the folder's path, as
 * given here or with the current directory before it. Where there is no folder, *out is NULL and nothing is confined.
 */
sw_status sw_confine(const char *folder, struct sw_confined **out);
void sw_confine_end(struct sw_confined *folder);

/* Returns whether a path has a "..", and so may be followed out of any folder. */
bool sw_path_goes_up(const char *path);

/* Returns whether the folder's path still leads to the folder. `now` gets the path that the folder has at present, or
 * an empty text where it has none. */
bool sw_confine_holds(const struct sw_confined *folder, char now[PATH_MAX]);
/* Writes the path that an open file or folder has at present; returns false where it has none. */
bool sw_path_of(int fd, char path[PATH_MAX]);

int sw_path_open(const char *path, int flags, mode_t mode);
/* Gives an open file one more name. Fails with ENOENT where it has none left. */
int sw_path_link(int fd, const char *path);
int sw_path_mkdir(const char *path, mode_t mode);
int sw_path_unlink(const char *path);
int sw_path_rmdir(const char *path);
/* Below a confined folder the mode is that of the name itself; no link is followed. */
int sw_path_chmod(const char *path, mode_t mode);
int sw_path_rename(const char *from, const char *to);
int sw_path_stat(const char *path, struct stat *out); /* of a link in a confined folder, the link's own */
int sw_path_lstat(const char *path, struct stat *out);
/* Returns whether something is at the path, by sw_path_stat. What the system is too short of memory or files to tell,
 * or cannot read, may be there: opening it then says why not. */
bool sw_path_exists(const char *path);
/* Finds the same. Fails where the system cannot tell. */
sw_status sw_path_find(const char *path, bool *out);

#endif
