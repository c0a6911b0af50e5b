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
    sw_rates_over_nodes(of, &(struct sw_node_ranks){.ranks = ranks, .nodes = nodes}, &rates);
    return rates;
}

/* 16 ranks on 2 nodes, in groups of `group` ranks. */
static struct sw_rates grouped(int64_t group) {
    struct sw_rates rates = {
        .cores = 1.0, .gather.bytes_per_s = 100.0, .reduce.bytes_per_s = 20.0, .comm_latency_s = 0.5};
    const struct sw_node_ranks job = {.ranks = 16,
                                      .nodes = 2,
                                      .tensor_ranks = group,
                                      .tensor_node_ranks = group < 8 ? group : 8,
                                      .data_node_ranks = group < 8 ? 8 / group : 1};
    sw_rates_over_nodes(&node, &job, &rates);
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
    assert_true(rates.in_node.gather.bytes_per_s == 100.0 && near(rates.in_node.latency_s, 0.5 + 3 * 1e-6));
    assert_true(rates_of(8, 1, &(struct sw_node){0}).in_node.gather.bytes_per_s == 0.0);
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
    assert_true(near(exchange_s(&rates, SW_LEVEL_NODE, 700), rates.in_node.latency_s + 7.0));
    assert_true(near(exchange_s(&rates, SW_LEVEL_ACROSS, 700), rates.comm_latency_s + 70.0));
    assert_true(near(exchange_s(&rates, SW_LEVEL_ALL, 700), rates.comm_latency_s + 40.0));
    struct sw_rates flat = rates_of(8, 1, &(struct sw_node){0});
    flat.cores = 1.0;
    assert_true(near(exchange_s(&flat, SW_LEVEL_ALL, 700), flat.comm_latency_s + 7.0));
}

/* The ranks with the same part of every layer are as many apart as a group has ranks. */
static void data_ranks_use_the_network_between_groups(void **state) {
    (void)state;
    const struct sw_rates pairs = grouped(2), nodes = grouped(8);
    /* 4 on each of 2 nodes: 1 byte leaves each rank for the other node, and 6 for its own. */
    assert_true(near(7.0 / pairs.among_data.gather.bytes_per_s, 1.0 / 10.0));
    assert_true(near(7.0 / pairs.among_data.reduce.bytes_per_s, 6.0 / 20.0));
    assert_true(near(pairs.among_data.latency_s, 0.5 + 6 * 1e-6 + 1e-3));
    /* One on each of 2 nodes: there is nothing but the network. */
    assert_true(near(nodes.among_data.gather.bytes_per_s, 10.0) && near(nodes.among_data.reduce.bytes_per_s, 10.0));
    assert_true(near(nodes.among_data.latency_s, 0.5 + 1e-3));
    /* All ranks have their summary together, whatever groups there are. */
    assert_true(near(nodes.gather.bytes_per_s, rates_of(16, 2, &node).gather.bytes_per_s));
    assert_true(near(nodes.comm_latency_s, 0.5 + 14 * 1e-6 + 1e-3));
    assert_true(rates_of(16, 2, &node).among_data.gather.bytes_per_s == 0.0);
}

/* Exchanges a share of a hundred rows of one byte with each other rank of a group. */
static double tensor_s(const struct sw_rates *rates, int group, sw_op_kind kind, int64_t bytes) {
    const struct sw_plan_tensor tensor = {.ranks = group, .node_ranks = group < 8 ? group : 8, .rows = 100 * group};
    const struct sw_unit_cost cost = {.output_bytes = 100 * group};
    struct sw_unit unit = {.replicated_elems = 25 * group};
    const struct sw_units units = {.unit = &unit, .count = 1};
    const struct sw_plan plan = {.spec = {.ranks = 16 / group,
                                          .node_ranks = group < 8 ? 8 / group : 1,
                                          .fills_nodes = true,
                                          .units = &units,
                                          .cost = &cost,
                                          .tensor = tensor}};
    const struct sw_op op = {.kind = kind, .lane = SW_LANE_COMM, .bytes = bytes};
    return sw_simulate_op(&plan, rates, &op);
}

/* A group within a node uses its links alone. Of 16 ranks on 2 nodes one sends 7 parts of 15 within the node and 8 to
 * the other in a reduction, and 14 and 1 in a gather. */
static void groups_take_the_slower_of_their_links(void **state) {
    (void)state;
    const struct sw_rates within = grouped(8), across = grouped(16);
    const double hops_s = 0.5 + 7 * 1e-6, across_s = 0.5 + 14 * 1e-6 + 1e-3;
    assert_true(near(tensor_s(&within, 8, SW_OP_GATHER_TENSOR, 700), hops_s + 7.0));
    assert_true(near(tensor_s(&within, 8, SW_OP_REDUCE_TENSOR, 700), hops_s + 35.0));
    assert_true(near(tensor_s(&across, 16, SW_OP_GATHER_TENSOR, 1500), across_s + 14.0));
    assert_true(near(tensor_s(&across, 16, SW_OP_REDUCE_TENSOR, 1500), across_s + 80.0));
    assert_true(near(tensor_s(&across, 16, SW_OP_SUM_REPLICATED, 3000), across_s + 105.0)); /* 21 within, 9 between */
    struct sw_rates slow_network = across;
    slow_network.between_bytes_per_s = 5.0;
    assert_true(near(tensor_s(&slow_network, 16, SW_OP_GATHER_TENSOR, 1500), across_s + 20.0));
}

