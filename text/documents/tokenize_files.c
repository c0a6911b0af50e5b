/* Turns text files into a token file, on several threads, resumably.
 *
 * One thread reads documents, all threads encode a batch, one writes it in order: the output does not depend on the
 * number of threads. A pipeline of queues would keep threads slightly busier, but the order and the journal would need
 * a protocol; batches need none.
 *
 * The journal says how far the work has come and is believed only where the token writer can prove it by digests,
 * because anyone who can write next to the output can write a journal. */
#include "text/documents/tokenize_files.h"

#include "core/clock.h"
#include "core/files/files.h"
#include "core/files/model_files.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "core/team.h"
#include "io/queue/file.h"
#include "text/documents/text_inputs.h"
#include "text/documents/token_writer.h"
#include "text/model_text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* The digest includes the absence of the first ALWAYS_NAMED files of a model. Files that were added later count only if
 * they exist, so that older digests stay valid. */
enum { READ_BYTES = 1 << 20, ALWAYS_NAMED = 6 };

void sw_digest_text(XXH3_state_t *hash, const char *text) {
    static const char none[] = "\0none";
    if (text == NULL)
        XXH3_64bits_update(hash, none, sizeof none);
    else
        XXH3_64bits_update(hash, text, strlen(text) + 1);
}

sw_status sw_digest_file(XXH3_state_t *hash, const char *path) {
    return sw_digest_file_twice(hash, NULL, path);
}

