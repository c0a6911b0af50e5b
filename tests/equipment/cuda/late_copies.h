/* The copies to shared memory that a thread has started: each takes place at some time between its start and the wait
 * for it, here at one of the two. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_LATE_COPIES_H
#define SW_TESTS_EQUIPMENT_CUDA_LATE_COPIES_H

#include <stdbool.h>
#include <stddef.h>

struct sw_late_copy {
    void *to;
    const void *from; /* the bytes to copy; NULL: zeros */
    size_t bytes;
    bool done;
    int commit;
};
struct sw_late_copies {
    struct sw_late_copy *copies;
    int count, commits;
};

/* Starts a copy. Returns false where there is no memory, or a thread has more under way than it should. */
bool sw_late_copies_start(struct sw_late_copies *late, void *to, const void *from, size_t bytes, bool now);
void sw_late_copies_commit(struct sw_late_copies *late);
/* Ends all copies but those of the newest commits. */
void sw_late_copies_wait(struct sw_late_copies *late, int newest);
/* Forgets the copies that are under way. */
void sw_late_copies_reset(struct sw_late_copies *late);
void sw_late_copies_free(struct sw_late_copies *late);

#endif
