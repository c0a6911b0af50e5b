/* The frozen weights of units, or their checksums, in a file of their own.
 *
 * The store rewrites its grains in two generations; frozen weights never change, so in the store they would take twice
 * their size in fp32 and two moments that stay zero. A separate file is written once, needs no generations, and is the
 * same for every number of ranks.
 *
 * A Hugging Face folder already holds the weights, so a run that began from one keeps only their checksums. A start
 * computes them from the very values that it loads, so it reads the folder once.
 *
 * Each grain is checked whenever it is read and only checked values are used: other programs can write to the files at
 * any time. */
#include "run/folder/frozen.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/streams.h"
#include "model/hf/checkpoint.h"
#include "model/hf/folder_contents.h"
#include "model/model.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, BOX_GRAINS = 16, SHARED_SUMS = 4096, WHAT_CHARS = 1024 };
enum { WITH_GRAINS = 1, SUMS_ONLY = 2 }; /* versions of the file */
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
    int file; /* -1: not open */
    const struct sw_units *layout;
    int64_t units, frozen_units, grains; /* units: all; frozen_units: those that have frozen grains */
    int64_t *first_grain; /* one entry per unit: its first grain among the frozen ones; then the number of all grains */
    uint64_t *sum;        /* one entry per grain, then the sum of the header and these sums */
    struct sw_load trained;           /* loads all that is not frozen; during a start, everything */
    char *base;                       /* the folder that has the grains; NULL: the file has them */
    struct sw_checkpoint *checkpoint; /* the open base; NULL: it is closed */
    bool *taken; /* one entry per grain: whether this start has its sum; NULL: no start is under way */
};

static struct header header_of(uint32_t version, int64_t units, int64_t grains) {
    struct header header = {.version = version, .units = (uint32_t)units, .grains = grains};
    memcpy(header.magic, MAGIC, sizeof header.magic);
    return header;
}

/* Returns the sum that ends the file. */
static uint64_t sum_of_all(const struct header *header, const uint64_t *sum, int64_t grains) {
    const uint64_t parts[] = {sw_checksum(header, sizeof *header), sw_checksum(sum, grains * (int64_t)sizeof *sum)};
    return sw_checksum(parts, sizeof parts);
}

/* Returns the offset of the sums. */
static int64_t sums_at(uint32_t version, int64_t grains) {
    return HEADER_BYTES + (version == WITH_GRAINS ? grains * GRAIN_BYTES : 0);
}

static int64_t file_bytes(uint32_t version, int64_t grains) {
    return sums_at(version, grains) + (grains + 1) * (int64_t)sizeof(uint64_t);
}

