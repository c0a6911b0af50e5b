#include "tests/equipment/ptx/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t lane_bytes(char width) {
    return width == '8' ? 8 : 4;
}

int32_t sw_ptx_new_registers(struct sw_ptx_decoder *decoder, int32_t count, char width) {
    const int32_t place = decoder->kernel->file_bytes;
    decoder->kernel->file_bytes += count * lane_bytes(width) * SW_PTX_LANES;
    return place;
}

static void *grown(void *items, int32_t count, int32_t *room, size_t bytes) {
    if (count < *room)
        return items;
    const int32_t larger = *room == 0 ? 256 : 2 * *room;
    char *moved = sw_ptx_zeroed((size_t)larger * bytes);
    if (count > 0)
        memcpy(moved, items, (size_t)count * bytes);
    free(items);
    *room = larger;
    return moved;
}

int32_t sw_ptx_constant(struct sw_ptx_decoder *decoder, char width, uint64_t value, bool dynamic) {
    struct sw_ptx_kernel *kernel = decoder->kernel;
    const bool wide = width == '8';
    for (int32_t i = 0; i < kernel->constant_count; i++) {
        const struct sw_ptx_constant *known = &kernel->constants[i];
        if (known->wide == wide && known->value == value && known->dynamic == dynamic)
            return known->place;
    }
    kernel->constants =
        grown(kernel->constants, kernel->constant_count, &decoder->constant_room, sizeof *kernel->constants);
    const int32_t place = sw_ptx_new_registers(decoder, 1, width);
    kernel->constants[kernel->constant_count++] = (struct sw_ptx_constant){place, wide, dynamic, value};
    return place;
}

struct sw_ptx_op *sw_ptx_append(struct sw_ptx_decoder *decoder, struct sw_ptx_word name) {
    struct sw_ptx_kernel *kernel = decoder->kernel;
    kernel->ops = grown(kernel->ops, kernel->count, &decoder->op_room, sizeof *kernel->ops);
    struct sw_ptx_op *op = &kernel->ops[kernel->count++];
    *op = (struct sw_ptx_op){
        .name = name.text, .chars = (uint8_t)name.chars, .line = decoder->text.line, .guard = SW_PTX_NO_GUARD};
    return op;
}

static bool is_same(struct sw_ptx_word a, struct sw_ptx_word b) {
    return a.chars == b.chars && memcmp(a.text, b.text, (size_t)a.chars) == 0;
}

/* The digits at the end of "%r12" are its number among the registers "%r". */
static bool is_numbered(const struct sw_ptx_symbol *symbol, struct sw_ptx_word name, int32_t *out_place) {
    const int digits = name.chars - symbol->name.chars;
    if (digits <= 0 || memcmp(name.text, symbol->name.text, (size_t)symbol->name.chars) != 0)
        return false;
    int32_t number = 0;
    for (int i = symbol->name.chars; i < name.chars; i++) {
        if (name.text[i] < '0' || name.text[i] > '9')
            return false;
        number = number * 10 + (name.text[i] - '0');
    }
    *out_place = symbol->place + number * lane_bytes(symbol->width) * SW_PTX_LANES;
    return number < symbol->count;
}

const struct sw_ptx_symbol *sw_ptx_symbol_find(const struct sw_ptx_decoder *decoder, struct sw_ptx_word name,
                                               int32_t *out_place) {
    for (const struct sw_ptx_symbol *symbol = decoder->symbols; symbol != NULL; symbol = symbol->next) {
        *out_place = symbol->place;
        if (symbol->kind == SW_PTX_REGISTERS ? is_numbered(symbol, name, out_place) : is_same(symbol->name, name))
            return symbol;
    }
    return NULL;
}

static struct sw_ptx_symbol *add_symbol(struct sw_ptx_decoder *decoder, struct sw_ptx_symbol symbol) {
    struct sw_ptx_symbol *kept = sw_ptx_zeroed(sizeof *kept);
    *kept = symbol;
    kept->next = decoder->symbols;
    decoder->symbols = kept;
    return kept;
}

static char register_width(struct sw_ptx_decoder *decoder, struct sw_ptx_word type) {
    static const struct {
        const char *name;
        char width;
    } types[] = {{".pred", 'p'}, {".b16", '2'}, {".u16", '2'}, {".s16", '2'}, {".f16", '2'},
                 {".b32", '4'},  {".u32", '4'}, {".s32", '4'}, {".f32", '4'}, {".b64", '8'},
                 {".u64", '8'},  {".s64", '8'}, {".f64", '8'}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (sw_ptx_is(type, types[i].name))
            return types[i].width;
    }
    sw_ptx_refuse(&decoder->text, "registers of type %.*s are not of the subset", type.chars, type.text);
    return '4';
}

