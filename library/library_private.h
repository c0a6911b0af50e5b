/* The inside of a handle, which the files of the library share. */
#ifndef SW_LIBRARY_LIBRARY_PRIVATE_H
#define SW_LIBRARY_LIBRARY_PRIVATE_H

#include "core/dtype.h"
#include "core/json.h"
#include "io/store/store.h"
#include "library/spillway.h"
#include "offload/engine/engine.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* ADDED_AT_ONCE: gradients that are widened and added at once. */
enum {
    LIBRARY_ERROR_CHARS = 1024,
    LIBRARY_PATH_CHARS = 4096,
    LIBRARY_ADDED_AT_ONCE = 1 << 16,
    LIBRARY_VERDICT_CHARS = 1000
};

/* A tensor of the caller. */
struct tensor {
    char name[SPILLWAY_NAME_CHARS];
    sw_dtype type;
    int64_t count;
    void *weights;
    double lr_scale;
    bool decay, begins_unit;
    bool empty;           /* this process has no element of it; `count` is then 1, of padding */
    int64_t whole, first; /* elements over all processes, and the first of this one; whole 0: not told */
    int64_t most;         /* elements of the process that has most of them, at least 1 */
    int64_t listed;       /* its number among the caller's tensors in tensors.json; set by the layout */
    int64_t unit, within; /* its unit, and which of the unit's tensors it is; set by the layout */
    int64_t offset;       /* first element in the unit */
    int64_t missed;       /* applied steps that left it out */
    /* Unit, offset and number among the tensors in the store that is opened; of a new one not used. */
    int64_t kept_unit, kept_offset, kept;
    float *sum; /* the gradients that were added up, [count]; NULL: nothing may be added up */
    /* The gradient of the next step, and that of the step that runs; NULL: none was handed in. It is `sum`, or borrowed
     * from the caller. */
    const void *gradient, *taken;
    sw_dtype gradient_type, taken_type;
    int64_t streamed, streamed_sum; /* pieces of the stream that have `weights` and `sum`; -1: none */
    bool cuda;                      /* `weights` are in device memory */
    bool gradient_cuda, taken_cuda; /* `gradient` and `taken` are */
};

/* A piece of the stream that a step uses now; -1: none. done: elements that were written. */
struct streamed_use {
    int64_t piece, done, count;
};

/* The elements of a tensor that a process has, [first, first+count) of it. */
struct tensor_part {
    int64_t count, first;
};

/* The outcome that a process has of its part of a call. */
struct verdict {
    int64_t status;
    char text[LIBRARY_VERDICT_CHARS];
};

struct spillway {
    pid_t owner; /* the process that made the handle */
    char error[LIBRARY_ERROR_CHARS];
    bool failed; /* only closing is left */
    char folder[LIBRARY_PATH_CHARS];
    struct spillway_options options; /* `store` is NULL: see folder */
    /* Behind the caller's tensors, while the handle is open, the library's own of their counts of steps. */
    struct tensor *tensor;
    int64_t tensor_count, tensor_room;

    /* Made by spillway_open. */
    bool open;
    int rank, ranks; /* this process and their number, at least 1 */
    /* The number of this process among those that share the state of each tensor, and their number: 1 if each process
     * has tensors of its own (`sharded`). */
    int sharer, sharers;
    char *has_gradient;       /* [ranks][tensor_count] which tensors have a gradient in the next step (counts.c) */
    struct tensor_part *part; /* [ranks][tensor_count] what each process has, if `sharded`; else NULL */
    int64_t *by_listed;       /* [tensor_count] the tensor of each number in tensors.json */
    struct sw_comm *comm;     /* NULL: the process is alone */
    struct verdict *verdict;  /* [ranks] room for what processes tell each other of a call; NULL: it is alone */
    bool agreed;              /* the other processes know of the error of this call */
    char *gathered; /* room for what processes give each other of a chunk's weights; NULL: the process is alone */
    int64_t gathered_bytes;
    int64_t host_bytes; /* what the options allow of host memory, or what is taken where they leave it open */
    int lock;           /* descriptor of the locked file; -1: none */
    char id[SW_STORE_ID_CHARS];
    /* Numbers of the tensors in the order in which they lie in the units; unit_first[u]: the position of the first of
     * unit u, with one more entry than units. */
    int64_t *order, *unit_first;
    float *sums; /* memory of all tensors' `sum`, and of LIBRARY_ADDED_AT_ONCE widened elements before them */
    int64_t sums_bytes;
    struct sw_units *units;
    struct sw_plan *plan;
    struct sw_device *device;
    /* Copies between tensors and the engine's memory: by the update lane, or while it rests. */
    struct sw_stream *stream;
    struct sw_stream *add_stream; /* adds up gradients, by the caller's thread, also while the update lane works */
    struct sw_store *store;
    struct sw_engine *engine;
    spillway_stream *weights_stream; /* NULL: none */
    struct sw_library_cuda *cuda;    /* the GPU of tensors in device memory (device.c); NULL: none */
    struct streamed_use taking, giving;
    bool renews;          /* the stream on a GPU does not have the weights that are given */
    bool replaces;        /* spillway_write runs: masters may be read at the addresses to which weights are given */
    bool factors_changed; /* the units' decay runs are to be joined again */
    bool running;         /* the update of the last step was begun and not waited for */
    struct spillway_result result; /* of the last step of this handle */
    int64_t last_step, applied_steps, skipped_steps, committed_step;
    char note[SPILLWAY_NOTE_CHARS]; /* of the commit that was resumed */
};

