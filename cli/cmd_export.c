#include "cli/commands.h"
#include "cli/read_options.h"
#include "core/log.h"
#include "model/hf/checkpoint.h"
#include "model/merge.h"
#include "model/peft.h"
#include "run/folder/source.h"

struct exporter {
    const struct sw_read_options *given;
    struct sw_source *source;
    struct sw_merge *merge; /* NULL: nothing is merged */
};

static sw_status write_model(struct exporter *e, sw_dtype type, const struct sw_units *units,
                             const struct sw_load *from) {
    const struct sw_checkpoint_format format = {
        .type = type, .shard_bytes = e->given->shard_bytes, .turn_end = *sw_source_turn_end(e->source)};
    return sw_checkpoint_write(e->given->to, sw_source_config(e->source), units, &format, from,
                               sw_source_folder(e->source));
}

static sw_status write_merged(struct exporter *e, sw_dtype type, const struct sw_lora *lora) {
    const struct sw_merge_spec spec = {.config = sw_source_config(e->source),
                                       .lora = lora,
                                       .units = sw_source_units(e->source),
                                       .load = sw_source_load(e->source)};
    SW_TRY(sw_merge_open(&spec, &e->merge));
    const struct sw_load from = sw_merge_load(e->merge);
    return write_model(e, type, sw_merge_units(e->merge), &from);
}

static sw_status write_folder(void *context) {
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    struct exporter *e = context;
    const sw_dtype type = types[e->given->type];
    SW_TRY(sw_source_open_any(e->given->from, &(struct sw_run_moved){&e->given->nvme, e->given->model},
                              e->given->adapter, &e->source));
    const struct sw_lora *lora = &sw_source_tuning(e->source)->lora;
    const struct sw_load from = sw_source_load(e->source);
    if (e->given->merge && lora->rank == 0)
        return sw_fail(SW_ERR_ARG, "%s has no adapters to merge; leave out --merge, or give --adapter", e->given->from);
    if (e->given->merge)
        return write_merged(e, type, lora);
    if (lora->rank == 0)
        return write_model(e, type, sw_source_units(e->source), &from);
    const struct sw_peft_export adapters = {.config = sw_source_config(e->source),
                                            .units = sw_source_units(e->source),
                                            .from = &from,
                                            .lora = lora,
                                            .base = sw_source_model(e->source),
                                            .type = type};
    return sw_peft_write(e->given->to, &adapters);
}

static void close_source(void *context) {
    struct exporter *e = context;
    sw_merge_close(e->merge);
    sw_source_close(e->source);
    e->merge = NULL;
    e->source = NULL;
}

static sw_status run(const void *target) {
    struct exporter e = {.given = target};
    char lack[SW_RUN_MODEL_CHARS] = "";
    const sw_status status = sw_command_read_run(write_folder, close_source, &e);
    if (status == SW_OK) {
        const struct sw_run_model from = sw_source_small_files(e.source);
        const bool alone = sw_source_tuning(e.source)->lora.rank > 0 && !e.given->merge;
        sw_log_info("wrote %s%s", e.given->to,
                    alone ? ", which holds the adapters alone; --merge writes the whole model"
                          : sw_run_model_lack(e.given->to, &from, lack));
    }
    close_source(&e);
    return status;
}

int sw_command_export(int argc, char **argv) {
    struct sw_read_options given = {0};
    return sw_command_run(&sw_export_command, argc, argv, &given, run);
}
