/* Adapters as PEFT's folders: adapter_config.json and adapter_model.safetensors, in and out.
 *
 * PEFT puts "base_model.model." before the names of an adapter's tensors, which are otherwise those of lora.h. */
#ifndef SW_MODEL_PEFT_H
#define SW_MODEL_PEFT_H

#include "core/dtype.h"
#include "core/status.h"
#include "model/hf/config.h"
#include "model/lora.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

#include <stdbool.h>
#include <stdint.h>

#define SW_PEFT_CONFIG "adapter_config.json"
#define SW_PEFT_WEIGHTS "adapter_model.safetensors"

/* Tells whether a folder has an adapter's configuration. */
bool sw_peft_is_one(const char *folder);

/* Returns the name or path of the model that an adapter was trained on, as its configuration has it; NULL: the
 * configuration cannot be read or does not say. The caller frees it. */
char *sw_peft_base(const char *folder);

struct sw_peft;

/* Opens an adapter of this model. Refuses kinds of adapters that are not supported, tensors that are missing, unknown
 * or of another shape, and whatever is no regular file. Reads no weights yet. */
sw_status sw_peft_open(const char *folder, const struct sw_model_config *config, struct sw_peft **out);
void sw_peft_close(struct sw_peft *adapter);

/* Returns the adapter's rank, scale and modules, valid until it is closed. */
const struct sw_lora *sw_peft_lora(const struct sw_peft *adapter);
int64_t sw_peft_parameters(const struct sw_peft *adapter); /* parameters in the file */

/* Fills the tensors that the adapter has from its file, and all others from `base`. The units are the model's with the
 * adapter's sw_lora, the base fills them all, and both must outlive the load, as the adapter must. Fails if the units
 * have other adapters. */
sw_status sw_peft_load(struct sw_peft *adapter, const struct sw_units *units, const struct sw_load *base,
                       struct sw_load *out);

struct sw_peft_export {
    const struct sw_model_config *config;
    const struct sw_units *units; /* the model's units with adapters */
    const struct sw_load *from;   /* their weights */
    const struct sw_lora *lora;
    const char *base; /* path of the model that the adapters were trained on */
    sw_dtype type;    /* type of the tensors */
};

/* Returns the name of a trained tensor that such a folder cannot hold; NULL: it can hold all. */
const char *sw_peft_unwritable(const struct sw_units *units);

/* Writes the adapters of a model as a folder that PEFT loads. The folder must be new or empty (export_folder.h). */
sw_status sw_peft_write(const char *folder, const struct sw_peft_export *export);

#endif
