#include "text/documents/marked_text.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_ROOM = 16 };

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
    marked->closed = marked->continues = marked->goes_on = false;
    marked->from = NULL;
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
    *run = (struct run){0};
    return SW_OK;
}

/* A document on its way to tokens. */
struct encoding {
    struct sw_text_encoder *encoder;
    struct run run; /* what is read and not encoded */
    struct sw_token_list *out;
    struct sw_text_buffer *out_loss;
    size_t skipped; /* of the next bytes: white space that a special token took */
};

static sw_status end_run(struct encoding *e) {
    return encode_run(e->encoder, &e->run, e->out, e->out_loss);
}

/* Adds the text at `data` to the run, which ends there. */
static sw_status add_text(struct encoding *e, const char *data, size_t bytes, bool loss) {
    const size_t skipped = bytes < e->skipped ? bytes : e->skipped;
    struct run *run = &e->run;
    e->skipped -= skipped;
    if (skipped == bytes)
        return SW_OK;
    /* The part behind a learnt part is learnt alone only where no special token lies between them. */
    if (!loss && run->unlearnt_bytes < run->text.bytes)
        SW_TRY(end_run(e));
    if (run->text.bytes == 0)
        run->text.data = data + skipped;
    run->unlearnt_bytes += loss ? 0 : bytes - skipped;
    run->text.bytes += bytes - skipped;
    return SW_OK;
}

static sw_status add_special(struct encoding *e, const struct sw_special_match *match, struct sw_text behind,
                             bool loss) {
    struct run *run = &e->run;
    if (match->strips_left)
        run->text.bytes -= sw_utf8_trailing_space_bytes(run->text);
    if (run->unlearnt_bytes > run->text.bytes)
        run->unlearnt_bytes = run->text.bytes;
    SW_TRY(end_run(e));
    SW_TRY(sw_token_list_append(e->out, &match->id, 1));
    e->skipped = match->strips_right ? sw_utf8_leading_space_bytes(behind) : 0;
    return append_loss(e->out_loss, 1, loss);
}

/* Adds the part of a text that begins at `at`. */
static sw_status add_part(struct encoding *e, struct sw_text text, size_t at, const struct sw_text_part *part) {
    const struct sw_text own = {text.data + at, part->bytes};
    for (size_t done = 0; done < own.bytes;) {
        struct sw_special_match match = {.id = -1, .begin = own.bytes, .end = own.bytes};
        if (part->special)
            match = sw_tokenizer_next_special(sw_text_encoder_tokenizer(e->encoder), own, done);
        SW_TRY(add_text(e, own.data + done, match.begin - done, part->loss));
        if (match.id >= 0) {
            const struct sw_text behind = {own.data + match.end, text.bytes - at - match.end};
            SW_TRY(add_special(e, &match, behind, part->loss));
        }
        done = match.end;
    }
    return SW_OK;
}

sw_status sw_marked_text_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                                bool parse_special, struct sw_token_list *out, struct sw_text_buffer *out_loss) {
    if (marked->parts == 0) {
        const struct sw_encode_options options = {.parse_special = parse_special};
        const size_t before = out->count;
        SW_TRY(sw_text_encode(encoder, sw_text_of_buffer(&marked->text), options, out));
        return append_loss(out_loss, out->count - before, true);
    }
    struct encoding e = {.encoder = encoder, .out = out, .out_loss = out_loss};
    for (size_t i = 0, at = 0; i < marked->parts; at += marked->part[i++].bytes)
        SW_TRY(add_part(&e, sw_text_of_buffer(&marked->text), at, &marked->part[i]));
    return end_run(&e);
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
    const bool begins = frame->begin.count > 0 && !marked->continues && (!marked->closed || frame->begins_chats);
    if (begins && !begins_with(out, from, &frame->begin))
        SW_TRY(put_before(&frame->begin, from, out, out_loss));
    if (frame->end < 0 || marked->closed || marked->goes_on)
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
