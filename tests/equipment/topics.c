/* The program of an area's tests. PROGRAM TOPIC runs one of them; without a topic, the program lists their files.
 * SW_TEST_FILTER names the cases to run, by a pattern of cmocka's. */
#include "tests/equipment/topics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_TOPICS = 64 };

static struct topic {
    const char *file;
    int (*run)(void);
} topics[MOST_TOPICS];
static int topic_count;

void sw_topic_add(const char *file, int (*run)(void)) {
    if (topic_count == MOST_TOPICS)
        abort();
    topics[topic_count++] = (struct topic){file, run};
}

int main(int argc, char **argv) {
    if (getenv("SW_TEST_FILTER") != NULL)
        cmocka_set_test_filter(getenv("SW_TEST_FILTER"));
    for (int i = 0; argc == 2 && i < topic_count; i++)
        if (sw_topic_is(topics[i].file, argv[1]))
            return topics[i].run();
    fprintf(stderr, "usage: %s TOPIC, which is the name of one of these files:\n", argv[0]);
    for (int i = 0; i < topic_count; i++)
        fprintf(stderr, "    %s\n", topics[i].file);
    return 2;
}