struct sw_frozen_part sw_frozen_part_of(const struct sw_settings *settings, const struct sw_model_config *config,
                                        const struct sw_units *units, bool base) {
    SW_HANDLES_ERRORS();
    struct sw_units *whole = NULL;
    if (sw_settings_part_ranks(settings) > 1 &&
        sw_model_units(config, settings->tiles, units->optimizer, &settings->tuning, &whole) == SW_OK)
        units = whole;
    const struct sw_frozen_part part = {.units = sw_units_frozen(units),
                                        .all_units = units->count,
                                        .parameters = sw_units_frozen_parameters(units),
                                        .file_bytes =
                                            file_bytes(base ? SUMS_ONLY : WITH_GRAINS, sw_units_frozen_grains(units))};
    sw_units_destroy(whole);
    return part;
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

/* Appends the header, the grains unless `from` is NULL, and the sums. */
static sw_status append_all(struct writer *w, const struct sw_units *units, const struct sw_load *from) {
    const int64_t grains = w->total_grains;
    const struct header header = header_of(from != NULL ? WITH_GRAINS : SUMS_ONLY, sw_units_frozen(units), grains);
    char page[HEADER_BYTES] = {0};
    memcpy(page, &header, sizeof header);
    SW_TRY(append(w, page, sizeof page));
    for (int64_t u = 0; from != NULL && u < units->count; u++)
        SW_TRY(append_unit(w, &units->unit[u], u, from));
    w->sum[grains] = sum_of_all(&header, w->sum, grains);
    SW_TRY(append(w, w->sum, (grains + 1) * (int64_t)sizeof *w->sum));
    if (w->block_bytes > 0)
        SW_TRY(sw_write_behind_put(w->file, w->block_bytes));
    return sw_write_behind_finish(w->file);
}

/* Writes the open file and flushes it. from NULL: without grains, whose sums are in sum[]; else computes them there. */
static sw_status write_file(int file, const char *path, const struct sw_units *units, const struct sw_load *from,
                            uint64_t *sum) {
    const int64_t grains = sw_units_frozen_grains(units);
    struct writer w = {.box = malloc((size_t)(BOX_GRAINS * GRAIN_BYTES)), .sum = sum, .total_grains = grains};
    sw_status status = w.box != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    if (status == SW_OK)
        status = sw_write_behind_open(file, path, file_bytes(from != NULL ? WITH_GRAINS : SUMS_ONLY, grains), &w.file);
    if (status == SW_OK)
        status = append_all(&w, units, from);
    sw_write_behind_close(w.file);
    free(w.box);
    if (status == SW_OK && fsync(file) != 0)
        status = sw_fail(SW_ERR_IO, "%s cannot be flushed: %s", path, strerror(errno));
    return status;
}

/* Makes the file. *out: its descriptor; -1 after a failure. */
static sw_status make_file(const char *path, const struct sw_units *units, const struct sw_load *from, uint64_t *sum,
                           int *out) {
    *out = sw_path_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*out < 0)
        return sw_fail(SW_ERR_IO, "cannot make %s: %s", path, strerror(errno));
    sw_status status = write_file(*out, path, units, from, sum);
    if (status == SW_OK)
        status = sw_file_flush_folder_of(path);
    if (status == SW_OK)
        return SW_OK;
    sw_path_unlink(path);
    close(*out);
    *out = -1;
    return status;
}

sw_status sw_frozen_write(const char *folder, const struct sw_units *units, const struct sw_load *from) {
    char path[SW_RUN_PATH_CHARS];
    int file = -1;
    SW_TRY(sw_path_join(path, sizeof path, folder, SW_FROZEN_NAME));
    uint64_t *sum = malloc((size_t)(sw_units_frozen_grains(units) + 1) * sizeof *sum);
    const sw_status status =
        sum != NULL ? make_file(path, units, from, sum, &file) : sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    if (file >= 0)
        close(file);
    free(sum);
    return status;
}

static sw_status refuse(const struct sw_frozen *self, const char *what) {
    return sw_fail(SW_ERR_CORRUPT, "%s, which holds the frozen weights of the run, %s; restore it from a copy",
                   self->path, what);
}

/* Reads the header and the sums, and checks that they belong to these units. *out: the file's version. */
static sw_status check_file(struct sw_frozen *self, uint32_t *out) {
    struct header found = {0};
    int64_t bytes;
    SW_TRY(sw_file_size(self->file, self->path, &bytes));
    if (bytes >= (int64_t)sizeof found)
        SW_TRY(sw_file_read(self->file, self->path, 0, &found, sizeof found));
    const struct header expected =
        header_of(found.version == SUMS_ONLY ? SUMS_ONLY : WITH_GRAINS, self->frozen_units, self->grains);
    if (bytes != file_bytes(expected.version, self->grains))
        return refuse(self, "is cut off or of another model or --freeze");
    SW_TRY(sw_file_read(self->file, self->path, sums_at(expected.version, self->grains), self->sum,
                        (self->grains + 1) * (int64_t)sizeof *self->sum));
    if (memcmp(&found, &expected, sizeof found) != 0 ||
        self->sum[self->grains] != sum_of_all(&expected, self->sum, self->grains))
        return refuse(self, "is damaged or of another --freeze");
    *out = expected.version;
    return SW_OK;
}

