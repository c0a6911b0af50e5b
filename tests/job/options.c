/* Options: parsing, typing mistakes, help and JSON from one table. */
#include "job/settings/options.h"
#include "tests/equipment/support.h"

#include <stdbool.h>

struct settings {
    char *folder;
    char *model;
    struct sw_option_list data, nvme;
    int64_t micro_batch, seed, memory, time_limit;
    struct sw_option_every save_every;
    double lr, beta1;
    bool init, json;
    int device;
};

#define INTO(member) .offset = offsetof(struct settings, member)
static const struct sw_option options[] = {
    {.name = "DIR", .kind = SW_OPTION_STRING, INTO(folder), .required = true, .what = "the run's folder"},
    {.name = "--model", .kind = SW_OPTION_STRING, INTO(model), .value = "M", .required = true, .what = "the model"},
    {.name = "--data", .kind = SW_OPTION_MANY, INTO(data), .value = "F", .what = "data files"},
    {.name = "--nvme", .kind = SW_OPTION_LIST, INTO(nvme), .value = "DIR[:SIZE]", .what = "drives"},
    {.name = "--micro-batch",
     .kind = SW_OPTION_INT,
     INTO(micro_batch),
     .initial = "auto",
     .allow_auto = true,
     .int_min = 1,
     .value = "N",
     .what = "sequences computed at once"},
    {.name = "--seed",
     .kind = SW_OPTION_INT,
     INTO(seed),
     .initial = "1",
     .int_max = 1000,
     .value = "N",
     .what = "the seed"},
    {.name = "--device-memory",
     .kind = SW_OPTION_SIZE,
     INTO(memory),
     .initial = "1GiB",
     .int_min = 4096,
     .value = "SIZE",
     .what = "budget of the device"},
    {.name = "--time-limit",
     .kind = SW_OPTION_DURATION,
     INTO(time_limit),
     .value = "TIME",
     .transient = true,
     .what = "end in good time"},
    {.name = "--save-every",
     .kind = SW_OPTION_EVERY,
     INTO(save_every),
     .initial = "100,10m",
     .value = "steps|TIME",
     .what = "between commits"},
    {.name = "--lr",
     .kind = SW_OPTION_REAL,
     INTO(lr),
     .initial = "3e-4",
     .allow_auto = true,
     .value = "X",
     .what = "learning rate"},
    {.name = "--beta1",
     .kind = SW_OPTION_REAL,
     INTO(beta1),
     .initial = "0.9",
     .real_max = 1,
     .below_max = true,
     .value = "X",
     .what = "decay of the first moment"},
    {.name = "--init", .kind = SW_OPTION_FLAG, INTO(init), .what = "random weights"},
    {.name = "--json", .kind = SW_OPTION_FLAG, INTO(json), .transient = true, .what = "report as JSON"},
    {.name = "--device",
     .kind = SW_OPTION_CHOICE,
     INTO(device),
     .initial = "auto",
     .choices = "auto|cpu|cuda",
     .what = "where to compute"},
};
static const struct sw_command_line line = {
    .command = "train",
    .summary = "Trains a model.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

enum { MAX_WORDS = 32 };

/* Parses words that are separated by spaces. */
static sw_status parse(const char *words, struct settings *settings, bool *out_help) {
    char *copy = strdup(words), *rest = copy, *argv[MAX_WORDS];
    int argc = 0;
    for (char *word = NULL; (word = strtok_r(rest, " ", &rest)) != NULL && argc < MAX_WORDS;)
        argv[argc++] = word;
    bool help = false;
    const sw_status status = sw_options_parse(&line, argc, argv, settings, out_help != NULL ? out_help : &help);
    free(copy);
    return status;
}

static void test_defaults(void **state) {
    (void)state;
    struct settings settings = {0};
    support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
    support_expect_ok(parse("run --model gpt2-tiny", &settings, NULL), "parse");
    assert_string_equal(settings.folder, "run");
    assert_string_equal(settings.model, "gpt2-tiny");
    assert_int_equal(settings.micro_batch, SW_OPTION_AUTO);
    assert_int_equal(settings.seed, 1);
    assert_int_equal(settings.memory, INT64_C(1) << 30);
    assert_int_equal(settings.time_limit, 0);
    assert_int_equal(settings.save_every.steps, 100);
    assert_int_equal(settings.save_every.seconds, 600);
    assert_true(settings.lr == 3e-4 && settings.beta1 == 0.9);
    assert_false(settings.init);
    assert_int_equal(settings.device, 0);
    assert_int_equal(settings.data.count, 0);
    sw_options_release(&line, &settings);
    assert_null(settings.folder);
}

static void test_all_forms(void **state) {
    (void)state;
    struct settings settings = {0};
    support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
    support_expect_ok(
        parse("--data a.txt b.txt --nvme /a --model=m=1 --micro-batch 4 --data=c.txt --init --nvme=/b:2GiB "
              "--device-memory 1.5GiB --time-limit 15m --lr=1e-3 --device cuda --json --seed 0 -- --odd",
              &settings, NULL),
        "parse");
    assert_string_equal(settings.folder, "--odd");
    assert_string_equal(settings.model, "m=1");
    assert_int_equal(settings.data.count, 3);
    assert_string_equal(settings.data.items[1], "b.txt");
    assert_string_equal(settings.data.items[2], "c.txt");
    assert_int_equal(settings.nvme.count, 2);
    assert_string_equal(settings.nvme.items[1], "/b:2GiB");
    assert_int_equal(settings.micro_batch, 4);
    assert_int_equal(settings.memory, INT64_C(3) << 29);
    assert_int_equal(settings.time_limit, 900);
    assert_true(settings.lr == 1e-3 && settings.init && settings.json);
    assert_int_equal(settings.device, 2);
    assert_int_equal(settings.seed, 0);
    sw_options_release(&line, &settings);
}

static void test_bad(void **state) {
    (void)state;
    static const struct {
        const char *words, *message;
    } bad[] = {
        {"run --model m --micro-bacth 4", "train has no flag --micro-bacth; did you mean --micro-batch?"},
        {"run --model m --sed=4", "did you mean --seed?"},
        {"run --model m --learning-rate 1e-5", "train has no flag --learning-rate; here it is --lr"},
        {"run --model m --per_device_train_batch_size=4", "here it is --micro-batch (sequences that a rank"},
        {"run --model m --bf16", "train has no flag --bf16; 'spillway train --help'"},
        {"run --model m --sample-packing", "train has no flag --sample-packing: documents are always packed"},
        {"run --model m --use_dora", "train has no flag --use_dora: adapters change no magnitudes"},
        {"run --model m --use_lora", "train has no flag --use_lora; 'spillway train --help' lists its flags"},
        {"run --model m --attn_implementation=sdpa", "attention is always fused"},
        {"run --model m --quantum-computer", "'spillway train --help' lists its flags"},
        {"run --model m -x", "no flag -x"},
        {"run", "train needs --model (the model)"},
        {"--model m", "train needs DIR"},
        {"run --model", "--model needs a value (M)"},
        {"run --model --init", "--model needs a value (M)"},
        {"run --model=", "--model is empty"},
        {"run --model m --data", "--data needs a value"},
        {"run more --model m", "does not know what to do with 'more'"},
        {"run --model m --model n", "--model is given twice"},
        {"run --model m --init=yes", "--init takes no value"},
        {"run --model m --micro-batch 0", "--micro-batch is '0'; it must be a whole number of at least 1, or auto"},
        {"run --model m --micro-batch 2.5", "'2.5'"},
        {"run --model m --micro-batch 99999999999999999999", "whole number"},
        {"run --model m --seed 1001", "from 0 to 1000"},
        {"run --model m --seed auto", "'auto'"},
        {"run --model m --seed -1", "'-1'"},
        {"run --model m --lr fast", "--lr is 'fast'; it must be a number of at least 0"},
        {"run --model m --lr nan", "'nan'"},
        {"run --model m --lr 1e-3x", "'1e-3x'"},
        {"run --model m --lr -1", "at least 0, or auto"},
        {"run --model m --beta1 1", "from 0 to below 1"},
        {"run --model m --device-memory 1Gig",
         "not a size; write for example 512MiB, 24GiB (or 24G) or 500GB, while reading"},
        {"run --model m --device-memory 1K", "it must be from 4.00 KiB to"},
        {"run --model m --time-limit 5d", "such as 90s, 15m or 2h"},
        {"run --model m --time-limit h", "such as 90s"},
        {"run --model m --time-limit 9223372036854775807h", "such as 90s"},
        {"run --model m --save-every 0",
         "--save-every is '0'; it must be steps, a time or both, such as 100, 10m or 100,10m"},
        {"run --model m --save-every 0s", "steps, a time or both"},
        {"run --model m --save-every 100,200", "'100,200'"},
        {"run --model m --save-every 10m,", "'10m,'"},
        {"run --model m --save-every often", "'often'"},
        {"run --model m --device tpu", "--device is 'tpu'; it must be one of auto|cpu|cuda"},
        {"run --model m --device cp", "'cp'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct settings settings = {0};
        support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
        support_expect_failure(parse(bad[i].words, &settings, NULL), SW_ERR_ARG, bad[i].message, bad[i].words);
        sw_options_release(&line, &settings);
    }
}

static void test_help(void **state) {
    (void)state;
    struct settings settings = {0};
    bool help = false;
    support_expect_ok(parse("--init --help", &settings, &help), "help needs nothing else");
    assert_true(help);
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    sw_options_help(&line, to);
    assert_int_equal(fclose(to), 0);
    assert_non_null(strstr(text, "Usage: spillway train DIR --model M [flags]\n"));
    assert_non_null(strstr(text, "(default: 1GiB)"));
    assert_non_null(strstr(text, "--device auto|cpu|cuda"));
    for (int i = 0; i < line.option_count; i++) { /* Each is there with its meaning. */
        assert_non_null(strstr(text, options[i].name));
        assert_non_null(strstr(text, options[i].what));
    }
    free(text);
}

/* Two commands of one table: each has its own rows, under headings, within 80 columns. */
static void test_shared_table(void **state) {
    (void)state;
    enum { ONE = 1, OTHER = 2 };
    static const char expected[] = "Usage: spillway one DIR [flags]\n"
                                   "\n"
                                   "Does one thing.\n"
                                   "\n"
                                   "Input:\n"
                                   "  DIR                       the folder (required)\n"
                                   "  --seed N                  a text whose words do not fit beside the flag and go\n"
                                   "                            on below it (default: 1)\n"
                                   "\n"
                                   "Output:\n"
                                   "  --quiet                   print only results, warnings and errors\n"
                                   "  --help                    print this text\n"
                                   "\n"
                                   "Examples:\n"
                                   "  spillway one a\n";
    static const struct sw_option rows[] = {
        {.name = "DIR",
         .kind = SW_OPTION_STRING,
         INTO(folder),
         .commands = ONE | OTHER,
         .group = "Input",
         .required = true,
         .what = "the folder"},
        {.name = "--seed",
         .kind = SW_OPTION_INT,
         INTO(seed),
         .commands = ONE,
         .group = "Input",
         .initial = "1",
         .value = "N",
         .what = "a text whose words do not fit beside the flag and go on below it"},
        {.name = "--seed", .kind = SW_OPTION_REAL, INTO(lr), .commands = OTHER, .initial = "2.5", .what = "a rate"}};
    const struct sw_command_line one = {.command = "one",
                                        .summary = "Does one thing.",
                                        .options = rows,
                                        .option_count = sizeof rows / sizeof rows[0],
                                        .bit = ONE,
                                        .examples = {"spillway one a"}};
    struct sw_command_line other = one;
    other.bit = OTHER;
    struct settings settings = {0};
    bool help;
    support_expect_ok(sw_options_defaults(&one, &settings), "defaults");
    assert_true(settings.seed == 1 && settings.lr == 0.0);
    char *argv[] = {"run", "--seed", "0.5"};
    support_expect_failure(sw_options_parse(&one, 3, argv, &settings, &help), SW_ERR_ARG, "--seed", "not a number");
    support_expect_ok(sw_options_parse(&other, 3, argv, &settings, &help), "parse");
    assert_true(settings.seed == 1 && settings.lr == 0.5);
    sw_options_release(&one, &settings);
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    sw_options_help(&one, to);
    assert_int_equal(fclose(to), 0);
    assert_string_equal(text, expected);
    free(text);
}

static void test_json_round_trip(void **state) {
    (void)state;
    struct settings settings = {0}, back = {0};
    support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
    support_expect_ok(sw_options_defaults(&line, &back), "defaults");
    support_expect_ok(parse("run --model m --data a b --seed 7 --device-memory 3GiB --lr 0.12345678901234567 --beta1 "
                            "0.95 --init --json "
                            "--device cpu --time-limit 5",
                            &settings, NULL),
                      "parse");
    json_t *object = NULL;
    support_expect_ok(sw_options_to_json(&line, &settings, &object), "to JSON");
    assert_null(json_object_get(object, "json"));
    assert_null(json_object_get(object, "time_limit"));
    assert_null(json_object_get(object, "DIR"));
    assert_string_equal(json_string_value(json_object_get(object, "micro_batch")), "auto");
    assert_string_equal(json_string_value(json_object_get(object, "device")), "cpu");
    char *text = json_dumps(object, 0);
    json_decref(object);
    object = json_loads(text, 0, NULL);
    support_expect_ok(sw_options_from_json(&line, object, "run.json", &back), text);
    assert_string_equal(back.model, "m");
    assert_int_equal(back.data.count, 2);
    assert_string_equal(back.data.items[1], "b");
    assert_int_equal(back.nvme.count, 0);
    assert_int_equal(back.micro_batch, SW_OPTION_AUTO);
    assert_int_equal(back.seed, 7);
    assert_int_equal(back.memory, INT64_C(3) << 30);
    assert_true(back.lr == 0.12345678901234567 && back.beta1 == 0.95 && back.init && !back.json);
    assert_int_equal(back.device, 1);
    free(text);
    json_decref(object);
    sw_options_release(&line, &settings);
    sw_options_release(&line, &back);
}

static void test_a_real_may_be_auto(void **state) {
    (void)state;
    struct settings settings = {0}, back = {0};
    support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
    support_expect_ok(sw_options_defaults(&line, &back), "defaults");
    support_expect_ok(parse("run --model m --lr auto", &settings, NULL), "parse");
    assert_true(settings.lr == (double)SW_OPTION_AUTO);
    json_t *object = NULL;
    support_expect_ok(sw_options_to_json(&line, &settings, &object), "to JSON");
    assert_string_equal(json_string_value(json_object_get(object, "lr")), "auto");
    support_expect_ok(sw_options_from_json(&line, object, "run.json", &back), "from JSON");
    assert_true(back.lr == (double)SW_OPTION_AUTO);
    support_expect_failure(parse("run --model m --beta1 auto", &settings, NULL), SW_ERR_ARG, "--beta1", "no auto");
    json_decref(object);
    sw_options_release(&line, &settings);
    sw_options_release(&line, &back);
}

static void test_how_often_in_all_forms(void **state) {
    (void)state;
    static const struct {
        const char *text, *json;
        int64_t steps, seconds;
    } forms[] = {{"7", "7", 7, 0},
                 {"30s", "\"30s\"", 0, 30},
                 {"10min", "\"600s\"", 0, 600},
                 {"2h,50", "\"50,7200s\"", 50, 7200}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct settings settings = {0}, back = {0};
        char words[64];
        support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
        support_expect_ok(sw_options_defaults(&line, &back), "defaults");
        snprintf(words, sizeof words, "run --model m --save-every %s", forms[i].text);
        support_expect_ok(parse(words, &settings, NULL), words);
        json_t *object = NULL;
        support_expect_ok(sw_options_to_json(&line, &settings, &object), "to JSON");
        char *text = json_dumps(json_object_get(object, "save_every"), JSON_ENCODE_ANY);
        assert_string_equal(text, forms[i].json);
        free(text);
        support_expect_ok(sw_options_from_json(&line, object, "run.json", &back), words);
        assert_int_equal(back.save_every.steps, forms[i].steps);
        assert_int_equal(back.save_every.seconds, forms[i].seconds);
        json_decref(object);
        sw_options_release(&line, &settings);
        sw_options_release(&line, &back);
    }
}

static void test_flags_override_json(void **state) {
    (void)state;
    struct settings settings = {0};
    json_t *object = json_loads(
        "{\"model\": \"old\", \"data\": [\"old1\", \"old2\"], \"nvme\": [\"/old\"], \"seed\": 9, \"lr\": 1}", 0, NULL);
    support_expect_ok(sw_options_defaults(&line, &settings), "defaults");
    support_expect_ok(sw_options_from_json(&line, object, "run.json", &settings), "from JSON");
    support_expect_ok(parse("run --model m --nvme /new1 --nvme /new2", &settings, NULL), "parse");
    assert_int_equal(settings.data.count, 2);
    assert_string_equal(settings.data.items[0], "old1");
    assert_int_equal(settings.nvme.count, 2);
    assert_string_equal(settings.nvme.items[0], "/new1");
    assert_int_equal(settings.seed, 9);
    assert_true(settings.lr == 1.0);
    assert_true(settings.beta1 == 0.9); /* Missing in the JSON: the default stays. */
    json_decref(object);
    sw_options_release(&line, &settings);
}

static void test_bad_json(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"[]", "run.json: the settings are not a JSON object"},
        {"{\"warp\": 9}", "run.json has the option 'warp', which this version does not know"},
        {"{\"json\": true}", "'json'"},
        {"{\"seed\": \"7\"}",
         "the value of --seed has the wrong type; restore the file from a copy, while reading run.json"},
        {"{\"seed\": 1001}", "from 0 to 1000"},
        {"{\"micro_batch\": \"some\"}", "--micro-batch has the wrong type"},
        {"{\"model\": 7}", "--model has the wrong type"},
        {"{\"init\": 1}", "--init has the wrong type"},
        {"{\"data\": \"a\"}", "--data has the wrong type"},
        {"{\"data\": [1]}", "a value of --data is not a string"},
        {"{\"seed\": 7}", "run.json gives no value for --model"},
        {"{\"device\": \"tpu\"}", "one of auto|cpu|cuda"},
        {"{\"device_memory\": 5}", "from 4.00 KiB"},
        {"{\"save_every\": 0}", "--save-every is '0'"},
        {"{\"save_every\": true}", "--save-every has the wrong type"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct settings settings = {0};
        json_t *object = json_loads(bad[i].text, 0, NULL);
        assert_non_null(object);
        support_expect_failure(sw_options_from_json(&line, object, "run.json", &settings), SW_ERR_ARG, bad[i].message,
                               bad[i].text);
        json_decref(object);
        sw_options_release(&line, &settings);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_all_forms),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_shared_table),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_a_real_may_be_auto),
        cmocka_unit_test(test_how_often_in_all_forms),
        cmocka_unit_test(test_flags_override_json),
        cmocka_unit_test(test_bad_json),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
