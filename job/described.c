#include "job/described.h"

#include "core/files/json_file.h"
#include "core/files/nearest.h"
#include "core/number.h"
#include "core/size.h"
#include "job/machine/shipped_machines.h"
#include "job/rates.h"
#include "job/settings/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_LIMIT_BYTES ((size_t)1 << 20)
enum { NAMES_CHARS = 256 };
enum { VERSION = 2, MOST_TILE_ROWS = 1 << 16, MOST_DEVICES = 1024 };

static sw_status read_bytes(const json_t *object, const char *name, const char *path, int64_t *out) {
    static const double most = 0x1p62;
    double value;
    SW_TRY(sw_json_positive(object, name, path, false, &value));
    if (value < 1.0 || value > most)
        return sw_fail(SW_ERR_ARG, "%s: %s must be bytes that a machine may have", path, name);
    *out = (int64_t)value;
    return SW_OK;
}

static sw_status read_device(const json_t *object, const char *path, struct sw_device_description *out) {
    const char *name = json_string_value(json_object_get(object, "name"));
    if (name == NULL || name[0] == '\0' || strlen(name) >= sizeof out->name)
        return sw_fail(SW_ERR_ARG, "%s: the device's name must be a text of 1 to %zu characters", path,
                       sizeof out->name - 1);
    strcpy(out->name, name);
    double tile_rows = 0.0;
    const struct {
        const char *name;
        double *value;
        bool may_be_zero;
    } numbers[] = {{"memory_bytes_per_s", &out->memory_bytes_per_s, false},
                   {"fp32_flops_per_s", &out->product_flops_per_s[SW_F32], false},
                   {"tf32_flops_per_s", &out->tf32_flops_per_s, false},
                   {"bf16_flops_per_s", &out->product_flops_per_s[SW_BF16], false},
                   {"fp16_flops_per_s", &out->product_flops_per_s[SW_F16], false},
                   {"attention_forward_flops_per_s", &out->attention_forward_flops_per_s, false},
                   {"attention_backward_flops_per_s", &out->attention_backward_flops_per_s, false},
                   {"attention_tile_rows", &tile_rows, true},
                   {"op_s", &out->op_s, true}};
    const char *names[3 + sizeof numbers / sizeof numbers[0]] = {"name", "memory_bytes", "fp8_flops_per_s"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        names[3 + i] = numbers[i].name;
    SW_TRY(sw_json_refuse_unknown(object, path, "device", names, sizeof names / sizeof names[0]));
    SW_TRY(read_bytes(object, "memory_bytes", path, &out->memory_bytes));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        SW_TRY(sw_json_positive(object, numbers[i].name, path, numbers[i].may_be_zero, numbers[i].value));
    if (json_object_get(object, "fp8_flops_per_s") != NULL)
        SW_TRY(sw_json_positive(object, "fp8_flops_per_s", path, false, &out->fp8_flops_per_s));
    if (tile_rows > MOST_TILE_ROWS || tile_rows != floor(tile_rows))
        return sw_fail(SW_ERR_ARG, "%s: attention_tile_rows must be a whole number of at most %d", path,
                       (int)MOST_TILE_ROWS);
    out->attention_tile_rows = (int64_t)tile_rows;
    return SW_OK;
}

/* Reads what several nodes have, which a description may leave out. */
static sw_status read_node(const json_t *object, const char *path, struct sw_node *out) {
    static const char *const names[] = {"devices", "hop_s", "network_bytes_per_s", "network_hop_s"};
    double devices;
    if (object == NULL)
        return SW_OK;
    SW_TRY(sw_json_refuse_unknown(object, path, "node", names, sizeof names / sizeof names[0]));
    SW_TRY(sw_json_positive(object, "devices", path, false, &devices));
    if (devices > MOST_DEVICES || devices != floor(devices))
        return sw_fail(SW_ERR_ARG, "%s: devices must be a whole number of at most %d", path, (int)MOST_DEVICES);
    out->devices = (int64_t)devices;
    SW_TRY(sw_json_positive(object, "hop_s", path, true, &out->hop_s));
    SW_TRY(sw_json_positive(object, "network_bytes_per_s", path, false, &out->network_bytes_per_s));
    return sw_json_positive(object, "network_hop_s", path, true, &out->network_hop_s);
}

static sw_status from_json(const json_t *root, const char *path, struct sw_described_machine *out) {
    if (json_integer_value(json_object_get(root, "spillway_machine")) != VERSION)
        return sw_fail(SW_ERR_ARG, "%s does not describe a machine: it must have \"spillway_machine\": %d", path,
                       (int)VERSION);
    static const char *const names[] = {"spillway_machine", "about", "device", "host_bytes", "node", "rates"};
    SW_TRY(sw_json_refuse_unknown(root, path, "the machine", names, sizeof names / sizeof names[0]));
    SW_TRY(sw_rates_refuse_unknown(json_object_get(root, "rates"), path));
    SW_TRY(read_device(json_object_get(root, "device"), path, &out->device));
    SW_TRY(read_bytes(root, "host_bytes", path, &out->host_bytes));
    SW_TRY(read_node(json_object_get(root, "node"), path, &out->node));
    return sw_rates_from_json(json_object_get(root, "rates"), SW_RATES_ALL, path, &out->rates);
}

/* Replaces each assumed number below an object by its slow or its fast bound. Of seconds, the high ones are slow. */
static void take_bounds(json_t *object, bool fast) {
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, name, value) {
        const size_t length = strlen(name);
        const bool rate = length >= 6 && strcmp(name + length - 6, "_per_s") == 0;
        const bool seconds = !rate && length >= 2 && strcmp(name + length - 2, "_s") == 0;
        json_t *bound = json_object_get(value, fast == seconds ? "low" : "high");
        if (bound != NULL)
            json_object_set(object, name, bound);
        else
            take_bounds(value, fast);
    }
}

