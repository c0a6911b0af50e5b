/* Jobs that end badly: what the watch says is printed by the rank that is asked to, and ends the process. */
#include "core/clock.h"
#include "core/ranks/watch.h"
#include "core/size.h"
#include "tests/core/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ELEMS = 50000, COMPUTE = 1, MOST_RANKS = 16 };

static void ended(void *context, const char *text, bool print) {
    (void)context;
    if (print)
        dprintf(STDERR_FILENO, "verdict: %s\n", text);
    _exit(1);
}

static struct sw_watch *open_watch(struct sw_comm *comm, int64_t timeout_ms) {
    static const char *const lanes[] = {"compute"};
    struct sw_watch *watch = NULL;
    /* As the program does, which ends a step before it obeys; so the launcher cannot be faster than the message. */
    signal(SIGTERM, SIG_IGN);
    const struct sw_watch_spec spec = {
        .rank_timeout_ns = timeout_ms * 1000000, .lanes = lanes, .lane_count = 1, .ended = ended};
    RANKS_REQUIRE(sw_watch_open(comm, &spec, &watch) == SW_OK, "watch");
    dprintf(STDOUT_FILENO, "rank %d is process %d\n", sw_comm_identity(comm)->rank, (int)getpid());
    return watch;
}

static void *give_staging(struct sw_comm *comm) {
    const int64_t bytes = sw_comm_least_staging_bytes(sw_comm_identity(comm)->ranks) * 16;
    void *staging = malloc((size_t)bytes);
    RANKS_REQUIRE(staging != NULL && sw_comm_use_staging(comm, staging, bytes) == SW_OK, "staging");
    return staging;
}

static void compute(struct sw_watch *watch, int64_t index, int64_t ns) {
    sw_watch_enter(watch, COMPUTE, "forward", index);
    for (const int64_t until_ns = sw_now_ns() + ns; sw_now_ns() < until_ns;)
        usleep(100);
    sw_watch_leave(watch, COMPUTE);
}

/* An error here means that the watch knows; it ends the process. */
static void wait_for_the_end(sw_status status) {
    if (status == SW_OK)
        return;
    sleep(20);
    dprintf(STDERR_FILENO, "nothing has ended this rank: %s\n", sw_error_message(status));
    _exit(2);
}

/* Sums a vector of ELEMS over the ranks, each of which gets its share in place. */
static sw_status reduce(struct sw_comm *comm, float *data, int64_t index) {
    const struct sw_comm_identity *self = sw_comm_identity(comm);
    int64_t bounds[MOST_RANKS + 1];
    struct sw_comm_request *request;
    RANKS_REQUIRE(self->ranks <= MOST_RANKS, "ranks");
    sw_comm_even_bounds(ELEMS, 1, self->ranks, bounds);
    SW_TRY(sw_comm_reduce_scatter(
        comm,
        &(struct sw_comm_reduce){
            .what = "gradients", .index = index, .from = data, .bounds = bounds, .to = data + bounds[self->rank]},
        &request));
    return sw_comm_wait(request);
}

void ranks_go_on(struct sw_comm *comm, int64_t timeout_ms, int failing_rank, int failing_after) {
    static float data[ELEMS];
    (void)give_staging(comm);
    struct sw_watch *watch = open_watch(comm, timeout_ms);
    for (int64_t i = 0;; i++) {
        if (sw_comm_identity(comm)->rank == failing_rank && i == failing_after) {
            if (!sw_watch_fail(watch, "the drive is full"))
                dprintf(STDERR_FILENO, "nobody has heard of the failure\n");
            sleep(20);
        }
        compute(watch, i, 1000000);
        wait_for_the_end(reduce(comm, data, i));
    }
}

/* Before there is a watch. One of those that wait speaks. */
static void stop_early(struct sw_comm *comm, int64_t timeout_ms, bool hangs) {
    sw_comm_set_timeout(comm, timeout_ms * 1000000);
    signal(SIGTERM, SIG_IGN);
    if (hangs)
        raise(SIGSTOP);
    const sw_status status = sw_comm_barrier(comm, "first words");
    if (status != SW_OK && sw_comm_identity(comm)->rank == (sw_comm_absent(comm) == 0))
        dprintf(STDERR_FILENO, "verdict: %s\n", sw_error_message(status));
    else
        sleep(1);
    _exit(1);
}

void ranks_break_a_group(struct sw_comm *comm, bool library_sums) {
    static float data[ELEMS];
    const int rank = sw_comm_identity(comm)->rank;
    (void)give_staging(comm);
    sw_comm_use_library_reduction(comm, library_sums);
    setenv("SW_EMULATED_NCCL_FAILS", library_sums ? "ncclReduce" : "ncclSend", 1);
    const sw_status status = reduce(comm, data, 0);
    RANKS_REQUIRE(status == SW_ERR_DEVICE, "an error");
    const char *said = strstr(sw_error_message(status), library_sums ? "cannot reduce" : "cannot send");
    RANKS_REQUIRE(said != NULL, "the first error and not what ends the group");
    sw_comm_close(comm);
    dprintf(STDERR_FILENO, "rank %d has closed\n", rank);
    _exit(1);
}

