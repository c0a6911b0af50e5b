/* A unit is fetched, computed and updated at once, and is one flat vector of parameters.
 *
 * Tensors lie one after the other at multiples of SW_TENSOR_ALIGN_ELEMS, save joined parts; the vector is padded with
 * zeros to whole grains. Padding has no gradient and no decay, so it stays zero.
 *
 * In a unit of a rank of a tensor group, the tensors that every rank of it has lie behind all others, in grains of
 * their own, so that they lie alike on all ranks.
 *
 * Where the optimizer state is narrow, norms and biases keep fp32 moments, and where weights lie in 8 bits, norms and
 * biases do not: the tensors of one dimension, of at most
 * SW_WIDE_GRAIN_ELEMS elements with those joined to them, lie behind the others in grains of their own, the wide
 * grains, before those that every rank has, which are wide too. Matrices that every rank has are not wide. They lie
 * before the wide grains, so a unit with such matrices trains no vector that its rank alone has. Only the first
 * SW_WIDE_GRAIN_ELEMS elements of a wide grain are used; the rest is padding.
 *
 * A frozen tensor keeps the values that it was loaded with. A unit's vector is its frozen span, in whole grains, then
 * its trained span, and what is said above of tensors that lie behind others is said of the trained span. In a unit of
 * frozen tensors alone it is said of all of them, so that freezing a whole unit moves nothing in it.
 *
 * With SW_OPTIMIZER_MUON the matrices that Muon updates lie in grains of their own, before all else of the trained
 * span. An update needs each of them whole: the shards of ranks begin and end where no matrix goes on (sw_unit_shard),
 * and the first chunk of a shard has all of its matrices.
 *
 * A frozen base may be quantized: the frozen matrices of blocks that are not `typed` then lie before all other tensors
 * of the frozen span, in grains of their own, the base. No wide grains are in the frozen span of such a unit. A grain
 * of the base is kept as a record (core/base_format.h), all others as said above. The records of a unit follow each
 * other without gaps. Where they are moved or stored, they are cut into cells of SW_BASE_CELL_BYTES, the last of which
 * ends with zeros. */
#ifndef SW_OFFLOAD_PLAN_UNIT_H
#define SW_OFFLOAD_PLAN_UNIT_H

#include "core/base_format.h"
#include "core/optimizer_format.h"
#include "core/size.h"
#include "core/status.h"
#include "kernels/device.h"
#include "kernels/muon.h"
#include "offload/plan/shard.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_TENSOR_NAME_CHARS = 96, SW_TENSOR_MAX_DIMS = 4, SW_UNIT_NAME_CHARS = 32 };

/* The bytes of a cell of a unit's base: as many as those of a grain of 16-bit weights, and whole pages. */
#define SW_BASE_CELL_BYTES INT64_C(32768)
static_assert(SW_BASE_CELL_BYTES % SW_BUFFER_ALIGN_BYTES == 0, "a cell allows direct I/O");

/* A unit may hold a part of a tensor: some rows, and of these some columns, in blocks of block_cols that begin
 * block_stride apart, the first at first_col. The last dimension counts as columns, all others together as rows; with
 * `width` the whole tensor is seen as rows of so many elements instead. A joined part begins where the tensor before it
 * ends, unaligned, so that one product takes both as one matrix. */
struct sw_part {
    int64_t first_row, rows;
    int64_t first_col, cols, block_cols, block_stride;
    int64_t width; /* columns of the whole tensor, as the others count them; 0: its last dimension */
    bool joined;
    int64_t room_rows; /* rows that the unit has room for, so that parts of unequal size lie alike; 0: rows */
    /* Every rank of a tensor group, or of an expert group that has parts of the unit, has the tensor. */
    bool replicated;
    int64_t used_rows; /* rows of a replicated matrix that this rank multiplies by; 0: all */
};

struct sw_tensor {
    char name[SW_TENSOR_NAME_CHARS]; /* its name in the checkpoint */
    int dims;
    int64_t dim[SW_TENSOR_MAX_DIMS]; /* shape of the whole tensor in the checkpoint */
    struct sw_part part;             /* the part that the unit holds, row by row */
    int64_t elems;                   /* elements of the part */
    int64_t offset;                  /* first element in the unit */
    bool decay;                      /* weight decay applies; false for biases, those of experts [experts, n] too */
    double lr_scale;                 /* factor of the learning rate; 0 stands for 1 */
    int64_t step;                    /* t of the next update; 0: that of the step */
    bool left_out;                   /* the next update leaves its state as it is */
    bool typed;                      /* stays in the compute type, out of a quantized base */
    bool frozen;                     /* training does not change it; set before the units are sealed */
    bool in_first;                   /* matrices of experts, [experts, in, out], which MXFP4 keeps [experts, out, in] */
    /* The matrix, or the first of muon_count equal ones that follow each other, that Muon updates. Only its shape is
     * set before the units are sealed. muon_count 0: AdamW updates the tensor. */
    struct sw_muon_tensor muon;
    int64_t muon_count;
    bool keeps_moments; /* a matrix that Muon could update is AdamW's; set before the units are sealed */
    bool added;         /* training adds it to the model, whose checkpoints do not have it */
};

