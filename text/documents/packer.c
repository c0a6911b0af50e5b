/* Packs documents into sequences of equal length, best fit first.
 *
 * Up to MOST_OPEN sequences are open at once. A document goes into the fullest one that has room, so little padding is
 * needed without sorting the data, which would need all of it in memory and would change its order. Only a document
 * longer than a sequence is split; cutting all documents where sequences end would lose the beginning of half of them.
 */
#include "text/documents/packer.h"

#include <stdlib.h>
#include <string.h>

/* More open sequences need less padding but more memory. */
enum { MOST_OPEN = 64 };

/* A sequence being filled. */
struct sequence {
    struct sw_token_list tokens;
    struct sw_text_buffer loss;
    struct sw_token_list lengths; /* lengths of its documents, in tokens */
};

struct sw_packer {
    struct sw_token_writer *writer;
    size_t seq;
    int32_t padding;
    struct sequence sequence[MOST_OPEN];
    int open;
    int64_t split, padded;
    /* The end of a document that comes in parts: at most a sequence and a part. */
    struct sw_token_list pending;
    struct sw_text_buffer pending_loss;
    bool pending_split; /* its beginning is already in sequences */
};

sw_status sw_packer_open(struct sw_token_writer *writer, int64_t seq, int32_t padding, struct sw_packer **out) {
    struct sw_packer *packer = calloc(1, sizeof *packer);
    if (packer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to pack documents");
    *packer = (struct sw_packer){.writer = writer, .seq = (size_t)seq, .padding = padding};
    *out = packer;
    return SW_OK;
}

void sw_packer_close(struct sw_packer *packer) {
    if (packer != NULL) {
        free(packer->pending.id);
        free(packer->pending_loss.data);
    }
    for (int i = 0; packer != NULL && i < MOST_OPEN; i++) {
        free(packer->sequence[i].tokens.id);
        free(packer->sequence[i].loss.data);
        free(packer->sequence[i].lengths.id);
    }
    free(packer);
}

/* `part`: the SW_MASK_... value of something that is not a whole document, else 0. */
static sw_status append(struct sequence *sequence, const struct sw_token_list *tokens, struct sw_text loss, char part) {
    const int32_t length = (int32_t)tokens->count;
    const size_t first = sequence->loss.bytes;
    SW_TRY(sw_token_list_append(&sequence->tokens, tokens->id, tokens->count));
    SW_TRY(sw_text_buffer_append(&sequence->loss, loss));
    if (part != 0)
        sequence->loss.data[first] = part;
    return sw_token_list_append(&sequence->lengths, &length, 1);
}

static sw_status fill_up(struct sw_packer *packer, struct sequence *sequence) {
    const size_t lacking = packer->seq - sequence->tokens.count;
    struct sw_token_list tokens = {0};
    struct sw_text_buffer loss = {0};
    if (lacking == 0)
        return SW_OK;
    sw_status status = sw_token_list_reserve(&tokens, lacking);
    if (status == SW_OK)
        status = sw_text_buffer_reserve(&loss, lacking);
    for (; status == SW_OK && tokens.count < lacking; tokens.count++, loss.bytes++) {
        tokens.id[tokens.count] = packer->padding;
        loss.data[loss.bytes] = 0;
    }
    if (status == SW_OK)
        status = append(sequence, &tokens, sw_text_of_buffer(&loss), SW_MASK_PADDING);
    packer->padded += (int64_t)lacking;
    free(tokens.id);
    free(loss.data);
    return status;
}

/* Fills up a sequence, writes it and empties it. */
static sw_status write(struct sw_packer *packer, struct sequence *sequence) {
    SW_TRY(fill_up(packer, sequence));
    for (size_t i = 0, at = 0; packer->writer != NULL && i < sequence->lengths.count; i++) {
        const size_t length = (size_t)sequence->lengths.id[i];
        const struct sw_token_list tokens = {.id = sequence->tokens.id + at, .count = length};
        SW_TRY(sw_token_writer_add(packer->writer, &tokens, (struct sw_text){sequence->loss.data + at, length}));
        at += length;
    }
    sequence->tokens.count = sequence->loss.bytes = sequence->lengths.count = 0;
    return SW_OK;
}

/* Returns the fullest sequence with room for `tokens` tokens, or NULL. */
static struct sequence *find(struct sw_packer *packer, size_t tokens) {
    struct sequence *best = NULL;
    for (int i = 0; i < packer->open; i++) {
        struct sequence *sequence = &packer->sequence[i];
        if (packer->seq - sequence->tokens.count < tokens)
            continue;
        if (best == NULL || sequence->tokens.count > best->tokens.count)
            best = sequence;
    }
    return best;
}

static sw_status add_fitting(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss,
                             char part) {
    struct sequence *sequence = find(packer, tokens->count);
    if (sequence == NULL && packer->open < MOST_OPEN)
        sequence = &packer->sequence[packer->open++];
    if (sequence == NULL) {
        sequence = find(packer, 0);
        SW_TRY(write(packer, sequence));
    }
    return append(sequence, tokens, loss, part);
}

sw_status sw_packer_add(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss) {
    const bool is_split = tokens->count > packer->seq;
    packer->split += is_split;
    for (size_t at = 0; at < tokens->count; at += packer->seq) {
        const size_t left = tokens->count - at, taken = left < packer->seq ? left : packer->seq;
        const struct sw_token_list part = {.id = tokens->id + at, .count = taken};
        const char which = (char)(at == 0 ? SW_MASK_SPLIT : SW_MASK_CONTINUES);
        SW_TRY(add_fitting(packer, &part, (struct sw_text){loss.data + at, taken}, (char)(is_split ? which : 0)));
    }
    return SW_OK;
}

sw_status sw_packer_add_part(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss,
                             bool ends) {
    struct sw_token_list *pending = &packer->pending;
    size_t at = 0;
    SW_TRY(sw_token_list_append(pending, tokens->id, tokens->count));
    SW_TRY(sw_text_buffer_append(&packer->pending_loss, loss));
    while (pending->count - at > (ends ? 0 : packer->seq)) {
        const size_t left = pending->count - at, taken = left < packer->seq ? left : packer->seq;
        const struct sw_token_list part = {.id = pending->id + at, .count = taken};
        const bool is_whole = ends && !packer->pending_split && taken == left;
        const char which = (char)(packer->pending_split ? SW_MASK_CONTINUES : SW_MASK_SPLIT);
        packer->split += !is_whole && !packer->pending_split;
        SW_TRY(add_fitting(packer, &part, (struct sw_text){packer->pending_loss.data + at, taken},
                           (char)(is_whole ? 0 : which)));
        packer->pending_split = true;
        at += taken;
    }
    pending->count -= at;
    packer->pending_loss.bytes = pending->count;
    if (pending->count > 0) {
        memmove(pending->id, pending->id + at, pending->count * sizeof *pending->id);
        memmove(packer->pending_loss.data, packer->pending_loss.data + at, pending->count);
    }
    packer->pending_split &= !ends;
    return SW_OK;
}

sw_status sw_packer_finish(struct sw_packer *packer) {
    static const char padding = SW_MASK_PADDING;
    const struct sw_token_list last = {.id = &packer->padding, .count = 1};
    for (int i = 0; i < packer->open; i++)
        SW_TRY(packer->sequence[i].tokens.count > 0 ? write(packer, &packer->sequence[i]) : SW_OK);
    packer->padded++;
    if (packer->writer == NULL)
        return SW_OK;
    return sw_token_writer_add(packer->writer, &last, (struct sw_text){&padding, 1});
}

int64_t sw_packer_split(const struct sw_packer *packer) {
    return packer->split;
}

int64_t sw_packer_padding(const struct sw_packer *packer) {
    return packer->padded;
}

/* The saved state: split, padding and the number of open sequences; then for each sequence its numbers of tokens and
 * documents, the tokens, their losses, and the lengths of the documents. */
static sw_status save_sequence(const struct sequence *sequence, struct sw_text_buffer *out) {
    const int64_t counts[] = {(int64_t)sequence->tokens.count, (int64_t)sequence->lengths.count};
    const struct sw_text parts[] = {
        {(const char *)counts, sizeof counts},
        {(const char *)sequence->tokens.id, sequence->tokens.count * sizeof *sequence->tokens.id},
        {sequence->loss.data, sequence->loss.bytes},
        {(const char *)sequence->lengths.id, sequence->lengths.count * sizeof *sequence->lengths.id}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].bytes > 0)
            SW_TRY(sw_text_buffer_append(out, parts[i]));
    return SW_OK;
}

