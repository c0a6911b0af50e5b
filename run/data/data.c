#include "run/data/data.h"

#include "core/number.h"
#include "core/rng.h"
#include "core/size.h"
#include "run/data/data_internal.h"
#include "run/data/kept_scan.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define VALIDATION_MAX_PERCENT 50.0

/* Keeps the order of the windows apart from every other use of the same seed; the epoch is added. */
#define DATA_RNG_STREAM (UINT64_C(0x64617461) << 32)

static sw_status check_spec(const struct sw_data_spec *spec) {
    assert(spec->vocab >= 1 && spec->vocab <= INT32_MAX);
    if (spec->seq < 1 || spec->seq > INT32_MAX)
        return sw_fail(SW_ERR_ARG, "a sequence of %lld tokens is not possible; give at least 1", (long long)spec->seq);
    if (!(spec->validation_percent >= 0 && spec->validation_percent <= VALIDATION_MAX_PERCENT))
        return sw_fail(SW_ERR_ARG, "a validation part of %g%% is not possible; give 0%% to %g%%",
                       spec->validation_percent, VALIDATION_MAX_PERCENT);
    if (spec->validation_file != NULL && spec->validation_percent > 0)
        return sw_fail(SW_ERR_ARG, "validation is a file (%s) and a part (%g%%) of the data; give one of them",
                       spec->validation_file, spec->validation_percent);
    return SW_OK;
}

/* Tells whether documents lie whole within sequences (text/documents/packer.h): behind the sequences stands one token,
 * the last one's target, which is a document of its own. */
static sw_status is_packed(const struct sw_data *data, int64_t tokens, bool *out) {
    uint8_t mark = 0;
    if (tokens > data->seq && tokens % data->seq == 1 && sw_token_stream_has_documents(data->stream))
        SW_TRY(sw_token_stream_read_marks(data->stream, tokens - 1, 1, &mark));
    *out = (mark & SW_TOKEN_BEGINS_DOCUMENT) != 0;
    return SW_OK;
}

/* Makes the last part of the stream that of validation. Where documents are packed it has whole sequences, at least
 * one, so that both parts keep their documents whole; the token between them, which has no loss, is in both. */
static sw_status divide(struct sw_data *data, int64_t tokens, double percent) {
    bool packed = false;
    data->validation_tokens = (int64_t)((double)tokens * percent / 100.0);
    data->train_tokens = tokens - data->validation_tokens;
    data->validation_first = data->train_tokens;
    if (percent > 0)
        SW_TRY(is_packed(data, tokens, &packed));
    if (!packed)
        return SW_OK;
    const int64_t sequences = sw_max_i64(1, data->validation_tokens / data->seq);
    data->validation_tokens = sequences * data->seq + 1;
    data->validation_first = tokens - data->validation_tokens;
    data->train_tokens = data->validation_first + 1;
    return SW_OK;
}

static sw_status open_streams(struct sw_data *data, const struct sw_data_spec *spec) {
    const bool evaluates_only = spec->file_count == 0 && spec->validation_file != NULL;
    if (!evaluates_only)
        SW_TRY(sw_token_stream_open(spec->files, spec->file_count, spec->vocab, spec->format, &data->stream));
    const int64_t tokens = evaluates_only ? 0 : sw_token_stream_tokens(data->stream);
    if (spec->validation_file != NULL) {
        SW_TRY(sw_token_stream_open(&spec->validation_file, 1, spec->vocab, spec->format, &data->validation_stream));
        data->validation_tokens = sw_token_stream_tokens(data->validation_stream);
        data->train_tokens = tokens;
        return SW_OK;
    }
    return divide(data, tokens, spec->validation_percent);
}

static sw_status check_lengths(const struct sw_data *data, const struct sw_data_spec *spec) {
    const bool wants_validation = spec->validation_file != NULL || spec->validation_percent > 0;
    const struct {
        const char *name;
        int64_t tokens;
        bool wanted;
    } parts[] = {{"training", data->train_tokens, data->stream != NULL},
                 {"validation", data->validation_tokens, wants_validation}};
    for (int i = 0; i < 2; i++) {
        if (parts[i].wanted && parts[i].tokens < data->seq + 1)
            return sw_fail(SW_ERR_ARG,
                           "the %s data holds %s, but a sequence of %lld needs %lld; give more data or a "
                           "shorter sequence",
                           parts[i].name, SW_COUNT(parts[i].tokens, "token"), (long long)data->seq,
                           (long long)data->seq + 1);
    }
    return SW_OK;
}