sw_status sw_digest_file_twice(XXH3_state_t *hash, XXH3_state_t *other, const char *path) {
    char *bytes = malloc(READ_BYTES);
    int fd = -1;
    ssize_t count = -1;
    sw_status status =
        bytes != NULL ? sw_file_open_to_read(path, &fd) : sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    while (fd >= 0 && (count = read(fd, bytes, READ_BYTES)) > 0) {
        XXH3_64bits_update(hash, bytes, (size_t)count);
        if (other != NULL)
            XXH3_64bits_update(other, bytes, (size_t)count);
    }
    if (status == SW_OK && count < 0)
        status = sw_fail(SW_ERR_ARG, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(bytes);
    return status;
}

sw_status sw_digest_model(XXH3_state_t *hash, const char *model) {
    struct stat info;
    if (stat(model, &info) == 0 && S_ISREG(info.st_mode))
        return sw_digest_file(hash, model);
    for (int i = 0; i < SW_MODEL_TEXT_FILES; i++) {
        char path[PATH_MAX];
        bool is_there;
        SW_TRY(sw_model_file_find(model, sw_model_file_names[i], path, &is_there));
        if (is_there || i < ALWAYS_NAMED)
            sw_digest_text(hash, sw_model_file_names[i]);
        if (is_there)
            SW_TRY(sw_digest_file(hash, path));
    }
    return SW_OK;
}

enum { SAMPLE_BYTES = 512 << 10 };

struct sample {
    const struct sw_tokenize_spec *spec;
    struct sw_model_text model;
    struct sw_text_inputs inputs;
    struct sw_text_reader *reader;
    struct sw_text_encoder *encoder;
    struct sw_packer *packer; /* NULL: documents are not packed */
    struct sw_document_frame frame;
    struct sw_marked_text text;
    struct sw_token_list tokens; /* of one document */
    struct sw_text_buffer loss;  /* of one document */
    double encoded;              /* tokens of the sample */
    int64_t bytes;               /* bytes of the files that these tokens are from */
    bool ended;                  /* the sample is all there is */
};

static sw_status open_sample(struct sample *s) {
    const struct sw_tokenize_spec *spec = s->spec;
    SW_TRY(sw_model_text_open(spec->model, &s->model));
    s->frame.end = spec->old_rules ? s->model.old_end : s->model.end;
    s->frame.begins_chats = spec->bos == SW_BOS_YES;
    s->frame.parse_special = spec->parse_special;
    SW_TRY(sw_model_text_begin(&s->model, spec->old_rules ? SW_BOS_NO : spec->bos, &s->frame.begin));
    struct sw_text_rules rules = spec->rules;
    rules.tokenizer = s->model.tokenizer;
    rules.model = spec->model;
    rules.most_text_bytes = SAMPLE_BYTES;
    SW_TRY(sw_text_inputs_expand(spec->names, spec->name_count, &s->inputs));
    SW_TRY(sw_text_reader_open((const char *const *)s->inputs.path, s->inputs.count, &rules, &s->reader));
    if (spec->pack_seq > 0)
        SW_TRY(sw_packer_open(NULL, spec->pack_seq, 0, &s->packer));
    return sw_text_encoder_create(s->model.tokenizer, &s->encoder);
}

/* Cuts off what a sequence of a pair has no room for. */
static void cut(int64_t seq, struct sw_token_list *tokens, struct sw_text_buffer *loss) {
    if (tokens->count <= (size_t)seq)
        return;
    tokens->count = (size_t)seq;
    loss->bytes = (size_t)seq;
}

static sw_status encode_sample(struct sample *s) {
    s->tokens.count = s->loss.bytes = 0;
    return sw_document_encode(s->encoder, &s->text, &s->frame, &s->tokens, &s->loss);
}

/* Reads documents until the sample is large enough. Files are read ahead in blocks, so how many bytes the documents
 * took is known only when the next block is read. The document in which that happens counts half: on average, half of
 * it is in the block before. */
static sw_status read_sample(struct sample *s) {
    for (;;) {
        const int64_t before = sw_text_reader_bytes_read(s->reader);
        SW_TRY(sw_text_reader_next(s->reader, &s->text, &s->ended));
        s->bytes = sw_text_reader_bytes_read(s->reader);
        if (s->ended)
            return SW_OK;
        SW_TRY(encode_sample(s));
        const bool is_last = before >= SAMPLE_BYTES && s->bytes > before;
        s->encoded += is_last ? 0.5 * (double)s->tokens.count : (double)s->tokens.count;
        if (is_last) {
            s->bytes = before;
            return SW_OK;
        }
        if (s->spec->rules.pairs)
            cut(s->spec->pack_seq, &s->tokens, &s->loss);
        if (s->spec->rules.pairs)
            SW_TRY(sw_packer_add_alone(s->packer, &s->tokens, sw_text_of_buffer(&s->loss)));
        else if (s->packer != NULL)
            SW_TRY(sw_packer_add(s->packer, &s->tokens, sw_text_of_buffer(&s->loss)));
    }
}

static sw_status estimate(struct sample *s, struct sw_token_estimate *out) {
    SW_TRY(open_sample(s));
    SW_TRY(read_sample(s));
    if (s->encoded == 0.0)
        return sw_fail(SW_ERR_ARG, "%s%s no text", s->inputs.path[0],
                       s->inputs.count > 1 ? " and the other files hold" : " holds");
    if (s->packer != NULL) {
        SW_TRY(sw_packer_finish(s->packer));
        s->encoded += (double)sw_packer_padding(s->packer);
    }
    const double all = (double)sw_text_reader_bytes(s->reader);
    *out = (struct sw_token_estimate){
        .tokens = (int64_t)(s->ended ? s->encoded : s->encoded / (double)s->bytes * all),
        .read_bytes = s->ended ? 0 : s->bytes,
    };
    return SW_OK;
}

sw_status sw_tokenize_estimate(const struct sw_tokenize_spec *spec, struct sw_token_estimate *out) {
    struct sample s = {.spec = spec};
    const sw_status status = estimate(&s, out);
    sw_text_encoder_destroy(s.encoder);
    sw_packer_close(s.packer);
    sw_text_reader_close(s.reader);
    sw_text_inputs_release(&s.inputs);
    sw_marked_text_release(&s.text);
    free(s.tokens.id);
    free(s.loss.data);
    free(s.frame.begin.id);
    sw_model_text_close(&s.model);
    return status;
}

/* The file: this head, the packer's state, and the XXH3 of both. The machine that wrote it reads it, so numbers have
 * its byte order. */
struct head {
    char magic[8];
    struct sw_tokenize_journal journal;
};
static const char magic[sizeof(((struct head *)0)->magic)] = "SWTOKJ4";
enum { DIGEST_BYTES = sizeof(uint64_t) };
/* Far beyond any file, and sums of such counts do not overflow. */
#define MOST_COUNT (INT64_C(1) << 56)

static bool name_of(const char *out, char path[PATH_MAX]) {
    return snprintf(path, PATH_MAX, "%s.journal", out) < PATH_MAX;
}

sw_status sw_tokenize_journal_write(const char *out, const struct sw_tokenize_journal *journal, struct sw_text packed) {
    struct sw_text_buffer text = {0};
    struct head head = {.journal = *journal};
    char path[PATH_MAX];
    memcpy(head.magic, magic, sizeof magic);
    if (!name_of(out, path))
        return sw_fail(SW_ERR_ARG, "the path of the token file is too long");
    sw_status status = sw_text_buffer_append(&text, (struct sw_text){(const char *)&head, sizeof head});
    if (status == SW_OK && packed.bytes > 0)
        status = sw_text_buffer_append(&text, packed);
    if (status == SW_OK) {
        const uint64_t digest = XXH3_64bits(text.data, text.bytes);
        status = sw_text_buffer_append(&text, (struct sw_text){(const char *)&digest, sizeof digest});
    }
    if (status == SW_OK)
        status = sw_file_replace(path, text.data, text.bytes, SW_FILE_SHARED);
    free(text.data);
    return status;
}

static bool read_all(int fd, size_t most_bytes, struct sw_text_buffer *out) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > (off_t)most_bytes ||
        sw_text_buffer_reserve(out, (size_t)info.st_size) != SW_OK)
        return false;
    for (ssize_t count = 1; count > 0 && out->bytes < (size_t)info.st_size; out->bytes += (size_t)count) {
        count = read(fd, out->data + out->bytes, (size_t)info.st_size - out->bytes);
        if (count < 0)
            return false;
    }
    return out->bytes == (size_t)info.st_size;
}

