#include "train/documents/chat_format.h"

#include "train/text/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

typedef enum {
    CHATML,      /* <|im_start|>role\ncontent<|im_end|>\n */
    HEADERS,     /* Llama 3: <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|> */
    ZEPHYR,      /* <|role|>\ncontent</s>\n */
    INSTRUCTIONS /* Llama 2 and Mistral: [INST] user [/INST] assistant</s> */
} chat_shape;

struct sw_chat_format {
    const char *name;
    chat_shape shape;
    const char *default_system; /* ChatML: the system turn of a chat without one; NULL: none */
    bool thinks;                /* Qwen 3: replies behind the last question begin with a block of thoughts */
    bool dated;                 /* Llama 3.1: a system turn with dates begins each chat */
    /* Instructions: what is put before and behind a question and a reply, and around the system turn within the first
     * question; NULL: there is no system turn. */
    const char *before_question, *before_reply, *behind_reply, *before_system, *behind_system;
    bool special_tags;     /* [INST] and [/INST] are special tokens; before_question stands behind the first */
    bool system_last;      /* the system turn is within the last question, not the first */
    bool trims;            /* white space at both ends of turns is left out */
    bool trims_replies;    /* of replies alone */
    bool begins_questions; /* each question begins with the token that begins a text, not the first alone */
};

#define V3_SHARED                                                                                                      \
    .behind_reply = "", .before_system = "", .behind_system = "\n\n", .special_tags = true, .system_last = true

