#include "tests/equipment/ptx/module.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *sw_ptx_zeroed(size_t bytes) {
    void *memory = calloc(1, bytes);
    assert(memory != NULL);
    return memory;
}

static uint32_t type_bytes(struct sw_ptx_text *text, struct sw_ptx_word type) {
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".b32", 4},
                 {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (sw_ptx_is(type, types[i].name))
            return types[i].bytes;
    }
    sw_ptx_refuse(text, "variables of type %.*s are not of the subset", type.chars, type.text);
    return 1;
}

struct sw_ptx_variable sw_ptx_variable_read(struct sw_ptx_text *text) {
    struct sw_ptx_variable variable = {0};
    if (sw_ptx_take(text, ".align"))
        variable.align = (uint32_t)sw_ptx_number(text);
    const uint32_t element = type_bytes(text, sw_ptx_next(text));
    variable.align = variable.align == 0 ? element : variable.align;
    variable.bytes = element;
    variable.name = sw_ptx_next(text);
    if (sw_ptx_take(text, "[")) {
        variable.is_dynamic = sw_ptx_take(text, "]");
        if (!variable.is_dynamic) {
            variable.bytes = element * (uint32_t)sw_ptx_number(text);
            sw_ptx_expect(text, "]");
        }
    }
    return variable;
}

static void read_shared(struct sw_ptx_module *module, struct sw_ptx_text *text) {
    struct sw_ptx_variable *variable = sw_ptx_zeroed(sizeof *variable);
    *variable = sw_ptx_variable_read(text);
    sw_ptx_expect(text, ";");
    variable->next = module->shared;
    module->shared = variable;
}

/* Passes a list in parentheses and returns where it began. */
static struct sw_ptx_text read_list(struct sw_ptx_text *text) {
    struct sw_ptx_text list = {0};
    if (!sw_ptx_take(text, "("))
        return list;
    list = *text;
    struct sw_ptx_word word;
    do {
        word = sw_ptx_next(text);
    } while (word.chars > 0 && !sw_ptx_is(word, ")"));
    return list;
}

/* The directives between parameters and body say how a kernel may be compiled, and how many threads its blocks have. */
static void read_directives(struct sw_ptx_code *code, struct sw_ptx_text *text) {
    while (!sw_ptx_is(sw_ptx_peek(text), "{") && text->error[0] == '\0') {
        const struct sw_ptx_word word = sw_ptx_next(text);
        if (sw_ptx_is(word, ".maxntid")) {
            code->most_threads = (uint32_t)sw_ptx_number(text);
            while (sw_ptx_take(text, ","))
                code->most_threads *= (uint32_t)sw_ptx_number(text);
        } else if (sw_ptx_is(word, ".minnctapersm") || sw_ptx_is(word, ".maxnreg")) {
            sw_ptx_number(text);
        } else if (!sw_ptx_is(word, ".noreturn")) {
            sw_ptx_refuse(text, "the directive %.*s is not of the subset", word.chars, word.text);
        }
    }
}

static void read_code(struct sw_ptx_module *module, struct sw_ptx_text *text, bool is_kernel) {
    struct sw_ptx_code *code = sw_ptx_zeroed(sizeof *code);
    code->is_kernel = is_kernel;
    code->result = read_list(text);
    code->name = sw_ptx_next(text);
    code->params = read_list(text);
    if (sw_ptx_take(text, ";"))
        return; /* It is declared here and defined below. */
    read_directives(code, text);
    sw_ptx_expect(text, "{");
    code->body = *text;
    sw_ptx_pass_braces(text);
    code->next = module->code;
    module->code = code;
}