static bool is_whole(const struct sw_text_buffer *text) {
    uint64_t digest;
    if (text->bytes < sizeof(struct head) + DIGEST_BYTES || memcmp(text->data, magic, sizeof magic) != 0)
        return false;
    memcpy(&digest, text->data + text->bytes - DIGEST_BYTES, sizeof digest);
    return XXH3_64bits(text->data, text->bytes - DIGEST_BYTES) == digest;
}

/* Tells whether a journal is plausible for these files. Anyone may have written it who may write next to the token
 * file, so its own digest proves nothing; the token writer checks what it says of the token file. */
static bool is_possible(const struct sw_tokenize_journal *journal, int64_t files) {
    const struct sw_text_position *read = &journal->read;
    const struct sw_text_pieces_position *within = &read->within;
    const int64_t counts[] = {within->lines, read->skipped, read->empty, read->replaced, read->beside, journal->put};
    bool is_possible = read->file >= 0 && read->file <= files && within->form >= 0 &&
                       within->form <= SW_TEXT_JSON_LIST && within->offset >= 0 && within->offset <= MOST_COUNT &&
                       (within->form > 0 || within->offset == 0) && within->lines <= within->offset &&
                       (read->has_chats == 0 || read->has_chats == 1) && journal->text_bytes >= 0 &&
                       journal->text_bytes <= MOST_COUNT;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        is_possible &= counts[i] >= 0 && counts[i] <= MOST_COUNT;
    return is_possible;
}

bool sw_tokenize_journal_read(const char *out, struct sw_tokenize_limits limits, struct sw_tokenize_journal *journal,
                              struct sw_text_buffer *packed) {
    SW_HANDLES_ERRORS();
    struct sw_text_buffer text = {0};
    struct head head;
    char path[PATH_MAX];
    const int fd = name_of(out, path) ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    const size_t most_bytes = sizeof head + limits.packed_bytes + DIGEST_BYTES;
    bool found = fd >= 0 && read_all(fd, most_bytes, &text) && is_whole(&text);
    if (found) {
        memcpy(&head, text.data, sizeof head);
        *journal = head.journal;
        const struct sw_text rest = {text.data + sizeof head, text.bytes - sizeof head - DIGEST_BYTES};
        found = is_possible(journal, limits.files) && sw_text_buffer_append(packed, rest) == SW_OK;
    }
    if (fd >= 0)
        close(fd);
    free(text.data);
    return found;
}

static void tokenize_journal_remove(const char *out) {
    char path[PATH_MAX];
    if (name_of(out, path))
        (void)unlink(path);
}

/* A batch is encoded by all threads before it is written. */
enum { BATCH_DOCUMENTS = 1024, BATCH_BYTES = 8 << 20, UINT16_VOCAB = 1 << 16 };
/* An entry of a batch keeps the memory of documents up to this size; that of longer ones would add up. */
enum { KEPT_BYTES = 16 << 10 };

/* The journal is written every 0.2 s, but takes at most a fiftieth of the time. */
#define SAVE_EVERY_NS INT64_C(200000000)
enum { LEAST_PAUSE_SAVES = 50 };

struct document {
    struct sw_marked_text text;
    struct sw_token_list tokens;
    struct sw_text_buffer loss; /* a byte per token */
    sw_status status;
    char message[256]; /* error message of the thread that failed */
};

