#include "job/machine/ranks.h"

#include "core/machine.h"
#include "core/size.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct sw_comm_identity alone = {.ranks = 1, .local_ranks = 1, .nodes = 1};

static const struct sw_comm_identity *place_of(const struct sw_ranks *ranks) {
    return ranks != NULL ? sw_comm_identity(ranks->comm) : &alone;
}

int sw_ranks_count(const struct sw_ranks *ranks) {
    return place_of(ranks)->ranks;
}

int sw_ranks_rank(const struct sw_ranks *ranks) {
    return place_of(ranks)->rank;
}

int sw_ranks_local_rank(const struct sw_ranks *ranks) {
    return place_of(ranks)->local_rank;
}

int sw_ranks_local_count(const struct sw_ranks *ranks) {
    return place_of(ranks)->local_ranks;
}

struct sw_comm *sw_ranks_comm(const struct sw_ranks *ranks) {
    return sw_ranks_count(ranks) > 1 ? ranks->comm : NULL;
}

struct sw_watch *sw_ranks_watch(const struct sw_ranks *ranks) {
    return ranks != NULL ? ranks->watch : NULL;
}

/* The status with which a rank ended a part of the start. */
struct outcome {
    int64_t status;
    char message[SW_WATCH_TEXT_CHARS];
};

static bool failed_alike(const struct outcome *outcomes, int count) {
    for (int rank = 1; rank < count; rank++)
        if (memcmp(&outcomes[rank], &outcomes[0], sizeof *outcomes) != 0)
            return false;
    return true;
}

/* Returns the error of the first rank that failed. The message names that rank, unless all ranks have the same error.
 */
static sw_status judge(const struct outcome *outcomes, int count) {
    int first = 0;
    while (first < count && outcomes[first].status == SW_OK)
        first++;
    if (first == count)
        return SW_OK;
    sw_error_clear();
    const struct outcome *outcome = &outcomes[first];
    return failed_alike(outcomes, count) ? sw_fail((sw_status)outcome->status, "%s", outcome->message)
                                         : sw_fail((sw_status)outcome->status, "rank %d: %s", first, outcome->message);
}

