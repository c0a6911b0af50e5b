/* Random collectives, several on their way at once, against a serial truth that every rank computes for itself. */
#include "core/rng.h"
#include "core/size.h"
#include "tests/core/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_ELEMS = 20000, AT_ONCE = 4, MOST_RANKS = 16, GUARD_BYTES = 64, GUARD = 0x5a };

typedef enum { GATHER, REDUCE_SCATTER, BROADCAST, EXCHANGE, KINDS } kind;

/* One collective of a case, and its memory. */
struct work {
    kind kind;
    sw_dtype type, to_type;
    int64_t elems;
    int root;
    bool in_place;   /* a gather's own share, a reduction's result */
    int64_t *others; /* where sums are the library's: counts those of other bits than the design's; NULL elsewhere */
    uint64_t seed, number;
    int64_t bounds[MOST_RANKS + 1], bounds_bytes[MOST_RANKS + 1];
    char *data, *to; /* with a guard behind each */
    struct sw_comm_request *request;
};

static uint64_t draw(uint64_t seed, uint64_t number, uint64_t which) {
    const struct sw_rng_block block = sw_rng(seed, number, which);
    return ((uint64_t)block.word[0] << 32) | block.word[1];
}

/* Returns a rank's contribution: numbers of many magnitudes, so that the order of sums shows. */
static float value_of(const struct work *work, int rank, int64_t index) {
    const struct sw_rng_block block =
        sw_rng(work->seed ^ 0x9e3779b97f4a7c15u, work->number, (uint64_t)rank << 40 | (uint64_t)index);
    return ldexpf((float)(int32_t)block.word[0] * 0x1p-31f, (int)(block.word[1] % 17) - 8);
}

static int64_t draw_size(uint64_t random) {
    static const int64_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 4096, 16384, 16385};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    return random % 2 == 0 ? sizes[random / 2 % SIZES] : (int64_t)(random / 2 % MOST_ELEMS);
}

/* Even, or whatever comes, empty shares among them. */
static void draw_bounds(struct work *work, int ranks, uint64_t random) {
    if (random % 2 == 0) {
        sw_comm_even_bounds(work->elems, random % 4 == 0 ? SW_TENSOR_ALIGN_ELEMS : 1, ranks, work->bounds);
        return;
    }
    work->bounds[0] = 0;
    for (int rank = 1; rank < ranks; rank++) {
        const int64_t left = work->elems - work->bounds[rank - 1];
        const uint64_t part = draw(work->seed, work->number, 100 + (uint64_t)rank);
        work->bounds[rank] = work->bounds[rank - 1] + (part % 3 == 0 ? 0 : (int64_t)(part % (uint64_t)(left + 1)));
    }
    work->bounds[ranks] = work->elems;
}

/* With others, the first case is a sum that the library rounds to bf16 after each addition, and the design once. */
static struct work draw_work(struct sw_comm *comm, uint64_t seed, uint64_t number, int64_t *others) {
    const int ranks = sw_comm_identity(comm)->ranks;
    struct work work = {.seed = seed, .number = number, .others = others};
    work.kind = draw(seed, number, 0) % KINDS;
    work.type = draw(seed, number, 1) % 3;
    work.to_type = draw(seed, number, 2) % 3;
    work.elems = draw_size(draw(seed, number, 3));
    work.root = (int)(draw(seed, number, 4) % (uint64_t)ranks);
    const bool sure = others != NULL && number == 0;
    if (sure) {
        work.kind = REDUCE_SCATTER;
        work.type = work.to_type = SW_BF16;
        work.elems = MOST_ELEMS;
    }
    work.in_place = (work.kind == GATHER || work.type == work.to_type) && draw(seed, number, 5) % 2 == 0;
    draw_bounds(&work, ranks, sure ? 0 : draw(seed, number, 6));
    for (int rank = 0; rank <= ranks; rank++)
        work.bounds_bytes[rank] = work.bounds[rank] * sw_dtype_bytes(work.type);
    work.data = malloc((size_t)work.elems * 4 + GUARD_BYTES);
    work.to = malloc((size_t)(work.elems * 4 * ranks) + GUARD_BYTES);
    RANKS_REQUIRE(work.data != NULL && work.to != NULL, "memory");
    return work;
}

static int64_t out_bytes(const struct work *work) {
    return work->elems * sw_dtype_bytes(work->type);
}

