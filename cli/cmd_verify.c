#include "cli/commands.h"
#include "cli/read_options.h"
#include "core/size.h"
#include "io/store/store.h"
#include "run/folder/frozen.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/reference.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { ADVICE_CHARS = 128 };

struct verification {
    const struct sw_read_options *given;
    struct sw_state_reader *run;
    const struct sw_open_stores *stores; /* this and the members below belong to `run` */
    const struct sw_units *units;
    struct sw_frozen *frozen; /* NULL: every unit is trained */
    const char *state;        /* what is being read: "optimizer", or "weights" of frozen units */
    int64_t grains, bad;      /* of the stores */
    int64_t frozen_grains, frozen_bad;
    json_t *bad_grains;
    json_t *bad_files; /* of the run's copies of the model's files */
};

static const char *reason(const struct sw_store_bad_grain *bad) {
    return bad->error == 0 ? "wrong checksum" : strerror(bad->error);
}

static void on_bad(void *context, const struct sw_store_bad_grain *bad) {
    struct verification *v = context;
    if (v->given->json)
        json_array_append_new(v->bad_grains,
                              json_pack("{s:I, s:I, s:s, s:s, s:I, s:s, s:s?}", "unit", (json_int_t)bad->unit, "grain",
                                        (json_int_t)bad->grain, "state", v->state, "file", bad->path, "offset",
                                        (json_int_t)bad->offset_bytes, "reason", reason(bad), "tensor", bad->tensor));
    else
        printf("grain %lld of unit %lld (%s%s%s) at offset %lld of %s: %s\n", (long long)bad->grain,
               (long long)bad->unit, v->state, bad->tensor != NULL ? ", " : "", bad->tensor != NULL ? bad->tensor : "",
               (long long)bad->offset_bytes, bad->path, reason(bad));
}

static sw_status open_stores(struct verification *v) {
    struct sw_run run = {0};
    const struct sw_run_moved moved = {&v->given->nvme, v->given->model};
    sw_status status = sw_state_open_run(v->given->from, &moved, &run, &v->run);
    if (status == SW_OK) {
        v->stores = sw_state_stores(v->run);
        v->units = sw_state_units(v->run);
        v->frozen = sw_state_frozen(v->run);
        status = sw_reference_check(v->given->from, &run);
    }
    v->bad_files = status == SW_OK ? sw_run_damaged_copies(v->given->from, run.model_files) : NULL;
    if (status == SW_OK && v->bad_files == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to read the files of the model that the run keeps");
    sw_run_release(&run);
    return status;
}

static void describe_bad_records(const struct sw_store *store, json_t *list) {
    const struct sw_store_bad_record *bad;
    const int count = sw_store_bad_records(store, &bad);
    static const char *const losses[] = {
        [SW_STORE_RECORD_HARMLESS] = "harmless", [SW_STORE_RECORD_LOST] = "lost", [SW_STORE_RECORD_UNSURE] = "unsure"};
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:s, s:I}", "file", bad[i].path, "offset",
                                              (json_int_t)bad[i].offset_bytes, "loss", losses[bad[i].loss], "step",
                                              (json_int_t)bad[i].step));
}

/* Counts damaged commit records of commits after the opened one that are or may be lost. */
static int count_lost(const struct sw_store *store) {
    const struct sw_store_bad_record *bad;
    const int count = sw_store_bad_records(store, &bad);
    int lost = 0;
    for (int i = 0; i < count; i++)
        lost += bad[i].loss != SW_STORE_RECORD_HARMLESS;
    return lost;
}

static sw_status print_json(const struct verification *v, long long step, int64_t bytes) {
    json_t *bad_records = json_array();
    for (int s = 0; s < v->stores->count; s++)
        describe_bad_records(v->stores->store[s], bad_records);
    json_t *root = json_pack("{s:I, s:I, s:I, s:O, s:o, s:O}", "step", (json_int_t)step, "grains",
                             (json_int_t)(v->grains + v->frozen_grains), "bytes", (json_int_t)bytes, "bad",
                             v->bad_grains, "bad_records", bad_records, "bad_files", v->bad_files);
    return sw_command_print_json(root);
}

static sw_status report_bad(const struct verification *v, long long step) {
    char previous[ADVICE_CHARS] = "";
    int64_t before = SW_STORE_NEWEST;
    for (int s = 0; s < v->stores->count; s++)
        before = sw_min_i64(before, sw_store_previous_step(v->stores->store[s]));
    if (before >= 0)
        snprintf(previous, sizeof previous,
                 "resume --previous goes back to step %lld if that is still whole, otherwise ", (long long)before);
    return sw_fail(SW_ERR_CORRUPT,
                   "%lld of the %s of the last commit (step %lld) %s bad: %sgo back to an export or another copy",
                   (long long)v->bad, SW_COUNT(v->grains, "grain"), step, v->bad == 1 ? "is" : "are", previous);
}

