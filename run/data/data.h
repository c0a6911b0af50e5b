/* Training data: text as bytes, or token files, one after the other, cut into windows of seq+1 tokens. The order of the
 * windows depends only on seed and position. */
#ifndef SW_RUN_DATA_DATA_H
#define SW_RUN_DATA_DATA_H

#include "core/status.h"
#include "job/settings/options.h"
#include "model/tokens.h"
#include "run/data/token_stream.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_data;

struct sw_data_spec {
    const char *const *files; /* .txt, .md: the bytes after a byte order mark (the vocabulary must have 256 entries);
                                 .bin: little-endian tokens of the format */
    int file_count;           /* 0: there is only a validation file, and nothing to train on */
    struct sw_token_format format; /* of all files */
    int64_t vocab;
    int64_t seq;
    double validation_percent;   /* share of the data's end used for validation, in [0, 50]; 0: none */
    const char *validation_file; /* validation data in a file of its own; NULL: none */
    uint64_t seed;
    bool pairs; /* each two windows are the chosen and the rejected sequence of a pair, which stay together */
};

/* Opens and checks the data. Files must exist and hold whole tokens, at least one window for training, and one for
 * validation if it is asked for. No token may be outside the vocabulary (all data are read once), and masks and
 * documents must leave something to learn. Pairs must be as sw_packer_add_alone writes them. F.mask next to a file F
 * has a byte per token, 0 for a token without a loss. F.doc lists where documents begin (token_stream.h); the first
 * token of a document has no loss. */
sw_status sw_data_open(const struct sw_data_spec *spec, struct sw_data **out);
void sw_data_close(struct sw_data *data);
/* Counts the tokens of the training part by the lengths of the files. Makes those checks of sw_data_open that need no
 * tokens. */
sw_status sw_data_count_train_tokens(const struct sw_data_spec *spec, int64_t *out);

int64_t sw_data_train_tokens(const struct sw_data *data);
int64_t sw_data_validation_tokens(const struct sw_data *data);
int64_t sw_data_validation_windows(const struct sw_data *data);
/* Returns whether the files for training or for validation have documents. */
bool sw_data_has_documents(const struct sw_data *data);
/* Returns whether one of these files has a mask, as the tokens of chats have. */
bool sw_data_has_masks(const struct sw_data *data);
/* Writes and returns a description of the training part, or of validation if there is nothing to train on, such as
 * "40000 tokens in 12 documents, 87.3% of them with a loss; beside them d.txt.mask, d.txt.doc" (token_stream.h). */
enum { SW_DATA_TEXT_CHARS = 1024 };
const char *sw_data_text(const struct sw_data *data, char text[SW_DATA_TEXT_CHARS]);
/* Returns the number of windows of the training part, which is one epoch. */
int64_t sw_data_train_windows(const struct sw_data *data);
/* Appends to the list, for run.json, the companion files of each data file: "", "mask", "doc" or "mask,doc". The
 * validation file comes last. */
sw_status sw_data_beside(const struct sw_data *data, struct sw_option_list *out);
/* Refuses data whose companion files differ from those that sw_data_beside listed. An empty list allows any. */
sw_status sw_data_check_beside(const struct sw_data *data, const struct sw_option_list *before);
/* Returns the XXH3 of all tokens, masks and document starts. */
uint64_t sw_data_digest(const struct sw_data *data);
/* Refuses data of another digest, since a resumed run must see the same data, and names the file that was written last.
 */
sw_status sw_data_check_digest(const struct sw_data *data, uint64_t digest);

/* Reads the window at a position of the endless training stream: seq inputs, and as targets the tokens that follow
 * them, -1 for a target without a loss. A document that the window's beginning cuts starts there. Refuses data changed
 * in place since the opening, by file and position. Windows are disjoint except for one token. Each epoch visits every
 * window once, in a new order. */
sw_status sw_data_train_window(struct sw_data *data, uint64_t position, struct sw_tokens out);
/* Return the number of that window in the order of the data, and read a window by its number. */
int64_t sw_data_train_number(const struct sw_data *data, uint64_t position);
sw_status sw_data_numbered_window(struct sw_data *data, int64_t number, struct sw_tokens out);
/* Counts the targets of that window that have a loss, without reading its tokens. */
sw_status sw_data_train_targets(struct sw_data *data, uint64_t position, int64_t *out);
/* Tells whether the training part has a loss for a token. Reads at most SW_DATA_LOOKED_BLOCKS blocks, evenly spread. */
enum { SW_DATA_LOOKED_BLOCKS = 256 };
sw_status sw_data_learns(struct sw_data *data, int32_t token, bool *out);
/* Reads a window of the validation part, in the order of the data. The last window may be short: its targets beyond the
 * data are -1. */
sw_status sw_data_validation_window(struct sw_data *data, int64_t window, struct sw_tokens out);

/* Computes two entropies that a language model must beat, in bits per token of the validation part: that of the
 * training part's unigrams, and that of its bigrams with add-one smoothing backed off to the unigram. Only for
 * vocabularies of up to 4096 entries, and only without masks and documents. */
sw_status sw_data_baselines(struct sw_data *data, double *out_unigram_bits, double *out_bigram_bits);

#endif
