/* The exit status of the program. Scripts tell by it how a command ended. */
#ifndef SW_CORE_EXIT_H
#define SW_CORE_EXIT_H

enum {
    SW_EXIT_DONE = 0,
    SW_EXIT_FAILED = 1,
    SW_EXIT_USAGE = 2,         /* wrong arguments */
    SW_EXIT_TIME_LIMIT = 3,    /* a training reached --time-limit, and is saved */
    SW_EXIT_NOT_FINITE = 4,    /* a training whose losses, gradients or weights are not finite */
    SW_EXIT_INTERRUPTED = 130, /* a training that a signal stopped, and that is saved */
};

#endif
