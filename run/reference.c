/* The reference of a run with --dpo (reference.h).
 *
 * The file is a header, the log-probabilities in fp64 and an XXH3 of both. Numbers are little-endian. While they are
 * computed, which takes as long as a third of an epoch, a file of the same form keeps those that are done, and a run
 * that is killed goes on behind them: its weights are still those of the start. */
#include "run/reference.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "run/samples.h"
#include "run/trainer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { VERSION = 1 };
/* Progress is written every second, but takes at most a fiftieth of the time. */
#define SAVE_EVERY_NS INT64_C(1000000000)
enum { LEAST_PAUSE_SAVES = 50, PIECE_NUMBERS = 4096 };
#define MAGIC "SWREFER"
#define ANOTHER_RUN "is that of another run"
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the numbers of the file are little-endian");

struct header {
    char magic[8];
    int64_t version;
    uint64_t data_digest; /* of the data whose sequences these are */
    int64_t trained, validated;
    int64_t done; /* how many of the sequences, from the first, have their number */
};

void sw_reference_release(struct sw_reference *reference) {
    free(reference->of_training);
    *reference = (struct sw_reference){0};
}

/* Allocates the numbers of the data's sequences. */
static sw_status make(const struct sw_data *data, struct sw_reference *out) {
    const int64_t trained = sw_data_train_windows(data), validated = sw_data_validation_windows(data);
    *out = (struct sw_reference){.trained = trained,
                                 .validated = validated,
                                 .of_training = calloc((size_t)(trained + validated), sizeof *out->of_training)};
    if (out->of_training == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the reference of %lld sequences", (long long)(trained + validated));
    out->of_validation = out->of_training + trained;
    return SW_OK;
}

/* A part of the data while its sequences pass through the engine. */
struct pass {
    struct sw_trainer *trainer;
    bool validation;
    int64_t sequences, first; /* of the part, and the first of this pass over all ranks */
    double *out;              /* log-probabilities of the part */
    int64_t before;           /* sequences of the parts before */
    int64_t save_ns;          /* when what is done is saved next */
};

static int64_t per_rank(const struct pass *p) {
    const struct sw_settings *settings = &p->trainer->run.settings;
    return settings->micro_batch * sw_settings_micro_batches(settings);
}

static sw_status fill(const struct pass *p) {
    const struct sw_settings *settings = &p->trainer->run.settings;
    const struct sw_model *model = p->trainer->job.model;
    const int64_t batch = settings->micro_batch, own = p->first + per_rank(p) * sw_settings_data_rank(settings);
    for (int64_t s = 0; s < per_rank(p); s++) {
        int32_t *tokens = sw_engine_tokens(p->trainer->engine, s / batch);
        const struct sw_tokens at = sw_tokens_from(sw_model_tokens(model, tokens), s % batch * settings->seq);
        sw_model_reference(model, tokens)[s % batch] = 0.0;
        if (own + s >= p->sequences)
            sw_evaluation_clear(at, settings->seq);
        else if (p->validation)
            SW_TRY(sw_data_validation_window(p->trainer->data, own + s, at));
        else
            SW_TRY(sw_data_numbered_window(p->trainer->data, own + s, at));
    }
    return SW_OK;
}

/* Runs a pass, and collects the log-probabilities of all ranks. Those of a tensor group have the same. */
static sw_status run_pass(const struct pass *p) {
    struct sw_trainer *trainer = p->trainer;
    const struct sw_settings *settings = &trainer->run.settings;
    const int64_t batch = settings->micro_batch, count = per_rank(p), group = sw_settings_tensor_ranks(settings);
    const struct sw_step_input input = {.kind = SW_STEP_LOSS, .loss_tokens = 1};
    struct sw_step_result result;
    void *all;
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, fill(p)));
    SW_TRY(sw_engine_begin(trainer->engine, &input));
    SW_TRY(sw_engine_wait(trainer->engine, &result));
    double *own = calloc((size_t)count, sizeof *own);
    if (own == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the reference");
    for (int64_t s = 0; s < count; s++)
        own[s] = -sw_engine_sequence_losses(trainer->engine, s / batch)[s % batch];
    const sw_status status = sw_ranks_collect(trainer->ranks, "reference", own, count * (int64_t)sizeof *own, &all);
    free(own);
    SW_TRY(status);
    for (int64_t rank = 0; rank < sw_settings_data_ranks(settings); rank++) {
        const int64_t first = p->first + rank * count, taken = sw_min_i64(count, p->sequences - first);
        if (taken > 0)
            memcpy(p->out + first, (const double *)all + rank * group * count, (size_t)taken * sizeof *p->out);
    }
    free(all);
    return SW_OK;
}