static void read_registers(struct sw_ptx_decoder *decoder) {
    struct sw_ptx_text *text = &decoder->text;
    const char width = register_width(decoder, sw_ptx_next(text));
    do {
        struct sw_ptx_symbol symbol = {.name = sw_ptx_next(text), .width = width, .count = 1, .kind = SW_PTX_REGISTER};
        if (sw_ptx_take(text, "<")) {
            symbol.kind = SW_PTX_REGISTERS;
            symbol.count = (int32_t)sw_ptx_number(text);
            sw_ptx_expect(text, ">");
        }
        symbol.place = sw_ptx_new_registers(decoder, symbol.count, width);
        add_symbol(decoder, symbol);
    } while (sw_ptx_take(text, ","));
    sw_ptx_expect(text, ";");
}

static uint32_t aligned(uint32_t at, uint32_t align) {
    return (at + align - 1) / align * align;
}

/* Variables of every file of the kernel get a place, used or not, as they do on a GPU where functions use them. */
static void add_shared(struct sw_ptx_decoder *decoder, const struct sw_ptx_variable *variable) {
    struct sw_ptx_kernel *kernel = decoder->kernel;
    struct sw_ptx_symbol symbol = {.name = variable->name, .kind = SW_PTX_ADDRESS, .dynamic = variable->is_dynamic};
    if (variable->is_dynamic) {
        kernel->dynamic_align = variable->align > kernel->dynamic_align ? variable->align : kernel->dynamic_align;
    } else {
        const uint32_t at = aligned(SW_PTX_SHARED_BEGIN + kernel->static_bytes, variable->align);
        symbol.value = at;
        kernel->static_bytes = at + variable->bytes - SW_PTX_SHARED_BEGIN;
    }
    add_symbol(decoder, symbol);
}

/* A parameter of a function, or of a call, has a register for each 4 bytes. */
static struct sw_ptx_symbol *read_slots(struct sw_ptx_decoder *decoder, struct sw_ptx_text *text) {
    const struct sw_ptx_variable variable = sw_ptx_variable_read(text);
    const int32_t words = (int32_t)(variable.bytes + 3) / 4;
    return add_symbol(decoder, (struct sw_ptx_symbol){.name = variable.name,
                                                      .kind = SW_PTX_SLOTS,
                                                      .count = words,
                                                      .place = sw_ptx_new_registers(decoder, words, '4')});
}

static void read_kernel_params(struct sw_ptx_decoder *decoder, struct sw_ptx_text params) {
    enum { MOST = 64 };
    struct sw_ptx_kernel *kernel = decoder->kernel;
    kernel->params = sw_ptx_zeroed(MOST * sizeof *kernel->params);
    if (params.at == NULL)
        return;
    while (!sw_ptx_take(&params, ")") && params.error[0] == '\0' && kernel->param_count < MOST) {
        sw_ptx_expect(&params, ".param");
        const struct sw_ptx_variable variable = sw_ptx_variable_read(&params);
        const uint32_t at = aligned(kernel->param_bytes, variable.align);
        kernel->params[kernel->param_count++] = (struct sw_ptx_param){at, variable.bytes};
        kernel->param_bytes = at + variable.bytes;
        add_symbol(decoder, (struct sw_ptx_symbol){.name = variable.name, .kind = SW_PTX_PARAM, .value = at});
        sw_ptx_take(&params, ",");
    }
}

int sw_ptx_function_at(struct sw_ptx_decoder *decoder, struct sw_ptx_word name) {
    for (int i = 0; i < decoder->function_count; i++) {
        if (is_same(decoder->functions[i].code->name, name))
            return i;
    }
    const struct sw_ptx_code *code = sw_ptx_code_find(decoder->module, name);
    if (code == NULL || code->is_kernel || decoder->function_count == SW_PTX_MOST_FUNCTIONS) {
        sw_ptx_refuse(&decoder->text, "the function %.*s cannot be called", name.chars, name.text);
        return -1;
    }
    struct sw_ptx_function *function = &decoder->functions[decoder->function_count];
    struct sw_ptx_symbol *const kept = decoder->symbols;
    struct sw_ptx_text result = code->result, params = code->params;
    function->code = code;
    result.error = params.error = decoder->text.error;
    decoder->symbols = NULL;
    if (result.at != NULL && sw_ptx_take(&result, ".param")) {
        const struct sw_ptx_symbol *symbol = read_slots(decoder, &result);
        function->result = symbol->place;
        function->result_words = symbol->count;
    }
    while (params.at != NULL && sw_ptx_take(&params, ".param") && function->count < SW_PTX_MOST_PARAMS) {
        const struct sw_ptx_symbol *symbol = read_slots(decoder, &params);
        function->params[function->count] = symbol->place;
        function->words[function->count++] = symbol->count;
        sw_ptx_take(&params, ",");
    }
    function->symbols = decoder->symbols;
    decoder->symbols = kept;
    return decoder->function_count++;
}

static void add_label(struct sw_ptx_decoder *decoder, struct sw_ptx_word name) {
    struct sw_ptx_label *label = sw_ptx_zeroed(sizeof *label);
    *label = (struct sw_ptx_label){name, decoder->kernel->count, decoder->labels};
    decoder->labels = label;
}

