#include "job/machine/machine_record.h"

#include "core/error_scope.h"
#include "core/machine.h"
#include "core/status.h"
#include "job/machine/driver_version.h"
#include "job/machine/drives.h"

#include <sys/stat.h>
#include <sys/utsname.h>

/* Returns null for a text that the system does not tell. */
static json_t *text_or_null(const char *text) {
    json_t *made = text != NULL && text[0] != '\0' ? json_string(text) : NULL;
    return made != NULL ? made : json_null();
}

static json_t *number_or_null(int64_t number) {
    return number > 0 ? json_integer(number) : json_null();
}

/* Adds what the system tells about processor and memory. */
static void add_host(json_t *to) {
    SW_HANDLES_ERRORS();
    struct sw_machine machine;
    struct utsname system;
    const bool known = sw_machine_read(&machine) == SW_OK;
    if (!known)
        machine = (struct sw_machine){.cores = sw_machine_cores()};
    json_object_set_new(to, "cpu", text_or_null(machine.cpu));
    json_object_set_new(to, "cores", number_or_null(machine.cores));
    json_object_set_new(to, "all_cores", number_or_null(machine.all_cores));
    json_object_set_new(to, "physical_cores", number_or_null(machine.physical_cores));
    json_object_set_new(to, "numa_nodes", number_or_null(machine.numa_nodes));
    json_object_set_new(to, "memory_bytes", number_or_null(machine.memory_bytes));
    json_object_set_new(to, "kernel", text_or_null(uname(&system) == 0 ? system.release : NULL));
}

static json_t *gpu_of(const struct sw_device_info *device) {
    char driver[SW_DRIVER_VERSION_CHARS];
    if (device->host_memory)
        return json_null();
    sw_driver_version("", driver);
    return json_pack("{s:o, s:s, s:o}", "name", text_or_null(device->model), "isa", device->isa, "driver",
                     text_or_null(driver));
}

/* Returns what is behind one folder or block device of the store. */
static json_t *place_of(const char *path) {
    struct sw_mount mount = {0};
    struct sw_drives drives;
    struct stat info;
    const bool is_device = stat(path, &info) == 0 && S_ISBLK(info.st_mode);
    if (is_device)
        sw_drives_of_device("", info.st_rdev, &drives);
    else
        sw_drives_of_folder("", path, &mount, &drives);
    json_t *list = json_array();
    for (int i = 0; i < drives.count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o}", "name", text_or_null(drives.drive[i].name), "model",
                                              text_or_null(drives.drive[i].model)));
    return json_pack("{s:o, s:o}", "file_system", text_or_null(is_device ? "none" : mount.type), "drives", list);
}

/* Lists the precisions whose bits are the same for every number of threads. */
static json_t *exact_precisions(const struct sw_device_info *device) {
    json_t *list = json_array();
    for (int type = 0; type < SW_DTYPES; type++)
        if (device->threads_keep_bits[type])
            json_array_append_new(list, json_string(sw_dtype_name((sw_dtype)type)));
    return list;
}

json_t *sw_machine_record(const struct sw_device_info *device, const char *const *places, int place_count) {
    json_t *made = json_object(), *list = json_array();
    add_host(made);
    json_object_set_new(made, "device", text_or_null(device->isa));
    json_object_set_new(made, "same_bits_for_all_threads", exact_precisions(device));
    json_object_set_new(made, "gpu", gpu_of(device));
    for (int i = 0; i < place_count; i++)
        json_array_append_new(list, place_of(places[i]));
    json_object_set_new(made, "store", list);
    return made;
}