static sw_status scan_stream(struct sw_data *data, struct sw_token_stream *stream, struct sw_data_digests *digests,
                             XXH3_state_t *hash) {
    const int64_t tokens = sw_token_stream_tokens(stream);
    SW_TRY(sw_data_digests_alloc(digests, 0, tokens));
    for (int64_t first = 0; first < tokens; first += SW_DATA_BLOCK) {
        const int64_t count = sw_min_i64(SW_DATA_BLOCK, tokens - first);
        const size_t bytes = (size_t)count * sizeof *data->block;
        SW_TRY(sw_token_stream_read(stream, first, count, data->block));
        XXH3_64bits_update(hash, data->block, bytes);
        digests->block[first / SW_DATA_BLOCK] = XXH3_64bits(data->block, bytes);
    }
    return SW_OK;
}

/* A part of a stream's tokens. */
struct part {
    const char *name;
    int64_t first, tokens;
    int64_t shared; /* tokens at its end that are also the next part's */
};

/* Counts the marks of a part's first token, which is nobody's target, as the others are counted below. */
static sw_status count_first(struct sw_token_stream *stream, int64_t first, struct sw_token_counts *counts) {
    uint8_t mark;
    SW_TRY(sw_token_stream_read_marks(stream, first, 1, &mark));
    mark &= (uint8_t)~SW_TOKEN_LEARNT;
    sw_token_counts_add(counts, &mark, 1);
    /* A document that the part begins within counts too. */
    counts->documents += sw_token_stream_has_documents(stream) && mark == 0;
    return SW_OK;
}

static sw_status scan_marks_of(struct sw_data *data, sw_data_part index, const struct part *part, XXH3_state_t *hash) {
    struct sw_data_digests *digests = &data->mark_digests[index];
    uint8_t *buffer = (uint8_t *)data->block;
    const int64_t start = part->first + 1, end = part->first + part->tokens;
    struct sw_token_stream *stream = sw_data_part_stream(data, index);
    struct sw_token_counts *counts = &data->counts[index];
    *counts = (struct sw_token_counts){0};
    SW_TRY(sw_data_digests_alloc(digests, start, end));
    SW_TRY(count_first(stream, part->first, counts));
    for (int64_t first = start; first < end; first += SW_DATA_BLOCK) {
        const int64_t count = sw_min_i64(SW_DATA_BLOCK, end - first);
        SW_TRY(sw_token_stream_read_marks(stream, first, count, buffer));
        digests->block[(first - start) / SW_DATA_BLOCK] = XXH3_64bits(buffer, (size_t)count);
        /* A token that is in two parts begins the second one's first document. */
        sw_token_counts_add(counts, buffer, first + count == end ? count - part->shared : count);
        for (int64_t i = 0; i < count; i++)
            buffer[i] &= SW_TOKEN_LEARNT | SW_TOKEN_BEGINS_DOCUMENT;
        XXH3_64bits_update(hash, buffer, (size_t)count);
    }
    counts->tokens = part->tokens;
    return counts->learnt > 0
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "masks and documents leave no token of the %s data with a loss; give some a 1, behind "
                         "the first of a document",
                         part->name);
}

static sw_status scan_marks(struct sw_data *data, XXH3_state_t *hash) {
    const bool shares = data->validation_stream == NULL && data->validation_tokens > 0;
    const struct part parts[SW_DATA_PARTS] = {
        {"training", 0, data->train_tokens, shares ? data->train_tokens - data->validation_first : 0},
        {"validation", data->validation_first, data->validation_tokens, 0}};
    for (int i = 0; i < SW_DATA_PARTS; i++) {
        data->counts[i].tokens = parts[i].tokens;
        data->counts[i].learnt = sw_max_i64(0, parts[i].tokens - 1);
        if (parts[i].tokens > 1 && sw_token_stream_marked(sw_data_part_stream(data, (sw_data_part)i)))
            SW_TRY(scan_marks_of(data, (sw_data_part)i, &parts[i], hash));
    }
    return SW_OK;
}

