#include "train/plan/rates_json.h"

#include "train/files/json_file.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* The names of the numbers of struct sw_rates in the file. */
struct number {
    const char *name;
    size_t offset;
};
#define NUMBER(member)                                                                                                 \
    { #member, offsetof(struct sw_rates, member) }
static const struct number numbers[] = {NUMBER(cores),        NUMBER(compute_cores), NUMBER(read_write_slowdown),
                                        NUMBER(io_latency_s), NUMBER(commit_s),      NUMBER(op_s),
                                        NUMBER(queued_op_s),  NUMBER(comm_latency_s)};
static const struct number moves[] = {NUMBER(upload), NUMBER(download), NUMBER(update), NUMBER(update_on_device),
                                      NUMBER(finish), NUMBER(zero),     NUMBER(read),   NUMBER(write),
                                      NUMBER(gather), NUMBER(reduce)};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

void sw_rates_to_json(const struct sw_rates *rates, json_t *object) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        json_object_set_new(object, numbers[i].name,
                            json_real(*(const double *)((const char *)rates + numbers[i].offset)));
    for (size_t i = 0; i < COUNT(moves); i++) {
        const struct sw_rate *rate = (const void *)((const char *)rates + moves[i].offset);
        json_object_set_new(object, moves[i].name,
                            json_pack("{s:f, s:f}", "bytes_per_s", rate->bytes_per_s, "cores", rate->cores));
    }
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

sw_status sw_rates_from_json(const json_t *object, const char *path, struct sw_rates *out) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        SW_TRY(sw_json_positive(object, numbers[i].name, path, strcmp(numbers[i].name, "cores") != 0,
                                (double *)((char *)out + numbers[i].offset)));
    for (size_t i = 0; i < COUNT(moves); i++) {
        struct sw_rate *rate = (void *)((char *)out + moves[i].offset);
        const json_t *move = json_object_get(object, moves[i].name);
        if (!json_is_object(move))
            return sw_fail(SW_ERR_ARG, "%s: %s must be an object of bytes_per_s and cores", path, moves[i].name);
        SW_TRY(sw_json_positive(move, "bytes_per_s", path, false, &rate->bytes_per_s));
        SW_TRY(sw_json_positive(move, "cores", path, true, &rate->cores));
    }
    return SW_OK;
}

sw_status sw_rates_refuse_unknown(const json_t *object, const char *path) {
    static const char *const move_names[] = {"bytes_per_s", "cores"};
    const char *names[COUNT(numbers) + COUNT(moves)];
    for (size_t i = 0; i < COUNT(numbers); i++)
        names[i] = numbers[i].name;
    for (size_t i = 0; i < COUNT(moves); i++)
        names[COUNT(numbers) + i] = moves[i].name;
    SW_TRY(sw_json_refuse_unknown(object, path, "rates", names, COUNT(names)));
    for (size_t i = 0; i < COUNT(moves); i++)
        SW_TRY(sw_json_refuse_unknown(json_object_get(object, moves[i].name), path, moves[i].name, move_names,
                                      COUNT(move_names)));
    return SW_OK;
}
