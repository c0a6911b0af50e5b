/* Counts what the ops between the products of a block take of its forward and backward pass on machines that are not
 * here, by the model's own code on the described device, and what a fusion could spare at most
 * (docs/evidence/predictions.md). */
#include "tests/equipment/support.h"

#include "core/size.h"
#include "job/profile.h"
#include "kernels/device_ops.h"

enum { ROTATION, ACTIVATION, GRADIENT, KINDS };
/* An area of the described device has addresses alone, so all have the same, ample size. */
#define AREA_BYTES (4 * SW_GIB)
/* A fused product is one of our own, and at best by so much as fast as the library's. */
#define OWN_SPEED 0.97
/* A fusion that spares less of a block is not worth kernels of products. */
#define LEAST_SHARE 0.03

/* The seconds of each kind of op, and the function of the device that counts all of them. */
static struct counting {
    double seconds[KINDS];
    sw_status (*run)(struct sw_stream *stream, sw_device_op op, const void *args);
} counting;

static sw_status run_and_note(struct sw_stream *stream, sw_device_op op, const void *args) {
    const double before_s = sw_device_counted_s(stream->device);
    const sw_status status = counting.run(stream, op, args);
    const double seconds = sw_device_counted_s(stream->device) - before_s;
    switch (op) {
    case SW_DEVICE_ROTATE: counting.seconds[ROTATION] += seconds; break;
    case SW_DEVICE_GATED_FORWARD:
    case SW_DEVICE_ACTIVATION_FORWARD: counting.seconds[ACTIVATION] += seconds; break;
    case SW_DEVICE_GATED_BACKWARD:
    case SW_DEVICE_ACTIVATION_BACKWARD: counting.seconds[GRADIENT] += seconds; break;
    default: break;
    }
    return status;
}

/* Returns the seconds of a block's forward and backward pass, which keeps all that the latter reads. */
static double block_s(struct sw_device *device, struct sw_model *model) {
    const struct sw_unit_ops ops = sw_model_ops(model);
    struct sw_stream *stream;
    struct sw_memory *memory;
    support_expect_ok(sw_stream_open(device, &stream), "preparing");
    support_expect_ok(sw_memory_open(device, "areas", SW_MEMORY_DEVICE, 8 * AREA_BYTES, &memory), "preparing");
    char *base = sw_memory_base(memory);
    const struct sw_unit_call call = {.stream = stream,
                                      .unit = 1,
                                      .weights = base,
                                      .in = base + AREA_BYTES,
                                      .out = base + 2 * AREA_BYTES,
                                      .saved = base + 3 * AREA_BYTES,
                                      .derived = base + 4 * AREA_BYTES,
                                      .grad = base + 5 * AREA_BYTES,
                                      .acc = (float *)(void *)(base + 6 * AREA_BYTES),
                                      .work = base + 7 * AREA_BYTES};
    counting = (struct counting){.run = device->ops.run};
    device->ops.run = run_and_note;
    const double before_s = sw_device_counted_s(device);
    support_expect_ok(ops.forward(ops.context, &call), "counting");
    support_expect_ok(ops.backward(ops.context, &call), "counting");
    device->ops.run = counting.run;
    sw_stream_close(stream);
    sw_memory_close(memory);
    return sw_device_counted_s(device) - before_s;
}

/* Returns the seconds by which the two products that a fused activation has would be slower: up, and the gradient of
 * down's input. */
static double own_products_s(const struct sw_model *model, double flops_per_s) {
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    const int count = sw_model_products(model, product);
    double flops = 0.0;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *s = &product[i].shape;
        const bool up = strcmp(product[i].layer, "up") == 0 && strcmp(product[i].pass, "forward") == 0;
        const bool down = strcmp(product[i].layer, "down") == 0 && strcmp(product[i].pass, "input gradient") == 0;
        flops += up || down ? 2.0 * (double)(s->m * s->n) * (double)s->k : 0.0;
    }
    return flops / flops_per_s * (1.0 / OWN_SPEED - 1.0);
}

/* Prints a row, and checks that no fusion spares what it would have to. Fused behind the product, an activation spares
 * the reading of the product's result, which is written all the same: the backward pass reads it. Before the gradient,
 * it spares the writing and the reading of the activated values' gradient. */
static void count_block(const char *machine_name, const char *model_name, int64_t seq) {
    struct sw_profile machine;
    struct sw_model_config config;
    struct sw_device *device;
    struct sw_model *model;
    const struct sw_model_shape shape = {.type = SW_BF16, .batch = 1, .seq = seq};
    support_expect_ok(sw_profile_describe(machine_name, SW_MACHINE_EXPECTED, &machine), machine_name);
    support_expect_ok(sw_config_load(model_name, &config), model_name);
    config.layers = 1;
    config.max_positions = sw_max_i64(config.max_positions, seq);
    support_expect_ok(sw_device_open_described(&machine.device, &device), machine_name);
    support_expect_ok(sw_model_create(&config, &shape, device, &model), model_name);
    const double all_s = block_s(device, model), *s = counting.seconds;
    const double forward_s = s[ACTIVATION] * (config.gated ? 2.0 / 3.0 : 1.0 / 2.0);
    const double backward_s = s[GRADIENT] * (config.gated ? 2.0 / 5.0 : 2.0 / 3.0);
    const double slower_s = own_products_s(model, machine.device.product_flops_per_s[SW_BF16]);
    printf("# | %s | %s | %lld | %.2f | %.2f%% | %.2f%% | %.2f%% | %.2f%% | %.2f%% |\n", machine_name, model_name,
           (long long)seq, 1e3 * all_s, 100.0 * s[ROTATION] / all_s, 100.0 * s[ACTIVATION] / all_s,
           100.0 * s[GRADIENT] / all_s, 100.0 * (forward_s + backward_s) / all_s, 100.0 * slower_s / all_s);
    assert_true(s[ACTIVATION] > 0.0 && s[GRADIENT] > s[ACTIVATION]);
    assert_true((s[ROTATION] > 0.0) == (config.positions == SW_POSITIONS_ROTARY));
    if (s[ROTATION] >= LEAST_SHARE * all_s || forward_s + backward_s - slower_s >= LEAST_SHARE * all_s)
        fail_msg("on %s a fusion in a block of %s would spare more than docs/evidence/predictions.md says",
                 machine_name, model_name);
    sw_model_destroy(model);
    sw_device_close(device);
}

static void no_fusion_spares_enough(void **state) {
    (void)state;
    static const char *const machines[] = {"h100", "a100", "rtx4090"};
    static const char *const models[] = {"llama-8b", "qwen2.5-7b", "gpt2-1.5b"};
    puts("# | machine | block of | tokens | ms | rotation | activation | its gradient | spared | slower |");
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++)
        for (size_t b = 0; b < sizeof models / sizeof models[0]; b++)
            for (int64_t seq = 4096; seq <= 8192; seq *= 2)
                count_block(machines[m], models[b], seq);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_fusion_spares_enough)};
    return cmocka_run_group_tests_name("train op shares", tests, NULL, NULL);
}
