/* spillway as a library: AdamW for tensors of the caller, whose master weights and moments live in host memory and on
 * NVMe, in a store that survives a crash.
 *
 * The caller has the weights, computes the gradients, and calls spillway_step. The library clips by the global norm,
 * updates (Loshchilov & Hutter, arXiv 1711.05101, as torch.optim.AdamW defines it), commits, and writes the new weights
 * to the caller's tensors. The arithmetic is that of `spillway train`, bit by bit, wherever the state lives and
 * whatever the number of threads.
 *
 *     spillway_create → spillway_add for each tensor → spillway_open
 *     then step after step: spillway_gradient for each tensor → spillway_step, or
 *     spillway_step_start → spillway_wait_tensor for each tensor before its weights are used
 *     spillway_close
 *
 * Memory. In addition to the caller's weights and gradients the library takes what host_memory_bytes allows: staging
 * rings of some tens of MiB, and the optimizer state of as many tensors as fit. The rest of the state is on the drive
 * only.
 * With `accumulate` it also takes 4 bytes for each parameter, within the same budget. A budget of 0 stands for half of
 * the memory that is free when spillway_open is called, of which several processes take equal parts, as if they were on
 * one machine. spillway_get_usage tells what is taken.
 *
 * Norm. Tensors lie in units, one after the other in the order of their registration, at multiples of 32 elements. The
 * squares of the gradients are added up by runs of 16,384 elements of a unit, then these sums unit by unit. So the bits
 * of the norm depend on where units begin, which the library chooses unless `begins_unit` does. With the units of
 * `spillway train` (embedding, each block, head), and its tensors in the order of the checkpoint, a clipped step has
 * the bits of its steps too. In BF16 and 8BIT the small tensors of a unit lie behind the others.
 *
 * Durability. The store's folder holds "store.spillway" (two generations of all optimizer state), "tensors.json" (what
 * was registered) and "store.lock"; of several processes each has its "store.spillway" in a folder "rank-R-of-N", or
 * "rank-R-of-N-b" after other parts of as many processes. If
 * the whole state is on the drive, each step is committed before spillway_step returns; else each `save_every` steps,
 * and by spillway_save. After a crash, at any instant, spillway_open resumes at the last committed step and writes its
 * weights to the caller's tensors. File space is reserved at creation, so a step never finds the disk full.
 *
 * Errors. Functions return SPILLWAY_OK or a negative status; spillway_error gives the reason in a sentence. The library
 * never ends the process, installs no signal handlers, and prints nothing. After an error of an open
 * handle, or of spillway_open, the handle can only be closed, unless the status is SPILLWAY_ERROR_ARGUMENT, which
 * changes nothing. The caller's weights may then be of two steps: open the store again, which writes all of them.
 *
 * Threads. One handle is used by one thread at a time; different handles are independent. The library has threads of
 * its own, which take no signals of the program. A fork does not copy them: in a child process each call with a handle
 * of the parent is refused. A child that outlives its parent keeps the store locked until it ends, too.
 *
 * Processes. Several processes that train one model, each with all of its weights, may share its store (ZeRO stage 1,
 * Rajbhandari et al., arXiv 1910.02054): each keeps and updates its part of the optimizer state, in a file of its own,
 * and gets the new weights of the others. Each hands in the same gradients, averaged over the processes, as data
 * parallel training has them. `gather` is all that the library needs of them: MPI_Allgatherv, or an all-gather of
 * torch.distributed or NCCL. All processes give the same options but for `rank`, see the same folder, register the same
 * tensors, and make the same calls in the same order: spillway_open, each step and wait, spillway_save,
 * spillway_read, and spillway_close while a step runs. The library calls `gather` by one thread at a time, which may be
 * one of its own, and then also while the caller computes after spillway_step_start: a communicator of its own keeps it
 * apart from the caller's. The bits do not depend on the number of processes, and another number of them may open the
 * store.
 *
 * Processes that fail. A call that fails in one process fails in all: the others return what that process says, which
 * is named, as SPILLWAY_ERROR_ARGUMENT if it had a wrong argument, so that nothing has changed in any, else as
 * SPILLWAY_ERROR_PEER. The process that failed returns once the others are in a call that exchanges, so that they hear
 * of it. The store is whole, and opens at the newest step that all had committed. A problem of the caller's own, in one
 * process only, can be said by spillway_agree. Of a process that ends, only `gather` can know: it must return another
 * value than 0 once a process has ended, or does not come for longer than the others want to wait, and never 0 with a
 * part missing. Then all calls of the others return SPILLWAY_ERROR_PEER.
 *
 * Sharded tensors. With `sharded` each process has its own elements of each tensor, as ZeRO stage 3 and FSDP cut them,
 * and registers these: the same names in the same order, with counts of its own, which may be 0. It hands in the
 * gradient of its elements, keeps and updates their state, and gets their new weights. The norm is that of all
 * processes. A gradient that only some processes have is of zeros in the others. If the whole state of one process
 * lives on the drive, that of all does.
 *
 * Other processes. Where each process's elements of a tensor are a run of it, and `whole_count` and `first` say which,
 * the store belongs to whole tensors: any number of processes may open it later, with other parts, or with whole
 * tensors, or one process alone, and the other way round. spillway_open then makes the new processes' stores from those
 * before, as one transaction, so that a crash at any instant leaves the one or the other. Master weights, counts of
 * steps, and moments in fp32 keep their bits. So do moments in BF16, and in 8BIT in each block of 256 that has the same
 * elements before and after. Other blocks, at the ends of parts, are rounded once more, to nearest, as are moments of a
 * tensor that had at most 8,192 elements in its process and has more now. Steps to come sum the norm in the order of
 * the new parts.
 *
 * GPUs. Weights and gradients may be in the memory of a CUDA device, each by itself: spillway_use_cuda names the
 * device, and SPILLWAY_CUDA marks the pointers. State and updates stay on the host, and the bits are those of host
 * pointers. Copies pass through 4.5 MiB of pinned memory, part of host_memory_bytes, while the update works on other
 * parts. The library needs NVIDIA's driver (libcuda.so.1), which it loads at the first use, and no toolkit.
 *
 * ABI. Names and numbers of this header stay as they are within soname version 0. Structs begin with their size, set by
 * their SPILLWAY_..._INIT, and later versions append members, for which 0 means what this version does. So programs and
 * libraries of different versions work together, unless a program asks for what its library lacks. */
