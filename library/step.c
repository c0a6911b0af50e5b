/* Gradients come in, a step runs, state goes out. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "library/device.h"
#include "library/library_private.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A commit's text grows by its counts of steps while the note stays. */
enum { COUNT_CHARS = 128 };

static sw_status find_tensor(spillway *self, int64_t index, struct tensor **out) {
    SW_TRY(sw_library_begin(self, true));
    if (index < 0 || index >= self->tensor_count)
        return sw_fail(SW_ERR_ARG, "there is no tensor %lld: %s has %lld of them", (long long)index, self->folder,
                       (long long)self->tensor_count);
    *out = &self->tensor[index];
    return SW_OK;
}

/* Waits until the step that runs, if any, has given the new weights of a tensor. */
static sw_status wait_for(spillway *self, const struct tensor *tensor) {
    if (!self->running)
        return SW_OK;
    if (self->sharers > 1)
        return sw_library_finish(self);
    sw_status status = sw_engine_wait_given(self->engine, tensor->unit, tensor->offset + tensor->count);
    if (status == SW_OK)
        status = sw_library_cuda_sent(self);
    self->failed |= status != SW_OK;
    return status;
}

/* Adding may start threads, in which no signal of the program should arrive. */
static sw_status add_gradient(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient,
                              bool on_cuda) {
    const struct sw_library_signals signals = sw_library_block_signals(true);
    const sw_status status = sw_library_add(self, tensor, type, gradient, on_cuda);
    sw_library_allow_signals(&signals);
    return status;
}

static sw_status take_gradient(spillway *self, int64_t index, int type, const void *gradient, int how) {
    struct tensor *tensor;
    const bool on_cuda = sw_library_split_type(&type);
    SW_TRY(find_tensor(self, index, &tensor));
    if (type < 0 || type >= SW_DTYPES)
        return sw_fail(SW_ERR_ARG, "type %d of the gradient of '%s' is not one of SPILLWAY_F32, _BF16 and _F16", type,
                       tensor->name);
    if (gradient == NULL || (uintptr_t)gradient % (uintptr_t)sw_dtype_bytes((sw_dtype)type) != 0)
        return sw_fail(SW_ERR_ARG, "the gradient of '%s' is NULL, or not aligned to its elements", tensor->name);
    if (how != SPILLWAY_SET && how != SPILLWAY_ADD)
        return sw_fail(SW_ERR_ARG, "%d is neither SPILLWAY_SET nor SPILLWAY_ADD", how);
    if (how == SPILLWAY_ADD && tensor->sum == NULL)
        return sw_fail(SW_ERR_ARG, "gradients are not added up in %s: set `accumulate` in its options", self->folder);
    if (tensor->empty)
        return sw_fail(SW_ERR_ARG, "'%s' has no elements in this process, and so no gradient", tensor->name);
    const bool added = tensor->gradient != NULL && tensor->gradient == tensor->sum;
    if (tensor->gradient != NULL && added != (how == SPILLWAY_ADD))
        return sw_fail(SW_ERR_ARG, "the gradient of '%s' was set before and is added to now, or the other way round",
                       tensor->name);
    if (on_cuda)
        SW_TRY(sw_library_cuda_check(self, gradient, "gradients", tensor->name));
    if (how == SPILLWAY_ADD) {
        SW_TRY(wait_for(self, tensor));
        return add_gradient(self, tensor, (sw_dtype)type, gradient, on_cuda);
    }
    tensor->gradient = gradient;
    tensor->gradient_type = (sw_dtype)type;
    tensor->gradient_cuda = on_cuda;
    return on_cuda ? sw_library_cuda_handed_in(self) : SW_OK;
}

int spillway_gradient(spillway *self, int64_t index, int type, const void *gradient, int how) {
    return sw_library_end(self, take_gradient(self, index, type, gradient, how), true);
}

static void forget(spillway *self) {
    for (int64_t t = 0; t < self->tensor_count; t++)
        self->tensor[t].gradient = NULL;
}

int spillway_forget_gradients(spillway *self) {
    const sw_status status = sw_library_begin(self, true);
    if (status == SW_OK)
        forget(self);
    return sw_library_end(self, status, false);
}

