/* Text files as a token file, on several threads, in memory for the longest document that cannot be cut. */
#ifndef SW_TEXT_DOCUMENTS_TOKENIZE_FILES_H
#define SW_TEXT_DOCUMENTS_TOKENIZE_FILES_H

#include "core/status.h"
#include "text/documents/text_reader.h"
#include "text/documents/token_writer.h"

#include <xxhash.h>

struct sw_tokenize_spec {
    const char *model;        /* Hugging Face folder, or a tokenizer.json */
    const char *const *names; /* of files, folders and patterns (text_inputs.h) */
    int name_count;
    struct sw_text_rules rules; /* without tokenizer and model, which are set here */
    const char *end;            /* token behind each document but chats: its spelling, "none", or "auto" for the model's
                                   (model_text.h) */
    int bos;                    /* SW_BOS_... */
    bool old_rules;             /* the tokens are those of a run before SW_RUN_TEXT_VERSION (run.h) */
    const char *out;            /* FILE.bin */
    bool parse_special;         /* special tokens that the text spells are these tokens */
    bool joined;                /* no FILE.bin.doc is written */
    bool digests;               /* FILE.bin.xxh3 is written too (token_writer.h) */
    int threads;
    /* Called before the files get their names, which a failure keeps from them; may be NULL. */
    sw_status (*confirm)(void *context);
    void *confirm_context;
    int64_t pack_seq; /* packs documents into sequences of so many tokens (packer.h); 0: one follows the other */
};

/* Counts of a token file that was written. */
struct sw_tokenized {
    int64_t tokens, learnt; /* learnt: with a loss */
    int64_t masked;         /* tokens whose mask is not 1; 0: there is no mask */
    int64_t documents;
    int64_t skipped;        /* lines that were wrong */
    int64_t replaced;       /* times that U+FFFD stands for what the encoding does not have */
    int64_t split, padding; /* documents that are longer than a sequence; tokens of padding */
    int64_t text_bytes;     /* that this call encoded */
    int token_bytes;
    bool unended;            /* a document has no token behind it, though --end is auto */
    bool has_chats;          /* there were chats */
    const char *chat_format; /* name of their format; NULL: they are written by the model's own template */
    double seconds;
};

/* Writes FILE.bin, FILE.bin.doc and FILE.bin.mask (token_writer.h), all or nothing. A call that is cut off leaves
 * partial files, and the same call goes on from there, as it does after a full disk and where a file is in the way;
 * after other errors nothing is left. SW_ERR_BUSY: another process writes the file. */
sw_status sw_tokenize_files(const struct sw_tokenize_spec *spec, struct sw_tokenized *out);
/* Says in the log what was written. */
void sw_tokenized_say(const struct sw_tokenized *made, const char *out);

/* A version of the tokenization. Another one gives other digests, so that tokens of older versions are not used. */
#define SW_TOKENIZE_VERSION "text-6"

/* Takes in a text with its end, so that "ab" and "c" differ from "a" and "bc". NULL counts as a text of its own. */
void sw_digest_text(XXH3_state_t *hash, const char *text);
/* Takes in the bytes of a file. */
sw_status sw_digest_file(XXH3_state_t *hash, const char *path);
/* Takes in what a model's folder, or a tokenizer.json, says of text. */
sw_status sw_digest_model(XXH3_state_t *hash, const char *model);

/* How many tokens text has, from its beginning, without writing them. */
struct sw_token_estimate {
    int64_t tokens;     /* with padding, where documents are packed */
    int64_t read_bytes; /* bytes of the files that the estimate is from; 0: all were read, so the tokens are counted */
};

/* Encodes the first few hundred KiB of the files, and takes the rest to have as many tokens a byte. Of the
 * specification, end, out, joined and threads are not heeded: documents end as by "auto". */
sw_status sw_tokenize_estimate(const struct sw_tokenize_spec *spec, struct sw_token_estimate *out);

/* The file F.bin.journal beside a token file that is being written: how far the work has come, so that a call that was
 * cut off can go on. */
struct sw_tokenize_journal {
    uint64_t rules, inputs; /* digests of all but the text, and of the names, sizes and times of its files */
    struct sw_text_position read;
    struct sw_token_position written;
    int64_t put, text_bytes; /* documents, and bytes of their text */
};

/* Replaces the journal of the token file `out`. `packed` is the packer's state, empty where there is none. */
sw_status sw_tokenize_journal_write(const char *out, const struct sw_tokenize_journal *journal, struct sw_text packed);
/* The most that a journal of this call may say. */
struct sw_tokenize_limits {
    int64_t files;
    size_t packed_bytes; /* of the packer's state */
};
/* Reads a journal. False: there is none, or it is damaged, of another version, or says what cannot be. */
bool sw_tokenize_journal_read(const char *out, struct sw_tokenize_limits limits, struct sw_tokenize_journal *journal,
                              struct sw_text_buffer *packed);

#endif
