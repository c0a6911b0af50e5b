/* Documents from text files, one after the other, in memory for the longest of them. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_READER_H
#define SW_TEXT_DOCUMENTS_TEXT_READER_H

#include "text/buffer.h"
#include "text/documents/chat_template.h"
#include "text/documents/text_file.h"

#include <stdbool.h>
#include <stdint.h>

/* Forms of a file. A JSON file's beginning tells its form: [ begins one list, { by itself in a line begins values
 * spread over lines, and anything else is one value per line. */
typedef enum {
    SW_TEXT_PLAIN = 1, /* lines of text, with their ends */
    SW_TEXT_JSON_LINES,
    SW_TEXT_JSON_VALUES,
    SW_TEXT_JSON_LIST
} sw_text_form;

/* A longer JSON value is a mistake, not a document, and would fill the memory. */
enum { SW_TEXT_MOST_JSON_BYTES = 64 << 20 };

struct sw_text_pieces;

struct sw_text_piece_read {
    struct sw_text text; /* borrowed until the next call; a piece of JSON is never blank */
    int64_t line;        /* where it begins, from 1 */
    bool unended;        /* plain text: the line continues, because it is longer than one part */
    bool too_long;       /* JSON of more than SW_TEXT_MOST_JSON_BYTES, whose text was left out */
};

/* The position of the next piece. A zeroed struct is the beginning of a file. */
struct sw_text_pieces_position {
    int64_t offset; /* bytes of text that were read */
    int64_t lines;  /* line ends among them */
    int64_t form;   /* 0: nothing was read */
};

struct sw_text_reader;

/* The choices of --loss: which tokens of chats and completions have a loss. */
#define SW_LOSS_CHOICES "completions|all"
enum { SW_LOSS_COMPLETIONS, SW_LOSS_ALL };

/* How files become documents. A .txt or .md file is one document, unless a separator or `lines` divides it. Each line
 * of a .jsonl file is one, and each value of a .json file's list. All may be packed (.gz, .zst). */
struct sw_text_rules {
    const char *separator; /* lines equal to this divide a file; NULL: none do */
    bool lines;            /* each line of a file is a document */
    const char *field; /* member of objects that holds the text or the messages; NULL: by schema (json_document.h) */
    /* Rules for objects that are chats or prompts with completions (json_document.h): */
    const struct sw_tokenizer *tokenizer; /* NULL: chats are refused; borrowed */
    const char *model;                    /* folder whose chat template is the chats' format */
    const char *chat_format;              /* name of a format, or "auto" for the template's */
    bool
        pairs; /* objects are pairs of replies (json_document.h), and each makes two documents; other text is refused */
    bool all_loss;                /* all of their tokens have a loss, not only those of replies and completions */
    bool skip_bad;                /* count and leave out an object that is wrong */
    struct sw_text_coding coding; /* of all files */
    size_t most_text_bytes;       /* a text file is cut into documents of about this size; 0: it is not cut */
    enum sw_text_parts parts;     /* how a long document of text is cut into parts (tokenizer.h) */
};

/* The largest document of text, or part of one if documents come in parts. Encoding takes several times as much memory.
 */
enum { SW_TEXT_MOST_PART_BYTES = 64 << 20 };

/* Checks that all files exist and are of a known kind. Borrows the names and the rules. The caller closes the reader.
 */
sw_status sw_text_reader_open(const char *const *files, int file_count, const struct sw_text_rules *rules,
                              struct sw_text_reader **out);
void sw_text_reader_close(struct sw_text_reader *reader);

/* Replaces *out by the next document that is not empty, or by a part of one, without a byte order mark. *out_end is set
 * if there is none. Errors name the file and, if a line is wrong, the line. */
sw_status sw_text_reader_next(struct sw_text_reader *reader, struct sw_marked_text *out, bool *out_end);

/* The position of a reader between two documents. */
struct sw_text_position {
    int64_t file; /* index of the file; after the last, the number of files */
    struct sw_text_pieces_position within;
    int64_t skipped, empty;
    int64_t replaced;  /* in the files before this one */
    int64_t beside;    /* sw_json_passed */
    int64_t has_chats; /* 1: chats were read, in the format of sw_text_reader_chat_style */
};
/* Not between the two documents of a pair. */
struct sw_text_position sw_text_reader_position(const struct sw_text_reader *reader);
/* Takes a reader from which nothing was read to a position. */
sw_status sw_text_reader_go_to(struct sw_text_reader *reader, const struct sw_text_position *position);

int64_t sw_text_reader_bytes(const struct sw_text_reader *reader);      /* size of all files */
int64_t sw_text_reader_bytes_read(const struct sw_text_reader *reader); /* so far */
int64_t sw_text_reader_skipped(const struct sw_text_reader *reader);    /* lines that were left out so far */
/* Logs and counts documents that are left out because of an error, which it clears; --skip-bad allows it. */
void sw_text_reader_leave_out(struct sw_text_reader *reader, sw_status status);
/* Returns how many times U+FFFD replaced something invalid in the encoding. */
int64_t sw_text_reader_replaced(const struct sw_text_reader *reader);
/* Logs which members of objects were passed over, and how instructions were written. */
void sw_text_reader_say_passed(const struct sw_text_reader *reader);
/* Returns the style in which chats were rendered; NULL: there were none. */
const struct sw_chat_style *sw_text_reader_chat_style(const struct sw_text_reader *reader);

#endif
