#include "tests/equipment/cuda/late_copies.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_COPIES = 1024 };

static void perform(struct sw_late_copy *copy) {
    if (copy->done)
        return;
    copy->done = true;
    if (copy->from == NULL)
        memset(copy->to, 0, copy->bytes);
    else
        memcpy(copy->to, copy->from, copy->bytes);
}

bool sw_late_copies_start(struct sw_late_copies *late, void *to, const void *from, size_t bytes, bool now) {
    if (late->copies == NULL)
        late->copies = calloc(MOST_COPIES, sizeof *late->copies);
    if (late->copies == NULL || late->count == MOST_COPIES)
        return false;
    struct sw_late_copy *copy = &late->copies[late->count++];
    *copy = (struct sw_late_copy){.to = to, .from = from, .bytes = bytes, .commit = late->commits};
    if (now)
        perform(copy);
    return true;
}

void sw_late_copies_commit(struct sw_late_copies *late) {
    late->commits++;
}

void sw_late_copies_wait(struct sw_late_copies *late, int newest) {
    int kept = 0;
    for (int i = 0; i < late->count; i++) {
        if (late->copies[i].commit < late->commits - newest)
            perform(&late->copies[i]);
        else
            late->copies[kept++] = late->copies[i];
    }
    late->count = kept;
}

void sw_late_copies_reset(struct sw_late_copies *late) {
    late->count = late->commits = 0;
}

void sw_late_copies_free(struct sw_late_copies *late) {
    free(late->copies);
    *late = (struct sw_late_copies){0};
}
