/* An interpreter of the subset of PTX to which nvcc compiles this program's kernels, after the PTX ISA. Anything else
 * is refused by name. It executes a grid block by block: a warp runs those of its lanes that are furthest behind, as
 * far as they can, and the warps of a block take turns in an order drawn from a seed. What a GPU would refuse or leave
 * undefined ends the launch with a sentence: addresses outside of what is allocated, misaligned accesses, more shared
 * memory than was asked for, a barrier or an operation of a warp that not all threads reach, shared memory that two
 * threads use with no barrier between, copies that are not waited for or not shown to products. */
#ifndef SW_TESTS_EQUIPMENT_PTX_PTX_H
#define SW_TESTS_EQUIPMENT_PTX_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { SW_PTX_ERROR_CHARS = 320 };

/* The text of one file, as nvcc writes it. Modules and kernels live as long as the process. */
struct sw_ptx_module;
/* Returns NULL with a sentence in `error` if the text's declarations are not of the subset. The text is not copied. */
struct sw_ptx_module *sw_ptx_module_open(const char *text, char error[SW_PTX_ERROR_CHARS]);

/* Writes a line for each kernel that was decoded: its name, how many of its instructions were reached, how many it has,
 * and which were not. */
void sw_ptx_module_report(const struct sw_ptx_module *module, FILE *to);

/* Returns the kernel of that name, decoded; NULL with a sentence if there is none, or an instruction is not of the
 * subset. Threads take turns. */
struct sw_ptx_kernel;
const struct sw_ptx_kernel *sw_ptx_kernel_find(struct sw_ptx_module *module, const char *name,
                                               char error[SW_PTX_ERROR_CHARS]);
size_t sw_ptx_kernel_param_bytes(const struct sw_ptx_kernel *kernel);
/* Writes the bytes of all parameters; arguments[i] points to the i-th. */
void sw_ptx_kernel_pack(const struct sw_ptx_kernel *kernel, void *const *arguments, char *params);

struct sw_ptx_launch {
    uint32_t grid[3], block[3];
    size_t dynamic_bytes;       /* of shared memory, given at the launch */
    size_t dynamic_limit_bytes; /* what the kernel was allowed of it */
    size_t shared_limit_bytes;  /* the most that a block may have, static and dynamic */
    const char *params;
    uint64_t seed; /* of the order of warps, and of when asynchronous work lands */
    bool cut_sums; /* sums of products are cut off at each step, as tensor cores do, and not exact */
};

/* Runs a grid. Returns false with a sentence in `error` where the kernel did what a GPU refuses or leaves undefined. */
bool sw_ptx_launch_run(const struct sw_ptx_kernel *kernel, const struct sw_ptx_launch *launch,
                       char error[SW_PTX_ERROR_CHARS]);

/* Asked for the allocation that holds an address of global memory: returns false if there is none. */
typedef bool sw_ptx_find_memory(const void *at, const char **out_base, size_t *out_bytes);
void sw_ptx_set_memory(sw_ptx_find_memory *find);

#endif