struct work {
    const struct sw_tokenize_spec *spec;
    struct sw_model_text model;
    struct sw_text_reader *reader;
    struct sw_token_writer *writer;
    struct sw_packer *packer; /* NULL: documents are not packed */
    struct sw_text_inputs inputs;
    struct sw_team *team;
    struct sw_text_encoder **encoder; /* one per document of a batch that is encoded at once; taken and given back */
    int encoders;
    struct document *document;
    int64_t documents; /* of this batch */
    struct sw_document_frame frame;
    bool within;  /* more of the last document follows, so nothing can be saved */
    bool unended; /* a document has no token after it, although --end is auto */
    /* How far the work has come. The digests are set at the beginning, the rest when it is written. */
    struct sw_tokenize_journal journal;
    bool has_journal;          /* false: the work cannot be resumed, because it reads a pipe */
    bool keeps;                /* finished work is kept for another call */
    bool blocked;              /* all is done, but a file is in the way of the output */
    int64_t text_bytes_before; /* text that earlier calls encoded */
    int64_t save_ns;           /* when to write the journal next */
};

static sw_status find_end(struct work *w) {
    const char *end = w->spec->end;
    w->frame.end = -1;
    if (strcmp(end, "auto") == 0) {
        w->frame.end = w->spec->old_rules ? w->model.old_end : w->model.end;
        return SW_OK;
    }
    if (strcmp(end, "none") == 0)
        return SW_OK;
    w->frame.end = sw_tokenizer_find(w->model.tokenizer, end);
    if (w->frame.end < 0)
        return sw_fail(SW_ERR_ARG, "--end: the tokenizer has no token '%s'", end);
    return SW_OK;
}

/* Finds the tokens around documents, and logs those that no flag names. */
static sw_status find_frame(struct work *w) {
    const struct sw_tokenize_spec *spec = w->spec;
    SW_TRY(find_end(w));
    SW_TRY(sw_model_text_begin(&w->model, spec->old_rules ? SW_BOS_NO : spec->bos, &w->frame.begin));
    w->frame.begins_chats = spec->bos == SW_BOS_YES;
    w->frame.parse_special = spec->parse_special;
    if (w->frame.end != w->model.old_end && strcmp(spec->end, "auto") == 0) {
        const struct sw_text end = sw_tokenizer_text(w->model.tokenizer, w->frame.end);
        sw_log_info("documents end with %.*s (%d), as %s says: config.json names no end in the vocabulary",
                    (int)end.bytes, end.data, w->frame.end, w->model.end_from);
    }
    return SW_OK;
}

static void release_document(struct document *document) {
    sw_marked_text_release(&document->text);
    free(document->tokens.id);
    free(document->loss.data);
    *document = (struct document){0};
}

static sw_status refuse_stale_documents(const struct work *w) {
    char path[PATH_MAX];
    const int chars = snprintf(path, sizeof path, "%s.doc", w->spec->out);
    if (w->spec->joined && chars > 0 && chars < (int)sizeof path && access(path, F_OK) == 0)
        return sw_fail(SW_ERR_ARG, "%s belongs to other tokens; remove it first", path);
    return SW_OK;
}

static sw_status encode(struct work *w, struct sw_text_encoder *encoder, struct document *document) {
    document->tokens.count = document->loss.bytes = 0;
    return sw_document_encode(encoder, &document->text, &w->frame, &document->tokens, &document->loss);
}

/* Encodes the documents of the batch whose number is `index` modulo the number of encoders. */
static void encode_share(void *context, int64_t index, int thread) {
    (void)thread;
    struct work *w = context;
    for (int64_t i = index; i < w->documents; i += w->encoders) {
        struct document *document = &w->document[i];
        document->status = encode(w, w->encoder[index], document);
        if (document->status == SW_OK)
            continue;
        (void)snprintf(document->message, sizeof document->message, "%s", sw_error_message(document->status));
        sw_error_clear();
        return;
    }
}

static sw_status read_batch(struct work *w, bool *out_end) {
    size_t bytes = 0;
    static_assert(BATCH_DOCUMENTS % 2 == 0, "a batch has whole pairs");
    bool within_pair = false;
    for (w->documents = 0; w->documents < BATCH_DOCUMENTS && (bytes < BATCH_BYTES || within_pair); w->documents++) {
        struct document *document = &w->document[w->documents];
        document->status = SW_OK;
        SW_TRY(sw_text_reader_next(w->reader, &document->text, out_end));
        if (*out_end)
            return SW_OK;
        within_pair = document->text.chosen;
        bytes += document->text.text.bytes;
        w->journal.text_bytes += (int64_t)document->text.text.bytes;
    }
    return SW_OK;
}

