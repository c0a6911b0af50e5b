/* The folder that the targets of files write to. */
#include "tests/fuzz/target.h"

#include <assert.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_CHARS = 4096, PATHS = 2, OPEN_FOLDERS = 8 };

static char folder[PATH_CHARS];
static pid_t owner; /* libFuzzer may fork: only the process that made it removes it */

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

static void remove_folder(void) {
    if (getpid() == owner)
        nftw(folder, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void) {
    if (folder[0] != '\0')
        return folder;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/spillway-fuzz-XXXXXX", parent != NULL ? parent : ".");
    const char *made = mkdtemp(folder);
    assert(made != NULL);
    owner = getpid();
    atexit(remove_folder);
    return folder;
}

const char *fuzz_path(const char *name) {
    static char paths[PATHS][2 * PATH_CHARS];
    static int next;
    next = (next + 1) % PATHS;
    snprintf(paths[next], sizeof paths[next], "%s/%s", fuzz_folder(), name);
    return paths[next];
}

/* Never cut to nothing before it is written: file systems flush what is. */
void fuzz_put(const char *name, const void *data, size_t bytes) {
    const int file = open(fuzz_path(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert(file >= 0);
    const ssize_t put = pwrite(file, data, bytes, 0);
    const int cut = ftruncate(file, (off_t)bytes);
    assert(put == (ssize_t)bytes && cut == 0);
    close(file);
}
