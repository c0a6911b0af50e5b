/* Checks, before the ranks begin, the values that must be equal on all ranks and those that must differ. */
#include "core/ranks/comm.h"

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

enum { SHOWN_CHARS = 160, NAMED_RANKS = 8 };

struct record {
    XXH128_hash_t digest;
    int64_t has; /* 1 where the rank states a value, else 0 */
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

/* Names the ranks whose record is, or is not, that of `model`: "ranks 1, 3 and 4". Returns how many there are. */
static int name_ranks(const struct record *records, int ranks, int model, bool alike, char *out, size_t chars) {
    int found[NAMED_RANKS], count = 0;
    for (int rank = 0; rank < ranks; rank++)
        if (equal(&records[rank], &records[model]) == alike) {
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

static sw_status judge_equal(const struct sw_comm_claim *claim, const struct record *records, int ranks) {
    char names[256];
    const int others = name_ranks(records, ranks, 0, false, names, sizeof names);
    if (others == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s %s another %s than rank 0; %s", names, others == 1 ? "has" : "have", claim->what,
                   claim->remedy);
}

static sw_status judge_distinct(const struct sw_comm_claim *claim, const struct record *records, int ranks) {
    char names[256];
    for (int rank = 0; rank < ranks; rank++)
        if (records[rank].has && name_ranks(records, ranks, rank, true, names, sizeof names) > 1)
            return sw_fail(SW_ERR_ARG, "%s have the same %s%s%s; %s", names, claim->what,
                           records[rank].shown[0] != '\0' ? " " : "", records[rank].shown, claim->remedy);
    return SW_OK;
}

sw_status sw_comm_agree(struct sw_comm *comm, const struct sw_comm_claim *claims, int count) {
    const struct sw_comm_identity *place = sw_comm_identity(comm);
    struct record *records = calloc((size_t)place->ranks, sizeof *records);
    if (records == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the claims of %d ranks", place->ranks);
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < count; i++) {
        records[place->rank] = record_of(&claims[i]);
        status = sw_comm_share_records(comm, "claims", records, sizeof *records);
        if (status == SW_OK)
            status = claims[i].kind == SW_CLAIM_EQUAL ? judge_equal(&claims[i], records, place->ranks)
                                                      : judge_distinct(&claims[i], records, place->ranks);
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
