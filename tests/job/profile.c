/* The entries of the cache that are refused as a profile: those that lack a part, or say something absurd. Looks into
 * the cache and into folders leave an earlier error alone, and processes change an entry one after the other. */
#include "tests/equipment/support.h"

#include "core/files/cache.h"
#include "job/profile.h"
#include "job/rates.h"
#include "run/folder/run.h"
#include "text/model_text.h"

#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4, CHANGES = 8, CHANGE_US = 1000 };

static json_t *whole_entry(void) {
    const struct sw_rate rate = {.bytes_per_s = 1e9, .cores = 1.0};
    const struct sw_rates rates = {.cores = 2.0,
                                   .upload = rate,
                                   .download = rate,
                                   .update = rate,
                                   .update_on_device = rate,
                                   .finish = rate,
                                   .zero = rate,
                                   .gather = rate,
                                   .reduce = rate};
    json_t *entry = json_pack("{s:[{s:s, s:i, s:i, s:i, s:i, s:f, s:f}], s:{}}", "ops", "op", "product", "kind", 0, "m",
                              64, "n", 64, "k", 64, "work", 524288.0, "seconds", 1e-4, "rates");
    sw_rates_to_json(&rates, SW_RATES_OF_MACHINE, json_object_get(entry, "rates"));
    return entry;
}

static sw_status read_entry(const json_t *entry, int64_t *out_count) {
    struct sw_profile profile = {0};
    assert_int_equal(sw_op_times_create(&profile.times), SW_OK);
    const sw_status status = sw_profile_from_json(entry, &profile);
    *out_count = sw_op_times_count(profile.times);
    sw_profile_release(&profile);
    return status;
}

static void a_whole_one(void **state) {
    (void)state;
    json_t *entry = whole_entry();
    int64_t count;
    assert_int_equal(read_entry(entry, &count), SW_OK);
    assert_int_equal(count, 1);
    json_decref(entry);
}

/* Changes one field of the only op. */
struct change {
    const char *field;
    json_t *value; /* NULL: the field is left out */
};

static void refuse(struct change change) {
    json_t *entry = whole_entry(), *op = json_array_get(json_object_get(entry, "ops"), 0);
    int64_t count;
    if (change.value == NULL)
        json_object_del(op, change.field);
    else
        json_object_set_new(op, change.field, change.value);
    if (read_entry(entry, &count) == SW_OK)
        fail_msg("a profile with another '%s' was read", change.field);
    sw_error_clear();
    json_decref(entry);
}

static void ops_that_are_absurd(void **state) {
    (void)state;
    const struct change changes[] = {
        {"op", json_string("magic")}, {"op", NULL},   {"m", json_integer(-1)},      {"k", json_string("64")},
        {"work", json_real(0.0)},     {"work", NULL}, {"seconds", json_real(-1.0)}, {"seconds", json_real(0.0)}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        refuse(changes[i]);
}

static void parts_that_are_missing(void **state) {
    (void)state;
    static const char *const parts[] = {"ops", "rates"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        json_t *entry = whole_entry();
        int64_t count;
        json_object_del(entry, parts[i]);
        assert_true(read_entry(entry, &count) != SW_OK);
        sw_error_clear();
        json_decref(entry);
    }
}

/* Numbers that no machine has, though they are numbers. */
static void rates_that_are_absurd(void **state) {
    (void)state;
    static const char *const rates[] = {"upload", "update", "zero", "gather"};
    static const double values[] = {-1.0, 0.0, 1e-3, 1e30};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            json_t *entry = whole_entry();
            int64_t count;
            json_t *rate = json_object_get(json_object_get(entry, "rates"), rates[i]);
            json_object_set_new(rate, "bytes_per_s", json_real(values[k]));
            if (read_entry(entry, &count) == SW_OK)
                fail_msg("a profile with %s of %g bytes/s was read", rates[i], values[k]);
            sw_error_clear();
            json_decref(entry);
        }
}

