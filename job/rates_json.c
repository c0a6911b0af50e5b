#include "job/rates_json.h"

#include "core/files/json_file.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* A number of struct sw_rates in the file: its name, and which set it belongs to. */
struct number {
    const char *name;
    size_t offset;
    sw_rate_set set;
};
#define MACHINE(member)                                                                                                \
    { #member, offsetof(struct sw_rates, member), SW_RATES_OF_MACHINE }
#define DRIVES(member)                                                                                                 \
    { #member, offsetof(struct sw_rates, member), SW_RATES_OF_DRIVES }
static const struct number numbers[] = {MACHINE(cores),       MACHINE(compute_cores), DRIVES(read_write_slowdown),
                                        DRIVES(io_latency_s), DRIVES(commit_s),       MACHINE(op_s),
                                        MACHINE(queued_op_s), MACHINE(comm_latency_s)};
static const struct number moves[] = {MACHINE(upload), MACHINE(download), MACHINE(update), MACHINE(update_on_device),
                                      MACHINE(finish), MACHINE(zero),     DRIVES(read),    DRIVES(write),
                                      MACHINE(gather), MACHINE(reduce)};
/* A file may lack these, which are 0 then. */
static const struct number further_moves[] = {MACHINE(update_bf16), MACHINE(update_8bit)};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static void add_number(const struct sw_rates *rates, const struct number *number, json_t *object) {
    json_object_set_new(object, number->name, json_real(*(const double *)((const char *)rates + number->offset)));
}

static const struct sw_rate *rate_at(const struct sw_rates *rates, const struct number *move) {
    return (const void *)((const char *)rates + move->offset);
}

static json_t *rate_to_json(const struct sw_rate *rate) {
    return json_pack("{s:f, s:f}", "bytes_per_s", rate->bytes_per_s, "cores", rate->cores);
}

static void add_move(const struct sw_rates *rates, const struct number *move, json_t *object) {
    json_object_set_new(object, move->name, rate_to_json(rate_at(rates, move)));
}

void sw_rates_to_json(const struct sw_rates *rates, sw_rate_set set, json_t *object) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        if ((numbers[i].set & set) != 0)
            add_number(rates, &numbers[i], object);
    for (size_t i = 0; i < COUNT(moves); i++)
        if ((moves[i].set & set) != 0)
            add_move(rates, &moves[i], object);
    for (size_t i = 0; i < COUNT(further_moves); i++)
        if ((further_moves[i].set & set) != 0 && rate_at(rates, &further_moves[i])->bytes_per_s > 0.0)
            add_move(rates, &further_moves[i], object);
}

static bool is_amount(const json_t *value, bool may_be_zero) {
    const double number = json_number_value(value);
    return json_is_number(value) && isfinite(number) && (number > 0.0 || (may_be_zero && number == 0.0));
}

/* Checks that an assumed number has its range and its reason. */
static bool is_assumption(const json_t *value, bool may_be_zero) {
    const json_t *low = json_object_get(value, "low"), *high = json_object_get(value, "high");
    const json_t *expected = json_object_get(value, "expected");
    return is_amount(low, may_be_zero) && is_amount(expected, may_be_zero) && is_amount(high, may_be_zero) &&
           json_number_value(low) <= json_number_value(expected) &&
           json_number_value(expected) <= json_number_value(high) &&
           json_string_length(json_object_get(value, "why")) > 0;
}

sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out) {
    const json_t *value = json_object_get(object, name);
    const bool assumed = json_is_object(value);
    *out = json_number_value(assumed ? json_object_get(value, "expected") : value);
    if (assumed ? is_assumption(value, may_be_zero) : is_amount(value, may_be_zero))
        return SW_OK;
    if (assumed)
        return sw_fail(SW_ERR_ARG, "%s: %s must have positive numbers low <= expected <= high, and why", path, name);
    return sw_fail(SW_ERR_ARG, "%s: %s must be a positive number%s", path, name, may_be_zero ? ", or 0" : "");
}

static sw_status read_number(const json_t *object, const struct number *number, const char *path,
                             struct sw_rates *out) {
    return sw_json_positive(object, number->name, path, strcmp(number->name, "cores") != 0,
                            (double *)((char *)out + number->offset));
}

