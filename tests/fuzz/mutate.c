#include "tests/fuzz/mutate.h"

#include "core/rng.h"

#include <ctype.h>
#include <string.h>

enum { MOST_CHANGES = 4 };

struct work {
    uint8_t *data;
    size_t bytes;
    const struct fuzz_input *corpus;
    int count;
    uint64_t seed, number, draws;
};

static size_t below(struct work *w, size_t limit) {
    return limit == 0 ? 0 : (size_t)(sw_rng_uniform(w->seed, w->number, w->draws++) * (double)limit);
}

/* Puts text in the place of the bytes [at, at + gone). Nothing happens where there is no room. */
static void replace(struct work *w, size_t at, size_t gone, const void *text, size_t length) {
    if (w->bytes - gone + length > FUZZ_INPUT_BYTES)
        return;
    memmove(w->data + at + length, w->data + at + gone, w->bytes - at - gone);
    memmove(w->data + at, text, length);
    w->bytes += length - gone;
}

static void flip_bit(struct work *w) {
    if (w->bytes > 0)
        w->data[below(w, w->bytes)] ^= (uint8_t)(1u << below(w, 8));
}

static void set_byte(struct work *w) {
    if (w->bytes > 0)
        w->data[below(w, w->bytes)] = (uint8_t)below(w, 256);
}

static void insert_text(struct work *w) {
    static const char *const texts[] = {"{", "}",  "[",    "]",    "[[[[[[[[", "\"",      "\\u0000", "\\ud800",
                                        ",", ":",  "null", "-",    "true",     "1e999",   "\xff",    "../",
                                        "/", "{}", "[]",   "\"\"", "%s",       "__proto", "0.1",     "\r\n\t"};
    const char *text = texts[below(w, sizeof texts / sizeof texts[0])];
    replace(w, below(w, w->bytes + 1), 0, text, strlen(text));
}

static void remove_range(struct work *w) {
    const size_t at = below(w, w->bytes + 1);
    replace(w, at, below(w, w->bytes - at + 1), "", 0);
}

static void repeat_range(struct work *w) {
    static uint8_t range[FUZZ_INPUT_BYTES];
    const size_t at = below(w, w->bytes + 1), length = below(w, w->bytes - at + 1);
    memcpy(range, w->data + at, length);
    replace(w, below(w, w->bytes + 1), 0, range, length);
}

static void change_number(struct work *w) {
    static const char *const numbers[] = {"0",          "1",    "-1",
                                          "2",          "255",  "65536",
                                          "2147483647", "1e-9", "4294967296",
                                          "1048576",    "0.5",  "9223372036854775807",
                                          "1e308",      "7",    "-9223372036854775808",
                                          "true",       "null", "18446744073709551616"};
    const char *number = numbers[below(w, sizeof numbers / sizeof numbers[0])];
    size_t at = below(w, w->bytes + 1);
    while (at < w->bytes && !isdigit(w->data[at]))
        at++;
    size_t end = at;
    while (end < w->bytes && isdigit(w->data[end]))
        end++;
    if (end > at)
        replace(w, at, end - at, number, strlen(number));
}

/* The next "…" from a place on, quotes included; of no bytes where there is none. */
static size_t quoted(const uint8_t *data, size_t bytes, size_t *at) {
    while (*at < bytes && data[*at] != '"')
        ++*at;
    size_t end = *at + 1;
    while (end < bytes && data[end] != '"')
        end++;
    return end < bytes ? end + 1 - *at : 0;
}

/* One name or text of the input becomes one of the corpus. */
static void change_text(struct work *w) {
    const struct fuzz_input *other = &w->corpus[below(w, (size_t)w->count)];
    size_t at = below(w, w->bytes + 1), from = below(w, other->bytes + 1);
    const size_t gone = quoted(w->data, w->bytes, &at), length = quoted(other->data, other->bytes, &from);
    if (gone > 0 && length > 0)
        replace(w, at, gone, other->data + from, length);
}

static void set_word(struct work *w) {
    static const uint64_t words[] = {0, 1, UINT64_MAX, INT64_MAX, UINT64_C(1) << 63, UINT32_MAX, 4096, 1u << 20};
    const uint64_t word = words[below(w, sizeof words / sizeof words[0])] + below(w, 3) - 1;
    if (w->bytes >= sizeof word)
        memcpy(w->data + below(w, w->bytes - sizeof word + 1), &word, sizeof word);
}

static void splice(struct work *w) {
    const struct fuzz_input *other = &w->corpus[below(w, (size_t)w->count)];
    const size_t at = below(w, w->bytes + 1), from = below(w, other->bytes + 1);
    replace(w, at, w->bytes - at, other->data + from, other->bytes - from);
}

/* Half of the inputs keep the structure of what they are made of: others hardly get beyond a parser. */
size_t fuzz_mutate(const struct fuzz_input *corpus, int count, uint64_t seed, uint64_t number, uint8_t *out) {
    static void (*const changes[])(struct work *) = {change_number, change_text,  flip_bit, set_byte, insert_text,
                                                     remove_range,  repeat_range, set_word, splice};
    enum { GENTLE_CHANGES = 2, ALL_CHANGES = sizeof changes / sizeof changes[0] };
    struct work w = {.data = out, .corpus = corpus, .count = count, .seed = seed, .number = number};
    const struct fuzz_input *base = &corpus[below(&w, (size_t)count)];
    memcpy(out, base->data, base->bytes);
    w.bytes = base->bytes;
    const size_t choices = number % 2 == 0 ? GENTLE_CHANGES : ALL_CHANGES;
    for (size_t left = 1 + below(&w, MOST_CHANGES); left > 0; left--)
        changes[below(&w, choices)](&w);
    return w.bytes;
}