/* Ranks on several nodes also keep the rates of collectives within one. */
static void rates_within_a_node(void **state) {
    (void)state;
    const struct sw_scope_rates kept = {.gather = {2e9, 1.0}, .reduce = {1e9, 0.5}, .latency_s = 3e-5};
    for (int damaged = 0; damaged <= 1; damaged++) {
        struct sw_profile profile = {0};
        json_t *entry = whole_entry(), *in_node = sw_scope_rates_to_json(&kept);
        if (damaged)
            json_object_set_new(json_object_get(in_node, "reduce"), "bytes_per_s", json_real(1e30));
        json_object_set_new(entry, "in_node", in_node);
        assert_int_equal(sw_op_times_create(&profile.times), SW_OK);
        assert_int_equal(sw_profile_from_json(entry, &profile), damaged ? SW_ERR_CORRUPT : SW_OK);
        const struct sw_scope_rates *read = &profile.rates.in_node;
        assert_true(read->gather.bytes_per_s == 2e9 && read->gather.cores == 1.0);
        assert_true(damaged || (read->reduce.bytes_per_s == 1e9 && read->latency_s == 3e-5));
        sw_profile_release(&profile);
        sw_error_clear();
        json_decref(entry);
    }
}

static void looks_keep_an_earlier_error(void **state) {
    (void)state;
    char long_name[8192];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    sw_fail(SW_ERR_IO, "the drive is gone");
    assert_null(sw_cache_read("profile", "a machine that there is not"));
    assert_string_equal(sw_error_message(SW_ERR_IO), "the drive is gone");
    assert_false(sw_run_is_one(long_name));
    assert_false(sw_model_text_is_there(long_name));
    assert_string_equal(sw_error_message(SW_ERR_IO), "the drive is gone");
    sw_error_clear();
}

/* Appends a number to a list, as a process appends what it measured, and takes its time about it. */
static bool append(json_t *entry, void *context) {
    json_t *list = json_object_get(entry, "numbers");
    if (list == NULL) {
        list = json_array();
        json_object_set_new(entry, "numbers", list);
    }
    usleep(CHANGE_US);
    return json_array_append_new(list, json_integer(*(const int *)context)) == 0;
}

/* Processes that add to one entry at once lose nothing that another has added. */
static void changes_at_once(void **state) {
    (void)state;
    char name[64];
    snprintf(name, sizeof name, "changed by %ld", (long)getpid());
    for (int process = 0; process < PROCESSES; process++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child > 0)
            continue;
        sw_status status = SW_OK;
        for (int i = 0; status == SW_OK && i < CHANGES; i++)
            status = sw_cache_update("test", name, append, &(int){process * CHANGES + i});
        _exit(status == SW_OK ? 0 : 1);
    }
    for (int process = 0, ended = 0; process < PROCESSES; process++) {
        assert_true(wait(&ended) > 0);
        assert_int_equal(ended, 0);
    }
    char path[SW_CACHE_PATH_CHARS];
    bool there[PROCESSES * CHANGES] = {false};
    json_t *entry = sw_cache_read("test", name), *list = json_object_get(entry, "numbers");
    assert_int_equal(json_array_size(list), PROCESSES * CHANGES);
    for (size_t i = 0; i < json_array_size(list); i++)
        there[json_integer_value(json_array_get(list, i))] = true;
    for (int i = 0; i < PROCESSES * CHANGES; i++)
        assert_true(there[i]);
    json_decref(entry);
    assert_int_equal(sw_cache_path("test", name, path), SW_OK);
    assert_int_equal(unlink(path), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(changes_at_once),
                                       cmocka_unit_test(a_whole_one),
                                       cmocka_unit_test(looks_keep_an_earlier_error),
                                       cmocka_unit_test(ops_that_are_absurd),
                                       cmocka_unit_test(parts_that_are_missing),
                                       cmocka_unit_test(rates_that_are_absurd),
                                       cmocka_unit_test(rates_within_a_node)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
