/* The addresses of slots, operands and tokens in the engine's memory. */
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <string.h>

void *sw_engine_piece(const struct sw_engine *engine, int32_t slot, int64_t piece) {
    const struct sw_slot *at = &engine->plan->slot[slot];
    assert(at->tier != SW_NVME && piece >= 0 && piece < at->pieces);
    return (char *)sw_memory_base(engine->memory[at->tier]) + at->offset + piece * at->piece_bytes;
}

void *sw_engine_grain(const struct sw_engine *engine, int32_t slot, int64_t grain) {
    const struct sw_slot *at = &engine->plan->slot[slot];
    assert(at->grain_bytes > 0 && grain >= at->first_grain);
    char *first = sw_engine_piece(engine, slot, 0);
    if (at->lead_bytes > 0)
        return first + at->lead_bytes + sw_plan_record_distance(engine->plan, at->unit, at->first_grain, grain);
    return first + (grain - at->first_grain) * at->grain_bytes;
}

const struct sw_access *sw_engine_next_operand(const struct sw_engine *engine, const struct sw_op *op, sw_role role,
                                               const struct sw_access *last) {
    const struct sw_access *access = &engine->program->access[op->first_access];
    const struct sw_access *end = access + op->access_count;
    for (access = last == NULL ? access : last + 1; access < end; access++)
        if (access->role == role)
            return access;
    return NULL;
}

void *sw_engine_address(const struct sw_engine *engine, const struct sw_access *operand) {
    return (char *)sw_engine_piece(engine, operand->slot, 0) + operand->offset_bytes;
}

void *sw_engine_operand(const struct sw_engine *engine, const struct sw_op *op, sw_role role) {
    const struct sw_access *operand = sw_engine_next_operand(engine, op, role, NULL);
    return operand == NULL ? NULL : sw_engine_address(engine, operand);
}

void *sw_engine_staged_tokens(const struct sw_engine *engine, int64_t context, int64_t micro) {
    return sw_engine_piece(engine, sw_plan_buffer(engine->plan, SW_BUFFER_TOKENS),
                           context * engine->plan->spec.micro_batches + micro);
}

void sw_engine_own_sums(const struct sw_engine *engine, const struct step_context *context, double out[SW_PAIR_SUMS]) {
    const struct sw_plan_spec *spec = &engine->plan->spec;
    const struct sw_unit_ops *ops = &engine->spec.ops;
    memset(out, 0, SW_PAIR_SUMS * sizeof *out);
    for (int64_t m = 0; m < spec->micro_batches; m++)
        if (spec->pair_sequences > 0)
            ops->score(ops->context, sw_engine_staged_tokens(engine, context - engine->context, m),
                       context->loss + m * spec->pair_sequences, out);
        else
            out[SW_PAIR_LOSS] += context->loss[m];
}

void sw_engine_step_sums(const struct sw_engine *engine, const struct step_context *context, double out[SW_PAIR_SUMS]) {
    if (sw_plan_job_ranks(engine->plan) > 1)
        memcpy(out, context->shared_sums, sizeof context->shared_sums);
    else
        sw_engine_own_sums(engine, context, out);
}