static sw_status check_rates(const struct spillway_rates *r) {
    const struct {
        const char *name;
        double value, most;
        bool open; /* the most is not allowed itself */
    } ranges[] = {{"lr", r->lr, 1e30, false},
                  {"beta1", r->beta1, 1.0, true},
                  {"beta2", r->beta2, 1.0, true},
                  {"eps", r->eps, 1e30, false},
                  {"weight_decay", r->weight_decay, 1e30, false},
                  {"clip", r->clip, 1e30, false}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (!(ranges[i].value >= 0.0 && ranges[i].value <= ranges[i].most) ||
            (ranges[i].open && ranges[i].value == ranges[i].most))
            return sw_fail(SW_ERR_ARG, "%s is %g, which is not a number from 0 %s", ranges[i].name, ranges[i].value,
                           ranges[i].open ? "to below 1" : "on");
    return SW_OK;
}

/* Refuses rates whose products are beyond fp32, in which masters are kept: they would become NaN. The first step has
 * the largest product, because the bias correction of the first moment then divides by 1 - beta1. */
static sw_status check_products(const spillway *self, const struct spillway_rates *r) {
    if (r->eps < FLT_MIN)
        return sw_fail(SW_ERR_ARG, "eps is %g and must be at least %g: a gradient of 0 would make weights NaN", r->eps,
                       (double)FLT_MIN);
    for (int64_t t = 0; t < self->tensor_count; t++) {
        const double lr = r->lr * self->tensor[t].lr_scale;
        if (lr / (1.0 - r->beta1) > FLT_MAX || lr * r->weight_decay > FLT_MAX)
            return sw_fail(SW_ERR_ARG, "lr %g with lr_scale %g of '%s' is beyond the range of fp32", r->lr,
                           self->tensor[t].lr_scale, self->tensor[t].name);
    }
    return SW_OK;
}

static sw_status check_gradients(const spillway *self) {
    for (int64_t t = 0; self->options.missing_gradients == SPILLWAY_MISSING_ERROR && t < self->tensor_count; t++)
        if (self->tensor[t].gradient == NULL && !self->tensor[t].empty)
            return sw_fail(SW_ERR_ARG,
                           "'%s' has no gradient in step %lld: hand one in, leave the tensor out of the store, or set "
                           "missing_gradients",
                           self->tensor[t].name, (long long)self->last_step + 1);
    return SW_OK;
}

static sw_status check_step(const spillway *self, const struct spillway_rates *rates, const char *note,
                            char text[SW_STORE_META_BYTES]) {
    SW_TRY(check_rates(rates));
    SW_TRY(check_products(self, rates));
    SW_TRY(check_gradients(self));
    if (strlen(note) >= SPILLWAY_NOTE_CHARS)
        return sw_fail(SW_ERR_ARG, "the note has %zu bytes; a commit keeps at most %d", strlen(note),
                       SPILLWAY_NOTE_CHARS - 1);
    SW_TRY(sw_library_write_text(self, self->last_step + 1, note, text));
    if (strlen(text) + COUNT_CHARS >= SW_STORE_META_BYTES)
        return sw_fail(SW_ERR_ARG, "the note takes %zu bytes as JSON; a commit has room for %d", strlen(text),
                       SW_STORE_META_BYTES - COUNT_CHARS - 1);
    return SW_OK;
}

/* Notes that the last step is committed, if the store can still be found by its name. */
static sw_status note_commit(spillway *self) {
    SW_TRY(sw_store_keep_names(self->store));
    self->committed_step = self->last_step;
    self->result.committed = 1;
    return SW_OK;
}

/* Commits the last step of a plan that does not commit every step. */
static sw_status commit(spillway *self) {
    SW_TRY(sw_engine_save(self->engine));
    return note_commit(self);
}

/* Ends what start_update has begun. */
static sw_status end_update(spillway *self) {
    SW_TRY(sw_engine_settle_end(self->engine));
    SW_TRY(sw_library_let_go(self));
    SW_TRY(sw_library_gather_weights(self));
    if (self->plan->commit_every_step)
        SW_TRY(note_commit(self));
    else if (self->last_step % self->options.save_every == 0)
        SW_TRY(commit(self));
    return sw_library_meet(self);
}

sw_status sw_library_finish(spillway *self) {
    if (!self->running)
        return SW_OK;
    const struct sw_library_signals signals = sw_library_block_signals(false);
    const sw_status status = end_update(self);
    sw_library_allow_signals(&signals);
    self->running = false;
    self->failed |= status != SW_OK;
    if (status != SW_OK)
        sw_library_tell(self, sw_error_message(status));
    return status;
}

/* Makes the gradients that were handed in those of the step that runs. */
static void take_gradients(spillway *self) {
    for (int64_t t = 0; t < self->tensor_count; t++) {
        self->tensor[t].taken = self->tensor[t].gradient;
        self->tensor[t].taken_type = self->tensor[t].gradient_type;
        self->tensor[t].taken_cuda = self->tensor[t].gradient_cuda;
    }
    forget(self);
}

/* Runs the first program of a step, the norm of the gradients, and begins the second one, the update. */
static sw_status start_update(spillway *self, const struct spillway_rates *rates, const char *note,
                              char text[SW_STORE_META_BYTES]) {
    struct sw_step_result result;
    if (self->factors_changed)
        sw_units_join_runs(self->units);
    self->factors_changed = false;
    const struct sw_step_input input = {.kind = SW_STEP_TRAIN,
                                        .step = self->last_step + 1,
                                        .adamw = {.lr = rates->lr,
                                                  .beta1 = rates->beta1,
                                                  .beta2 = rates->beta2,
                                                  .eps = rates->eps,
                                                  .weight_decay = rates->weight_decay},
                                        .clip = rates->clip,
                                        .loss_tokens = 1};
    take_gradients(self);
    SW_TRY(sw_library_before_weights(self));
    SW_TRY(sw_library_cuda_begin(self));
    SW_TRY(sw_engine_begin(self->engine, &input));
    SW_TRY(sw_engine_wait(self->engine, &result));
    self->applied_steps = result.applied_steps;
    self->skipped_steps = result.skipped_steps;
    if (!result.skipped)
        sw_library_count_step(self);
    SW_TRY(sw_library_write_text(self, input.step, note, text));
    sw_engine_describe(self->engine, input.step, text);
    sw_library_cuda_last_pass(self);
    SW_TRY(sw_engine_settle_begin(self->engine));
    self->running = true;
    self->last_step = input.step;
    self->result = (struct spillway_result){.step = input.step,
                                            .grad_norm = result.grad_norm,
                                            .skipped = result.skipped,
                                            .applied_steps = result.applied_steps};
    return SW_OK;
}

static sw_status check_result(const struct spillway_result *out) {
    return out != NULL ? sw_library_check_result(out, sizeof *out, "the result", "SPILLWAY_RESULT_INIT") : SW_OK;
}

/* Starts a step, and waits for it if `whole`. A failure after the checks leaves only closing. */
static sw_status run_step(spillway *self, const struct spillway_rates *given, struct spillway_result *out, bool whole) {
    char text[SW_STORE_META_BYTES];
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    SW_TRY(sw_library_begin(self, true));
    if (!whole && self->weights_stream != NULL)
        return sw_fail(SW_ERR_ARG,
                       "the weights of %s stream, so a step ends before the call returns: use spillway_step",
                       self->folder);
    SW_TRY(sw_library_finish(self));
    sw_status status = check_result(out);
    if (status == SW_OK)
        status = sw_library_take_struct(&rates, sizeof rates, given, "the rates", "SPILLWAY_RATES_INIT");
    const char *note = status == SW_OK && rates.note != NULL ? rates.note : "";
    if (status == SW_OK)
        status = check_step(self, &rates, note, text);
    SW_TRY(sw_library_agree(self, status, "step"));
    SW_TRY(sw_library_leave_out(self));
    status = start_update(self, &rates, note, text);
    if (status == SW_OK && whole)
        status = sw_library_finish(self);
    self->failed |= status != SW_OK;
    if (status == SW_OK && out != NULL)
        sw_library_give_struct(out, &self->result, sizeof self->result);
    return status;
}

/* Blocks signals around a call that may write files. */
static int run_step_signals_blocked(spillway *self, const struct spillway_rates *rates, struct spillway_result *result,
                                    bool whole) {
    const struct sw_library_signals signals = sw_library_block_signals(false);
    const int known = sw_library_end(self, run_step(self, rates, result, whole), true);
    sw_library_allow_signals(&signals);
    return known;
}

int spillway_step(spillway *self, const struct spillway_rates *rates, struct spillway_result *result) {
    return run_step_signals_blocked(self, rates, result, true);
}

int spillway_step_start(spillway *self, const struct spillway_rates *rates, struct spillway_result *result) {
    return run_step_signals_blocked(self, rates, result, false);
}

static sw_status wait_for_step(spillway *self, struct spillway_result *out) {
    SW_TRY(sw_library_begin(self, true));
    SW_TRY(check_result(out));
    SW_TRY(sw_library_finish(self));
    if (out != NULL)
        sw_library_give_struct(out, &self->result, sizeof self->result);
    return SW_OK;
}

int spillway_wait(spillway *self, struct spillway_result *result) {
    return sw_library_end(self, wait_for_step(self, result), true);
}

static sw_status wait_for_tensor(spillway *self, int64_t index) {
    struct tensor *tensor;
    SW_TRY(find_tensor(self, index, &tensor));
    return wait_for(self, tensor);
}

int spillway_wait_tensor(spillway *self, int64_t index) {
    return sw_library_end(self, wait_for_tensor(self, index), true);
}

/* Sets each flag that any process has. all: room for the flags of all. */
static sw_status join_flags(const spillway *self, unsigned char *all, unsigned char *flags, int64_t count) {
    memcpy(all + self->rank * count, flags, (size_t)count);
    SW_TRY(sw_comm_share_records(self->comm, "flags", all, count));
    for (int64_t i = 0; i < self->ranks * count; i++)
        flags[i % count] |= all[i];
    return SW_OK;
}

static sw_status agree(spillway *self, const char *problem, unsigned char *flags, int64_t count) {
    SW_TRY(sw_library_begin(self, true));
    SW_TRY(sw_library_finish(self));
    const int64_t bytes = self->comm != NULL && flags != NULL && count > 0 ? self->ranks * count : 0;
    unsigned char *all = bytes > 0 ? malloc((size_t)bytes) : NULL;
    sw_status status = problem != NULL ? sw_fail(SW_ERR_ARG, "%s", problem) : SW_OK;
    if (status == SW_OK && bytes > 0 && all == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory for the flags of %d processes", self->ranks);
    status = sw_library_agree(self, status, "agreement");
    if (status == SW_OK && bytes > 0)
        status = join_flags(self, all, flags, count);
    free(all);
    return status;
}

int spillway_agree(spillway *self, const char *problem, unsigned char *flags, int64_t count) {
    return sw_library_end(self, agree(self, problem, flags, count), true);
}

int spillway_save(spillway *self) {
    const struct sw_library_signals signals = sw_library_block_signals(false);
    sw_status status = sw_library_begin(self, true);
    if (status == SW_OK)
        status = sw_library_finish(self);
    const bool begun = status == SW_OK;
    if (begun && self->committed_step != self->last_step)
        status = commit(self);
    if (status == SW_OK)
        status = sw_library_meet(self);
    const int known = sw_library_end(self, status, begun);
    sw_library_allow_signals(&signals);
    return known;
}

static sw_status check_read(spillway *self, int64_t index, int part, int64_t first, int64_t count, const float *out) {
    struct tensor *tensor;
    SW_TRY(find_tensor(self, index, &tensor));
    if (part < SPILLWAY_MASTER || part > SPILLWAY_SECOND_MOMENT)
        return sw_fail(SW_ERR_ARG, "%d is not one of SPILLWAY_MASTER, _FIRST_MOMENT and _SECOND_MOMENT", part);
    if (first < 0 || count < 0 || first > sw_library_elems(tensor) - count || (out == NULL && count > 0))
        return sw_fail(SW_ERR_ARG, "'%s' has no %lld elements from %lld on, or there is nowhere to copy them",
                       tensor->name, (long long)count, (long long)first);
    return SW_OK;
}

/* A wrong argument in one of several processes is refused in all, so that none waits for it. */
static sw_status read_part(spillway *self, int64_t index, int part, int64_t first, int64_t count, float *out) {
    SW_TRY(sw_library_begin(self, true));
    if (self->comm != NULL)
        SW_TRY(sw_library_finish(self));
    SW_TRY(sw_library_agree(self, check_read(self, index, part, first, count, out), "read"));
    if (count == 0 && self->comm == NULL)
        return SW_OK;
    SW_TRY(sw_library_finish(self));
    return sw_library_read(self, &self->tensor[index], part, first, count, out);
}

int spillway_read(spillway *self, int64_t index, int part, int64_t first, int64_t count, float *out) {
    return sw_library_end(self, read_part(self, index, part, first, count, out), true);
}

static sw_status get_usage(spillway *self, struct spillway_usage *out) {
    int64_t grains = 0, on_host = 0;
    SW_TRY(sw_library_begin(self, true));
    SW_TRY(sw_library_check_result(out, sizeof *out, "the usage", "SPILLWAY_USAGE_INIT"));
    SW_TRY(sw_library_finish(self));
    for (int64_t u = 0; u < self->units->count; u++) {
        const int64_t own = sw_plan_span(self->plan, SW_OPTIMIZER, u).grains;
        grains += own;
        on_host += self->plan->placement[u].tier[SW_OPTIMIZER] == SW_HOST ? own : 0;
    }
    const struct sw_store_counters moved = sw_store_counters(self->store);
    const struct spillway_usage made = {
        .parameters = sw_units_parameters(self->units) - self->tensor[self->tensor_count].count,
        .host_bytes = self->plan->tier_bytes[SW_DEVICE] + self->plan->tier_bytes[SW_HOST] + sw_library_own_bytes(self),
        .drive_bytes = sw_store_file_bytes(self->store),
        .state_bytes = sw_plan_optimizer_bytes(self->plan, grains),
        .state_host_bytes = sw_plan_optimizer_bytes(self->plan, on_host),
        .read_bytes = moved.read_bytes,
        .written_bytes = moved.write_bytes};
    sw_library_give_struct(out, &made, sizeof made);
    return SW_OK;
}

int spillway_get_usage(spillway *self, struct spillway_usage *out) {
    return sw_library_end(self, get_usage(self, out), false);
}
