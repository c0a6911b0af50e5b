/* Instructions: their operands and what executes them. What is in none of the tables is refused. */
#include "tests/equipment/ptx/decoder.h"

#include <stdlib.h>
#include <string.h>

struct operands {
    struct sw_ptx_decoder *decoder;
    int32_t places[SW_PTX_MOST_OPERANDS];
    int count;
};

static void add(struct operands *operands, int32_t place) {
    if (operands->count < SW_PTX_MOST_OPERANDS)
        operands->places[operands->count++] = place;
    else
        sw_ptx_refuse(&operands->decoder->text, "an instruction has too many operands");
}

static bool is_number(struct sw_ptx_word word) {
    return word.chars > 0 && (word.text[0] == '-' || (word.text[0] >= '0' && word.text[0] <= '9'));
}

/* "0f3F800000" and "0d3FF0000000000000" are the bits of a float and of a double. */
static uint64_t number_of(struct sw_ptx_text *text, char width) {
    const struct sw_ptx_word word = sw_ptx_peek(text);
    if (word.chars > 2 && word.text[0] == '0' && (word.text[1] == 'f' || word.text[1] == 'd')) {
        char digits[32] = {0};
        sw_ptx_next(text);
        memcpy(digits, word.text + 2,
               (size_t)word.chars - 2 < sizeof digits - 1 ? (size_t)word.chars - 2 : sizeof digits - 1);
        return strtoull(digits, NULL, 16);
    }
    const uint64_t value = (uint64_t)sw_ptx_number(text);
    return width == '8' ? value : width == '4' ? (uint32_t)value : width == '2' ? (uint16_t)value : value & 1;
}

static int32_t special_place(struct sw_ptx_word word) {
    static const struct {
        const char *name;
        int special;
    } specials[] = {
        {"%tid.", SW_PTX_TID}, {"%ntid.", SW_PTX_NTID}, {"%ctaid.", SW_PTX_CTAID}, {"%nctaid.", SW_PTX_NCTAID}};
    if (sw_ptx_is(word, "%laneid"))
        return SW_PTX_SPECIAL_PLACE(SW_PTX_LANEID);
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
        const int chars = (int)strlen(specials[i].name);
        if (word.chars == chars + 1 && memcmp(word.text, specials[i].name, (size_t)chars) == 0)
            return SW_PTX_SPECIAL_PLACE(specials[i].special + (word.text[chars] - 'x'));
    }
    return -1;
}

/* A register may be wider than what is read of it, where both are 4 bytes a lane here. */
static bool fits(char width, char found, bool written) {
    if (width == 'p' || width == '8' || found == 'p' || found == '8')
        return width == found;
    return !written || found >= width;
}

/* Reads a register, a number or a name of shared memory, of that width. */
static int32_t read_operand(struct sw_ptx_decoder *decoder, char width, bool written) {
    struct sw_ptx_text *text = &decoder->text;
    if (!written && is_number(sw_ptx_peek(text)))
        return sw_ptx_constant(decoder, width, number_of(text, width), false);
    const struct sw_ptx_word word = sw_ptx_next(text);
    int32_t place = special_place(word);
    if (place >= 0 && !written && width == '4')
        return place;
    const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, word, &place);
    if (symbol != NULL && symbol->kind <= SW_PTX_REGISTERS && fits(width, symbol->width, written))
        return place;
    if (symbol != NULL && !written && (symbol->kind == SW_PTX_ADDRESS || symbol->kind == SW_PTX_PARAM))
        return sw_ptx_constant(decoder, width, (uint64_t)symbol->value, symbol->dynamic);
    sw_ptx_refuse(text, "the operand %.*s is not of the subset, or not of the instruction's width", word.chars,
                  word.text);
    return 0;
}

/* Reads "{%r1, %r2}", or a single register. */
static int read_group(struct operands *operands, char width, bool written) {
    struct sw_ptx_text *text = &operands->decoder->text;
    int count = 1;
    if (!sw_ptx_take(text, "{")) {
        add(operands, read_operand(operands->decoder, width, written));
        return count;
    }
    add(operands, read_operand(operands->decoder, width, written));
    for (; sw_ptx_take(text, ","); count++)
        add(operands, read_operand(operands->decoder, width, written));
    sw_ptx_expect(text, "}");
    return count;
}

