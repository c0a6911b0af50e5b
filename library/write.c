/* Replaces the state of a store by values from elsewhere, chunk by chunk, as one commit. */
#include "kernels/moments.h"
#include "library/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = SW_OPTIMIZER_VECTORS };
/* The steps to come are numbered on from there. */
#define MOST_STEP (INT64_C(1) << 53)

/* The values that come in, by part and tensor, and room for a grain's record as fp32. */
struct replacing {
    spillway *self;
    const float *const *part[PARTS]; /* NULL: the part stays */
    float *whole;
    struct sw_moment_rounding rounding;
};

static bool is_allowed(float value, int part) {
    return isfinite(value) && (part != SPILLWAY_SECOND_MOMENT || value >= 0.0f);
}

/* Refuses values that no step makes, before anything changes. */
static sw_status check_values(const struct replacing *r) {
    static const char *const names[PARTS] = {"master", "first moment", "second moment"};
    for (int part = 0; part < PARTS; part++)
        for (int64_t t = 0; r->part[part] != NULL && t < r->self->tensor_count; t++) {
            const struct tensor *tensor = &r->self->tensor[t];
            const float *values = r->part[part][t];
            if ((uintptr_t)values % sizeof *values != 0)
                return sw_fail(SW_ERR_ARG, "the %s of '%s' is not aligned to its elements", names[part], tensor->name);
            for (int64_t i = 0; values != NULL && i < tensor->count; i++)
                if (!is_allowed(values[i], part))
                    return sw_fail(SW_ERR_ARG,
                                   "element %lld of the %s of '%s' is %g, which no step makes: nothing was changed",
                                   (long long)i, names[part], tensor->name, (double)values[i]);
        }
    return SW_OK;
}

static sw_status check_steps(const spillway *self, const struct spillway_state *state) {
    const char *note = state->note != NULL ? state->note : "";
    if (state->applied_steps < 0 || state->step < state->applied_steps || state->step > MOST_STEP)
        return sw_fail(SW_ERR_ARG,
                       "step %lld with %lld applied steps is not a state: there are 0 or more applied steps, and at "
                       "most as many as steps, of which there are at most 2^53",
                       (long long)state->step, (long long)state->applied_steps);
    for (int64_t t = 0; state->tensor_steps != NULL && t < self->tensor_count; t++)
        if (state->tensor_steps[t] < 0 || state->tensor_steps[t] > state->applied_steps)
            return sw_fail(SW_ERR_ARG, "'%s' with %lld steps is not a state of %lld applied steps",
                           self->tensor[t].name, (long long)state->tensor_steps[t], (long long)state->applied_steps);
    return strlen(note) < SPILLWAY_NOTE_CHARS
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "the note for %s has %zu bytes; a commit keeps at most %d", self->folder,
                         strlen(note), SPILLWAY_NOTE_CHARS - 1);
}

/* Puts the values of a grain's elements into its record as fp32. */
static void change_grain(const struct replacing *r, int64_t unit, int64_t grain, int64_t elems) {
    const int64_t first = grain * SW_GRAIN_ELEMS;
    int64_t position = sw_library_first_run(r->self, unit, first);
    for (struct library_run run; sw_library_run_at(r->self, unit, position, first, elems, &run); position++)
        for (int part = 0; part < PARTS; part++) {
            const int64_t t = run.tensor - r->self->tensor;
            const float *values = r->part[part] != NULL && t < r->self->tensor_count ? r->part[part][t] : NULL;
            if (values != NULL)
                memcpy(r->whole + part * SW_GRAIN_ELEMS + run.at, values + run.from,
                       (size_t)run.count * sizeof *values);
        }
}

