/* The execution model of CUDA on one thread of the host: blocks one after the other, the threads of a block as fibers
 * that are switched at barriers and at operations of a warp. The order in which fibers run is drawn from a seed, and
 * shared memory begins as NaN, so that a kernel that lacks a barrier computes something else. What a GPU would refuse
 * or leave undefined (a barrier that not all threads reach, writes beyond shared memory, misaligned vectors, launches
 * out of range) ends the launch and is kept as its error. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_MACHINE_H
#define SW_TESTS_EQUIPMENT_CUDA_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SW_EMULATION_WARP_LANES = 32, SW_EMULATION_LANE_BYTES = 64 };

struct sw_emulation_index {
    unsigned x, y, z;
};

/* The position of the running fiber, which kernels read as threadIdx, blockIdx, blockDim and gridDim. */
struct sw_emulation_position {
    struct sw_emulation_index thread, block, block_dim, grid_dim;
};
const struct sw_emulation_position *sw_emulation_position(void);

/* Runs a grid. body(arguments) is the kernel's call, made once by each thread. */
void sw_emulation_launch(const char *kernel, struct sw_emulation_index grid, struct sw_emulation_index block,
                         size_t dynamic_bytes, void (*body)(void *arguments), void *arguments);

/* Entry points for kernels, which call them by CUDA's names. */
void sw_emulation_barrier(const char *file, int line);
/* Exchanges `bytes` between the lanes of a warp, each of which calls it, and returns those of all: lane l's at
 * l·SW_EMULATION_LANE_BYTES. They stay until the warp's next exchange but one. */
const void *sw_emulation_exchange(const void *mine, size_t bytes, const char *what);
/* As sw_emulation_exchange, but only one lane receives them, and works for all before any other goes on; the others
 * receive NULL. */
const void *sw_emulation_gather(const void *mine, size_t bytes, const char *what);
/* Returns the block's shared variable with that key, made at the first call. */
void *sw_emulation_shared(const void *key, size_t bytes);
void *sw_emulation_dynamic_shared(void);
/* Ends the launch with an error if it gave another number of bytes of dynamic shared memory than the kernel states. */
void sw_emulation_check_dynamic_shared(size_t bytes);
/* Ends the launch with an error if the address is not a multiple of bytes, as the GPU would. */
void sw_emulation_check_aligned(const void *address, size_t bytes);
/* Copies that take place when they are waited for. zero: `bytes` zeros are written. wait leaves the newest `newest`
 * commits. */
void sw_emulation_copy_later(void *to, const void *from, size_t bytes, int zero);
void sw_emulation_commit_copies(void);
void sw_emulation_wait_copies(int newest);
void sw_emulation_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Returns the first error of this thread's launches since the last call, or NULL; valid until the next launch. */
const char *sw_emulation_take_error(void);

/* Sets the most shared memory that a block may have, at most SW_SHARED_MOST_BYTES, for every thread's launches. */
void sw_emulation_set_most_shared(size_t bytes);
/* Returns the most dynamic shared memory that a launch of any thread gave a block since the last call. */
size_t sw_emulation_take_most_given(void);

/* Sets the seed of the order in which fibers run, for this thread's launches from now on. */
void sw_emulation_set_seed(uint64_t seed);

/* Makes this thread's launches pass a barrier without waiting from now on: the one of the given line of a file with
 * that end; line 0: none. */
void sw_emulation_pass_barrier(const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
