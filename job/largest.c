/* The largest model that a machine trains at a given speed.
 *
 * The sizes of a family are one line of models, from shallow to deep with fixed proportions, and speed falls along it.
 * So the answer is found by halving: first the largest size that fits, then the largest that is fast enough. Trying
 * every size would plan thousands of models.
 *
 * Sizes are compared by a rough price (usual plans, all updates on one side); only the last candidates get the full
 * search, which takes ten times as long and finds somewhat faster plans. */
#include "job/largest.h"

#include "core/size.h"
#include "core/status.h"
#include "offload/simulate/outline_price.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Any model with many positions will do to open the devices and resolve the budgets, which do not depend on it. */
#define ANY_MODEL "llama-1b"

struct sw_sizing {
    struct sw_settings settings; /* only budgets and nodes are resolved; borrows its texts */
    struct sw_settings any;      /* with ANY_MODEL */
    struct sw_job machine;       /* a job of that model; has the profile of this machine */
};

const char *sw_size_limit_name(sw_size_limit limit) {
    static const char *const names[] = {[SW_LIMIT_SPEED] = "speed",
                                        [SW_LIMIT_DEVICE] = "device memory",
                                        [SW_LIMIT_HOST] = "host memory",
                                        [SW_LIMIT_MEMORY] = "device and host memory",
                                        [SW_LIMIT_OPS] = "a plan short enough",
                                        [SW_LIMIT_SIZE] = "limits of the program"};
    return names[limit];
}

