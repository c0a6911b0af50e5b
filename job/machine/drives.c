#include "job/machine/drives.h"

#include "core/machine.h"
#include "core/status.h"
#include "job/machine/devices.h"

#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>

/* Limits how many device mappings, or overlays, may be stacked. */
enum { MOST_LEVELS = 8 };

/* Cuts "none [mq-deadline] bfq" to the word in brackets. A single word stays. */
static void chosen_word(char *text) {
    char *start = strchr(text, '[');
    if (start == NULL)
        return;
    start++;
    const size_t length = strcspn(start, "]");
    memmove(text, start, length);
    text[length] = '\0';
}

static void add_drive(const char *folder, struct sw_drives *out) {
    const char *name = strrchr(folder, '/') + 1;
    for (int i = 0; i < out->count; i++)
        if (strcmp(out->drive[i].name, name) == 0)
            return;
    if (out->count == SW_DRIVES_MAX)
        return;
    struct sw_drive *drive = &out->drive[out->count++];
    *drive = (struct sw_drive){.rotational = (int)sw_system_number("", "%s/queue/rotational", folder)};
    snprintf(drive->name, sizeof drive->name, "%.*s", SW_DRIVE_CHARS - 1, name);
    sw_system_line("", drive->model, sizeof drive->model, "%s/device/model", folder);
    sw_system_line("", drive->scheduler, sizeof drive->scheduler, "%s/queue/scheduler", folder);
    sw_system_line("", drive->write_cache, sizeof drive->write_cache, "%s/queue/write_cache", folder);
    for (size_t end = strlen(drive->model); end > 0 && drive->model[end - 1] == ' '; end--)
        drive->model[end - 1] = '\0';
    chosen_word(drive->scheduler);
}

/* Adds the whole drives below a block device. `link` is its folder in /sys. */
static void descend(const char *link, int levels, struct sw_drives *out) {
    char folder[PATH_MAX], pattern[PATH_MAX + 16];
    glob_t below;
    if (levels == 0 || realpath(link, folder) == NULL)
        return;
    if (sw_system_number("", "%s/partition", folder) >= 0)
        *strrchr(folder, '/') = '\0';
    snprintf(pattern, sizeof pattern, "%s/slaves/*", folder);
    if (glob(pattern, 0, NULL, &below) != 0) {
        add_drive(folder, out);
        return;
    }
    for (size_t i = 0; i < below.gl_pathc; i++)
        descend(below.gl_pathv[i], levels - 1, out);
    globfree(&below);
}

void sw_drives_of_device(const char *root, dev_t device, struct sw_drives *out) {
    char path[PATH_MAX];
    *out = (struct sw_drives){0};
    snprintf(path, sizeof path, "%s/sys/dev/block/%u:%u", root, major(device), minor(device));
    descend(path, MOST_LEVELS, out);
}

void sw_drives_of_btrfs(const char *root, const char *name, struct sw_drives *out) {
    char pattern[PATH_MAX];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/sys/fs/btrfs/*/devices/%s", root, name);
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    *strrchr(found.gl_pathv[0], '/') = '\0';
    snprintf(pattern, sizeof pattern, "%s/*", found.gl_pathv[0]);
    globfree(&found);
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        descend(found.gl_pathv[i], MOST_LEVELS, out);
    globfree(&found);
}

/* Decodes characters such as spaces, which mountinfo writes as \ and three octal digits. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        unsigned code;
        if (*from == '\\' && sscanf(from + 1, "%3o", &code) == 1) {
            *to = (char)code;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

static void read_upper(const char *options, struct sw_mount *out) {
    static const char key[] = "upperdir=";
    const char *start = strstr(options, key);
    if (start == NULL)
        return;
    start += sizeof key - 1;
    snprintf(out->upper, sizeof out->upper, "%.*s", (int)strcspn(start, ","), start);
    unescape(out->upper);
}

/* Parses a line "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS". */
static bool parse_mount(char *line, uint64_t id, struct sw_mount *out) {
    char *rest, *options = NULL;
    if (strtoull(line, NULL, 10) != id || (rest = strstr(line, " - ")) == NULL)
        return false;
    char *type = strtok_r(rest + 3, " \n", &options), *source = strtok_r(NULL, " \n", &options);
    if (type == NULL || source == NULL)
        return false;
    *out = (struct sw_mount){0};
    snprintf(out->type, sizeof out->type, "%s", type);
    snprintf(out->source, sizeof out->source, "%s", source);
    unescape(out->source);
    read_upper(options, out);
    return true;
}

bool sw_mount_find(const char *root, uint64_t id, struct sw_mount *out) {
    char path[PATH_MAX], *line = NULL;
    size_t capacity = 0;
    bool found = false;
    *out = (struct sw_mount){0};
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && getline(&line, &capacity, file) > 0)
        found = parse_mount(line, id, out);
    free(line);
    if (file != NULL)
        fclose(file);
    return found;
}

/* Adds the drives of a mounted device, for a file system that has several drives or no device number of its own. */
static void drives_of_source(const char *root, const struct sw_mount *mount, struct sw_drives *out) {
    struct stat info;
    if (mount->source[0] != '/' || stat(mount->source, &info) != 0 || !S_ISBLK(info.st_mode))
        return;
    if (strcmp(mount->type, "btrfs") == 0)
        sw_drives_of_btrfs(root, strrchr(mount->source, '/') + 1, out);
    if (out->count == 0)
        sw_drives_of_device(root, info.st_rdev, out);
}

void sw_drives_of_folder(const char *root, const char *folder, struct sw_mount *out_mount, struct sw_drives *out) {
    struct sw_mount mount = {0};
    struct statx info;
    char below[SW_SOURCE_CHARS];
    snprintf(below, sizeof below, "%s", folder);
    *out_mount = mount;
    *out = (struct sw_drives){0};
    for (int level = 0; level < MOST_LEVELS && out->count == 0; level++) {
        if (statx(AT_FDCWD, below, 0, STATX_BASIC_STATS | STATX_MNT_ID, &info) != 0)
            return;
        if ((info.stx_mask & STATX_MNT_ID) != 0)
            sw_mount_find(root, info.stx_mnt_id, &mount);
        if (level == 0)
            *out_mount = mount;
        sw_drives_of_device(root, makedev(info.stx_dev_major, info.stx_dev_minor), out);
        if (out->count == 0)
            drives_of_source(root, &mount, out);
        if (mount.upper[0] == '\0')
            return;
        memcpy(below, mount.upper, sizeof below);
        mount = (struct sw_mount){0};
    }
}

/* Returns null for an empty text, which the system does not tell. */
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

/* Describes the drives of one folder or block device of the store. */
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
