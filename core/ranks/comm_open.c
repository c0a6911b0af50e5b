/* Who is who: whether a launcher started this process, its rank, and its machine among those of the job. */
#include "core/log.h"
#include "core/machine.h"
#include "core/ranks/comm.h"
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* The transport of a single process: its rounds have no messages. */

static sw_status post(void *state, int group, int64_t sequence, const struct sw_comm_round *round) {
    (void)state, (void)group, (void)sequence;
    assert(round->send_count == 0 && round->receive_count == 0);
    return SW_OK;
}

static sw_status done(void *state, int group, bool *out_done) {
    (void)state, (void)group;
    *out_done = true;
    return SW_OK;
}

static void close_self(void *state, bool orderly) {
    (void)state, (void)orderly;
}

/* The transport of a single process. It has no state. */
static const struct sw_comm_transport self = {
    .name = "self", .most_message_bytes = SW_GIB, .post = post, .done = done, .close = close_self};

#ifndef SW_HAVE_MPI
/* Refuses several ranks in a program that was built without MPI. */
sw_status sw_comm_mpi_open(int *out_rank, int *out_ranks, const struct sw_comm_transport **out, void **out_state) {
    (void)out_rank, (void)out_ranks, (void)out, (void)out_state;
    return sw_fail(SW_ERR_UNSUPPORTED, "this is one of several ranks, and spillway was built without MPI; install it "
                                       "(Debian: libopenmpi-dev) and build again, or start one process");
}
#endif

/* Checks, before the ranks begin, the values that must be equal on all ranks and those that must differ. */

enum { SHOWN_CHARS = 160, NAMED_RANKS = 8 };

struct record {
    XXH128_hash_t digest;
    int64_t has; /* 1: the rank states a value; 0: it has none */
    char shown[SHOWN_CHARS];
};

static struct record record_of(const struct sw_comm_claim *claim) {
    struct record record = {.has = claim->value != NULL};
    if (claim->value != NULL)
        record.digest = XXH3_128bits(claim->value, (size_t)claim->bytes);
    snprintf(record.shown, sizeof record.shown, "%s", claim->shown != NULL ? claim->shown : "");
    return record;
}

static bool equal(const struct record *a, const struct record *b) {
    return a->has == b->has && XXH128_isEqual(a->digest, b->digest);
}

/* All ranks' records of one claim. */
struct statements {
    const struct record *first; /* rank 0's */
    int ranks, stride;          /* records from one rank's to the next one's */
};

static const struct record *of_rank(const struct statements *all, int rank) {
    return &all->first[(ptrdiff_t)rank * all->stride];
}

/* Names the ranks whose record is (alike) or is not that of `model`: "ranks 1, 3 and 4". Returns how many there are. */
static int name_ranks(const struct statements *all, int model, bool alike, char *out, size_t chars) {
    int found[NAMED_RANKS], count = 0;
    for (int rank = 0; rank < all->ranks; rank++)
        if (equal(of_rank(all, rank), of_rank(all, model)) == alike) {
            if (count < NAMED_RANKS)
                found[count] = rank;
            count++;
        }
    const int named = count < NAMED_RANKS ? count : NAMED_RANKS;
    size_t used = (size_t)snprintf(out, chars, "%s", count == 1 ? "rank" : "ranks");
    for (int i = 0; i < named; i++)
        used += (size_t)snprintf(out + used, chars - used, "%s %d",
                                 i == 0                             ? ""
                                 : i == named - 1 && count == named ? " and"
                                                                    : ",",
                                 found[i]);
    if (count > named)
        snprintf(out + used, chars - used, " and %d more", count - named);
    return count;
}

static sw_status judge_equal(const struct sw_comm_claim *claim, const struct statements *all) {
    char names[256];
    const int others = name_ranks(all, 0, false, names, sizeof names);
    if (others == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s %s another %s than rank 0; %s", names, others == 1 ? "has" : "have", claim->what,
                   claim->remedy);
}

