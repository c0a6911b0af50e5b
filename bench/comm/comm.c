/* Collectives of ranks, against plain sends and receives of the same bytes and copies within memory. Run by mpirun. */
#include "core/ranks/comm.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/size.h"
#include "offload/simulate/measure_comm.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef SW_HAVE_MPI
#include <mpi.h>
#endif

#ifdef SW_HAVE_MPI
static const bool has_mpi = true;
#else
static const bool has_mpi = false;
#endif
enum { PLAIN_RANKS = 64 }; /* the most ranks that exchange plainly */

/* Device memory through which reductions pass. */
#define STAGING_BYTES (16 * SW_MIB)
/* Two exchanges are far less than this apart. */
enum { RANK_TIMEOUT_S = 60 };

/* Rates count the bytes that a rank gives to the others. Those of memcpy, which all ranks run at once, count the bytes
 * copied. */
enum { GATHER, REDUCE, LIBRARY, PLAIN, MEMCPY, CONTENDERS };
static_assert((int)CONTENDERS <= (int)SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

#define ROW struct sw_bench_size_row
static const struct sw_bench_field fields[] = {
    {.name = "bytes", .heading = "", SW_AT(SW_FIELD_SIZE, bytes), .key = true},
    SW_RATE_FIELD("gather.bytes_per_s", "gather", GATHER, 2),
    SW_RATE_FIELD("reduce.bytes_per_s", "reduce", REDUCE, 2),
    SW_RATE_FIELD("library.bytes_per_s", "library", LIBRARY, 2),
    SW_RATE_FIELD("plain_bytes_per_s", "plain", PLAIN, 2),
    SW_RATE_FIELD("memcpy_bytes_per_s", "memcpy", MEMCPY, 2),
    SW_RATIO_FIELD("gather.of_memcpy", "gather to memcpy", GATHER, MEMCPY),
    SW_RATIO_FIELD("gather.of_plain", "to plain", GATHER, PLAIN),
    SW_RATIO_FIELD("reduce.of_memcpy", "reduce to memcpy", REDUCE, MEMCPY),
    SW_RATIO_FIELD("reduce.of_plain", "to plain", REDUCE, PLAIN),
    SW_RATIO_FIELD("library.of_memcpy", "library to memcpy", LIBRARY, MEMCPY),
    SW_RATIO_FIELD("library.of_plain", "to plain", LIBRARY, PLAIN),
};

struct comm_bench {
    const struct sw_bench_options *given;
    struct sw_comm *comm;
    const struct sw_comm_identity *identity;
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_comm_device gpu;
    struct sw_memory *staging, *from, *to;
    struct sw_measure_comm *measure;
    bool plain;                 /* plain sends are measured */
    double latency_s;           /* a gather of next to nothing takes this long */
    int64_t bytes, share_bytes; /* of the vector being measured, and of a rank's share of it */
    struct sw_bench_size_row *rows;
    int count;
};

static sw_status copy(void *context) {
    const struct comm_bench *bench = context;
    void *to = sw_memory_base(bench->to);
    const void *from = sw_memory_base(bench->from);
    if (sw_device_info(bench->device).host_memory) {
        memcpy(to, from, (size_t)bench->bytes);
        return SW_OK;
    }
    SW_TRY(sw_copy_on_device(bench->stream, to, from, bench->bytes));
    return sw_stream_synchronize(bench->stream);
}

/* Gathers by MPI's own sends and receives, as a program would write it that has nothing else: the limit of the
 * transport. Each rank receives the others' shares in the order of the ranks. */
static sw_status exchange(void *context) {
#ifdef SW_HAVE_MPI
    const struct comm_bench *bench = context;
    const char *own = sw_memory_base(bench->from);
    char *all = sw_memory_base(bench->to);
    const int64_t share_bytes = bench->share_bytes;
    const int rank = bench->identity->rank, ranks = bench->identity->ranks;
    MPI_Request requests[2 * PLAIN_RANKS];
    int count = 0;
    assert(ranks <= PLAIN_RANKS && share_bytes <= INT32_MAX);
    for (int distance = 1; distance < ranks; distance++) {
        const int to = (rank + distance) % ranks, from = (rank + ranks - distance) % ranks;
        MPI_Irecv(all + from * share_bytes, (int)share_bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(own, (int)share_bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests[count++]);
    }
    /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): the loop has begun them */
    const int code = MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS ? SW_OK : sw_fail(SW_ERR_IO, "MPI cannot send and receive %d shares", ranks);
#else
    (void)context;
    return sw_fail(SW_ERR_UNSUPPORTED, "this program was built without MPI");
#endif
}

static sw_status rate_of(struct comm_bench *bench, sw_status (*run)(void *context), int64_t given_bytes, double *out) {
    struct sw_together together;
    SW_TRY(sw_measure_together(bench->comm, run, bench, sw_measure_comm_times(bench->bytes), &together));
    *out = (double)given_bytes / together.seconds;
    return SW_OK;
}

/* Measures everything in turn, by all ranks at once. */
static sw_status measure_round(struct comm_bench *bench, struct sw_bench_rounds *out, int round) {
    struct sw_rate gather, reduce, library;
    out->rate[PLAIN][round] = NAN;
    SW_TRY(sw_measure_gather(bench->measure, bench->bytes, &gather));
    if (bench->plain)
        SW_TRY(rate_of(bench, exchange, bench->share_bytes * (bench->identity->ranks - 1), &out->rate[PLAIN][round]));
    SW_TRY(sw_measure_reduce(bench->measure, bench->bytes, &reduce));
    sw_comm_use_library_reduction(bench->comm, true);
    const sw_status status = sw_measure_reduce(bench->measure, bench->bytes, &library);
    sw_comm_use_library_reduction(bench->comm, false);
    SW_TRY(status);
    SW_TRY(rate_of(bench, copy, bench->bytes, &out->rate[MEMCPY][round]));
    out->rate[GATHER][round] = gather.bytes_per_s;
    out->rate[REDUCE][round] = reduce.bytes_per_s;
    out->rate[LIBRARY][round] = library.bytes_per_s;
    return SW_OK;
}

static sw_status measure_sizes(struct comm_bench *bench) {
    struct sw_rates rates = {0};
    SW_TRY(sw_measure_comm_rates(bench->comm, bench->device, (sw_dtype)bench->given->settings.precision, &rates));
    bench->latency_s = rates.comm_latency_s;
    for (int i = 0; i < bench->count; i++) {
        bench->bytes = bench->rows[i].bytes;
        bench->share_bytes = bench->bytes / bench->identity->ranks;
        for (int round = 0; round < bench->rows[i].rounds.rounds; round++)
            SW_TRY(measure_round(bench, &bench->rows[i].rounds, round));
    }
    return SW_OK;
}

static sw_status report(const struct comm_bench *bench) {
    const struct sw_comm_identity *identity = bench->identity;
    const bool alone = identity->ranks == 1;
    const char *device = sw_device_info(bench->device).name;
    const char *precision = sw_dtype_name((sw_dtype)bench->given->settings.precision);
    const char *transport = sw_comm_transport_name(bench->comm);
    if (bench->given->settings.json)
        return sw_command_print_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:i, s:f, s:o}", "bench", "comm",
                                               "device", device, "precision", precision, "ranks", identity->ranks,
                                               "nodes", identity->nodes, "transport", transport, "rounds",
                                               (int)bench->given->rounds, "latency_s", bench->latency_s, "sizes",
                                               sw_table_json(SW_TABLE(fields, bench->rows, alone ? 0 : bench->count))));
    if (alone) {
        puts("one rank has nobody to exchange with; start it with mpirun -n 2 spillway bench comm");
        return SW_OK;
    }
    printf("%d ranks on %s by %s, %s, %s, medians of %s\n"
           "GB/s that a rank gives; memcpy is by every rank at once\n"
           "a gather of next to nothing takes %.1f us\n",
           identity->ranks, SW_COUNT(identity->nodes, "machine"), transport, device, precision,
           SW_COUNT(bench->given->rounds, "round"), bench->latency_s * 1e6);
    sw_table_print(SW_TABLE(fields, bench->rows, bench->count));
    return SW_OK;
}