static sw_status put(struct work *w, const struct document *document) {
    const struct sw_marked_text *text = &document->text;
    const struct sw_text loss = sw_text_of_buffer(&document->loss);
    w->journal.put += document->tokens.count > 0 && !text->continues;
    w->unended |= w->frame.end < 0 && document->tokens.count > 0 && !text->closed;
    w->within = text->goes_on;
    if (w->packer != NULL && (text->continues || text->goes_on))
        return sw_packer_add_part(w->packer, &document->tokens, loss, !text->goes_on);
    if (w->packer != NULL)
        return sw_packer_add(w->packer, &document->tokens, loss);
    return text->continues ? sw_token_writer_add_more(w->writer, &document->tokens, loss)
                           : sw_token_writer_add(w->writer, &document->tokens, loss);
}

/* Checks that a sequence of a pair still has a token with a loss; the first of a document has none. */
static sw_status check_sequence(const struct work *w, const struct document *document, const char *name) {
    for (size_t i = 1; i < document->loss.bytes; i++)
        if (document->loss.data[i] == 1)
            return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "%s:%lld has a prompt that leaves no room for '%s' in a sequence of %lld tokens; make sequences "
                   "longer, or leave such pairs out with --skip-bad",
                   document->text.from, (long long)document->text.line, name, (long long)w->spec->pack_seq);
}

/* Writes a pair as two sequences, as trl does: what is beyond a sequence is cut off at its end. */
static sw_status put_pair(struct work *w, struct document *chosen, struct document *rejected) {
    cut(w->spec->pack_seq, &chosen->tokens, &chosen->loss);
    cut(w->spec->pack_seq, &rejected->tokens, &rejected->loss);
    sw_status status = check_sequence(w, chosen, "chosen");
    if (status == SW_OK)
        status = check_sequence(w, rejected, "rejected");
    if (status == SW_ERR_ARG && w->spec->rules.skip_bad) {
        sw_text_reader_leave_out(w->reader, status);
        return SW_OK;
    }
    SW_TRY(status);
    w->journal.put += 2;
    w->unended |= w->frame.end < 0 && !chosen->text.closed;
    SW_TRY(sw_packer_add_alone(w->packer, &chosen->tokens, sw_text_of_buffer(&chosen->loss)));
    return sw_packer_add_alone(w->packer, &rejected->tokens, sw_text_of_buffer(&rejected->loss));
}

/* Flushes what was written, and records how far the work has come. */
static sw_status save(struct work *w) {
    struct sw_text_buffer packed = {0};
    if (!w->has_journal)
        return SW_OK;
    sw_status status = sw_token_writer_flush(w->writer);
    if (status == SW_OK && w->packer != NULL)
        status = sw_packer_save(w->packer, &packed);
    w->journal.read = sw_text_reader_position(w->reader);
    w->journal.written = sw_token_writer_position(w->writer);
    if (status == SW_OK)
        status = sw_tokenize_journal_write(w->spec->out, &w->journal, sw_text_of_buffer(&packed));
    free(packed.data);
    return status;
}

/* Saves now and then, less often if saving takes long. */
static sw_status save_sometimes(struct work *w) {
    const int64_t begin_ns = sw_now_ns();
    if (begin_ns < w->save_ns || w->within)
        return SW_OK;
    SW_TRY(save(w));
    const int64_t end_ns = sw_now_ns(), pause_ns = (end_ns - begin_ns) * LEAST_PAUSE_SAVES;
    w->save_ns = end_ns + (pause_ns > SAVE_EVERY_NS ? pause_ns : SAVE_EVERY_NS);
    return SW_OK;
}

static bool read_journal(const struct work *w, struct sw_tokenize_journal *out, struct sw_text_buffer *packed) {
    const struct sw_tokenize_limits limits = {.files = w->inputs.count,
                                              .packed_bytes = w->packer != NULL ? sw_packer_most_bytes(w->packer) : 0};
    return sw_tokenize_journal_read(w->spec->out, limits, out, packed);
}

/* Tells whether there is a journal with work of this call or an equal one. */
static bool has_kept(const struct work *w) {
    SW_HANDLES_ERRORS();
    struct sw_tokenize_journal found;
    struct sw_text_buffer packed = {0};
    const bool is_there = read_journal(w, &found, &packed);
    free(packed.data);
    return is_there && found.rules == w->journal.rules && found.inputs == w->journal.inputs;
}

/* Keeps finished work if the user has asked to stop; within a document, the work before it. */
static sw_status stop_here(struct work *w, sw_status status) {
    if (status == SW_ERR_STOPPED && w->has_journal)
        w->keeps = w->within ? has_kept(w) : save(w) == SW_OK;
    return status;
}

/* Keeps the work in the journal if something about the output's folder is in its way, such as a full disk. */
static void keep_for_later(struct work *w, sw_status status) {
    /* Files that fill a disk must not stay in a cache. */
    if (((status == SW_ERR_SPACE && w->spec->confirm == NULL) || w->blocked) && w->has_journal && w->writer != NULL)
        w->keeps = has_kept(w);
    if (w->keeps)
        sw_log_info("what is done is kept; the same command goes on from there");
}