static sw_status read_rate(const json_t *object, const char *name, const char *path, struct sw_rate *out) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_object(value))
        return sw_fail(SW_ERR_ARG, "%s: %s must be an object of bytes_per_s and cores", path, name);
    SW_TRY(sw_json_positive(value, "bytes_per_s", path, false, &out->bytes_per_s));
    return sw_json_positive(value, "cores", path, true, &out->cores);
}

static sw_status read_move(const json_t *object, const struct number *move, const char *path, struct sw_rates *out) {
    return read_rate(object, move->name, path, (void *)((char *)out + move->offset));
}

sw_status sw_rates_from_json(const json_t *object, sw_rate_set set, const char *path, struct sw_rates *out) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        if ((numbers[i].set & set) != 0)
            SW_TRY(read_number(object, &numbers[i], path, out));
    for (size_t i = 0; i < COUNT(moves); i++)
        if ((moves[i].set & set) != 0)
            SW_TRY(read_move(object, &moves[i], path, out));
    for (size_t i = 0; i < COUNT(further_moves); i++)
        if ((further_moves[i].set & set) != 0 && json_object_get(object, further_moves[i].name) != NULL)
            SW_TRY(read_move(object, &further_moves[i], path, out));
    return SW_OK;
}

/* Bounds of a profile's rates, and of its numbers, which are cores, factors and seconds. */
#define LEAST_BYTES_PER_S 1e3
#define MOST_BYTES_PER_S 1e16
#define MOST_NUMBER 1e6

static bool is_plausible(const struct sw_rate *rate) {
    return rate->bytes_per_s > LEAST_BYTES_PER_S && rate->bytes_per_s < MOST_BYTES_PER_S && rate->cores < MOST_NUMBER;
}

bool sw_rates_are_plausible(const struct sw_rates *rates, sw_rate_set set) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        if ((numbers[i].set & set) != 0 && !(*(const double *)((const char *)rates + numbers[i].offset) < MOST_NUMBER))
            return false;
    for (size_t i = 0; i < COUNT(moves); i++)
        if ((moves[i].set & set) != 0 && !is_plausible(rate_at(rates, &moves[i])))
            return false;
    for (size_t i = 0; i < COUNT(further_moves); i++) {
        const struct sw_rate *rate = rate_at(rates, &further_moves[i]);
        if ((further_moves[i].set & set) != 0 && rate->bytes_per_s != 0.0 && !is_plausible(rate))
            return false;
    }
    return true;
}

json_t *sw_scope_rates_to_json(const struct sw_scope_rates *rates) {
    return json_pack("{s:o, s:o, s:f}", "gather", rate_to_json(&rates->gather), "reduce", rate_to_json(&rates->reduce),
                     "latency_s", rates->latency_s);
}

sw_status sw_scope_rates_from_json(const json_t *object, const char *path, struct sw_scope_rates *out) {
    SW_TRY(read_rate(object, "gather", path, &out->gather));
    SW_TRY(read_rate(object, "reduce", path, &out->reduce));
    SW_TRY(sw_json_positive(object, "latency_s", path, true, &out->latency_s));
    return is_plausible(&out->gather) && is_plausible(&out->reduce) && out->latency_s < MOST_NUMBER
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s: a rate is one that no machine has", path);
}

sw_status sw_rates_refuse_unknown(const json_t *object, const char *path) {
    static const char *const move_names[] = {"bytes_per_s", "cores"};
    enum { MOVES = COUNT(moves), ALL_MOVES = MOVES + COUNT(further_moves) };
    const char *names[COUNT(numbers) + ALL_MOVES];
    for (size_t i = 0; i < COUNT(numbers); i++)
        names[i] = numbers[i].name;
    for (size_t i = 0; i < ALL_MOVES; i++)
        names[COUNT(numbers) + i] = i < MOVES ? moves[i].name : further_moves[i - MOVES].name;
    SW_TRY(sw_json_refuse_unknown(object, path, "rates", names, COUNT(names)));
    for (size_t i = COUNT(numbers); i < COUNT(names); i++)
        SW_TRY(
            sw_json_refuse_unknown(json_object_get(object, names[i]), path, names[i], move_names, COUNT(move_names)));
    return SW_OK;
}