/* GPUs do exchanges of their memory one after the other as they do kernels. The summary is the host's. */
static void exchanges_of_gpus_are_queued(void **state) {
    (void)state;
    struct sw_rates rates = grouped(8);
    const double gather_s = tensor_s(&rates, 8, SW_OP_GATHER_TENSOR, 700);
    const double summary_s = tensor_s(&rates, 8, SW_OP_EXCHANGE_SUMMARY, 700);
    rates.queued_op_s = 0.25;
    assert_true(near(tensor_s(&rates, 8, SW_OP_GATHER_TENSOR, 700), gather_s + 0.25));
    assert_true(near(tensor_s(&rates, 8, SW_OP_EXCHANGE_SUMMARY, 700), summary_s));
}

/* Measured: 16 ranks on 2 nodes, in groups of `group` ranks. */
static struct sw_rates measured(int64_t group) {
    struct sw_rates rates = {.cores = 1.0,
                             .gather.bytes_per_s = 60.0,
                             .reduce.bytes_per_s = 30.0,
                             .comm_latency_s = 0.5,
                             .in_node = {.gather.bytes_per_s = 100.0, .reduce.bytes_per_s = 50.0, .latency_s = 0.125}};
    const struct sw_node_ranks job = {.ranks = 16,
                                      .nodes = 2,
                                      .tensor_ranks = group,
                                      .tensor_node_ranks = group < 8 ? group : 8,
                                      .data_node_ranks = group < 8 ? 8 / group : 1};
    sw_rates_over_measured_nodes(&job, &rates);
    return rates;
}

/* A rank gives 15 shares to all: in a reduction 8 of them to the other node, at 30 * 8 / 15 = 16 bytes a second, and in
 * a gather 1, at 60 / 15 = 4. */
static void measured_groups_take_the_links_that_they_use(void **state) {
    (void)state;
    const struct sw_rates pairs = measured(2), nodes = measured(8), all = measured(16), none = measured(1);
    assert_true(near(tensor_s(&pairs, 2, SW_OP_GATHER_TENSOR, 700), 0.125 + 7.0));
    assert_true(near(tensor_s(&nodes, 8, SW_OP_REDUCE_TENSOR, 700), 0.125 + 14.0));
    assert_true(near(tensor_s(&all, 16, SW_OP_REDUCE_TENSOR, 1500), 0.5 + 50.0)); /* as all ranks do: 1500 / 30 s */
    assert_true(near(tensor_s(&all, 16, SW_OP_GATHER_TENSOR, 1500), 0.5 + 14.0));
    /* With 8 data ranks, 4 on each node, 1 of 7 shares leaves it in a gather, and 4 in a reduction; with one on each
     * node, all do. */
    assert_true(near(7.0 / pairs.among_data.gather.bytes_per_s, 1.0 / 16.0));
    assert_true(near(7.0 / pairs.among_data.reduce.bytes_per_s, 4.0 / 16.0));
    assert_true(near(nodes.among_data.gather.bytes_per_s, 16.0) && near(nodes.among_data.latency_s, 0.5));
    assert_true(all.among_data.gather.bytes_per_s == 0.0 && none.in_group.gather.bytes_per_s == 0.0);
    assert_true(near(none.between_bytes_per_s, 16.0) && near(none.gather.bytes_per_s, 60.0));
    assert_true(near(exchange_s(&none, SW_LEVEL_NODE, 700), 0.125 + 7.0));
}

/* Groups of 3 on nodes of 8 lie across borders: a rank gives its share to each of the other 7 with its part of layers.
 */
static void groups_that_fit_no_node_send_straight(void **state) {
    (void)state;
    struct sw_rates rates = {.gather.bytes_per_s = 100.0, .reduce.bytes_per_s = 20.0, .comm_latency_s = 0.5};
    const struct sw_node_ranks job = {
        .ranks = 24, .nodes = 3, .tensor_ranks = 3, .tensor_node_ranks = 1, .data_node_ranks = 2};
    sw_rates_over_nodes(&node, &job, &rates);
    assert_true(
        near(7.0 / rates.among_data.gather.bytes_per_s, 6.0 / 10.0)); /* 8 ranks, 2 on each of 4 nodes at least */
}

static void unmeasured_nodes_change_nothing(void **state) {
    (void)state;
    struct sw_rates rates = {.gather.bytes_per_s = 30.0};
    sw_rates_over_measured_nodes(&(struct sw_node_ranks){.ranks = 8, .nodes = 2, .tensor_ranks = 2}, &rates);
    assert_true(rates.between_bytes_per_s == 0.0 && rates.in_group.gather.bytes_per_s == 0.0);
}

static void unknown_nodes_change_nothing(void **state) {
    (void)state;
    const struct sw_rates flat = rates_of(8, 1, &(struct sw_node){0}), alone = rates_of(1, 1, &node);
    assert_true(flat.gather.bytes_per_s == 100.0 && flat.comm_latency_s == 0.5);
    assert_true(alone.reduce.bytes_per_s == 20.0 && alone.comm_latency_s == 0.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_groups_take_the_links_that_they_use),
        cmocka_unit_test(groups_that_fit_no_node_send_straight),
        cmocka_unit_test(unmeasured_nodes_change_nothing),
        cmocka_unit_test(exchanges_take_the_links_that_they_use),
        cmocka_unit_test(slower_level_bounds),
        cmocka_unit_test(latency_grows_with_ranks_and_nodes),
        cmocka_unit_test(one_level_alone),
        cmocka_unit_test(gathers_in_a_node_do_not_use_the_network),
        cmocka_unit_test(unknown_nodes_change_nothing),
        cmocka_unit_test(data_ranks_use_the_network_between_groups),
        cmocka_unit_test(groups_take_the_slower_of_their_links),
        cmocka_unit_test(exchanges_of_gpus_are_queued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