void ranks_hang(struct sw_comm *comm, int64_t timeout_ms, int hanging_rank, const char *how) {
    static float data[ELEMS];
    if (strcmp(how, "early") == 0)
        stop_early(comm, timeout_ms, sw_comm_identity(comm)->rank == hanging_rank);
    void *staging = give_staging(comm);
    struct sw_watch *watch = open_watch(comm, timeout_ms);
    const bool hangs = sw_comm_identity(comm)->rank == hanging_rank;
    wait_for_the_end(reduce(comm, data, 1));
    if (hangs && strcmp(how, "sleeps") == 0) {
        sw_watch_enter(watch, COMPUTE, "backward", 5);
        sleep(20);
    }
    /* Long, but with signs of progress: nothing is wrong with that. */
    for (int i = 0; hangs && strcmp(how, "works") == 0 && i < 8; i++)
        compute(watch, i, timeout_ms * 1000000 / 4);
    if (hangs && strcmp(how, "leaves") == 0) {
        sw_watch_close(watch);
        sleep(20);
    }
    wait_for_the_end(reduce(comm, data, 2));
    RANKS_REQUIRE(sw_comm_barrier(comm, "all came") == SW_OK, "barrier");
    sw_watch_close(watch);
    free(staging);
}

void ranks_abandon(struct sw_comm *comm, int failing_rank, const char *how) {
    enum { FAILS_AFTER = 3 };
    const int rank = sw_comm_identity(comm)->rank;
    const bool all = strcmp(how, "all") == 0, fails = all || rank == failing_rank;
    void *staging = give_staging(comm);
    float *data = calloc(ELEMS, sizeof *data);
    sw_status status = data != NULL ? SW_OK : SW_ERR_NOMEM;
    for (int64_t i = 0; status == SW_OK && !(fails && i == FAILS_AFTER); i++)
        status = reduce(comm, data, i);
    if (fails && status == SW_OK && strcmp(how, "leaves") != 0 && sw_comm_abandon(comm, "the drive is full"))
        printf("rank %d failed first\n", rank);
    if (status != SW_OK) {
        RANKS_REQUIRE(strcmp(how, "leaves") == 0 || !sw_comm_abandon(comm, "late"), "it is not the first");
        printf("rank %d: %s\n", rank, sw_error_message(status));
    }
    /* No other rank may still copy from or to this memory. */
    free(data);
    free(staging);
    if (strcmp(how, "leaves") != 0 || !fails)
        sw_comm_close(comm);
}

/* Gathers a number of each rank of a scope. */
static sw_status gather(struct sw_comm *comm, const char *what, sw_comm_scope scope, int64_t index) {
    int64_t numbers[MOST_RANKS] = {0}, bounds[MOST_RANKS + 1];
    for (int number = 0; number <= sw_comm_scope_ranks(comm, scope); number++)
        bounds[number] = number * (int64_t)sizeof *numbers;
    struct sw_comm_request *request;
    SW_TRY(sw_comm_all_gather(
        comm,
        &(struct sw_comm_gather){.what = what, .index = index, .data = numbers, .bounds_bytes = bounds, .scope = scope},
        &request));
    return sw_comm_wait(request);
}

void ranks_hang_in_group(struct sw_comm *comm, int64_t timeout_ms, int hanging_rank, const char *how, bool of_tensor) {
    const sw_comm_scope near = of_tensor ? SW_SCOPE_TENSOR : SW_SCOPE_NODE;
    const sw_comm_scope far = of_tensor ? SW_SCOPE_DATA : SW_SCOPE_ACROSS;
    const int rank = sw_comm_identity(comm)->rank;
    struct sw_watch *watch = NULL;
    if (of_tensor)
        sw_comm_set_groups(comm, 2, 1);
    else
        sw_comm_set_node_ranks(comm, 2);
    if (strcmp(how, "early") == 0) {
        sw_comm_set_timeout(comm, timeout_ms * 1000000);
        signal(SIGTERM, SIG_IGN);
        if (rank == hanging_rank)
            raise(SIGSTOP);
        const sw_status status = gather(comm, "part", near, 1);
        if (status != SW_OK)
            dprintf(STDERR_FILENO, "verdict: %s\n", sw_error_message(status));
        else
            sleep(20);
        _exit(1);
    }
    watch = open_watch(comm, timeout_ms);
    wait_for_the_end(gather(comm, "part", near, 1));
    if (rank == hanging_rank) {
        sw_watch_enter(watch, COMPUTE, "backward", 5);
        sleep(20);
    }
    wait_for_the_end(gather(comm, "part", near, 2));
    wait_for_the_end(gather(comm, "across", far, 3));
    sw_watch_close(watch);
}