/* Checks every token and takes the digest of all of them, and of where validation begins. */
static sw_status scan_all(struct sw_data *data) {
    XXH3_state_t *hash = XXH3_createState();
    sw_status status = SW_OK;
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    XXH3_64bits_reset(hash);
    if (data->stream != NULL)
        SW_TRY_GOTO(scan_stream(data, data->stream, &data->token_digests[SW_DATA_TRAINING], hash), done);
    if (data->validation_stream != NULL)
        SW_TRY_GOTO(scan_stream(data, data->validation_stream, &data->token_digests[SW_DATA_VALIDATION], hash), done);
    SW_TRY_GOTO(scan_marks(data, hash), done);
    const int64_t lengths[] = {data->train_tokens, data->validation_tokens};
    XXH3_64bits_update(hash, lengths, sizeof lengths);
    data->digest = XXH3_64bits_digest(hash);
done:
    XXH3_freeState(hash);
    return status;
}

/* Takes over what an earlier opening of the same files found, or reads all of them. */
static sw_status scan(struct sw_data *data) {
    data->block = malloc(SW_DATA_BLOCK * sizeof *data->block);
    if (data->block == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    if (sw_kept_scan_load(data))
        return SW_OK;
    SW_TRY(scan_all(data));
    sw_kept_scan_save(data);
    return SW_OK;
}

sw_status sw_data_open(const struct sw_data_spec *spec, struct sw_data **out) {
    SW_TRY(check_spec(spec));
    struct sw_data *data = calloc(1, sizeof *data);
    if (data == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the data");
    data->vocab = spec->vocab;
    data->seq = spec->seq;
    data->seed = spec->seed;
    sw_status status = SW_OK;
    SW_TRY_GOTO(open_streams(data, spec), failed);
    SW_TRY_GOTO(check_lengths(data, spec), failed);
    SW_TRY_GOTO(scan(data), failed);
    data->window = malloc(((size_t)data->seq + 1) * sizeof *data->window);
    data->marks = malloc((size_t)data->seq);
    if (data->window == NULL || data->marks == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory for a window of %lld tokens", (long long)data->seq);
        goto failed;
    }
    *out = data;
    return SW_OK;
failed:
    sw_data_close(data);
    return status;
}

sw_status sw_data_count_train_tokens(const struct sw_data_spec *spec, int64_t *out) {
    struct sw_data data = {.vocab = spec->vocab, .seq = spec->seq};
    SW_TRY(check_spec(spec));
    sw_status status = open_streams(&data, spec);
    if (status == SW_OK)
        status = check_lengths(&data, spec);
    *out = data.train_tokens;
    sw_token_stream_close(data.stream);
    sw_token_stream_close(data.validation_stream);
    return status;
}

void sw_data_close(struct sw_data *data) {
    if (data == NULL)
        return;
    sw_token_stream_close(data->stream);
    sw_token_stream_close(data->validation_stream);
    free(data->window);
    free(data->marks);
    free(data->block);
    sw_data_digests_free(data);
    free(data);
}

int64_t sw_data_train_tokens(const struct sw_data *data) {
    return data->train_tokens;
}

int64_t sw_data_validation_tokens(const struct sw_data *data) {
    return data->validation_tokens;
}

int64_t sw_data_validation_windows(const struct sw_data *data) {
    return data->validation_tokens > 1 ? sw_div_up(data->validation_tokens - 1, data->seq) : 0;
}

bool sw_data_has_documents(const struct sw_data *data) {
    return (data->stream != NULL && sw_token_stream_has_documents(data->stream)) ||
           (data->validation_stream != NULL && sw_token_stream_has_documents(data->validation_stream));
}

uint64_t sw_data_digest(const struct sw_data *data) {
    return data->digest;
}

/* The window's document starts from the marks of its targets: those of the inputs after the first. */
static void find_starts(const uint8_t *marks, int64_t count, int32_t *starts) {
    starts[0] = 0;
    for (int64_t i = 1; i < count; i++)
        starts[i] = (marks[i - 1] & SW_TOKEN_BEGINS_DOCUMENT) != 0 ? (int32_t)i : starts[i - 1];
}

/* count inputs from a token on, and the targets after them. */
static sw_status read_window(struct sw_data *data, sw_data_part part, int64_t first, int64_t count,
                             struct sw_tokens out) {
    struct sw_token_stream *stream = sw_data_part_stream(data, part);
    const sw_status status = sw_token_stream_read(stream, first, count + 1, data->window);
    if (status == SW_ERR_ARG)
        return sw_fail_while(status, "reading data that were right when they were opened, and were changed since");
    SW_TRY(status);
    memcpy(out.inputs, data->window, (size_t)count * sizeof *out.inputs);
    memcpy(out.targets, data->window + 1, (size_t)count * sizeof *out.targets);
    if (out.document_start != NULL)
        memset(out.document_start, 0, (size_t)count * sizeof *out.document_start);
    if (sw_token_stream_marked(stream)) {
        SW_TRY(sw_token_stream_read_marks(stream, first + 1, count, data->marks));
        for (int64_t i = 0; i < count; i++)
            if (data->marks[i] != SW_TOKEN_LEARNT)
                out.targets[i] = -1;
        if (out.document_start != NULL)
            find_starts(data->marks, count, out.document_start);
    }
    /* Afterwards, so that a change while this read is seen. */
    return sw_data_check_unchanged(data, part, first, count + 1);
}

/* Where the window at a position of the endless training stream begins. */
static int64_t first_token(const struct sw_data *data, uint64_t position) {
    const uint64_t windows = (uint64_t)((data->train_tokens - 1) / data->seq);
    const uint64_t epoch = position / windows;
    const uint64_t window = sw_rng_permute(data->seed, DATA_RNG_STREAM + epoch, position % windows, windows);
    return (int64_t)window * data->seq;
}

sw_status sw_data_train_window(struct sw_data *data, uint64_t position, struct sw_tokens out) {
    return read_window(data, SW_DATA_TRAINING, first_token(data, position), data->seq, out);
}

sw_status sw_data_train_targets(struct sw_data *data, uint64_t position, int64_t *out) {
    *out = data->seq;
    if (!sw_token_stream_marked(data->stream))
        return SW_OK;
    SW_TRY(sw_token_stream_read_marks(data->stream, first_token(data, position) + 1, data->seq, data->marks));
    *out = 0;
    for (int64_t i = 0; i < data->seq; i++)
        *out += data->marks[i] == SW_TOKEN_LEARNT;
    return SW_OK;
}

sw_status sw_data_validation_window(struct sw_data *data, int64_t window, struct sw_tokens out) {
    assert(window >= 0 && window < sw_data_validation_windows(data));
    const int64_t first = window * data->seq;
    const int64_t count = sw_min_i64(data->seq, data->validation_tokens - 1 - first);
    SW_TRY(read_window(data, SW_DATA_VALIDATION, data->validation_first + first, count, out));
    for (int64_t i = count; i < data->seq; i++) {
        out.inputs[i] = 0;
        out.targets[i] = -1;
        if (out.document_start != NULL)
            out.document_start[i] = out.document_start[i - 1];
    }
    return SW_OK;
}

/* Tells whether a token has a loss in one block. */
static sw_status block_learns(struct sw_data *data, int64_t first, int64_t count, int32_t token, bool *out) {
    uint8_t *marks = malloc((size_t)count);
    sw_status status = marks != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    if (status == SW_OK)
        status = sw_token_stream_read(data->stream, first, count, data->block);
    if (status == SW_OK)
        status = sw_token_stream_read_marks(data->stream, first, count, marks);
    for (int64_t i = 0; status == SW_OK && i < count && !*out; i++)
        *out = data->block[i] == token && (marks[i] & SW_TOKEN_LEARNT) != 0;
    free(marks);
    return status;
}

sw_status sw_data_learns(struct sw_data *data, int32_t token, bool *out) {
    const int64_t blocks = sw_div_up(data->train_tokens, SW_DATA_BLOCK);
    const int64_t stride = sw_div_up(blocks, SW_DATA_LOOKED_BLOCKS);
    *out = false;
    for (int64_t b = 0; b < blocks && !*out; b += stride) {
        const int64_t first = b * SW_DATA_BLOCK;
        SW_TRY(block_learns(data, first, sw_min_i64(SW_DATA_BLOCK, data->train_tokens - first), token, out));
    }
    return SW_OK;
}