/* Refuses an old mask before the work if no token can get one: without packing, only chats and completions have masks.
 * A pipe might bring those, but its work cannot be kept, so the mask must belong to tokens that are replaced. */
static sw_status refuse_stale_mask(const struct work *w) {
    bool may_mask = w->spec->pack_seq > 0 || !w->has_journal;
    for (int i = 0; i < w->inputs.count; i++)
        may_mask |= sw_text_is_json(w->inputs.path[i]);
    const bool may_keep = w->has_journal || access(w->spec->out, F_OK) == 0;
    return may_mask && may_keep ? SW_OK : sw_token_writer_refuse_mask(w->writer);
}

/* Gives the files their names. The journal has all of them before, so that an obstacle costs no work. */
static sw_status publish(struct work *w) {
    const bool needs_none = sw_token_writer_position(w->writer).masked == 0;
    if (w->spec->confirm != NULL)
        SW_TRY(w->spec->confirm(w->spec->confirm_context));
    if (needs_none && w->packer == NULL && sw_token_writer_refuse_mask(w->writer) != SW_OK) {
        SW_TRY(save(w));
        w->blocked = true;
    }
    return sw_token_writer_publish(w->writer);
}

static sw_status encode_all(struct work *w) {
    struct sw_long_work progress = sw_long_work_begin("encoding text", sw_text_reader_bytes(w->reader));
    for (bool end = false; !end;) {
        SW_TRY(read_batch(w, &end));
        sw_team_begin(w->team, encode_share, w, w->encoders);
        sw_team_finish(w->team);
        for (int64_t i = 0; i < w->documents; i++) {
            struct document *document = &w->document[i];
            const struct document *last = document->text.chosen ? document + 1 : document;
            const struct document *failed = document->status != SW_OK ? document : last;
            if (failed->status != SW_OK)
                return sw_fail(failed->status, "%s: %s", failed->text.from, failed->message);
            if (document->text.chosen)
                SW_TRY(put_pair(w, document, document + 1));
            else if (!w->spec->rules.pairs)
                SW_TRY(put(w, document));
            if (document->text.text.room > KEPT_BYTES || document->tokens.room > KEPT_BYTES)
                release_document(document);
        }
        SW_TRY(save_sometimes(w));
        SW_TRY(stop_here(w, sw_long_work_at(&progress, sw_text_reader_bytes_read(w->reader))));
    }
    sw_long_work_end(&progress);
    if (strcmp(w->spec->rules.chat_format, "auto") != 0 && sw_text_reader_chat_style(w->reader) == NULL)
        sw_log_warn("--chat-format %s changes nothing: the data has no chats", w->spec->rules.chat_format);
    if (w->journal.put == 0)
        return sw_fail(SW_ERR_ARG, "%s%s no text, so there is nothing to write", w->inputs.path[0],
                       w->inputs.count > 1 ? " and the other files hold" : " holds");
    sw_text_reader_say_passed(w->reader);
    if (w->packer != NULL)
        SW_TRY(sw_packer_finish(w->packer));
    SW_TRY(publish(w));
    tokenize_journal_remove(w->spec->out);
    return SW_OK;
}

static void digest_flags(const struct work *w, XXH3_state_t *hash) {
    const struct sw_tokenize_spec *spec = w->spec;
    const struct sw_text_rules *rules = &spec->rules;
    const char *const texts[] = {SW_TOKENIZE_VERSION, rules->separator, rules->field,
                                 rules->chat_format,  spec->end,        rules->coding.encoding};
    const int64_t numbers[] = {rules->lines,    rules->all_loss,     rules->skip_bad, rules->coding.lossy, spec->bos,
                               spec->old_rules, spec->parse_special, spec->joined,    spec->pack_seq};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        sw_digest_text(hash, texts[i]);
    XXH3_64bits_update(hash, numbers, sizeof numbers);
    if (rules->pairs)
        sw_digest_text(hash, "pairs");
}

