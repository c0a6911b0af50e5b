/* A template is recognized by its tags: each is brought into one spelling, and all of them must be ones that the
 * format's rule knows. Templates that also render tools have many more tags; there, those that matter must be there. */
#include "train/documents/chat_template.h"

#include "train/files/files.h"
#include "train/files/json_file.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TAGS = 512, MOST_PARTS = 16, MOST_CONFIG_BYTES = 16 << 20 };

struct rule {
    const char *format;
    bool with_tools;                /* the template has other tags, too */
    const char *needed[MOST_PARTS]; /* tags that are there */
    const char *others[MOST_PARTS]; /* with_tools: tags that are not there; else further tags that may be there */
};

#define CHATML_TURN "'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'"
#define CHATML_REPLY "'<|im_start|>assistant\n'"
#define NO_SYSTEM "ifloop.firstandmessages[0].role!='system'"
#define EACH "formessageinmessages"
#define IF_REPLY "ifadd_generation_prompt"
#define ALTERNATE "if(message.role=='user')!=(loop.index0%2==0)"
#define LLAMA3_TURN "'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>'"
#define LLAMA3_REPLY "'<|start_header_id|>assistant<|end_header_id|>\n\n'"

#define MISTRAL_V3                                                                                                     \
    "ifmessages[0].role=='system'", "setsystem_message=messages[0].content", "setloop_messages=messages[1:]",          \
        "setloop_messages=messages", "bos_token", "formessageinloop_messages", "ifmessage.role=='user'",               \
        "elifmessage.role=='assistant'"
#define MISTRAL_SYSTEM_FIRST "ifloop.firstandsystem_messageisdefined"

