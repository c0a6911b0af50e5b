#include "bench/papers/outline.h"

#include <stdlib.h>
#include <string.h>

/* More memory than any model here takes; budgets are added up, so it is far from the largest integer. */
#define UNLIMITED_BYTES (INT64_C(1) << 56)
#define FAST 1e30
#define EVERYTHING_HERE "weights=device,grads=device,optimizer=device,acts=device"
enum { HEAD_DIM = 128, BLOCK_PARAMETERS = 12, BACKWARD_FLOPS = 2 };

static struct sw_profile boundless(void) {
    struct sw_profile machine = {.device = {.name = "a device of any size",
                                            .memory_bytes = UNLIMITED_BYTES,
                                            .memory_bytes_per_s = FAST,
                                            .tf32_flops_per_s = FAST,
                                            .attention_forward_flops_per_s = FAST,
                                            .attention_backward_flops_per_s = FAST},
                                 .host_bytes = UNLIMITED_BYTES};
    for (int type = 0; type < SW_DTYPES; type++)
        machine.device.product_flops_per_s[type] = FAST;
    return machine;
}

static sw_status choose_config(const struct sw_paper_case *which, struct sw_model_config *c) {
    SW_TRY(sw_config_load("gpt2-124m", c));
    c->layers = which->layers;
    c->hidden = which->hidden;
    c->ffn = 4 * which->hidden;
    c->heads = c->kv_heads = which->heads > 0 ? which->heads : which->hidden / HEAD_DIM;
    c->head_dim = c->hidden / c->heads;
    const int64_t blocks = BLOCK_PARAMETERS * c->layers * c->hidden * c->hidden;
    if (which->parameters > 0)
        c->vocab = (which->parameters - blocks) / c->hidden - c->max_positions;
    return SW_OK;
}

static sw_status choose_settings(const struct sw_paper_case *which, struct sw_settings *s) {
    SW_TRY(sw_options_defaults(&sw_plan_command, s));
    free(s->place);
    s->place = strdup(which->place != NULL ? which->place : EVERYTHING_HERE);
    if (s->place == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings");
    s->precision = SW_PRECISION_BF16;
    s->recompute = SW_OPTION_RECOMPUTE_ALL;
    s->durability = which->two_generations ? SW_DURABILITY_STEP : SW_DURABILITY_NONE;
    s->update = SW_UPDATE_HOST;
    s->ring_chunks = SW_RING_CHUNKS;
    s->ranks = which->ranks > 1 ? which->ranks : 0;
    s->zero = which->zero;
    s->tiles = which->tiles > 0 ? which->tiles : 1;
    s->seq = SW_PAPER_SEQ;
    s->micro_batch = which->sequences > 0 ? which->sequences : 1;
    s->batch_tokens = s->seq * s->micro_batch * sw_settings_ranks(s);
    s->device_memory = which->device_bytes > 0 ? which->device_bytes : UNLIMITED_BYTES;
    s->host_memory = UNLIMITED_BYTES;
    return SW_OK;
}

sw_status sw_paper_open(const struct sw_paper_case *which, struct sw_paper_plan *out) {
    const struct sw_profile machine = boundless();
    struct sw_model_config config;
    const struct sw_job_spec spec = {.settings = &out->settings, .config = &config, .machine = &machine, .folder = "."};
    struct sw_job *job = &out->job;
    *out = (struct sw_paper_plan){0};
    SW_TRY(choose_config(which, &config));
    SW_TRY(choose_settings(which, &out->settings));
    SW_TRY(sw_job_open(&spec, job));
    out->parameters = (double)sw_units_parameters(sw_model_get_units(job->model));
    out->tokens = (double)(job->settings->micro_batch * job->settings->seq);
    return SW_OK;
}

void sw_paper_close(struct sw_paper_plan *plan) {
    sw_job_release(&plan->job);
    sw_options_release(&sw_plan_command, &plan->settings);
}

double sw_paper_states_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < plan->slot_count; s++) {
        const struct sw_slot *slot = &plan->slot[s];
        if (slot->resident && (slot->content == SW_CONTENT_WEIGHTS || slot->content == SW_CONTENT_GRADS ||
                               slot->content == SW_CONTENT_OPTIMIZER))
            bytes += slot->bytes;
    }
    return (double)bytes;
}

double sw_paper_slot_bytes(const struct sw_plan *plan, const char *name, bool shared) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < plan->slot_count; s++)
        if (strcmp(plan->slot[s].name, name) == 0 && (plan->slot[s].unit < 0) == shared)
            bytes += plan->slot[s].bytes;
    return (double)bytes;
}

static struct sw_rate rate_of(double bytes_per_s) {
    return (struct sw_rate){.bytes_per_s = bytes_per_s > 0.0 ? bytes_per_s : FAST};
}

sw_status sw_paper_simulate(struct sw_paper_plan *p, sw_program_kind kind, const struct sw_paper_machine *machine,
                            struct sw_simulation *out) {
    const struct sw_plan *plan = p->job.plan;
    const int64_t count = plan->spec.units->count;
    const double flops_per_s = machine->flops_per_s > 0.0 ? machine->flops_per_s : FAST;
    double *seconds = calloc((size_t)count * 3, sizeof *seconds), *backward = seconds + count;
    if (seconds == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the rates of units");
    for (int64_t u = 0; u < count; u++) {
        seconds[u] = plan->spec.forward_flops[u] / flops_per_s;
        backward[u] = (u + 1 == count ? 1 + BACKWARD_FLOPS : BACKWARD_FLOPS) * seconds[u];
    }
    const struct sw_rates rates = {.cores = 1.0,
                                   .upload = rate_of(machine->link_bytes_per_s),
                                   .download = rate_of(machine->link_bytes_per_s),
                                   .update = rate_of(machine->host_bytes_per_s),
                                   .update_on_device = rate_of(0.0),
                                   .finish = rate_of(0.0),
                                   .zero = rate_of(0.0),
                                   .read = rate_of(machine->read_bytes_per_s),
                                   .write = rate_of(machine->write_bytes_per_s),
                                   .read_write_slowdown = 1.0,
                                   .gather = rate_of(machine->comm_bytes_per_s),
                                   .reduce = rate_of(machine->comm_bytes_per_s),
                                   .forward_s = seconds,
                                   .backward_s = backward,
                                   .recompute_s = seconds,
                                   .derive_s = backward + count};
    sw_status status = sw_plan_complete(p->job.plan);
    if (status == SW_OK)
        status = sw_simulate(plan, kind, false, &rates, NULL, out);
    free(seconds);
    return status;
}
