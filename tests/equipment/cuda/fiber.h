/* Fibers: stacks of their own that are switched by hand, so that one thread of the host plays all threads of a block.
 * The sanitizers are told of every switch. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_FIBER_H
#define SW_TESTS_EQUIPMENT_CUDA_FIBER_H

#ifdef __cplusplus
extern "C" {
#endif

struct sw_fiber;

/* Opens a fiber that runs entry(argument) when it is first switched to; entry never returns. NULL: no memory. */
struct sw_fiber *sw_fiber_open(void (*entry)(void *argument), void *argument);
/* Returns the stack that the caller is on, to come back to. */
struct sw_fiber *sw_fiber_open_current(void);
/* Closes a fiber, from another one; what its functions still hold is dropped. */
void sw_fiber_close(struct sw_fiber *fiber);
void sw_fiber_switch(struct sw_fiber *from, struct sw_fiber *to);

#ifdef __cplusplus
}
#endif
#endif