static struct header header_of(const struct sw_trainer *trainer, int64_t done) {
    struct header header = {.version = VERSION,
                            .data_digest = trainer->run.data_digest,
                            .trained = trainer->reference.trained,
                            .validated = trainer->reference.validated,
                            .done = done};
    memcpy(header.magic, MAGIC, sizeof header.magic);
    return header;
}

static int64_t file_bytes(const struct header *header) {
    return (int64_t)sizeof *header + (header->trained + header->validated + 1) * (int64_t)sizeof(double);
}

static int64_t sequences_of(const struct sw_trainer *trainer) {
    return trainer->reference.trained + trainer->reference.validated;
}

/* Writes a file of the first `done` numbers, durably. */
static sw_status write_file(const struct sw_trainer *trainer, const char *name, int64_t done, uint64_t *out_digest) {
    const struct header header = header_of(trainer, done);
    const size_t bytes = (size_t)file_bytes(&header), summed = bytes - sizeof *out_digest;
    char path[SW_RUN_PATH_CHARS], *content = malloc(bytes);
    sw_status status = content != NULL ? sw_path_join(path, sizeof path, trainer->folder, name)
                                       : sw_fail(SW_ERR_NOMEM, "no memory to write the reference");
    if (status == SW_OK) {
        memcpy(content, &header, sizeof header);
        memcpy(content + sizeof header, trainer->reference.of_training, summed - sizeof header);
        *out_digest = XXH3_64bits(content, summed);
        memcpy(content + summed, out_digest, sizeof *out_digest);
        status = sw_file_replace(path, content, bytes, SW_FILE_PRIVATE);
    }
    free(content);
    return status;
}

/* Writes the whole file, notes its digest in run.json, and removes the file of what was done. */
static sw_status write_reference(struct sw_trainer *trainer) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(write_file(trainer, SW_REFERENCE_NAME, sequences_of(trainer), &trainer->run.reference_digest));
    SW_TRY(sw_run_write(trainer->folder, &trainer->run));
    SW_TRY(sw_path_join(path, sizeof path, trainer->folder, SW_REFERENCE_UNFINISHED_NAME));
    (void)sw_path_unlink(path);
    return SW_OK;
}

static sw_status refuse(const char *path, const char *what) {
    return sw_fail(SW_ERR_CORRUPT,
                   "%s, which holds what the starting weights of the run say of its pairs, %s; restore it from a copy",
                   path, what);
}

/* Opens a file and reads its header, which must agree with the file's length. */
static sw_status open_file(const char *folder, const char *name, char path[SW_RUN_PATH_CHARS], struct header *out,
                           int *out_file) {
    int64_t bytes;
    SW_TRY(sw_path_join(path, SW_RUN_PATH_CHARS, folder, name));
    const int file = *out_file = sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (file < 0)
        return sw_fail(SW_ERR_IO,
                       "%s, which holds what the starting weights of the run say of its pairs, cannot be "
                       "opened: %s; restore it from a copy",
                       path, strerror(errno));
    SW_TRY(sw_file_size(file, path, &bytes));
    if (bytes < (int64_t)(sizeof *out + sizeof(uint64_t)))
        return refuse(path, "is cut off");
    SW_TRY(sw_file_read(file, path, 0, out, sizeof *out));
    const bool is_right = memcmp(out->magic, MAGIC, sizeof MAGIC) == 0 && out->trained >= 0 && out->validated >= 0 &&
                          out->trained <= bytes && out->validated <= bytes && file_bytes(out) == bytes;
    return is_right ? SW_OK : refuse(path, "is damaged");
}

/* Reads the numbers of an opened file into `out`, one per sequence, and compares all of it with the digest at its end.
 * `out` may be NULL. */