/* An address: the register or constant that it begins with, and what is added. */
struct address {
    int32_t place;
    int64_t offset;
    const struct sw_ptx_symbol *slots; /* NULL, or a function's parameter */
    bool is_param;
};

static struct address read_address(struct sw_ptx_decoder *decoder, char width) {
    struct sw_ptx_text *text = &decoder->text;
    struct address address = {0};
    int32_t place = 0;
    sw_ptx_expect(text, "[");
    const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, sw_ptx_peek(text), &place);
    if (symbol != NULL && symbol->kind == SW_PTX_SLOTS) {
        address.slots = symbol;
        sw_ptx_next(text);
    } else {
        address.is_param = symbol != NULL && symbol->kind == SW_PTX_PARAM;
        const bool wide_register = symbol != NULL && symbol->kind <= SW_PTX_REGISTERS && symbol->width == '8';
        address.place = read_operand(decoder, wide_register ? '8' : width, false);
        if (wide_register && width != '8')
            sw_ptx_refuse(text, "an address of shared memory in a register of 64 bits is not of the subset");
    }
    if (sw_ptx_take(text, "+"))
        address.offset = sw_ptx_number(text);
    sw_ptx_expect(text, "]");
    return address;
}

static void finish(struct sw_ptx_op *op, const struct operands *operands) {
    op->count = (uint8_t)operands->count;
    op->operands = sw_ptx_zeroed((size_t)(operands->count > 0 ? operands->count : 1) * sizeof *op->operands);
    memcpy(op->operands, operands->places, (size_t)operands->count * sizeof *op->operands);
}

/* "ld.global.v4.u32": a space, perhaps a vector, and a type. */
struct access {
    bool is_load;
    char space; /* 'p', 'g' or 's' */
    int vector, bytes;
    bool is_signed;
};

static bool parse_access(struct sw_ptx_word name, struct access *out) {
    static const struct {
        const char *name;
        int bytes;
        bool is_signed;
    } types[] = {{"u8", 1, false},  {"b8", 1, false},  {"s8", 1, true},   {"u16", 2, false}, {"b16", 2, false},
                 {"s16", 2, true},  {"u32", 4, false}, {"b32", 4, false}, {"s32", 4, true},  {"f32", 4, false},
                 {"u64", 8, false}, {"b64", 8, false}, {"s64", 8, false}, {"f64", 8, false}};
    char text[64] = {0}, *state = NULL;
    if (name.chars >= (int)sizeof text)
        return false;
    memcpy(text, name.text, (size_t)name.chars);
    const char *part = strtok_r(text, ".", &state);
    *out = (struct access){.is_load = strcmp(part, "ld") == 0, .vector = 1};
    if (!out->is_load && strcmp(part, "st") != 0)
        return false;
    while ((part = strtok_r(NULL, ".", &state)) != NULL) {
        size_t type = 0;
        while (type < sizeof types / sizeof types[0] && strcmp(part, types[type].name) != 0)
            type++;
        if (type < sizeof types / sizeof types[0]) {
            out->bytes = types[type].bytes;
            out->is_signed = types[type].is_signed;
        } else if (strcmp(part, "param") == 0 || strcmp(part, "global") == 0 || strcmp(part, "shared") == 0) {
            out->space = part[0];
        } else if (strcmp(part, "v2") == 0 || strcmp(part, "v4") == 0) {
            out->vector = part[1] - '0';
        } else {
            return false;
        }
    }
    return out->bytes > 0 && out->space != 0;
}

/* A function's parameters are registers, one for each 4 bytes. */
static void read_slot_access(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op, const struct access *access,
                             const struct address *address, struct operands *values) {
    if (access->bytes != 4 || address->offset % 4 != 0 || address->offset / 4 + values->count > address->slots->count)
        sw_ptx_refuse(&decoder->text, "an access to a function's parameter that is not of whole words");
    struct operands moved = {.decoder = decoder};
    for (int i = 0; i < values->count; i++) {
        const int32_t slot = address->slots->place + ((int32_t)address->offset / 4 + i) * 4 * SW_PTX_LANES;
        add(&moved, access->is_load ? values->places[i] : slot);
        add(&moved, access->is_load ? slot : values->places[i]);
    }
    op->execute = sw_ptx_move_slots;
    finish(op, &moved);
}

