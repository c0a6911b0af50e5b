/* The frozen weights of units, in a file of their own.
 *
 * The store rewrites its grains in two generations; frozen weights never change, so in the store they would take twice
 * their size in fp32 and two moments that stay zero. A separate file is written once, needs no generations, and is the
 * same for every number of ranks.
 *
 * Each grain is checked whenever it is read and only checked bytes are used: other programs can write to the file at
 * any time. */
#include "run/folder/frozen.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/streams.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, VERSION = 1, BOX_GRAINS = 16 };
#define MAGIC "SWFROZEN"
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the numbers of the file are little-endian");
#define GRAIN_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

/* The header's first bytes; the rest is zeros. */
struct header {
    char magic[8];
    uint32_t version, units;
    int64_t grains;
};

struct sw_frozen {
    char path[SW_RUN_PATH_CHARS];
    int file;
    int64_t units, frozen_units, grains; /* units: all; frozen_units: those that have frozen grains */
    int64_t *first_grain;   /* one entry per unit: its first grain in the file; then the number of all grains */
    uint64_t *sum;          /* one entry per grain, then the sum of the header and these sums */
    struct sw_load trained; /* loads all that is not frozen */
};

static struct header header_of(int64_t units, int64_t grains) {
    struct header header = {.version = VERSION, .units = (uint32_t)units, .grains = grains};
    memcpy(header.magic, MAGIC, sizeof header.magic);
    return header;
}

/* Returns the sum that ends the file. */
static uint64_t sum_of_all(const struct header *header, const uint64_t *sum, int64_t grains) {
    const uint64_t parts[] = {sw_checksum(header, sizeof *header), sw_checksum(sum, grains * (int64_t)sizeof *sum)};
    return sw_checksum(parts, sizeof parts);
}

static int64_t file_bytes(int64_t grains) {
    return HEADER_BYTES + grains * GRAIN_BYTES + (grains + 1) * (int64_t)sizeof(uint64_t);
}

/* The file while it is being written. */
struct writer {
    struct sw_write_behind *file;
    int64_t block_bytes; /* bytes in the block being filled */
    float *box;          /* buffer of BOX_GRAINS grains */
    uint64_t *sum;
    int64_t grains, total_grains; /* written so far, and in all */
};

static sw_status append(struct writer *w, const void *data, int64_t bytes) {
    for (const char *from = data; bytes > 0;) {
        const int64_t now = sw_min_i64(bytes, SW_WRITE_BEHIND_BLOCK_BYTES - w->block_bytes);
        memcpy((char *)sw_write_behind_block(w->file) + w->block_bytes, from, (size_t)now);
        w->block_bytes += now;
        from += now;
        bytes -= now;
        if (w->block_bytes == SW_WRITE_BEHIND_BLOCK_BYTES) {
            SW_TRY(sw_write_behind_put(w->file, w->block_bytes));
            w->block_bytes = 0;
        }
    }
    return SW_OK;
}

static sw_status append_unit(struct writer *w, const struct sw_unit *unit, int64_t number, const struct sw_load *from) {
    const int64_t most = from->most_grains > 0 ? sw_min_i64(from->most_grains, BOX_GRAINS) : BOX_GRAINS;
    for (int64_t grain = 0, run; grain < unit->trained_grain; grain += run) {
        run = sw_min_i64(most, unit->trained_grain - grain);
        if (from->progress != NULL)
            SW_TRY(from->progress(from->progress_context, w->grains, w->total_grains));
        if (from->prepare != NULL)
            SW_TRY(from->prepare(from->context, number, grain * SW_GRAIN_ELEMS, run * SW_GRAIN_ELEMS));
        SW_TRY(from->fill(from->context, number, grain * SW_GRAIN_ELEMS, run * SW_GRAIN_ELEMS, w->box));
        for (int64_t g = 0; g < run; g++)
            w->sum[w->grains++] = sw_checksum(w->box + g * SW_GRAIN_ELEMS, GRAIN_BYTES);
        SW_TRY(append(w, w->box, run * GRAIN_BYTES));
    }
    return SW_OK;
}

static sw_status append_all(struct writer *w, const struct sw_units *units, const struct sw_load *from) {
    const int64_t grains = w->total_grains;
    const struct header header = header_of(sw_units_frozen(units), grains);
    char page[HEADER_BYTES] = {0};
    memcpy(page, &header, sizeof header);
    SW_TRY(append(w, page, sizeof page));
    for (int64_t u = 0; u < units->count; u++)
        SW_TRY(append_unit(w, &units->unit[u], u, from));
    w->sum[grains] = sum_of_all(&header, w->sum, grains);
    SW_TRY(append(w, w->sum, (grains + 1) * (int64_t)sizeof *w->sum));
    if (w->block_bytes > 0)
        SW_TRY(sw_write_behind_put(w->file, w->block_bytes));
    return sw_write_behind_finish(w->file);
}