#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPILLWAY_VERSION_MAJOR 0
#define SPILLWAY_VERSION_MINOR 1
#define SPILLWAY_VERSION_PATCH 0

/* A store that is open, or is being described. */
typedef struct spillway spillway;

/* Statuses. */
enum {
    SPILLWAY_OK = 0,
    SPILLWAY_ERROR_ARGUMENT = -1,    /* a wrong argument, or tensors that are not those of the store; nothing changed */
    SPILLWAY_ERROR_MEMORY = -2,      /* the system refused memory */
    SPILLWAY_ERROR_IO = -3,          /* a file or drive failed */
    SPILLWAY_ERROR_SPACE = -4,       /* no room on the file system */
    SPILLWAY_ERROR_CORRUPT = -5,     /* a checksum or a structure on disk is wrong */
    SPILLWAY_ERROR_BUDGET = -6,      /* host_memory_bytes is too small, or more than the machine has */
    SPILLWAY_ERROR_UNSUPPORTED = -7, /* not possible with this file system or machine */
    SPILLWAY_ERROR_BUSY = -8,        /* another handle or process has the store */
    SPILLWAY_ERROR_PEER = -9,        /* `gather`, or another process, failed */
    SPILLWAY_ERROR_INTERNAL = -10,   /* a mistake of the library */
    SPILLWAY_ERROR_DEVICE = -11      /* a GPU or its driver failed */
};

/* Element types of weights and gradients. SPILLWAY_CUDA is added to one of them where the pointer leads to memory of a
 * CUDA device: SPILLWAY_BF16 + SPILLWAY_CUDA. */
enum { SPILLWAY_F32 = 0, SPILLWAY_BF16 = 1, SPILLWAY_F16 = 2, SPILLWAY_CUDA = 16 };

/* Formats of the optimizer state. Master weights are always fp32. In BF16 and 8BIT tensors of at most 8,192 elements
 * keep fp32 moments; 8BIT has one scale for each block of 256 moments. */
