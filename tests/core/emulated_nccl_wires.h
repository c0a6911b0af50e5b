/* The wires of the emulated NCCL: a socket between each two ranks of one machine. What one rank sends to another comes
 * in the order in which it was sent. */
#ifndef SW_TESTS_CORE_EMULATED_NCCL_WIRES_H
#define SW_TESTS_CORE_EMULATED_NCCL_WIRES_H

#include <stdbool.h>
#include <stddef.h>

struct sw_wires;

struct sw_wire_message {
    char *data;
    size_t bytes, moved; /* moved: bytes that are sent or have come */
    int peer;
    bool receives;
};

/* Joins the ranks of a group by its name; all call it. NULL: they could not be joined. */
struct sw_wires *sw_wires_open(const char *name, int rank, int ranks);
void sw_wires_close(struct sw_wires *wires);

typedef enum {
    SW_WIRES_DONE,
    SW_WIRES_LOST, /* a rank that has messages under way is gone */
    SW_WIRES_ENDED /* *end was set meanwhile */
} sw_wires_outcome;
/* Moves all messages. */
sw_wires_outcome sw_wires_move(struct sw_wires *wires, struct sw_wire_message *messages, int count,
                               const _Atomic bool *end);

#endif