static int32_t read_guard(struct sw_ptx_decoder *decoder, bool *out_unless) {
    *out_unless = sw_ptx_take(&decoder->text, "!");
    int32_t place = 0;
    const struct sw_ptx_word name = sw_ptx_next(&decoder->text);
    const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, name, &place);
    if (symbol == NULL || symbol->width != 'p')
        sw_ptx_refuse(&decoder->text, "%.*s is not a predicate", name.chars, name.text);
    return place;
}

static void read_statement(struct sw_ptx_decoder *decoder) {
    struct sw_ptx_text *text = &decoder->text;
    struct sw_ptx_word word = sw_ptx_next(text);
    int32_t guard = SW_PTX_NO_GUARD;
    bool unless = false;
    if (sw_ptx_is(word, ".reg")) {
        read_registers(decoder);
    } else if (sw_ptx_is(word, ".param")) {
        read_slots(decoder, text);
        sw_ptx_expect(text, ";");
    } else if (sw_ptx_is(word, ".shared")) {
        const struct sw_ptx_variable variable = sw_ptx_variable_read(text);
        add_shared(decoder, &variable);
        sw_ptx_expect(text, ";");
    } else if (sw_ptx_is(word, ".pragma")) {
        text->at += strcspn(text->at, ";") + 1;
    } else if (word.text[0] == '.') {
        sw_ptx_refuse(text, "%.*s is not of the subset", word.chars, word.text);
    } else if (sw_ptx_take(text, ":")) {
        add_label(decoder, word);
    } else if (!sw_ptx_is(word, ";")) {
        if (sw_ptx_is(word, "@")) {
            guard = read_guard(decoder, &unless);
            word = sw_ptx_next(text);
        }
        sw_ptx_read_instruction(decoder, word, guard, unless);
    }
}

static void read_block(struct sw_ptx_decoder *decoder) {
    struct sw_ptx_symbol *const kept = decoder->symbols;
    while (!sw_ptx_take(&decoder->text, "}") && decoder->text.error[0] == '\0') {
        if (sw_ptx_take(&decoder->text, "{"))
            read_block(decoder);
        else
            read_statement(decoder);
    }
    decoder->symbols = kept;
}

/* Labels are known to the function that they are in. */
static void resolve_branches(struct sw_ptx_decoder *decoder) {
    for (const struct sw_ptx_label *wanted = decoder->wanted; wanted != NULL; wanted = wanted->next) {
        const struct sw_ptx_label *label = decoder->labels;
        while (label != NULL && !is_same(label->name, wanted->name))
            label = label->next;
        if (label == NULL)
            sw_ptx_refuse(&decoder->text, "there is no label %.*s", wanted->name.chars, wanted->name.text);
        else
            decoder->kernel->ops[wanted->index].number = label->index;
    }
    decoder->labels = decoder->wanted = NULL;
}

/* The end of a body is a return. */
static void read_body(struct sw_ptx_decoder *decoder, const struct sw_ptx_text *body) {
    decoder->text.at = body->at;
    decoder->text.line = body->line;
    read_block(decoder);
    sw_ptx_append(decoder, (struct sw_ptx_word){"ret", 3})->kind = SW_PTX_RETURN;
    resolve_branches(decoder);
}

void sw_ptx_decode(const struct sw_ptx_module *module, const struct sw_ptx_code *code, struct sw_ptx_kernel *kernel) {
    struct sw_ptx_decoder decoder = {.module = module, .kernel = kernel, .in_kernel = true};
    struct sw_ptx_text params = code->params;
    decoder.text.error = params.error = kernel->error;
    kernel->file_bytes = SW_PTX_SPECIAL_PLACE(SW_PTX_SPECIALS);
    kernel->dynamic_align = 16;
    kernel->most_threads = code->most_threads;
    for (const struct sw_ptx_variable *variable = module->shared; variable != NULL; variable = variable->next)
        add_shared(&decoder, variable);
    struct sw_ptx_symbol *const shared = decoder.symbols;
    read_kernel_params(&decoder, params);
    read_body(&decoder, &code->body);
    decoder.in_kernel = false;
    for (int i = 0; i < decoder.function_count; i++) {
        struct sw_ptx_symbol *last = decoder.functions[i].symbols;
        while (last != NULL && last->next != NULL)
            last = last->next;
        decoder.symbols = last == NULL ? shared : decoder.functions[i].symbols;
        if (last != NULL)
            last->next = shared;
        decoder.functions[i].begins = kernel->count;
        read_body(&decoder, &decoder.functions[i].code->body);
    }
    kernel->reached = sw_ptx_zeroed((size_t)kernel->count);
    for (int32_t i = 0; i < kernel->count; i++) {
        if (kernel->ops[i].kind == SW_PTX_CALL)
            kernel->ops[i].number = decoder.functions[kernel->ops[i].number].begins;
    }
}
