/* Ranks of a program that is not spillway, which moves the bytes between its processes itself. Its only function is a
 * gather, so only collectives whose rounds are gathers over all ranks are possible.
 *
 * Each round begins with a gather of blocks of one size, which every rank can join without knowing the round: a rank
 * that has failed says so in its block, and the others stop with its message. The block has the bytes of a small round
 * too, which then needs no gather of its own. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MESSAGE_BYTES = 1 << 20, BLOCK_DATA_BYTES = 1008 };

/* A rank's part of the first gather of a round. */
struct block {
    int64_t failed; /* nonzero: `data` is the text of the rank's error */
    int64_t bytes;  /* of the rank's part of the round; `data` has it if no rank's is larger */
    char data[BLOCK_DATA_BYTES];
};

struct party {
    struct sw_comm_caller caller;
    char *data;             /* room for the parts of all ranks */
    uint64_t *bounds;       /* ranks + 1 entries: where each part begins */
    struct block *block;    /* [ranks] */
    uint64_t *block_bounds; /* ranks + 1 entries: where each block begins */
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

static sw_status gather(const struct party *party, void *data, const uint64_t *bounds) {
    const int status = party->caller.gather(party->caller.context, data, bounds);
    return status == 0
               ? SW_OK
               : sw_fail(SW_ERR_STOPPED,
                         "gather has returned %d on rank %d: another process ended or failed, or the connection did",
                         status, party->caller.rank);
}

/* Returns this rank's block, of zeros. */
static struct block *own_block(struct party *party) {
    struct block *own = &party->block[party->caller.rank];
    *own = (struct block){0};
    return own;
}

static uint64_t part_bytes(const struct party *party, int rank) {
    return party->bounds[rank + 1] - party->bounds[rank];
}

/* Stops with the error of a rank that has failed, and where ranks are in different rounds. */
static sw_status check_blocks(const struct party *party) {
    for (int rank = 0; rank < party->caller.ranks; rank++)
        if (party->block[rank].failed != 0)
            return sw_fail(SW_ERR_STOPPED, "process %d failed: %.*s", rank, BLOCK_DATA_BYTES - 1,
                           party->block[rank].data);
    for (int rank = 0; rank < party->caller.ranks; rank++)
        if ((uint64_t)party->block[rank].bytes != part_bytes(party, rank))
            return sw_fail(SW_ERR_STOPPED,
                           "process %d gathers %lld bytes where process %d expects %llu of it: all processes make the "
                           "same calls in the same order",
                           rank, (long long)party->block[rank].bytes, party->caller.rank,
                           (unsigned long long)part_bytes(party, rank));
    return SW_OK;
}

/* Gathers the blocks. *small: they have all parts of the round. */
static sw_status exchange_blocks(struct party *party, const struct sw_comm_round *round, bool *small) {
    struct block *own = own_block(party);
    *small = true;
    for (int rank = 0; rank < party->caller.ranks; rank++)
        *small = *small && part_bytes(party, rank) <= BLOCK_DATA_BYTES;
    own->bytes = (int64_t)part_bytes(party, party->caller.rank);
    if (*small && round->send_count > 0)
        memcpy(own->data, round->sends[0].data, (size_t)round->sends[0].bytes);
    SW_TRY(gather(party, party->block, party->block_bounds));
    return check_blocks(party);
}

static sw_status post(void *state, int group, int64_t sequence, const struct sw_comm_round *round) {
    (void)group, (void)sequence;
    struct party *party = state;
    bool small;
    lay_out(party, round);
    if (party->bounds[party->caller.ranks] == 0)
        return SW_OK;
    for (int i = 0; i < round->send_count; i++)
        assert(round->sends[i].data == round->sends[0].data && round->sends[i].bytes == round->sends[0].bytes);
    SW_TRY(exchange_blocks(party, round, &small));
    if (!small && round->send_count > 0)
        memcpy(party->data + party->bounds[party->caller.rank], round->sends[0].data, (size_t)round->sends[0].bytes);
    if (!small)
        SW_TRY(gather(party, party->data, party->bounds));
    for (int i = 0; i < round->receive_count; i++) {
        const int peer = round->receives[i].peer;
        memcpy(round->receives[i].data, small ? party->block[peer].data : party->data + party->bounds[peer],
               (size_t)round->receives[i].bytes);
    }
    return SW_OK;
}

static void tell(void *state, const char *message) {
    struct party *party = state;
    struct block *own = own_block(party);
    own->failed = 1;
    snprintf(own->data, sizeof own->data, "%s", message);
    /* If the gather fails, the others know that something has ended. */
    (void)party->caller.gather(party->caller.context, party->block, party->block_bounds);
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
    free(party->block);
    free(party->block_bounds);
    free(party);
}

static const struct sw_comm_transport transport = {.name = "caller",
                                                   .most_message_bytes = MOST_MESSAGE_BYTES,
                                                   .post = post,
                                                   .done = done,
                                                   .tell = tell,
                                                   .close = close_party};

int64_t sw_comm_caller_bytes(int ranks) {
    return (int64_t)ranks * (MOST_MESSAGE_BYTES + (int64_t)sizeof(struct block));
}

sw_status sw_comm_caller_open(const struct sw_comm_caller *caller, const struct sw_comm_transport **out,
                              void **out_state) {
    struct party *party = calloc(1, sizeof *party);
    if (party != NULL) {
        party->caller = *caller;
        party->data = malloc((size_t)caller->ranks * MOST_MESSAGE_BYTES);
        party->bounds = calloc((size_t)caller->ranks + 1, sizeof *party->bounds);
        party->block = calloc((size_t)caller->ranks, sizeof *party->block);
        party->block_bounds = calloc((size_t)caller->ranks + 1, sizeof *party->block_bounds);
    }
    if (party == NULL || party->data == NULL || party->bounds == NULL || party->block == NULL ||
        party->block_bounds == NULL) {
        if (party != NULL)
            close_party(party, true);
        return sw_fail(SW_ERR_NOMEM, "no memory for what %d processes exchange", caller->ranks);
    }
    for (int rank = 0; rank <= caller->ranks; rank++)
        party->block_bounds[rank] = (uint64_t)rank * sizeof *party->block;
    *out = &transport;
    *out_state = party;
    return SW_OK;
}
