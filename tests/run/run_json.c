/* run.json and starting.json: no bit changes unseen, and no value in them ends a reader but by a sentence. */
#include "tests/equipment/support.h"

#include "core/json.h"
#include "run/folder/run.h"
#include "run/stores/start.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

enum { BITS = 8, TEXT_BYTES = 1 << 16, HUGE_CHARS = 70000, LEVELS = 300 };
#define ID "0123456789abcdef0123456789abcdef"
#define OTHER_ID "fedcba9876543210fedcba9876543210"

static const char words[] =
    "train --model gpt2-tiny --init --data a.txt --data b.txt --val 5% --steps 9 --run run --seq 64 --micro-batch 4 "
    "--batch-tokens 512 --lr 3e-4 --clip 1 --place optimizer=nvme --nvme disk:1GiB --freeze embedding --lr-scale "
    "head*=2 "
    "--no-decay *norm* --sample-prompt Once --sample-every 3 --eval-every 3 --export-every 3 --save-every 2,1m --seed "
    "3";

static void add(struct sw_option_list *list, const char *text) {
    support_expect_ok(sw_option_list_add(list, text), text);
}

/* Fills in all that a run can have. */
static void describe(struct sw_run *run) {
    char text[sizeof words], *argv[64];
    int argc = 0;
    bool help;
    memcpy(text, words, sizeof words);
    for (char *word = strtok(text + strlen("train "), " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    support_expect_ok(sw_options_defaults(&sw_train_command, &run->settings), "the defaults");
    support_expect_ok(sw_options_parse(&sw_train_command, argc, argv, &run->settings, &help), "parsing");
    support_expect_ok(sw_config_load("gpt2-tiny", &run->config), "the configuration");
    run->data_digest = 7;
    run->frozen_digest = 9;
    run->reference_digest = 11;
    run->turn_end = (struct sw_turn_end){.id = 5, .token = strdup("<end>")};
    run->ranks = 2;
    run->store = calloc(2, sizeof *run->store);
    run->orphans = calloc(2, sizeof *run->orphans);
    assert_true(run->store != NULL && run->orphans != NULL && run->turn_end.token != NULL);
    for (int i = 0; i < 2; i++) {
        snprintf(run->store[i].id, SW_STORE_ID_CHARS, "%s", i == 0 ? ID : OTHER_ID);
        run->store[i].local_rank = i;
        add(&run->store[i].places, i == 0 ? "/disk/0" : "/disk/1");
    }
    run->orphan_count = 2;
    for (int i = 0; i < 2; i++) {
        snprintf(run->orphans[i].id, SW_STORE_ID_CHARS, "%s", OTHER_ID);
        run->orphans[i].last_step = 4 + i;
        add(&run->orphans[i].places, i == 0 ? "rank-0-of-3" : "rank-1-of-3");
    }
    add(&run->starts, ID);
    add(&run->beside, "mask");
    add(&run->texts.data, "/text/a*.jsonl");
    add(&run->texts.data, "/text/b.txt");
    add(&run->texts.val, "/text/held.jsonl");
    run->texts.data_files =
        (struct sw_text_files){.count = 2, .bytes = 100, .digest = 3, .content = 5, .modified_ns = 6};
    run->texts.val_files = (struct sw_text_files){.count = 1, .bytes = 10, .digest = 4};
    run->products = (struct sw_algorithm_record){.library = 1, .gpu = "none such"};
    run->model_files = json_pack("{s:s}", "tokenizer.json", ID);
    run->machine = json_pack("{s:s, s:i}", "cpu", "a CPU", "cores", 2);
    run->prediction = json_pack("{s:i, s:[f, n]}", "first_step", 1, "lanes", 0.5);
}

static void write_run(void *const *state) {
    struct sw_run run = {0};
    describe(&run);
    support_expect_ok(sw_run_write(((struct support_folder *)*state)->path, &run), "writing");
    sw_run_release(&run);
}

static void write_start(void *const *state) {
    char path[SUPPORT_PATH_CHARS];
    struct sw_run run = {0};
    describe(&run);
    run.tensor_ranks = 2;
    run.optimizer = SW_OPTIMIZER_8BIT;
    const int file = open(support_path(state, SW_START_FILE_NAME, path), O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(file >= 0);
    support_expect_ok(sw_unfinished_start_write(file, path, &run), "writing");
    close(file);
    sw_run_release(&run);
}

/* Reads a file of the folder into `text`; returns its bytes. */
static size_t load(void *const *state, const char *name, char text[TEXT_BYTES]) {
    char path[SUPPORT_PATH_CHARS];
    FILE *file = fopen(support_path(state, name, path), "rb");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, TEXT_BYTES - 1, file);
    fclose(file);
    assert_in_range(bytes, 1, TEXT_BYTES - 2);
    text[bytes] = '\0';
    return bytes;
}

/* Checks that a reader that took a file has not dropped an error on the way. */
static void expect_no_error(void) {
    assert_string_equal(sw_error_message(SW_OK), sw_status_name(SW_OK));
}

/* A reader of one of the two files. Returns whether it took the file, and else makes sure that the message names it. */
typedef bool (*reader)(void *const *state);

static bool takes_run(void *const *state) {
    struct sw_run run = {0};
    const sw_status status = sw_run_read(((struct support_folder *)*state)->path, &run);
    if (status != SW_OK) {
        assert_non_null(strstr(sw_error_message(status), "run.json"));
    } else {
        expect_no_error();
        (void)sw_settings_check(&run.settings); /* its values are judged when the run goes on */
    }
    sw_error_clear();
    sw_run_release(&run);
    return status == SW_OK;
}

static bool takes_start(void *const *state) {
    struct sw_unfinished_start unfinished;
    const sw_status status = sw_unfinished_start_read(((struct support_folder *)*state)->path, &unfinished);
    if (status != SW_OK)
        assert_non_null(strstr(sw_error_message(status), SW_START_FILE_NAME));
    else
        expect_no_error();
    if (status == SW_OK && unfinished.whole)
        (void)sw_unfinished_start_check(((struct support_folder *)*state)->path, &unfinished);
    sw_error_clear();
    const bool taken = status == SW_OK && unfinished.whole;
    sw_unfinished_start_release(&unfinished);
    return taken;
}

static void test_a_run_that_is_read_and_written_stays_the_same(void **state) {
    const char *folder = ((struct support_folder *)*state)->path;
    char before[TEXT_BYTES], after[TEXT_BYTES];
    struct sw_run run = {0};
    write_run(state);
    load(state, "run.json", before);
    support_expect_ok(sw_run_read(folder, &run), "reading");
    assert_true(run.products.library == 1 && run.model_files != NULL && run.machine != NULL && run.prediction != NULL);
    assert_string_equal(run.turn_end.token, "<end>");
    assert_int_equal(run.turn_end.id, 5);
    assert_true(run.data_digest == 7 && run.frozen_digest == 9 && run.reference_digest == 11);
    assert_true(run.texts.data_files.count == 2 && run.texts.data_files.bytes == 100 &&
                run.texts.data_files.digest == 3 && run.texts.val_files.count == 1);
    support_expect_ok(sw_run_write(folder, &run), "writing again");
    load(state, "run.json", after);
    assert_string_equal(before, after);
    sw_run_release(&run);
}

static void test_a_start_is_read_as_it_was_written(void **state) {
    struct sw_unfinished_start unfinished;
    write_start(state);
    support_expect_ok(sw_unfinished_start_read(((struct support_folder *)*state)->path, &unfinished), "reading");
    assert_true(unfinished.whole && unfinished.run.ranks == 2 && unfinished.run.tensor_ranks == 2);
    assert_int_equal(unfinished.run.optimizer, SW_OPTIMIZER_8BIT);
    assert_string_equal(unfinished.run.store[1].id, OTHER_ID);
    assert_int_equal(unfinished.run.store[1].local_rank, 1);
    assert_string_equal(unfinished.run.store[1].places.items[0], "/disk/1");
    sw_unfinished_start_release(&unfinished);
}

/* Flips bits of a file: each of its beginning, where the checksum is, and one of every later byte, which the checksum
 * covers. It may be taken only where the member has another name, and the rest is intact. */
static void flip(void *const *state, const char *name, reader takes) {
    static const char member[] = "checksum";
    enum { ALL_OF_BYTES = 64, STRIDE = 9 };
    char text[TEXT_BYTES], path[SUPPORT_PATH_CHARS];
    const size_t bytes = load(state, name, text), begin = (size_t)(strstr(text, member) - text);
    int taken = 0;
    const int file = open(support_path(state, name, path), O_WRONLY);
    assert_true(file >= 0 && bytes > ALL_OF_BYTES);
    for (size_t bit = 0; bit < bytes * BITS; bit += bit < ALL_OF_BYTES * BITS ? 1 : STRIDE) {
        const size_t at = bit / BITS;
        const char flipped = (char)(text[at] ^ (1 << bit % BITS));
        assert_int_equal(pwrite(file, &flipped, 1, (off_t)at), 1);
        if (takes(state)) {
            taken++;
            if (at < begin || at >= begin + strlen(member))
                fail_msg("%s is taken with bit %zu of byte %zu flipped", name, bit % BITS, at);
        }
        assert_int_equal(pwrite(file, &text[at], 1, (off_t)at), 1);
    }
    close(file);
    assert_true(takes(state) && taken > 0);
}

static void test_flipped_bits_of_run_json_are_seen(void **state) {
    write_run(state);
    flip(state, "run.json", takes_run);
}

static void test_flipped_bits_of_starting_json_are_seen(void **state) {
    write_start(state);
    flip(state, SW_START_FILE_NAME, takes_start);
}

static void test_who_edits_takes_the_checksum_out(void **state) {
    char text[TEXT_BYTES], path[SUPPORT_PATH_CHARS];
    struct sw_run run = {0};
    const char *folder = ((struct support_folder *)*state)->path;
    write_run(state);
    const size_t bytes = load(state, "run.json", text);
    char *steps = strstr(text, "\"steps\": 9"), *checksum = strstr(text, "  \"checksum\"");
    assert_true(steps != NULL && checksum != NULL);
    steps[strlen("\"steps\": ")] = '8';
    support_write(state, "run.json", text, bytes, path);
    support_expect_failure(sw_run_read(folder, &run), SW_ERR_CORRUPT,
                           "run.json does not match its checksum, so it was damaged or edited: restore it from a copy, "
                           "or, if you edited it, remove its line \"checksum\"",
                           "edited");
    sw_run_release(&run);
    /* Whoever writes the file anew by another program changes where the member is, or how it is written. */
    char moved[TEXT_BYTES] = " ";
    steps[strlen("\"steps\": ")] = '9';
    memcpy(moved + 1, text, bytes);
    support_write(state, "run.json", moved, bytes + 1, path);
    support_expect_failure(sw_run_read(folder, &run), SW_ERR_CORRUPT, "remove its line \"checksum\"", "moved");
    sw_run_release(&run);
    steps[strlen("\"steps\": ")] = '8';
    memmove(checksum, strchr(checksum, '\n') + 1, strlen(strchr(checksum, '\n')));
    support_write(state, "run.json", text, strlen(text), path);
    support_expect_ok(sw_run_read(folder, &run), "without the line");
    assert_int_equal(run.settings.steps, 8);
    sw_run_release(&run);
}

struct sweep {
    void *const *state;
    const char *name;
    reader takes;
    json_t *root;
    char *huge, *deep;
};

static void read_as(const struct sweep *sweep) {
    char path[SUPPORT_PATH_CHARS];
    char *text = json_dumps(sweep->root, 0);
    assert_non_null(text);
    support_write(sweep->state, sweep->name, text, strlen(text), path);
    (void)sweep->takes(sweep->state);
    free(text);
}

static void sweep_values(const struct sweep *sweep, json_t *within);

/* Puts each value in the place of one member, or of one element of a list, and what is in it. */
static void sweep_one(const struct sweep *sweep, json_t *within, const char *key, size_t index) {
    const char *values[] = {"null", "[]",         "{}",  "\"\"",      "-1",       "1e400", "9223372036854775807",
                            "true", "[[[null]]]", "0.5", sweep->huge, sweep->deep};
    json_t *old = key != NULL ? json_object_get(within, key) : json_array_get(within, index);
    json_incref(old);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct sw_json_source source = {
            .text = values[i], .bytes = strlen(values[i]), .name = "a value", .bad = SW_ERR_ARG, .kind = SW_JSON_DATA};
        json_t *value;
        support_expect_ok(sw_json_decode(source, &value), values[i]);
        assert_int_equal(
            key != NULL ? json_object_set_new(within, key, value) : json_array_set_new(within, index, value), 0);
        read_as(sweep);
    }
    if (key != NULL) {
        json_object_del(within, key);
        read_as(sweep);
    }
    assert_int_equal(key != NULL ? json_object_set(within, key, old) : json_array_set(within, index, old), 0);
    sweep_values(sweep, old);
    json_decref(old);
}

static void sweep_values(const struct sweep *sweep, json_t *within) {
    enum { MOST_MEMBERS = 256 };
    const char *key, *keys[MOST_MEMBERS];
    json_t *value;
    size_t count = 0;
    json_object_foreach(within, key, value) {
        assert_true(count < MOST_MEMBERS);
        keys[count] = strdup(key);
        assert_non_null(keys[count++]);
    }
    for (size_t i = 0; i < count; i++) {
        sweep_one(sweep, within, keys[i], 0);
        free((char *)(uintptr_t)keys[i]);
    }
    for (size_t i = 0; i < json_array_size(within); i++)
        sweep_one(sweep, within, NULL, i);
}

static void sweep_all(void *const *state, const char *name, reader takes) {
    char text[TEXT_BYTES];
    struct sweep sweep = {.state = state, .name = name, .takes = takes};
    const size_t bytes = load(state, name, text);
    support_expect_ok(sw_json_try(text, bytes, &sweep.root), name);
    sweep.huge = malloc(HUGE_CHARS + 1);
    sweep.deep = malloc(2 * LEVELS + 1);
    assert_true(sweep.root != NULL && sweep.huge != NULL && sweep.deep != NULL);
    json_object_del(sweep.root, "checksum");
    memset(sweep.huge, 'x', HUGE_CHARS);
    sweep.huge[0] = sweep.huge[HUGE_CHARS - 1] = '"';
    sweep.huge[HUGE_CHARS] = '\0';
    memset(sweep.deep, '[', LEVELS);
    memset(sweep.deep + LEVELS, ']', LEVELS);
    sweep.deep[2 * LEVELS] = '\0';
    read_as(&sweep);
    sweep_values(&sweep, sweep.root);
    json_decref(sweep.root);
    free(sweep.huge);
    free(sweep.deep);
}

static void test_each_value_of_run_json_may_be_any_other(void **state) {
    write_run(state);
    sweep_all(state, "run.json", takes_run);
}

static void test_each_value_of_starting_json_may_be_any_other(void **state) {
    write_start(state);
    sweep_all(state, SW_START_FILE_NAME, takes_start);
}

/* Writes run.json with one value changed: a member of the file, of the object `within` it, or of an element of the list
 * `within`. value NULL: the member is removed. */
static void write_changed(void *const *state, const char *within, int index, const char *member, const char *value) {
    char text[TEXT_BYTES], path[SUPPORT_PATH_CHARS];
    json_t *root;
    write_run(state);
    support_expect_ok(sw_json_try(text, load(state, "run.json", text), &root), "run.json");
    json_t *list = within != NULL ? json_object_get(root, within) : root;
    json_t *object = json_is_array(list) ? json_array_get(list, (size_t)index) : list;
    json_object_del(root, "checksum");
    if (value != NULL)
        assert_int_equal(json_object_set_new(object, member, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        assert_int_equal(json_object_del(object, member), 0);
    char *changed = json_dumps(root, 0);
    assert_non_null(changed);
    support_write(state, "run.json", changed, strlen(changed), path);
    free(changed);
    json_decref(root);
}

static void test_what_run_json_must_say_is_asked_for(void **state) {
    static const struct {
        const char *within;
        int index;
        const char *member, *value, *words;
    } cases[] = {
        {NULL, 0, "version", "2", "has version 2"},
        {NULL, 0, "settings", "1", "lacks settings, config or data_digest"},
        {NULL, 0, "data_digest", "\"none\"", "lacks settings, config or data_digest"},
        {NULL, 0, "frozen_digest", "\"none\"", "lacks the frozen_digest"},
        {NULL, 0, "ranks", "0", "the number of ranks"},
        {NULL, 0, "ranks", "3", "the number of ranks"},
        {NULL, 0, "optimizer", "\"none\"", "a format of its stores that does not exist"},
        {NULL, 0, "optimizer", "\"bf16\"", "that its stores hold bf16"},
        {NULL, 0, "beside", "[1]", "'beside' is not a list"},
        {NULL, 0, "starts", "[\"a\", 1]", "'starts' is not a list"},
        {"settings", 0, "tensor", "4", "2 stores for groups of 4"},
        {"stores", 0, "id", "null", "the id, local_rank and places"},
        {"stores", 1, "local_rank", "\"1\"", "the id, local_rank and places"},
        {"stores", 1, "places", "1", "the id, local_rank and places"},
        {"left", 0, "id", "\"0\"", "the id, last_step and places"},
        {"left", 1, "last_step", "null", "the id, last_step and places"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_run run = {0};
        write_changed(state, cases[i].within, cases[i].index, cases[i].member, cases[i].value);
        const sw_status status = sw_run_read(((struct support_folder *)*state)->path, &run);
        support_expect_failure(status, i == 0 ? SW_ERR_UNSUPPORTED : SW_ERR_CORRUPT, cases[i].words, cases[i].member);
        sw_run_release(&run);
    }
}

/* Early versions had one store per run, whose id they wrote later than its places. */
static void test_a_run_json_without_stores_has_one(void **state) {
    const char *folder = ((struct support_folder *)*state)->path;
    for (int away = 0; away < 2; away++) {
        char text[TEXT_BYTES], path[SUPPORT_PATH_CHARS];
        struct sw_run run = {0};
        json_t *root;
        write_changed(state, "settings", 0, "nvme", away ? "[\"/disk:1GiB\"]" : "[]");
        support_expect_ok(sw_json_try(text, load(state, "run.json", text), &root), "run.json");
        json_object_del(root, "stores");
        json_object_del(root, "ranks");
        if (away)
            json_object_set_new(root, "store_id", json_string(ID));
        char *changed = json_dumps(root, 0);
        support_write(state, "run.json", changed, strlen(changed), path);
        support_expect_ok(sw_run_read(folder, &run), "reading");
        assert_int_equal(run.ranks, 1);
        assert_string_equal(run.store[0].id, away ? ID : "");
        assert_int_equal(run.store[0].places.count, away);
        if (away)
            assert_string_equal(run.store[0].places.items[0], "/disk");
        sw_run_release(&run);
        json_decref(root);
        free(changed);
    }
}

static int times(const char *text, const char *word) {
    int count = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        count++;
    return count;
}

static void test_a_commit_gives_its_position_back(void **state) {
    (void)state;
    enum { STEP = 40, STEPS = 30, PAIRED = 7, DIGEST = 7 };
    struct sw_run_position before = {.step = STEP,
                                     .applied_steps = STEP - 2,
                                     .skipped_steps = 2,
                                     .loss_scale = {.scale = 65536.0, .good_steps = 9},
                                     .start = ID};
    struct sw_run_position after;
    char text[SW_STORE_META_BYTES], again[SW_STORE_META_BYTES];
    for (int i = 0; i < STEPS; i++)
        before.recent[i] = (struct sw_run_step){.step = STEP - STEPS + 1 + i,
                                                .loss = 0.1 * i,
                                                .grad_norm = i == 0 ? NAN : 0.3 * i,
                                                .lr = 1e-3,
                                                .loss_tokens = 64 + i,
                                                .skipped = i == 3,
                                                .rewards = {.pairs = i < PAIRED ? 2 : 0, .chosen = 0.1 * i}};
    support_expect_ok(sw_run_position_write(&before, DIGEST, text, sizeof text), "writing");
    assert_int_equal(times(text, "\"rewards\""), PAIRED);
    assert_int_equal(times(text, "\"loss_tokens\""), STEPS);
    support_expect_ok(sw_run_position_read(text, DIGEST, &after), "reading");
    assert_true(after.step == STEP && after.applied_steps == STEP - 2 && after.skipped_steps == 2);
    assert_true(after.loss_scale.scale == 65536.0 && after.loss_scale.good_steps == 9);
    assert_string_equal(after.start, ID);
    assert_true(after.recent[STEPS - 1].step == STEP && after.recent[STEPS].step == 0);
    support_expect_ok(sw_run_position_write(&after, DIGEST, again, sizeof again), "writing again");
    assert_string_equal(text, again);
    support_expect_failure(sw_run_position_read(text, DIGEST + 1, &after), SW_ERR_ARG, "other data", "another digest");
    before.recent[0].step = STEP + 1;
    support_expect_ok(sw_run_position_write(&before, DIGEST, text, sizeof text), "writing a step to come");
    support_expect_failure(sw_run_position_read(text, DIGEST, &after), SW_ERR_CORRUPT, "the position of step 41",
                           "a step to come");
    /* Old commits do not name their process. */
    char *start = strstr(again, "\"start\""), *rest = strstr(again, "\"data_digest\"");
    memmove(start, rest, strlen(rest) + 1);
    support_expect_ok(sw_run_position_read(again, DIGEST, &after), "reading an old commit");
    assert_string_equal(after.start, "");
}

static void test_one_process_has_a_run(void **state) {
    const char *folder = ((struct support_folder *)*state)->path;
    char path[SUPPORT_PATH_CHARS];
    int lock = -1, second = -1;
    support_expect_ok(sw_run_lock(folder, &lock), "the lock");
    assert_true(lock >= 0 && access(support_path(state, SW_RUN_LOCK_NAME, path), F_OK) == 0);
    support_expect_failure(sw_run_lock(folder, &second), SW_ERR_BUSY, "already open in this process", "a second lock");
    close(lock);
    sw_run_lock_remove(folder);
    assert_int_equal(symlink("elsewhere", path), 0);
    support_expect_failure(sw_run_lock(folder, &lock), SW_ERR_IO, "cannot be opened for writing", "a link");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    support_expect_failure(sw_run_lock(folder, &lock), SW_ERR_ARG, "is not a regular file", "a FIFO");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

/* Makes the folder of a rank in the run's, and tells run.json's description that its store lies there. */
static void make_rank_folder(void *const *state, struct sw_run *run, int rank, char path[SUPPORT_PATH_CHARS]) {
    char name[SW_OWNER_FOLDER_CHARS];
    const struct sw_store_owner owner = {
        .rank = rank, .ranks = run->ranks, .tensor_ranks = run->tensor_ranks, .optimizer = run->optimizer};
    sw_places_folder_name(&owner, name);
    assert_int_equal(mkdir(support_path(state, name, path), 0700), 0);
    sw_option_list_release(&run->store[rank].places);
    add(&run->store[rank].places, path);
}

/* The rank that undoes a start sees the folders of ranks that were killed before they made a store. */
static void test_a_start_that_failed_leaves_no_folder_of_a_rank(void **state) {
    const char *folder = ((struct support_folder *)*state)->path;
    char path[2][SUPPORT_PATH_CHARS], store[SUPPORT_PATH_CHARS + 32];
    struct sw_run run = {0};
    describe(&run);
    for (int full = 1; full >= 0; full--) {
        for (int rank = 0; rank < 2 && full == 1; rank++)
            make_rank_folder(state, &run, rank, path[rank]);
        snprintf(store, sizeof store, "%s/" SW_STORE_FILE_NAME, path[1]);
        if (full == 1) {
            write_start(state);
            close(open(store, O_RDWR | O_CREAT | O_EXCL, 0600));
        } else {
            unlink(store);
        }
        sw_start_undo(folder, &run);
        assert_int_equal(access(path[0], F_OK), -1);
        assert_int_equal(access(path[1], F_OK), full == 1 ? 0 : -1);
        assert_int_equal(sw_start_is_unfinished(folder), full == 1);
    }
    support_expect_ok(sw_start_check(folder), "another start");
    sw_run_release(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_a_run_that_is_read_and_written_stays_the_same),
        IN_FOLDER(test_a_start_is_read_as_it_was_written),
        IN_FOLDER(test_flipped_bits_of_run_json_are_seen),
        IN_FOLDER(test_flipped_bits_of_starting_json_are_seen),
        IN_FOLDER(test_who_edits_takes_the_checksum_out),
        IN_FOLDER(test_each_value_of_run_json_may_be_any_other),
        IN_FOLDER(test_each_value_of_starting_json_may_be_any_other),
        IN_FOLDER(test_what_run_json_must_say_is_asked_for),
        IN_FOLDER(test_a_run_json_without_stores_has_one),
        IN_FOLDER(test_a_commit_gives_its_position_back),
        IN_FOLDER(test_one_process_has_a_run),
        IN_FOLDER(test_a_start_that_failed_leaves_no_folder_of_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