static sw_status judge_distinct(const struct sw_comm_claim *claim, const struct statements *all) {
    char names[256];
    for (int rank = 0; rank < all->ranks; rank++) {
        const char *shown = of_rank(all, rank)->shown;
        if (of_rank(all, rank)->has && name_ranks(all, rank, true, names, sizeof names) > 1)
            return sw_fail(SW_ERR_ARG, "%s have the same %s%s%s; %s", names, claim->what, shown[0] != '\0' ? " " : "",
                           shown, claim->remedy);
    }
    return SW_OK;
}

sw_status sw_comm_agree(struct sw_comm *comm, const struct sw_comm_claim *claims, int count) {
    const struct sw_comm_identity *identity = sw_comm_identity(comm);
    struct record *records = calloc((size_t)identity->ranks * (size_t)count, sizeof *records);
    if (records == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the claims of %d ranks", identity->ranks);
    for (int i = 0; i < count; i++)
        records[(ptrdiff_t)identity->rank * count + i] = record_of(&claims[i]);
    sw_status status = sw_comm_share_records(comm, "claims", records, count * (int64_t)sizeof *records);
    for (int i = 0; status == SW_OK && i < count; i++) {
        const struct statements all = {.first = &records[i], .ranks = identity->ranks, .stride = count};
        status = claims[i].kind == SW_CLAIM_EQUAL ? judge_equal(&claims[i], &all) : judge_distinct(&claims[i], &all);
    }
    free(records);
    return status;
}

sw_status sw_comm_program_digest(unsigned char out[SW_COMM_DIGEST_BYTES]) {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat about;
    void *bytes = MAP_FAILED;
    if (file >= 0 && fstat(file, &about) == 0 && about.st_size > 0)
        bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    if (file >= 0)
        close(file);
    if (bytes == MAP_FAILED)
        return sw_fail(SW_ERR_IO, "the program cannot read itself to compare it with other ranks' (/proc/self/exe): %s",
                       strerror(error));
    XXH128_canonical_t digest;
    static_assert(sizeof digest == SW_COMM_DIGEST_BYTES, "a digest's bytes");
    XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, (size_t)about.st_size));
    memcpy(out, &digest, sizeof digest);
    munmap(bytes, (size_t)about.st_size);
    return SW_OK;
}

#define FIRST_TIMEOUT_NS INT64_C(60000000000)

/* The environment variables in which launchers tell a process the number of ranks. */
static const char *const size_variables[] = {
    "OMPI_COMM_WORLD_SIZE", /* Open MPI's mpirun */
    "PMI_SIZE",             /* MPICH's and Intel's, and srun --mpi=pmi2 */
    "SLURM_STEP_NUM_TASKS", /* srun; not set in a batch script's own shell */
    "MV2_COMM_WORLD_SIZE",  /* MVAPICH2 */
};

static int launched_ranks(void) {
    for (size_t i = 0; i < sizeof size_variables / sizeof size_variables[0]; i++) {
        const char *text = getenv(size_variables[i]);
        const long ranks = text != NULL ? strtol(text, NULL, 10) : 0;
        if (ranks > 1 && ranks <= INT32_MAX)
            return (int)ranks;
    }
    return 1;
}

/* CUDA loads a kernel at its first launch and may then wait for all running kernels, while an NCCL kernel among them
 * waits for another rank. CUDA's guide advises to load all at the start. CUDA reads this variable when it initialises,
 * which MPI may trigger; the user's own setting stays. */
