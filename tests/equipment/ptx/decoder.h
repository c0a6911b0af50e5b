/* The decoder's state, shared by its two files: decode.c reads bodies and names, instruction.c instructions. */
#ifndef SW_TESTS_EQUIPMENT_PTX_DECODER_H
#define SW_TESTS_EQUIPMENT_PTX_DECODER_H

#include "tests/equipment/ptx/module.h"

enum { SW_PTX_MOST_OPERANDS = 96, SW_PTX_MOST_FUNCTIONS = 8, SW_PTX_MOST_PARAMS = 8 };

typedef enum {
    SW_PTX_REGISTER,  /* at `place` */
    SW_PTX_REGISTERS, /* `count` of them, whose numbers follow the name */
    SW_PTX_SLOTS,     /* a parameter of a function: registers of 4 bytes, from `place` on */
    SW_PTX_PARAM,     /* a kernel's, at the offset `value` */
    SW_PTX_ADDRESS,   /* of shared memory */
} sw_ptx_symbol_kind;

struct sw_ptx_symbol {
    struct sw_ptx_word name;
    sw_ptx_symbol_kind kind;
    char width; /* 'p', '2', '4' or '8' */
    int32_t place, count;
    int64_t value;
    bool dynamic;
    struct sw_ptx_symbol *next;
};

struct sw_ptx_label {
    struct sw_ptx_word name;
    int32_t index;
    struct sw_ptx_label *next;
};

/* A function that the kernel calls: the places of its parameters and of its result, and where it begins. */
struct sw_ptx_function {
    const struct sw_ptx_code *code;
    struct sw_ptx_symbol *symbols;
    int32_t result, params[SW_PTX_MOST_PARAMS], words[SW_PTX_MOST_PARAMS], count, result_words, begins;
};

struct sw_ptx_decoder {
    const struct sw_ptx_module *module;
    struct sw_ptx_kernel *kernel;
    struct sw_ptx_text text;
    struct sw_ptx_symbol *symbols; /* the innermost first */
    struct sw_ptx_label *labels, *wanted;
    struct sw_ptx_function functions[SW_PTX_MOST_FUNCTIONS];
    int function_count;
    bool in_kernel;
    int32_t op_room, constant_room;
};

/* Returns the place of new registers of 4 or 8 bytes a lane. */
int32_t sw_ptx_new_registers(struct sw_ptx_decoder *decoder, int32_t count, char width);
/* Returns the place of a register that holds a constant. */
int32_t sw_ptx_constant(struct sw_ptx_decoder *decoder, char width, uint64_t value, bool dynamic);
/* Returns the symbol of a name, or NULL; for a register of several, *out_place is its place. */
const struct sw_ptx_symbol *sw_ptx_symbol_find(const struct sw_ptx_decoder *decoder, struct sw_ptx_word name,
                                               int32_t *out_place);
/* Appends an instruction, which the caller fills. */
struct sw_ptx_op *sw_ptx_append(struct sw_ptx_decoder *decoder, struct sw_ptx_word name);
/* Returns the number of a function, whose parameters have places from then on; -1 with an error. */
int sw_ptx_function_at(struct sw_ptx_decoder *decoder, struct sw_ptx_word name);
/* Reads an instruction whose name was read, up to its semicolon. */
void sw_ptx_read_instruction(struct sw_ptx_decoder *decoder, struct sw_ptx_word name, int32_t guard, bool unless);

#endif
