/* A library to be preloaded into the ranks of a program, to make trouble on one of them. SW_SLOW_FLUSH=RANK:NUMBER:MS:
 * that rank's flush of that number, counted from 1, begins so many milliseconds later, as if its drive were that slow.
 * SW_STOP_AT=RANK:PATH: it stops when it asks what is at that path. */
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static atomic_int flushes;

static bool is_rank(int rank) {
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    return own != NULL && strtol(own, NULL, 10) == rank;
}

static void delay(int number) {
    int rank, late_number, milliseconds;
    const char *wish = getenv("SW_SLOW_FLUSH");
    if (wish != NULL && sscanf(wish, "%d:%d:%d", &rank, &late_number, &milliseconds) == 3 && is_rank(rank) &&
        number == late_number)
        nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L}, NULL);
}

static void look(const struct io_uring *ring) {
    const struct io_uring_sq *queue = &ring->sq;
    for (unsigned at = queue->sqe_head; at != queue->sqe_tail; at++)
        if (queue->sqes[at & *queue->kring_mask].opcode == IORING_OP_FSYNC)
            delay(atomic_fetch_add(&flushes, 1) + 1);
}

int io_uring_submit(struct io_uring *ring) {
    int (*real)(struct io_uring *) = (int (*)(struct io_uring *))dlsym(RTLD_NEXT, "io_uring_submit");
    look(ring);
    return real(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr) {
    int (*real)(struct io_uring *, unsigned) =
        (int (*)(struct io_uring *, unsigned))dlsym(RTLD_NEXT, "io_uring_submit_and_wait");
    look(ring);
    return real(ring, wait_nr);
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the C library's header has other names. */
int stat(const char *path, struct stat *info) {
    int rank, begins = 0;
    const char *wish = getenv("SW_STOP_AT");
    if (wish != NULL && sscanf(wish, "%d:%n", &rank, &begins) == 1 && is_rank(rank) && strcmp(wish + begins, path) == 0)
        raise(SIGSTOP);
    return fstatat(AT_FDCWD, path, info, 0);
}