static sw_status digest_inputs(const struct work *w, XXH3_state_t *hash) {
    for (int i = 0; i < w->inputs.count; i++) {
        struct stat info;
        if (stat(w->inputs.path[i], &info) != 0)
            return sw_fail(SW_ERR_ARG, "%s: %s", w->inputs.path[i], strerror(errno));
        const int64_t numbers[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
        sw_digest_text(hash, w->inputs.path[i]);
        XXH3_64bits_update(hash, numbers, sizeof numbers);
    }
    return SW_OK;
}

static sw_status digest(struct work *w) {
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    XXH3_64bits_reset(hash);
    digest_flags(w, hash);
    sw_status status = sw_digest_model(hash, w->spec->model);
    w->journal.rules = XXH3_64bits_digest(hash);
    XXH3_64bits_reset(hash);
    if (status == SW_OK)
        status = digest_inputs(w, hash);
    w->journal.inputs = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return status;
}

static sw_status open_packer(struct work *w) {
    sw_packer_close(w->packer);
    w->packer = NULL;
    if (w->spec->pack_seq == 0)
        return SW_OK;
    return sw_packer_open(w->writer, w->spec->pack_seq, w->frame.end >= 0 ? w->frame.end : 0, &w->packer);
}

static sw_status begin_anew(struct work *w) {
    tokenize_journal_remove(w->spec->out);
    SW_TRY(open_packer(w));
    return sw_token_writer_begin(w->writer, &(struct sw_token_position){0});
}

/* Continues where an earlier call was interrupted, or begins again and says why. */
static sw_status begin_by_journal(struct work *w, const struct sw_tokenize_journal *found, struct sw_text packed) {
    char done[SW_SIZE_CHARS], all[SW_SIZE_CHARS];
    const char *changed = found->inputs != w->journal.inputs ? "the input" : NULL;
    if (found->rules != w->journal.rules)
        changed = "the flags or the model";
    sw_status status = changed == NULL ? sw_token_writer_begin(w->writer, &found->written) : SW_OK;
    if (changed == NULL && status == SW_OK && w->packer != NULL)
        status = sw_packer_restore(w->packer, w->model.vocab, packed);
    if (status == SW_ERR_CORRUPT) {
        sw_error_clear();
        changed = "its partial file";
    } else if (status != SW_OK) {
        return status;
    }
    if (changed != NULL) {
        sw_log_info("an earlier call was cut off before %s was whole, but %s changed since: beginning anew",
                    w->spec->out, changed);
        return begin_anew(w);
    }
    SW_TRY(sw_text_reader_go_to(w->reader, &found->read));
    w->journal = *found;
    w->text_bytes_before = found->text_bytes;
    sw_log_info("an earlier call was cut off before %s was whole: going on behind %s of %s", w->spec->out,
                sw_format_size(sw_text_reader_bytes_read(w->reader), done),
                sw_format_size(sw_text_reader_bytes(w->reader), all));
    return SW_OK;
}

static bool can_be_read_again(const char *path) {
    struct stat info;
    return strcmp(path, SW_TEXT_STDIN) != 0 && stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static sw_status begin(struct work *w) {
    struct sw_tokenize_journal found;
    struct sw_text_buffer packed = {0};
    w->has_journal = true;
    for (int i = 0; i < w->inputs.count; i++)
        w->has_journal &= can_be_read_again(w->inputs.path[i]);
    w->save_ns = sw_now_ns() + SAVE_EVERY_NS;
    if (w->has_journal)
        SW_TRY(digest(w));
    const bool is_there = w->has_journal && read_journal(w, &found, &packed);
    const sw_status status = is_there ? begin_by_journal(w, &found, sw_text_of_buffer(&packed)) : begin_anew(w);
    free(packed.data);
    return status;
}

static sw_status open_files(struct work *w) {
    const struct sw_tokenize_spec *spec = w->spec;
    struct sw_text_rules rules = spec->rules;
    rules.tokenizer = w->model.tokenizer;
    rules.model = spec->model;
    rules.parts = sw_tokenizer_parts(w->model.tokenizer);
    SW_TRY(refuse_stale_documents(w));
    SW_TRY(sw_text_inputs_expand(spec->names, spec->name_count, &w->inputs));
    sw_text_inputs_say(&w->inputs);
    SW_TRY(sw_text_reader_open((const char *const *)w->inputs.path, w->inputs.count, &rules, &w->reader));
    const struct sw_token_files files = {
        .token_bytes = w->model.vocab <= UINT16_VOCAB ? 2 : 4, .documents = !spec->joined, .digests = spec->digests};
    SW_TRY(sw_token_writer_open(spec->out, &files, &w->writer));
    SW_TRY(open_packer(w));
    SW_TRY(begin(w));
    return refuse_stale_mask(w);
}

static sw_status open_all(struct work *w) {
    SW_TRY(sw_model_text_open(w->spec->model, &w->model));
    SW_TRY(find_frame(w));
    SW_TRY(open_files(w));
    w->encoders = w->spec->threads;
    w->encoder = calloc((size_t)w->encoders, sizeof(struct sw_text_encoder *));
    w->document = calloc(BATCH_DOCUMENTS, sizeof *w->document);
    if (w->encoder == NULL || w->document == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to encode text");
    for (int i = 0; i < w->encoders; i++)
        SW_TRY(sw_text_encoder_create(w->model.tokenizer, &w->encoder[i]));
    return sw_team_open(w->encoders, &w->team);
}

static void close_all(struct work *w) {
    if (w->team != NULL)
        sw_team_close(w->team);
    for (int i = 0; w->encoder != NULL && i < w->encoders; i++)
        sw_text_encoder_destroy(w->encoder[i]);
    for (int i = 0; w->document != NULL && i < BATCH_DOCUMENTS; i++)
        release_document(&w->document[i]);
    free(w->encoder);
    free(w->document);
    free(w->frame.begin.id);
    sw_packer_close(w->packer);
    if (w->writer != NULL && !w->keeps)
        tokenize_journal_remove(w->spec->out);
    sw_token_writer_close(w->writer, w->keeps);
    sw_text_reader_close(w->reader);
    sw_text_inputs_release(&w->inputs);
    sw_model_text_close(&w->model);
}

static void describe(const struct work *w, struct sw_tokenized *out) {
    const struct sw_chat_style *style = sw_text_reader_chat_style(w->reader);
    const struct sw_token_position written = sw_token_writer_position(w->writer);
    *out = (struct sw_tokenized){.tokens = written.tokens,
                                 .learnt = written.learnt,
                                 .masked = written.masked,
                                 .documents = w->journal.put,
                                 .skipped = sw_text_reader_skipped(w->reader),
                                 .replaced = sw_text_reader_replaced(w->reader),
                                 .split = w->packer != NULL ? sw_packer_split(w->packer) : 0,
                                 .padding = w->packer != NULL ? sw_packer_padding(w->packer) : 0,
                                 .text_bytes = w->journal.text_bytes - w->text_bytes_before,
                                 .unended = w->unended && strcmp(w->spec->end, "auto") == 0,
                                 .token_bytes = w->model.vocab <= UINT16_VOCAB ? 2 : 4,
                                 .has_chats = style != NULL,
                                 .chat_format = style != NULL ? style->format : NULL};
}

sw_status sw_tokenize_files(const struct sw_tokenize_spec *spec, struct sw_tokenized *out) {
    struct work w = {.spec = spec};
    sw_status status = open_all(&w);
    const int64_t begin_ns = sw_now_ns();
    if (status == SW_OK)
        status = encode_all(&w);
    if (status == SW_OK) {
        describe(&w, out);
        out->seconds = (double)(sw_now_ns() - begin_ns) * 1e-9;
    }
    keep_for_later(&w, status);
    close_all(&w);
    return status;
}

void sw_tokenized_say(const struct sw_tokenized *made, const char *out) {
    const double percent = 100.0 / (double)made->tokens;
    sw_log_info("wrote %s: %s of %s, uint%d, in %.2f s (%.1f MB/s of text)", out, SW_COUNT(made->tokens, "token"),
                SW_COUNT(made->documents, "document"), made->token_bytes * 8, made->seconds,
                (double)made->text_bytes / made->seconds * 1e-6);
    if (made->chat_format != NULL)
        sw_log_info("chats are written in the format %s", made->chat_format);
    else if (made->has_chats)
        sw_log_info("chats are written by the model's own chat template");
    if (made->unended)
        sw_log_warn("nothing ends a document, so a model learns no end: neither config.json nor tokenizer_config.json "
                    "names an eos_token that the vocabulary has; spillway tokenize --end TOKEN names one");
    if (made->masked > 0)
        sw_log_info("%s %s a loss (%.3g%%)", SW_COUNT(made->learnt, "token"), made->learnt == 1 ? "has" : "have",
                    percent * (double)made->learnt);
    if (made->split > 0)
        sw_log_info("%s %s longer than a sequence and split", SW_COUNT(made->split, "document"),
                    made->split == 1 ? "was" : "were");
    if (made->padding > 0)
        sw_log_info("%s %s sequences up (%.3g%%)", SW_COUNT(made->padding, "token"),
                    made->padding == 1 ? "fills" : "fill", percent * (double)made->padding);
    if (made->replaced > 0)
        sw_log_warn("%s, bytes that the encoding does not have became U+FFFD", SW_COUNT(made->replaced, "time"));
    if (made->skipped > 0)
        sw_log_warn("%s %s wrong and left out", SW_COUNT(made->skipped, "JSON document"),
                    made->skipped == 1 ? "was" : "were");
}