sw_status sw_sizing_open(const struct sw_settings *settings, struct sw_sizing **out) {
    struct sw_sizing *s = calloc(1, sizeof *s);
    if (s == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to search the largest model");
    static char any_model[] = ANY_MODEL;
    s->settings = s->any = *settings;
    s->any.model = any_model;
    s->any.expert_group = 0;
    struct sw_job *machine = &s->machine;
    sw_status status =
        sw_job_open(&(struct sw_job_spec){.settings = &s->any, .folder = ".", .unplanned = true}, machine);
    if (status == SW_OK && !machine->is_described)
        status = sw_job_find_profile(machine, &(struct sw_profile_need){.drives = true});
    s->settings.device_memory = s->any.device_memory;
    s->settings.host_memory = s->any.host_memory;
    s->settings.nodes = s->any.nodes;
    *out = s;
    if (status != SW_OK) {
        sw_sizing_close(s);
        *out = NULL;
    }
    return status;
}

void sw_sizing_close(struct sw_sizing *s) {
    if (s == NULL)
        return;
    sw_job_release(&s->machine);
    free(s);
}

const char *sw_sizing_device_name(const struct sw_sizing *s) {
    const char *here = sw_devices_info(&s->machine.devices).model;
    if (s->machine.is_described)
        return s->machine.profile.device.name;
    return here != NULL ? here : "this CPU";
}

/* One size of a model: its job, or why there is none. */
struct size {
    struct sw_job job;
    bool fits;
    sw_size_limit limit; /* why it does not fit, if it does not */
};

/* Returns the budget that is too small, found from the message, which names the flag of each. */
static sw_size_limit limit_of(sw_status status) {
    const bool device = strstr(sw_error_message(status), "--device-memory") != NULL;
    const bool host = strstr(sw_error_message(status), "--host-memory") != NULL;
    if (device && host)
        return SW_LIMIT_MEMORY;
    return host ? SW_LIMIT_HOST : SW_LIMIT_DEVICE;
}

/* The models that a search tries, numbered by their layers. */
struct shapes {
    const struct sw_model_config *base;
    bool deeper; /* true: all have the width of `base`; false: its proportions */
};

/* Returns false if no model has this shape. */
static bool make_config(const struct shapes *shapes, int64_t layers, struct sw_model_config *out) {
    SW_HANDLES_ERRORS();
    if (shapes->deeper) {
        *out = *shapes->base;
        out->layers = layers;
        return layers <= SW_CONFIG_MAX_LAYERS;
    }
    const bool made = sw_config_scale(shapes->base, layers, out) == SW_OK;
    return made;
}

/* Makes the outline of a size, with the units of experts that the settings name. --expert-group auto takes whole blocks
 * if they fit, else the largest units that do; a model without experts has whole blocks. */
static sw_status outline_size(const struct sw_sizing *s, struct sw_job_change change, struct sw_job *out) {
    const int64_t experts = change.config->experts;
    if (change.settings.expert_group != SW_OPTION_AUTO && experts > 0)
        return sw_job_with(&s->machine, &change, out);
    change.settings.expert_group = 0;
    sw_status status = sw_job_with(&s->machine, &change, out);
    const bool open = s->settings.expert_group == SW_OPTION_AUTO;
    for (int64_t group = experts; open && status == SW_ERR_BUDGET && group >= 1; group--) {
        if (experts % group != 0)
            continue;
        sw_error_clear();
        sw_job_release(out);
        change.settings.expert_group = group;
        status = sw_job_with(&s->machine, &change, out);
    }
    return status;
}

/* Makes the outline of the plan for a model of `layers` layers. A size that does not fit is no error. The caller
 * releases the size's job, even after a failure. */
static sw_status plan_size(const struct sw_sizing *s, const struct shapes *shapes, int64_t layers, struct size *out) {
    struct sw_model_config config;
    const struct sw_job_change change = {.settings = s->settings, .resolves = true, .config = &config};
    *out = (struct size){.limit = SW_LIMIT_SIZE};
    if (!make_config(shapes, layers, &config))
        return SW_OK;
    /* A --seq beyond the model's positions is treated as a question about a model made for it. */
    config.max_positions = sw_max_i64(config.max_positions, s->settings.seq);
    const sw_status status = outline_size(s, change, &out->job);
    out->fits = status == SW_OK;
    if (status != SW_ERR_BUDGET)
        return status;
    out->limit = limit_of(status);
    sw_error_clear();
    return SW_OK;
}

/* Predicts a size's step by the plan that a search of most_ops ops finds, which replaces the outline; 0: by the
 * outline. Keeps the faster of it and *out. */
static sw_status price_plan(struct sw_job *job, int64_t most_ops, struct sw_largest *out) {
    struct sw_outline_price found;
    sw_status status = most_ops > 0 ? sw_job_choose(job, most_ops) : SW_OK;
    if (status == SW_OK)
        status = sw_outline_simulate(job->plan, &job->rates.rates, INFINITY, job->memory, &found);
    if (status == SW_ERR_BUDGET || status == SW_ERR_ARG || (status == SW_OK && !found.simulated)) {
        /* Every group of micro-batches that fits has too many ops: there is no such plan. */
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    const double tokens_per_s = (double)job->settings->batch_tokens / found.step.step_s;
    if (tokens_per_s <= out->tokens_per_s)
        return SW_OK;
    out->config = job->config;
    out->parameters = sw_units_parameters(sw_model_get_units(job->model));
    out->disk_bytes = sw_plan_disk_bytes(job->plan);
    out->tokens_per_s = tokens_per_s;
    out->step = found.step;
    return SW_OK;
}

/* Prices the usual plans with all updates on one side. A search takes ten times as long or more, and finds a plan that
 * is at least as fast. */
static sw_status price_sides(const struct sw_job *job, struct sw_largest *out) {
    for (int update = SW_UPDATE_HOST; update <= SW_UPDATE_DEVICE; update++) {
        struct sw_job_change side = sw_job_same(job);
        struct sw_job varied;
        side.settings.update = update;
        sw_status status = sw_job_with(job, &side, &varied);
        if (status == SW_OK)
            status = price_plan(&varied, 0, out);
        sw_job_release(&varied);
        if (status != SW_OK && status != SW_ERR_BUDGET)
            return status;
        sw_error_clear();
    }
    return SW_OK;
}

/* Predicts the speed of a size that fits, by a search of most_ops ops; 0: roughly, by plans with all updates on one
 * side. */
static sw_status price_size(struct sw_job *job, int64_t most_ops, struct sw_largest *out) {
    SW_TRY(sw_job_count_rates(job));
    return most_ops == 0 && job->settings->update == SW_UPDATE_AUTO ? price_sides(job, out)
                                                                    : price_plan(job, most_ops, out);
}

/* Two sizes, as numbers of layers: `good` trains, `bad` does not. The largest size is between them. */
struct bracket {
    int64_t good, bad;
};

/* Halves the bracket until the largest size that fits is known. */
static sw_status find_fitting(struct sw_sizing *s, const struct shapes *shapes, struct bracket *between,
                              sw_size_limit *out_limit) {
    while (between->bad - between->good > 1) {
        /* While no bad size is known, doubles the layers, so that no size far too large is planned. */
        const bool open = between->bad > SW_CONFIG_MAX_LAYERS;
        const int64_t twice = sw_min_i64(sw_max_i64(8, 2 * between->good), SW_CONFIG_MAX_LAYERS);
        const int64_t layers = open ? twice : between->good + (between->bad - between->good) / 2;
        struct size size;
        const sw_status status = plan_size(s, shapes, layers, &size);
        sw_job_release(&size.job);
        SW_TRY(status);
        if (size.fits) {
            between->good = layers;
        } else {
            between->bad = layers;
            *out_limit = size.limit;
        }
    }
    return SW_OK;
}

/* Returns the number of layers to try next: where the speed should be the required one. Speed falls with the
 * parameters, which grow with the layers or, if the width grows too, with their cube. Returns the middle after a few
 * tries, and if no plan has a speed. */
static int64_t next_layers(const struct shapes *shapes, const struct bracket *between, int64_t tried,
                           double speed_ratio, int tries) {
    enum { GUESSES = 3 };
    const int64_t guess = (int64_t)((double)tried * (shapes->deeper ? speed_ratio : cbrt(speed_ratio)));
    if (tries >= GUESSES || speed_ratio == 0.0)
        return between->good + (between->bad - between->good) / 2;
    return sw_max_i64(between->good + 1, sw_min_i64(between->bad - 1, guess));
}

/* A search among the sizes that fit. */
struct speed_search {
    struct shapes shapes;
    double least_tokens_per_s;
    int64_t most_ops; /* as for price_size */
    int most_tries;
};

/* Tries sizes, first `layers`, until the largest that is fast enough is known to a fraction of its layers. */
static sw_status find_fast(struct sw_sizing *s, const struct speed_search *search, int64_t layers,
                           struct bracket *between, struct sw_largest *out) {
    enum { SHARE = 24 };
    for (int tries = 1; between->bad - between->good > 1 + between->good / SHARE && tries <= search->most_tries;
         tries++) {
        struct sw_largest tried = {.limit = out->limit};
        struct size size;
        sw_status status = plan_size(s, &search->shapes, layers, &size);
        if (status == SW_OK && size.fits)
            status = price_size(&size.job, search->most_ops, &tried);
        sw_job_release(&size.job);
        SW_TRY(status);
        if (tried.tokens_per_s >= search->least_tokens_per_s) {
            *out = tried;
            between->good = layers;
        } else {
            out->limit = tried.tokens_per_s > 0.0 ? SW_LIMIT_SPEED : SW_LIMIT_OPS;
            between->bad = layers;
        }
        layers = next_layers(&search->shapes, between, layers, tried.tokens_per_s / search->least_tokens_per_s, tries);
    }
    return SW_OK;
}

/* Predicts the step of the result by the full search, as `plan` does. */
static sw_status predict_as_plan(struct sw_sizing *s, const struct speed_search *search, int64_t layers,
                                 struct sw_largest *out) {
    struct sw_largest found = {.limit = out->limit};
    struct size size;
    sw_status status = plan_size(s, &search->shapes, layers, &size);
    if (status == SW_OK && size.fits)
        status = price_size(&size.job, SW_SEARCH_OPS, &found);
    sw_job_release(&size.job);
    if (status == SW_OK && found.tokens_per_s > 0.0)
        *out = found;
    return status;
}

/* A search of each update's side finds a somewhat higher speed than the rough price, and perhaps a larger size. The
 * speed that it finds for the roughly largest size tells which size to try. */
static sw_status refine(struct sw_sizing *s, struct speed_search search, const struct bracket *rough,
                        struct sw_largest *out) {
    enum { TRIES = 2, DEEPER_TRIES = 3 };
    struct bracket between = {.bad = rough->bad};
    search.most_ops = SW_SEARCH_QUICK_OPS;
    search.most_tries = search.shapes.deeper ? DEEPER_TRIES : TRIES;
    SW_TRY(find_fast(s, &search, sw_max_i64(1, rough->good), &between, out));
    return out->tokens_per_s > 0.0 ? predict_as_plan(s, &search, between.good, out) : SW_OK;
}

/* Finds roughly the largest size of some shapes that is fast enough. least: layers known to be fast enough. */
static sw_status find_roughly(struct sw_sizing *s, const struct speed_search *search, int64_t least,
                              struct bracket *fast, struct sw_largest *out) {
    enum { DEEPER_PART = 4 };
    struct bracket fitting = {.good = least, .bad = SW_CONFIG_MAX_LAYERS + 1};
    SW_TRY(find_fitting(s, &search->shapes, &fitting, &out->limit));
    *fast = (struct bracket){.good = least, .bad = fitting.good + 1};
    SW_TRY(find_fast(s, search, fitting.good, fast, out));
    /* A search finds more speed than the rough price, and one more layer costs less than one step of width. */
    if (search->shapes.deeper)
        fast->bad = sw_min_i64(fitting.good + 1, fast->bad + fast->bad / DEEPER_PART);
    return SW_OK;
}

/* The device's memory limits the width, the other tiers limit the layers. So the width that the proportions give is
 * also searched with more layers. */
sw_status sw_sizing_find(struct sw_sizing *s, const struct sw_model_config *base, double least_tokens_per_s,
                         struct sw_largest *out) {
    struct speed_search search = {
        .shapes = {.base = base}, .least_tokens_per_s = least_tokens_per_s, .most_tries = INT_MAX};
    struct bracket fast, deep_fast;
    *out = (struct sw_largest){.limit = SW_LIMIT_SIZE};
    SW_TRY(find_roughly(s, &search, 0, &fast, out));
    if (out->config.layers == 0)
        return refine(s, search, &fast, out);
    const struct sw_model_config found = out->config;
    struct sw_largest deep = *out;
    struct speed_search deeper = search;
    deeper.shapes = (struct shapes){.base = &found, .deeper = true};
    SW_TRY(find_roughly(s, &deeper, found.layers, &deep_fast, &deep));
    if (deep.parameters <= out->parameters)
        return refine(s, search, &fast, out);
    *out = deep;
    return refine(s, deeper, &deep_fast, out);
}
