#include "text/documents/tokenize_estimate.h"

#include "text/documents/packer.h"
#include "text/documents/text_inputs.h"
#include "text/model_text.h"

#include <stdlib.h>

enum { SAMPLE_BYTES = 512 << 10 };

struct sample {
    const struct sw_tokenize_spec *spec;
    struct sw_model_text model;
    struct sw_text_inputs inputs;
    struct sw_text_reader *reader;
    struct sw_text_encoder *encoder;
    struct sw_packer *packer; /* NULL: documents are not packed */
    struct sw_document_frame frame;
    struct sw_marked_text text;
    struct sw_token_list tokens; /* of one document */
    struct sw_text_buffer loss;  /* likewise */
    double encoded;              /* tokens of the sample */
    int64_t bytes;               /* of the files, whose tokens these are */
    bool ended;                  /* the sample is all there is */
};

static sw_status open_sample(struct sample *s) {
    const struct sw_tokenize_spec *spec = s->spec;
    SW_TRY(sw_model_text_open(spec->model, &s->model));
    s->frame.end = spec->old_rules ? s->model.old_end : s->model.end;
    s->frame.begins_chats = spec->bos == SW_BOS_YES;
    s->frame.parse_special = spec->parse_special;
    SW_TRY(sw_model_text_begin(&s->model, spec->old_rules ? SW_BOS_NO : spec->bos, &s->frame.begin));
    struct sw_text_rules rules = spec->rules;
    rules.tokenizer = s->model.tokenizer;
    rules.model = spec->model;
    rules.most_text_bytes = SAMPLE_BYTES;
    SW_TRY(sw_text_inputs_expand(spec->names, spec->name_count, &s->inputs));
    SW_TRY(sw_text_reader_open((const char *const *)s->inputs.path, s->inputs.count, &rules, &s->reader));
    if (spec->pack_seq > 0)
        SW_TRY(sw_packer_open(NULL, spec->pack_seq, 0, &s->packer));
    return sw_text_encoder_create(s->model.tokenizer, &s->encoder);
}

static sw_status encode(struct sample *s) {
    s->tokens.count = s->loss.bytes = 0;
    return sw_document_encode(s->encoder, &s->text, &s->frame, &s->tokens, &s->loss);
}

/* Reads documents until the sample is large enough. Files are read ahead by blocks, so how many bytes the documents
 * took is known only when the next block is read. The document in which that happens counts half: on the average, half
 * of it is in the block before. */
static sw_status read_sample(struct sample *s) {
    for (;;) {
        const int64_t before = sw_text_reader_bytes_read(s->reader);
        SW_TRY(sw_text_reader_next(s->reader, &s->text, &s->ended));
        s->bytes = sw_text_reader_bytes_read(s->reader);
        if (s->ended)
            return SW_OK;
        SW_TRY(encode(s));
        const bool is_last = before >= SAMPLE_BYTES && s->bytes > before;
        s->encoded += is_last ? 0.5 * (double)s->tokens.count : (double)s->tokens.count;
        if (is_last) {
            s->bytes = before;
            return SW_OK;
        }
        if (s->packer != NULL)
            SW_TRY(sw_packer_add(s->packer, &s->tokens, sw_text_of_buffer(&s->loss)));
    }
}

static sw_status estimate(struct sample *s, struct sw_token_estimate *out) {
    SW_TRY(open_sample(s));
    SW_TRY(read_sample(s));
    if (s->encoded == 0.0)
        return sw_fail(SW_ERR_ARG, "%s%s no text", s->inputs.path[0],
                       s->inputs.count > 1 ? " and the other files hold" : " holds");
    if (s->packer != NULL) {
        SW_TRY(sw_packer_finish(s->packer));
        s->encoded += (double)sw_packer_padding(s->packer);
    }
    const double all = (double)sw_text_reader_bytes(s->reader);
    *out = (struct sw_token_estimate){
        .tokens = (int64_t)(s->ended ? s->encoded : s->encoded / (double)s->bytes * all),
        .read_bytes = s->ended ? 0 : s->bytes,
    };
    return SW_OK;
}

sw_status sw_tokenize_estimate(const struct sw_tokenize_spec *spec, struct sw_token_estimate *out) {
    struct sample s = {.spec = spec};
    const sw_status status = estimate(&s, out);
    sw_text_encoder_destroy(s.encoder);
    sw_packer_close(s.packer);
    sw_text_reader_close(s.reader);
    sw_text_inputs_release(&s.inputs);
    sw_marked_text_release(&s.text);
    free(s.tokens.id);
    free(s.loss.data);
    free(s.frame.begin.id);
    sw_model_text_close(&s.model);
    return status;
}
