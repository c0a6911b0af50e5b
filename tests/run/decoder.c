/* A text that grows token by token: logits and the most likely tokens are those of the whole text in one pass, for
 * every family, also where the text outgrows the model's positions, and to the last bit wherever the weights live. */
#include "tests/equipment/support.h"

#include <math.h>

#include "core/rng.h"
#include "core/size.h"
#include "job/settings/settings.h"
#include "run/inference/inference.h"

enum { SEED = 3, MOST_TEXT = 1200, MOST_VOCAB = 600, THREADS = 2 };
#define FP32_TOLERANCE 1e-5 /* of the largest logit */
/* Root mean square against fp32: of bf16 step by step at most this factor of bf16 in one pass. */
#define BF16_FACTOR 1.5
/* Budgets with room for the passes of a model of 4.9 million parameters, and for few of its weights. */
#define DEVICE_BYTES (8 * SW_MIB)
#define HOST_BYTES (7 * SW_MIB)

struct text_case {
    const char *model; /* in the golden data, or a preset with random weights */
    int64_t tiles;     /* of a preset */
    int64_t prompt, most;
};
static const struct text_case cases[] = {
    {"gpt2-a", 0, 11, 60},       {"gpt2-b", 0, 1, 41},        {"llama-a", 0, 11, 60},  {"llama-b", 0, 23, 64},
    {"mistral-a", 0, 30, 60},    {"mistral-a", 0, 5, 40},     {"qwen2-a", 0, 7, 50},   {"qwen3-a", 0, 11, 60},
    {"phi3-a", 0, 9, 60},        {"gpt2-tiny", 2, 11, 30},    {"gpt2-tiny", 1, 2, 30}, {"llama-long", 0, 1100, 1103},
    {"llama-long", 0, 512, 516}, {"llama-long", 0, 513, 515}, {"bloom-a", 0, 11, 60}};
/* Attention sinks, a window that the text outgrows, and experts: a rounding error in bf16 may choose another expert. */
static const struct text_case routed[] = {{"gptoss-a", 0, 11, 60}, {"gptoss-a", 0, 1, 20}};
/* These outgrow their positions, 64 and 41. */
static const struct text_case outgrowing[] = {
    {"gpt2-a", 0, 30, 150}, {"llama-a", 0, 100, 140}, {"gpt2-b", 0, 41, 70}, {"qwen2-a", 0, 64, 66}};

/* On the CPU, or on the GPU that the program is linked for. */
static struct sw_inference_options options_of(int precision) {
    return (struct sw_inference_options){.precision = precision,
                                         .device = getenv("SW_TEST_DEVICE") != NULL ? SW_DEVICE_CUDA : SW_DEVICE_CPU,
                                         .threads = THREADS,
                                         .device_memory = SW_OPTION_AUTO,
                                         .host_memory = SW_OPTION_AUTO};
}

static struct sw_source *open_source(const struct text_case *c) {
    char path[SUPPORT_PATH_CHARS];
    static const struct sw_option_list none = {0};
    struct sw_source *source;
    const struct sw_source_spec random = {.model = c->model, .init = true, .seed = SEED, .tiles = c->tiles};
    snprintf(path, sizeof path, "%s/%s", getenv("SW_TEST_DATA"), c->model);
    support_expect_ok(c->tiles == 0 ? sw_source_open_any(path, &(struct sw_run_moved){.nvme = &none}, NULL, &source)
                                    : sw_source_open_model(&random, &source),
                      c->model);
    return source;
}

static void open_decoder(const struct text_case *c, struct sw_source *source,
                         const struct sw_inference_options *options, struct sw_decoder *out) {
    const struct sw_decoder_spec spec = {
        .source = source, .options = options, .prompt_tokens = c->prompt, .most_tokens = c->most};
    *out = (struct sw_decoder){0};
    support_expect_ok(sw_decoder_open(&spec, out), c->model);
}