enum { SPILLWAY_STATE_FP32 = 0, SPILLWAY_STATE_BF16 = 1, SPILLWAY_STATE_8BIT = 2 };

/* The longest name of a tensor, and the longest note of a commit, with the terminating zero. */
enum { SPILLWAY_NAME_CHARS = 256, SPILLWAY_NOTE_CHARS = 8192 };

/* A step in which some tensor has no gradient. ERROR: it is refused, and the message names the tensor. ZERO: the
 * gradient is zeros, so moments and weights decay. SKIP: the tensor is left out of the step, as torch.optim.AdamW
 * leaves out a parameter whose gradient is None: its weights and moments stay as they are, and its t of the bias
 * correction, which spillway_tensor_steps returns, does not advance. */
enum { SPILLWAY_MISSING_ERROR = 0, SPILLWAY_MISSING_ZERO = 1, SPILLWAY_MISSING_SKIP = 2 };

struct spillway_options {
    size_t size;
    const char *store;          /* the store's folder, made if it is missing; its parent exists */
    uint64_t host_memory_bytes; /* see "Memory" above; 0: half of what is free, over all processes */
    int state;             /* SPILLWAY_STATE_..., of a new store; an existing one keeps its own, and refuses another */
    int threads;           /* cores that the library uses, at most those that the process may use; 0: all of these */
    int64_t save_every;    /* steps from commit to commit where not each step commits; 0 for 1 */
    int accumulate;        /* nonzero: gradients may be added up (SPILLWAY_ADD) */
    int missing_gradients; /* SPILLWAY_MISSING_... */
    int allow_buffered;    /* nonzero: accept a file system without direct I/O, such as tmpfs */
    int rank, ranks; /* the number of this process among those that share the store, and their number; 0: it is alone */
    /* For several processes: copies each one's part to all of them. Process r's part is data[bounds[r]] to
     * data[bounds[r + 1]], this one's is there, and all call it with the same bounds. Returns 0, or anything else for a
     * failure. See "Processes" above. */
    int (*gather)(void *context, void *data, const uint64_t *bounds);
    void *gather_context;
    int sharded; /* nonzero: each process has elements of its own of each tensor; see "Sharded tensors" above */
};
#define SPILLWAY_OPTIONS_INIT                                                                                          \
    { sizeof(struct spillway_options), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0 }

struct spillway_tensor {
    size_t size;
    const char *name; /* unique in the store; printable UTF-8; the library copies it */
    int type;         /* of `weights`; with SPILLWAY_CUDA they are in device memory */
    int64_t count;    /* elements, at least 1, whatever the shape; 0 is allowed with `sharded` */
    /* [count], contiguous, borrowed until spillway_close. A new store starts from these values; spillway_open of an
     * existing one, and each step, writes them. In fp32 they are the master weights, else these rounded to nearest. */
    void *weights;
    double lr_scale; /* factor of the learning rate, at least 0 */
    int decay;       /* nonzero: weight decay applies */
    /* Nonzero: begins a unit of a new store; an existing one keeps its units. See "Norm" above. */
    int begins_unit;
    /* With `sharded`: the elements of the tensor over all processes, and the index in it of this process's first. The
     * parts of all processes are the whole. whole_count 0: the parts are no runs of the tensor, and only as many
     * processes with the same counts may open the store again. */
    int64_t whole_count, first;
};
#define SPILLWAY_TENSOR_INIT                                                                                           \
    { sizeof(struct spillway_tensor), NULL, 0, 0, NULL, 1.0, 1, 0, 0, 0 }

/* The rates of a step. */
struct spillway_rates {
    size_t size;
    double lr, beta1, beta2, eps, weight_decay; /* eps is at least FLT_MIN: with 0, a gradient of 0 gives NaN */
    double clip;                                /* the largest global norm of the gradients; 0: they are not clipped */
    const char *note; /* text that the step's commit keeps, such as the position in the data; NULL: "" */
};
#define SPILLWAY_RATES_INIT                                                                                            \
    { sizeof(struct spillway_rates), 1e-3, 0.9, 0.999, 1e-8, 1e-2, 0.0, NULL }

