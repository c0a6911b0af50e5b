#include "core/log.h"
#include "train/cli/commands.h"
#include "train/folder/source.h"
#include "train/hf/checkpoint.h"

struct export_options {
    char *from, *to;
    int type;
    int64_t shard_bytes;
    struct sw_option_list nvme;
};

#define AT(member) .offset = offsetof(struct export_options, member)
static const struct sw_option options[] = {
    {.name = "DIR",
     .kind = SW_OPTION_STRING,
     AT(from),
     .what = "folder of a run, or a Hugging Face folder",
     .required = true},
    {.name = "OUT", .kind = SW_OPTION_STRING, AT(to), .what = "folder to write: new, or empty", .required = true},
    {.name = "--dtype",
     .kind = SW_OPTION_CHOICE,
     AT(type),
     .initial = "f32",
     .choices = "f32|bf16|f16",
     .what = "type of the tensors"},
    {.name = "--shard-size",
     .kind = SW_OPTION_SIZE,
     AT(shard_bytes),
     .initial = "5GiB",
     .value = "SIZE",
     .what = "of one file; weights of more are written as several, and an index",
     .int_min = 1},
    SW_OPTION_STORE_MOVED(AT(nvme)),
};
static const struct sw_command_line line = {.command = "export",
                                            .summary = "write the weights of the last commit as a Hugging Face folder",
                                            .options = options,
                                            .option_count = sizeof options / sizeof options[0]};

struct exporter {
    const struct export_options *given;
    struct sw_source *source;
};

static sw_status write_folder(void *context) {
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    struct exporter *e = context;
    SW_TRY(sw_source_open_any(e->given->from, &e->given->nvme, &e->source));
    const struct sw_checkpoint_format format = {.type = types[e->given->type], .shard_bytes = e->given->shard_bytes};
    const struct sw_load from = sw_source_load(e->source);
    return sw_checkpoint_write(e->given->to, sw_source_config(e->source), sw_source_units(e->source), &format, &from,
                               sw_source_folder(e->source));
}

static void close_source(void *context) {
    struct exporter *e = context;
    sw_source_close(e->source);
    e->source = NULL;
}

int sw_command_export(int argc, char **argv) {
    struct export_options given = {0};
    int code;
    if (sw_command_parse(&line, argc, argv, &given, &code)) {
        struct exporter e = {.given = &given};
        const sw_status status = sw_command_read_run(write_folder, close_source, &e);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(line.command, status);
        if (status == SW_OK)
            sw_log_info("wrote %s", given.to);
        close_source(&e);
    }
    sw_options_release(&line, &given);
    return code;
}
