#include "run/folder/stored_parts.h"

#include "model/hf/checkpoint.h"

#include <stdlib.h>

struct sw_stored_parts {
    struct sw_load values;
    struct sw_checkpoint *checkpoint; /* opened for the rank's units */
};

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_stored_parts *self = context;
    return self->values.fill(self->values.context, unit, first, count, out);
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    const struct sw_stored_parts *self = context;
    return self->values.prepare(self->values.context, unit, first, count);
}

static sw_status take_record(void *context, int64_t unit, int64_t grain, void *record) {
    const struct sw_stored_parts *self = context;
    return sw_checkpoint_record(self->checkpoint, unit, grain, record);
}

sw_status sw_stored_parts_open(const char *base, const struct sw_units *units, struct sw_load *load,
                               struct sw_stored_parts **out) {
    *out = NULL;
    if (base == NULL || sw_base_stored_elems(units->base) == 0)
        return SW_OK;
    struct sw_stored_parts *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to load");
    self->values = *load;
    const sw_status status = sw_checkpoint_open_quietly(base, units, &self->checkpoint);
    if (status != SW_OK) {
        free(self);
        return status;
    }
    load->fill = fill;
    load->prepare = load->prepare != NULL ? prepare : NULL;
    load->record = take_record;
    load->context = self;
    *out = self;
    return SW_OK;
}

void sw_stored_parts_close(struct sw_stored_parts *self) {
    if (self == NULL)
        return;
    sw_checkpoint_close(self->checkpoint);
    free(self);
}