/* A sw_replace_function. */
static sw_status change(void *context, int64_t unit, int64_t first_grain, int64_t grains, void *records) {
    struct replacing *r = context;
    const struct spillway *self = r->self;
    const sw_optimizer_format format = self->units->optimizer;
    r->rounding.unit = unit;
    for (int64_t g = 0; g < grains; g++) {
        char *record = (char *)records + sw_plan_optimizer_bytes(self->plan, g);
        const bool wide = first_grain + g >= self->units->unit[unit].wide_grain;
        sw_record_to_fp32(format, wide, record, r->whole);
        change_grain(r, unit, first_grain + g, SW_GRAIN_ELEMS);
        r->rounding.first_elem = (first_grain + g) * SW_GRAIN_ELEMS;
        sw_record_from_fp32(format, wide, &r->rounding, r->whole, record);
        if (format == SW_OPTIMIZER_8BIT && !wide)
            sw_record_recover_m(r->whole + SW_GRAIN_ELEMS, record);
    }
    sw_library_stamp(r->self, unit, first_grain * SW_GRAIN_ELEMS, grains * SW_GRAIN_ELEMS, records);
    return SW_OK;
}

/* The commit's text has the counts of the new state; after an error the handle is of no use. */
static sw_status replace(spillway *self, const struct spillway_state *state, struct replacing *r, bool *begun) {
    char text[SW_STORE_META_BYTES];
    const int64_t applied = self->applied_steps, skipped = self->skipped_steps;
    self->applied_steps = state->applied_steps;
    self->skipped_steps = state->step - state->applied_steps;
    const sw_status status = sw_library_write_text(self, state->step, state->note != NULL ? state->note : "", text);
    if (status != SW_OK) {
        self->applied_steps = applied;
        self->skipped_steps = skipped;
        return status;
    }
    const struct sw_replacement replacement = {.change = change,
                                               .context = r,
                                               .step = state->step,
                                               .applied_steps = self->applied_steps,
                                               .skipped_steps = self->skipped_steps,
                                               .text = text};
    *begun = true;
    SW_TRY(sw_library_before_weights(self));
    SW_TRY(sw_library_cuda_begin(self));
    for (int64_t t = 0; t < self->tensor_count; t++) {
        self->tensor[t].gradient = NULL;
        self->tensor[t].missed = state->tensor_steps != NULL ? state->applied_steps - state->tensor_steps[t] : 0;
    }
    self->replaces = true;
    const sw_status replaced = sw_engine_replace(self->engine, &replacement);
    self->replaces = false;
    SW_TRY(replaced);
    SW_TRY(sw_library_let_go(self));
    SW_TRY(sw_store_keep_names(self->store));
    self->last_step = self->committed_step = state->step;
    return SW_OK;
}

static sw_status write_state(spillway *self, const struct spillway_state *given, bool *begun) {
    struct spillway_state state = SPILLWAY_STATE_INIT;
    SW_TRY(sw_library_begin(self, true));
    if (self->ranks > 1)
        return sw_fail(SW_ERR_ARG,
                       "%d processes share %s: open it by one of them alone to replace its state, which all may "
                       "open then",
                       self->ranks, self->folder);
    SW_TRY(sw_library_finish(self));
    SW_TRY(sw_library_take_struct(&state, sizeof state, given, "the state", "SPILLWAY_STATE_INIT"));
    SW_TRY(check_steps(self, &state));
    struct replacing r = {.self = self,
                          .part = {state.master, state.first_moment, state.second_moment},
                          .rounding = {.rounding = SW_ROUND_NEAREST, .step = state.step}};
    SW_TRY(check_values(&r));
    r.whole = malloc(PARTS * SW_GRAIN_ELEMS * sizeof *r.whole);
    if (r.whole == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to replace the state in %s", self->folder);
    const sw_status status = replace(self, &state, &r, begun);
    free(r.whole);
    return status;
}

int spillway_write(spillway *self, const struct spillway_state *state) {
    const struct sw_library_signals signals = sw_library_block_signals(false);
    bool begun = false;
    const sw_status status = write_state(self, state, &begun);
    const int known = sw_library_end(self, status, begun);
    if (begun && known != SPILLWAY_OK)
        self->failed = true;
    sw_library_allow_signals(&signals);
    return known;
}

int64_t spillway_applied_steps(const spillway *self) {
    return self != NULL && self->last_step >= 0 ? self->applied_steps : -1;
}
