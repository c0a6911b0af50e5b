/* The machine's state, shared by the files that execute instructions. */
#ifndef SW_TESTS_EQUIPMENT_PTX_MACHINE_H
#define SW_TESTS_EQUIPMENT_PTX_MACHINE_H

#include "tests/equipment/ptx/code.h"
#include "tests/equipment/vectors.h"

#include <string.h>

enum {
    SW_PTX_MOST_THREADS = 1024,
    SW_PTX_MOST_WARPS = SW_PTX_MOST_THREADS / SW_PTX_LANES,
    SW_PTX_MOST_PRODUCTS = 64,
    SW_PTX_SHARED_BYTES = 256 * 1024, /* addresses below it are of shared memory */
    SW_PTX_GRANULE_BYTES = 2,         /* what has one mark */
    SW_PTX_REGISTER_BYTES = 4 * SW_PTX_LANES,
};

/* Who last wrote and read a granule of shared memory, and when (shared.c). */
struct sw_ptx_mark {
    uint64_t write, read;
    uint32_t fences; /* of the writing thread, before the write arrived */
    uint32_t time;
};

/* An asynchronous copy of a lane. */
struct sw_ptx_copy {
    uint64_t from; /* 0: zeros */
    uint32_t to, group;
    uint8_t bytes, from_bytes;
    bool is_read, is_written;
    unsigned char data[16];
};

struct sw_ptx_lane {
    struct sw_ptx_copy *copies;
    int count, room;
    uint32_t groups;          /* commits */
    uint32_t fences;          /* fences that show its copies to products */
    uint32_t fences_in_order; /* those before the block's last barrier */
};

/* A warp's part of a warpgroup's product. */
struct sw_ptx_product {
    const struct sw_ptx_op *op;
    uint64_t a, b;
    uint32_t a_words[4][SW_PTX_LANES];
    bool add, early;
    uint32_t group, time;
};

typedef enum { SW_PTX_RUNNABLE, SW_PTX_AT_WARP, SW_PTX_AT_BARRIER, SW_PTX_ENDED } sw_ptx_state;

struct sw_ptx_warp {
    struct sw_ptx_machine *machine;
    int number;
    char *file;
    int32_t next[SW_PTX_LANES]; /* instruction */
    int32_t back[SW_PTX_LANES]; /* where a call returns to; -1: no call */
    uint8_t state[SW_PTX_LANES];
    uint32_t epoch; /* barriers of the warp in this block */
    struct sw_ptx_lane lanes[SW_PTX_LANES];
    struct sw_ptx_product products[SW_PTX_MOST_PRODUCTS];
    int product_count;
    uint32_t product_groups;
    bool registers_shown;
    uint64_t started; /* a digest of all products */
    uint8_t *held;    /* for each 128 bytes of the file: 1, read by a product under way; 2, written */
};

struct sw_ptx_range {
    uint64_t base, bytes;
};

struct sw_ptx_machine {
    const struct sw_ptx_kernel *kernel;
    const struct sw_ptx_launch *launch;
    char *shared;
    struct sw_ptx_mark *marks;
    uint32_t shared_begin, shared_end, dynamic_begin;
    struct sw_ptx_range *ranges; /* the memory that each access was in last */
    struct sw_ptx_warp *warps[SW_PTX_MOST_WARPS];
    int warp_count, order[SW_PTX_MOST_WARPS];
    uint32_t block[3], barriers, time;
    uint64_t random;
    char *error; /* of SW_PTX_ERROR_CHARS; "" while there is none */
};

static inline void *sw_ptx_register(struct sw_ptx_warp *warp, int32_t place) {
    return warp->file + place;
}

static inline float sw_ptx_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint64_t sw_ptx_draw(struct sw_ptx_machine *machine);
/* Keeps the first error, with where it is. lane < 0: the warp's. */
__attribute__((format(printf, 4, 5))) void sw_ptx_fail(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane,
                                                       const char *format, ...);
static inline bool sw_ptx_failed(const struct sw_ptx_warp *warp) {
    return warp->machine->error[0] != '\0';
}

/* Returns the bytes of global memory at an address; NULL with an error. */
void *sw_ptx_global(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint64_t address, uint32_t bytes);
/* Returns shared memory that a lane reads or writes now, and marks it; NULL with an error. */
void *sw_ptx_shared_read(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                         uint32_t bytes);
void *sw_ptx_shared_write(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                          uint32_t bytes);
/* A copy that is under way: until it arrives, nobody may touch its bytes. */
bool sw_ptx_shared_begin_copy(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                              uint32_t bytes);
void sw_ptx_shared_end_copy(struct sw_ptx_warp *warp, int lane, uint32_t address, uint32_t bytes);
/* 16 bytes that a product reads: they have arrived, and were shown to products; since `time` nobody wrote them. */
const void *sw_ptx_shared_product(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t address,
                                  uint32_t time);
/* Lands the copies of a lane, but for the newest groups. */
void sw_ptx_land_copies(struct sw_ptx_warp *warp, int lane, uint32_t newest);

#endif