/* Loads and stores may have registers that are wider than what is in memory. */
static char register_width(const struct sw_ptx_decoder *decoder, char width) {
    int32_t place = 0;
    struct sw_ptx_text ahead = decoder->text;
    sw_ptx_take(&ahead, "{");
    const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, sw_ptx_next(&ahead), &place);
    return symbol != NULL && symbol->width > width && symbol->width != 'p' ? symbol->width : width;
}

static void read_access(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op, const struct access *access) {
    struct operands values = {.decoder = decoder};
    struct address address = {0};
    const char width = access->bytes == 8 ? '8' : access->bytes == 4 ? '4' : '2';
    char held = width;
    const char address_width = access->space == 's' ? '4' : '8';
    if (access->is_load) {
        held = register_width(decoder, width);
        read_group(&values, held, true);
        sw_ptx_expect(&decoder->text, ",");
        address = read_address(decoder, address_width);
    } else {
        address = read_address(decoder, address_width);
        sw_ptx_expect(&decoder->text, ",");
        held = register_width(decoder, width);
        read_group(&values, held, false);
    }
    op->width = held;
    op->bytes = (uint8_t)access->bytes;
    op->vector = (uint8_t)access->vector;
    op->sign_bits = access->is_signed ? (uint8_t)(8 * access->bytes) : 0;
    op->number = address.offset;
    if (values.count != access->vector)
        sw_ptx_refuse(&decoder->text, "an access of %d elements has %d registers", access->vector, values.count);
    if (address.slots != NULL) {
        read_slot_access(decoder, op, access, &address, &values);
        return;
    }
    add(&values, address.place);
    if (access->space == 'p' && !access->is_load)
        sw_ptx_refuse(&decoder->text, "a kernel writes its parameters");
    op->execute = access->space == 'p'   ? sw_ptx_load_param
                  : access->space == 'g' ? (access->is_load ? sw_ptx_load_global : sw_ptx_store_global)
                                         : (access->is_load ? sw_ptx_load_shared : sw_ptx_store_shared);
    op->range = access->space == 'g' ? decoder->kernel->accesses++ : 0;
    finish(op, &values);
}

/* "mov.b32 %r1, {%rs1, %rs2}" joins two registers, "mov.b32 {%rs1, %rs2}, %r1" splits one. */
static bool read_pair(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op, struct sw_ptx_word name) {
    const bool wide = sw_ptx_is(name, "mov.b64");
    struct sw_ptx_text ahead = decoder->text;
    if (!wide && !sw_ptx_is(name, "mov.b32"))
        return false;
    const bool splits = sw_ptx_is(sw_ptx_next(&ahead), "{");
    sw_ptx_next(&ahead);
    if (!splits && !sw_ptx_is(sw_ptx_next(&ahead), "{"))
        return false;
    struct operands operands = {.decoder = decoder};
    const char whole = wide ? '8' : '4', half = wide ? '4' : '2';
    const int first = read_group(&operands, splits ? half : whole, true);
    sw_ptx_expect(&decoder->text, ",");
    const int second = read_group(&operands, splits ? whole : half, false);
    if (first + second != 3)
        sw_ptx_refuse(&decoder->text, "only pairs of registers are joined or split");
    op->bytes = wide ? 4 : 2;
    op->execute = splits ? sw_ptx_split : sw_ptx_join;
    finish(op, &operands);
    return true;
}

/* A conversion may read the lower half of a register of 64 bits, which an instruction before it puts in one of 32. */
static int32_t read_converted(struct sw_ptx_decoder *decoder, char width) {
    int32_t place = 0;
    const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, sw_ptx_peek(&decoder->text), &place);
    if (width == '8' || symbol == NULL || symbol->kind > SW_PTX_REGISTERS || symbol->width != '8')
        return read_operand(decoder, width, false);
    struct operands narrowed = {.decoder = decoder};
    add(&narrowed, sw_ptx_new_registers(decoder, 1, '4'));
    add(&narrowed, read_operand(decoder, '8', false));
    struct sw_ptx_op *op = &decoder->kernel->ops[decoder->kernel->count - 1];
    op->execute = sw_ptx_low_half;
    finish(op, &narrowed);
    sw_ptx_append(decoder, (struct sw_ptx_word){op->name, op->chars});
    return narrowed.places[0];
}