static void fill(const struct work *work, int rank, int ranks) {
    memset(work->data + out_bytes(work), GUARD, GUARD_BYTES);
    memset(work->to, GUARD, (size_t)(work->elems * 4 * ranks) + GUARD_BYTES);
    for (int64_t i = 0; i < work->elems; i++) {
        /* In a gather only the own share counts, in a broadcast only the root's; the rest is to be overwritten. */
        const bool own = i >= work->bounds[rank] && i < work->bounds[rank + 1];
        const bool counts = work->kind == BROADCAST ? rank == work->root : work->kind != GATHER || own;
        const bool apart = work->kind == GATHER && !work->in_place;
        sw_dtype_store(work->type, work->data, i, counts && !apart ? value_of(work, rank, i) : -77.0f);
        if (own && apart)
            sw_dtype_store(work->type, work->to, i - work->bounds[rank], value_of(work, rank, i));
    }
}

static sw_status begin(struct sw_comm *comm, struct work *work) {
    const int rank = sw_comm_identity(comm)->rank;
    char *share = work->data + work->bounds_bytes[rank];
    switch (work->kind) {
    case GATHER:
        return sw_comm_all_gather(comm,
                                  &(struct sw_comm_gather){.what = "gather",
                                                           .data = work->data,
                                                           .own = work->in_place ? NULL : work->to,
                                                           .bounds_bytes = work->bounds_bytes},
                                  &work->request);
    case REDUCE_SCATTER:
        return sw_comm_reduce_scatter(comm,
                                      &(struct sw_comm_reduce){.what = "reduce",
                                                               .from = work->data,
                                                               .bounds = work->bounds,
                                                               .to = work->in_place ? share : work->to,
                                                               .type = work->type,
                                                               .to_type = work->to_type},
                                      &work->request);
    case EXCHANGE:
        return sw_comm_exchange(
            comm,
            &(struct sw_comm_exchange){
                .what = "exchange", .data = work->data, .bounds_bytes = work->bounds_bytes, .to = work->to},
            &work->request);
    default:
        return sw_comm_broadcast(comm,
                                 &(struct sw_comm_broadcast){.what = "broadcast",
                                                             .data = work->data,
                                                             .bytes = out_bytes(work),
                                                             .root = work->root,
                                                             .on_host = work->in_place},
                                 &work->request);
    }
}

static float rounded(sw_dtype type, float value) {
    char bits[4];
    sw_dtype_store(type, bits, 0, value);
    return sw_dtype_load(type, bits, 0);
}

static float total(const struct work *work, int ranks, int64_t index) {
    float sum = rounded(work->type, value_of(work, 0, index));
    for (int rank = 1; rank < ranks; rank++)
        sum += rounded(work->type, value_of(work, rank, index));
    return sum;
}

static int owner(const struct work *work, int64_t index) {
    int rank = 0;
    while (index >= work->bounds[rank + 1])
        rank++;
    return rank;
}

static void require_element(struct sw_comm *comm, const struct work *work, sw_dtype type, const void *at, int64_t place,
                            int64_t index, float truth) {
    char expected[4];
    const int64_t bytes = sw_dtype_bytes(type);
    sw_dtype_store(type, expected, 0, truth);
    RANKS_REQUIRE(memcmp((const char *)at + place * bytes, expected, (size_t)bytes) == 0,
                  "seed %llu, case %llu: kind %d, %s to %s, element %lld of %lld is %g and not %g",
                  (unsigned long long)work->seed, (unsigned long long)work->number, work->kind,
                  sw_dtype_name(work->type), sw_dtype_name(type), (long long)index, (long long)work->elems,
                  (double)sw_dtype_load(type, at, place), (double)truth);
}

/* The largest error that rounding each of the additions can make. */
static double library_bound(const struct work *work, int ranks, int64_t index) {
    static const double half_spacing[] = {[SW_F32] = 0x1p-24, [SW_BF16] = 0x1p-8, [SW_F16] = 0x1p-11};
    double magnitudes = 0.0;
    for (int rank = 0; rank < ranks; rank++)
        magnitudes += fabs((double)value_of(work, rank, index));
    return 2 * ranks * (half_spacing[work->type] * magnitudes + 0x1p-25);
}

/* By the library: near. */
static void require_sum(struct sw_comm *comm, const struct work *work, const void *at, int64_t place, int64_t index) {
    const int ranks = sw_comm_identity(comm)->ranks;
    const float truth = total(work, ranks, index);
    if (work->others == NULL || work->type != work->to_type) {
        require_element(comm, work, work->to_type, at, place, index, truth);
        return;
    }
    const float got = sw_dtype_load(work->type, at, place);
    *work->others += got != rounded(work->type, truth);
    RANKS_REQUIRE(fabs((double)got - (double)truth) <= library_bound(work, ranks, index),
                  "seed %llu, case %llu: %s, element %lld of %lld is %g and not near %g",
                  (unsigned long long)work->seed, (unsigned long long)work->number, sw_dtype_name(work->type),
                  (long long)index, (long long)work->elems, (double)got, (double)truth);
}

