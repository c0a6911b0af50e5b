#include "model/hf/family.h"

#include <string.h>

static const struct sw_family *const families[] = {&sw_gpt2_family, &sw_llama_family, &sw_mistral_family,
                                                   &sw_qwen2_family, &sw_qwen3_family};

const struct sw_family *sw_family_find(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    return NULL;
}

const char *sw_family_names(void) {
    return "gpt2, llama, mistral, qwen2, qwen3";
}

const char *const sw_dropout_fields[] = {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", NULL};

/* Fields that conversion scripts, quantizers and web runtimes leave in the file. */
const char *const sw_passed_over_fields[] = {
    "is_llama_config", "max_sequence_length", "transformers.js_config", "unsloth_fixed", "unsloth_version", NULL,
};

const char *const sw_harmless_fields[] = {
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "gradient_checkpointing",
    "task_specific_params",
    "finetuning_task",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "_num_labels",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "tokenizer_class",
    "prefix",
    "is_decoder",
    "chunk_size_feed_forward",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "return_dict",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    NULL,
};
