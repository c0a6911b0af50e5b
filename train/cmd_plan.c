#include "core/size.h"
#include "train/commands.h"
#include "train/trainer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct planned {
    struct sw_settings settings;
    struct sw_model_config config;
    struct sw_device *device;
    struct sw_model *model;
    struct sw_plan *plan;
};

static sw_status make_plan(struct planned *p) {
    SW_TRY(sw_config_load(p->settings.model, &p->config));
    SW_TRY(sw_settings_check(&p->settings));
    SW_TRY(sw_trainer_device(&p->settings, &p->device));
    const struct sw_device_info info = sw_device_info(p->device);
    SW_TRY(sw_settings_resolve(&p->settings, &p->config, &info));
    const struct sw_model_shape shape = {
        .type = sw_settings_type(&p->settings), .batch = p->settings.micro_batch, .seq = p->settings.seq};
    SW_TRY(sw_model_create(&p->config, &shape, p->device, &p->model));
    return sw_trainer_plan(&p->settings, p->model, &p->plan);
}

static void print_text(const struct planned *p) {
    const struct sw_settings *s = &p->settings;
    printf("%s: %lld parameters, %lld tokens a step in micro-batches of %lld x %lld, %s\n", s->model,
           (long long)sw_units_parameters(sw_model_get_units(p->model)), (long long)s->batch_tokens,
           (long long)s->micro_batch, (long long)s->seq, sw_dtype_name(sw_settings_type(s)));
    sw_plan_print(p->plan, stdout);
}

static json_t *lanes_json(const struct sw_plan *plan) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    json_t *lanes = json_object();
    for (int lane = 0; lane < SW_LANES; lane++) {
        json_int_t bytes = 0;
        for (int32_t i = 0; i < program->lane_count[lane]; i++)
            bytes += program->op[program->lane_op[lane][i]].bytes;
        json_object_set_new(lanes, sw_lane_name((sw_lane)lane),
                            json_pack("{s:i, s:I}", "ops", program->lane_count[lane], "bytes", bytes));
    }
    return lanes;
}

static json_t *placement_json(const struct sw_plan *plan) {
    json_t *placement = json_object();
    for (int state = SW_WEIGHTS; state < SW_STATES; state++) {
        json_t *tiers = json_array();
        for (int64_t u = 0; u < plan->spec.units->count; u++)
            json_array_append_new(tiers, json_string(sw_tier_name(plan->placement[u].tier[state])));
        json_object_set_new(placement, sw_state_name((sw_state)state), tiers);
    }
    return placement;
}

static json_t *recompute_json(const struct sw_plan *plan) {
    json_t *units = json_array();
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->recompute[u])
            json_array_append_new(units, json_integer((json_int_t)u));
    return units;
}

static sw_status print_json(const struct planned *p) {
    const struct sw_plan *plan = p->plan;
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:b, s:I, s:{s:I, s:I, s:I}, s:o, s:o, s:i, s:i}", "model",
        p->settings.model, "parameters", (json_int_t)sw_units_parameters(sw_model_get_units(p->model)), "batch_tokens",
        (json_int_t)p->settings.batch_tokens, "micro_batch", (json_int_t)p->settings.micro_batch, "seq",
        (json_int_t)p->settings.seq, "precision", sw_dtype_name(sw_settings_type(&p->settings)), "recomputed_blocks",
        recompute_json(plan), "commit_every_step", plan->commit_every_step, "store_bytes",
        (json_int_t)sw_plan_store_bytes(plan), "peak_bytes", "device", (json_int_t)plan->tier_bytes[SW_DEVICE], "host",
        (json_int_t)plan->tier_bytes[SW_HOST], "nvme", (json_int_t)plan->tier_bytes[SW_NVME], "placement",
        placement_json(plan), "lanes", lanes_json(plan), "ops", plan->program[SW_PROGRAM_UPDATE].op_count, "waits",
        plan->program[SW_PROGRAM_UPDATE].wait_count);
    if (root == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to print the plan");
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return SW_OK;
}

int sw_command_plan(int argc, char **argv) {
    struct planned p = {0};
    int code;
    if (sw_command_parse(&sw_plan_command, argc, argv, &p.settings, &code)) {
        sw_status status = make_plan(&p);
        if (status == SW_OK && p.settings.json)
            status = print_json(&p);
        else if (status == SW_OK)
            print_text(&p);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail("plan", status);
        sw_plan_destroy(p.plan);
        sw_model_destroy(p.model);
        if (p.device != NULL)
            sw_device_close(p.device);
    }
    sw_options_release(&sw_plan_command, &p.settings);
    return code;
}
