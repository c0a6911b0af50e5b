/* A GPU whose memory is the host's and whose stream is done a little later than it is asked. */
#include "core/ranks/comm_private.h"
#include "tests/core/ranks.h"

#include <string.h>

static int times_asked[SW_COMM_REQUESTS];

static sw_status enter(void *context) {
    (void)context;
    return SW_OK;
}

static sw_status sum(void *context, const struct sw_comm_sum *sum) {
    (void)context;
    sw_comm_sum_host(sum);
    return SW_OK;
}

static sw_status copy(void *context, void *to, const void *from, int64_t bytes) {
    (void)context;
    memcpy(to, from, (size_t)bytes);
    return SW_OK;
}

static sw_status mark(void *context, int number) {
    (void)context;
    times_asked[number] = 0;
    return SW_OK;
}

static sw_status reached(void *context, int number, bool *out_reached) {
    (void)context;
    *out_reached = ++times_asked[number] > 2;
    return SW_OK;
}

void ranks_use_emulated_gpu(struct sw_comm *comm) {
    const struct sw_comm_device device = {.enter = enter, .sum = sum, .copy = copy, .mark = mark, .reached = reached};
    RANKS_REQUIRE(sw_comm_use_nccl(comm, &device) == SW_OK, "NCCL");
    RANKS_REQUIRE(sw_comm_transport_name(comm)[0] == 'N', "the transport is %s", sw_comm_transport_name(comm));
}