static void load_kernels_early(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static sw_status open_transport(struct sw_comm *comm) {
    struct sw_comm_identity *identity = &comm->identity;
    const bool threads = sw_comm_threads_open(&identity->rank, &identity->ranks, &comm->host, &comm->host_state);
    const int launched = threads ? identity->ranks : launched_ranks();
    if (!threads) {
        identity->ranks = 1;
        comm->host = &self;
    }
    if (launched > 1 && !threads) {
        load_kernels_early();
        SW_TRY(sw_comm_mpi_open(&identity->rank, &identity->ranks, &comm->host, &comm->host_state));
        if (identity->ranks != launched)
            return sw_fail(SW_ERR_ARG,
                           "the launcher started %d ranks and MPI knows of %d; use the mpirun of the MPI that spillway "
                           "was built with, or srun with --mpi=pmix",
                           launched, identity->ranks);
    }
    comm->bulk = comm->host;
    comm->bulk_state = comm->host_state;
    return SW_OK;
}

/* Allocates arrays with one entry per rank. Counters for each pair of ranks would not scale. */
static sw_status take_memory(struct sw_comm *comm) {
    const size_t ranks = (size_t)comm->identity.ranks;
    comm->messages = calloc((size_t)SW_COMM_GROUPS * 2 * ranks, sizeof *comm->messages);
    comm->bounds = calloc(SW_COMM_REQUESTS * (ranks + 1), sizeof *comm->bounds);
    comm->records = calloc(ranks * SW_COMM_VALUES, sizeof *comm->records);
    comm->machine_of = calloc((2 + SW_SCOPES) * ranks, sizeof *comm->machine_of);
    if (comm->messages == NULL || comm->bounds == NULL || comm->records == NULL || comm->machine_of == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the requests of %zu ranks", ranks);
    for (int group = 0; group < SW_COMM_GROUPS; group++) {
        comm->rounds[group].sends = comm->messages + (size_t)group * 2 * ranks;
        comm->rounds[group].receives = comm->rounds[group].sends + ranks;
    }
    comm->node_of = comm->machine_of + ranks;
    for (size_t scope = 0; scope < SW_SCOPES; scope++)
        comm->scope[scope].rank_of = comm->node_of + (1 + scope) * ranks;
    for (size_t rank = 0; rank < ranks; rank++)
        comm->scope[SW_SCOPE_ALL].rank_of[rank] = (int)rank;
    comm->scope[SW_SCOPE_ALL].ranks = comm->identity.ranks;
    comm->scope[SW_SCOPE_ALL].rank = comm->identity.rank;
    for (size_t i = 0; i < SW_COMM_REQUESTS; i++)
        comm->requests[i] = (struct sw_comm_request){.comm = comm, .bounds = comm->bounds + i * (ranks + 1)};
    return SW_OK;
}

/* Finds which ranks share a machine, by the identity that its kernel got at boot: containers of one machine are one
 * machine, hosts of one name are not. */
static sw_status find_machines(struct sw_comm *comm) {
    struct machine {
        char boot[SW_COMM_NAME_CHARS];
    };
    struct sw_comm_identity *identity = &comm->identity;
    struct machine *all = calloc((size_t)identity->ranks, sizeof *all);
    if (all == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the names of %d ranks' machines", identity->ranks);
    char *own = all[identity->rank].boot;
    if (gethostname(identity->host, sizeof identity->host - 1) != 0)
        snprintf(identity->host, sizeof identity->host, "unknown");
    if (!sw_system_line("", own, sizeof all->boot, "/proc/sys/kernel/random/boot_id"))
        snprintf(own, sizeof all->boot, "%s", identity->host);
    const sw_status status = sw_comm_share_records(comm, "names of machines", all, sizeof *all);
    for (int rank = 0; status == SW_OK && rank < identity->ranks; rank++) {
        int first = 0;
        while (memcmp(&all[first], &all[rank], sizeof *all) != 0)
            first++;
        const bool same = memcmp(&all[rank], &all[identity->rank], sizeof *all) == 0;
        identity->local_ranks += same;
        identity->local_rank += same && rank < identity->rank;
        comm->machine_of[rank] = first == rank ? identity->nodes : comm->machine_of[first];
        identity->nodes += first == rank;
    }
    if (status == SW_OK) {
        identity->node = comm->machine_of[identity->rank];
        sw_comm_set_node_ranks(comm, 0);
        comm->tensor_ranks = comm->expert_ranks = 1;
        sw_comm_set_stages(comm, 1);
    }
    free(all);
    return status;
}

/* caller: NULL for a launcher's ranks, threads, or a rank alone. */
static sw_status open_over(struct sw_comm *comm, const struct sw_comm_caller *caller) {
    comm->absent = -1;
    comm->timeout_ns = FIRST_TIMEOUT_NS;
    if (caller == NULL) {
        SW_TRY(open_transport(comm));
    } else {
        comm->identity.rank = caller->rank;
        comm->identity.ranks = caller->ranks;
        SW_TRY(sw_comm_caller_open(caller, &comm->host, &comm->host_state));
        comm->bulk = comm->host;
        comm->bulk_state = comm->host_state;
    }
    SW_TRY(take_memory(comm));
    return find_machines(comm);
}

static sw_status open_comm(const struct sw_comm_caller *caller, struct sw_comm **out) {
    struct sw_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the ranks' requests");
    const sw_status status = open_over(comm, caller);
    if (status == SW_OK) {
        *out = comm;
    } else {
        comm->failed = status;
        sw_comm_close(comm);
    }
    return status;
}

sw_status sw_comm_open(struct sw_comm **out) {
    SW_TRY(open_comm(NULL, out));
    sw_log_set_rank((*out)->identity.rank);
    return SW_OK;
}

/* A gather over several machines would have two levels, whose rounds are not gathers over all ranks. */
sw_status sw_comm_open_caller(const struct sw_comm_caller *caller, struct sw_comm **out) {
    SW_TRY(open_comm(caller, out));
    sw_comm_set_node_ranks(*out, caller->ranks);
    return SW_OK;
}

void sw_comm_close(struct sw_comm *comm) {
    if (comm == NULL)
        return;
    const bool orderly = comm->failed == SW_OK;
    assert(!orderly || comm->given == comm->begun);
    if (comm->bulk != comm->host && comm->bulk != NULL)
        comm->bulk->close(comm->bulk_state, orderly);
    if (comm->host != NULL)
        comm->host->close(comm->host_state, orderly);
    free(comm->messages);
    free(comm->bounds);
    free(comm->records);
    free(comm->machine_of);
    free(comm);
}

/* Uses the smallest staging of all ranks, because rounds must be equal on all. */
sw_status sw_comm_use_staging(struct sw_comm *comm, void *staging, int64_t bytes) {
    assert(comm->given == comm->begun && bytes >= sw_comm_least_staging_bytes(comm->identity.ranks));
    int64_t least = -bytes;
    SW_TRY(sw_comm_max(comm, "staging", &least, 1));
    comm->staging = staging;
    comm->staging_bytes = -least;
    return SW_OK;
}

void sw_comm_use_library_reduction(struct sw_comm *comm, bool use) {
    assert(comm->given == comm->begun);
    comm->library_sums = use;
}

sw_status sw_comm_use_nccl(struct sw_comm *comm, const struct sw_comm_device *device) {
    assert(comm->bulk == comm->host && comm->given == comm->begun);
    struct {
        int64_t begins;
        char id[SW_COMM_NCCL_ID_BYTES];
    } first = {0};
    char message[512];
    const sw_status own = comm->identity.rank == 0 ? sw_comm_nccl_id(first.id) : SW_OK;
    snprintf(message, sizeof message, "%s", own == SW_OK ? "" : sw_error_message(own));
    first.begins = own == SW_OK;
    sw_error_clear();
    struct sw_comm_request *request;
    SW_TRY(sw_comm_broadcast(
        comm, &(struct sw_comm_broadcast){.what = "NCCL's name", .data = &first, .bytes = sizeof first}, &request));
    SW_TRY(sw_comm_wait(request));
    if (!first.begins)
        return sw_fail(own != SW_OK ? own : SW_ERR_UNSUPPORTED, "%s",
                       own != SW_OK ? message : "rank 0 cannot use NCCL");
    SW_TRY(sw_comm_nccl_open(first.id, comm->identity.rank, comm->identity.ranks, device->stream, &comm->bulk,
                             &comm->bulk_state));
    comm->device = *device;
    comm->staging = NULL;
    comm->staging_bytes = 0;
    return SW_OK;
}