static const struct sw_chat_format formats[] = {
    {.name = "chatml", .shape = CHATML},
    {.name = "qwen2", .shape = CHATML, .default_system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     .shape = CHATML,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", .shape = CHATML, .thinks = true},
    {.name = "smollm2",
     .shape = CHATML,
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "llama3", .shape = HEADERS, .trims = true},
    {.name = "llama3.1", .shape = HEADERS, .trims = true, .dated = true},
    {.name = "zephyr", .shape = ZEPHYR},
    {.name = "llama2",
     .shape = INSTRUCTIONS,
     .before_question = "[INST] ",
     .before_reply = " ",
     .behind_reply = " ",
     .before_system = "<<SYS>>\n",
     .behind_system = "\n<</SYS>>\n\n",
     .trims = true,
     .begins_questions = true},
    {.name = "mistral", .shape = INSTRUCTIONS, .before_question = "[INST] ", .before_reply = "", .behind_reply = ""},
    {.name = "mistral-spaced",
     .shape = INSTRUCTIONS,
     .before_question = " [INST] ",
     .before_reply = " ",
     .behind_reply = "",
     .before_system = "",
     .behind_system = "\n\n"},
    {.name = "mistral-v3",
     .shape = INSTRUCTIONS,
     .before_question = " ",
     .before_reply = " ",
     .trims_replies = true,
     V3_SHARED},
    {.name = "mistral-tekken", .shape = INSTRUCTIONS, .before_question = "", .before_reply = "", V3_SHARED},
    {.name = "ministral",
     .shape = INSTRUCTIONS,
     .before_question = "",
     .before_reply = " ",
     .trims_replies = true,
     V3_SHARED},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static const char *const role_names[] = {"system", "user", "assistant"};

const struct sw_chat_format *sw_chat_format_find(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

const char *sw_chat_format_name(const struct sw_chat_format *format) {
    return format->name;
}

const char *sw_chat_format_names(void) {
    return "chatml, qwen2, qwen2.5, qwen3, smollm2, llama3, llama3.1, zephyr, llama2, mistral, mistral-spaced, "
           "mistral-v3, mistral-tekken, ministral";
}

sw_status sw_chat_format_check(const char *name) {
    if (strcmp(name, "auto") == 0 || sw_chat_format_find(name) != NULL)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "there is no chat format '%s'; the formats are %s", name, sw_chat_format_names());
}

const char *sw_chat_end_of_turn(const struct sw_chat_style *style) {
    switch (style->format->shape) {
    case CHATML: return "<|im_end|>";
    case HEADERS: return "<|eot_id|>";
    case ZEPHYR:
    case INSTRUCTIONS: break;
    }
    return style->end;
}

sw_status sw_chat_check_tokenizer(const struct sw_chat_style *style, const struct sw_tokenizer *tokenizer) {
    const char *end = sw_chat_end_of_turn(style);
    const int32_t id = sw_tokenizer_find(tokenizer, end);
    if (id >= 0 && sw_tokenizer_is_special(tokenizer, id))
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "the chat format %s ends turns with %s, which is no special token of the tokenizer.json",
                   style->format->name, end);
}

/* A chat on its way to text. */
struct rendering {
    const struct sw_chat_style *style;
    struct sw_marked_text *out;
};

static struct sw_text text_of(const char *text) {
    return (struct sw_text){text, strlen(text)};
}

static sw_status put_special(const struct rendering *r, const char *token, bool loss) {
    return sw_marked_text_append(r->out, text_of(token), (struct sw_text_part){.special = true, .loss = loss});
}

static sw_status put(const struct rendering *r, const char *text) {
    return sw_marked_text_append(r->out, text_of(text), (struct sw_text_part){0});
}

static sw_status put_text(const struct rendering *r, struct sw_text text, bool loss) {
    return sw_marked_text_append(r->out, text, (struct sw_text_part){.loss = loss});
}

/* Python's str.isspace, by which Jinja trims: the property White_Space and the separators U+001C to U+001F. */
static bool is_python_space(uint32_t code) {
    return sw_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static struct sw_text trim_sides(struct sw_text text, bool left, bool right) {
    while (left && text.bytes > 0) {
        const struct sw_utf8_sequence first = sw_utf8_read(text);
        if (first.kind != SW_UTF8_WHOLE || !is_python_space(first.code))
            break;
        text = (struct sw_text){text.data + first.bytes, text.bytes - first.bytes};
    }
    while (right && text.bytes > 0 && is_python_space(sw_utf8_last(text)))
        do
            text.bytes--;
        while (((unsigned char)text.data[text.bytes] & 0xC0) == 0x80);
    return text;
}

static struct sw_text trim(struct sw_text text) {
    return trim_sides(text, true, true);
}

static struct sw_text trim_line_ends(struct sw_text text, bool left, bool right) {
    size_t first = 0, end = text.bytes;
    assert(end == 0 || text.data != NULL);
    while (left && first < end && text.data[first] == '\n')
        first++;
    while (right && end > first && text.data[end - 1] == '\n')
        end--;
    return (struct sw_text){text.data + first, end - first};
}

static sw_status put_header(const struct rendering *r, sw_chat_role role) {
    const char *name = role_names[role];
    char token[32];
    switch (r->style->format->shape) {
    case CHATML:
        SW_TRY(put_special(r, "<|im_start|>", false));
        SW_TRY(put(r, name));
        return put(r, "\n");
    case HEADERS:
        SW_TRY(put_special(r, "<|start_header_id|>", false));
        SW_TRY(put(r, name));
        SW_TRY(put_special(r, "<|end_header_id|>", false));
        return put(r, "\n\n");
    case ZEPHYR:
        (void)snprintf(token, sizeof token, "<|%s|>", name);
        SW_TRY(put_special(r, token, false));
        return put(r, "\n");
    case INSTRUCTIONS: break;
    }
    return SW_OK;
}

static sw_status put_end(const struct rendering *r, bool loss) {
    SW_TRY(put_special(r, sw_chat_end_of_turn(r->style), loss));
    return r->style->format->shape == HEADERS ? SW_OK : put(r, "\n");
}

static sw_status put_turn(const struct rendering *r, sw_chat_role role, struct sw_text content) {
    const bool loss = role == SW_CHAT_ASSISTANT;
    SW_TRY(put_header(r, role));
    SW_TRY(put_text(r, r->style->format->trims ? trim(content) : content, loss));
    return put_end(r, loss);
}

/* Returns where the last (or first) place of `what` in a text begins, or NULL. */
static const char *find_in(struct sw_text text, struct sw_text what, bool last) {
    const char *found = NULL;
    for (const char *at = text.data; at != NULL;) {
        at = memmem(at, text.bytes - (size_t)(at - text.data), what.data, what.bytes);
        if (at == NULL)
            break;
        found = at++;
        if (!last)
            break;
    }
    return found;
}

/* A reply as its thoughts and what is said. Its parts are borrowed from it. */
struct thoughtful_reply {
    struct sw_text thoughts, said;
};

/* Divides a reply as Qwen 3's template does: thoughts are between the last <think> and the first </think>. */
static struct thoughtful_reply divide(struct sw_text content) {
    static const struct sw_text opening = {"<think>", 7}, closing = {"</think>", 8};
    const char *first = find_in(content, closing, false), *last = find_in(content, closing, true);
    if (first == NULL)
        return (struct thoughtful_reply){.said = content};
    const char *said = last + closing.bytes;
    struct sw_text thoughts = {content.data, (size_t)(first - content.data)};
    const char *opened = find_in(thoughts, opening, true);
    if (opened != NULL) {
        opened += opening.bytes;
        thoughts = (struct sw_text){opened, (size_t)(first - opened)};
    }
    return (struct thoughtful_reply){
        .thoughts = trim_line_ends(thoughts, true, true),
        .said = trim_line_ends((struct sw_text){said, content.bytes - (size_t)(said - content.data)}, true, false)};
}

/* Puts a reply of Qwen 3. Only replies behind the last question keep their thoughts, and the last one has a block of
 * them even where it is empty. */
static sw_status put_thoughtful(const struct rendering *r, struct sw_text content, bool behind_question, bool last) {
    const struct thoughtful_reply reply = divide(content);
    SW_TRY(put_header(r, SW_CHAT_ASSISTANT));
    if (!behind_question || (!last && reply.thoughts.bytes == 0)) {
        SW_TRY(put_text(r, reply.said, true));
        return put_end(r, true);
    }
    SW_TRY(put_text(r, text_of("<think>\n"), true));
    SW_TRY(put_text(r, reply.thoughts, true));
    SW_TRY(put_text(r, text_of("\n</think>\n\n"), true));
    SW_TRY(put_text(r, trim_line_ends(reply.said, true, false), true));
    return put_end(r, true);
}

/* Returns the index of the last question, or of the last turn where there is none. */
static size_t last_question(const struct sw_chat_turn *turn, size_t turns) {
    for (size_t i = turns; i-- > 0;)
        if (turn[i].role == SW_CHAT_USER)
            return i;
    return turns - 1;
}

/* Llama 3.1 begins each chat with a system turn. The date is the one that its template has by default, so that the same
 * chat is the same text on every day. */
static sw_status put_dated_system(const struct rendering *r, struct sw_text content) {
    SW_TRY(put_header(r, SW_CHAT_SYSTEM));
    SW_TRY(put(r, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"));
    SW_TRY(put_text(r, trim(content), false));
    return put_end(r, false);
}

/* Puts what begins a chat. *out_first is the first turn that is still to be put. */
static sw_status put_beginning(const struct rendering *r, const struct sw_chat_turn *turn, size_t turns,
                               size_t *out_first) {
    const struct sw_chat_format *format = r->style->format;
    const bool has_system = turns > 0 && turn[0].role == SW_CHAT_SYSTEM;
    if (format->shape == HEADERS)
        SW_TRY(put_special(r, r->style->begin, false));
    *out_first = format->dated && has_system ? 1 : 0;
    if (format->dated)
        return put_dated_system(r, has_system ? turn[0].content : (struct sw_text){"", 0});
    return format->default_system != NULL && !has_system ? put_turn(r, SW_CHAT_SYSTEM, text_of(format->default_system))
                                                         : SW_OK;
}

static sw_status put_turns(const struct rendering *r, const struct sw_chat_turn *turn, size_t turns, bool continues) {
    const struct sw_chat_format *format = r->style->format;
    size_t first = 0;
    if (!continues)
        SW_TRY(put_beginning(r, turn, turns, &first));
    else if (format->shape != HEADERS)
        SW_TRY(put(r, "\n"));
    const size_t question = last_question(turn, turns);
    for (size_t i = first; i < turns; i++) {
        if (format->thinks && turn[i].role == SW_CHAT_ASSISTANT)
            SW_TRY(put_thoughtful(r, turn[i].content, i > question, i + 1 == turns));
        else
            SW_TRY(put_turn(r, turn[i].role, turn[i].content));
    }
    return SW_OK;
}

/* Puts a question. With a system turn before it, both are trimmed as one text, which begins with a tag. */
static sw_status put_question(const struct rendering *r, struct sw_text content, const struct sw_text *system) {
    const struct sw_chat_format *format = r->style->format;
    struct sw_text behind = text_of(system != NULL ? format->behind_system : "");
    if (format->begins_questions)
        SW_TRY(put_special(r, r->style->begin, false));
    if (format->special_tags)
        SW_TRY(put_special(r, "[INST]", false));
    SW_TRY(put(r, format->before_question));
    if (system != NULL) {
        SW_TRY(put(r, format->before_system));
        SW_TRY(put_text(r, *system, false));
    }
    if (format->trims && trim(content).bytes == 0) {
        behind = trim_sides(behind, false, true);
        content = trim(content);
    }
    SW_TRY(put_text(r, behind, false));
    SW_TRY(put_text(r, format->trims ? trim_sides(content, system == NULL, true) : content, false));
    return format->special_tags ? put_special(r, "[/INST]", false) : put(r, " [/INST]");
}

static sw_status put_reply(const struct rendering *r, struct sw_text content) {
    const struct sw_chat_format *format = r->style->format;
    SW_TRY(put_text(r, text_of(format->before_reply), true));
    SW_TRY(put_text(r, format->trims || format->trims_replies ? trim(content) : content, true));
    SW_TRY(put_text(r, text_of(format->behind_reply), true));
    return put_special(r, r->style->end, true);
}

static sw_status put_instructions(const struct rendering *r, const struct sw_chat_turn *turn, size_t turns,
                                  bool continues) {
    const struct sw_chat_format *format = r->style->format;
    const bool has_system = turns > 0 && turn[0].role == SW_CHAT_SYSTEM;
    if (has_system && format->before_system == NULL)
        return sw_fail(SW_ERR_ARG, "the chat format %s has no system turn", format->name);
    const size_t with_system = format->system_last ? last_question(turn, turns) : 1;
    if (!format->begins_questions && !continues)
        SW_TRY(put_special(r, r->style->begin, false));
    for (size_t i = has_system; i < turns; i++) {
        const size_t number = i - has_system;
        if (turn[i].role != (number % 2 == 0 ? SW_CHAT_USER : SW_CHAT_ASSISTANT))
            return sw_fail(SW_ERR_ARG, "the chat format %s needs turns of user and assistant that alternate",
                           format->name);
        if (turn[i].role == SW_CHAT_USER)
            SW_TRY(put_question(r, turn[i].content, has_system && i == with_system ? &turn[0].content : NULL));
        else
            SW_TRY(put_reply(r, turn[i].content));
    }
    return SW_OK;
}

sw_status sw_chat_render(const struct sw_chat_style *style, const struct sw_chat_turn *turn, size_t turns,
                         struct sw_chat_rendering how, struct sw_marked_text *out) {
    const struct rendering r = {.style = style, .out = out};
    if (style->format->shape == INSTRUCTIONS)
        return put_instructions(&r, turn, turns, how.continues);
    SW_TRY(put_turns(&r, turn, turns, how.continues));
    return how.opens_reply ? put_header(&r, SW_CHAT_ASSISTANT) : SW_OK;
}
