/* The reference of a run with --dpo (reference.h).
 *
 * The file is a header, the log-probabilities in fp64 and an XXH3 of both. Numbers are little-endian. A run that is
 * killed while they are computed computes them again, because its weights are still those of the start. */
#include "run/reference.h"

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
#include <unistd.h>
#include <xxhash.h>

enum { VERSION = 1 };
#define MAGIC "SWREFER"
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the numbers of the file are little-endian");

struct header {
    char magic[8];
    int64_t version;
    uint64_t data_digest; /* of the data whose sequences these are */
    int64_t trained, validated;
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
};

static int64_t per_rank(const struct pass *p) {
    const struct sw_settings *settings = &p->trainer->run.settings;
    return settings->micro_batch * sw_settings_micro_batches(settings);
}

static sw_status fill(const struct pass *p) {
    const struct sw_settings *settings = &p->trainer->run.settings;
    const struct sw_model *model = p->trainer->job.model;
    const int64_t batch = settings->micro_batch, own = p->first + per_rank(p) * sw_ranks_rank(p->trainer->ranks);
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

/* Runs a pass, and collects the log-probabilities of all ranks. */
static sw_status run_pass(const struct pass *p) {
    struct sw_trainer *trainer = p->trainer;
    const int64_t batch = trainer->run.settings.micro_batch, count = per_rank(p),
                  ranks = sw_ranks_count(trainer->ranks);
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
    const int64_t taken = sw_min_i64(count * ranks, p->sequences - p->first);
    memcpy(p->out + p->first, all, (size_t)taken * sizeof *p->out);
    free(all);
    return SW_OK;
}

static sw_status compute_part(struct pass *p, struct sw_long_work *work, int64_t before) {
    struct sw_ranks *ranks = p->trainer->ranks;
    const int64_t step = per_rank(p) * sw_ranks_count(ranks);
    for (p->first = 0; p->first < p->sequences; p->first += step) {
        SW_TRY(run_pass(p));
        SW_TRY(
            sw_ranks_agree_on_error(ranks, sw_long_work_at(work, before + sw_min_i64(p->sequences, p->first + step))));
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
    struct sw_long_work work = sw_long_work_begin("computing what the starting weights say of the pairs",
                                                  reference->trained + reference->validated);
    struct pass training = {.trainer = trainer, .sequences = reference->trained, .out = reference->of_training};
    struct pass validation = {
        .trainer = trainer, .validation = true, .sequences = reference->validated, .out = reference->of_validation};
    work.unit = "sequences";
    SW_TRY(sw_engine_settle(trainer->engine));
    SW_TRY(compute_part(&training, &work, 0));
    SW_TRY(compute_part(&validation, &work, reference->trained));
    sw_long_work_end(&work);
    return check_finite(reference);
}

static struct header header_of(const struct sw_trainer *trainer) {
    struct header header = {.version = VERSION,
                            .data_digest = trainer->run.data_digest,
                            .trained = trainer->reference.trained,
                            .validated = trainer->reference.validated};
    memcpy(header.magic, MAGIC, sizeof header.magic);
    return header;
}

static int64_t file_bytes(const struct header *header) {
    return (int64_t)sizeof *header + (header->trained + header->validated + 1) * (int64_t)sizeof(double);
}

/* Writes the file, durably, and notes its digest in run.json. */
static sw_status write_reference(struct sw_trainer *trainer) {
    const struct header header = header_of(trainer);
    const size_t bytes = (size_t)file_bytes(&header), summed = bytes - sizeof(uint64_t);
    char path[SW_RUN_PATH_CHARS], *content = malloc(bytes);
    sw_status status = content != NULL ? sw_path_join(path, sizeof path, trainer->folder, SW_REFERENCE_NAME)
                                       : sw_fail(SW_ERR_NOMEM, "no memory to write the reference");
    if (status == SW_OK) {
        memcpy(content, &header, sizeof header);
        memcpy(content + sizeof header, trainer->reference.of_training, summed - sizeof header);
        trainer->run.reference_digest = XXH3_64bits(content, summed);
        memcpy(content + summed, &trainer->run.reference_digest, sizeof(uint64_t));
        status = sw_file_replace(path, content, bytes, SW_FILE_PRIVATE);
    }
    free(content);
    return status == SW_OK ? sw_run_write(trainer->folder, &trainer->run) : status;
}

static sw_status refuse(const char *path, const char *what) {
    return sw_fail(SW_ERR_CORRUPT,
                   "%s, which holds what the starting weights of the run say of its pairs, %s; restore it from a copy",
                   path, what);
}

/* Reads the whole file. The caller frees *out. */
static sw_status read_file(const char *folder, char path[SW_RUN_PATH_CHARS], char **out, int64_t *out_bytes) {
    *out = NULL;
    SW_TRY(sw_path_join(path, SW_RUN_PATH_CHARS, folder, SW_REFERENCE_NAME));
    const int file = sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (file < 0)
        return sw_fail(SW_ERR_IO,
                       "%s, which holds what the starting weights of the run say of its pairs, cannot be "
                       "opened: %s; restore it from a copy",
                       path, strerror(errno));
    sw_status status = sw_file_size(file, path, out_bytes);
    if (status == SW_OK && *out_bytes < (int64_t)(sizeof(struct header) + sizeof(uint64_t)))
        status = refuse(path, "is cut off");
    if (status == SW_OK && (*out = malloc((size_t)*out_bytes)) == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    if (status == SW_OK)
        status = sw_file_read(file, path, 0, *out, *out_bytes);
    close(file);
    return status;
}

/* Compares content with the digests of its end and of run.json. */
static sw_status check_content(const char *path, const char *content, int64_t bytes, uint64_t digest) {
    uint64_t sum;
    const size_t summed = (size_t)bytes - sizeof sum;
    memcpy(&sum, content + summed, sizeof sum);
    if (memcmp(content, MAGIC, sizeof MAGIC) != 0 || XXH3_64bits(content, summed) != sum)
        return refuse(path, "is damaged");
    return sum == digest ? SW_OK : refuse(path, "is that of another run");
}

sw_status sw_reference_check(const char *folder, const struct sw_run *run) {
    char path[SW_RUN_PATH_CHARS], *content;
    int64_t bytes;
    if (run->reference_digest == 0)
        return SW_OK;
    sw_status status = read_file(folder, path, &content, &bytes);
    if (status == SW_OK)
        status = check_content(path, content, bytes, run->reference_digest);
    free(content);
    return status;
}

static sw_status read_reference(struct sw_trainer *trainer) {
    char path[SW_RUN_PATH_CHARS], *content;
    int64_t bytes;
    SW_TRY(make(trainer->data, &trainer->reference));
    const struct header expected = header_of(trainer);
    sw_status status = read_file(trainer->folder, path, &content, &bytes);
    if (status == SW_OK)
        status = check_content(path, content, bytes, trainer->run.reference_digest);
    if (status == SW_OK && (bytes != file_bytes(&expected) || memcmp(content, &expected, sizeof expected) != 0))
        status = refuse(path, "is of other data");
    if (status == SW_OK)
        memcpy(trainer->reference.of_training, content + sizeof expected,
               (size_t)bytes - sizeof expected - sizeof(uint64_t));
    free(content);
    return status;
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
