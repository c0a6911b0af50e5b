#include "tests/e2e/callers.h"

#include <execinfo.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MOST_OBJECTS = 128 };

static struct object objects[MOST_OBJECTS];
static int object_count;

static bool is_runtime(const char *name, uintptr_t begin, uintptr_t end) {
    static const char *const runtimes[] = {"/libc.so", "/libc-", "/ld-linux", "/libstdc++", "/libgcc_s", "/libpthread"};
    const uintptr_t own = (uintptr_t)(void *)is_runtime;
    bool runtime = own >= begin && own < end;
    for (size_t i = 0; i < sizeof runtimes / sizeof runtimes[0]; i++)
        runtime |= strstr(name, runtimes[i]) != NULL;
    return runtime;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    (void)context;
    struct object object = {.base = info->dlpi_addr, .begin = UINTPTR_MAX};
    snprintf(object.name, sizeof object.name, "%s", info->dlpi_name);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + header->p_vaddr, end = begin + header->p_memsz;
        if (header->p_type != PT_LOAD)
            continue;
        object.begin = begin < object.begin ? begin : object.begin;
        object.end = end > object.end ? end : object.end;
    }
    object.runtime = is_runtime(object.name, object.begin, object.end);
    if (object_count < MOST_OBJECTS)
        objects[object_count++] = object;
    return 0;
}

static const struct object *object_at(uintptr_t address) {
    for (int i = 0; i < object_count; i++)
        if (address >= objects[i].begin && address < objects[i].end)
            return &objects[i];
    return NULL;
}

void callers_begin(void) {
    void *frame[1];
    backtrace(frame, 1); /* The first call loads the unwinder. */
    dl_iterate_phdr(add_object, NULL);
}

int callers_find(uintptr_t out_address[MOST_FRAMES], const struct object **out_object) {
    void *frame[MOST_FRAMES];
    const struct object *object = NULL;
    const int frames = backtrace(frame, MOST_FRAMES);
    int at = 0, count = 0;
    while (at < frames && ((object = object_at((uintptr_t)frame[at])) == NULL || object->runtime))
        at++;
    while (at < frames)
        out_address[count++] = (uintptr_t)frame[at++];
    *out_object = object;
    return count;
}

uintptr_t callers_offset(uintptr_t address) {
    const struct object *object = object_at(address);
    return object != NULL && object->name[0] == '\0' ? address - object->base : 0;
}
