/* Libraries that are loaded on first use, so that the program runs on machines that lack them. */
#ifndef SW_CORE_LIBRARY_H
#define SW_CORE_LIBRARY_H

#include <pthread.h>
#include <stdbool.h>

enum { SW_LIBRARY_PATH_CHARS = 1024, SW_LIBRARY_FAILURE_CHARS = 2048 };

/* One library, and the result of loading it. Starts as SW_LIBRARY_INIT. */
struct sw_library {
    pthread_mutex_t mutex;
    bool tried;
    char path[SW_LIBRARY_PATH_CHARS];       /* the file that was loaded; empty: none */
    char failure[SW_LIBRARY_FAILURE_CHARS]; /* why the library cannot be used; empty: it can */
};
#define SW_LIBRARY_INIT                                                                                                \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

struct sw_library_function {
    const char *name;
    void **at; /* receives the function's address */
};

struct sw_library_need {
    const char *const *names; /* acceptable file names, best first, ended by NULL; a name with a slash is a path */
    const char *built_path;   /* the file found when the program was built; empty: none */
    const struct sw_library_function *functions;
    int function_count;
};

/* Loads the library on the first call; later calls return the first result. Searches each name where the system's
 * loader does, then in CUDA Toolkits and Python environments. Returns NULL if all functions are available, else the
 * reason why the library cannot be used, valid as long as the struct. Any thread may call it. */
const char *sw_library_load(struct sw_library *library, const struct sw_library_need *need);

#endif