static void read_declaration(struct sw_ptx_module *module, struct sw_ptx_text *text) {
    const struct sw_ptx_word word = sw_ptx_next(text);
    if (sw_ptx_is(word, ".version") || sw_ptx_is(word, ".target") || sw_ptx_is(word, ".address_size")) {
        text->at += strcspn(text->at, "\n");
    } else if (sw_ptx_is(word, ".shared")) {
        read_shared(module, text);
    } else if (sw_ptx_is(word, ".entry") || sw_ptx_is(word, ".func")) {
        read_code(module, text, sw_ptx_is(word, ".entry"));
    } else if (!sw_ptx_is(word, ".visible") && !sw_ptx_is(word, ".extern") && !sw_ptx_is(word, ".weak")) {
        sw_ptx_refuse(text, "the declaration %.*s is not of the subset", word.chars, word.text);
    }
}

struct sw_ptx_module *sw_ptx_module_open(const char *text, char error[SW_PTX_ERROR_CHARS]) {
    struct sw_ptx_module *module = sw_ptx_zeroed(sizeof *module);
    struct sw_ptx_text place = {text, 1, error};
    error[0] = '\0';
    while (sw_ptx_peek(&place).chars > 0)
        read_declaration(module, &place);
    return error[0] == '\0' ? module : NULL;
}

const struct sw_ptx_code *sw_ptx_code_find(const struct sw_ptx_module *module, struct sw_ptx_word name) {
    const struct sw_ptx_code *code = module->code;
    while (code != NULL &&
           (code->name.chars != name.chars || memcmp(code->name.text, name.text, (size_t)name.chars) != 0))
        code = code->next;
    return code;
}

static struct sw_ptx_kernel *decoded(struct sw_ptx_module *module, const char *name) {
    struct sw_ptx_kernel *kernel = module->kernels;
    while (kernel != NULL && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    if (kernel != NULL)
        return kernel;
    const struct sw_ptx_code *code = sw_ptx_code_find(module, (struct sw_ptx_word){name, (int)strlen(name)});
    if (code == NULL || !code->is_kernel)
        return NULL;
    kernel = sw_ptx_zeroed(sizeof *kernel);
    kernel->name = strdup(name);
    sw_ptx_decode(module, code, kernel);
    kernel->next = module->kernels;
    module->kernels = kernel;
    return kernel;
}

const struct sw_ptx_kernel *sw_ptx_kernel_find(struct sw_ptx_module *module, const char *name,
                                               char error[SW_PTX_ERROR_CHARS]) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    const struct sw_ptx_kernel *kernel = decoded(module, name);
    pthread_mutex_unlock(&mutex);
    error[0] = '\0';
    if (kernel == NULL)
        snprintf(error, SW_PTX_ERROR_CHARS, "there is no kernel %s", name);
    else if (kernel->error[0] != '\0')
        snprintf(error, SW_PTX_ERROR_CHARS, "%s", kernel->error);
    return error[0] == '\0' ? kernel : NULL;
}

size_t sw_ptx_kernel_param_bytes(const struct sw_ptx_kernel *kernel) {
    return kernel->param_bytes;
}

void sw_ptx_kernel_pack(const struct sw_ptx_kernel *kernel, void *const *arguments, char *params) {
    for (int32_t i = 0; i < kernel->param_count; i++)
        memcpy(params + kernel->params[i].offset, arguments[i], kernel->params[i].bytes);
}

/* One line for each kernel that was launched: instructions reached, all, and those that were not, by line and name. */
void sw_ptx_module_report(const struct sw_ptx_module *module, FILE *to) {
    for (const struct sw_ptx_kernel *kernel = module->kernels; kernel != NULL; kernel = kernel->next) {
        int32_t reached = 0;
        for (int32_t i = 0; i < kernel->count; i++)
            reached += kernel->reached[i];
        fprintf(to, "%s %d %d", kernel->name, reached, kernel->count);
        for (int32_t i = 0; i < kernel->count; i++) {
            if (!kernel->reached[i])
                fprintf(to, " %d:%.*s", kernel->ops[i].line, kernel->ops[i].chars, kernel->ops[i].name);
        }
        fprintf(to, "\n");
    }
}
