/* Makes a token file from text files, on several threads, in memory for the longest document that cannot be cut. */
#ifndef SW_TEXT_DOCUMENTS_TOKENIZE_FILES_H
#define SW_TEXT_DOCUMENTS_TOKENIZE_FILES_H

#include "core/status.h"
#include "text/documents/text_reader.h"
#include "text/documents/token_writer.h"

#include <xxhash.h>

struct sw_tokenize_spec {
    const char *model;        /* Hugging Face folder, or a tokenizer.json */
    const char *const *names; /* names of files, folders and patterns (text_inputs.h) */
    int name_count;
    struct sw_text_rules rules; /* without tokenizer and model, which are set here */
    const char *end;    /* token after each document except chats: its spelling, "none", or "auto" for the model's
                           (model_text.h) */
    int bos;            /* SW_BOS_... */
    bool old_rules;     /* use the rules of runs before SW_RUN_TEXT_VERSION (run.h) */
    const char *out;    /* path of FILE.bin */
    bool parse_special; /* special tokens spelled in the text become these tokens */
    bool joined;        /* do not write FILE.bin.doc */
    bool digests;       /* also write FILE.bin.xxh3 (token_writer.h) */
    int threads;
    /* Called before the files get their names; a failure prevents that. May be NULL. */
    sw_status (*confirm)(void *context);
    void *confirm_context;
    int64_t pack_seq; /* pack documents into sequences of this many tokens (token_writer.h); 0: one after the other */
};

/* Counts of a written token file. */
struct sw_tokenized {
    int64_t tokens, learnt; /* learnt: with a loss */
    int64_t masked;         /* tokens whose mask is not 1; 0: there is no mask */
    int64_t documents;
    int64_t skipped;        /* lines left out because they were wrong */
    int64_t replaced;       /* times that U+FFFD replaced something invalid in the encoding */
    int64_t split, padding; /* documents longer than a sequence; tokens of padding */
    int64_t text_bytes;     /* bytes of text that this call encoded */
    int token_bytes;
    bool unended;            /* a document has no token after it, although --end is auto */
    bool has_chats;          /* there were chats */
    const char *chat_format; /* name of their format; NULL: the model's own template */
    double seconds;
};

/* Writes FILE.bin, FILE.bin.doc and FILE.bin.mask (token_writer.h), all or nothing. An interrupted call leaves partial
 * files, from which the same call continues; so does a call that failed because of a full disk or a file in the way.
 * After other errors nothing is left. SW_ERR_BUSY: another process is writing the file. */
sw_status sw_tokenize_files(const struct sw_tokenize_spec *spec, struct sw_tokenized *out);
/* Logs what was written. */
void sw_tokenized_say(const struct sw_tokenized *made, const char *out);

/* A version of the tokenization. Another one gives other digests, so that old tokens are not used. */
#define SW_TOKENIZE_VERSION "text-6"

/* Hashes a text with its end, so that "ab" and "c" differ from "a" and "bc". NULL counts as a text of its own. */
void sw_digest_text(XXH3_state_t *hash, const char *text);
/* Hashes the bytes of a file. */
sw_status sw_digest_file(XXH3_state_t *hash, const char *path);
/* Does the same for two hashes, from one reading. */
sw_status sw_digest_file_twice(XXH3_state_t *hash, XXH3_state_t *other, const char *path);
/* Hashes what a model's folder, or a tokenizer.json, says about text. */
sw_status sw_digest_model(XXH3_state_t *hash, const char *model);

/* An estimate of the tokens of text, from its beginning. */
struct sw_token_estimate {
    int64_t tokens;     /* including padding, if documents are packed */
    int64_t read_bytes; /* bytes of the files that were read; 0: all, so the tokens are counted */
};

/* Encodes the first few hundred KiB of the files, and assumes as many tokens per byte for the rest. Ignores end, out,
 * joined and threads of the specification: documents end as with "auto". */
sw_status sw_tokenize_estimate(const struct sw_tokenize_spec *spec, struct sw_token_estimate *out);

/* The file F.bin.journal next to a token file being written: how far the work has come, so that an interrupted call can
 * continue. */
struct sw_tokenize_journal {
    uint64_t rules, inputs; /* digests of everything except the text; and of the names, sizes and times of its files */
    struct sw_text_position read;
    struct sw_token_position written;
    int64_t put, text_bytes; /* documents written, and bytes of their text */
};

/* Replaces the journal of the token file `out`. `packed`: the packer's state; empty: there is no packer. */
sw_status sw_tokenize_journal_write(const char *out, const struct sw_tokenize_journal *journal, struct sw_text packed);
/* Upper bounds of what a journal of this call may say. */
struct sw_tokenize_limits {
    int64_t files;
    size_t packed_bytes; /* of the packer's state */
};
/* Reads a journal. Returns false if there is none, or it is damaged, of another version, or implausible. */
bool sw_tokenize_journal_read(const char *out, struct sw_tokenize_limits limits, struct sw_tokenize_journal *journal,
                              struct sw_text_buffer *packed);

#endif
