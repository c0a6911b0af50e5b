/* The simulated drives: the bytes that they hold, lose and keep. */
#include "core/rng.h"
#include "tests/equipment/drive/fault_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRAW_STREAM = 91, LINK_CHARS = 64, PATH_CHARS = 4096, BESIDE_BYTES = 64 << 10 };

int64_t sw_fault_draw(struct sw_fault_disk *disk, int64_t limit) {
    return (int64_t)(sw_rng_uniform(disk->seed, DRAW_STREAM, disk->draws++) * (double)limit);
}

sw_status sw_fault_disk_create(uint64_t seed, int sector_bytes, struct sw_fault_disk **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a failing disk");
    (*out)->seed = seed;
    (*out)->sector_bytes = sector_bytes;
    return SW_OK;
}

static void forget_writes(struct sw_fault_file *file) {
    while (file->first != NULL) {
        struct sw_fault_write *write = file->first;
        file->first = write->next;
        free(write);
    }
    file->last = NULL;
}

void sw_fault_disk_destroy(struct sw_fault_disk *disk) {
    if (disk == NULL)
        return;
    assert(disk->rings == NULL);
    for (int f = 0; f < disk->file_count; f++) {
        forget_writes(&disk->file[f]);
        free(disk->file[f].path);
        free(disk->file[f].lasting);
        free(disk->file[f].current);
        free(disk->file[f].lasting_bad);
        free(disk->file[f].current_bad);
    }
    free(disk);
}