struct spillway_result {
    size_t size;
    int64_t step;          /* the step's number, from 1, over all processes that used the store */
    double grad_norm;      /* global norm before clipping; NaN or infinite where the step was skipped */
    int skipped;           /* nonzero: a gradient was not finite, and the state stays as it was */
    int64_t applied_steps; /* steps that were not skipped: the t of AdamW's bias correction, of tensors that no step
                              left out */
    int committed;         /* nonzero: this step survives a crash, in a store that still has its name */
};
#define SPILLWAY_RESULT_INIT                                                                                           \
    { sizeof(struct spillway_result), 0, 0.0, 0, 0, 0 }

/* Memory and drive of an open store, in bytes. */
struct spillway_usage {
    size_t size;
    int64_t parameters;
    int64_t host_bytes;                /* host memory of the library */
    int64_t drive_bytes;               /* the files of the store */
    int64_t state_bytes;               /* optimizer state, one generation */
    int64_t state_host_bytes;          /* the part of it that lives in host memory */
    int64_t read_bytes, written_bytes; /* by this handle, since it was opened */
};
#define SPILLWAY_USAGE_INIT                                                                                            \
    { sizeof(struct spillway_usage), 0, 0, 0, 0, 0, 0, 0 }

/* How a gradient is handed in. SPILLWAY_SET: by pointer; the next step reads it there, and it must not change until
 * that step is done. SPILLWAY_ADD: its values are added to those handed in since the last step, in fp32 and in the
 * order of the calls; the pointer is not kept. One of the two for a tensor and step. */
enum { SPILLWAY_SET = 0, SPILLWAY_ADD = 1 };

/* The parts of a tensor's optimizer state. */
enum { SPILLWAY_MASTER = 0, SPILLWAY_FIRST_MOMENT = 1, SPILLWAY_SECOND_MOMENT = 2 };

/* Returns the version of the library that is loaded: major·1000000 + minor·1000 + patch. */
int spillway_version(void);

/* Returns the name of a status, such as "no space left". Never NULL; a literal. */
const char *spillway_status_name(int status);

/* Sends messages of the library, one line each without line end, to a function; NULL, as at first: nowhere. For the
 * whole process. Threads of the library and of the caller call the function, also at the same time, and it must not
 * call the library. A call that has begun may end after spillway_set_log has replaced the function. */
typedef void (*spillway_log_function)(void *context, int is_warning, const char *line);
void spillway_set_log(spillway_log_function function, void *context);

/* Begins the description of a store, and touches no file. *out must be closed, also where a later call fails. On
 * failure *out is NULL, and spillway_error(NULL) has the reason for this thread. */
int spillway_create(const struct spillway_options *options, spillway **out);

/* Names the CUDA device whose memory holds tensors or gradients, and the stream by which the library keeps the order
 * with the caller's work there: a CUstream or cudaStream_t of the device's primary context, the one of CUDA's runtime;
 * NULL is the default stream. The first call comes before spillway_add of such tensors and before spillway_open; later
 * ones change the stream. SPILLWAY_ERROR_UNSUPPORTED: there is no driver or no GPU. SPILLWAY_ERROR_ARGUMENT: there is
 * no such device, or another one was named before.
 *
 * A gradient is complete once the work is done that the stream had at the time of spillway_gradient. New weights are
 * written once the work is done that it had at the time of spillway_step, spillway_step_start or spillway_write, such
 * as a backward pass that reads the old ones. They are complete when spillway_step, spillway_wait or
 * spillway_wait_tensor returns, for work of any stream that is given afterwards. spillway_open and SPILLWAY_ADD wait
 * for the stream's work. While the stream captures a graph, do not call the library. */
int spillway_use_cuda(spillway *self, int device, void *stream);

/* Registers a tensor, before spillway_open. *out_index: 0 for the first, then 1, ...; may be NULL. */
int spillway_add(spillway *self, const struct spillway_tensor *tensor, int64_t *out_index);

/* Makes the store in an empty folder and commits step 0, or opens the one that is there at its last committed step and
 * writes its weights to the tensors. The order of the tensors may differ from that of the process before; their names
 * and whole counts may not, and the message names the first that was added, removed, renamed or changed. */
int spillway_open(spillway *self);

