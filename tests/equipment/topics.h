/* The topics of a program: each is a test file, whose path names it. */
#ifndef SW_TESTS_EQUIPMENT_TOPICS_H
#define SW_TESTS_EQUIPMENT_TOPICS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Adds a topic, before the program's main begins. `file` must outlive the program. */
void sw_topic_add(const char *file, int (*run)(void));
/* Tells whether the file's name, without folders and ending, is `name`. */
static inline bool sw_topic_is(const char *file, const char *name) {
    const char *slash = strrchr(file, '/');
    const char *base = slash != NULL ? slash + 1 : file;
    const size_t chars = strlen(name);
    return strncmp(base, name, chars) == 0 && base[chars] == '.';
}

#endif