/* A set of stores, one for each process, which have one identity. ranks 0: there is none. */
struct store_set {
    int ranks;
    bool other; /* it lies in the other folders of so many processes, because a set of as many was there before */
    char id[SW_STORE_ID_CHARS];
};

/* The members of tensors.json other than the list of tensors. */
struct store_record {
    struct store_set set;
    /* A set that is being made for another number of processes, or that it has replaced: whichever of them finds it
     * removes it. */
    struct store_set orphan;
    sw_optimizer_format state;
    bool started; /* step 0 was committed */
    bool sharded; /* each process has elements of its own of each tensor */
    /* The set's processes had other parts of the tensors than those that open it. `listed`: the list of their tensors,
     * until the set is replaced; NULL: there is none. Owned (sw_library_release_record). */
    bool converts;
    json_t *listed;
};

/* Returns the number of the caller's tensors and the library's own. */
static inline int64_t sw_library_all_tensors(const spillway *self) {
    return self->tensor_count + 1;
}

/* The steps of each tensor (counts.c). */

/* Adds the library's own tensor behind the caller's. */
sw_status sw_library_add_counts(spillway *self);
/* Writes the counts into records that hold them (sw_unit_ops). */
void sw_library_stamp(void *context, int64_t unit, int64_t first, int64_t count, void *records);
/* Reads the counts of the store that was opened. */
sw_status sw_library_take_counts(spillway *self);
/* Returns the missed steps of the tensor with a number in tensors.json, from the masters of the library's own tensor.
 */
int64_t sw_library_count_of(const float *values, int64_t listed);
/* Decides which tensors the next step leaves out. SW_ERR_ARG: the processes have gradients of different tensors. */
sw_status sw_library_leave_out(spillway *self);
/* Counts a step that was applied. */
void sw_library_count_step(spillway *self);

/* Copies elements of a part of a tensor's state, as spillway_read (read.c). */
sw_status sw_library_read(spillway *self, const struct tensor *tensor, int part, int64_t first, int64_t count,
                          float *out);

/* Sorts the tensors into units, in the order of self->order, and seals the units (tensors.c). found: into those of the
 * store that is opened. */
sw_status sw_library_lay_out(spillway *self, bool found);
/* Refuses a store whose tensors lie elsewhere in its units than sw_library_lay_out has put them. */
sw_status sw_library_check_places(const spillway *self);
/* Writes tensors.json, durably: the tensors in the order of self->order. */
sw_status sw_library_write_record(const spillway *self, const struct store_record *record);
/* Reads tensors.json into *out, which must be released, also after a failure. If the store has started, sets
 * self->order to that of the store, unless its state is to be converted, and refuses by name tensors that are not those
 * of the store. *found: the file is there. */
sw_status sw_library_read_record(spillway *self, struct store_record *out, bool *found);
void sw_library_release_record(struct store_record *record);
/* Returns the elements that a process has of a tensor of tensors.json, and the first of them; whole tensors are those
 * of each process. */
struct tensor_part sw_library_listed_part(const json_t *entry, int rank);
/* Returns the elements of a whole tensor of tensors.json; 0: the entry of a sharded one does not say. */
int64_t sw_library_listed_whole(const json_t *entry);
/* Sets self->order to the order of registration. */
void sw_library_order_as_added(spillway *self);

/* A run of elements of one tensor (runs.c): `count` of them from `from` on, which lie `at` elements behind the first
 * asked for.
 */
struct library_run {
    struct tensor *tensor;
    int64_t from, at, count;
};
/* Returns the position in self->order of the first tensor of a unit that ends behind element `first`. */
int64_t sw_library_first_run(const spillway *self, int64_t unit, int64_t first);
/* Returns in *out the run of the tensor at a position, cut to elements [first, first+count) of the unit; false: that
 * tensor, and all behind it, have none of them. */
