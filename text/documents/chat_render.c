/* Which bytes of a rendered chat are replies: one begins where the rendering of the turns before it, with what the
 * template puts before a reply that is asked for, ends. Where the template writes earlier turns otherwise once later
 * ones follow, that text is looked for right before the reply's content. */
#include "text/documents/chat_render.h"

#include <stdlib.h>
#include <string.h>

/* Renderings of a chat's beginning cost as much as the chat, so a long one has them for its first replies alone. */
enum { MOST_BEGINNINGS = 64 };

/* A chat on its way to text. */
struct rendering {
    const struct sw_chat_style *style;
    const struct sw_chat_turn *turn;
    const struct sw_jinja_message *message; /* [messages]: the turns */
    size_t messages;
    struct sw_jinja_text text; /* all of it */
    bool *loss;                /* [text.bytes.bytes] */
};

static unsigned char content_at(const struct rendering *r, size_t at) {
    return (unsigned char)r->text.marks.data[at] & SW_JINJA_CONTENT;
}

/* The bytes of a message's content in the text, perhaps with text of the template between. */
struct range {
    size_t begin, end; /* both SIZE_MAX: there are none */
};

/* Finds a message's content at `from` or later, and before that of the next messages. */
static struct range find_content(const struct rendering *r, size_t message, size_t from) {
    const unsigned char mark = sw_jinja_mark_of(message);
    struct range found = {SIZE_MAX, SIZE_MAX};
    for (size_t at = from; at < r->text.bytes.bytes; at++) {
        if (content_at(r, at) == mark)
            found = (struct range){found.begin == SIZE_MAX ? at : found.begin, at + 1};
        else if (content_at(r, at) != 0 &&
                 (found.begin != SIZE_MAX || content_at(r, at) == sw_jinja_mark_of(message + 1) ||
                  content_at(r, at) == sw_jinja_mark_of(message + 2)))
            break;
    }
    return found;
}

/* Tells whether the template itself has a text at `at`. */
static bool template_has(const struct rendering *r, size_t at, const char *text) {
    const size_t bytes = strlen(text);
    if (r->text.bytes.bytes - at < bytes || memcmp(r->text.bytes.data + at, text, bytes) != 0)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (content_at(r, at + i) != 0)
            return false;
    return true;
}

static size_t shared_bytes(struct sw_text left, struct sw_text right) {
    size_t shared = 0;
    while (shared < left.bytes && shared < right.bytes && left.data[shared] == right.data[shared])
        shared++;
    return shared;
}

/* Returns where the reply begins if what the template puts before a reply that is asked for goes on otherwise than the
 * text, as a <think> may: behind the last whole tag or line of it that the text has, or with the content. */
static size_t begin_where_they_part(struct sw_text whole, struct sw_text asked, struct sw_text told, size_t content) {
    size_t shared = shared_bytes(whole, asked);
    if (shared < told.bytes || shared_bytes(whole, told) < told.bytes || asked.bytes == told.bytes)
        return SIZE_MAX;
    if (shared >= content)
        return content;
    while (shared > told.bytes && strchr(">]}\n", whole.data[shared - 1]) == NULL)
        shared--;
    return shared;
}

/* Stores where reply `i` begins, as the rendering of the turns before it tells; SIZE_MAX: it does not. */
static sw_status begin_by_turns_before(const struct rendering *r, size_t i, size_t content, size_t *out) {
    const struct sw_text whole = sw_text_of_buffer(&r->text.bytes);
    struct sw_jinja_text asked = {0}, told = {0};
    sw_status status = sw_chat_style_render(r->style, r->message, i, true, &asked);
    *out = SIZE_MAX;
    if (status == SW_OK && shared_bytes(whole, sw_text_of_buffer(&asked.bytes)) == asked.bytes.bytes) {
        *out = asked.bytes.bytes;
    } else if (status == SW_OK) {
        status = sw_chat_style_render(r->style, r->message, i, false, &told);
        if (status == SW_OK)
            *out =
                begin_where_they_part(whole, sw_text_of_buffer(&asked.bytes), sw_text_of_buffer(&told.bytes), content);
    }
    sw_jinja_text_release(&asked);
    sw_jinja_text_release(&told);
    if (status == SW_OK || status == SW_ERR_NOMEM)
        return status;
    sw_error_clear(); /* the template refuses the chat's beginning alone, such as one without a question */
    return SW_OK;
}

/* Returns where the text that opens replies ends: the last place of it before the content, behind other content. */
static size_t begin_by_opening(const struct rendering *r, size_t from, size_t content) {
    const char *opening = *r->style->opening != 0 ? r->style->opening : r->style->behind_question;
    size_t found = SIZE_MAX;
    if (*opening == 0)
        return SIZE_MAX;
    for (size_t at = from; at < content && at < r->text.bytes.bytes; at++) {
        if (content_at(r, at) != 0)
            found = content == SIZE_MAX ? found : SIZE_MAX;
        else if ((content != SIZE_MAX || found == SIZE_MAX) && template_has(r, at, opening))
            found = at + strlen(opening);
    }
    return found <= content ? found : SIZE_MAX;
}

