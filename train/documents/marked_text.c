#include "train/documents/marked_text.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_ROOM = 16, MOST_SPELLED_BYTES = 128 };

sw_status sw_marked_text_append(struct sw_marked_text *marked, struct sw_text text, struct sw_text_part how) {
    if (text.bytes == 0)
        return SW_OK;
    if (marked->parts == marked->room) {
        const size_t room = marked->room == 0 ? LEAST_ROOM : marked->room * 2;
        struct sw_text_part *grown = reallocarray(marked->part, room, sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a document of %zu parts", room);
        marked->part = grown;
        marked->room = room;
    }
    SW_TRY(sw_text_buffer_append(&marked->text, text));
    how.bytes = text.bytes;
    marked->part[marked->parts++] = how;
    return SW_OK;
}

void sw_marked_text_clear(struct sw_marked_text *marked) {
    marked->text.bytes = 0;
    marked->parts = 0;
    marked->closed = false;
}

void sw_marked_text_release(struct sw_marked_text *marked) {
    free(marked->text.data);
    free(marked->part);
    *marked = (struct sw_marked_text){0};
}

/* Parts that are encoded as one text. */
struct run {
    struct sw_text text;
    size_t unlearnt_bytes; /* at its beginning, of parts without a loss */
};

static sw_status append_loss(struct sw_text_buffer *loss, size_t count, bool value) {
    if (count == 0)
        return SW_OK;
    SW_TRY(sw_text_buffer_reserve(loss, count));
    memset(loss->data + loss->bytes, value ? 1 : 0, count);
    loss->bytes += count;
    return SW_OK;
}

/* Counts the tokens at `from` and later that a run shares with the tokens of its beginning without a loss. */
static sw_status count_unlearnt(struct sw_text_encoder *encoder, const struct run *run,
                                struct sw_encode_options options, const struct sw_token_list *tokens, size_t from,
                                size_t *out) {
    struct sw_token_list alone = {0};
    const struct sw_text text = {run->text.data, run->unlearnt_bytes};
    const sw_status status = sw_text_encode(encoder, text, options, &alone);
    *out = 0;
    while (status == SW_OK && *out < alone.count && from + *out < tokens->count &&
           alone.id[*out] == tokens->id[from + *out])
        ++*out;
    free(alone.id);
    return status;
}

static sw_status encode_run(struct sw_text_encoder *encoder, struct run *run, struct sw_token_list *out,
                            struct sw_text_buffer *out_loss) {
    const size_t from = out->count;
    const struct sw_encode_options options = {.continues = from > 0};
    size_t unlearnt;
    if (run->text.bytes == 0)
        return SW_OK;
    SW_TRY(sw_text_encode(encoder, run->text, options, out));
    unlearnt = out->count - from;
    if (run->unlearnt_bytes > 0 && run->unlearnt_bytes < run->text.bytes)
        SW_TRY(count_unlearnt(encoder, run, options, out, from, &unlearnt));
    else if (run->unlearnt_bytes == 0)
        unlearnt = 0;
    SW_TRY(append_loss(out_loss, unlearnt, false));
    SW_TRY(append_loss(out_loss, out->count - from - unlearnt, true));
    *run = (struct run){.text = {run->text.data + run->text.bytes, 0}};
    return SW_OK;
}

/* Returns the id of the special token that a text spells, or -1. */
static int32_t find_special(const struct sw_tokenizer *tokenizer, struct sw_text text) {
    char spelled[MOST_SPELLED_BYTES];
    if (text.bytes >= sizeof spelled)
        return -1;
    memcpy(spelled, text.data, text.bytes);
    spelled[text.bytes] = 0;
    const int32_t id = sw_tokenizer_find(tokenizer, spelled);
    return id >= 0 && sw_tokenizer_is_special(tokenizer, id) ? id : -1;
}

sw_status sw_marked_text_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                                bool parse_special, struct sw_token_list *out, struct sw_text_buffer *out_loss) {
    if (marked->parts == 0) {
        const struct sw_encode_options options = {.parse_special = parse_special};
        const size_t before = out->count;
        SW_TRY(sw_text_encode(encoder, sw_text_of_buffer(&marked->text), options, out));
        return append_loss(out_loss, out->count - before, true);
    }
    struct run run = {.text = {marked->text.data, 0}};
    for (size_t i = 0; i < marked->parts; i++) {
        const struct sw_text_part *part = &marked->part[i];
        const struct sw_text text = {run.text.data + run.text.bytes, part->bytes};
        const int32_t id = part->special ? find_special(sw_text_encoder_tokenizer(encoder), text) : -1;
        if (id >= 0) {
            SW_TRY(encode_run(encoder, &run, out, out_loss));
            SW_TRY(sw_token_list_append(out, &id, 1));
            SW_TRY(append_loss(out_loss, 1, part->loss));
            run.text.data += part->bytes;
            continue;
        }
        /* The part behind a learnt part is learnt alone only where no special token lies between them. */
        if (!part->loss && run.unlearnt_bytes < run.text.bytes)
            SW_TRY(encode_run(encoder, &run, out, out_loss));
        run.unlearnt_bytes += part->loss ? 0 : part->bytes;
        run.text.bytes += part->bytes;
    }
    return encode_run(encoder, &run, out, out_loss);
}