/* Opens this rank's GPU, by its number on the machine; auto opens the CPU unless every rank has a GPU. */
static sw_status open_device(struct comm_bench *bench) {
    enum { NAME_CHARS = 32 };
    const struct sw_bench_options *given = bench->given;
    const int threads = given->settings.threads == SW_OPTION_AUTO ? 1 : (int)given->settings.threads;
    char name[NAME_CHARS];
    snprintf(name, sizeof name, "cuda:%d", bench->identity->local_rank);
    if (given->settings.device == SW_DEVICE_CUDA)
        return sw_device_open(name, threads, &bench->device);
    bool usable = given->settings.device == SW_DEVICE_AUTO && sw_device_open(name, threads, &bench->device) == SW_OK;
    sw_error_clear();
    SW_TRY(sw_comm_all_true(bench->comm, "device", &usable));
    if (usable)
        return SW_OK;
    sw_device_close(bench->device);
    return sw_device_open("cpu", threads, &bench->device);
}

static sw_status take_memory(struct comm_bench *bench) {
    const int64_t staging_bytes = sw_max_i64(STAGING_BYTES, sw_comm_least_staging_bytes(bench->identity->ranks));
    int64_t most_bytes = 0;
    for (int i = 0; i < bench->count; i++)
        most_bytes = sw_max_i64(most_bytes, bench->rows[i].bytes);
    SW_TRY(sw_memory_open(bench->device, "staging", SW_MEMORY_DEVICE, staging_bytes, &bench->staging));
    SW_TRY(sw_memory_open(bench->device, "vectors", SW_MEMORY_DEVICE, most_bytes, &bench->from));
    SW_TRY(sw_memory_open(bench->device, "vectors", SW_MEMORY_DEVICE, most_bytes, &bench->to));
    SW_TRY(sw_comm_use_staging(bench->comm, sw_memory_base(bench->staging), staging_bytes));
    return sw_measure_comm_open(bench->comm, bench->device, (sw_dtype)bench->given->settings.precision, most_bytes,
                                &bench->measure);
}

