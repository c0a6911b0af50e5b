/* The time of collectives over several nodes, against the formula of nodes.h by hand. */
#include "offload/simulate/nodes.h"
#include "offload/simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct sw_node node = {.devices = 4, .hop_s = 1e-6, .network_bytes_per_s = 10.0, .network_hop_s = 1e-3};

static struct sw_rates rates_of(int64_t ranks, int64_t nodes, const struct sw_node *of) {
    struct sw_rates rates = {.gather.bytes_per_s = 100.0, .reduce.bytes_per_s = 20.0, .comm_latency_s = 0.5};
    sw_rates_over_nodes(of, ranks, nodes, &rates);
    return rates;
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* 8 ranks on 2 nodes, each with a shard of 1 byte: 1 byte leaves each rank for the other node, and 6 for its own. */
static void slower_level_bounds(void **state) {
    (void)state;
    const struct sw_rates rates = rates_of(8, 2, &node);
    assert_true(near(7.0 / rates.gather.bytes_per_s, 1.0 / 10.0)); /* the network; within the node 6 / 100 s */
    assert_true(near(7.0 / rates.reduce.bytes_per_s, 6.0 / 20.0)); /* the node's links; the network 1 / 10 s */
}

static void latency_grows_with_ranks_and_nodes(void **state) {
    (void)state;
    assert_true(near(rates_of(4, 1, &node).comm_latency_s, 0.5 + 3 * 1e-6));
    assert_true(near(rates_of(8, 2, &node).comm_latency_s, 0.5 + 6 * 1e-6 + 1e-3));
    assert_true(near(rates_of(1024, 256, &node).comm_latency_s, 0.5 + 768 * 1e-6 + 255 * 1e-3));
}

/* A node alone has only its own links, and nodes of one GPU only the network. */
static void one_level_alone(void **state) {
    (void)state;
    assert_true(near(rates_of(4, 1, &node).gather.bytes_per_s, 100.0));
    const struct sw_rates apart = rates_of(8, 8, &node);
    assert_true(near(apart.gather.bytes_per_s, 10.0) && near(apart.reduce.bytes_per_s, 10.0));
    assert_true(near(apart.comm_latency_s, 0.5 + 7 * 1e-3));
}

/* A gather among the 4 ranks of a node uses its links alone, however many nodes there are. */
static void gathers_in_a_node_do_not_use_the_network(void **state) {
    (void)state;
    const struct sw_rates rates = rates_of(8, 2, &node);
    assert_true(rates.gather_in_node.bytes_per_s == 100.0 && near(rates.latency_in_node_s, 0.5 + 3 * 1e-6));
    assert_true(rates_of(8, 1, &(struct sw_node){0}).gather_in_node.bytes_per_s == 0.0);
}

static double exchange_s(const struct sw_rates *rates, sw_level level, int64_t bytes) {
    const struct sw_plan plan = {.spec = {.ranks = 8, .node_ranks = 4, .reduce_nodes = level == SW_LEVEL_ALL ? 0 : 2}};
    const struct sw_op op = {.kind = SW_OP_EXCHANGE_GRADIENTS, .lane = SW_LANE_COMM, .level = level, .bytes = bytes};
    return sw_simulate_op(&plan, rates, &op);
}

/* Quantized gradients go within nodes, between them, or at once to 3 ranks of the node and 4 of the other. */
static void exchanges_take_the_links_that_they_use(void **state) {
    (void)state;
    struct sw_rates rates = rates_of(8, 2, &node);
    rates.cores = 1.0;
    assert_true(near(exchange_s(&rates, SW_LEVEL_NODE, 700), rates.latency_in_node_s + 7.0));
    assert_true(near(exchange_s(&rates, SW_LEVEL_ACROSS, 700), rates.comm_latency_s + 70.0));
    assert_true(near(exchange_s(&rates, SW_LEVEL_ALL, 700), rates.comm_latency_s + 40.0));
    struct sw_rates flat = rates_of(8, 1, &(struct sw_node){0});
    flat.cores = 1.0;
    assert_true(near(exchange_s(&flat, SW_LEVEL_ALL, 700), flat.comm_latency_s + 7.0));
}

static void unknown_nodes_change_nothing(void **state) {
    (void)state;
    const struct sw_rates flat = rates_of(8, 1, &(struct sw_node){0}), alone = rates_of(1, 1, &node);
    assert_true(flat.gather.bytes_per_s == 100.0 && flat.comm_latency_s == 0.5);
    assert_true(alone.reduce.bytes_per_s == 20.0 && alone.comm_latency_s == 0.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_take_the_links_that_they_use),   cmocka_unit_test(slower_level_bounds),
        cmocka_unit_test(latency_grows_with_ranks_and_nodes),       cmocka_unit_test(one_level_alone),
        cmocka_unit_test(gathers_in_a_node_do_not_use_the_network), cmocka_unit_test(unknown_nodes_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