struct sw_unit {
    char name[SW_UNIT_NAME_CHARS];
    struct sw_tensor *tensor;
    int64_t tensor_count;
    int64_t elems; /* with padding: grains · SW_GRAIN_ELEMS */
    int64_t grains;
    int64_t base_grains;      /* grains of the base, the first of the unit; 0: the unit has none */
    int64_t trained_grain;    /* first grain of the trained span; 0: all is trained, grains: all is frozen */
    int64_t adamw_grain;      /* first trained grain that AdamW updates; Muon updates those before it */
    int64_t wide_grain;       /* first wide grain; grains where there is none */
    int64_t replicated_grain; /* first grain of what every rank of a tensor group has; grains where there is none */
    int64_t replicated_elems; /* elements from that grain on, without the padding behind the last tensor */
    bool shared_out;          /* experts of the block that is the unit before, which an expert group shares out */
    bool in_place;            /* frozen weights that are placed on NVMe are read from the model's own files. It may be
                               * set once the units are sealed, and not for a unit with a base or in e4m3 */
    struct sw_decay_run *run; /* cover [0, elems) */
    int64_t run_count;
    struct sw_muon_tensor *muon; /* the matrices that Muon updates, in the order of their elements; NULL: none */
    int64_t muon_count;
};

/* The units of a model in forward order: the embedding, the blocks, the head. The parts of a tensor are in units that
 * follow each other. */
struct sw_units {
    struct sw_unit *unit;
    int64_t count;
    bool tied; /* the head multiplies by the embedding's first tensor and adds to its gradient */
    /* Format of the optimizer state that the units are laid out for, and so of every plan and store of them. It is set
     * before the units are sealed. */
    sw_optimizer_format optimizer;
    /* Where tensors outside of wide grains begin: at multiples of so many elements; 0: SW_TENSOR_ALIGN_ELEMS. With
     * whole blocks of moments, no two tensors share a scale. It is set before the units are sealed. */
    int64_t tensor_align_elems;
    /* The weights of blocks lie in e4m3 with a scale for each grain (core/fp8.h), those of their wide grains and of the
     * embedding and the head in the compute type. The optimizer's format is not SW_OPTIMIZER_FP32, which has no wide
     * grains. */
    bool fp8;
    /* Format of the base. SW_BASE_TYPED: no unit has a base, and all weights are in the compute type. It is set before
     * the units are sealed, and not together with fp8. */
    sw_base_format base;
};

sw_status sw_units_create(int64_t count, struct sw_units **out);
void sw_units_destroy(struct sw_units *units);

/* Tells whether a unit is a block whose weights lie in e4m3. */
static inline bool sw_units_packs(const struct sw_units *units, int64_t unit) {
    return units->fp8 && unit > 0 && unit + 1 < units->count;
}

/* Returns the bytes of one grain of a unit's weights. type: the compute type. */
static inline int64_t sw_units_weights_bytes(const struct sw_units *units, int64_t unit, sw_dtype type) {
    return sw_units_packs(units, unit) ? SW_GRAIN_ELEMS : SW_GRAIN_ELEMS * sw_dtype_bytes(type);
}

/* The store keeps the weights of all units in grains of one size, that of the smallest. Return the bytes of one, and
 * how many of them a grain of a unit's weights takes. */
static inline int64_t sw_units_stored_bytes(const struct sw_units *units, sw_dtype type) {
    return units->fp8 ? SW_GRAIN_ELEMS : SW_GRAIN_ELEMS * sw_dtype_bytes(type);
}

static inline int64_t sw_units_stored_grains(const struct sw_units *units, int64_t unit, sw_dtype type) {
    return sw_units_weights_bytes(units, unit, type) / sw_units_stored_bytes(units, type);
}

/* Tells whether the weights of blocks lie in another form than those of the embedding and the head, and take less room
 * than these. */
static inline bool sw_units_narrow_blocks(const struct sw_units *units) {
    return units->fp8 || units->base != SW_BASE_TYPED;
}

/* Return the bytes of a unit's base, without the zeros behind the last record, and the number of its cells. */
static inline int64_t sw_units_base_bytes(const struct sw_units *units, int64_t unit) {
    return units->unit[unit].base_grains > 0 ? units->unit[unit].base_grains * sw_base_grain_bytes(units->base) : 0;
}

