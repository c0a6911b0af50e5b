/* Training data: text as bytes or token files, one after the other, cut into windows of seq+1 tokens whose order is a
 * function of seed and position alone. */
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
    const char *const *files; /* .txt, .md: the bytes behind a byte order mark (the vocabulary must have 256 entries);
                                 .bin: little-endian tokens of the format */
    int file_count;           /* 0 where there is only a validation file: nothing to train on */
    struct sw_token_format format; /* of all files */
    int64_t vocab;
    int64_t seq;
    double validation_percent;   /* the last part of the data, in [0, 50]; 0 for none */
    const char *validation_file; /* instead of a part; NULL for none */
    uint64_t seed;
};

/* Opens and checks: files exist, are not empty, hold at least one window of training (and of validation where asked),
 * lengths are whole tokens, no token lies outside the vocabulary (all of it is read once), and masks and documents
 * leave something to learn. F.mask beside a file F: a byte a token, 0 where no loss belongs. F.doc: where documents
 * begin (token_stream.h); the first token of a document has no loss. */
sw_status sw_data_open(const struct sw_data_spec *spec, struct sw_data **out);
void sw_data_close(struct sw_data *data);
/* Counts the tokens of the training part by the lengths of the files, without reading the tokens. Checks what
 * sw_data_open does without reading them. */
sw_status sw_data_count_train_tokens(const struct sw_data_spec *spec, int64_t *out);

int64_t sw_data_train_tokens(const struct sw_data *data);
int64_t sw_data_validation_tokens(const struct sw_data *data);
int64_t sw_data_validation_windows(const struct sw_data *data);
/* Returns whether the files for training or for validation have documents. */
bool sw_data_has_documents(const struct sw_data *data);
/* Returns whether a mask lies beside one of these files, as beside the tokens of chats. */
bool sw_data_has_masks(const struct sw_data *data);
/* Writes and returns a description such as "40000 tokens in 12 documents, 87.3% of them with a loss; beside them
 * d.txt.mask, d.txt.doc", of the training part, or of validation where there is nothing to train on (token_stream.h).
 */
enum { SW_DATA_TEXT_CHARS = 1024 };
const char *sw_data_text(const struct sw_data *data, char text[SW_DATA_TEXT_CHARS]);
/* Returns the windows of the training part, which are one epoch. */
int64_t sw_data_train_windows(const struct sw_data *data);
/* Appends to the list, for run.json, which files lie beside each file of the data: "", "mask", "doc" or "mask,doc". The
 * validation file comes last. */
sw_status sw_data_beside(const struct sw_data *data, struct sw_option_list *out);
/* Refuses data beside which other files are there than sw_data_beside has listed; an empty list knows of nothing. */
sw_status sw_data_check_beside(const struct sw_data *data, const struct sw_option_list *before);
/* Returns the XXH3 of all tokens, masks and document starts. */
uint64_t sw_data_digest(const struct sw_data *data);
/* Refuses data of another digest, because a resumed run must see the same, and names the file that was written last. */
sw_status sw_data_check_digest(const struct sw_data *data, uint64_t digest);

/* Reads the window at a position of the endless training stream: seq inputs, and as targets the tokens after them, -1
 * where these have no loss. A document that the window cuts begins with it. Refuses what was changed in place since the
 * opening, by file and position.
 * Windows are disjoint but for one token; each epoch visits every window once, in a new order. */
sw_status sw_data_train_window(struct sw_data *data, uint64_t position, struct sw_tokens out);
/* Counts the targets of that window that have a loss, without reading its tokens. */
sw_status sw_data_train_targets(struct sw_data *data, uint64_t position, int64_t *out);
/* Tells whether a token has a loss in the training part, of which at most SW_DATA_LOOKED_BLOCKS blocks are read, evenly
 * over all of it. */
enum { SW_DATA_LOOKED_BLOCKS = 256 };
sw_status sw_data_learns(struct sw_data *data, int32_t token, bool *out);
/* Reads a window of the validation part, in the order of the data. The last window may be short: its targets beyond the
 * data are -1. */
sw_status sw_data_validation_window(struct sw_data *data, int64_t window, struct sw_tokens out);

/* Computes the entropies that a language model must beat: those of the training part's unigrams, and of its bigrams
 * with add-one smoothing backed off to the unigram, both measured on the validation part in bits per token. Only for
 * vocabularies up to 4096, and without masks or documents. */
sw_status sw_data_baselines(struct sw_data *data, double *out_unigram_bits, double *out_bigram_bits);

#endif
