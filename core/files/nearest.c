#include "core/files/nearest.h"

#include <assert.h>
#include <string.h>

enum { TYPED_MAX_CHARS = 63, MOST_EDITS = 3, CHARS_PER_EDIT = 3 };

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* Returns the Levenshtein distance: the fewest edits (one character added, left out or changed) between two texts. */
static int edit_distance(const char *a, int a_chars, const char *b, int b_chars) {
    int row[TYPED_MAX_CHARS + 1];
    assert(b_chars >= 0 && b_chars <= TYPED_MAX_CHARS);
    for (int j = 0; j <= b_chars; j++)
        row[j] = j;
    for (int i = 1; i <= a_chars; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= b_chars; j++) {
            const int changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = min_int(changed, 1 + min_int(row[j], row[j - 1]));
        }
    }
    return row[b_chars];
}

struct sw_nearest sw_nearest_begin(const char *typed, size_t chars) {
    /* A name that is more edits away is no likely typing mistake. */
    const int edits = chars > TYPED_MAX_CHARS ? -1 : min_int(MOST_EDITS, (int)chars / CHARS_PER_EDIT);
    return (struct sw_nearest){.typed = typed, .typed_chars = (int)chars, .distance = edits + 1};
}

void sw_nearest_consider(struct sw_nearest *nearest, const char *name) {
    if (nearest->distance == 0)
        return;
    const int distance = edit_distance(name, (int)strlen(name), nearest->typed, nearest->typed_chars);
    if (distance < nearest->distance) {
        nearest->distance = distance;
        nearest->name = name;
    }
}