static sw_status open_base(struct sw_frozen *self) {
    const sw_status status = sw_checkpoint_open_frozen(self->base, self->layout, &self->checkpoint);
    return sw_fail_while(status,
                         "opening the model that the run reads its frozen weights from; if it was moved, --model DIR "
                         "says where it is now");
}

static sw_status refuse_base(const char *folder) {
    return sw_fail(SW_ERR_ARG,
                   "the run %s holds all of its weights itself and reads none from a model's folder; leave "
                   "out --model",
                   folder);
}

static sw_status keep_base(struct sw_frozen *self, const char *base) {
    self->base = strdup(base);
    return self->base != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read the frozen weights");
}

static sw_status open_file(struct sw_frozen *self, const char *folder, const struct sw_run *run) {
    uint32_t version = 0;
    SW_TRY(sw_path_join(self->path, sizeof self->path, folder, SW_FROZEN_NAME));
    self->file = sw_path_open(self->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (self->file < 0)
        return sw_fail(SW_ERR_IO, "%s, which holds the frozen weights of the run, cannot be opened: %s", self->path,
                       strerror(errno));
    SW_TRY(check_file(self, &version));
    if (run->frozen_digest != 0 && run->frozen_digest != sw_frozen_digest(self))
        return refuse(self, "is that of another run");
    if (version == WITH_GRAINS)
        return run->moved_model != NULL ? refuse_base(folder) : SW_OK;
    SW_TRY(keep_base(self, run->moved_model != NULL ? run->moved_model : run->settings.model));
    return open_base(self);
}

static sw_status make(const struct sw_units *units, struct sw_frozen **out) {
    struct sw_frozen *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->file = -1;
        self->layout = units;
        self->units = units->count;
        self->frozen_units = sw_units_frozen(units);
        self->grains = sw_units_frozen_grains(units);
        self->first_grain = calloc((size_t)self->units + 1, sizeof *self->first_grain);
        self->sum = calloc((size_t)self->grains + 1, sizeof *self->sum);
    }
    if (self == NULL || self->first_grain == NULL || self->sum == NULL) {
        sw_frozen_close(self);
        return sw_fail(SW_ERR_NOMEM, "no memory to read the frozen weights");
    }
    for (int64_t u = 0; u < self->units; u++)
        self->first_grain[u + 1] = self->first_grain[u] + units->unit[u].trained_grain;
    *out = self;
    return SW_OK;
}

/* Gives what was opened to the caller, or closes what could not be. */
static sw_status hand_over(struct sw_frozen *self, sw_status status, struct sw_frozen **out) {
    if (status == SW_OK)
        *out = self;
    else
        sw_frozen_close(self);
    return status;
}

sw_status sw_frozen_open(const char *folder, const struct sw_run *run, const struct sw_units *units,
                         struct sw_frozen **out) {
    struct sw_frozen *self = NULL;
    *out = NULL;
    if (!sw_tuning_freezes(&run->settings.tuning))
        return run->moved_model != NULL ? refuse_base(folder) : SW_OK;
    SW_TRY(make(units, &self));
    return hand_over(self, open_file(self, folder, run), out);
}

