#include "job/what_if.h"

#include "core/size.h"
#include "offload/simulate/outline_price.h"

#include <math.h>

/* The difference to a plan that was made. The batch may differ, but not the micro-batch, which the model knows. */
struct change {
    int64_t device_memory, host_memory;
    double drives, batches; /* factors */
    sw_optimizer_format optimizer;
    sw_grads_format grads;
};

static struct change no_change(const struct sw_planned *p) {
    return (struct change){.device_memory = p->settings.device_memory,
                           .host_memory = p->settings.host_memory,
                           .drives = 1.0,
                           .batches = 1.0,
                           .optimizer = (sw_optimizer_format)p->settings.optimizer_state,
                           .grads = (sw_grads_format)p->settings.grads_state};
}

static struct sw_settings change_settings(const struct sw_planned *p, const struct change *change) {
    struct sw_settings settings = p->settings; /* borrows its texts */
    settings.device_memory = change->device_memory;
    settings.host_memory = change->host_memory;
    settings.batch_tokens = (int64_t)(change->batches * (double)settings.batch_tokens);
    settings.group = 0;
    if (settings.auto_chunk_grains > 0)
        settings.chunk_grains = settings.auto_chunk_grains; /* and not those that the plan at hand was found with */
    settings.optimizer_state = (int)change->optimizer;
    settings.grads_state = (int)change->grads;
    return settings;
}

/* Where memory and batch are at least what they were, the plan that was made works as well, and a short search may find
 * none that is faster. */
static sw_status keep_faster(const struct sw_planned *p, const struct sw_settings *settings,
                             const struct sw_rates *rates, struct sw_simulation *step) {
    struct sw_simulation same;
    if (settings->device_memory < p->settings.device_memory || settings->host_memory < p->settings.host_memory ||
        settings->batch_tokens != p->settings.batch_tokens ||
        settings->optimizer_state != p->settings.optimizer_state || settings->grads_state != p->settings.grads_state)
        return SW_OK;
    SW_TRY(sw_simulate(p->plan, SW_PROGRAM_UPDATE, false, rates, NULL, &same));
    if (same.step_s < step->step_s)
        *step = same;
    return SW_OK;
}

static sw_status predict(const struct sw_planned *p, struct sw_settings *settings, const struct sw_model *model,
                         const struct sw_rates *rates, struct sw_plan **plan, struct sw_what_if *out) {
    struct sw_search_prices prices;
    struct sw_outline_price found;
    if (sw_plan_choice_is_open(settings, &p->devices, *plan))
        SW_TRY(sw_plan_choose(settings, model, rates, SW_SEARCH_QUICK_OPS, &prices, plan));
    out->disk_bytes = sw_plan_disk_bytes(*plan);
    if (sw_plan_uses_nvme(*plan) && !(rates->read.bytes_per_s > 0.0 && rates->write.bytes_per_s > 0.0))
        return SW_OK;
    SW_TRY(sw_outline_simulate(*plan, rates, INFINITY, &found));
    out->step = found.step;
    SW_TRY(keep_faster(p, settings, rates, &out->step));
    out->tokens_per_s = (double)settings->batch_tokens / out->step.step_s;
    return SW_OK;
}

/* Plans a model with a change, and predicts the step. */
static sw_status plan_model(const struct sw_planned *p, const struct sw_model *model, const char *what,
                            const struct change *change, struct sw_what_if *out) {
    struct sw_settings settings = change_settings(p, change);
    struct sw_rates rates = p->rates.rates;
    struct sw_plan *plan = NULL;
    *out = (struct sw_what_if){
        .what = what, .device_memory = change->device_memory, .host_memory = change->host_memory, .tokens_per_s = NAN};
    rates.read.bytes_per_s *= change->drives;
    rates.write.bytes_per_s *= change->drives;
    sw_status status = sw_plan_fit(&settings, model, &plan);
    if (status == SW_OK)
        status = predict(p, &settings, model, &rates, &plan, out);
    sw_plan_destroy(plan);
    out->fits = status == SW_OK;
    /* SW_ERR_ARG: each group that fits has too many ops. */
    if (status != SW_ERR_BUDGET && status != SW_ERR_ARG)
        return status;
    sw_error_clear();
    return SW_OK;
}

