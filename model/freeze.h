/* The tuning of a model says what training changes: all of it, all but the tensors that --freeze names, or adapters
 * (lora.h). It also says in which form the frozen matrices are kept.
 *
 * The text of --freeze is a list of parts, with commas between them: "embedding"; "blocks:FIRST-LAST" or
 * "blocks:NUMBER", counted from 0; or a pattern of tensors' names in the checkpoint, as fnmatch has it: '*.mlp.*'. NULL
 * freezes nothing. */
#ifndef SW_MODEL_FREEZE_H
#define SW_MODEL_FREEZE_H

#include "model/hf/config.h"
#include "model/lora.h"
#include "offload/plan/unit.h"

#include <stdbool.h>

/* --optimizer, in the order of its choices. */
enum { SW_TRAINS_ADAMW, SW_TRAINS_MUON };

struct sw_tuning {
    const char *freeze;  /* NULL: nothing is frozen but by adapters */
    struct sw_lora lora; /* excludes `freeze` */
    /* sw_base_format of the frozen matrices of blocks; without frozen tensors SW_BASE_TYPED. It decides where tensors
     * lie in a unit, so a run keeps it. */
    int base;
    /* The optimizer of matrices, SW_TRAINS_..., and the text of --optimizer-for, or NULL (optimizer_for.h). They too
     * decide where tensors lie. */
    int optimizer;
    const char *optimizer_for;
};

/* Tells whether some tensors are not trained. */
static inline bool sw_tuning_freezes(const struct sw_tuning *tuning) {
    return tuning != NULL && (tuning->freeze != NULL || tuning->lora.rank > 0);
}
/* Copies the texts too; the caller releases the copy, which is all zeros afterwards. */
sw_status sw_tuning_copy(const struct sw_tuning *from, struct sw_tuning *out);
void sw_tuning_release(struct sw_tuning *tuning);
/* Tells whether two make the same units and train them in the same way. */
bool sw_tuning_same(const struct sw_tuning *a, const struct sw_tuning *b);

/* Refuses texts that name nothing in any model, and members that exclude each other. */
sw_status sw_tuning_check(const struct sw_tuning *tuning);

/* Adds adapters to the units of a model, freezes what is not trained and sets the format of the base, before the units
 * are sealed. The units are a rank's part, or the whole model (ranks 1); each half of a block has `tiles` of them.
 * Refuses names of nothing in this model, if it is whole, to freeze all of it, and adapters of blocks in tiles. NULL:
 * does nothing. */
sw_status sw_tuning_apply(const struct sw_tuning *tuning, const struct sw_model_config *config, int ranks,
                          int64_t tiles, struct sw_units *units);

#endif