static sw_status open_bench(struct comm_bench *bench) {
    SW_TRY(open_device(bench));
    SW_TRY(sw_stream_open(bench->device, &bench->stream));
    const bool on_host = sw_device_info(bench->device).host_memory;
    if (!on_host) {
        SW_TRY(sw_device_comm_open(bench->stream, &bench->gpu));
        SW_TRY(sw_comm_use_nccl(bench->comm, &bench->gpu));
    }
    bench->plain = on_host && has_mpi && bench->identity->ranks <= PLAIN_RANKS;
    SW_TRY(sw_bench_size_rows(bench->given, &sw_bench_comm_sizes, &bench->rows, &bench->count));
    return take_memory(bench);
}

/* Closes everything. Call it once the communicator, which uses this memory, is closed. */
static void close_bench(struct comm_bench *bench) {
    sw_measure_comm_close(bench->measure);
    sw_memory_close(bench->staging);
    sw_memory_close(bench->from);
    sw_memory_close(bench->to);
    sw_device_comm_close(&bench->gpu);
    sw_stream_close(bench->stream);
    sw_device_close(bench->device);
    free(bench->rows);
}

static sw_status run(struct comm_bench *bench, struct sw_ranks *ranks) {
    bench->comm = ranks->comm;
    bench->identity = sw_comm_identity(ranks->comm);
    SW_TRY(sw_ranks_begin_watch(ranks, RANK_TIMEOUT_S));
    SW_TRY(open_bench(bench));
    sw_ranks_relax_timeout(ranks, false);
    if (bench->identity->ranks > 1)
        SW_TRY(measure_sizes(bench));
    return bench->identity->rank == 0 ? report(bench) : SW_OK;
}

int sw_bench_comm(int argc, char **argv) {
    const struct sw_command_line *line = &sw_bench_comm_line;
    struct sw_bench_options given = {0};
    struct comm_bench bench = {.given = &given};
    struct sw_ranks ranks;
    int code;
    if (sw_command_begin(&ranks, line->command, &code)) {
        if (sw_command_parse_ranks(&ranks, line, argc, argv, &given, &code)) {
            const sw_status status = run(&bench, &ranks);
            code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
        }
        sw_command_end(&ranks, code);
    }
    close_bench(&bench);
    sw_options_release(line, &given);
    return code;
}