bool sw_library_run_at(const spillway *self, int64_t unit, int64_t position, int64_t first, int64_t count,
                       struct library_run *out);

/* Elements [first, first+count) of a unit, to and from the caller's tensors; sw_unit_ops names the functions. Padding
 * becomes zero (transfer.c). */
sw_status sw_library_take(void *context, int64_t unit, int64_t first, int64_t count, void *grads);
sw_status sw_library_give(void *context, int64_t unit, int64_t first, int64_t count, const void *weights);
/* Lends the memory of fp32 weights and gradients where a tensor has whole grains (sw_unit_ops). */
struct sw_loan sw_library_lend(void *context, int64_t unit, int64_t first, int64_t count);
/* Reads the weights as masters of a new store; several threads call it at once (sw_fill_function). */
sw_status sw_library_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* Returns whether an address is that of a tensor of the stream on a GPU. */
bool sw_library_streams_on_cuda(const spillway *self, const void *weights);
/* Waits until the GPU reads no weights of the host, before the store gives new ones. */
sw_status sw_library_before_weights(spillway *self);
/* Ends the uses of the stream that taking and giving left, once a program of the engine has ended, and lets the GPU
 * have the weights that were given. */
sw_status sw_library_let_go(spillway *self);
/* Adds a gradient, in host memory or `on_cuda`, to a tensor's sum, or begins the sum with it. No step that runs reads
 * the sum. */
sw_status sw_library_add(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient, bool on_cuda);

/* Waits for the step that runs, if any, and commits it where it is to be. An error leaves only closing (step.c). */
sw_status sw_library_finish(spillway *self);

/* Processes that share a store (ranks.c; the first four are in agreement.c). A process that is alone agrees with
 * itself.
 */

/* Opens the comm over the caller's processes. */
sw_status sw_library_open_comm(spillway *self);
/* Returns the status of this process, or, if only others failed, or they failed worse, SW_ERR_ARG or SW_ERR_STOPPED
 * with the words of one of them. All call it together. */
sw_status sw_library_agree(spillway *self, sw_status status, const char *what);
/* Ends a call of all processes: succeeds if none of them has failed in it. */
sw_status sw_library_meet(const spillway *self);
/* Tells the other processes of an error that ends the use of this handle, unless they know. Ends the engine, whose
 * exchanges must not come after that. */
void sw_library_tell(spillway *self, const char *message);
/* Returns the elements that this process has of a tensor. */
static inline int64_t sw_library_elems(const struct tensor *tensor) {
    return tensor->empty ? 0 : tensor->count;
}
/* Exchanges the elements that processes have of each tensor, if `sharded`, and refuses parts that are not the whole. */
sw_status sw_library_share_parts(spillway *self);
/* Adds the sums of squares of the other processes' own tensors (sw_unit_ops). */
sw_status sw_library_join_squares(void *context, double *total);
/* Check that all processes have the same options and tensors, and plans that fit together. */
sw_status sw_library_check_alike(spillway *self);
sw_status sw_library_check_plans(spillway *self);
/* Gives all processes the identity that process 0 makes. */
sw_status sw_library_new_id(spillway *self, char id[SW_STORE_ID_CHARS]);
/* Writes tensors.json by process 0. */
sw_status sw_library_share_record(spillway *self, const struct store_record *record);
/* Refuses processes that found different stores. */
sw_status sw_library_check_found(spillway *self, const struct store_record *record, bool found);
/* Removes the stores of a set, whose last step is at most last_step. */
sw_status sw_library_remove_set(spillway *self, const struct store_set *set, int64_t last_step);
/* Creates this process's store of a set. */
sw_status sw_library_create_store(spillway *self, const struct store_set *set, struct sw_store **out);
/* Opens a process's store of the set for reading, at its last commit of at most this step. *out may be set after a
 * failure too. */
sw_status sw_library_open_part(const spillway *self, const struct store_set *set, int rank, int64_t most_step,
                               struct sw_store **out);
/* Opens this process's store of the set at the newest step that all processes have. */
sw_status sw_library_open_store(spillway *self, const struct store_set *set);
/* Finds the newest step that all stores of a set have. */
sw_status sw_library_find_step(spillway *self, const struct store_set *set, int64_t *step);
/* Replaces the set of another number of processes, or of other parts of the tensors, by one of these, at the same step,
 * and removes it (takeover.c). */
sw_status sw_library_replace_set(spillway *self, struct store_record *record);
/* Fills this process's new store from a set whose processes had other parts of the tensors, at a step. meta: receives
 * the text of that step's commit (convert.c). */