static sw_status begin(struct sw_frozen *self, const char *base) {
    self->taken = calloc((size_t)self->grains + 1, sizeof *self->taken);
    if (self->taken == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the checksums of the frozen weights");
    return keep_base(self, base);
}

sw_status sw_frozen_begin(const char *base, const struct sw_units *units, struct sw_frozen **out) {
    struct sw_frozen *self = NULL;
    *out = NULL;
    SW_TRY(make(units, &self));
    return hand_over(self, begin(self, base), out);
}

void sw_frozen_rest(struct sw_frozen *self) {
    if (self == NULL)
        return;
    sw_checkpoint_close(self->checkpoint);
    self->checkpoint = NULL;
}

void sw_frozen_close(struct sw_frozen *self) {
    if (self == NULL)
        return;
    sw_frozen_rest(self);
    if (self->file >= 0)
        close(self->file);
    free(self->first_grain);
    free(self->sum);
    free(self->taken);
    free(self->base);
    free(self);
}

const char *sw_frozen_base(const struct sw_frozen *self) {
    return self == NULL ? NULL : self->base;
}

/* A frozen grain, by its unit and its number in that unit. */
struct place {
    int64_t unit, grain;
};

static struct place place_of(const struct sw_frozen *self, int64_t grain) {
    int64_t unit = 0;
    while (grain >= self->first_grain[unit + 1])
        unit++;
    return (struct place){unit, grain - self->first_grain[unit]};
}

/* The tensors of the base that a grain has elements of. */
struct base_tensors {
    const struct sw_frozen *frozen;
    int64_t unit, count;
    struct sw_checkpoint_place first, last;
};

static sw_status add_tensor(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    (void)run;
    (void)at;
    struct base_tensors *self = context;
    const struct sw_checkpoint_place found = sw_checkpoint_find(self->frozen->checkpoint, self->unit, tensor, whole);
    if (self->count > 0 && strcmp(self->last.tensor, found.tensor) == 0)
        return SW_OK;
    if (self->count == 0)
        self->first = found;
    self->last = found;
    self->count++;
    return SW_OK;
}

static struct base_tensors tensors_of(const struct sw_frozen *self, struct place at) {
    struct base_tensors tensors = {.frozen = self, .unit = at.unit};
    (void)sw_unit_walk(&self->layout->unit[at.unit], at.grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, add_tensor, &tensors);
    return tensors;
}

static int64_t offset_of(int64_t grain) {
    return HEADER_BYTES + grain * GRAIN_BYTES;
}

/* Reads a grain of the base. A value that is not finite was none when the run began, so it is a wrong one. */
static sw_status read_base(const struct sw_frozen *self, int64_t grain, float *out, bool *out_finite) {
    const struct place at = place_of(self, grain);
    const sw_status status =
        sw_checkpoint_fill(self->checkpoint, at.unit, at.grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, out);
    *out_finite = status != SW_ERR_ARG;
    if (status != SW_ERR_ARG)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Reads a grain into `out`. *out_whole: its sum is right. */
static sw_status read_grain(const struct sw_frozen *self, int64_t grain, float *out, bool *out_whole) {
    bool finite = true;
    SW_TRY(self->base != NULL ? read_base(self, grain, out, &finite)
                              : sw_file_read(self->file, self->path, offset_of(grain), out, GRAIN_BYTES));
    *out_whole = finite && sw_checksum(out, GRAIN_BYTES) == self->sum[grain];
    return SW_OK;
}

/* Fails for a grain whose sum is wrong. One sum covers all tensors of a grain. */
static sw_status refuse_grain(const struct sw_frozen *self, int64_t grain) {
    char what[WHAT_CHARS];
    if (self->base == NULL)
        return sw_fail(SW_ERR_CORRUPT, "the frozen weights at offset %lld of %s are damaged; restore it from a copy",
                       (long long)offset_of(grain), self->path);
    const struct place at = place_of(self, grain);
    const struct base_tensors found = tensors_of(self, at);
    if (found.count == 1)
        snprintf(what, sizeof what, "the tensor '%s'", found.first.tensor);
    else
        snprintf(what, sizeof what, "one of the %lld tensors from '%s' to '%s'", (long long)found.count,
                 found.first.tensor, found.last.tensor);
    return sw_fail(SW_ERR_CORRUPT,
                   "%s in %s has changed since the run began, or is that of another model (grain %lld of unit %lld): "
                   "the run reads its frozen weights from there; put the file back, or name a whole copy of the model "
                   "by --model DIR",
                   what, found.first.path, (long long)at.grain, (long long)at.unit);
}

static sw_status read_whole_grain(const struct sw_frozen *self, int64_t grain, float *out) {
    bool whole = false;
    SW_TRY(read_grain(self, grain, out, &whole));
    return whole ? SW_OK : refuse_grain(self, grain);
}

/* Reads some elements of a grain. Reads the whole grain each time: only values that were checked may be used, and the
 * files may change at any time. */
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

/* Loads elements for a start, and computes the sums of the frozen grains among them. */
static sw_status take(const struct sw_frozen *self, int64_t unit, int64_t first, int64_t count, float *out) {
    const int64_t end = sw_min_i64(first + count, frozen_elems(self, unit));
    SW_TRY(self->trained.fill(self->trained.context, unit, first, count, out));
    for (int64_t elem = first; elem < end; elem += SW_GRAIN_ELEMS) {
        const int64_t grain = self->first_grain[unit] + elem / SW_GRAIN_ELEMS;
        const uint64_t sum = sw_checksum(out + (elem - first), GRAIN_BYTES);
        assert(elem % SW_GRAIN_ELEMS == 0 && elem + SW_GRAIN_ELEMS <= end);
        if (self->taken[grain] && self->sum[grain] != sum)
            return sw_fail(SW_ERR_CORRUPT, "the weights in %s changed while they were loaded", self->base);
        self->sum[grain] = sum;
        self->taken[grain] = true;
    }
    return SW_OK;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct sw_frozen *self = context;
    if (self->taken != NULL)
        return take(self, unit, first, count, out);
    const int64_t border = frozen_elems(self, unit), end = first + count;
    for (count = sw_min_i64(end, border) - first; count > 0;) {
        const int64_t grain = self->first_grain[unit] + first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        SW_TRY(run == SW_GRAIN_ELEMS ? read_whole_grain(self, grain, out) : read_part(self, grain, within, run, out));
        first += run;
        count -= run;
        out += run;
    }
    return first < end && self->trained.fill != NULL
               ? self->trained.fill(self->trained.context, unit, first, end - first, out)
               : SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    const struct sw_frozen *self = context;
    const int64_t border = self->taken != NULL ? 0 : frozen_elems(self, unit);
    const int64_t end = first + count, begin = sw_max_i64(first, border);
    if (self->checkpoint != NULL && first < border)
        SW_TRY(sw_checkpoint_prepare(self->checkpoint, unit, first, sw_min_i64(end, border) - first));
    if (begin >= end || self->trained.prepare == NULL)
        return SW_OK;
    return self->trained.prepare(self->trained.context, unit, begin, end - begin);
}

/* During a start the source has the records, afterwards the base. */
static sw_status take_record(void *context, int64_t unit, int64_t grain, void *record) {
    struct sw_frozen *self = context;
    return self->taken != NULL ? self->trained.record(self->trained.context, unit, grain, record)
                               : sw_checkpoint_record(self->checkpoint, unit, grain, record);
}

sw_status sw_frozen_load(struct sw_frozen *self, const struct sw_load *trained, struct sw_load *out) {
    *out = *trained;
    if (self == NULL)
        return SW_OK;
    if (self->base != NULL && self->taken == NULL && self->checkpoint == NULL)
        SW_TRY(open_base(self));
    self->trained = *trained;
    out->fill = fill;
    out->prepare = prepare;
    out->record = self->checkpoint != NULL || trained->record != NULL ? take_record : NULL;
    out->context = self;
    return SW_OK;
}

/* A grain's sum that a rank has taken, or not. */
struct taken_sum {
    uint64_t sum, taken;
};

/* Takes over the sums of one rank. */
static sw_status merge(struct sw_frozen *self, int64_t first, int64_t count, const struct taken_sum *sums) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t grain = first + i;
        if (sums[i].taken && self->taken[grain] && sums[i].sum != self->sum[grain])
            return sw_fail(SW_ERR_ARG,
                           "the ranks have loaded different weights from %s: give all machines the same files",
                           self->base);
        if (sums[i].taken) {
            self->sum[grain] = sums[i].sum;
            self->taken[grain] = true;
        }
    }
    return SW_OK;
}

