#include "report/samples.h"

#include "core/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Returns the text's beginning as a string that the caller owns. */
static json_t *cut(const json_t *text) {
    const char *value = json_string_value(text);
    size_t bytes = json_string_length(text);
    if (bytes > SW_SAMPLE_CHARS) {
        for (bytes = SW_SAMPLE_CHARS; bytes > 0 && ((unsigned char)value[bytes] & 0xc0) == 0x80;)
            bytes--;
        char shown[SW_SAMPLE_CHARS + sizeof " [...]"];
        memcpy(shown, value, bytes);
        memcpy(shown + bytes, " [...]", sizeof " [...]");
        return json_stringn(shown, bytes + strlen(" [...]"));
    }
    return json_stringn(value, bytes);
}

/* Returns the bytes of a string in the page, which writes angle brackets and ampersands as six characters. */
static int64_t page_bytes_of(const json_t *text) {
    char *written = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    int64_t bytes = 0;
    for (const char *at = written; at != NULL && *at != '\0'; at++)
        bytes += strchr("<>&", *at) != NULL ? 6 : 1;
    free(written);
    return bytes;
}

static void release(struct sw_sample *sample) {
    json_decref(sample->prompt);
    json_decref(sample->text);
}

/* Leaves out the steps between those that are kept. */
static void thin(struct sw_samples *samples) {
    int64_t kept = 0;
    for (int64_t i = 0; i < samples->count; i++) {
        struct sw_sample *sample = &samples->sample[i];
        if (sample->number % samples->stride == 0 || sample->number == samples->newest)
            samples->sample[kept++] = *sample;
        else
            release(sample);
    }
    samples->count = kept;
}

static bool is_too_much(const struct sw_samples *samples) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < samples->count; i++)
        bytes += samples->sample[i].page_bytes;
    return samples->count > SW_SAMPLES || bytes > samples->most_page_bytes;
}

/* Begins a step, if the newest sample is of another one. */
static void begin_step(struct sw_samples *samples, int64_t step) {
    if (samples->count > 0 && samples->sample[samples->count - 1].step == step)
        return;
    samples->newest = samples->stride > 0 ? samples->newest + 1 : 0;
    samples->stride = samples->stride > 0 ? samples->stride : 1;
    thin(samples);
}

static int64_t of_newest_step(const struct sw_samples *samples) {
    int64_t count = 0;
    while (count < samples->count && samples->sample[samples->count - 1 - count].number == samples->newest)
        count++;
    return count;
}

/* Adds a sample. Keeps the newest step whatever it takes, which is little by the bounds of a step and of a text. */
static sw_status add(struct sw_samples *samples, int64_t step, const json_t *prompt, const json_t *text) {
    begin_step(samples, step);
    if (of_newest_step(samples) == SW_SAMPLES_OF_STEP)
        return SW_OK;
    struct sw_sample made = {.step = step, .number = samples->newest, .prompt = cut(prompt), .text = cut(text)};
    if (made.prompt == NULL || made.text == NULL) {
        release(&made);
        return sw_fail(SW_ERR_NOMEM, "no memory for the samples of a log");
    }
    made.page_bytes = page_bytes_of(made.prompt) + page_bytes_of(made.text);
    samples->sample[samples->count++] = made;
    while (is_too_much(samples) && samples->stride <= samples->newest) {
        samples->stride *= 2;
        thin(samples);
    }
    return SW_OK;
}

sw_status sw_samples_add(struct sw_samples *samples, const char *line) {
    json_t *root;
    SW_TRY(sw_json_try(line, strlen(line), &root));
    const json_t *sample = json_object_get(root, "sample");
    const json_t *prompt = json_object_get(sample, "prompt"), *text = json_object_get(sample, "text");
    const bool readable = json_is_string(prompt) && json_is_string(text);
    samples->seen++;
    samples->unreadable += !readable;
    const sw_status status =
        readable ? add(samples, json_integer_value(json_object_get(root, "step")), prompt, text) : SW_OK;
    json_decref(root);
    return status;
}

void sw_samples_release(struct sw_samples *samples) {
    for (int64_t i = 0; i < samples->count; i++)
        release(&samples->sample[i]);
    samples->count = 0;
}