static sw_status write_file(int file, const char *path, const struct sw_units *units, const struct sw_load *from) {
    const int64_t grains = sw_units_frozen_grains(units);
    struct writer w = {.box = malloc((size_t)(BOX_GRAINS * GRAIN_BYTES)),
                       .sum = malloc((size_t)(grains + 1) * sizeof *w.sum),
                       .total_grains = grains};
    sw_status status = w.box != NULL && w.sum != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    if (status == SW_OK)
        status = sw_write_behind_open(file, path, file_bytes(grains), &w.file);
    if (status == SW_OK)
        status = append_all(&w, units, from);
    sw_write_behind_close(w.file);
    free(w.box);
    free(w.sum);
    if (status == SW_OK && fsync(file) != 0)
        status = sw_fail(SW_ERR_IO, "%s cannot be flushed: %s", path, strerror(errno));
    return status;
}

sw_status sw_frozen_write(const char *folder, const struct sw_units *units, const struct sw_load *from) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, folder, SW_FROZEN_NAME));
    const int file = sw_path_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return sw_fail(SW_ERR_IO, "cannot make %s: %s", path, strerror(errno));
    sw_status status = write_file(file, path, units, from);
    close(file);
    if (status == SW_OK)
        status = sw_file_flush_folder_of(path);
    if (status != SW_OK)
        sw_path_unlink(path);
    return status;
}

static sw_status refuse(const struct sw_frozen *self, const char *what) {
    return sw_fail(SW_ERR_CORRUPT, "%s, which holds the frozen weights of the run, %s; restore it from a copy",
                   self->path, what);
}

/* Checks the header and the sums, and that they belong to these units. */
static sw_status check_file(struct sw_frozen *self) {
    const struct header expected = header_of(self->frozen_units, self->grains);
    struct header found;
    int64_t bytes;
    SW_TRY(sw_file_size(self->file, self->path, &bytes));
    if (bytes != file_bytes(self->grains))
        return refuse(self, "is cut off or of another model or --freeze");
    SW_TRY(sw_file_read(self->file, self->path, 0, &found, sizeof found));
    SW_TRY(sw_file_read(self->file, self->path, HEADER_BYTES + self->grains * GRAIN_BYTES, self->sum,
                        (self->grains + 1) * (int64_t)sizeof *self->sum));
    if (memcmp(&found, &expected, sizeof found) != 0 ||
        self->sum[self->grains] != sum_of_all(&expected, self->sum, self->grains))
        return refuse(self, "is damaged or of another --freeze");
    return SW_OK;
}