/* Returns the number of the last step, 0 for a store that was just made, -1 before spillway_open. */
int64_t spillway_last_step(const spillway *self);

/* Returns the note of the commit that spillway_open resumed, "" of a new store. Owned by the handle, until closed. */
const char *spillway_note(const spillway *self);

/* Changes a tensor's factors for the steps to come; at most before each step. */
int spillway_set_factors(spillway *self, int64_t index, double lr_scale, int decay);

/* Hands in the gradient of a tensor: [count] elements of a type, contiguous, in host memory or, with SPILLWAY_CUDA
 * added to the type, in device memory, wherever the weights are. how: SPILLWAY_SET or SPILLWAY_ADD. Values are taken as
 * they are: the caller has divided them by loss scales and micro-batches. */
int spillway_gradient(spillway *self, int64_t index, int type, const void *gradient, int how);

/* Forgets the gradients that were handed in since the last step was started. */
int spillway_forget_gradients(spillway *self);

/* Runs a step with the gradients that were handed in, and forgets them. Where a gradient is not finite, the step is
 * skipped, and counted. `result` may be NULL. SPILLWAY_ERROR_ARGUMENT: a rate is out of range, or a tensor has no
 * gradient; the message names it, the gradients stay, and the step may be tried again. */
int spillway_step(spillway *self, const struct spillway_rates *rates, struct spillway_result *result);

/* Starts a step: as spillway_step, but returns once the norm of the gradients is known, and the update and the commit
 * go on while the caller does something else, such as the next forward pass. `result`: `committed` is 0 here, and
 * spillway_wait gives the whole. The step counts in spillway_last_step.
 *
 * Until a tensor was waited for (spillway_wait_tensor, or spillway_wait for all), its weights are of the step before,
 * of this one, or partly of both, and a gradient that was set by pointer is still read. Tensors become new in the order
 * in which they lie in the store: that of their registration when it was made. Gradients of the next step may be handed
 * in: with SPILLWAY_ADD the call waits for the tensor, and with SPILLWAY_SET they lie in other memory. Calls that step,
 * save, read or replace state, change a factor or report usage first wait for the whole step. So does spillway_close,
 * and the step's commit is not lost.
 *
 * An error of the update shows at the next call that waits, with the words that spillway_step would have had. Then the
 * step is not committed, and the handle can only be closed. SPILLWAY_ERROR_ARGUMENT also where a stream has the
 * weights. */
int spillway_step_start(spillway *self, const struct spillway_rates *rates, struct spillway_result *result);

/* Waits until the step that runs, if any, is done, and commits it where one is due after `save_every` steps. `result`,
 * which may be NULL, receives the outcome of the last step of this handle, of zeros if there was none. */
int spillway_wait(spillway *self, struct spillway_result *result);

/* Waits until the weights of a tensor are those of the last step that was started. Its gradient is then not read any
 * more. Returns at once if no step runs. With several processes it waits for the whole step, as spillway_wait. */
int spillway_wait_tensor(spillway *self, int64_t index);

/* Lets the processes of a store agree on whether to go on, between other calls: all call it together, or where one has
 * a problem, that one calls it and the others make their next call that all make. problem: a sentence, or NULL for
 * none. SPILLWAY_ERROR_ARGUMENT, in all of them, if any has one: the message is the problem of the first that has, and
 * nothing has changed. Without a problem, and with the same `count` in all, flags[count] become nonzero where they are
 * in any process; NULL: there are none. Waits for the step that runs. */
int spillway_agree(spillway *self, const char *problem, unsigned char *flags, int64_t count);

/* Commits the last step, unless it is committed. The note is that of the step. */
int spillway_save(spillway *self);

/* Copies elements [first, first+count) of a part of a tensor's optimizer state to out[count], as fp32. `part`:
 * SPILLWAY_MASTER and so on. */
int spillway_read(spillway *self, int64_t index, int part, int64_t first, int64_t count, float *out);

/* State for spillway_write. The arrays have an entry for each tensor, by its index: [count] values in fp32 in host
 * memory, borrowed for the call. An entry of NULL, or NULL instead of an array, keeps what the store has. The masters
 * of a tensor of SPILLWAY_F32 may be its own weights, also where they stream. */
