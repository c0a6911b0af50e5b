/* Joins the tests of an area in one program. The build includes this header before each of their files: the file's main
 * becomes a function of the file, and a topic of the program under the file's name. */
#ifndef SW_TESTS_EQUIPMENT_TOPIC_H
#define SW_TESTS_EQUIPMENT_TOPIC_H

#include "tests/equipment/topics.h"

static int topic_main(void);
static const char *topic_file(void);
/* The file is named where it has its main: clang gives __BASE_FILE__ another value in a header that is included by a
 * flag. */
#define main                                                                                                           \
    topic_is_no_program(void);                                                                                         \
    static const char *topic_file(void) {                                                                              \
        return __FILE__;                                                                                               \
    }                                                                                                                  \
    static int topic_main

__attribute__((constructor)) static void add_topic(void) {
    sw_topic_add(topic_file(), topic_main);
}

#endif