/* The same in passes that stand alone, of the longest text. */
static void open_whole(struct sw_source *source, int64_t seq, const struct sw_inference_options *options,
                       struct sw_inference *out) {
    const struct sw_inference_spec spec = {.source = source, .options = options, .batch = 1, .seq = seq};
    *out = (struct sw_inference){0};
    support_expect_ok(sw_inference_open(&spec, out), "opening for whole passes");
}

static void whole_logits(struct sw_inference *whole, int64_t seq, const int32_t *text, int64_t length, float *logits) {
    int32_t *tokens = sw_engine_tokens(whole->engine, 0);
    const struct sw_step_input input = {.kind = SW_STEP_LOGITS, .loss_tokens = 1, .row = length - 1, .logits = logits};
    struct sw_step_result result;
    memset(tokens, 0, (size_t)(2 * seq) * sizeof *tokens);
    memcpy(tokens, text, (size_t)length * sizeof *tokens);
    support_expect_ok(sw_engine_begin(whole->engine, &input), "a whole pass");
    support_expect_ok(sw_engine_wait(whole->engine, &result), "a whole pass");
}

static int64_t largest_of(const float *logits, int64_t vocab) {
    int64_t largest = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[largest])
            largest = i;
    return largest;
}

static void fill_prompt(const struct text_case *c, int64_t vocab, int32_t *text) {
    for (int64_t t = 0; t < c->prompt; t++)
        text[t] = (int32_t)(sw_rng(SEED, 1, (uint64_t)t).word[0] % (uint32_t)vocab);
}

static void compare(const struct text_case *c, int64_t length, int64_t vocab, const float *got, const float *want) {
    double most = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        most = fmax(most, fabs((double)got[i] - (double)want[i]));
    const double largest = fabs((double)want[largest_of(want, vocab)]);
    if (!(most <= FP32_TOLERANCE * largest))
        fail_msg("seed %d: %s in %lld tiles, prompt %lld, length %lld: logits differ by %g of %g", SEED, c->model,
                 (long long)c->tiles, (long long)c->prompt, (long long)length, most, largest);
}

/* Continues a text that the decoder writes itself. Returns how often it forgot what came first. */
static int64_t write_text(const struct text_case *c) {
    struct sw_source *source = open_source(c);
    const struct sw_inference_options options = options_of(SW_PRECISION_FP32);
    const int64_t vocab = sw_source_config(source)->vocab, positions = sw_source_config(source)->max_positions;
    const int64_t seq = sw_min_i64(positions, c->most);
    static float got[MOST_VOCAB], want[MOST_VOCAB];
    static int32_t text[MOST_TEXT];
    int64_t forgot = 0, first = 0;
    struct sw_decoder decoder;
    struct sw_inference whole;
    open_decoder(c, source, &options, &decoder);
    open_whole(source, seq, &options, &whole);
    fill_prompt(c, vocab, text);
    for (int64_t length = c->prompt; length < c->most; length++) {
        support_expect_ok(sw_decoder_logits(&decoder, text, length, got), c->model);
        assert_true(decoder.first + decoder.kept == length && decoder.kept <= positions);
        whole_logits(&whole, seq, text + decoder.first, decoder.kept, want);
        compare(c, length, vocab, got, want);
        assert_int_equal(largest_of(got, vocab), largest_of(want, vocab));
        if (length > c->prompt && decoder.first != first) {
            assert_int_equal(decoder.kept, positions / 2);
            forgot++;
        }
        first = decoder.first;
        text[length] = (int32_t)largest_of(got, vocab);
    }
    sw_decoder_close(&decoder);
    sw_inference_close(&whole);
    sw_source_close(source);
    return forgot;
}

static void as_in_one_pass(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(write_text(&cases[i]), 0);
    for (size_t i = 0; i < sizeof routed / sizeof routed[0]; i++)
        assert_int_equal(write_text(&routed[i]), 0);
}

