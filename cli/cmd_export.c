#include "cli/commands.h"
#include "cli/read_options.h"
#include "core/log.h"
#include "model/hf/checkpoint.h"
#include "run/folder/source.h"

struct exporter {
    const struct sw_read_options *given;
    struct sw_source *source;
};

static sw_status write_folder(void *context) {
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    struct exporter *e = context;
    SW_TRY(sw_source_open_any(e->given->from, &(struct sw_run_moved){&e->given->nvme, e->given->model}, &e->source));
    const struct sw_checkpoint_format format = {.type = types[e->given->type],
                                                .shard_bytes = e->given->shard_bytes,
                                                .turn_end = *sw_source_turn_end(e->source)};
    const struct sw_load from = sw_source_load(e->source);
    return sw_checkpoint_write(e->given->to, sw_source_config(e->source), sw_source_units(e->source), &format, &from,
                               sw_source_folder(e->source));
}

static void close_source(void *context) {
    struct exporter *e = context;
    sw_source_close(e->source);
    e->source = NULL;
}

static sw_status run(const void *target) {
    struct exporter e = {.given = target};
    char lack[SW_RUN_MODEL_CHARS];
    const sw_status status = sw_command_read_run(write_folder, close_source, &e);
    if (status == SW_OK) {
        const struct sw_run_model from = sw_source_small_files(e.source);
        sw_log_info("wrote %s%s", e.given->to, sw_run_model_lack(e.given->to, &from, lack));
    }
    close_source(&e);
    return status;
}

int sw_command_export(int argc, char **argv) {
    struct sw_read_options given = {0};
    return sw_command_run(&sw_export_command, argc, argv, &given, run);
}
