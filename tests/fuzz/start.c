/* starting.json: what it names is removed, so nothing that it did not make may be taken for its own. */
#include "tests/fuzz/target.h"

#include "run/stores/start.h"

#include <assert.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_unfinished_start unfinished;
    fuzz_put("not-its-own", "text", sizeof "text" - 1);
    fuzz_put(SW_START_FILE_NAME, data, bytes);
    if (sw_unfinished_start_read(fuzz_folder(), &unfinished) == SW_OK) {
        assert(unfinished.found);
        const sw_status status = sw_unfinished_start_check(fuzz_folder(), &unfinished);
        assert(status != SW_OK);
    }
    sw_unfinished_start_release(&unfinished);
    sw_error_clear();
    return 0;
}