static sw_status read_numbers(int file, const char *path, const struct header *header, double *out,
                              uint64_t *out_digest) {
    double piece[PIECE_NUMBERS];
    const int64_t count = header->trained + header->validated;
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    XXH3_64bits_reset(hash);
    XXH3_64bits_update(hash, header, sizeof *header);
    sw_status status = SW_OK;
    for (int64_t at = 0, some; status == SW_OK && at < count; at += some) {
        double *to = out != NULL ? out + at : piece;
        some = sw_min_i64(PIECE_NUMBERS, count - at);
        const int64_t bytes = some * (int64_t)sizeof *to;
        status = sw_file_read(file, path, (int64_t)sizeof *header + at * (int64_t)sizeof *to, to, bytes);
        if (status == SW_OK)
            XXH3_64bits_update(hash, to, (size_t)bytes);
    }
    const uint64_t found = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (status == SW_OK)
        status = sw_file_read(file, path, file_bytes(header) - (int64_t)sizeof found, out_digest, sizeof *out_digest);
    return status != SW_OK || found == *out_digest ? status : refuse(path, "is damaged");
}

static sw_status check_digest(const char *path, uint64_t found, const struct sw_run *run) {
    return found == run->reference_digest ? SW_OK : refuse(path, ANOTHER_RUN);
}

sw_status sw_reference_check(const char *folder, const struct sw_run *run) {
    char path[SW_RUN_PATH_CHARS];
    struct header header;
    uint64_t digest;
    int file = -1;
    if (run->reference_digest == 0)
        return SW_OK;
    sw_status status = open_file(folder, SW_REFERENCE_NAME, path, &header, &file);
    if (status == SW_OK)
        status = read_numbers(file, path, &header, NULL, &digest);
    if (status == SW_OK)
        status = check_digest(path, digest, run);
    if (file >= 0)
        close(file);
    return status;
}

static bool fits(const struct header *header, const struct sw_reference *reference) {
    return header->trained == reference->trained && header->validated == reference->validated;
}

static sw_status read_reference(struct sw_trainer *trainer) {
    char path[SW_RUN_PATH_CHARS];
    struct header header;
    uint64_t digest;
    int file = -1;
    struct sw_reference *reference = &trainer->reference;
    SW_TRY(make(trainer->data, reference));
    sw_status status = open_file(trainer->folder, SW_REFERENCE_NAME, path, &header, &file);
    if (status == SW_OK && !fits(&header, reference))
        status = refuse(path, ANOTHER_RUN);
    if (status == SW_OK)
        status = read_numbers(file, path, &header, reference->of_training, &digest);
    if (status == SW_OK)
        status = check_digest(path, digest, &trainer->run);
    const struct header expected = header_of(trainer, sequences_of(trainer));
    if (status == SW_OK && memcmp(&header, &expected, sizeof expected) != 0)
        status = refuse(path, "is of other data");
    if (file >= 0)
        close(file);
    return status;
}

/* Takes the numbers that an earlier start of this run has kept, and returns how many; 0: none. */
static int64_t take_done(struct sw_trainer *trainer) {
    SW_HANDLES_ERRORS();
    struct header found;
    char path[SW_RUN_PATH_CHARS];
    uint64_t digest;
    int file = -1;
    sw_status status = open_file(trainer->folder, SW_REFERENCE_UNFINISHED_NAME, path, &found, &file);
    const struct header expected = header_of(trainer, status == SW_OK ? found.done : 0);
    const bool is_own = status == SW_OK && memcmp(&found, &expected, sizeof found) == 0 && found.done >= 0 &&
                        found.done <= sequences_of(trainer);
    if (is_own)
        status = read_numbers(file, path, &found, trainer->reference.of_training, &digest);
    if (file >= 0)
        close(file);
    return is_own && status == SW_OK ? found.done : 0;
}

/* Keeps the numbers that are done. A file that cannot be written only costs work after a kill. */
static void keep_done(struct pass *p, int64_t done) {
    SW_HANDLES_ERRORS();
    const int64_t begin_ns = sw_now_ns();
    uint64_t digest;
    if (sw_ranks_rank(p->trainer->ranks) != 0 || begin_ns < p->save_ns)
        return;
    (void)write_file(p->trainer, SW_REFERENCE_UNFINISHED_NAME, done, &digest);
    const int64_t end_ns = sw_now_ns();
    p->save_ns = end_ns + sw_max_i64(SAVE_EVERY_NS, LEAST_PAUSE_SAVES * (end_ns - begin_ns));
}