struct spillway_state {
    size_t size;
    const float *const *master, *const *first_moment, *const *second_moment;
    /* The number of the state's step, from applied_steps to 2^53; it may be lower than the last. */
    int64_t step;
    int64_t applied_steps; /* steps that were not skipped in it */
    const char *note;      /* as in spillway_rates */
    /* Each tensor's t of AdamW's bias correction, by its index, from 0 to applied_steps; NULL: applied_steps for all.
     */
    const int64_t *tensor_steps;
};
#define SPILLWAY_STATE_INIT                                                                                            \
    { sizeof(struct spillway_state), NULL, NULL, NULL, 0, 0, NULL, NULL }

/* Replaces the state of the tensors by values from elsewhere, such as another optimizer's, writes the weights to the
 * caller's tensors, and commits. Moments are rounded to the store's format; values that spillway_read returned keep
 * their bits. A crash leaves the state before or the new one. Gradients that were handed in are forgotten.
 * SPILLWAY_ERROR_ARGUMENT: a value is not finite, or a second moment is negative; the message names the tensor. Or
 * several processes share the store: open it by one of them alone, replace the state, and open it by all. */
int spillway_write(spillway *self, const struct spillway_state *state);

/* Returns the steps that were not skipped, over all processes that used the store; -1 before spillway_open. */
int64_t spillway_applied_steps(const spillway *self);

/* Returns the t of a tensor: those of these steps that did not leave it out (SPILLWAY_MISSING_SKIP). -1: there is no
 * such tensor, or spillway_open was not called. */
int64_t spillway_tensor_steps(const spillway *self, int64_t index);

/* Fills in the memory and the bytes of an open store, of several processes those of this one. */
int spillway_get_usage(spillway *self, struct spillway_usage *out);

/* Returns the reason of the last failure of a handle, or, for NULL, of this thread's last call without a handle, such
 * as spillway_create: one sentence, "" if there was none. Valid until the next such call. */
const char *spillway_error(const spillway *self);

/* Closes a handle; NULL is allowed. Steps since the last commit are not committed: call spillway_save before. If the
 * store's file was removed meanwhile, writes it again. In a child process of the one that made the handle it does
 * nothing. */
void spillway_close(spillway *self);

/* Weights that stream.
 *
 * A stream keeps tensors in a file, and as many of them in memory as a budget allows. Each tensor has an address, which
 * never changes, and leads to the stream's memory while the tensor is there, else to the file's pages in the page
 * cache. Both have the same bytes. So any use of a tensor at any time reads the right values; one that was announced by
 * spillway_stream_need is fast, takes no page cache, and is read ahead the next time.
 *
 *     spillway_stream_create → spillway_stream_add for each tensor → spillway_stream_open
 *     for each tensor: spillway_stream_need → write its values to spillway_stream_address → spillway_stream_changed
 *         → spillway_stream_done
 *     then use after use: spillway_stream_need → compute → spillway_stream_done
 *     spillway_stream_close
 *
 * The order of uses is recorded, and expected to come again: what comes next is read ahead, and what is used latest
 * leaves memory first (Belady 1966). Forward and backward passes, their recomputation, token after token: any order
 * works, and one that was seen before is fast. Small tensors, such as norms and biases, stay in memory.
 *
 * Blocks of 1 MiB have checksums, which are compared when they are read. The file has no name and is gone when the
 * process ends: weights come from the caller, or from a store, whose masters survive. A forked child must not touch the
 * addresses: its own lead to memory in which the parent puts other tensors. Threads may use one stream at once. Errors
 * are those of spillway_error(NULL). After a failure of the drive, or a wrong checksum, a stream can only be closed.
 *
 * With `cuda_device` the tensors are on a GPU. There is no file then: pinned host memory has all tensors, and as many
 * are in the GPU's memory as `memory_bytes` allows, in units of 2 MiB. An address of the GPU leads to its memory while
 * the tensor is there, else to the host's, which the GPU reads over its bus; the CPU must not use it. Addresses are
 * mapped anew only in the calls below, once the work is done that the streams of CUDA have which
 * spillway_stream_use_cuda has named: work on tensors that other streams have, or that another thread gives the GPU
 * meanwhile, must be for tensors that are needed and not done. NVIDIA's driver is of CUDA 12.2 or newer. This has run
 * on an emulated GPU alone. */