static void beyond_the_positions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof outgrowing / sizeof outgrowing[0]; i++)
        assert_true(write_text(&outgrowing[i]) > 0);
}

/* Sum of squared differences from fp32 in one pass, over a text that is given. */
static double squares(const struct text_case *c, struct sw_source *source, bool by_steps) {
    const struct sw_inference_options exact = options_of(SW_PRECISION_FP32), rounded = options_of(SW_PRECISION_BF16);
    const int64_t vocab = sw_source_config(source)->vocab;
    static float got[MOST_VOCAB], want[MOST_VOCAB];
    static int32_t text[MOST_TEXT];
    const struct text_case all = {.prompt = c->most};
    struct sw_inference reference, whole;
    struct sw_decoder decoder;
    double sum = 0.0;
    open_whole(source, c->most, &exact, &reference);
    open_whole(source, c->most, &rounded, &whole);
    open_decoder(c, source, &rounded, &decoder);
    fill_prompt(&all, vocab, text);
    for (int64_t length = c->prompt; length < c->most; length++) {
        whole_logits(&reference, c->most, text, length, want);
        if (by_steps)
            support_expect_ok(sw_decoder_logits(&decoder, text, length, got), c->model);
        else
            whole_logits(&whole, c->most, text, length, got);
        for (int64_t i = 0; i < vocab; i++)
            sum += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    }
    sw_decoder_close(&decoder);
    sw_inference_close(&reference);
    sw_inference_close(&whole);
    return sum;
}

static void as_near_in_bf16(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_source *source = open_source(&cases[i]);
        const double steps = sqrt(squares(&cases[i], source, true)), whole = sqrt(squares(&cases[i], source, false));
        if (!(steps <= BF16_FACTOR * whole))
            fail_msg("%s: bf16 is off by %g step by step, by %g in one pass", cases[i].model, steps, whole);
        sw_source_close(source);
    }
}

/* With weights in memory, and with most of them on a drive. */
static void same_bits_from_a_drive(void **state) {
    char folder[SUPPORT_PATH_CHARS];
    char *folders[] = {(char *)(uintptr_t)support_path(state, "", folder)};
    static float got[MOST_VOCAB], want[MOST_VOCAB];
    static int32_t text[MOST_TEXT];
    for (int precision = SW_PRECISION_BF16; precision <= SW_PRECISION_FP32; precision++) {
        const struct text_case c = {"gpt2-demo", 1, 11, 20};
        struct sw_source *source = open_source(&c);
        const struct sw_inference_options memory = options_of(precision);
        struct sw_inference_options drive = memory;
        struct sw_decoder here, there;
        drive.device_memory = DEVICE_BYTES;
        drive.host_memory = HOST_BYTES;
        drive.scratch = (struct sw_option_list){.items = folders, .count = 1};
        open_decoder(&c, source, &memory, &here);
        open_decoder(&c, source, &drive, &there);
        assert_null(here.inference.store);
        assert_non_null(there.inference.store);
        fill_prompt(&c, sw_source_config(source)->vocab, text);
        for (int64_t length = c.prompt; length < c.most; length++) {
            support_expect_ok(sw_decoder_logits(&here, text, length, want), "in memory");
            support_expect_ok(sw_decoder_logits(&there, text, length, got), "from a drive");
            assert_memory_equal(got, want, (size_t)sw_source_config(source)->vocab * sizeof *got);
            text[length] = (int32_t)largest_of(got, sw_source_config(source)->vocab);
        }
        assert_true(sw_store_counters(there.inference.store).read_bytes > 0);
        sw_decoder_close(&here);
        sw_decoder_close(&there);
        sw_source_close(source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_one_pass), cmocka_unit_test(beyond_the_positions), cmocka_unit_test(as_near_in_bf16),
        cmocka_unit_test_setup_teardown(same_bits_from_a_drive, support_make_folder, support_remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
