/* Libraries that are loaded when they are needed and not with the program, which so runs where they are not. */
#ifndef SW_CORE_LIBRARY_H
#define SW_CORE_LIBRARY_H

#include <pthread.h>
#include <stdbool.h>

/* Of the process, as a loaded library is. */
struct sw_library {
    pthread_mutex_t mutex;
    bool tried;
    char failure[512]; /* empty: it is there */
};
#define SW_LIBRARY_INIT                                                                                                \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

struct sw_library_function {
    const char *name;
    void **at; /* the pointer to it */
};

/* Loads it the first time, by its name where the loader looks, else from its path where it was when the program was
 * built. NULL: all of the functions are there. Else why it cannot be used, as long as the library's struct lasts. Any
 * thread. */
const char *sw_library_load(struct sw_library *library, const char *name, const char *path,
                            const struct sw_library_function *functions, int count);

#endif
