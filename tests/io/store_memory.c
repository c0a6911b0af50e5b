/* One allocation after the other fails in a store's life: each is told as such, and nothing is left that would keep the
 * next life from beginning. The linker has the store call the functions of this file. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* Allocations until one fails; 0: none does. */
static int64_t until_failure;

static bool fails(void) {
    return until_failure > 0 && --until_failure == 0;
}

/* NOLINTBEGIN(bugprone-reserved-identifier): the linker gives these names. */
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__real_sw_file_path(const char *directory, const char *name);
char *__wrap_sw_file_path(const char *directory, const char *name);

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
    return fails() ? ENOMEM : __real_posix_memalign(out, alignment, bytes);
}

char *__wrap_strdup(const char *text) {
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_sw_file_path(const char *directory, const char *name) {
    return fails() ? NULL : __real_sw_file_path(directory, name);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static const int64_t one_grain[] = {1}, two_pages[] = {2};
static const struct sw_store_scratch scratches[] = {
    {.kind = SW_STORE_KEPT_SUMS, .unit_grains = two_pages, .grain_bytes = SW_FORMAT_PAGE_BYTES},
    {.kind = SW_STORE_BASE, .unit_grains = one_grain, .grain_bytes = SW_FORMAT_PAGE_BYTES}};
enum { SCRATCHES = sizeof scratches / sizeof scratches[0] };

struct life {
    const char *folder, *file;
    char id[SW_STORE_ID_CHARS];
    int64_t grain_offset_bytes;
    void *buf; /* of one grain */
};

static sw_status add_scratches(struct sw_store *store) {
    for (int i = 0; i < SCRATCHES; i++)
        SW_TRY(sw_store_add_scratch(store, &scratches[i]));
    return SW_OK;
}

static sw_status transfer(const struct life *self, struct sw_store *store, bool write, sw_store_kind kind) {
    struct sw_store_lane *lane;
    SW_TRY(sw_store_lane_open(store, STORE_DEPTH, &lane));
    const struct sw_store_transfer transfer = {.write = write, .kind = kind, .grains = 1, .buf = self->buf};
    const sw_status status = sw_store_transfer(lane, &transfer);
    sw_store_lane_close(lane);
    return status;
}

static sw_status begin(struct life *self, struct sw_store *store) {
    sw_store_id(store, self->id);
    self->grain_offset_bytes = sw_area_run(&store->areas[SW_STORE_OPTIMIZER][0], 0, 0, 1).offset_bytes;
    SW_TRY(add_scratches(store));
    SW_TRY(transfer(self, store, true, SW_STORE_BASE));
    SW_TRY(sw_store_keep(store, 1));
    SW_TRY(transfer(self, store, true, SW_STORE_OPTIMIZER));
    return sw_store_commit(store, 1, 0, "");
}

static sw_status go_on(struct life *self, struct sw_store *store) {
    SW_TRY(add_scratches(store));
    SW_TRY(sw_store_take_kept(store, 1));
    CHECK(sw_store_has(store, SW_STORE_BASE, 0, 0, 1));
    return transfer(self, store, false, SW_STORE_BASE);
}

/* Makes void what was kept, as another layout of the scratch does. */
static sw_status go_on_without(struct life *self, struct sw_store *store) {
    return transfer(self, store, false, SW_STORE_OPTIMIZER);
}

static sw_status find_damage(struct life *self, struct sw_store *store) {
    int64_t grains, bad;
    (void)self;
    SW_TRY(sw_store_verify(store, NULL, &grains, &bad));
    CHECK(grains == 1 && bad == 1);
    return SW_OK;
}

/* Uses a store, unless it could not be made or opened, and closes it. */
static sw_status use(struct life *self, sw_status opened, struct sw_store *store,
                     sw_status (*act)(struct life *, struct sw_store *)) {
    SW_TRY(opened);
    const sw_status status = act(self, store);
    sw_store_close(store);
    return status;
}

static sw_status live(struct life *self) {
    const struct sw_store_spec spec = {.directories = &self->folder,
                                       .directory_count = 1,
                                       .unit_grains = one_grain,
                                       .unit_count = 1,
                                       .scratch = scratches,
                                       .scratch_count = SCRATCHES,
                                       .allow_buffered = true};
    struct sw_store *store = NULL;
    int64_t need;
    SW_TRY(sw_store_need(&spec, &need));
    sw_status status = sw_store_create(&spec, NULL, NULL, &store);
    SW_TRY(use(self, status, store, begin));
    status = sw_store_open(&self->folder, 1, true, SW_STORE_NEWEST, &store);
    SW_TRY(use(self, status, store, go_on));
    status = sw_store_open(&self->folder, 1, true, SW_STORE_NEWEST, &store);
    SW_TRY(use(self, status, store, go_on_without));
    flip_bit(self->file, self->grain_offset_bytes);
    status = sw_store_open_to_read(&self->folder, 1, SW_STORE_NEWEST, &store);
    SW_TRY(use(self, status, store, find_damage));
    return sw_store_remove(self->folder, self->id, 1);
}

static void every_allocation_may_fail(void **state) {
    enum { LEAST = 40 };
    struct life self = {
        .folder = *state, .file = in_directory(*state, SW_STORE_FILE_NAME), .buf = io_buffer(SW_OPTIMIZER_GRAIN_BYTES)};
    sw_status status;
    do {
        until_failure = (int64_t)++test_seed;
        status = live(&self);
        CHECK((until_failure == 0) == (status == SW_ERR_NOMEM) && (status == SW_ERR_NOMEM || status == SW_OK));
        until_failure = 0;
        sw_error_clear();
        CHECK(unlink(self.file) == 0 || errno == ENOENT);
    } while (status != SW_OK);
    CHECK(test_seed > LEAST);
    free(self.buf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_allocation_may_fail, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