sw_status sw_packer_save(const struct sw_packer *packer, struct sw_text_buffer *out) {
    const int64_t counts[] = {packer->split, packer->padded, packer->open};
    SW_TRY(sw_text_buffer_append(out, (struct sw_text){(const char *)counts, sizeof counts}));
    for (int i = 0; i < packer->open; i++)
        SW_TRY(save_sequence(&packer->sequence[i], out));
    return SW_OK;
}

/* Takes bytes from the beginning of a state. */
static sw_status take(struct sw_text *state, void *out, size_t bytes) {
    if (state->bytes < bytes)
        return sw_fail(SW_ERR_CORRUPT, "the state of packed documents is cut off");
    if (bytes > 0)
        memcpy(out, state->data, bytes);
    *state = (struct sw_text){state->data + bytes, state->bytes - bytes};
    return SW_OK;
}

static sw_status take_ids(struct sw_text *state, int64_t count, struct sw_token_list *out) {
    SW_TRY(sw_token_list_reserve(out, (size_t)count));
    SW_TRY(take(state, out->id, (size_t)count * sizeof *out->id));
    out->count = (size_t)count;
    return SW_OK;
}

static sw_status fail_damaged(void) {
    return sw_fail(SW_ERR_CORRUPT, "the state of packed documents is damaged");
}