/* Exchanges the sums of some grains. The ranks take different ones where they share the weights (--zero 3). */
static sw_status share_some(struct sw_frozen *self, struct sw_ranks *ranks, int64_t first, int64_t count) {
    struct taken_sum own[SHARED_SUMS];
    void *all = NULL;
    for (int64_t i = 0; i < count; i++)
        own[i] = (struct taken_sum){self->sum[first + i], self->taken[first + i]};
    SW_TRY(sw_ranks_collect(ranks, "checksums of the frozen weights", own, count * (int64_t)sizeof *own, &all));
    sw_status status = SW_OK;
    for (int rank = 0; status == SW_OK && rank < sw_ranks_count(ranks); rank++)
        status = merge(self, first, count, (const struct taken_sum *)all + rank * count);
    free(all);
    return sw_ranks_agree_on_error(ranks, status);
}

static sw_status share_sums(struct sw_frozen *self, struct sw_ranks *ranks) {
    for (int64_t first = 0; first < self->grains; first += SHARED_SUMS)
        SW_TRY(share_some(self, ranks, first, sw_min_i64(SHARED_SUMS, self->grains - first)));
    for (int64_t grain = 0; grain < self->grains; grain++)
        if (!self->taken[grain])
            return sw_fail(SW_ERR_INTERNAL, "no rank has loaded grain %lld of the frozen weights", (long long)grain);
    const struct header header = header_of(SUMS_ONLY, self->frozen_units, self->grains);
    self->sum[self->grains] = sum_of_all(&header, self->sum, self->grains);
    return SW_OK;
}

