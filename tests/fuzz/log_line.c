/* A line of a run's log: what is read has the numbers that a general reader of JSON finds. */
#include "tests/fuzz/target.h"

#include "report/curves.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

/* Larger numbers are missing ones, so that sums of a log stay finite. */
#define MOST_NUMBER 1e100

static void check_number(const json_t *wanted, double found) {
    if (json_is_number(wanted) && fabs(json_number_value(wanted)) <= MOST_NUMBER)
        assert(found == json_number_value(wanted));
    else if (json_is_boolean(wanted))
        assert(found == json_is_true(wanted));
    else
        assert(isnan(found));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char *text = malloc(bytes + 1);
    struct sw_log_line line;
    assert(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    const bool is_read = sw_log_line_parse(text, &line);
    /* The general reader refuses more: members of one name, bytes that are no UTF-8. An escape may spell a name. */
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (is_read && object != NULL && strchr(text, '\\') == NULL) {
        check_number(json_object_get(object, "step"), line.value[SW_LOG_STEP]);
        check_number(json_object_get(object, "loss"), line.value[SW_LOG_LOSS]);
        check_number(json_object_get(object, "val_loss"), line.value[SW_LOG_VAL_LOSS]);
        check_number(json_object_get(json_object_get(object, "lanes"), "compute"), line.value[SW_LOG_LANES]);
        check_number(json_object_get(json_object_get(object, "bytes"), "comm"),
                     line.value[SW_LOG_BYTES + SW_LOG_BYTE_COUNT - 1]);
    }
    json_decref(object);
    free(text);
    return 0;
}