/* Returns where the token that ends a turn ends: the first one at `from` or later, before other content. */
static size_t end_of_reply(const struct rendering *r, size_t from) {
    for (size_t at = from; at < r->text.bytes.bytes && content_at(r, at) == 0; at++)
        if (template_has(r, at, r->style->end_of_turn))
            return at + strlen(r->style->end_of_turn);
    return SIZE_MAX;
}

static sw_status find_reply(const struct rendering *r, size_t i, size_t from, struct range *out) {
    const struct range content = find_content(r, i, from);
    size_t begin = SIZE_MAX;
    if (i < MOST_BEGINNINGS)
        SW_TRY(begin_by_turns_before(r, i, content.begin, &begin));
    if (begin == SIZE_MAX || begin < from || begin > content.begin)
        begin = begin_by_opening(r, from, content.begin);
    if (begin == SIZE_MAX)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the chat template writes earlier turns otherwise once later ones follow, so that it is not "
                       "known where the reply in message %zu begins",
                       i + 1);
    const size_t end = end_of_reply(r, content.begin != SIZE_MAX ? content.end : begin);
    if (end == SIZE_MAX)
        return sw_fail(SW_ERR_UNSUPPORTED, "the chat template does not end the reply in message %zu with %s", i + 1,
                       r->style->end_of_turn);
    *out = (struct range){begin, end};
    return SW_OK;
}

/* Marks what is within {% generation %}, where the template has that. */
static bool mark_generated(struct rendering *r) {
    bool any = false;
    for (size_t at = 0; at < r->text.bytes.bytes; at++) {
        r->loss[at] = ((unsigned char)r->text.marks.data[at] & SW_JINJA_GENERATED) != 0;
        any |= r->loss[at];
    }
    return any;
}

static sw_status mark_replies(struct rendering *r) {
    struct range reply = {0};
    if (mark_generated(r))
        return SW_OK;
    for (size_t i = 0; i < r->messages; i++) {
        if (r->turn[i].role != SW_CHAT_ASSISTANT)
            continue;
        SW_TRY(find_reply(r, i, reply.end, &reply));
        memset(r->loss + reply.begin, true, reply.end - reply.begin);
    }
    return SW_OK;
}

/* Appends the text from `from` on, in parts that are the template's or not, and have a loss or not. */
static sw_status append(const struct rendering *r, size_t from, struct sw_marked_text *out) {
    for (size_t end = from; from < r->text.bytes.bytes; from = end) {
        const struct sw_text_part how = {.special = content_at(r, from) == 0, .loss = r->loss[from]};
        while (end < r->text.bytes.bytes && (content_at(r, end) == 0) == how.special && r->loss[end] == how.loss)
            end++;
        SW_TRY(sw_marked_text_append(out, (struct sw_text){r->text.bytes.data + from, end - from}, how));
    }
    return SW_OK;
}

/* Finds where a chat goes on behind the reply of its second message. */
static sw_status find_continuation(const struct rendering *r, size_t *out) {
    const struct range reply = find_content(r, 1, 0);
    *out = reply.begin != SIZE_MAX ? end_of_reply(r, reply.end) : SIZE_MAX;
    return *out != SIZE_MAX
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED, "the chat template does not end a reply with %s", r->style->end_of_turn);
}

static sw_status render(struct rendering *r, struct sw_chat_rendering how, struct sw_marked_text *out) {
    size_t from = 0;
    SW_TRY(sw_chat_style_render(r->style, r->message, r->messages, how.opens_reply, &r->text));
    r->loss = calloc(r->text.bytes.bytes + 1, sizeof *r->loss);
    if (r->loss == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a chat");
    if (how.continues)
        SW_TRY(find_continuation(r, &from));
    else if (!how.opens_reply)
        SW_TRY(mark_replies(r));
    return append(r, from, out);
}

sw_status sw_chat_render(const struct sw_chat_style *style, const struct sw_chat_turn *turn, size_t turns,
                         struct sw_chat_rendering how, struct sw_marked_text *out) {
    static const char *const role_names[] = {"system", "user", "assistant"};
    /* A chat that goes on is rendered behind a question and a reply, of which nothing is kept. */
    const size_t before = how.continues ? 2 : 0;
    struct sw_jinja_message *message = calloc(turns + 2, sizeof *message);
    if (message == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a chat");
    message[0] = (struct sw_jinja_message){"user", {"?", 1}};
    message[1] = (struct sw_jinja_message){"assistant", {".", 1}};
    for (size_t i = 0; i < turns; i++)
        message[before + i] = (struct sw_jinja_message){role_names[turn[i].role], turn[i].content};
    struct rendering r = {.style = style, .turn = turn, .message = message, .messages = turns + before};
    const sw_status status = render(&r, how, out);
    sw_jinja_text_release(&r.text);
    free(r.loss);
    free(message);
    return status;
}