/* Frozen weights never change, so any undamaged copy of them will do. */
static sw_status report_bad_frozen(const struct verification *v) {
    const char *base = sw_frozen_base(v->frozen);
    if (base != NULL)
        return sw_fail(SW_ERR_CORRUPT,
                       "%lld of the %s of frozen weights, which the run reads from %s, %s bad: put its files back as "
                       "they were, or name a whole copy of the model by --model DIR",
                       (long long)v->frozen_bad, SW_COUNT(v->frozen_grains, "grain"), base,
                       v->frozen_bad == 1 ? "is" : "are");
    return sw_fail(SW_ERR_CORRUPT,
                   "%lld of the %s of frozen weights %s bad: restore %s/" SW_FROZEN_NAME " from any copy of the run",
                   (long long)v->frozen_bad, SW_COUNT(v->frozen_grains, "grain"), v->frozen_bad == 1 ? "is" : "are",
                   v->given->from);
}

/* The files never change, so those of any undamaged copy of the run will do. */
static sw_status report_bad_files(const struct verification *v) {
    const json_t *first = json_array_get(v->bad_files, 0);
    const int more = (int)json_array_size(v->bad_files) - 1;
    return sw_fail(SW_ERR_CORRUPT,
                   "%s, a file of the model that the run keeps, is damaged (%s)%s; restore it from any copy of the run",
                   json_string_value(json_object_get(first, "file")),
                   json_string_value(json_object_get(first, "reason")), more > 0 ? ", and others are" : "");
}

static sw_status report(const struct verification *v) {
    const long long step = (long long)sw_store_last_commit(v->stores->store[0])->step;
    int64_t bytes = sw_frozen_bytes(v->frozen);
    for (int s = 0; s < v->stores->count; s++)
        bytes += sw_store_generation_bytes(v->stores->store[s]);
    char size[SW_SIZE_CHARS];
    if (v->given->json)
        SW_TRY(print_json(v, step, bytes));
    if (v->bad > 0)
        return report_bad(v, step);
    if (v->frozen_bad > 0)
        return report_bad_frozen(v);
    if (json_array_size(v->bad_files) > 0)
        return report_bad_files(v);
    int lost = 0;
    for (int s = 0; s < v->stores->count; s++)
        lost += count_lost(v->stores->store[s]);
    if (lost > 0)
        return sw_fail(SW_ERR_CORRUPT,
                       "all %lld grains of step %lld are as they were written, but the record of a later commit is "
                       "damaged: resume goes on from step %lld",
                       (long long)v->grains, step, step);
    if (!v->given->json)
        printf("step %lld: all %lld grains (%s) are as they were written\n", step,
               (long long)(v->grains + v->frozen_grains), sw_format_size(bytes, size));
    return SW_OK;
}

static sw_status read_stores(void *context) {
    struct verification *v = context;
    const struct sw_store_verifier verifier = {.bad = on_bad, .context = v};
    SW_TRY(open_stores(v));
    v->state = sw_state_name(SW_OPTIMIZER);
    for (int s = 0; s < v->stores->count; s++) {
        int64_t grains, bad;
        SW_TRY(sw_store_verify(v->stores->store[s], &verifier, &grains, &bad));
        v->grains += grains;
        v->bad += bad;
    }
    v->state = sw_state_name(SW_WEIGHTS);
    return sw_frozen_verify(v->frozen, &verifier, &v->frozen_grains, &v->frozen_bad);
}

static void end_reading(void *context) {
    struct verification *v = context;
    sw_state_close(v->run);
    json_decref(v->bad_files);
    v->run = NULL;
    v->bad_files = NULL;
    v->grains = v->bad = v->frozen_grains = v->frozen_bad = 0;
    json_array_clear(v->bad_grains);
}

static sw_status run(const void *given) {
    struct verification v = {.given = given, .bad_grains = json_array()};
    sw_status status = sw_command_read_run(read_stores, end_reading, &v);
    if (status == SW_OK)
        status = report(&v);
    end_reading(&v);
    json_decref(v.bad_grains);
    return status;
}

int sw_command_verify(int argc, char **argv) {
    struct sw_read_options given = {0};
    return sw_command_run(&sw_verify_command, argc, argv, &given, run);
}