sw_status sw_described_machine_nodes(const struct sw_described_machine *machine, const char *path, int64_t ranks,
                                     int64_t *nodes) {
    const int64_t devices = machine->node.devices;
    if (*nodes == SW_OPTION_AUTO) {
        *nodes = devices > 0 ? sw_div_up(ranks, devices) : 1;
        while (ranks % *nodes != 0)
            ++*nodes;
    }
    if (devices == 0 && *nodes > 1)
        return sw_fail(SW_ERR_ARG, "%s does not describe the network of several nodes; give it a \"node\"", path);
    if (devices > 0 && ranks / *nodes > devices)
        return sw_fail(SW_ERR_ARG, "a node of %s has %s, and --ranks %lld on --nodes %lld needs %lld of each", path,
                       SW_COUNT(devices, "GPU"), (long long)ranks, (long long)*nodes, (long long)(ranks / *nodes));
    return SW_OK;
}

struct sw_node_ranks sw_described_node_ranks(const struct sw_settings *settings) {
    return (struct sw_node_ranks){.ranks = sw_settings_ranks(settings),
                                  .nodes = settings->nodes,
                                  .tensor_ranks = sw_settings_tensor_ranks(settings),
                                  .tensor_node_ranks = sw_settings_tensor_node_ranks(settings),
                                  .data_node_ranks = sw_settings_data_node_ranks(settings)};
}

sw_status sw_described_machine_rates(const struct sw_described_machine *machine, const struct sw_settings *settings,
                                     struct sw_model *model, struct sw_device *device, struct sw_machine_rates *out) {
    const struct sw_node_ranks job = sw_described_node_ranks(settings);
    struct sw_rates rates = machine->rates;
    sw_rates_over_nodes(&machine->node, &job, &rates);
    return sw_rates_describe(&rates, model, device, out);
}

static sw_status fail_unknown(const char *machine) {
    char names[NAMES_CHARS] = "";
    size_t used = 0;
    struct sw_nearest nearest = sw_nearest_begin(machine, strlen(machine));
    for (const struct sw_shipped_machine *m = sw_shipped_machines; m->name != NULL && used < sizeof names; m++) {
        sw_nearest_consider(&nearest, m->name);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", m->name);
    }
    const bool near = nearest.name != NULL;
    return sw_fail(SW_ERR_ARG, "--machine '%s' is neither a file nor a known machine (%s)%s%s%s", machine, names,
                   near ? "; did you mean " : "", near ? nearest.name : "", near ? "?" : "");
}

/* A name counts before a file of that name, which "./NAME" means. */
static sw_status read_json(const char *machine, json_t **out) {
    for (const struct sw_shipped_machine *m = sw_shipped_machines; m->name != NULL; m++)
        if (strcmp(machine, m->name) == 0)
            return sw_json_parse(m->text, machine, SW_ERR_ARG, out);
    if (access(machine, F_OK) != 0)
        return fail_unknown(machine);
    return sw_json_read_file(machine, FILE_LIMIT_BYTES, SW_ERR_ARG, out);
}

sw_status sw_described_machine_read(const char *machine, sw_machine_bound bound, struct sw_described_machine *out) {
    *out = (struct sw_described_machine){0};
    json_t *root = NULL;
    SW_TRY(read_json(machine, &root));
    sw_status status = from_json(root, machine, out);
    if (status == SW_OK && bound != SW_MACHINE_EXPECTED) {
        take_bounds(root, bound == SW_MACHINE_FAST);
        status = from_json(root, machine, out);
    }
    json_decref(root);
    return status;
}

sw_status sw_described_machine_devices(const struct sw_described_machine *machine, struct sw_devices *out) {
    SW_TRY(sw_devices_open(SW_DEVICE_CPU, 0, 0, out));
    const sw_status status = sw_device_open_described(&machine->device, &out->compute);
    if (status != SW_OK) {
        out->compute = out->host;
        sw_devices_close(out);
    }
    return status;
}