static sw_status plan_again(const struct sw_planned *p, const char *what, const struct change *change,
                            struct sw_what_if *out) {
    return plan_model(p, p->model, what, change, out);
}

/* Plans with another format of the optimizer state, for which the model's units are laid out. */
static sw_status plan_format(const struct sw_planned *p, sw_optimizer_format format, struct sw_what_if *out) {
    static const char *const names[SW_OPTIMIZER_FORMATS] = {[SW_OPTIMIZER_FP32] = "optimizer state fp32",
                                                            [SW_OPTIMIZER_BF16] = "optimizer state bf16",
                                                            [SW_OPTIMIZER_8BIT] = "optimizer state 8bit"};
    struct sw_model_shape shape = sw_planned_shape(p);
    struct change change = no_change(p);
    struct sw_model *model;
    change.optimizer = format;
    const struct sw_settings changed = change_settings(p, &change);
    shape.optimizer = sw_settings_optimizer(&changed);
    SW_TRY(sw_model_create(&p->config, &shape, p->devices.compute, &model));
    const sw_status status = plan_model(p, model, names[format], &change, out);
    sw_model_destroy(model);
    return status;
}

bool sw_what_helps_is_quick(const struct sw_planned *p) {
    enum { MOST_OPS = 200000 };
    return p->plan->program[SW_PROGRAM_UPDATE].op_count <= MOST_OPS;
}

sw_status sw_what_helps(const struct sw_planned *p, struct sw_helps *out) {
    struct change drive = no_change(p), host = no_change(p), device = no_change(p), batch = no_change(p);
    struct change grads = no_change(p);
    const bool typed = grads.grads == SW_GRADS_TYPED;
    drive.drives = batch.batches = 2.0;
    host.host_memory *= 2;
    device.device_memory *= 2;
    out->count = 0;
    SW_TRY(plan_again(p, "one more drive", &drive, &out->row[out->count++]));
    SW_TRY(plan_again(p, "host memory doubled", &host, &out->row[out->count++]));
    SW_TRY(plan_again(p, "device memory doubled", &device, &out->row[out->count++]));
    SW_TRY(plan_again(p, "batch doubled", &batch, &out->row[out->count++]));
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++)
        if ((sw_optimizer_format)format != no_change(p).optimizer)
            SW_TRY(plan_format(p, (sw_optimizer_format)format, &out->row[out->count++]));
    grads.grads = typed ? SW_GRADS_8BIT : SW_GRADS_TYPED;
    if (sw_settings_ranks(&p->settings) == 1)
        SW_TRY(plan_again(p, typed ? "gradients in 8 bits" : "gradients in full", &grads, &out->row[out->count++]));
    return SW_OK;
}

/* A plan with more memory left computes less again, but a forward pass is no more than a quarter of the compute lane.
 * So steps whose compute lane is busy for two thirds of them cannot become half as long. */
#define MOST_COMPUTING (2.0 / 3.0)

static bool may_double(const struct sw_planned *p) {
    const struct sw_simulation *step = &p->prediction.plain;
    bool on_nvme = false;
    for (int64_t u = p->plan->spec.frozen_units; u < p->plan->spec.units->count; u++)
        on_nvme |= p->plan->placement[u].tier[SW_OPTIMIZER] == SW_NVME;
    return on_nvme && p->settings.optimizer_state == SW_OPTIMIZER_FP32 && sw_what_helps_is_quick(p) &&
           step->lane_busy_s[SW_LANE_COMPUTE] < MOST_COMPUTING * step->step_s;
}

