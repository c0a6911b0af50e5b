#include "text/documents/chat_format.h"

#include <stddef.h>
#include <string.h>

#define CHATML_TURN "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
#define CHATML_REPLY "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define CHATML "{% for m in messages %}" CHATML_TURN "{% endfor %}" CHATML_REPLY
#define CHATML_WITH(system)                                                                                            \
    "{% if messages[0].role != 'system' %}<|im_start|>system\n" system "<|im_end|>\n{% endif %}" CHATML

/* Only replies behind the last question keep their thoughts, and the last one has a block of them even where it is
 * empty. What a tool answers is no question. */
#define QWEN3                                                                                                          \
    "{% set ns = namespace(question=messages|length - 1) %}{% for m in messages %}{% if m.role == 'user' and "         \
    "not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}"                      \
    "{% set ns.question = loop.index0 %}{% endif %}{% endfor %}"                                                       \
    "{% for m in messages %}{% if m.role != 'assistant' %}" CHATML_TURN "{% else %}"                                   \
    "{% set said = m.content %}{% set thoughts = '' %}{% if '</think>' in said %}"                                     \
    "{% set thoughts = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"                  \
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}<|im_start|>assistant\n"                      \
    "{% if loop.index0 > ns.question and (loop.last or thoughts) %}<think>\n{{ thoughts.strip('\\n') }}\n</think>\n\n" \
    "{{ said.lstrip('\\n') }}{% else %}{{ said }}{% endif %}<|im_end|>\n{% endif %}{% endfor %}" CHATML_REPLY

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3                                                                                                         \
    "{% for m in messages %}" HEADER("{{ m.role }}") "{{ m.content | trim }}<|eot_id|>{% endfor %}"                    \
                                                     "{% if add_generation_prompt %}" HEADER(                          \
                                                         "assistant") "{% endif %}"
/* Each chat begins with a system turn, whose date is the one that the published template has by default. */
#define LLAMA31                                                                                                        \
    "{{ bos_token }}{% set system = '' %}{% if messages[0].role == 'system' %}"                                        \
    "{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}{% endif %}" HEADER(                \
        "system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{{ system }}<|eot_id|>" LLAMA3

#define ZEPHYR                                                                                                         \
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"                            \
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"

/* Takes the system turn off the messages. */
#define TAKE_SYSTEM                                                                                                    \
    "{% set system = none %}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"               \
    "{% set messages = messages[1:] %}{% endif %}"
#define ALTERNATE                                                                                                      \
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"                                                            \
    "{{ raise_exception('turns of user and assistant must alternate') }}{% endif %}"
#define EACH_TURN "{% for m in messages %}" ALTERNATE
#define LLAMA2                                                                                                         \
    TAKE_SYSTEM EACH_TURN                                                                                              \
        "{% set content = m.content %}{% if loop.first and system is not none %}"                                      \
        "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + content %}{% endif %}{% if m.role == 'user' "  \
        "%}{{ bos_token }}[INST] {{ content.strip() }} [/INST]{% else %} {{ content.strip() }} {{ eos_token }}"        \
        "{% endif %}{% endfor %}"
#define MISTRAL                                                                                                        \
    "{% if messages[0].role == 'system' %}{{ raise_exception('there is no system turn in this format') }}{% endif %}"  \
    "{{ bos_token }}" EACH_TURN "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"                    \
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
#define MISTRAL_SPACED                                                                                                 \
    TAKE_SYSTEM "{{ bos_token }}" EACH_TURN                                                                            \
                "{% if m.role == 'user' %} [INST] {% if loop.first and system is not none %}{{ system }}\n\n"          \
                "{% endif %}{{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
/* The system turn is within the last question. */
#define MISTRAL_V3(before_question, reply)                                                                             \
    TAKE_SYSTEM                                                                                                        \
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 "   \
    "%}{% endif %}{% endfor %}{{ bos_token }}" EACH_TURN "{% if m.role == 'user' %}[INST]" before_question             \
    "{% if loop.index0 == ns.last and system is not none %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"          \
    "{% else %}" reply "{{ eos_token }}{% endif %}{% endfor %}"

static const struct sw_chat_format formats[] = {
    {"chatml", CHATML, "<s>"},
    {"qwen2", CHATML_WITH("You are a helpful assistant."), "<s>"},
    {"qwen2.5", CHATML_WITH("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."), "<s>"},
    {"qwen3", QWEN3, "<s>"},
    {"smollm2", CHATML_WITH("You are a helpful AI assistant named SmolLM, trained by Hugging Face"), "<s>"},
    {"llama3", "{{ bos_token }}" LLAMA3, "<|begin_of_text|>"},
    {"llama3.1", LLAMA31, "<|begin_of_text|>"},
    {"zephyr", ZEPHYR, "<s>"},
    {"llama2", LLAMA2, "<s>"},
    {"mistral", MISTRAL, "<s>"},
    {"mistral-spaced", MISTRAL_SPACED, "<s>"},
    {"mistral-v3", MISTRAL_V3(" ", " {{ m.content | trim }}"), "<s>"},
    {"mistral-tekken", MISTRAL_V3("", "{{ m.content }}"), "<s>"},
    {"ministral", MISTRAL_V3("", " {{ m.content | trim }}"), "<s>"},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

const struct sw_chat_format *sw_chat_format_find(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
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
