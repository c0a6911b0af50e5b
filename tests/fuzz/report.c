/* The log of a run, behind a zero byte its run.json and behind another one the predicted timeline: a page that is made
 * of them holds JSON, which nothing in these files can end. */
#include "tests/fuzz/target.h"

#include "report/report.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char run_json[] = "{\"settings\":{\"clip\":1.0}}";
/* The page has its data in an element of this kind. */
static const char data_begin[] = "<script type=\"application/json\"", data_end[] = "</script>";

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void check_page(const char *page, size_t bytes) {
    const char *tag = memmem(page, bytes, data_begin, sizeof data_begin - 1);
    assert(tag != NULL);
    const char *begin = memchr(tag, '>', bytes - (size_t)(tag - page));
    assert(begin != NULL);
    const char *end = memmem(begin, bytes - (size_t)(begin - page), data_end, sizeof data_end - 1);
    assert(end != NULL);
    json_error_t error;
    json_t *data = json_loadb(begin + 1, (size_t)(end - begin - 1), JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (data == NULL)
        fprintf(stderr, "%s at %d: %.*s\n", error.text, error.position, (int)(end - begin - 1), begin + 1);
    assert(json_array_size(json_object_get(data, "runs")) == 1);
    json_decref(data);
}

/* Returns where the part of a file ends, and where the next begins in *next. */
static size_t part_of(const uint8_t *data, size_t bytes, const uint8_t **next, size_t *next_bytes) {
    const uint8_t *end = bytes == 0 ? NULL : memchr(data, 0, bytes);
    const size_t part = end == NULL ? bytes : (size_t)(end - data);
    *next = end == NULL ? data + bytes : end + 1;
    *next_bytes = bytes - (size_t)(*next - data);
    return part;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *run, *timeline;
    size_t run_bytes, timeline_bytes, page_bytes = 0;
    char *page = NULL;
    fuzz_put("log.jsonl", data, part_of(data, bytes, &run, &run_bytes));
    const size_t run_part = part_of(run, run_bytes, &timeline, &timeline_bytes);
    fuzz_put("run.json", run_part > 0 ? (const void *)run : run_json, run_part > 0 ? run_part : sizeof run_json - 1);
    if (timeline_bytes > 0)
        fuzz_put("timeline.json", timeline, timeline_bytes);
    else
        (void)unlink(fuzz_path("timeline.json"));
    const char *folder = fuzz_folder();
    if (sw_report_make(&folder, 1, 0, NULL, &page, &page_bytes) == SW_OK)
        check_page(page, page_bytes);
    sw_error_clear();
    free(page);
    return 0;
}