static sw_status compute_part(struct pass *p, struct sw_long_work *work) {
    struct sw_ranks *ranks = p->trainer->ranks;
    const int64_t step = per_rank(p) * sw_settings_data_ranks(&p->trainer->run.settings);
    for (; p->first < p->sequences; p->first += step) {
        SW_TRY(run_pass(p));
        const int64_t done = p->before + sw_min_i64(p->sequences, p->first + step);
        keep_done(p, done);
        SW_TRY(sw_ranks_agree_on_error(ranks, sw_long_work_at(work, done)));
    }
    return SW_OK;
}

static sw_status check_finite(const struct sw_reference *reference) {
    for (int64_t i = 0; i < reference->trained + reference->validated; i++)
        if (!isfinite(reference->of_training[i]))
            return sw_fail(
                SW_ERR_NOT_FINITE,
                "the weights at the start give sequence %lld of the data no finite log-probability; check the "
                "weights and --precision",
                (long long)i);
    return SW_OK;
}

static sw_status compute(struct sw_trainer *trainer) {
    struct sw_reference *reference = &trainer->reference;
    struct sw_long_work work =
        sw_long_work_begin("computing what the starting weights say of the pairs", sequences_of(trainer));
    int64_t done = take_done(trainer);
    SW_TRY(sw_ranks_least(trainer->ranks, &done, 1));
    struct pass training = {.trainer = trainer,
                            .sequences = reference->trained,
                            .first = sw_min_i64(done, reference->trained),
                            .out = reference->of_training,
                            .save_ns = sw_now_ns() + SAVE_EVERY_NS};
    struct pass validation = {.trainer = trainer,
                              .validation = true,
                              .sequences = reference->validated,
                              .first = sw_max_i64(0, done - reference->trained),
                              .out = reference->of_validation,
                              .before = reference->trained,
                              .save_ns = training.save_ns};
    work.unit = "sequences";
    if (done > 0)
        sw_log_info("the numbers of %lld of %s are kept from an earlier start", (long long)done,
                    SW_COUNT(sequences_of(trainer), "sequence"));
    SW_TRY(sw_engine_settle(trainer->engine));
    SW_TRY(compute_part(&training, &work));
    SW_TRY(compute_part(&validation, &work));
    sw_long_work_end(&work);
    return check_finite(reference);
}

sw_status sw_reference_keep(const struct sw_trainer *trainer) {
    char path[SW_RUN_PATH_CHARS];
    struct stat info;
    uint64_t digest;
    const struct header header = header_of(trainer, sequences_of(trainer));
    if (trainer->reference.of_training == NULL || sw_ranks_rank(trainer->ranks) != 0)
        return SW_OK;
    SW_TRY(sw_path_join(path, sizeof path, trainer->folder, SW_REFERENCE_NAME));
    if (sw_path_lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file_bytes(&header))
        return SW_OK;
    SW_TRY(write_file(trainer, SW_REFERENCE_NAME, sequences_of(trainer), &digest));
    assert(digest == trainer->run.reference_digest);
    sw_log_warn("%s was removed or changed while the run trained, and was written anew", path);
    return SW_OK;
}

sw_status sw_reference_read(struct sw_trainer *trainer) {
    if (!trainer->run.settings.dpo || trainer->run.reference_digest == 0)
        return SW_OK;
    return sw_ranks_agree_on_error(trainer->ranks, read_reference(trainer));
}

sw_status sw_reference_prepare(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    if (!trainer->run.settings.dpo || trainer->reference.of_training != NULL)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(ranks, make(trainer->data, &trainer->reference)));
    if (trainer->position.step > 0)
        return sw_fail(SW_ERR_CORRUPT, "run.json lacks the reference_digest of a run with --dpo; restore the file");
    sw_long_work_stop_by(trainer->stop);
    const sw_status status = sw_ranks_agree_on_error(ranks, compute(trainer));
    sw_long_work_stop_by(NULL);
    SW_TRY(status);
    return sw_ranks_first(ranks, write_reference(trainer));
}
