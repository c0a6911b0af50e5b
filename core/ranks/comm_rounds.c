/* A phase as rounds: which bytes go from whom to whom at once. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <string.h>

/* Slices are cut at multiples of this, so that parts of them stay aligned. */
enum { PIECE_ELEMS = 64 };

int64_t sw_comm_least_staging_bytes(int ranks) {
    return (int64_t)SW_COMM_GROUPS * sw_max_i64(ranks - 1, 1) * PIECE_ELEMS * (int64_t)sizeof(float);
}

void sw_comm_even_bounds(int64_t elems, int64_t granule, int ranks, int64_t *bounds) {
    const int64_t granules = sw_div_up(elems, granule);
    const int64_t each = granules / ranks, rest = granules % ranks;
    for (int rank = 0; rank <= ranks; rank++)
        bounds[rank] = sw_min_i64((each * rank + sw_min_i64(rank, rest)) * granule, elems);
}

static int64_t share_units(const struct sw_comm_phase *phase, int rank) {
    return phase->bounds[rank + 1] - phase->bounds[rank];
}

/* Returns how many units of each rank's share a reduction's round can hold in the staging buffer, which receives a part
 * of the own slice from each other rank. */
static int64_t staged_units(const struct sw_comm *comm, const struct sw_comm_phase *phase) {
    const int64_t pieces = (int64_t)SW_COMM_GROUPS * (phase->members->ranks - 1);
    return comm->staging_bytes / pieces / phase->unit_bytes / PIECE_ELEMS * PIECE_ELEMS;
}

/* Returns whether the library may sum for these: it sums over all ranks, and is the design's choice only for scopes
 * that are all ranks by definition. A node that happens to be all of them keeps the design's sums. */
static bool is_whole_job(const struct sw_comm *comm, const struct sw_comm_members *members) {
    return members == &comm->scope[SW_SCOPE_ALL] ||
           (members == &comm->scope[SW_SCOPE_DATA] && members->ranks == comm->place.ranks);
}

/* Returns the rounds in which a part of each share is moved: over two levels one for each node. */
static int64_t part_rounds(const struct sw_comm_phase *phase) {
    return phase->node_ranks > 0 ? phase->members->ranks / phase->node_ranks : 1;
}

void sw_comm_plan_phase(const struct sw_comm *comm, const struct sw_comm_transport *transport,
                        struct sw_comm_phase *phase) {
    int64_t largest = 0;
    const int ranks = phase->members->ranks;
    for (int rank = 0; rank < ranks; rank++)
        largest = sw_max_i64(largest, share_units(phase, rank));
    phase->round_units = transport->most_message_bytes / phase->unit_bytes;
    if (phase->kind == SW_PHASE_REDUCE && ranks > 1)
        phase->round_units = sw_min_i64(phase->round_units, staged_units(comm, phase));
    assert(phase->round_units > 0);
    phase->by_library = comm->library_sums && ranks > 1 && phase->kind == SW_PHASE_REDUCE &&
                        is_whole_job(comm, phase->members) && phase->type == phase->to_type &&
                        transport->post_sums != NULL;
    phase->node_ranks =
        phase->kind == SW_PHASE_GATHER && !phase->straight ? sw_comm_node_members(comm, phase->members) : 0;
    phase->rounds = sw_div_up(largest, phase->round_units) * part_rounds(phase);
}

/* The part of a rank's share that one round moves. */
struct part {
    int64_t first, units; /* of the whole */
};

static struct part part_of(const struct sw_comm_phase *phase, int64_t number, int rank) {
    const int64_t begin = phase->bounds[rank] + number * phase->round_units;
    const int64_t left = phase->bounds[rank + 1] - begin;
    return (struct part){.first = begin, .units = sw_max_i64(sw_min_i64(left, phase->round_units), 0)};
}

static char *staged(const struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number, int peer) {
    const int64_t piece_bytes = phase->round_units * phase->unit_bytes;
    const int64_t place = peer - (peer > phase->members->rank);
    return comm->staging + (number % SW_COMM_GROUPS * (phase->members->ranks - 1) + place) * piece_bytes;
}

static void add(struct sw_comm_message *messages, int *count, int peer, char *data, int64_t bytes) {
    if (bytes > 0)
        messages[(*count)++] = (struct sw_comm_message){.peer = peer, .data = data, .bytes = bytes};
}

/* Returns the part that this rank sends in a gather. It is not const because messages have one type for both
 * directions; a message that is sent is only read. */
static char *own_part(const struct sw_comm_phase *phase, struct part own) {
    const int64_t in_share = own.first - phase->bounds[phase->members->rank];
    return phase->own != NULL ? (char *)phase->own + in_share * phase->unit_bytes
                              : phase->data + own.first * phase->unit_bytes;
}

static char *reduced(const struct sw_comm_phase *phase, int64_t number) {
    return phase->to + number * phase->round_units * sw_dtype_bytes(phase->to_type);
}

/* Returns where a round of an exchange receives what a peer has for this rank. */
static char *taken_part(const struct sw_comm_phase *phase, int64_t number, int peer) {
    const int64_t place = peer - (peer > phase->members->rank);
    const int64_t units = place * share_units(phase, phase->members->rank) + number * phase->round_units;
    return phase->to + units * phase->unit_bytes;
}

/* The library's sums are collectives, so that their order is the same on all ranks. */
static void fill_sums(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                      struct sw_comm_round *round) {
    for (int rank = 0; rank < comm->place.ranks; rank++) {
        const struct part part = part_of(phase, number, rank);
        const int64_t bytes = part.units * phase->unit_bytes;
        add(round->sends, &round->send_count, rank, phase->data + part.first * phase->unit_bytes, bytes);
        if (rank == comm->place.rank)
            add(round->receives, &round->receive_count, rank, reduced(phase, number), bytes);
    }
}