typedef struct spillway_stream spillway_stream;

struct spillway_stream_options {
    size_t size;
    const char *folder;    /* exists; the file is made on its file system; not used on a GPU */
    uint64_t memory_bytes; /* for tensors in memory, at least the largest; some times as much lets reads overlap */
    int allow_buffered;    /* nonzero: accept a file system without direct I/O, such as tmpfs */
    int cuda_device;       /* the GPU that has the tensors, and then there is no file; -1: they are in host memory */
};
#define SPILLWAY_STREAM_OPTIONS_INIT                                                                                   \
    { sizeof(struct spillway_stream_options), NULL, 0, 0, -1 }

/* Memory, drive and waits of an open stream. */
struct spillway_stream_usage {
    size_t size;
    int64_t tensor_bytes;              /* of all tensors */
    int64_t memory_bytes, drive_bytes; /* that the stream takes; gradients of a store included; of the GPU's memory */
    int64_t read_bytes, written_bytes; /* since it was opened; those copied to and from the GPU */
    int64_t needs, waits; /* uses of tensors that are not small, and how many of them waited for the drive */
    double wait_seconds;
};
#define SPILLWAY_STREAM_USAGE_INIT                                                                                     \
    { sizeof(struct spillway_stream_usage), 0, 0, 0, 0, 0, 0, 0, 0.0 }

/* The purpose of a need. SPILLWAY_FORWARD: the tensor stays in memory until spillway_stream_done. SPILLWAY_BACKWARD:
 * until the second backward need after this one, without spillway_stream_done, because a backward pass does not tell
 * where it is done. SPILLWAY_CHANGE: as SPILLWAY_FORWARD, to write to it. */
enum { SPILLWAY_FORWARD = 0, SPILLWAY_BACKWARD = 1, SPILLWAY_CHANGE = 2 };

/* Begins the description of a stream. *out must be closed, also where a later call fails; NULL on failure. */
int spillway_stream_create(const struct spillway_stream_options *options, spillway_stream **out);

/* Registers a tensor of so many bytes, before spillway_stream_open, in the order of the forward pass as far as it is
 * known. The name is for messages. *out_index: 0 for the first, then 1, ...; may be NULL. */
int spillway_stream_add(spillway_stream *self, const char *name, int64_t bytes, int64_t *out_index);

/* Reserves the file's space and the memory. All tensors are zero. */
int spillway_stream_open(spillway_stream *self);

/* Names a stream of CUDA in which the caller works on the tensors of a GPU, before the first need that is for it; 0:
 * the default stream. Work that it has at a later call on the spillway_stream is waited for where that call has to. It
 * exists as long as the spillway_stream. */
int spillway_stream_use_cuda(spillway_stream *self, void *stream);

/* Returns the address of a tensor, a multiple of 4,096, valid until spillway_stream_close; NULL if there is no such
 * tensor, or the stream is not open. */
void *spillway_stream_address(const spillway_stream *self, int64_t index);

/* Returns when these tensors are in memory, and reads ahead. SPILLWAY_ERROR_BUDGET: there is no room for them beside
 * those that are in use; the message names them, nothing is held, and the call may be tried again. */
int spillway_stream_need(spillway_stream *self, const int64_t *tensors, int64_t count, int direction);

/* Ends as many uses of these tensors. */
int spillway_stream_done(spillway_stream *self, const int64_t *tensors, int64_t count);

/* Tells that the caller has written to the addresses of these tensors, between a need of SPILLWAY_CHANGE and
 * spillway_stream_done. They are written to the file in the background. Other changes are lost when the tensor leaves
 * memory; that is an error if one of the words that are compared, one of each page, has changed. */
int spillway_stream_changed(spillway_stream *self, const int64_t *tensors, int64_t count);

/* Fills in the usage of an open stream. */
int spillway_stream_get_usage(spillway_stream *self, struct spillway_stream_usage *out);

/* Closes a stream; NULL is allowed. keep: nonzero, and the addresses stay readable until the process ends, from the
 * file by way of the page cache. SPILLWAY_ERROR_BUSY: a store still uses it. In a child process of the one that made
 * it, it does nothing. */