/* Whoever reads what was never written gets what the drive held before: never zeros to rely on. */
static void fill_with_old_data(struct sw_fault_disk *disk, unsigned char *bytes, int64_t count) {
    /* Each word is made of its number alone, so that the processor makes several at once. */
    uint64_t word;
    for (int64_t i = 0; i + (int64_t)sizeof word <= count; i += (int64_t)sizeof word) {
        word = (disk->seed + (uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        word = (word ^ word >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
        memcpy(bytes + i, &word, sizeof word);
    }
}

static sw_status grow(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t bytes) {
    unsigned char **images[] = {&file->lasting, &file->current};
    for (int i = 0; i < 2; i++) {
        unsigned char *grown = realloc(*images[i], (size_t)bytes);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a failing disk of %lld bytes", (long long)bytes);
        *images[i] = grown;
    }
    fill_with_old_data(disk, file->lasting + file->bytes, bytes - file->bytes);
    memcpy(file->current + file->bytes, file->lasting + file->bytes, (size_t)(bytes - file->bytes));
    unsigned char **flags[] = {&file->lasting_bad, &file->current_bad};
    const int64_t before = sw_div_up(file->bytes, disk->sector_bytes), after = sw_div_up(bytes, disk->sector_bytes);
    for (int i = 0; i < 2; i++) {
        unsigned char *grown = realloc(*flags[i], (size_t)after);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the sectors of a failing disk");
        *flags[i] = grown;
        memset(grown + before, 0, (size_t)(after - before));
    }
    file->bytes = bytes;
    return SW_OK;
}

sw_status sw_fault_find_file(struct sw_fault_disk *disk, int fd, int *out) {
    char link[LINK_CHARS], path[PATH_CHARS];
    struct stat info;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || fstat(fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "the name of an open file cannot be read: %s", strerror(errno));
    path[length] = '\0';
    int at = 0;
    while (at < disk->file_count && strcmp(disk->file[at].path, path) != 0)
        at++;
    assert(at < SW_FAULT_MAX_FILES);
    struct sw_fault_file *file = &disk->file[at];
    if (at == disk->file_count) {
        file->path = strdup(path);
        if (file->path == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the name of a file");
        disk->file_count++;
    }
    *out = at;
    return info.st_size > file->bytes ? grow(disk, file, info.st_size) : SW_OK;
}

/* The sectors that a range covers or touches, from *out_first to before *out_end. */
static void sectors_of(const struct sw_fault_disk *disk, int64_t offset_bytes, int64_t bytes, int64_t *out_first,
                       int64_t *out_end) {
    *out_first = offset_bytes / disk->sector_bytes;
    *out_end = sw_div_up(offset_bytes + bytes, disk->sector_bytes);
}

/* Bytes in an image; their sectors can be read again. */
static void put(const struct sw_fault_disk *disk, unsigned char *image, unsigned char *bad, int64_t offset_bytes,
                const void *data, int64_t bytes) {
    int64_t first, end;
    sectors_of(disk, offset_bytes, bytes, &first, &end);
    memcpy(image + offset_bytes, data, (size_t)bytes);
    memset(bad + first, 0, (size_t)(end - first));
}

static void put_lasting(const struct sw_fault_disk *disk, struct sw_fault_file *file, const struct sw_fault_write *w) {
    put(disk, file->lasting, file->lasting_bad, w->offset_bytes, w->data, w->bytes);
}

bool sw_fault_is_bad(const struct sw_fault_disk *disk, const struct sw_fault_file *file, int64_t offset_bytes,
                     int64_t bytes) {
    int64_t first, end;
    sectors_of(disk, offset_bytes, bytes, &first, &end);
    return end > first && memchr(file->current_bad + first, 1, (size_t)(end - first)) != NULL;
}

/* Bytes that are read are those that last. */
static void forget_current(const struct sw_fault_disk *disk, struct sw_fault_file *file) {
    memcpy(file->current, file->lasting, (size_t)file->bytes);
    memcpy(file->current_bad, file->lasting_bad, (size_t)sw_div_up(file->bytes, disk->sector_bytes));
}

struct sw_fault_write *sw_fault_write(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t offset_bytes,
                                      const void *data, int64_t bytes) {
    assert(offset_bytes >= 0 && offset_bytes + bytes <= file->bytes);
    struct sw_fault_write *write = malloc(sizeof *write + (size_t)bytes);
    if (write == NULL)
        return NULL;
    *write = (struct sw_fault_write){.offset_bytes = offset_bytes, .bytes = bytes};
    memcpy(write->data, data, (size_t)bytes);
    put(disk, file->current, file->current_bad, offset_bytes, data, bytes);
    if (file->last != NULL)
        file->last->next = write;
    else
        file->first = write;
    file->last = write;
    return write;
}

/* Takes the writes that had been seen before the event from the list, after they were made to last or not. */
static void settle(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t event, bool lasts) {
    struct sw_fault_write **at = &file->first;
    struct sw_fault_write *left = NULL;
    while (*at != NULL) {
        struct sw_fault_write *write = *at;
        if (write->seen_at == 0 || write->seen_at > event) {
            left = write;
            at = &write->next;
            continue;
        }
        if (lasts)
            put_lasting(disk, file, write);
        *at = write->next;
        free(write);
    }
    file->last = left;
}

void sw_fault_flush(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t event) {
    settle(disk, file, event, true);
    file->size_lasts = true;
}

void sw_fault_drop(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t event) {
    settle(disk, file, event, false);
    forget_current(disk, file);
    for (const struct sw_fault_write *w = file->first; w != NULL; w = w->next)
        put(disk, file->current, file->current_bad, w->offset_bytes, w->data, w->bytes);
}

/* Some of a write's sectors: a run at either end, or each by chance. Those that are missing are as they were, or cannot
 * be read. */
static void tear(struct sw_fault_disk *disk, struct sw_fault_file *file, const struct sw_fault_write *write) {
    enum { FRONT, BACK, SCATTERED, WAYS };
    const int64_t sectors = sw_div_up(write->bytes, disk->sector_bytes);
    const int64_t way = sw_fault_draw(disk, WAYS), border = sw_fault_draw(disk, sectors + 1);
    const bool spoils = sw_fault_draw(disk, 2) == 0;
    for (int64_t s = 0; s < sectors; s++) {
        const bool kept = way == FRONT ? s < border : way == BACK ? s >= border : sw_fault_draw(disk, 2) == 0;
        const int64_t from = s * disk->sector_bytes;
        const int64_t bytes = sw_min_i64(disk->sector_bytes, write->bytes - from);
        if (kept)
            put(disk, file->lasting, file->lasting_bad, write->offset_bytes + from, write->data + from, bytes);
        else if (spoils)
            file->lasting_bad[(write->offset_bytes + from) / disk->sector_bytes] = 1;
    }
}

/* The simulation changes the bytes between two offsets, or makes them unreadable. */
static void spoil(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t from, int64_t to) {
    int64_t first, end;
    from = sw_max_i64(from, 0);
    to = sw_min_i64(to, file->bytes);
    if (from >= to)
        return;
    sectors_of(disk, from, to - from, &first, &end);
    if (sw_fault_draw(disk, 2) == 0)
        memset(file->lasting_bad + first, 1, (size_t)(end - first));
    else
        fill_with_old_data(disk, file->lasting + from, to - from);
}

/* Whole sectors on both sides of a write are lost with it. */
static void spoil_beside(struct sw_fault_disk *disk, struct sw_fault_file *file, const struct sw_fault_write *write) {
    const int64_t most = BESIDE_BYTES / disk->sector_bytes;
    const int64_t before = sw_fault_draw(disk, most + 1), after = sw_fault_draw(disk, most + 1);
    const int64_t end = write->offset_bytes + write->bytes;
    spoil(disk, file, write->offset_bytes - before * disk->sector_bytes, write->offset_bytes);
    spoil(disk, file, end, end + after * disk->sector_bytes);
}

/* Takes any one of the writes from the list; NULL where there is none. */
static struct sw_fault_write *take_any(struct sw_fault_disk *disk, struct sw_fault_file *file) {
    int64_t count = 0;
    for (struct sw_fault_write *w = file->first; w != NULL; w = w->next)
        count++;
    int64_t skip = sw_fault_draw(disk, count);
    struct sw_fault_write **at = &file->first;
    for (struct sw_fault_write *w = file->first; w != NULL; w = w->next) {
        if (skip-- == 0) {
            *at = w->next;
            return w;
        }
        at = &w->next;
    }
    return NULL;
}

/* Each write that was volatile is dropped, torn or kept, in any order. */
static void lose_power(struct sw_fault_disk *disk, struct sw_fault_file *file) {
    enum { DROPPED, TORN, KEPT, FATES, ONE_IN = 3 };
    /* In some cuts all share a fate, in others each has its own. */
    const int64_t shared = sw_fault_draw(disk, FATES + FATES);
    const bool spoils = sw_fault_draw(disk, 2) == 0;
    struct sw_fault_write *write;
    while ((write = take_any(disk, file)) != NULL) {
        const int64_t fate = shared < FATES ? shared : sw_fault_draw(disk, FATES);
        if (spoils && sw_fault_draw(disk, ONE_IN) == 0)
            spoil_beside(disk, file, write);
        if (fate == KEPT)
            put_lasting(disk, file, write);
        else if (fate == TORN)
            tear(disk, file, write);
        free(write);
    }
    file->last = NULL;
    forget_current(disk, file);
}

/* The name and the size that a file has after the end. */
static sw_status restore_name(struct sw_fault_disk *disk, const struct sw_fault_file *file) {
    enum { NAME_LOST, EMPTY, CUT, WHOLE, FATES };
    const bool power = disk->end == SW_FAULT_POWER;
    int64_t bytes = file->bytes;
    if (power && !disk->names_last && sw_fault_draw(disk, FATES) == NAME_LOST)
        return unlink(file->path) == 0 || errno == ENOENT
                   ? SW_OK
                   : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", file->path, strerror(errno));
    const int64_t size = power && !file->size_lasts ? 1 + sw_fault_draw(disk, FATES - 1) : WHOLE;
    if (size != WHOLE)
        bytes = size == EMPTY ? 0 : sw_fault_draw(disk, bytes);
    const int fd = open(file->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const bool sized = fd >= 0 && ftruncate(fd, bytes) == 0;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    return sized ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be made again: %s", file->path, strerror(error));
}

sw_status sw_fault_restart(struct sw_fault_disk *disk) {
    assert(disk->ended && disk->rings == NULL);
    for (int f = 0; f < disk->file_count; f++) {
        if (disk->end == SW_FAULT_POWER)
            lose_power(disk, &disk->file[f]);
        /* Before the next process opens the file, each write of the dead process has landed or never will. */
        for (struct sw_fault_write *w = disk->file[f].first; w != NULL; w = w->next)
            w->seen_at = disk->events;
        SW_TRY(restore_name(disk, &disk->file[f]));
    }
    disk->ended = false;
    disk->end_at = 0;
    return SW_OK;
}

void sw_fault_flip(struct sw_fault_disk *disk, const char *path, int64_t offset_bytes) {
    for (int f = 0; f < disk->file_count; f++) {
        struct sw_fault_file *file = &disk->file[f];
        if (strcmp(file->path, path) != 0)
            continue;
        assert(offset_bytes < file->bytes);
        file->current[offset_bytes] ^= 1;
        file->lasting[offset_bytes] ^= 1;
        return;
    }
    assert(false);
}

void sw_fault_set(struct sw_fault_disk *disk, const struct sw_fault *fault) {
    disk->has_fault = fault != NULL;
    if (fault != NULL)
        disk->fault = *fault;
}

int64_t sw_fault_requests(const struct sw_fault_disk *disk, sw_ring_op op) {
    return disk->requests[op];
}

int64_t sw_fault_struck(const struct sw_fault_disk *disk) {
    return disk->struck;
}

int64_t sw_fault_events(const struct sw_fault_disk *disk) {
    return disk->events;
}

void sw_fault_end_at(struct sw_fault_disk *disk, int64_t event, sw_fault_end how) {
    disk->end_at = event;
    disk->end = how;
}

bool sw_fault_ended(const struct sw_fault_disk *disk) {
    return disk->ended;
}

void sw_fault_names_last(struct sw_fault_disk *disk) {
    disk->names_last = true;
}