sw_status sw_frozen_finish(struct sw_frozen *self, const char *folder, struct sw_ranks *ranks) {
    SW_TRY(share_sums(self, ranks));
    SW_TRY(sw_path_join(self->path, sizeof self->path, folder, SW_FROZEN_NAME));
    SW_TRY(sw_ranks_first(ranks, make_file(self->path, self->layout, NULL, self->sum, &self->file)));
    free(self->taken);
    self->taken = NULL;
    return SW_OK;
}

int64_t sw_frozen_bytes(const struct sw_frozen *self) {
    return self == NULL ? 0 : self->grains * GRAIN_BYTES;
}

uint64_t sw_frozen_digest(const struct sw_frozen *self) {
    return self == NULL ? 0 : self->sum[self->grains];
}

sw_status sw_frozen_keep_name(const struct sw_frozen *self) {
    return self == NULL || self->file < 0 ? SW_OK : sw_name_keep(self->file, self->path);
}

sw_status sw_frozen_put_back_name(const struct sw_frozen *self) {
    return self == NULL || self->file < 0 ? SW_OK : sw_name_put_back(self->file, self->path);
}

void sw_frozen_look_for_base(const struct sw_frozen *self) {
    if (self != NULL && self->base != NULL && !sw_folder_has_weights(self->base))
        sw_log_warn(
            "the model %s, from which the run reads its frozen weights, is no longer there: bring it back before "
            "`spillway resume`, or say by --model DIR where it is now",
            self->base);
}

static void report_bad(const struct sw_frozen *self, int64_t grain, const struct sw_store_verifier *verifier) {
    const struct place at = place_of(self, grain);
    struct sw_store_bad_grain bad = {
        .unit = at.unit, .grain = at.grain, .path = self->path, .offset_bytes = offset_of(grain)};
    if (self->base != NULL) {
        const struct sw_checkpoint_place first = tensors_of(self, at).first;
        bad.tensor = first.tensor;
        bad.path = first.path;
        bad.offset_bytes = first.offset_bytes;
    }
    verifier->bad(verifier->context, &bad);
}

/* Reads a grain ahead of its check. */
static sw_status announce(const struct sw_frozen *self, int64_t grain) {
    const struct place at = place_of(self, grain);
    return self->base == NULL
               ? SW_OK
               : sw_checkpoint_prepare(self->checkpoint, at.unit, at.grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS);
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
        status = announce(self, g);
        if (status == SW_OK)
            status = read_grain(self, g, values, &whole);
        if (!whole)
            report_bad(self, g, verifier);
        *out_bad += !whole;
    }
    free(values);
    *out_grains = self->grains;
    return status;
}
