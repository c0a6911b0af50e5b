#include "run/agreement.h"

#include "core/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FLAG_CHARS = 64, GPU_CHARS = 128 };

#define SAME_FLAGS "start all ranks with the same flags"

/* Turns "micro_batch" into "--micro-batch". */
static const char *flag_of(const char *key, char flag[FLAG_CHARS]) {
    snprintf(flag, FLAG_CHARS, "--%s", key);
    for (char *at = flag; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    return flag;
}

/* The flags of a command, as claims. */
struct flag_claims {
    struct sw_comm_claim *claim;
    char (*flag)[FLAG_CHARS];
    int count;
};

static void free_flag_claims(struct flag_claims *flags) {
    for (int i = 0; i < flags->count; i++)
        free((char *)flags->claim[i].value);
    free(flags->claim);
    free(flags->flag);
}

static sw_status state_flags(json_t *values, struct flag_claims *out) {
    const char *key;
    json_t *value;
    const size_t count = json_object_size(values);
    *out = (struct flag_claims){.claim = calloc(count, sizeof *out->claim), .flag = calloc(count, sizeof *out->flag)};
    if (out->claim == NULL || out->flag == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to compare flags");
    json_object_foreach(values, key, value) {
        char *text = sw_json_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (text == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to compare flags");
        out->claim[out->count] = (struct sw_comm_claim){.kind = SW_CLAIM_EQUAL,
                                                        .what = flag_of(key, out->flag[out->count]),
                                                        .remedy = SAME_FLAGS,
                                                        .value = text,
                                                        .bytes = (int64_t)strlen(text)};
        out->count++;
    }
    return SW_OK;
}

sw_status sw_agree_on_settings(struct sw_ranks *ranks, const struct sw_settings *settings) {
    json_t *values = NULL;
    struct flag_claims flags = {0};
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    sw_status status = sw_options_common_json(&sw_train_command, settings, &values);
    if (status == SW_OK)
        status = state_flags(values, &flags);
    status = sw_ranks_agree_on_error(ranks, status);
    if (status == SW_OK)
        status = sw_ranks_agree(ranks, flags.claim, flags.count);
    free_flag_claims(&flags);
    json_decref(values);
    return status;
}

static sw_status agree_on_run(struct sw_trainer *trainer, const char *config) {
    const uint64_t data = sw_data_digest(trainer->data);
    const int64_t weights = trainer->source != NULL ? sw_source_bytes_to_read(trainer->source) : 0;
    const char *device = sw_devices_info(&trainer->job.devices).name;
    const struct sw_comm_claim claims[] = {
        {.what = "run folder",
         .remedy = SAME_FLAGS,
         .value = trainer->folder,
         .bytes = (int64_t)strlen(trainer->folder)},
        {.what = "model", .remedy = "give all ranks the same one", .value = config, .bytes = (int64_t)strlen(config)},
        {.what = "file of weights",
         .remedy = "give all ranks the same one",
         .value = &weights,
         .bytes = sizeof weights},
        {.what = "text in --data or --val",
         .remedy = "give all ranks the same files",
         .value = &data,
         .bytes = sizeof data},
        {.what = "kind of device", .remedy = "name one by --device", .value = device, .bytes = (int64_t)strlen(device)},
    };
    return sw_ranks_agree(trainer->ranks, claims, sizeof claims / sizeof claims[0]);
}

/* Checks that no two ranks have the same GPU. A bus address identifies a GPU only together with the machine's name. */
static sw_status agree_on_gpus(struct sw_trainer *trainer) {
    const char *bus = sw_devices_info(&trainer->job.devices).bus;
    char gpu[GPU_CHARS] = "";
    if (bus != NULL && bus[0] != '\0' && !trainer->run.settings.allow_shared_gpu)
        snprintf(gpu, sizeof gpu, "%s of %s", bus, sw_comm_identity(trainer->ranks->comm)->host);
    const struct sw_comm_claim claim = {
        .kind = SW_CLAIM_DISTINCT,
        .what = "GPU",
        .shown = gpu,
        .remedy = "start at most as many ranks on a machine as it has GPUs, or say --allow-shared-gpu",
        .value = gpu[0] != '\0' ? gpu : NULL,
        .bytes = (int64_t)strlen(gpu)};
    return sw_ranks_agree(trainer->ranks, &claim, 1);
}

sw_status sw_agree_on_inputs(struct sw_trainer *trainer) {
    char *config = NULL;
    if (sw_ranks_count(trainer->ranks) == 1)
        return SW_OK;
    sw_status status = sw_ranks_agree_on_error(trainer->ranks, sw_config_to_json(&trainer->run.config, &config));
    if (status == SW_OK)
        status = agree_on_run(trainer, config);
    free(config);
    SW_TRY(status);
    SW_TRY(agree_on_gpus(trainer));
    struct sw_settings *settings = &trainer->run.settings;
    int64_t budgets[] = {settings->device_memory, settings->host_memory};
    SW_TRY(sw_ranks_least(trainer->ranks, budgets, 2));
    settings->device_memory = budgets[0];
    settings->host_memory = budgets[1];
    return SW_OK;
}

/* Returns a digest of a plan's collectives, in their order. */
static uint64_t digest_of(const struct sw_plan *plan) {
    uint64_t digest = (uint64_t)plan->spec.type;
    for (int p = 0; p < SW_PROGRAMS; p++) {
        const struct sw_program *program = &plan->program[p];
        for (int32_t i = 0; program->op_count > 0 && i < program->lane_count[SW_LANE_COMM]; i++) {
            const struct sw_op *op = &program->op[program->lane_op[SW_LANE_COMM][i]];
            const int32_t what[] = {p,        (int32_t)op->kind, (int32_t)op->content,
                                    op->unit, op->chunk,         op->bucket + 2 * op->secondary};
            digest = XXH3_64bits_withSeed(what, sizeof what, digest);
        }
    }
    return digest;
}

/* Compares the collectives of the ranks of each stage, and what stages must have in common: the passes of
 * micro-batches. */
static sw_status agree_on_stages(struct sw_ranks *ranks, const struct sw_plan *plan, uint64_t digest) {
    const int64_t common[] = {plan->spec.zero, plan->spec.micro_batches, plan->spec.group};
    const struct sw_comm_claim claims[] = {
        {.what = "ZeRO stage or order", .remedy = "name --zero and --order", .value = common, .bytes = sizeof common},
    };
    void *all;
    sw_status status = SW_OK;
    SW_TRY(sw_ranks_agree(ranks, claims, sizeof claims / sizeof claims[0]));
    SW_TRY(sw_ranks_collect(ranks, "plans", &digest, sizeof digest, &all));
    const int first = sw_ranks_rank(ranks) / sw_plan_stage_ranks(plan) * sw_plan_stage_ranks(plan);
    if (((const uint64_t *)all)[first] != digest)
        status = sw_fail(SW_ERR_ARG,
                         "rank %d has another plan than rank %d of the same stage; name --precision, --place and "
                         "--update, so that different machines choose alike",
                         sw_ranks_rank(ranks), first);
    free(all);
    return sw_ranks_agree_on_error(ranks, status);
}

sw_status sw_agree_on_plan(struct sw_trainer *trainer) {
    const struct sw_plan *plan = trainer->job.plan;
    const uint64_t digest = digest_of(plan);
    if (sw_plan_stages(plan) > 1)
        return agree_on_stages(trainer->ranks, plan, digest);
    const struct sw_comm_claim claim = {
        .what = "plan",
        .remedy = "name --precision, --place and --update, so that different machines choose alike",
        .value = &digest,
        .bytes = sizeof digest};
    return sw_ranks_agree(trainer->ranks, &claim, 1);
}
