/* Decoded PTX: what the decoder makes and the machine executes. */
#ifndef SW_TESTS_EQUIPMENT_PTX_CODE_H
#define SW_TESTS_EQUIPMENT_PTX_CODE_H

#include "tests/equipment/ptx/ptx.h"

/* Addresses of shared memory begin where no pattern of the kernels does. On a GPU they begin behind the 1,024 bytes
 * that the system takes; another 128 make a kernel fail that does not look where its memory begins. */
enum { SW_PTX_LANES = 32, SW_PTX_NO_GUARD = -1, SW_PTX_SHARED_BEGIN = 1024 + 128 };
#define SW_PTX_ALL_LANES 0xffffffffu

struct sw_ptx_warp;
struct sw_ptx_op;

/* Executes an instruction for the lanes whose bits are set. A register is 32 lanes of 4 bytes, or of 8 where it has 64
 * bits; predicates are 0 or 1, and registers of 16 bits have zeros above. */
typedef void sw_ptx_execute(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes);

typedef enum {
    SW_PTX_EACH,    /* each lane for itself */
    SW_PTX_BRANCH,  /* to `number` */
    SW_PTX_CALL,    /* to `number`, and back to the next instruction */
    SW_PTX_RETURN,  /* from a function; from a kernel it ends the lane */
    SW_PTX_WARP,    /* all lanes of the warp together */
    SW_PTX_BARRIER, /* all threads of the block */
} sw_ptx_kind;

struct sw_ptx_op {
    sw_ptx_execute *execute;
    const char *name;  /* `chars` long, within the module's text */
    int32_t *operands; /* places of registers in a warp's file, in bytes */
    int64_t number;    /* an instruction's index, an offset of an address, or what the instruction wants */
    int32_t guard;     /* the place of the predicate, or SW_PTX_NO_GUARD */
    int32_t line;
    int32_t range; /* the number of an access to global memory among those of its kernel */
    uint8_t chars, kind, count, bytes, vector, sign_bits;
    char width;  /* of the registers of a load or a store: '2', '4' or '8' */
    bool unless; /* the guard's opposite */
    bool columns_of_b, bf16;
};

/* A register that holds the same in every lane and is never written. Addresses of dynamic shared memory are known at
 * the launch. */
struct sw_ptx_constant {
    int32_t place;
    bool wide, dynamic;
    uint64_t value;
};

/* The places of special registers in a warp's file; SW_PTX_SPECIAL_PLACE says where they are. */
typedef enum {
    SW_PTX_TID,
    SW_PTX_NTID = 3,
    SW_PTX_CTAID = 6,
    SW_PTX_NCTAID = 9,
    SW_PTX_LANEID = 12,
    SW_PTX_SPECIALS
} sw_ptx_special;
#define SW_PTX_SPECIAL_PLACE(special) ((int32_t)(special)*SW_PTX_LANES * 4)

struct sw_ptx_param {
    uint32_t offset, bytes;
};

struct sw_ptx_kernel {
    const char *name;
    struct sw_ptx_kernel *next;
    struct sw_ptx_op *ops;
    int32_t count, accesses, file_bytes;
    uint8_t *reached; /* for each instruction, whether any lane came to it */
    struct sw_ptx_constant *constants;
    int32_t constant_count;
    struct sw_ptx_param *params;
    int32_t param_count;
    uint32_t param_bytes, static_bytes, dynamic_align;
    uint32_t most_threads; /* of a block, as the kernel states it; 0: not stated */
    char error[SW_PTX_ERROR_CHARS];
};

/* The signature of an instruction: the widths in bytes of what it writes, then of what it reads: "4=44". */
struct sw_ptx_row {
    const char *name, *signature;
    sw_ptx_execute *execute;
};
/* The instructions that each lane executes for itself on registers alone; the last row has no name. */
extern const struct sw_ptx_row sw_ptx_lane_rows[];

/* Returns zeroed memory: the tests' machine has enough. */
void *sw_ptx_zeroed(size_t bytes);

/* Instructions with operands of their own form. */
sw_ptx_execute sw_ptx_load_param, sw_ptx_load_global, sw_ptx_store_global, sw_ptx_load_shared, sw_ptx_store_shared,
    sw_ptx_move_slots, sw_ptx_copy_later, sw_ptx_commit_copies, sw_ptx_wait_copies, sw_ptx_shuffle, sw_ptx_ballot,
    sw_ptx_warp_barrier, sw_ptx_load_matrices, sw_ptx_multiply, sw_ptx_fence_copies, sw_ptx_products_fence,
    sw_ptx_products_commit, sw_ptx_products_wait, sw_ptx_products_start, sw_ptx_split, sw_ptx_join, sw_ptx_low_half;

#endif