static bool read_lane_row(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op, struct sw_ptx_word name) {
    const struct sw_ptx_row *row = sw_ptx_lane_rows;
    while (row->name != NULL && !sw_ptx_is(name, row->name))
        row++;
    if (row->name == NULL)
        return false;
    struct operands operands = {.decoder = decoder};
    const bool converts = strncmp(row->name, "cvt.", 4) == 0;
    for (const char *width = row->signature; *width != '\0'; width++) {
        if (*width == '=')
            continue;
        if (operands.count > 0)
            sw_ptx_expect(&decoder->text, ",");
        add(&operands, converts && operands.count > 0 ? read_converted(decoder, *width)
                                                      : read_operand(decoder, *width, operands.count == 0));
    }
    op->execute = row->execute;
    finish(op, &operands);
    return true;
}

static void read_branch(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op) {
    struct sw_ptx_label *wanted = sw_ptx_zeroed(sizeof *wanted);
    *wanted = (struct sw_ptx_label){sw_ptx_next(&decoder->text), decoder->kernel->count - 1, decoder->wanted};
    decoder->wanted = wanted;
    op->kind = SW_PTX_BRANCH;
}

static int32_t read_slots_name(struct sw_ptx_decoder *decoder, int32_t words) {
    int32_t place = 0;
    const struct sw_ptx_word name = sw_ptx_next(&decoder->text);
    const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, name, &place);
    if (symbol == NULL || symbol->kind != SW_PTX_SLOTS || symbol->count != words)
        sw_ptx_refuse(&decoder->text, "%.*s is not the function's parameter", name.chars, name.text);
    return place;
}

static void add_move(struct sw_ptx_decoder *decoder, struct sw_ptx_word name, int32_t to, int32_t from, int32_t words) {
    struct operands moved = {.decoder = decoder};
    for (int32_t i = 0; i < words; i++) {
        add(&moved, to + i * 4 * SW_PTX_LANES);
        add(&moved, from + i * 4 * SW_PTX_LANES);
    }
    struct sw_ptx_op *op = sw_ptx_append(decoder, name);
    op->execute = sw_ptx_move_slots;
    finish(op, &moved);
}

/* A call moves its arguments to the function's registers, goes there, and moves the result back. */
static void read_call(struct sw_ptx_decoder *decoder, struct sw_ptx_word name) {
    struct sw_ptx_text *text = &decoder->text;
    struct sw_ptx_word result = {0};
    if (!decoder->in_kernel)
        sw_ptx_refuse(text, "a function that calls another is not of the subset");
    if (sw_ptx_take(text, "(")) {
        result = sw_ptx_next(text);
        sw_ptx_expect(text, ")");
        sw_ptx_expect(text, ",");
    }
    const int number = sw_ptx_function_at(decoder, sw_ptx_next(text));
    if (number < 0)
        return;
    const struct sw_ptx_function *function = &decoder->functions[number];
    for (int i = 0; i < function->count; i++) {
        sw_ptx_expect(text, ",");
        if (i == 0)
            sw_ptx_expect(text, "(");
        add_move(decoder, name, function->params[i], read_slots_name(decoder, function->words[i]), function->words[i]);
    }
    if (function->count > 0)
        sw_ptx_expect(text, ")");
    struct sw_ptx_op *op = sw_ptx_append(decoder, name);
    op->kind = SW_PTX_CALL;
    op->number = number;
    if (result.chars > 0) {
        int32_t place = 0;
        const struct sw_ptx_symbol *symbol = sw_ptx_symbol_find(decoder, result, &place);
        if (symbol == NULL || symbol->kind != SW_PTX_SLOTS)
            sw_ptx_refuse(text, "%.*s is not a result", result.chars, result.text);
        add_move(decoder, name, place, function->result, function->result_words);
    }
}

/* Instructions of a whole warp and asynchronous ones. Letters of `form`: a group of registers that is written in the
 * capital's width (Q: 4 bytes), one that is read ("q4" of so many), a register (4, 8, p), "[" an address of shared
 * memory, "<" one of global memory, "#" a number that goes to op->number, "1" the number 1, "|" a predicate that is
 * written beside the result. */