/* Tells whether a sequence is valid: its documents fill it, and its tokens are in the vocabulary. */
static bool is_possible(const struct sequence *sequence, int64_t vocab) {
    size_t sum = 0;
    for (size_t i = 0; i < sequence->lengths.count; i++) {
        const int32_t length = sequence->lengths.id[i];
        if (length < 1 || (size_t)length > sequence->tokens.count)
            return false;
        sum += (size_t)length;
    }
    for (size_t i = 0; i < sequence->tokens.count; i++) {
        const char loss = sequence->loss.data[i];
        if (sequence->tokens.id[i] < 0 || sequence->tokens.id[i] >= vocab ||
            (loss != 0 && loss != 1 && loss != SW_MASK_SPLIT && loss != SW_MASK_CONTINUES))
            return false;
    }
    return sum == sequence->tokens.count;
}

static sw_status restore_sequence(const struct sw_packer *packer, struct sequence *sequence, int64_t vocab,
                                  struct sw_text *state) {
    int64_t counts[2];
    SW_TRY(take(state, counts, sizeof counts));
    if (counts[0] < 0 || counts[0] > (int64_t)packer->seq || counts[1] < 0 || counts[1] > counts[0])
        return fail_damaged();
    SW_TRY(take_ids(state, counts[0], &sequence->tokens));
    SW_TRY(sw_text_buffer_reserve(&sequence->loss, (size_t)counts[0]));
    SW_TRY(take(state, sequence->loss.data, (size_t)counts[0]));
    sequence->loss.bytes = (size_t)counts[0];
    SW_TRY(take_ids(state, counts[1], &sequence->lengths));
    return is_possible(sequence, vocab) ? SW_OK : fail_damaged();
}

sw_status sw_packer_restore(struct sw_packer *packer, int64_t vocab, struct sw_text state) {
    int64_t counts[3];
    SW_TRY(take(&state, counts, sizeof counts));
    if (counts[0] < 0 || counts[1] < 0 || counts[2] < 0 || counts[2] > MOST_OPEN)
        return fail_damaged();
    packer->split = counts[0];
    packer->padded = counts[1];
    packer->open = (int)counts[2];
    for (int i = 0; i < packer->open; i++)
        SW_TRY(restore_sequence(packer, &packer->sequence[i], vocab, &state));
    return state.bytes == 0 ? SW_OK : fail_damaged();
}

size_t sw_packer_most_bytes(const struct sw_packer *packer) {
    const size_t of_token = 2 * sizeof(int32_t) + 1, of_sequence = 2 * sizeof(int64_t) + packer->seq * of_token;
    return 3 * sizeof(int64_t) + MOST_OPEN * of_sequence;
}