static inline int64_t sw_units_base_cells(const struct sw_units *units, int64_t unit) {
    return sw_div_up(sw_units_base_bytes(units, unit), SW_BASE_CELL_BYTES);
}

/* Adds a tensor at the end of a unit, or a part of one. Fails with SW_ERR_ARG when sizes overflow. */
sw_status sw_unit_add_tensor(struct sw_unit *unit, const char *name, int dims, const int64_t *dim, bool decay);
sw_status sw_unit_add_part(struct sw_unit *unit, const char *name, int dims, const int64_t *dim,
                           const struct sw_part *part, bool decay);

/* Returns the unit's tensor of this name, or its part of that tensor; NULL: it has none. */
const struct sw_tensor *sw_unit_find(const struct sw_unit *unit, const char *name);
/* Returns the elements of the whole tensor. */
int64_t sw_tensor_whole_elems(const struct sw_tensor *tensor);
/* Returns the index in the whole tensor of element `elem` of the part; *run elements from there on are neighbours in
 * both. */
int64_t sw_tensor_to_whole(const struct sw_tensor *tensor, int64_t elem, int64_t *run);
/* Returns the index in the part of element `whole` of the whole tensor, or -1 where the part does not have it. */
int64_t sw_tensor_from_whole(const struct sw_tensor *tensor, int64_t whole, int64_t *run);

/* Copies the masters of one grain's optimizer state to out[SW_GRAIN_ELEMS]; padding gets zeros. */
void sw_unit_masters(const struct sw_unit *unit, int64_t grain, const void *record, float *out);

/* Tells whether every rank of a tensor group has a grain. */
static inline bool sw_unit_grain_copies(const struct sw_unit *unit, int64_t grain) {
    return grain >= unit->replicated_grain;
}

/* Visits elements [first, first+count) of a unit, in order, in runs that are neighbours in the whole tensor too: run
 * elements of it from `whole` on, which lie `at` elements behind `first`. Padding is left out. */
typedef sw_status (*sw_unit_visit)(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at);
sw_status sw_unit_walk(const struct sw_unit *unit, int64_t first, int64_t count, sw_unit_visit visit, void *context);

/* Lays out the units for their optimizer state, pads them and computes their decay runs; no tensor may be added
 * afterwards. SW_ERR_UNSUPPORTED: some frozen tensors cannot be apart from the trained ones. */
sw_status sw_units_seal(struct sw_units *units);

/* Tells whether Muon updates matrices of a unit. */
static inline bool sw_unit_has_muon(const struct sw_unit *unit) {
    return unit->muon_count > 0 && unit->trained_grain < unit->grains;
}
/* Returns the scratch in bytes that the update of any matrix by Muon needs. */
int64_t sw_units_muon_scratch_bytes(const struct sw_units *units);

/* Tells whether no matrix that Muon updates lies on both sides of where a grain begins. */
bool sw_unit_is_border(const struct sw_unit *unit, int64_t grain);
/* Returns a rank's shard of the trained span of unit `number`, or of the whole unit if it is frozen: an even one
 * (sw_shard), whose ends move to grains where no matrix that Muon updates goes on. Each matrix is one rank's; with
 * fewer matrices than ranks, some ranks have none of a unit. An end within a matrix moves behind it in as many units as
 * it is far into it, and before it in the others, so that over all units ranks have about the same. */
struct sw_span sw_unit_shard(const struct sw_unit *unit, int64_t number, int ranks, int rank);
/* Returns the grains of the largest of these shards. */
int64_t sw_unit_most_shard_grains(const struct sw_unit *unit, int64_t number, int ranks);
/* Returns in *count how many of a unit's matrices that Muon updates lie in these grains, which begin and end where no
 * matrix goes on, and the first of them. */
const struct sw_muon_tensor *sw_unit_muon_in(const struct sw_unit *unit, struct sw_span span, int64_t *count);

/* Computes the decay runs of sealed units again, whose tensors have another decay, lr_scale or step now, or are left
 * out. */
void sw_units_join_runs(struct sw_units *units);

/* Return the number of parameters, without padding, of all units, and of their frozen tensors. */
int64_t sw_units_parameters(const struct sw_units *units);
int64_t sw_units_frozen_parameters(const struct sw_units *units);
/* Return the number of frozen grains of sealed units, and of the units that have some. */
int64_t sw_units_frozen_grains(const struct sw_units *units);
int64_t sw_units_frozen(const struct sw_units *units);
/* Return the grains of all units' bases, and the bytes of their records. */
int64_t sw_units_base_grains(const struct sw_units *units);
int64_t sw_units_all_base_bytes(const struct sw_units *units);

#endif