int spillway_stream_close(spillway_stream *self, int keep);

/* Lets a store, before spillway_open, use an open stream: a tensor whose `weights` are an address of the stream gets
 * its new weights by way of the stream's memory and in its file, once. With `accumulate`, sums of the gradients of such
 * tensors are kept by the stream too, and only small ones in host_memory_bytes. On a GPU this call comes before
 * spillway_add, new weights go to the host's memory of the stream, from which the next need takes them, and sums are in
 * host_memory_bytes. The stream must outlive the store. */
int spillway_use_stream(spillway *self, spillway_stream *stream);

/* Files, apart from stores: transfers of ranges between memory and a file by io_uring, with many requests of 1 MiB
 * under way, past the page cache. A thread of the handle's own runs the transfers, with the result of running them in
 * the order of their submission; those that share neither pages of the file nor memory overlap. Memory that is aligned
 * as the drive needs it, mostly to 4 or 512 bytes and never more than 4096, is transferred without a copy if the offset
 * is a multiple of 4096; other memory passes through aligned blocks of 1 MiB, as many as `depth` and at most 64. After
 * spillway_io_flush what was written survives a power loss. A handle is used by one thread at a time, and not by a
 * forked child. */
typedef struct spillway_io spillway_io;

struct spillway_io_options {
    size_t size;
    int write;          /* nonzero: the file is made if it is missing; 0: it exists, and is only read */
    int depth;          /* requests under way, at most 1024; 0: 32 */
    int allow_buffered; /* nonzero: accept a file system without direct I/O, such as tmpfs */
};
#define SPILLWAY_IO_OPTIONS_INIT                                                                                       \
    { sizeof(struct spillway_io_options), 0, 0, 0 }

/* SPILLWAY_IO_VERIFY: reads, and fails if the bytes have another checksum than the caller says. */
enum { SPILLWAY_IO_READ = 0, SPILLWAY_IO_WRITE = 1, SPILLWAY_IO_VERIFY = 2 };

/* Opens a file. *out must be closed; on failure it is NULL. The reason of a failure of this and the next functions is
 * spillway_error(NULL), in the thread that called. */
int spillway_io_open(const char *path, const struct spillway_io_options *options, spillway_io **out);

/* Begins to transfer `bytes` bytes, at least 1, and returns at once. how: SPILLWAY_IO_READ or _WRITE. The caller keeps
 * the memory in place, and leaves it alone, until it has waited. *out_number, which may be NULL: 0 for the first
 * transfer, then 1, ... */
int spillway_io_submit(spillway_io *self, int how, int64_t offset_bytes, void *memory, int64_t bytes,
                       int64_t *out_number);

/* Begins a transfer that sums the bytes while they move. SPILLWAY_IO_READ and _WRITE: *checksum receives what
 * spillway_checksum says of them. SPILLWAY_IO_VERIFY: a read of bytes that must have *checksum; if they do not, they
 * are read once more, and then waiting for the transfer fails with SPILLWAY_ERROR_CORRUPT. The caller keeps `checksum`
 * in place, like the memory, until it has waited; NULL: there is no sum. The rest is as in spillway_io_submit. */
int spillway_io_submit_checked(spillway_io *self, int how, int64_t offset_bytes, void *memory, int64_t bytes,
                               uint64_t *checksum, int64_t *out_number);

/* Returns the checksum of some bytes: their XXH3-64 without a seed, or 1 if that is 0. It is that of each grain in a
 * store. Any thread may call it. */
uint64_t spillway_checksum(const void *memory, int64_t bytes);

/* Waits until a transfer and all before it are done; -1: all. Fails with the error of the first transfer that failed,
 * after which no other is tried: what they should have moved is undefined, and the handle can only be closed. */
int spillway_io_wait(spillway_io *self, int64_t number);

/* Waits for all transfers, and makes what was written durable. */
int spillway_io_flush(spillway_io *self);

/* Waits for all transfers, and returns the file's length in *out_bytes. */
int spillway_io_size(spillway_io *self, int64_t *out_bytes);

/* Waits for all transfers, and closes the file; NULL is allowed. */
void spillway_io_close(spillway_io *self);

#ifdef __cplusplus
}
#endif
#endif
