/* An adapter's folder: adapter_config.json, a zero byte, and adapter_model.safetensors. What is accepted has adapters
 * that the model takes, and every tensor of the file is one of theirs. */
#include "tests/fuzz/target.h"

#include "model/hf/config.h"
#include "model/model.h"
#include "model/peft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct sw_model_config config;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const char text[] =
        "{\"model_type\": \"gpt2\", \"vocab_size\": 16, \"n_positions\": 8, \"n_embd\": 8, \"n_layer\": 2,"
        "\"n_head\": 2}";
    (void)argc, (void)argv;
    const sw_status status = sw_config_parse(text, "config.json", &config);
    assert(status == SW_OK);
    return 0;
}

static sw_status fill_nothing(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context, (void)unit, (void)first;
    memset(out, 0, (size_t)count * sizeof *out);
    return SW_OK;
}

/* Reads all weights, which fails only for values that are not finite. */
static void read_all(const struct sw_units *units, const struct sw_load *load) {
    float *values = malloc(SW_GRAIN_ELEMS * sizeof *values);
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t g = 0; g < units->unit[u].grains; g++) {
            const sw_status status = load->fill(load->context, u, g * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, values);
            assert(status == SW_OK || strstr(sw_error_message(status), "not finite") != NULL);
            sw_error_clear();
        }
    free(values);
}

static void check_accepted(struct sw_peft *peft) {
    const struct sw_tuning tuning = {.lora = *sw_peft_lora(peft)};
    const struct sw_load nothing = {.fill = fill_nothing};
    struct sw_units *units = NULL;
    struct sw_load load;
    sw_status status = sw_model_units(&config, 1, SW_OPTIMIZER_FP32, &tuning, &units);
    if (status == SW_ERR_UNSUPPORTED) /* such modules are not trained whole by themselves */
        return;
    assert(status == SW_OK);
    status = sw_peft_load(peft, units, &nothing, &load);
    assert(status == SW_OK);
    read_all(units, &load);
    sw_units_destroy(units);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_peft *peft = NULL;
    const uint8_t *zero = bytes == 0 ? NULL : memchr(data, 0, bytes);
    const size_t part = zero == NULL ? bytes : (size_t)(zero - data);
    fuzz_put(SW_PEFT_CONFIG, data, part);
    fuzz_put(SW_PEFT_WEIGHTS, zero == NULL ? data : zero + 1, zero == NULL ? 0 : bytes - part - 1);
    if (sw_peft_open(fuzz_folder(), &config, &peft) == SW_OK)
        check_accepted(peft);
    sw_error_clear();
    sw_peft_close(peft);
    return 0;
}