static const struct form {
    const char *name, *form;
    sw_ptx_kind kind;
    sw_ptx_execute *execute;
    int bytes; /* of a copy; columns of a product; how a lane is chosen */
    bool bf16, a_in_registers;
} forms[] = {
    {"bar.sync", "#", SW_PTX_BARRIER, NULL, 0, false, false},
    {"bar.warp.sync", "4", SW_PTX_WARP, sw_ptx_warp_barrier, 0, false, false},
    {"shfl.sync.idx.b32", "D|4444", SW_PTX_WARP, sw_ptx_shuffle, 'i', false, false},
    {"shfl.sync.bfly.b32", "D|4444", SW_PTX_WARP, sw_ptx_shuffle, 'b', false, false},
    {"shfl.sync.down.b32", "D|4444", SW_PTX_WARP, sw_ptx_shuffle, 'd', false, false},
    {"shfl.sync.up.b32", "D|4444", SW_PTX_WARP, sw_ptx_shuffle, 'u', false, false},
    {"vote.sync.ballot.b32", "Dp4", SW_PTX_WARP, sw_ptx_ballot, 0, false, false},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", "G[", SW_PTX_WARP, sw_ptx_load_matrices, 0, false, false},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "G[", SW_PTX_WARP, sw_ptx_load_matrices, 1, false, false},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "Gggg", SW_PTX_WARP, sw_ptx_multiply, 0, false, false},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "Gggg", SW_PTX_WARP, sw_ptx_multiply, 0, true, false},
    {"cp.async.cg.shared.global", "[<#s", SW_PTX_EACH, sw_ptx_copy_later, 16, false, false},
    {"cp.async.ca.shared.global", "[<#s", SW_PTX_EACH, sw_ptx_copy_later, 4, false, false},
    {"cp.async.commit_group", "", SW_PTX_EACH, sw_ptx_commit_copies, 0, false, false},
    {"cp.async.wait_group", "#", SW_PTX_EACH, sw_ptx_wait_copies, 0, false, false},
    {"fence.proxy.async.shared::cta", "", SW_PTX_EACH, sw_ptx_fence_copies, 0, false, false},
    {"wgmma.fence.sync.aligned", "", SW_PTX_WARP, sw_ptx_products_fence, 0, false, false},
    {"wgmma.commit_group.sync.aligned", "", SW_PTX_WARP, sw_ptx_products_commit, 0, false, false},
    {"wgmma.wait_group.sync.aligned", "#", SW_PTX_WARP, sw_ptx_products_wait, 0, false, false},
    {"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "Gw", SW_PTX_WARP, sw_ptx_products_start, 64, false, false},
    {"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", "Gw", SW_PTX_WARP, sw_ptx_products_start, 128, false,
     false},
    {"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", "Gw", SW_PTX_WARP, sw_ptx_products_start, 64, true, false},
    {"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", "Gw", SW_PTX_WARP, sw_ptx_products_start, 128, true,
     false},
};

static void expect_number(struct sw_ptx_decoder *decoder, int64_t wanted) {
    const int64_t found = sw_ptx_number(&decoder->text);
    if (found != wanted)
        sw_ptx_refuse(&decoder->text, "%lld is expected, and %lld is there", (long long)wanted, (long long)found);
}

/* A warpgroup's product: A as a descriptor or in registers, B's descriptor, whether sums are added to, signs, and which
 * operands lie by columns. */
static void read_product(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op, struct operands *operands) {
    struct sw_ptx_text *text = &decoder->text;
    const bool in_registers = sw_ptx_is(sw_ptx_peek(text), "{");
    if (operands->count != op->bytes / 2)
        sw_ptx_refuse(text, "a product of %d columns has %d sums", op->bytes, operands->count);
    const int a = read_group(operands, in_registers ? '4' : '8', false);
    if (in_registers && a != 4)
        sw_ptx_refuse(text, "a product has %d registers of A", a);
    sw_ptx_expect(text, ",");
    add(operands, read_operand(decoder, '8', false));
    sw_ptx_expect(text, ",");
    add(operands, read_operand(decoder, 'p', false));
    for (int i = 0; i < 2; i++) {
        sw_ptx_expect(text, ",");
        expect_number(decoder, 1);
    }
    if (!in_registers) {
        sw_ptx_expect(text, ",");
        if (sw_ptx_number(text) != 0)
            sw_ptx_refuse(text, "a product whose A lies by columns is not of the subset");
    }
    sw_ptx_expect(text, ",");
    op->columns_of_b = sw_ptx_number(text) != 0;
    op->vector = in_registers ? 4 : 0;
}

static void read_form(struct sw_ptx_decoder *decoder, struct sw_ptx_op *op, const struct form *form) {
    struct sw_ptx_text *text = &decoder->text;
    struct operands operands = {.decoder = decoder};
    op->kind = (uint8_t)form->kind;
    op->execute = form->execute;
    op->bytes = (uint8_t)form->bytes;
    op->bf16 = form->bf16;
    op->range = decoder->kernel->accesses;
    for (const char *letter = form->form; *letter != '\0'; letter++) {
        struct address address = {0};
        const bool has_comma = letter == form->form || *letter == '|' ? true : sw_ptx_take(text, ",");
        if (*letter == 's' && !has_comma) {
            add(&operands, sw_ptx_constant(decoder, '4', (uint64_t)op->number, false));
        } else if (!has_comma) {
            sw_ptx_refuse(text, "an operand is missing");
        } else if (*letter == 'D') {
            add(&operands, read_operand(decoder, '4', true));
        } else if (*letter == '|') {
            add(&operands,
                sw_ptx_take(text, "|") ? read_operand(decoder, 'p', true) : sw_ptx_new_registers(decoder, 1, 'p'));
        } else if (*letter == 'G' || *letter == 'g') {
            read_group(&operands, '4', *letter == 'G');
        } else if (*letter == '[' || *letter == '<') {
            address = read_address(decoder, *letter == '[' ? '4' : '8');
            decoder->kernel->accesses += *letter == '<';
            if (address.offset != 0 || address.slots != NULL || address.is_param)
                sw_ptx_refuse(text, "an address with an offset is not of the subset here");
            add(&operands, address.place);
        } else if (*letter == '#') {
            op->number = sw_ptx_number(text);
        } else if (*letter == 'w') {
            read_product(decoder, op, &operands);
        } else {
            add(&operands, read_operand(decoder, *letter == 's' ? '4' : *letter, false));
        }
    }
    if (form->kind == SW_PTX_BARRIER && op->number != 0)
        sw_ptx_refuse(text, "only barrier 0 is of the subset");
    if (form->execute == sw_ptx_copy_later && op->number != form->bytes)
        sw_ptx_refuse(text, "a copy of %lld bytes is not of the subset", (long long)op->number);
    finish(op, &operands);
}

void sw_ptx_read_instruction(struct sw_ptx_decoder *decoder, struct sw_ptx_word name, int32_t guard, bool unless) {
    struct access access;
    if (sw_ptx_is(name, "call.uni") || sw_ptx_is(name, "call")) {
        if (guard != SW_PTX_NO_GUARD)
            sw_ptx_refuse(&decoder->text, "a call on a condition is not of the subset");
        read_call(decoder, name);
        sw_ptx_expect(&decoder->text, ";");
        return;
    }
    struct sw_ptx_op op = *sw_ptx_append(decoder, name);
    size_t form = 0;
    while (form < sizeof forms / sizeof forms[0] && !sw_ptx_is(name, forms[form].name))
        form++;
    if (sw_ptx_is(name, "bra") || sw_ptx_is(name, "bra.uni"))
        read_branch(decoder, &op);
    else if (sw_ptx_is(name, "ret") || sw_ptx_is(name, "exit"))
        op.kind = SW_PTX_RETURN;
    else if (form < sizeof forms / sizeof forms[0])
        read_form(decoder, &op, &forms[form]);
    else if (parse_access(name, &access))
        read_access(decoder, &op, &access);
    else if (!read_pair(decoder, &op, name) && !read_lane_row(decoder, &op, name))
        sw_ptx_refuse(&decoder->text, "the instruction %.*s is not of the subset", name.chars, name.text);
    op.guard = guard;
    op.unless = unless;
    decoder->kernel->ops[decoder->kernel->count - 1] = op;
    sw_ptx_expect(&decoder->text, ";");
}
