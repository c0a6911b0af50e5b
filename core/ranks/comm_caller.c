/* Ranks of a program that is not spillway, which moves the bytes between its processes itself. Its only function is a
 * gather, so only collectives whose rounds are gathers over all ranks are possible. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MESSAGE_BYTES = 1 << 20 };

struct party {
    struct sw_comm_caller caller;
    char *data;       /* room for the parts of all ranks */
    uint64_t *bounds; /* ranks + 1 entries: where each part begins */
};

/* Lays the parts of all ranks one after the other. The messages of a gather have the same bytes for all others. */
static void lay_out(struct party *party, const struct sw_comm_round *round) {
    const int ranks = party->caller.ranks;
    memset(party->bounds, 0, ((size_t)ranks + 1) * sizeof *party->bounds);
    for (int i = 0; i < round->receive_count; i++)
        party->bounds[round->receives[i].peer + 1] = (uint64_t)round->receives[i].bytes;
    if (round->send_count > 0)
        party->bounds[party->caller.rank + 1] = (uint64_t)round->sends[0].bytes;
    for (int rank = 0; rank < ranks; rank++)
        party->bounds[rank + 1] += party->bounds[rank];
}

static sw_status post(void *state, int group, int64_t sequence, const struct sw_comm_round *round) {
    (void)group, (void)sequence;
    struct party *party = state;
    lay_out(party, round);
    if (party->bounds[party->caller.ranks] == 0)
        return SW_OK;
    for (int i = 0; i < round->send_count; i++)
        assert(round->sends[i].data == round->sends[0].data && round->sends[i].bytes == round->sends[0].bytes);
    if (round->send_count > 0)
        memcpy(party->data + party->bounds[party->caller.rank], round->sends[0].data, (size_t)round->sends[0].bytes);
    const int status = party->caller.gather(party->caller.context, party->data, party->bounds);
    if (status != 0)
        return sw_fail(SW_ERR_STOPPED,
                       "gather has returned %d on rank %d: another process ended or failed, or the connection did",
                       status, party->caller.rank);
    for (int i = 0; i < round->receive_count; i++)
        memcpy(round->receives[i].data, party->data + party->bounds[round->receives[i].peer],
               (size_t)round->receives[i].bytes);
    return SW_OK;
}

static sw_status done(void *state, int group, bool *out_done) {
    (void)state, (void)group;
    *out_done = true;
    return SW_OK;
}

static void close_party(void *state, bool orderly) {
    (void)orderly;
    struct party *party = state;
    free(party->data);
    free(party->bounds);
    free(party);
}

static const struct sw_comm_transport transport = {
    .name = "caller", .most_message_bytes = MOST_MESSAGE_BYTES, .post = post, .done = done, .close = close_party};

int64_t sw_comm_caller_bytes(int ranks) {
    return (int64_t)ranks * MOST_MESSAGE_BYTES;
}

sw_status sw_comm_caller_open(const struct sw_comm_caller *caller, const struct sw_comm_transport **out,
                              void **out_state) {
    struct party *party = calloc(1, sizeof *party);
    if (party != NULL) {
        party->caller = *caller;
        party->data = malloc((size_t)sw_comm_caller_bytes(caller->ranks));
        party->bounds = calloc((size_t)caller->ranks + 1, sizeof *party->bounds);
    }
    if (party == NULL || party->data == NULL || party->bounds == NULL) {
        if (party != NULL)
            close_party(party, true);
        return sw_fail(SW_ERR_NOMEM, "no memory for what %d processes exchange", caller->ranks);
    }
    *out = &transport;
    *out_state = party;
    return SW_OK;
}
