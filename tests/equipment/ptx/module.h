/* The declarations of a module, as the decoder needs them. */
#ifndef SW_TESTS_EQUIPMENT_PTX_MODULE_H
#define SW_TESTS_EQUIPMENT_PTX_MODULE_H

#include "tests/equipment/ptx/code.h"
#include "tests/equipment/ptx/text.h"

/* A variable that a text declares: shared memory, or a parameter. */
struct sw_ptx_variable {
    struct sw_ptx_word name;
    uint32_t bytes, align;
    bool is_dynamic; /* its size is given at the launch */
    struct sw_ptx_variable *next;
};

/* A kernel or a function: where its parameters and its body are in the text. */
struct sw_ptx_code {
    struct sw_ptx_word name;
    bool is_kernel;
    struct sw_ptx_text result, params, body; /* `at` is NULL where there is none */
    uint32_t most_threads;
    struct sw_ptx_code *next;
};

struct sw_ptx_module {
    struct sw_ptx_variable *shared;
    struct sw_ptx_code *code;
    struct sw_ptx_kernel *kernels; /* those that were asked for */
};

/* Reads what follows a word like ".shared" or ".param": alignment, type, name and size. */
struct sw_ptx_variable sw_ptx_variable_read(struct sw_ptx_text *text);
const struct sw_ptx_code *sw_ptx_code_find(const struct sw_ptx_module *module, struct sw_ptx_word name);
/* Decodes a kernel with all functions that it calls. An error is in kernel->error. */
void sw_ptx_decode(const struct sw_ptx_module *module, const struct sw_ptx_code *code, struct sw_ptx_kernel *kernel);

#endif
