/* The comparison of NCCL's collectives, over a comm that does what each collective should, or is wrong in one: the
 * refusal names it. The comm's functions are those below, in the place of core's. */
#include "job/machine/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

enum { RANK = 1, RANKS = 3, VALUES = 7, STAGING_BYTES = 4096 };
typedef enum { RIGHT, WRONG_GATHER, WRONG_REDUCE, WRONG_BROADCAST } mistake;
static mistake planted;

int sw_ranks_rank(const struct sw_ranks *ranks) {
    (void)ranks;
    return RANK;
}

int sw_ranks_count(const struct sw_ranks *ranks) {
    (void)ranks;
    return RANKS;
}

sw_status sw_ranks_agree_on_error(struct sw_ranks *ranks, sw_status own) {
    (void)ranks;
    return own;
}

int64_t sw_comm_least_staging_bytes(int ranks) {
    (void)ranks;
    return STAGING_BYTES;
}

sw_status sw_comm_use_staging(struct sw_comm *comm, void *staging, int64_t bytes) {
    (void)comm;
    assert_non_null(staging);
    assert_int_equal(bytes, STAGING_BYTES);
    return SW_OK;
}

sw_status sw_comm_wait(struct sw_comm_request *request) {
    (void)request;
    return SW_OK;
}

/* Returns a rank's contribution to an element. */
static float value_of(int rank, int64_t i) {
    return (float)((rank + 1) * (1 + i % VALUES));
}

sw_status sw_comm_all_gather(struct sw_comm *comm, const struct sw_comm_gather *gather, struct sw_comm_request **out) {
    float *data = gather->data;
    (void)comm;
    *out = NULL;
    for (int rank = 0; rank < RANKS; rank++)
        for (int64_t i = gather->bounds_bytes[rank] / 4; i < gather->bounds_bytes[rank + 1] / 4; i++) {
            if (rank == RANK)
                assert_true(data[i] == value_of(rank, i));
            data[i] = value_of(rank, i);
        }
    if (planted == WRONG_GATHER)
        data[gather->bounds_bytes[RANKS] / 4 - 1] = 0.0f;
    return SW_OK;
}

sw_status sw_comm_reduce_scatter(struct sw_comm *comm, const struct sw_comm_reduce *reduce,
                                 struct sw_comm_request **out) {
    float *to = reduce->to;
    (void)comm;
    *out = NULL;
    for (int64_t i = reduce->bounds[RANK]; i < reduce->bounds[RANK + 1]; i++) {
        assert_true(((const float *)reduce->from)[i] == value_of(RANK, i));
        to[i - reduce->bounds[RANK]] = 0.0f;
        for (int rank = 0; rank < (planted == WRONG_REDUCE ? RANKS - 1 : RANKS); rank++)
            to[i - reduce->bounds[RANK]] += value_of(rank, i);
    }
    return SW_OK;
}

sw_status sw_comm_broadcast(struct sw_comm *comm, const struct sw_comm_broadcast *broadcast,
                            struct sw_comm_request **out) {
    float *data = broadcast->data;
    (void)comm;
    *out = NULL;
    for (int64_t i = 0; i < broadcast->bytes / 4; i++)
        data[i] = value_of(planted == WRONG_BROADCAST ? 0 : broadcast->root, i);
    return SW_OK;
}

static void each_mistake_is_named(void **state) {
    (void)state;
    static const char *const names[] = {
        [WRONG_GATHER] = "all-gather", [WRONG_REDUCE] = "reduce-scatter", [WRONG_BROADCAST] = "broadcast"};
    struct sw_devices devices = {0};
    struct sw_ranks ranks = {0};
    assert_int_equal(sw_device_open("cpu", 1, &devices.compute), SW_OK);
    assert_int_equal(sw_stream_open(devices.compute, &ranks.gpu.stream), SW_OK);
    for (planted = RIGHT; planted <= WRONG_BROADCAST; planted++) {
        const sw_status status = sw_ranks_check_gpu(&ranks, &devices);
        if (planted == RIGHT) {
            assert_int_equal(status, SW_OK);
            continue;
        }
        assert_int_equal(status, SW_ERR_DEVICE);
        assert_non_null(strstr(sw_error_message(status), names[planted]));
        assert_non_null(strstr(sw_error_message(status), "wrong results"));
        sw_error_clear();
    }
    sw_stream_close(ranks.gpu.stream);
    sw_device_close(devices.compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_mistake_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