static void fill_messages(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                          struct sw_comm_round *round) {
    const int self = phase->members->rank, ranks = phase->members->ranks;
    const int *rank_of = phase->members->rank_of;
    const struct part own = part_of(phase, number, self);
    /* Each begins with the rank after it, so that not all of them talk to the same one. */
    for (int distance = 1; distance < ranks; distance++) {
        const int to = (self + distance) % ranks, from = (self + ranks - distance) % ranks;
        const struct part theirs = part_of(phase, number, from), taken = part_of(phase, number, to);
        const int64_t unit = phase->unit_bytes;
        switch (phase->kind) {
        case SW_PHASE_GATHER:
            add(round->sends, &round->send_count, rank_of[to], own_part(phase, own), own.units * unit);
            add(round->receives, &round->receive_count, rank_of[from], phase->data + theirs.first * unit,
                theirs.units * unit);
            break;
        case SW_PHASE_SCATTER:
            if (self == phase->root)
                add(round->sends, &round->send_count, rank_of[to], phase->data + taken.first * unit,
                    taken.units * unit);
            if (from == phase->root)
                add(round->receives, &round->receive_count, rank_of[from], phase->data + own.first * unit,
                    own.units * unit);
            break;
        case SW_PHASE_EXCHANGE:
            add(round->sends, &round->send_count, rank_of[to], phase->data + taken.first * unit, taken.units * unit);
            add(round->receives, &round->receive_count, rank_of[from], taken_part(phase, number, from),
                own.units * unit);
            break;
        case SW_PHASE_REDUCE:
            add(round->sends, &round->send_count, rank_of[to], phase->data + taken.first * unit, taken.units * unit);
            add(round->receives, &round->receive_count, rank_of[from], staged(comm, phase, number, from),
                own.units * unit);
            break;
        }
    }
}

/* A gather in two levels: in round number `away` of a part of the shares, a rank gives its own to the rank of its
 * number `away` + 1 nodes on, and that which has come from `away` nodes back, or at first its own, to the others of its
 * node. So a share crosses to another node once, however many ranks that has, while others go on within nodes. */
static void fill_levels(const struct sw_comm_phase *phase, int64_t number, struct sw_comm_round *round) {
    const int ranks = phase->members->ranks, self = phase->members->rank, *rank_of = phase->members->rank_of;
    const int each = phase->node_ranks, first = self / each * each, place = self % each;
    const int64_t part = number / part_rounds(phase), away = number % part_rounds(phase), unit = phase->unit_bytes;
    const int back = (int)(away * each), next = back + each;
    if (next < ranks) {
        const int to = (self + next) % ranks, from = (self + ranks - next) % ranks;
        const struct part own = part_of(phase, part, self), theirs = part_of(phase, part, from);
        add(round->sends, &round->send_count, rank_of[to], own_part(phase, own), own.units * unit);
        add(round->receives, &round->receive_count, rank_of[from], phase->data + theirs.first * unit,
            theirs.units * unit);
    }
    const struct part given = part_of(phase, part, (self + ranks - back) % ranks);
    char *data = away == 0 ? own_part(phase, given) : phase->data + given.first * unit;
    for (int distance = 1; distance < each; distance++) {
        const int to = first + (place + distance) % each, from = first + (place + each - distance) % each;
        const struct part taken = part_of(phase, part, (from + ranks - back) % ranks);
        add(round->sends, &round->send_count, rank_of[to], data, given.units * unit);
        add(round->receives, &round->receive_count, rank_of[from], phase->data + taken.first * unit,
            taken.units * unit);
    }
}

void sw_comm_fill_round(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                        struct sw_comm_round *round) {
    round->send_count = round->receive_count = 0;
    if (phase->by_library)
        fill_sums(comm, phase, number, round);
    else if (phase->node_ranks > 0)
        fill_levels(phase, number, round);
    else
        fill_messages(comm, phase, number, round);
}

static sw_status copy_part(struct sw_comm *comm, const struct sw_comm_phase *phase, struct part own) {
    char *to = phase->data + own.first * phase->unit_bytes;
    const char *from = own_part(phase, own);
    const int64_t bytes = own.units * phase->unit_bytes;
    if (comm->device.copy != NULL)
        return comm->device.copy(comm->device.context, to, from, bytes);
    memcpy(to, from, (size_t)bytes);
    return SW_OK;
}

static sw_status sum_part(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number, struct part own) {
    const struct sw_comm_sum sum = {
        .type = phase->type,
        .to_type = phase->to_type,
        .elems = own.units,
        .rank = phase->members->rank,
        .ranks = phase->members->ranks,
        .own = phase->data + own.first * phase->unit_bytes,
        /* The first of the others: rank 0, or on rank 0 rank 1. */
        .others = phase->members->ranks > 1 ? staged(comm, phase, number, phase->members->rank == 0) : NULL,
        .stride_bytes = phase->round_units * phase->unit_bytes,
        .to = reduced(phase, number),
    };
    if (comm->device.sum != NULL)
        return comm->device.sum(comm->device.context, &sum);
    sw_comm_sum_host(&sum);
    return SW_OK;
}

sw_status sw_comm_finish_round(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number) {
    const struct part own = part_of(phase, number / part_rounds(phase), phase->members->rank);
    if (own.units == 0 || phase->kind == SW_PHASE_EXCHANGE || number % part_rounds(phase) > 0)
        return SW_OK;
    if (phase->kind == SW_PHASE_REDUCE)
        return phase->by_library ? SW_OK : sum_part(comm, phase, number, own);
    return phase->own != NULL ? copy_part(comm, phase, own) : SW_OK;
}