static bool begins_with(const struct sw_token_list *tokens, size_t from, const struct sw_token_list *begin) {
    return tokens->count - from >= begin->count &&
           memcmp(tokens->id + from, begin->id, begin->count * sizeof *begin->id) == 0;
}

/* Puts tokens before a document whose own begin at `from`. They have a loss where its first token has one. */
static sw_status put_before(const struct sw_token_list *begin, size_t from, struct sw_token_list *tokens,
                            struct sw_text_buffer *loss) {
    const size_t own = tokens->count - from;
    SW_TRY(sw_token_list_append(tokens, begin->id, begin->count));
    memmove(tokens->id + from + begin->count, tokens->id + from, own * sizeof *tokens->id);
    memcpy(tokens->id + from, begin->id, begin->count * sizeof *begin->id);
    SW_TRY(append_loss(loss, begin->count, true));
    memmove(loss->data + from + begin->count, loss->data + from, own);
    memset(loss->data + from, loss->data[from + begin->count], begin->count);
    return SW_OK;
}

sw_status sw_document_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                             const struct sw_document_frame *frame, struct sw_token_list *out,
                             struct sw_text_buffer *out_loss) {
    const size_t from = out->count;
    SW_TRY(sw_marked_text_encode(encoder, marked, frame->parse_special, out, out_loss));
    if (out->count == from)
        return SW_OK;
    const bool begins = frame->begin.count > 0 && (!marked->closed || frame->begins_chats);
    if (begins && !begins_with(out, from, &frame->begin))
        SW_TRY(put_before(&frame->begin, from, out, out_loss));
    if (frame->end < 0 || marked->closed)
        return SW_OK;
    SW_TRY(sw_token_list_append(out, &frame->end, 1));
    return append_loss(out_loss, 1, true);
}

sw_status sw_prompt_encode(struct sw_text_encoder *encoder, const struct sw_model_text *model, int bos,
                           struct sw_text prompt, struct sw_token_list *out) {
    const struct sw_marked_text marked = {.text = {.data = (char *)(uintptr_t)prompt.data, .bytes = prompt.bytes}};
    struct sw_document_frame frame = {.end = -1, .parse_special = true};
    struct sw_text_buffer loss = {0};
    const size_t from = out->count;
    sw_status status = sw_model_text_begin(model, bos, &frame.begin);
    if (status == SW_OK)
        status = sw_document_encode(encoder, &marked, &frame, out, &loss);
    if (status == SW_OK && out->count == from)
        status = sw_token_list_append(out, frame.begin.id, frame.begin.count);
    free(frame.begin.id);
    free(loss.data);
    return status;
}
