/* Families of models: how config.json describes each, and what its tensors are called. A family is an entry of
 * SW_FAMILIES; the arithmetic knows only the description in config.h. */
#ifndef SW_MODEL_HF_FAMILY_H
#define SW_MODEL_HF_FAMILY_H

#include "model/hf/config.h"

#include <jansson.h>
#include <stddef.h>

typedef enum { SW_FIELD_INT, SW_FIELD_REAL, SW_FIELD_BOOL } sw_field_kind;

/* A field of config.json that is copied into the configuration. A list of fields ends with one without a name. */
struct sw_config_field {
    const char *name;
    sw_field_kind kind;
    size_t offset; /* of the value, in struct sw_model_config */
    bool required;
    bool read_only; /* an older name of a field: accepted, never written */
    int64_t int_min, int_max;
    double real_min, real_max;
};

/* A field that must have one value, because others are not supported. SW_ONLY_FULL_ATTENTION allows a list whose
 * entries are all "full_attention". */
struct sw_config_fixed {
    const char *name;
    enum { SW_ONLY_TRUE, SW_ONLY_FALSE, SW_ONLY_EMPTY, SW_ONLY_ZERO, SW_ONLY_ONE, SW_ONLY_FULL_ATTENTION } allowed;
};

/* A name of an activation. If several names mean the same activation, the first is written. */
struct sw_config_activation {
    const char *name;
    sw_activation activation;
};

/* Tensors of a block, in the order of the unit's flat vector. */
enum sw_block_tensor {
    /* The norm of the embedding's rows, which only the first layer has: behind the sum over a tensor group's parts of
     * the table, and with the block's other norms. */
    EMBEDDING_NORM_SCALE,
    EMBEDDING_NORM_BIAS,
    NORM1_SCALE,
    NORM1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    Q_NORM,
    K_NORM,
    SINKS,
    PROJECTION_WEIGHT,
    PROJECTION_BIAS,
    ATTENTION_RESULT_NORM,
    NORM2_SCALE,
    NORM2_BIAS,
    SHARED_GATE,
    UP_WEIGHT,
    UP_BIAS,
    DOWN_WEIGHT,
    DOWN_BIAS,
    MLP_RESULT_NORM,
    ROUTER,
    ROUTER_BIAS,
    EXPERTS,
    /* The experts of a layer where they are joined. */
    JOINED_UP,
    JOINED_UP_BIAS,
    JOINED_DOWN,
    JOINED_DOWN_BIAS,
    BLOCK_TENSORS
};

/* Matrices of an expert, in the order of the unit: all three of an expert come before those of the next, so that the
 * experts' matrices of one kind are the same distance apart. */
enum sw_expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_MATRICES };

/* The checkpoint's name of a tensor, or of one of the pieces that make it up (queries, keys and values; gates and
 * values of the inner layer). `when` is the offset of a bool in struct sw_model_config: the piece exists only if that
 * bool is set. 0: the piece always exists. */
struct sw_tensor_piece {
    const char *name;
    size_t when;
};
enum { SW_MOST_PIECES = 3 };

struct sw_tensor_names {
    const char *token_table, *position_table, *final_norm_scale, *final_norm_bias, *output_table;
    const char *block; /* the text before the layer's number, such as "model.layers." */
    const char
        *expert; /* the text before an expert's number, such as "mlp.experts."; NULL: the family has no experts */
    const char *expert_matrix[EXPERT_MATRICES];                  /* the text behind that number and a dot */
    struct sw_tensor_piece piece[BLOCK_TENSORS][SW_MOST_PIECES]; /* without EXPERTS */
};

struct sw_family {
    const char *name; /* model_type */
    const char *title;
    const char *architecture;
    struct sw_model_config defaults;
    int64_t absent_kv_heads; /* key-value heads if the field is missing; 0: as many as heads */
    double absent_theta;     /* rope_theta if the field is missing; 0: 10,000 */
    const struct sw_config_field *fields;
    const char *activation_field; /* NULL: the family has one activation, that of its defaults */
    const struct sw_config_activation *activations;
    const struct sw_config_fixed *fixed;
    const char *const *special;  /* names of fields that `derive` reads */
    const char *const *harmless; /* names of fields without effect, in addition to those of every family */
    /* `derive` reads settings that depend on several fields; `write` writes those fields. */
    sw_status (*derive)(const struct sw_family *family, const json_t *root, const char *origin,
                        struct sw_model_config *out);
    int (*write)(json_t *root, const struct sw_model_config *config);
    const struct sw_tensor_names *names;
};

/* Returns the family of that name, or NULL. */
const struct sw_family *sw_family_find(const char *name);
/* Returns the names of all families: "gpt2, llama, ...". */
const char *sw_family_names(void);
/* Tells whether a layer has a tensor that the blocks of this configuration have. */
static inline bool sw_block_tensor_in_layer(enum sw_block_tensor tensor, int64_t layer) {
    return layer == 0 || (tensor != EMBEDDING_NORM_SCALE && tensor != EMBEDDING_NORM_BIAS);
}
/* Returns how many checkpoint tensors make up a tensor of the block in this configuration; 0: the model does not have
 * it. EXPERTS has EXPERT_MATRICES of each expert. */
int sw_block_pieces(const struct sw_model_config *config, enum sw_block_tensor tensor);
/* Writes the checkpoint's name of a piece of a layer's tensor. */
void sw_block_piece_name(const struct sw_model_config *config, int64_t layer, enum sw_block_tensor tensor, int piece,
                         char *out, size_t out_bytes);
/* Returns which matrix of an expert a tensor is, or is an adapter of, by its name (enum sw_expert_matrix); -1: it is no
 * expert's matrix. Where all experts of a layer are one tensor, that of their gates and values is EXPERT_GATE. */
int sw_expert_matrix_of(const struct sw_model_config *config, const char *name);

/* Helpers for the functions of families. A field that is null counts as missing, as it does in transformers. */
const json_t *sw_config_field_of(const json_t *root, const char *name);
sw_status sw_config_read_fields(const struct sw_config_field *fields, const json_t *object, const char *origin,
                                const char *title, struct sw_model_config *out);
int sw_config_write_fields(json_t *object, const struct sw_config_field *fields, const struct sw_model_config *config);
/* Returns the text of a config.json with the fewest digits that read back as the same number, so that 0.1 stays 0.1;
 * NULL if there is no memory. The caller frees it. */
char *sw_config_dump(json_t *root);
enum { SW_SHOWN_CHARS = 48 };
/* Writes a value as the file spells it, shortened if it is long. Returns buffer. */
const char *sw_config_show(const json_t *value, char buffer[SW_SHOWN_CHARS]);

/* Every family, in the order in which messages name them. */
#define SW_FAMILIES(entry)                                                                                             \
    entry(gpt2) entry(llama) entry(mistral) entry(qwen2) entry(qwen3) entry(phi3) entry(mixtral) entry(qwen3_moe)      \
        entry(olmoe) entry(qwen2_moe) entry(gpt_oss) entry(gemma3_text) entry(bloom)
#define SW_DECLARE_FAMILY(name) extern const struct sw_family sw_##name##_family;
SW_FAMILIES(SW_DECLARE_FAMILY)
#undef SW_DECLARE_FAMILY

#endif
