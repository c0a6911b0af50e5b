/* A model ready for forward passes: opens device, plan and engine for a source, and loads its weights. Weights that
 * memory cannot hold are copied to a drive, and every pass reads them from there. Of several ranks each has the whole
 * model, or in groups a part of every layer. */
#ifndef SW_RUN_INFERENCE_INFERENCE_H
#define SW_RUN_INFERENCE_INFERENCE_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/job.h"
#include "offload/engine/engine.h"
#include "run/folder/source.h"

#include <stdint.h>

/* The flags of eval and generate that concern the machine (cli/read_options.c). */
struct sw_inference_options {
    int precision, device;                       /* SW_PRECISION_..., sw_device_choice */
    int64_t threads, device_memory, host_memory; /* SW_OPTION_AUTO: the machine decides; memory in bytes */
    struct sw_option_list scratch;               /* folders for weights that memory cannot hold */
    bool allow_buffered;
    int64_t tensor;       /* ranks of a tensor group, each with its part of every layer, or SW_OPTION_AUTO */
    int64_t rank_timeout; /* seconds after which a silent rank ends the job */
};

struct sw_inference_spec {
    struct sw_source *source; /* whole layers, which sw_inference_open may cut; must outlive the inference */
    struct sw_ranks *ranks;   /* NULL: a single process; else all ranks open the same model, together */
    int tensor_ranks; /* size of tensor groups; must divide the number of ranks. 0 or 1: each rank has whole layers */
    const struct sw_inference_options *options;
    int64_t batch, seq; /* sequences of a forward pass, and tokens per sequence */
    int64_t context;    /* tokens that the KV cache holds; 0: no cache (sw_model_shape) */
    bool documents;     /* texts are kept apart at document starts (sw_model_shape) */
};

struct sw_inference {
    struct sw_settings settings; /* settings of `job` */
    struct sw_job job;
    struct sw_store *store; /* holds the weights that memory cannot; NULL: memory holds all */
    struct sw_engine *engine;
};

/* Opens a model into *out, which must be zero. The caller closes it, also after a failure. */
sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out);
void sw_inference_close(struct sw_inference *inference);

/* Gives every rank the logits of one row, [vocab]. Each rank of a tensor group passes its part of the vocabulary; with
 * several groups all get the first group's. All ranks call it together. */
sw_status sw_logits_share(struct sw_ranks *ranks, int tensor_ranks, int64_t vocab, float *logits);

/* Computes the logits after the last token of a growing text, from its new tokens and the KV cache. */
struct sw_decoder {
    struct sw_inference inference;
    int64_t context, pass_tokens; /* tokens that the cache holds; tokens that one pass computes */
    int64_t singles;              /* passes of one token */
    int64_t fetched_bytes;        /* weights that they brought to the device, or read from drives, whichever is more */
    int64_t first, kept;          /* the cache holds keys and values of tokens [first, first + kept) of the text */
};

struct sw_decoder_spec {
    struct sw_source *source; /* must outlive the decoder */
    struct sw_ranks *ranks;   /* one tensor group, whose ranks make the same calls; NULL: a single process */
    const struct sw_inference_options *options;
    int64_t prompt_tokens, most_tokens; /* length of the text at the start, and at most */
};

/* Opens a decoder into *out, which must be zero. The caller closes it, also after a failure. */
sw_status sw_decoder_open(const struct sw_decoder_spec *spec, struct sw_decoder *out);
void sw_decoder_close(struct sw_decoder *decoder);

/* Returns how many of the last tokens stay in the context when a text outgrows it: half of the positions, so that this
 * happens rarely. */
int64_t sw_decoder_left(int64_t positions);

/* Computes the logits after the last of `length` tokens, which must not be fewer than in the call before. When the text
 * outgrows the model's positions, only its last tokens stay, and their keys are computed again: positions count from
 * the first token of the context. */
sw_status sw_decoder_logits(struct sw_decoder *decoder, const int32_t *text, int64_t length, float *logits);

/* Chooses the next token from logits. */
struct sw_sampler_spec {
    int64_t vocab;
    double temperature; /* divides the logits; 0: always choose the most likely token */
    int64_t top_k;      /* keep this many most likely tokens, and those equal to the last of them; 0: all */
    double top_p;       /* then keep the most likely tokens that together reach this share of the probability; 1: all */
    double min_p;       /* then keep tokens at least this share as probable as the most likely one; 0: all */
    uint64_t seed;
};

struct sw_sampler;
sw_status sw_sampler_create(const struct sw_sampler_spec *spec, struct sw_sampler **out);
void sw_sampler_destroy(struct sw_sampler *sampler);

/* Returns the token for a position of the text. The same logits, seed and position give the same token. */
int32_t sw_sampler_choose(struct sw_sampler *sampler, const float *logits, uint64_t position);

#endif