/* Requires what each other rank has for this one, in their order. */
static void require_parts(struct sw_comm *comm, const struct work *work) {
    const int rank = sw_comm_identity(comm)->rank;
    const int64_t first = work->bounds[rank], count = work->bounds[rank + 1] - first;
    int64_t place = 0;
    for (int peer = 0; peer < sw_comm_identity(comm)->ranks; peer++)
        for (int64_t i = 0; peer != rank && i < count; i++)
            require_element(comm, work, work->type, work->to, place++, first + i, value_of(work, peer, first + i));
}

/* Returns how many elements are written to `to`. */
static int64_t elems_taken(struct sw_comm *comm, const struct work *work) {
    const struct sw_comm_identity *place = sw_comm_identity(comm);
    const int64_t own = work->bounds[place->rank + 1] - work->bounds[place->rank];
    if (work->kind == EXCHANGE)
        return (place->ranks - 1) * own;
    return (work->kind == REDUCE_SCATTER || work->kind == GATHER) && !work->in_place ? own : 0;
}

static void check(struct sw_comm *comm, const struct work *work) {
    const int rank = sw_comm_identity(comm)->rank;
    const int64_t first = work->bounds[rank], end = work->bounds[rank + 1];
    for (int64_t i = 0; i < work->elems; i++) {
        if (work->kind == GATHER)
            require_element(comm, work, work->type, work->data, i, i, value_of(work, owner(work, i), i));
        else if (work->kind == BROADCAST)
            require_element(comm, work, work->type, work->data, i, i, value_of(work, work->root, i));
        else if (work->kind == REDUCE_SCATTER && i >= first && i < end)
            require_sum(comm, work, work->in_place ? work->data : work->to, work->in_place ? i : i - first, i);
        else
            require_element(comm, work, work->type, work->data, i, i, value_of(work, rank, i));
    }
    if (work->kind == EXCHANGE)
        require_parts(comm, work);
    for (int i = 0; i < GUARD_BYTES; i++) {
        RANKS_REQUIRE(work->data[out_bytes(work) + i] == GUARD, "case %llu writes behind its data",
                      (unsigned long long)work->number);
        const sw_dtype type = work->kind == REDUCE_SCATTER ? work->to_type : work->type;
        RANKS_REQUIRE(work->to[elems_taken(comm, work) * sw_dtype_bytes(type) + i] == GUARD,
                      "case %llu writes behind its share", (unsigned long long)work->number);
    }
}

/* Begins collectives in one order on all ranks, and waits for them in another on each. */
static void run_together(struct sw_comm *comm, struct work *works, int count, uint64_t seed) {
    const int rank = sw_comm_identity(comm)->rank;
    for (int i = 0; i < count; i++) {
        usleep((useconds_t)(draw(seed, works[i].number, 200 + (uint64_t)rank) % 500));
        fill(&works[i], rank, sw_comm_identity(comm)->ranks);
        RANKS_REQUIRE(begin(comm, &works[i]) == SW_OK, "begin");
    }
    for (int i = 0; i < count; i++) {
        RANKS_REQUIRE(sw_comm_wait(works[(i + rank) % count].request) == SW_OK, "wait");
    }
    for (int i = 0; i < count; i++) {
        check(comm, &works[i]);
        free(works[i].data);
        free(works[i].to);
    }
}

static void run_cases(struct sw_comm *comm, uint64_t seed, int cases, int64_t *others) {
    const int ranks = sw_comm_identity(comm)->ranks;
    const int64_t least = sw_comm_least_staging_bytes(ranks);
    RANKS_REQUIRE(ranks <= MOST_RANKS, "ranks");
    char *staging = malloc((size_t)least * 64);
    RANKS_REQUIRE(staging != NULL, "memory");
    struct work works[AT_ONCE];
    for (int first = 0; first < cases; first += AT_ONCE) {
        const int count = cases - first < AT_ONCE ? cases - first : AT_ONCE;
        /* Ranks with unequal staging too. */
        const int64_t bytes =
            least + (int64_t)(draw(seed, (uint64_t)first, 7) % (uint64_t)(least * 62)) + sw_comm_identity(comm)->rank;
        RANKS_REQUIRE(sw_comm_use_staging(comm, staging, first == 0 ? least : bytes) == SW_OK, "staging");
        for (int i = 0; i < count; i++) {
            works[i] = draw_work(comm, seed, (uint64_t)(first + i), others);
        }
        run_together(comm, works, count, seed);
    }
    free(staging);
}

