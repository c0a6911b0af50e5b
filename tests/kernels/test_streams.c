/* Memory, copies, streams and events of every device. */
#include "tests/kernels/support.h"

#include "core/clock.h"

#include <string.h>

enum { BYTES = THINGS_BYTES, MARK = 0x5a };

static void assert_all(const char *memory, int64_t from, int64_t to, int value) {
    for (int64_t i = from; i < to; i++)
        if (memory[i] != (char)value)
            fail_msg("byte %lld is 0x%02x, and should be 0x%02x", (long long)i, (unsigned char)memory[i], value);
}

static void begins_as_zeros(struct pair *pair) {
    struct things t = open_things(pair->device);
    char *host = sw_memory_base(t.on_host);
    assert_all(host, 0, BYTES, 0);
    memset(host, MARK, BYTES);
    assert_ok(sw_copy_to_host(t.stream[0], host, sw_memory_base(t.on_device), BYTES));
    assert_ok(sw_stream_synchronize(t.stream[0]));
    assert_all(host, 0, BYTES, 0);
    close_things(&t);
}

static void zeroed_memory(void **state) {
    (void)state;
    for_each_device(begins_as_zeros);
}

/* Copies go there, across and back by odd addresses and lengths, from pinned memory and from other, and change no byte
 * beside. */
static void copies_bytes(struct pair *pair) {
    enum { FIRST = 4099, COUNT = 300007, SECOND = 600011, END = SECOND + COUNT };
    struct things t = open_things(pair->device);
    struct buffer from = buffer_random(SW_F32, COUNT / 4 + 1, 1, 1.0f), back = buffer_make(COUNT);
    char *host = sw_memory_base(t.on_host), *there = sw_memory_base(t.on_device);
    memset(host, MARK, BYTES);
    assert_ok(sw_copy_to_device(t.stream[0], there, host, BYTES));
    assert_ok(sw_copy_to_device(t.stream[0], there + FIRST, from.data, COUNT));
    assert_ok(sw_copy_on_device(t.stream[0], there + SECOND, there + FIRST, COUNT));
    assert_ok(sw_copy_to_host(t.stream[0], back.data, there + SECOND, COUNT));
    assert_ok(sw_zero(t.stream[0], there + FIRST, COUNT));
    assert_ok(sw_copy_to_host(t.stream[0], host, there, BYTES));
    assert_ok(sw_copy_to_host(t.stream[0], NULL, NULL, 0));
    assert_ok(sw_stream_synchronize(t.stream[0]));
    assert_same_bits("a copy", pair, COUNT, back.data, from.data);
    assert_same_bits("a copy on the device", pair, COUNT, host + SECOND, from.data);
    assert_all(host, 0, FIRST, MARK);
    assert_all(host, FIRST, FIRST + COUNT, 0);
    assert_all(host, FIRST + COUNT, SECOND, MARK);
    assert_all(host, END, BYTES, MARK);
    buffer_free(&from);
    buffer_free(&back);
    close_things(&t);
}

static void copies(void **state) {
    (void)state;
    for_each_device(copies_bytes);
}

/* Work that one stream does after another's event sees what came before the event. */
static void orders_streams(struct pair *pair) {
    enum { ROUNDS = 50 };
    struct things t = open_things(pair->device);
    struct sw_event *event = NULL;
    uint32_t *host = sw_memory_base(t.on_host);
    assert_ok(sw_event_open(pair->device, &event));
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        host[0] = round;
        assert_ok(sw_copy_to_device(t.stream[0], sw_memory_base(t.on_device), host, BYTES / 2));
        assert_ok(sw_event_record(event, t.stream[0]));
        assert_ok(sw_stream_wait(t.stream[1], event));
        assert_ok(sw_copy_to_host(t.stream[1], host + 1, sw_memory_base(t.on_device), sizeof *host));
        assert_ok(sw_event_record(event, t.stream[1]));
        assert_ok(sw_event_wait(event));
        assert_int_equal(host[1], round);
    }
    sw_event_close(event);
    close_things(&t);
}

static void ordered_streams(void **state) {
    (void)state;
    for_each_device(orders_streams);
}

static void times_events(struct pair *pair) {
    struct things t = open_things(pair->device);
    struct sw_event *from = NULL, *to = NULL;
    int64_t elapsed_ns = -1;
    assert_ok(sw_event_open(pair->device, &from));
    assert_ok(sw_event_open(pair->device, &to));
    const int64_t start_ns = sw_now_ns();
    assert_ok(sw_event_record(from, t.stream[0]));
    assert_ok(sw_zero(t.stream[0], sw_memory_base(t.on_device), BYTES));
    assert_ok(sw_event_record(to, t.stream[0]));
    assert_ok(sw_event_wait(to));
    const int64_t whole_ns = sw_now_ns() - start_ns;
    assert_ok(sw_event_elapsed_ns(from, to, &elapsed_ns));
    assert_true(elapsed_ns >= 0 && elapsed_ns <= whole_ns);
    sw_event_close(from);
    sw_event_close(to);
    close_things(&t);
}

static void timed_events(void **state) {
    (void)state;
    for_each_device(times_events);
}

/* The event is asked until it says yes, and then what came before it has happened. */
static void asks_events(struct pair *pair) {
    struct things t = open_things(pair->device);
    struct sw_event *event = NULL;
    char *host = sw_memory_base(t.on_host);
    bool reached = false;
    assert_ok(sw_event_open(pair->device, &event));
    memset(host, MARK, BYTES);
    assert_ok(sw_zero(t.stream[0], sw_memory_base(t.on_device), BYTES));
    assert_ok(sw_copy_to_host(t.stream[0], host, sw_memory_base(t.on_device), BYTES));
    assert_ok(sw_event_record(event, t.stream[0]));
    while (!reached)
        assert_ok(sw_event_reached(event, &reached));
    assert_all(host, 0, BYTES, 0);
    sw_event_close(event);
    close_things(&t);
}

static void asked_events(void **state) {
    (void)state;
    for_each_device(asks_events);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(zeroed_memory), cmocka_unit_test(copies),
                                       cmocka_unit_test(ordered_streams), cmocka_unit_test(timed_events),
                                       cmocka_unit_test(asked_events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
