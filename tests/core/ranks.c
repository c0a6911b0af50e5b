/* A rank of a test job, or with `threads N` in front all N of them as threads. The arguments say which test; rank 0
 * prints "ok" at the end of one that passed. */
#include "tests/core/ranks.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CLAIMS = 8, CLAIM_CHARS = 128, MOST_THREADS = 64 };

static void require(sw_status status) {
    if (status == SW_OK)
        return;
    fprintf(stderr, "%s\n", sw_error_message(status));
    exit(1);
}

/* Each argument is a claim "equal:what:value" or "distinct:what:value", of the rank named before it ("2=...") or all. A
 * rank states its last claim between two that all ranks have alike. */
static sw_status agree(struct sw_comm *comm, int count, const char *const *arguments) {
    struct sw_comm_claim claim = {.remedy = "start them alike"};
    char copy[MOST_CLAIMS][CLAIM_CHARS];
    RANKS_REQUIRE(count <= MOST_CLAIMS, "claims");
    for (int i = 0; i < count; i++) {
        snprintf(copy[i], sizeof copy[i], "%s", arguments[i]);
        char *text = copy[i], *colon = strchr(text, ':'), *second = strchr(colon + 1, ':');
        const char *equals = strchr(text, '=');
        if (equals != NULL && atoi(text) != sw_comm_identity(comm)->rank)
            continue;
        *colon = *second = '\0';
        claim.kind = strcmp(equals != NULL ? equals + 1 : text, "equal") == 0 ? SW_CLAIM_EQUAL : SW_CLAIM_DISTINCT;
        claim.what = colon + 1;
        claim.shown = claim.value = second[1] != '\0' ? second + 1 : NULL;
        claim.bytes = (int64_t)strlen(second + 1);
    }
    const struct sw_comm_claim first = {
        .what = "test", .remedy = "say so", .value = __func__, .bytes = sizeof __func__};
    const struct sw_comm_claim claims[] = {first, claim, first};
    const sw_status status = sw_comm_agree(comm, claims, sizeof claims / sizeof claims[0]);
    /* Every rank has the same message; all print it, so that the test can see that. */
    if (status != SW_OK)
        fprintf(stderr, "refused: %s\n", sw_error_message(status));
    sw_error_clear();
    return SW_OK;
}

struct arguments {
    int count;
    const char *const *word;
};

static void run(void *context, int number) {
    const struct arguments *arguments = context;
    const char *test = arguments->count > 0 ? arguments->word[0] : "";
    const char *const *rest = arguments->word + 1;
    const int given = arguments->count - 1;
    struct sw_comm *comm = NULL;
    (void)number;
    require(sw_comm_open(&comm));
    const struct sw_comm_identity *place = sw_comm_identity(comm);
    if (strncmp(test, "nccl_", strlen("nccl_")) == 0)
        ranks_use_emulated_gpu(comm);
    if (strstr(test, "nodes_of_2_") != NULL)
        sw_comm_set_node_ranks(comm, 2);
    if (strstr(test, "library_sums") != NULL && given == 2)
        ranks_check_library_sums(comm, strtoull(rest[0], NULL, 10), atoi(rest[1]));
    else if (strstr(test, "collectives") != NULL && given == 2)
        ranks_check_collectives(comm, strtoull(rest[0], NULL, 10), atoi(rest[1]));
    else if (strncmp(test, "nccl_broken_", strlen("nccl_broken_")) == 0)
        ranks_break_a_group(comm, strcmp(test, "nccl_broken_sums") == 0);
    else if (strcmp(test, "module_loading") == 0)
        fprintf(stderr, "%s\n", getenv("CUDA_MODULE_LOADING") != NULL ? getenv("CUDA_MODULE_LOADING") : "unset");
    else if (strstr(test, "scopes") != NULL && given == 2)
        ranks_check_scopes(comm, atoi(rest[0]), atoi(rest[1]));
    else if (strcmp(test, "large") == 0)
        ranks_check_large(comm);
    else if (strcmp(test, "values") == 0)
        ranks_check_values(comm);
    else if (strcmp(test, "agree") == 0)
        require(agree(comm, given, rest));
    else if (strcmp(test, "go_on") == 0 && given == 3)
        ranks_go_on(comm, atoll(rest[0]), atoi(rest[1]), atoi(rest[2]));
    else if (strcmp(test, "hang") == 0 && given == 3)
        ranks_hang(comm, atoll(rest[0]), atoi(rest[1]), rest[2]);
    else if (strcmp(test, "hang_in_node") == 0 && given == 3)
        ranks_hang_in_group(comm, atoll(rest[0]), atoi(rest[1]), rest[2], false);
    else if (strcmp(test, "hang_in_tensor_group") == 0 && given == 3)
        ranks_hang_in_group(comm, atoll(rest[0]), atoi(rest[1]), rest[2], true);
    else if (strcmp(test, "listeners") == 0 && given == 2)
        ranks_show_listeners(comm, atoi(rest[0]), atoi(rest[1]));
    else if (strcmp(test, "abandon") == 0 && given == 2)
        return ranks_abandon(comm, atoi(rest[0]), rest[1]);
    else if (strcmp(test, "log") == 0)
        sw_log_info("hello"), sw_log_warn("a stone on the way");
    else if (strcmp(test, "place") == 0)
        fprintf(stderr, "%d of %d, local %d of %d, node %d of %d, %s\n", place->rank, place->ranks, place->local_rank,
                place->local_ranks, place->node, place->nodes, sw_comm_transport_name(comm));
    else
        require(sw_fail(SW_ERR_ARG, "no test '%s' with %d arguments", test, given));
    require(sw_comm_barrier(comm, "the end"));
    if (place->rank == 0)
        puts("ok");
    sw_comm_close(comm);
}

int main(int argc, char **argv) {
    struct arguments arguments = {.count = argc - 1, .word = (const char *const *)argv + 1};
    if (argc < 3 || strcmp(argv[1], "threads") != 0) {
        run(&arguments, 0);
        return 0;
    }
    const int ranks = atoi(argv[2]);
    arguments.count -= 2;
    arguments.word += 2;
    if (ranks < 1 || ranks > MOST_THREADS)
        return 2;
    require(sw_comm_run_threads(ranks, run, &arguments));
    return 0;
}