static sw_status make_arrays(struct sw_frozen *self, const struct sw_units *units) {
    self->first_grain = calloc((size_t)self->units + 1, sizeof *self->first_grain);
    self->sum = calloc((size_t)self->grains + 1, sizeof *self->sum);
    if (self->first_grain == NULL || self->sum == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", self->path);
    for (int64_t u = 0; u < self->units; u++)
        self->first_grain[u + 1] = self->first_grain[u] + units->unit[u].trained_grain;
    return SW_OK;
}

static sw_status open_file(struct sw_frozen *self, const char *folder, const struct sw_units *units, uint64_t digest) {
    SW_TRY(sw_path_join(self->path, sizeof self->path, folder, SW_FROZEN_NAME));
    SW_TRY(make_arrays(self, units));
    self->file = sw_path_open(self->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (self->file < 0)
        return sw_fail(SW_ERR_IO, "%s, which holds the frozen weights of the run, cannot be opened: %s", self->path,
                       strerror(errno));
    SW_TRY(check_file(self));
    return digest == 0 || digest == sw_frozen_digest(self) ? SW_OK : refuse(self, "is that of another run");
}

sw_status sw_frozen_open(const char *folder, const struct sw_run *run, const struct sw_units *units,
                         struct sw_frozen **out) {
    *out = NULL;
    if (!sw_tuning_freezes(&run->settings.tuning))
        return SW_OK;
    struct sw_frozen *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the frozen weights");
    self->file = -1;
    self->units = units->count;
    self->frozen_units = sw_units_frozen(units);
    self->grains = sw_units_frozen_grains(units);
    const sw_status status = open_file(self, folder, units, run->frozen_digest);
    if (status == SW_OK)
        *out = self;
    else
        sw_frozen_close(self);
    return status;
}

void sw_frozen_close(struct sw_frozen *self) {
    if (self == NULL)
        return;
    if (self->file >= 0)
        close(self->file);
    free(self->first_grain);
    free(self->sum);
    free(self);
}

static int64_t offset_of(int64_t grain) {
    return HEADER_BYTES + grain * GRAIN_BYTES;
}

/* Reads a grain of the file into `out`. *out_whole: its sum is right. */
static sw_status read_grain(const struct sw_frozen *self, int64_t grain, float *out, bool *out_whole) {
    SW_TRY(sw_file_read(self->file, self->path, offset_of(grain), out, GRAIN_BYTES));
    *out_whole = sw_checksum(out, GRAIN_BYTES) == self->sum[grain];
    return SW_OK;
}

static sw_status read_whole_grain(const struct sw_frozen *self, int64_t grain, float *out) {
    bool whole = false;
    SW_TRY(read_grain(self, grain, out, &whole));
    if (!whole)
        return sw_fail(SW_ERR_CORRUPT, "the frozen weights at offset %lld of %s are damaged; restore it from a copy",
                       (long long)offset_of(grain), self->path);
    return SW_OK;
}

/* Reads some elements of a grain. Reads the whole grain each time: only bytes that were checked may be used, and the
 * file may change at any time. */
static sw_status read_part(const struct sw_frozen *self, int64_t grain, int64_t within, int64_t count, float *out) {
    float *values = malloc((size_t)GRAIN_BYTES);
    const sw_status status = values == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to read %s", self->path)
                                            : read_whole_grain(self, grain, values);
    if (status == SW_OK)
        memcpy(out, values + within, (size_t)count * sizeof *out);
    free(values);
    return status;
}

/* Returns the frozen elements of a unit, which come before the others. */
static int64_t frozen_elems(const struct sw_frozen *self, int64_t unit) {
    return (self->first_grain[unit + 1] - self->first_grain[unit]) * SW_GRAIN_ELEMS;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct sw_frozen *self = context;
    const int64_t border = frozen_elems(self, unit), end = first + count;
    for (count = sw_min_i64(end, border) - first; count > 0;) {
        const int64_t grain = self->first_grain[unit] + first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        SW_TRY(run == SW_GRAIN_ELEMS ? read_whole_grain(self, grain, out) : read_part(self, grain, within, run, out));
        first += run;
        count -= run;
        out += run;
    }
    return first < end ? self->trained.fill(self->trained.context, unit, first, end - first, out) : SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    const struct sw_frozen *self = context;
    const int64_t end = first + count, begin = sw_max_i64(first, frozen_elems(self, unit));
    if (begin >= end || self->trained.prepare == NULL)
        return SW_OK;
    return self->trained.prepare(self->trained.context, unit, begin, end - begin);
}

struct sw_load sw_frozen_load(struct sw_frozen *self, const struct sw_load *trained) {
    struct sw_load load = *trained;
    if (self == NULL)
        return load;
    self->trained = *trained;
    load.fill = fill;
    load.prepare = prepare;
    load.context = self;
    return load;
}

int64_t sw_frozen_bytes(const struct sw_frozen *self) {
    return self == NULL ? 0 : self->grains * GRAIN_BYTES;
}

uint64_t sw_frozen_digest(const struct sw_frozen *self) {
    return self == NULL ? 0 : self->sum[self->grains];
}

sw_status sw_frozen_keep_name(const struct sw_frozen *self) {
    return self == NULL ? SW_OK : sw_name_keep(self->file, self->path);
}

sw_status sw_frozen_put_back_name(const struct sw_frozen *self) {
    return self == NULL ? SW_OK : sw_name_put_back(self->file, self->path);
}

static void report_bad(const struct sw_frozen *self, int64_t grain, const struct sw_store_verifier *verifier) {
    int64_t unit = 0;
    while (unit + 1 < self->units && grain >= self->first_grain[unit + 1])
        unit++;
    if (verifier->bad != NULL)
        verifier->bad(verifier->context, &(struct sw_store_bad_grain){.unit = unit,
                                                                      .grain = grain - self->first_grain[unit],
                                                                      .path = self->path,
                                                                      .offset_bytes = offset_of(grain)});
}

sw_status sw_frozen_verify(struct sw_frozen *self, const struct sw_store_verifier *verifier, int64_t *out_grains,
                           int64_t *out_bad) {
    *out_grains = *out_bad = 0;
    if (self == NULL)
        return SW_OK;
    float *values = malloc((size_t)GRAIN_BYTES);
    if (values == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", self->path);
    sw_status status = SW_OK;
    for (int64_t g = 0; g < self->grains && status == SW_OK; g++) {
        bool whole = true;
        status = read_grain(self, g, values, &whole);
        if (!whole)
            report_bad(self, g, verifier);
        *out_bad += !whole;
    }
    free(values);
    *out_grains = self->grains;
    return status;
}
