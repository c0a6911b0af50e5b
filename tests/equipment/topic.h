/* Joins the tests of an area in one program. The build includes this header before each of their files: the file's main
 * becomes a function of the file, and a topic of the program under the file's name. */
#ifndef SW_TESTS_EQUIPMENT_TOPIC_H
#define SW_TESTS_EQUIPMENT_TOPIC_H

#include "tests/equipment/topics.h"

static int topic_main(void);
#define main topic_main

__attribute__((constructor)) static void add_topic(void) {
    sw_topic_add(__BASE_FILE__, topic_main);
}

#endif