sw_status sw_what_if_narrow(const struct sw_planned *p, double *out_step_s) {
    struct sw_what_if narrow;
    *out_step_s = 0.0;
    if (!may_double(p))
        return SW_OK;
    SW_TRY(plan_format(p, SW_OPTIMIZER_8BIT, &narrow));
    if (narrow.fits && narrow.step.step_s < p->prediction.plain.step_s / 2.0)
        *out_step_s = narrow.step.step_s;
    return SW_OK;
}

/* Rounds bytes up to what a flag says shortly: whole MiB, or pages where there are few MiB. */
static int64_t round_budget(int64_t bytes) {
    const int64_t unit = bytes >= (INT64_C(64) << 20) ? INT64_C(1) << 20 : INT64_C(1) << 12;
    return sw_div_up(bytes, unit) * unit;
}

/* Two budgets; sw_least_memory looks for the least ones on the line between a pair that is too small and one that
 * fits. */
struct budgets {
    int64_t device, host;
};

static struct budgets between(struct budgets low, struct budgets high) {
    const struct budgets middle = {.device = round_budget(low.device + (high.device - low.device) / 2),
                                   .host = round_budget(low.host + (high.host - low.host) / 2)};
    return (struct budgets){.device = sw_min_i64(middle.device, high.device),
                            .host = sw_min_i64(middle.host, high.host)};
}

static bool are_near(struct budgets low, struct budgets high) {
    enum { SHARE = 256 };
    return high.device - low.device <= high.device / SHARE && high.host - low.host <= high.host / SHARE;
}

static sw_status fits(const struct sw_planned *p, struct budgets budgets, bool *out) {
    struct change change = no_change(p);
    struct sw_plan *plan = NULL;
    change.device_memory = budgets.device;
    change.host_memory = budgets.host;
    struct sw_settings settings = change_settings(p, &change);
    const sw_status status = sw_plan_fit(&settings, p->model, &plan);
    sw_plan_destroy(plan);
    *out = status == SW_OK;
    if (status != SW_ERR_BUDGET)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Halves the way from `high`, which fits, to `low`, which need not, until both are near. */
static sw_status find_least(const struct sw_planned *p, struct budgets low, struct budgets high, struct budgets *out) {
    enum { MOST_TRIES = 40 };
    for (int tries = 0; tries < MOST_TRIES && !are_near(low, high); tries++) {
        const struct budgets tried = between(low, high);
        bool fit;
        if (tried.device == high.device && tried.host == high.host)
            break;
        SW_TRY(fits(p, tried, &fit));
        *(fit ? &high : &low) = tried;
    }
    *out = high;
    return SW_OK;
}

static sw_status price_budgets(const struct sw_planned *p, const char *what, struct budgets budgets,
                               struct sw_what_if *out) {
    struct change change = no_change(p);
    change.device_memory = budgets.device;
    change.host_memory = budgets.host;
    return plan_again(p, what, &change, out);
}

sw_status sw_least_memory(const struct sw_planned *p, struct sw_what_if out[SW_LEASTS]) {
    const struct budgets all = {.device = p->settings.device_memory, .host = p->settings.host_memory};
    struct budgets device, host, both;
    SW_TRY(find_least(p, (struct budgets){.host = all.host}, all, &device));
    SW_TRY(find_least(p, (struct budgets){.device = all.device}, all, &host));
    const struct budgets corner = {.device = device.device, .host = host.host};
    bool fit;
    SW_TRY(fits(p, corner, &fit));
    both = corner;
    if (!fit)
        SW_TRY(find_least(p, corner, all, &both));
    SW_TRY(price_budgets(p, "as they are", all, &out[0]));
    SW_TRY(price_budgets(p, "least device memory", device, &out[1]));
    SW_TRY(price_budgets(p, "least host memory", host, &out[2]));
    return price_budgets(p, "both small", both, &out[3]);
}