sw_status sw_library_convert(spillway *self, const struct store_record *record, int64_t step, struct sw_store *store,
                             char meta[SW_STORE_META_BYTES]);

/* The tensors of a set of stores (parts.c). */
struct library_parts;
/* Registers, in a handle of zeros with a folder, the tensors of tensors.json and the library's own: as process `rank`
 * of those that made the store had them, or, for -1, whole. Allocates `tensor` and `order`. SW_ERR_UNSUPPORTED: whole
 * ones are asked for, and the list does not have them. */
sw_status sw_library_take_listed(spillway *self, const json_t *tensors, int rank);
/* Opens a set for reading at a step that all of its stores have. The record has the list of its tensors. A store is
 * opened at its first use. *out must be closed, also after a failure, if it is not NULL. */
sw_status sw_library_parts_open(const spillway *self, const struct store_record *record, int64_t step,
                                struct library_parts **out);
/* Takes the stores of all processes, which are open at the step, and sets stores[] to NULL. */
void sw_library_parts_take_stores(const struct library_parts *parts, struct sw_store **stores);
/* Copies elements [first, first+count) of the whole tensor with a number in the list, at most a grain of them, to out:
 * masters, first and second moments, SW_GRAIN_ELEMS apart. */
sw_status sw_library_parts_read(const struct library_parts *parts, int64_t number, int64_t first, int64_t count,
                                float *out);
int64_t sw_library_parts_tensors(const struct library_parts *parts);
/* Reads the missed steps of each tensor, in the order of the list: out[sw_library_parts_tensors]. */
sw_status sw_library_parts_read_missed(const struct library_parts *parts, int64_t *out);
/* Returns the commit that is read, valid until the parts are closed. */
sw_status sw_library_parts_commit(const struct library_parts *parts, const struct sw_store_commit **out);
void sw_library_parts_close(struct library_parts *parts);

/* Gives each process the weights that the others have: of those that it updated, or read. */
sw_status sw_library_gather_weights(spillway *self);
/* Gives each process what the others have of elements [first, first+count) of a unit: out[count], in which this one's
 * are. */
sw_status sw_library_gather_elements(const spillway *self, int64_t unit, int64_t first, int64_t count, float *out);

/* Returns the bytes of the caller's weights, in their types, of elements [first, first+count) of a unit (transfer.c).
 */
int64_t sw_library_packed_bytes(const spillway *self, int64_t unit, int64_t first, int64_t count);
/* Copy these weights to and from packed bytes. */
sw_status sw_library_pack(spillway *self, int64_t unit, int64_t first, int64_t count, char *out);
sw_status sw_library_unpack(spillway *self, int64_t unit, int64_t first, int64_t count, const char *from);

/* Writes the text of a step's commit. SW_ERR_ARG: the note makes it too long (commit_text.c). */
sw_status sw_library_write_text(const spillway *self, int64_t step, const char *note, char text[SW_STORE_META_BYTES]);
/* Takes steps and note from the text of the commit that was opened. */
sw_status sw_library_read_text(spillway *self, const char *text);

/* Returns a status as the library's callers know it, and keeps its message, in the handle or, without one, for the
 * thread. Marks the handle as failed if `fatal` and the status is not SPILLWAY_ERROR_ARGUMENT (host.c). */
int sw_library_end(spillway *self, sw_status status, bool fatal);
/* Refuses no handle, a handle of another process, one that failed, or one that is not open (`open`). */
sw_status sw_library_begin(spillway *self, bool open);

/* Copies a struct of the caller to one of this version, of `bytes` bytes, which holds the defaults. Both begin with
 * their size. Callers of a later version have more members, which must be 0: others ask for what this version lacks.
 * `what` begins messages; `init` names the macro with which the struct begins. */
sw_status sw_library_take_struct(void *out, size_t bytes, const void *given, const char *what, const char *init);
/* Refuses a result's struct of a size that no version has. */
sw_status sw_library_check_result(const void *given, size_t bytes, const char *what, const char *init);
/* Copies a result of this version into the caller's struct, which keeps its size. */
void sw_library_give_struct(void *given, const void *result, size_t bytes);

/* Signals of the calling thread while files are written, or while threads may be started that inherit its mask. */
struct sw_library_signals {
    sigset_t before;
    bool was_pending; /* SIGXFSZ */
};
/* Blocks SIGXFSZ, which a limit on the size of files raises, so that a write fails instead; with `all`, also all
 * signals that do not report a fault. */
struct sw_library_signals sw_library_block_signals(bool all);
/* Lets signals through again, without the SIGXFSZ of the calls between. */
void sw_library_allow_signals(const struct sw_library_signals *signals);

#endif