static const struct rule rules[] = {
    {"chatml", .needed = {EACH, CHATML_TURN, IF_REPLY, CHATML_REPLY}},
    {"qwen2", .needed = {EACH, NO_SYSTEM, "'<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n'", CHATML_TURN,
                         IF_REPLY, CHATML_REPLY}},
    {"smollm2", .needed = {EACH, NO_SYSTEM,
                           ("'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
                            "Face<|im_end|>\n'"),
                           CHATML_TURN, IF_REPLY, CHATML_REPLY}},
    {"qwen2.5", .with_tools = true,
     .needed = {"'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'",
                ("'<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                 "assistant.<|im_end|>\n'"),
                ("if(message.role=='user')or(message.role=='system'andnotloop.first)or(message.role=='assistant'and"
                 "notmessage.tool_calls)"),
                CHATML_TURN, EACH, IF_REPLY, CHATML_REPLY}},
    {"qwen3", .with_tools = true,
     .needed = {"'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'",
                "if(message.role=='user')or(message.role=='system'andnotloop.first)",
                "ifloop.index0>ns.last_query_index", "ifloop.lastor(notloop.lastandreasoning_content)",
                ("'<|im_start|>'+message.role+'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+content."
                 "lstrip('\n')"),
                "'<|im_start|>'+message.role+'\n'+content", "'<|im_end|>\n'", EACH, IF_REPLY, CHATML_REPLY}},
    {"chatml", .with_tools = true,
     .needed = {"'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'",
                "'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'", "'<|im_start|>'+message.role+'\n'+content",
                "'<|im_end|>\n'", EACH, IF_REPLY, CHATML_REPLY},
     .others = {"setreasoning_content=''", "ifloop.index0>ns.last_query_index", "'<think>\n\n</think>\n\n'"}},
    {"llama3",
     .needed = {("setcontent=" LLAMA3_TURN), "setcontent=bos_token+content", "ifloop.index0==0", "content",
                LLAMA3_REPLY},
     .others = {"setloop_messages=messages", "formessageinloop_messages", EACH, IF_REPLY}},
    {"llama3.1", .with_tools = true,
     .needed = {"bos_token", "setdate_string='26 Jul 2024'", "setsystem_message=messages[0].content|trim",
                "setmessages=messages[1:]", "'<|start_header_id|>system<|end_header_id|>\n\n'",
                "'Cutting Knowledge Date: December 2023\n'", "'Today Date: '+date_string+'\n\n'", "system_message",
                "'<|eot_id|>'", LLAMA3_TURN, EACH, IF_REPLY, LLAMA3_REPLY},
     .others = {"ifsystem_message"}},
    {"zephyr", .needed = {EACH, "ifmessage.role=='user'", "'<|user|>\n'+message.content+eos_token",
                          "elifmessage.role=='system'", "'<|system|>\n'+message.content+eos_token",
                          "elifmessage.role=='assistant'", "'<|assistant|>\n'+message.content+eos_token",
                          "ifloop.lastandadd_generation_prompt", "'<|assistant|>'", "text:\n"}},
    {"llama2",
     .needed = {"ifmessages[0].role=='system'", "setloop_messages=messages[1:]",
                "setsystem_message=messages[0].content", "setsystem_message=false", "formessageinloop_messages",
                "ifloop.index0==0andsystem_message!=false",
                "setcontent='<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message.content", "setcontent=message.content",
                "ifmessage.role=='user'", "bos_token+'[INST] '+content.strip()+' [/INST]'",
                "elifmessage.role=='assistant'", "' '+content.strip()+' '+eos_token"},
     .others = {"setloop_messages=messages", ALTERNATE}},
    {"mistral",
     .needed = {"bos_token", EACH, ALTERNATE, "ifmessage.role=='user'", "'[INST] '+message.content+' [/INST]'",
                "elifmessage.role=='assistant'", "message.content+eos_token"}},
    {"mistral-spaced",
     .needed = {"ifmessages[0].role=='system'", "setsystem_message=messages[0].content",
                "setloop_messages=messages[1:]", "setloop_messages=messages", "bos_token", "formessageinloop_messages",
                ALTERNATE, "ifmessage.role=='user'", "ifloop.firstandsystem_messageisdefined",
                "' [INST] '+system_message+'\n\n'+message.content+' [/INST]'", "' [INST] '+message.content+' [/INST]'",
                "elifmessage.role=='assistant'", "' '+message.content+eos_token"}},
    {"mistral-v3", .with_tools = true,
     .needed = {MISTRAL_V3, "'[INST] '+system_message+'\n\n'+message.content+'[/INST]'",
                "'[INST] '+message.content+'[/INST]'", "' '+message.content|trim+eos_token"},
     .others = {MISTRAL_SYSTEM_FIRST}},
    {"mistral-tekken", .with_tools = true,
     .needed = {MISTRAL_V3, "'[INST]'+system_message+'\n\n'+message.content+'[/INST]'",
                "'[INST]'+message.content+'[/INST]'", "message.content+eos_token"},
     .others = {MISTRAL_SYSTEM_FIRST}},
    {"ministral", .with_tools = true,
     .needed = {MISTRAL_V3, "'[INST]'+system_message+'\n\n'+message.content+'[/INST]'",
                "'[INST]'+message.content+'[/INST]'", "' '+message.content|trim+eos_token"},
     .others = {MISTRAL_SYSTEM_FIRST}},
};
enum { RULES = sizeof rules / sizeof rules[0] };

/* Tags that change nothing, wherever they are. */
static bool is_neutral(const char *tag) {
    static const char *const neutral[] = {"else",
                                          "endif",
                                          "endfor",
                                          "generation",
                                          "endgeneration",
                                          "ifnotadd_generation_promptisdefined",
                                          "setadd_generation_prompt=false"};
    for (size_t i = 0; i < sizeof neutral / sizeof neutral[0]; i++)
        if (strcmp(tag, neutral[i]) == 0)
            return true;
    return strncmp(tag, "raise_exception(", 16) == 0;
}

/* The tags of a template, each zero-terminated, and text between them that is written as it is. */
struct tags {
    struct sw_text_buffer text;
    size_t begin[MOST_TAGS];
    size_t count;
};

static sw_status put_byte(struct tags *tags, char byte) {
    return sw_text_buffer_append(&tags->text, (struct sw_text){&byte, 1});
}

static bool ends_with(const struct tags *tags, const char *ending) {
    const size_t bytes = strlen(ending);
    return tags->text.bytes - tags->begin[tags->count] >= bytes &&
           memcmp(tags->text.data + tags->text.bytes - bytes, ending, bytes) == 0;
}

/* Appends a string of Jinja that begins at text[*at], joined to one that it is added to, and moves *at behind it. */
static sw_status put_string(struct tags *tags, struct sw_text text, size_t *at) {
    const char quote = text.data[(*at)++];
    if (ends_with(tags, "'+"))
        tags->text.bytes -= 2;
    else
        SW_TRY(put_byte(tags, '\''));
    while (*at < text.bytes && text.data[*at] != quote) {
        char byte = text.data[(*at)++];
        if (byte == '\\' && *at < text.bytes) {
            byte = text.data[(*at)++];
            byte = (char)(byte == 'n' ? '\n' : byte);
        }
        SW_TRY(put_byte(tags, byte));
    }
    ++*at;
    return put_byte(tags, '\'');
}

/* Makes x['name'] at the end of the tag x.name. */
static void make_member(struct tags *tags) {
    char *begin = tags->text.data + tags->begin[tags->count], *end = tags->text.data + tags->text.bytes;
    if (!ends_with(tags, "']"))
        return;
    char *name = end - 2;
    while (name > begin && (isalnum((unsigned char)name[-1]) || name[-1] == '_'))
        name--;
    if (name - begin < 3 || name == end - 2 || name[-1] != '\'' || name[-2] != '[')
        return;
    name[-2] = '.';
    memmove(name - 1, name, (size_t)(end - 2 - name));
    tags->text.bytes -= 3;
}

static sw_status end_tag(struct tags *tags) {
    SW_TRY(put_byte(tags, 0));
    if (is_neutral(tags->text.data + tags->begin[tags->count]))
        tags->text.bytes = tags->begin[tags->count];
    else
        tags->count++;
    return SW_OK;
}

static sw_status put_tag(struct tags *tags, struct sw_text text) {
    tags->begin[tags->count] = tags->text.bytes;
    for (size_t at = 0; at < text.bytes;) {
        const char byte = text.data[at];
        if (byte == '\'' || byte == '"') {
            SW_TRY(put_string(tags, text, &at));
            continue;
        }
        at++;
        if (isspace((unsigned char)byte))
            continue;
        SW_TRY(put_byte(tags, byte));
        if (byte == ']')
            make_member(tags);
    }
    return end_tag(tags);
}

/* Adds the text between two tags, as far as Jinja with trim_blocks and lstrip_blocks writes it. */
static sw_status put_between(struct tags *tags, struct sw_text text, bool behind_block, bool before_block) {
    if (behind_block && text.bytes > 0 && text.data[0] == '\n')
        text = (struct sw_text){text.data + 1, text.bytes - 1};
    size_t kept = text.bytes;
    while (before_block && kept > 0 && (text.data[kept - 1] == ' ' || text.data[kept - 1] == '\t'))
        kept--;
    if (before_block && (kept == 0 || text.data[kept - 1] == '\n'))
        text.bytes = kept;
    if (text.bytes == 0)
        return SW_OK;
    tags->begin[tags->count] = tags->text.bytes;
    SW_TRY(sw_text_buffer_append(&tags->text, (struct sw_text){"text:", 5}));
    SW_TRY(sw_text_buffer_append(&tags->text, text));
    return end_tag(tags);
}

/* Finds the end of a tag from `at` on, not within a string, or the text's end. */
static size_t find_close(struct sw_text text, size_t at, char closing) {
    char quote = 0;
    for (; at + 1 < text.bytes; at++) {
        const char byte = text.data[at];
        if (quote != 0 && byte == '\\')
            at++;
        else if (quote != 0)
            quote = (char)(byte == quote ? 0 : quote);
        else if ((byte == '\'' || byte == '"') && closing != '#')
            quote = byte;
        else if (byte == closing && text.data[at + 1] == '}')
            return at;
    }
    return text.bytes;
}

static size_t find_open(struct sw_text text, size_t at) {
    for (; at + 1 < text.bytes; at++)
        if (text.data[at] == '{' && text.data[at + 1] != 0 && strchr("{%#", text.data[at + 1]) != NULL)
            return at;
    return text.bytes;
}

/* Reads the tags of a template. *out_whole is false where it has too many or one has no end. */
static sw_status read_tags(struct sw_text text, struct tags *tags, bool *out_whole) {
    bool behind_block = false, strips = false;
    *out_whole = false;
    for (size_t at = 0; tags->count + 2 < MOST_TAGS;) {
        const size_t open = find_open(text, at);
        const char kind = (char)(open < text.bytes ? text.data[open + 1] : '%');
        const bool strips_before = open + 2 < text.bytes && text.data[open + 2] == '-';
        struct sw_text between = {text.data + at, open - at};
        while (strips && between.bytes > 0 && isspace((unsigned char)between.data[0]))
            between = (struct sw_text){between.data + 1, between.bytes - 1};
        while (strips_before && between.bytes > 0 && isspace((unsigned char)between.data[between.bytes - 1]))
            between.bytes--;
        /* A template's last line end is no text of it. */
        if (open == text.bytes && between.bytes == 1 && between.data[0] == '\n')
            between.bytes = 0;
        SW_TRY(put_between(tags, between, behind_block && !strips, kind != '{'));
        if (open == text.bytes) {
            *out_whole = true;
            return SW_OK;
        }
        const size_t begin = open + 2 + (strips_before ? 1 : 0);
        const size_t close = find_close(text, begin, (char)(kind == '{' ? '}' : kind));
        if (close >= text.bytes)
            return SW_OK;
        strips = close > begin && text.data[close - 1] == '-';
        behind_block = kind != '{';
        if (kind != '#')
            SW_TRY(put_tag(tags, (struct sw_text){text.data + begin, close - begin - (strips ? 1 : 0)}));
        at = close + 2;
    }
    return SW_OK;
}

static bool has_tag(const struct tags *tags, const char *sought) {
    for (size_t i = 0; i < tags->count; i++)
        if (strcmp(tags->text.data + tags->begin[i], sought) == 0)
            return true;
    return false;
}

static bool is_among(const char *tag, const char *const parts[MOST_PARTS]) {
    for (int i = 0; i < MOST_PARTS && parts[i] != NULL; i++)
        if (strcmp(tag, parts[i]) == 0)
            return true;
    return false;
}

static bool follows(const struct rule *rule, const struct tags *tags) {
    for (int i = 0; i < MOST_PARTS && rule->needed[i] != NULL; i++)
        if (!has_tag(tags, rule->needed[i]))
            return false;
    for (size_t i = 0; i < tags->count; i++) {
        const char *tag = tags->text.data + tags->begin[i];
        if (rule->with_tools ? is_among(tag, rule->others)
                             : !is_among(tag, rule->needed) && !is_among(tag, rule->others))
            return false;
    }
    return true;
}

const struct sw_chat_format *sw_chat_template_recognize(struct sw_text chat_template) {
    struct tags *tags = calloc(1, sizeof *tags);
    const struct sw_chat_format *found = NULL;
    bool whole = false;
    if (tags == NULL)
        return NULL;
    if (read_tags(chat_template, tags, &whole) != SW_OK)
        sw_error_clear(); /* without memory the template counts as unknown */
    for (int i = 0; whole && found == NULL && i < RULES; i++)
        if (follows(&rules[i], tags))
            found = sw_chat_format_find(rules[i].format);
    free(tags->text.data);
    free(tags);
    return found;
}

/* Names the family of a template that is none of ours, by what only its templates have; or returns "". */
static const char *family_of(struct sw_text chat_template) {
    static const struct {
        const char *has, *family;
    } known[] = {
        {"<start_of_turn>", ", which is Gemma's,"},
        {"[SYSTEM_PROMPT]", ", which is that of Mistral's v7 and later,"},
        {"<\uff5cUser\uff5c>", ", which is DeepSeek's,"},
        {"<|channel|>", ", which is gpt-oss's,"},
        {"<|start_of_role|>", ", which is Granite's,"},
        {"<|START_OF_TURN_TOKEN|>", ", which is Command R's,"},
        {"<|end|>", ", which is Phi's,"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (memmem(chat_template.data, chat_template.bytes, known[i].has, strlen(known[i].has)) != NULL)
            return known[i].family;
    return "";
}

/* Returns the template of a tokenizer_config.json: a string, or of several the one named "default". */
static const json_t *template_of(const json_t *config) {
    const json_t *given = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *one = json_array_get(given, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(one, "template");
    }
    return json_is_string(given) ? given : NULL;
}

/* Copies a token of tokenizer_config.json, which is a string or an object with its content. */
static sw_status copy_token(const json_t *config, const char *name, const char *otherwise, char **out) {
    const json_t *token = json_object_get(config, name);
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    *out = strdup(text != NULL ? text : otherwise);
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a chat format");
}

static sw_status choose(const char *folder, const char *name, const json_t *config, const char *jinja,
                        struct sw_chat_style *style) {
    const json_t *given = template_of(config);
    if (strcmp(name, "auto") != 0) {
        style->format = sw_chat_format_find(name);
        return sw_chat_format_check(name);
    }
    if (jinja == NULL && given == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no chat template; name the format with --chat-format: %s", folder,
                       sw_chat_format_names());
    const struct sw_text text = jinja != NULL ? (struct sw_text){jinja, strlen(jinja)}
                                              : (struct sw_text){json_string_value(given), json_string_length(given)};
    style->format = sw_chat_template_recognize(text);
    return style->format != NULL
               ? SW_OK
               : sw_fail(
                     SW_ERR_UNSUPPORTED,
                     "the chat template of %s%s is none that this version has; if one of these writes the same, name "
                     "it with --chat-format: %s; else write chats as that template does, one 'text' a line, and give "
                     "them to spillway tokenize --special",
                     folder, family_of(text), sw_chat_format_names());
}

static sw_status read_files(const char *folder, json_t **out_config, char **out_jinja) {
    char path[PATH_MAX];
    SW_TRY(sw_path_join(path, sizeof path, folder, "tokenizer_config.json"));
    if (access(path, F_OK) == 0)
        SW_TRY(sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, out_config));
    SW_TRY(sw_path_join(path, sizeof path, folder, "chat_template.jinja"));
    return access(path, F_OK) == 0 ? sw_file_read_text(path, MOST_CONFIG_BYTES, out_jinja) : SW_OK;
}

sw_status sw_chat_style_open(const char *folder, const char *name, struct sw_chat_style *out) {
    json_t *config = NULL;
    char *jinja = NULL;
    *out = (struct sw_chat_style){0};
    sw_status status = read_files(folder, &config, &jinja);
    if (status == SW_OK)
        status = choose(folder, name, config, jinja, out);
    const bool headers = status == SW_OK && strncmp(sw_chat_format_name(out->format), "llama3", 6) == 0;
    if (status == SW_OK)
        status = copy_token(config, "bos_token", headers ? "<|begin_of_text|>" : "<s>", &out->begin);
    if (status == SW_OK)
        status = copy_token(config, "eos_token", "</s>", &out->end);
    json_decref(config);
    free(jinja);
    if (status != SW_OK)
        sw_chat_style_release(out);
    return status;
}

void sw_chat_style_release(struct sw_chat_style *style) {
    free(style->begin);
    free(style->end);
    *style = (struct sw_chat_style){0};
}