sw_status sw_ranks_agree_on_error(struct sw_ranks *ranks, sw_status own) {
    const int count = sw_ranks_count(ranks);
    if (count == 1)
        return own;
    struct outcome *outcomes = calloc((size_t)count, sizeof *outcomes);
    if (outcomes == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to hear of %d ranks", count);
    struct outcome *mine = &outcomes[sw_ranks_rank(ranks)];
    mine->status = own;
    if (own != SW_OK)
        snprintf(mine->message, sizeof mine->message, "%s", sw_error_message(own));
    sw_status status = sw_comm_share_records(ranks->comm, "start", outcomes, sizeof *outcomes);
    if (status == SW_OK) {
        status = judge(outcomes, count);
        ranks->told = status != SW_OK;
    }
    free(outcomes);
    return own != SW_OK && !ranks->told ? own : status;
}

void sw_ranks_forget_error(struct sw_ranks *ranks) {
    if (ranks != NULL)
        ranks->told = false;
    sw_error_clear();
}

sw_status sw_ranks_agree(struct sw_ranks *ranks, const struct sw_comm_claim *claims, int count) {
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    const sw_status status = sw_comm_agree(ranks->comm, claims, count);
    ranks->told = status == SW_ERR_ARG;
    return status;
}

sw_status sw_ranks_least(struct sw_ranks *ranks, int64_t *values, int count) {
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    for (int i = 0; i < count; i++)
        values[i] = -values[i];
    const sw_status status = sw_comm_max(ranks->comm, "start", values, count);
    for (int i = 0; i < count; i++)
        values[i] = -values[i];
    return status;
}

sw_status sw_ranks_sum(struct sw_ranks *ranks, int64_t *value) {
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    /* A double holds these counts of tokens exactly. */
    double sum = (double)*value;
    SW_TRY(sw_comm_sum_doubles(ranks->comm, "counts", &sum, 1));
    *value = (int64_t)sum;
    return SW_OK;
}

/* Exchanges records in host memory. A broadcast would need the GPU's memory. */
sw_status sw_ranks_spread(struct sw_ranks *ranks, const char *what, void *data, int64_t bytes) {
    const int count = sw_ranks_count(ranks);
    if (count == 1)
        return SW_OK;
    char *records = calloc((size_t)count, (size_t)bytes);
    if (records == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the %s of %d ranks", what, count);
    memcpy(records + sw_ranks_rank(ranks) * bytes, data, (size_t)bytes);
    const sw_status status = sw_comm_share_records(ranks->comm, what, records, bytes);
    memcpy(data, records, (size_t)bytes);
    free(records);
    return status;
}

sw_status sw_ranks_collect(struct sw_ranks *ranks, const char *what, const void *own, int64_t bytes, void **out) {
    const int count = sw_ranks_count(ranks);
    char *all = calloc((size_t)count, (size_t)bytes);
    *out = NULL;
    sw_status status = sw_ranks_agree_on_error(
        ranks, all != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the %s of %d ranks", what, count));
    if (status == SW_OK && all != NULL) {
        memcpy(all + sw_ranks_rank(ranks) * bytes, own, (size_t)bytes);
        status = count > 1 ? sw_comm_share_records(ranks->comm, what, all, bytes) : SW_OK;
    }
    if (status == SW_OK)
        *out = all;
    else
        free(all);
    return status;
}

/* The cores that the launcher left to a rank. */
struct cores {
    cpu_set_t set;
    int64_t node;
    double quota;         /* in cores, of the tightest cgroup of the rank; INFINITY: none */
    uint64_t quota_inode; /* inode of the file that sets the quota: ranks with the same inode share it */
};

static struct cores own_cores(const struct sw_comm_identity *place) {
    struct cores own = {.node = place->node};
    struct sw_cpu_limit limit;
    struct stat setting;
    if (sched_getaffinity(0, sizeof own.set, &own.set) != 0)
        CPU_ZERO(&own.set);
    sw_cpu_limit_read("", &limit);
    own.quota = limit.cores;
    own.quota_inode = isfinite(limit.cores) && stat(limit.setting, &setting) == 0 ? setting.st_ino : 0;
    return own;
}

/* A launcher may bind ranks to separate cores, to the same cores, or not at all, and may put them into separate cgroups
 * or a common one. */
sw_status sw_ranks_cores(struct sw_ranks *ranks, int64_t *out) {
    const struct sw_comm_identity *place = place_of(ranks);
    *out = sw_machine_cores();
    if (place->ranks == 1)
        return SW_OK;
    const struct cores own = own_cores(place);
    void *records;
    SW_TRY(sw_ranks_collect(ranks, "cores", &own, sizeof own, &records));
    const struct cores *all = records;
    cpu_set_t together;
    int sharing = 0;
    CPU_ZERO(&together);
    for (int rank = 0; rank < place->ranks; rank++) {
        if (all[rank].node != place->node)
            continue;
        CPU_OR(&together, &together, &all[rank].set);
        sharing += all[rank].quota_inode == own.quota_inode;
    }
    free(records);
    const struct sw_cpu_limit share = {.cores = own.quota / sharing};
    *out = sw_min_i64(*out, sw_max_i64(1, CPU_COUNT(&together) / place->local_ranks));
    *out = sw_cpu_limit_cores(&share, (int)*out);
    return sw_ranks_least(ranks, out, 1);
}

void sw_ranks_keep_to_node(const struct sw_ranks *ranks, const char *gpu_bus) {
    const struct sw_comm_identity *place = place_of(ranks);
    const int near = sw_machine_node_of_bus(gpu_bus);
    if (place->local_ranks == 1)
        return;
    const int node = near >= 0 ? near : sw_machine_node_of_share(place->local_rank, place->local_ranks);
    if (node >= 0)
        sw_machine_keep_to_node(node);
}

sw_status sw_ranks_begin_watch(struct sw_ranks *ranks, int64_t rank_timeout_s) {
    const char *lanes[SW_RANKS_LANE];
    static_assert((int)SW_RANKS_LANE < (int)SW_WATCH_LANES, "the watch has room for all lanes");
    const int64_t timeout_ns = rank_timeout_s * INT64_C(1000000000);
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    if (ranks->watch != NULL) {
        sw_watch_set_timeout(ranks->watch, timeout_ns);
        return SW_OK;
    }
    for (int lane = 0; lane < SW_LANES; lane++)
        lanes[lane] = sw_lane_name((sw_lane)lane);
    lanes[SW_RANKS_LANE - 1] = "program";
    const struct sw_watch_spec spec = {.rank_timeout_ns = timeout_ns,
                                       .remedy = "give a longer --rank-timeout",
                                       .lanes = lanes,
                                       .lane_count = SW_RANKS_LANE,
                                       .ended = ranks->ended,
                                       .context = ranks};
    SW_TRY(sw_watch_open(ranks->comm, &spec, &ranks->watch));
    sw_ranks_relax_timeout(ranks, true);
    return SW_OK;
}

void sw_ranks_relax_timeout(struct sw_ranks *ranks, bool relaxed) {
    sw_watch_relax_timeout(sw_ranks_watch(ranks), relaxed);
}

void sw_ranks_enter(struct sw_ranks *ranks, const char *what, int64_t index) {
    sw_watch_enter(sw_ranks_watch(ranks), SW_RANKS_LANE, what, index);
}

void sw_ranks_tick(struct sw_ranks *ranks) {
    sw_watch_tick(sw_ranks_watch(ranks), SW_RANKS_LANE);
}

void sw_ranks_leave(struct sw_ranks *ranks) {
    sw_watch_leave(sw_ranks_watch(ranks), SW_RANKS_LANE);
}

void sw_ranks_keep(struct sw_ranks *ranks) {
    if (ranks != NULL)
        ranks->keeps = true;
}