void ranks_check_collectives(struct sw_comm *comm, uint64_t seed, int cases) {
    run_cases(comm, seed, cases, NULL);
}

void ranks_check_library_sums(struct sw_comm *comm, uint64_t seed, int cases) {
    int64_t others = 0;
    sw_comm_use_library_reduction(comm, true);
    run_cases(comm, seed, cases, &others);
    RANKS_REQUIRE(others > 0, "seed %llu: the library has rounded as the design does, or has not been asked",
                  (unsigned long long)seed);
    sw_comm_use_library_reduction(comm, false);
    run_cases(comm, seed + 1, cases / 4, NULL);
}

void ranks_check_values(struct sw_comm *comm) {
    const int rank = sw_comm_identity(comm)->rank, ranks = sw_comm_identity(comm)->ranks;
    double sums[2] = {ldexp(1.0, 60 * (rank % 3)), 0.1 * rank}, truth[2] = {0.0, 0.0};
    for (int i = 0; i < ranks; i++) {
        truth[0] = i == 0 ? 1.0 : truth[0] + ldexp(1.0, 60 * (i % 3));
        truth[1] += 0.1 * i;
    }
    RANKS_REQUIRE(sw_comm_sum_doubles(comm, "sums", sums, 2) == SW_OK && sums[0] == truth[0] && sums[1] == truth[1],
                  "%a %a", sums[0], sums[1]);
    int64_t most[2] = {rank * INT64_C(5000000000), -rank};
    RANKS_REQUIRE(sw_comm_max(comm, "most", most, 2) == SW_OK && most[0] == (ranks - 1) * INT64_C(5000000000) &&
                      most[1] == 0,
                  "%lld %lld", (long long)most[0], (long long)most[1]);
    for (int liar = 0; liar <= ranks; liar++) {
        bool value = rank != liar;
        RANKS_REQUIRE(sw_comm_all_true(comm, "truth", &value) == SW_OK && value == (liar == ranks), "liar %d", liar);
    }
}

/* A vector of more than 4 GiB in a few MiB: one window of memory, mapped again and again. Its size divides no size of a
 * message, so that bytes of a wrong place show. */
static char *map_repeated(struct sw_comm *comm, int64_t window_bytes, int64_t windows) {
    const int file = memfd_create("window", MFD_CLOEXEC);
    RANKS_REQUIRE(file >= 0 && ftruncate(file, window_bytes) == 0, "memory");
    char *base =
        mmap(NULL, (size_t)(windows * window_bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RANKS_REQUIRE(base != MAP_FAILED, "address space");
    for (int64_t i = 0; i < windows; i++)
        RANKS_REQUIRE(mmap(base + i * window_bytes, (size_t)window_bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED,
                      "window %lld", (long long)i);
    close(file);
    return base;
}

void ranks_check_large(struct sw_comm *comm) {
    const int64_t window_bytes = 12 * SW_MIB, windows = 187, share = windows * window_bytes - 4097;
    const int rank = sw_comm_identity(comm)->rank, ranks = sw_comm_identity(comm)->ranks;
    static_assert(187 * 12 * SW_MIB - 4097 > INT64_C(1) << 31, "a share is larger than 32 bits count");
    int64_t bounds[MOST_RANKS + 1] = {0};
    for (int i = 1; i <= ranks; i++)
        bounds[i] = share;
    char *data = map_repeated(comm, window_bytes, windows);
    for (int64_t i = 0; i < window_bytes; i++)
        data[i] = rank == 0 ? (char)(sw_rng(7, 0, (uint64_t)i / 4096).word[0] + (uint32_t)i) : 0;
    struct sw_comm_request *request;
    const struct sw_comm_gather gather = {.what = "a large gather", .data = data, .bounds_bytes = bounds};
    RANKS_REQUIRE(sw_comm_all_gather(comm, &gather, &request) == SW_OK && sw_comm_wait(request) == SW_OK, "gather");
    for (int64_t i = 0; i < window_bytes; i++)
        RANKS_REQUIRE(data[i] == (char)(sw_rng(7, 0, (uint64_t)i / 4096).word[0] + (uint32_t)i), "byte %lld",
                      (long long)i);
    RANKS_REQUIRE(rank != 0 || sw_comm_sent_bytes(comm) >= share * (ranks - 1), "%lld bytes were counted",
                  (long long)sw_comm_sent_bytes(comm));
    munmap(data, (size_t)(windows * window_bytes));
}
