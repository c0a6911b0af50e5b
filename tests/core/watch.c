/* The watch judges ranks by the facts that it has, and strangers keep none of them from connecting. */
#include "core/ranks/watch_private.h"
#include "core/size.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, WRITE = 1, LANES = 2, OTHERS = 3 };
#define TIMEOUT_NS INT64_C(1000000000)

struct ranks {
    struct sw_note note[RANKS];
    struct sw_watch_view view[RANKS];
};

static const char *const lanes[LANES] = {"comm", "write"};

/* All in the collective of this number, for so long; heard of just now. */
static struct ranks *together(struct ranks *all, int64_t running_ns) {
    *all = (struct ranks){0};
    for (int rank = 0; rank < RANKS; rank++) {
        struct sw_note *note = &all->note[rank];
        *note = (struct sw_note){.rank = rank, .process = 100 + rank, .host = "here"};
        for (int lane = 0; lane < SW_WATCH_LANES; lane++)
            note->lanes[lane].running_ns = -1;
        note->lanes[SW_WATCH_COMM] =
            (struct sw_watch_lane){.entered = OTHERS, .running_ns = running_ns, .index = 7, .what = "gradients"};
        all->view[rank] = (struct sw_watch_view){.still_ns = running_ns, .note = note};
    }
    return all;
}

/* One that has not come, and commits meanwhile. */
static void leave_behind(struct ranks *all, int rank, int64_t still_ns, bool relaxed) {
    struct sw_note *note = &all->note[rank];
    note->lanes[SW_WATCH_COMM] = (struct sw_watch_lane){.entered = OTHERS - 1, .running_ns = -1};
    note->lanes[WRITE] = (struct sw_watch_lane){.entered = 1, .running_ns = still_ns, .index = 5, .what = "commit"};
    note->relaxed = relaxed;
    all->view[rank].still_ns = still_ns;
}

static bool judged(const struct ranks *all, char text[SW_WATCH_TEXT_CHARS]) {
    const struct sw_watch_rule rule = {
        .lanes = lanes, .lane_count = LANES, .timeout_ns = TIMEOUT_NS, .remedy = "give it more"};
    return sw_watch_judge(all->view, RANKS, &rule, text);
}

static void check_said(const char *text, const char *words) {
    if (strstr(text, words) == NULL)
        fail_msg("'%s' is not in '%s'", words, text);
}

static void names_a_slow_rank_its_op_and_the_remedy(void **state) {
    (void)state;
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    leave_behind(together(&all, TIMEOUT_NS + 1), 1, TIMEOUT_NS, false);
    assert_false(judged(&all, text));
    leave_behind(&all, 1, TIMEOUT_NS + 1, false);
    assert_true(judged(&all, text));
    check_said(text, "rank 1 (process 101 on here) has done nothing for 1.0 s");
    check_said(text, "it has not entered 'gradients 7'");
    check_said(text, "its lane write was in 'commit 5'");
    check_said(text, "; if that is only slow, give it more");
}

static void a_relaxed_start_has_many_times_as_long(void **state) {
    (void)state;
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    leave_behind(together(&all, SW_WATCH_RELAXED_FACTOR * TIMEOUT_NS), 2, SW_WATCH_RELAXED_FACTOR * TIMEOUT_NS, true);
    assert_false(judged(&all, text));
    leave_behind(&all, 2, SW_WATCH_RELAXED_FACTOR * TIMEOUT_NS + 1, true);
    assert_true(judged(&all, text));
    check_said(text, "rank 2");
}

static void silence_is_never_forgiven(void **state) {
    (void)state;
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    leave_behind(together(&all, 0), 1, TIMEOUT_NS, true);
    all.view[1].silent_ns = TIMEOUT_NS + 1;
    assert_true(judged(&all, text));
    check_said(text, "rank 1 (process 101 on here) has not answered for 1.0 s");
    assert_null(strstr(text, "only slow"));
    all.view[1].left = true;
    assert_false(judged(&all, text));
}

static void all_in_one_collective_blame_the_network(void **state) {
    (void)state;
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    assert_true(judged(together(&all, TIMEOUT_NS + 1), text));
    check_said(text, "the network between them is at fault");
    all.view[1].still_ns = 0;
    assert_false(judged(&all, text));
}

/* Ranks of a node wait for the slow one in a collective of their own, while another node waits in the next. */
static void a_rank_that_waits_for_the_slow_one_is_not_blamed(void **state) {
    (void)state;
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    leave_behind(together(&all, TIMEOUT_NS + 1), 1, TIMEOUT_NS + 1, false);
    all.note[0].lanes[SW_WATCH_COMM].entered = OTHERS - 1;
    assert_true(judged(&all, text));
    check_said(text, "rank 1 (process 101 on here) has done nothing");
    all.note[1].lanes[SW_WATCH_COMM].entered = OTHERS - 2;
    assert_true(judged(&all, text));
    check_said(text, "rank 1 (process 101 on here) has done nothing");
}

/* Stages pass bytes unequally often, so that a rank in a collective may have begun fewer than those that wait for the
 * one in none. */
static void among_stages_who_is_in_no_collective_is_blamed(void **state) {
    (void)state;
    const struct sw_watch_rule rule = {.lanes = lanes, .lane_count = LANES, .timeout_ns = TIMEOUT_NS, .stages = true};
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    leave_behind(together(&all, TIMEOUT_NS + 1), 2, TIMEOUT_NS, false);
    all.note[0].lanes[SW_WATCH_COMM].entered = OTHERS - 3;
    all.note[2].lanes[SW_WATCH_COMM].entered = OTHERS + 3;
    assert_false(sw_watch_judge(all.view, RANKS, &rule, text));
    all.view[2].still_ns = TIMEOUT_NS + 1;
    assert_true(sw_watch_judge(all.view, RANKS, &rule, text));
    check_said(text, "rank 2 (process 102 on here) has done nothing");
    together(&all, TIMEOUT_NS + 1)->note[1].lanes[SW_WATCH_COMM].entered = OTHERS - 3;
    assert_true(sw_watch_judge(all.view, RANKS, &rule, text));
    check_said(text, "the network between them is at fault");
}

/* Rank 0 waits for the one that died, and rank 2, which is further, for rank 0. */
static void a_death_is_told_with_group_and_op(void **state) {
    (void)state;
    const struct sw_watch_rule rule = {.lanes = lanes, .lane_count = LANES, .timeout_ns = TIMEOUT_NS};
    char text[SW_WATCH_TEXT_CHARS] = "";
    struct ranks all;
    leave_behind(together(&all, 1), 1, 1, false);
    all.note[2].lanes[SW_WATCH_COMM] = (struct sw_watch_lane){.entered = OTHERS + 1, .index = 8, .what = "others"};
    snprintf(all.note[1].group, sizeof all.note[1].group, "tensor group of ranks 0 and 1");
    sw_watch_describe_death(all.view, RANKS, 1, &rule, text);
    assert_string_equal(text,
                        "rank 1 (process 101 on here, tensor group of ranks 0 and 1) has died; it has not entered "
                        "'gradients 7', where rank 0 waits; its lane write was in 'commit 5'");
    all.note[1].lanes[SW_WATCH_COMM] = all.note[0].lanes[SW_WATCH_COMM];
    sw_watch_describe_death(all.view, RANKS, 1, &rule, text);
    check_said(text, " has died in 'gradients 7'");
    all.note[2].lanes[SW_WATCH_COMM].running_ns = -1;
    all.note[1].lanes[SW_WATCH_COMM].running_ns = all.note[1].lanes[WRITE].running_ns = -1;
    all.note[1].group[0] = '\0';
    sw_watch_describe_death(all.view, RANKS, 1, &rule, text);
    assert_string_equal(text, "rank 1 (process 101 on here) has died");
}

static int connect_to(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(made >= 0 && connect(made, (struct sockaddr *)&to, sizeof to) == 0);
    return made;
}

/* A rank that greets whoever listens. */
struct greeting {
    struct sw_watch watch;
    struct sw_watch_peer peer;
    pthread_t thread;
    bool welcome;
};

static void *greet(void *argument) {
    struct greeting *greeting = argument;
    greeting->welcome = sw_watch_greet(&greeting->watch, &greeting->peer, 30000);
    return NULL;
}

/* Whoever answers at an address without the key gets nothing by which to speak for a rank. */
static void strangers_that_answer_learn_nothing(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    struct greeting rank = {.watch = {.ranks = 2, .key = {{11, 12}}, .own.rank = 1}, .peer.socket = ends[0]};
    assert_int_equal(pthread_create(&rank.thread, NULL, greet, &rank), 0);
    struct sw_note note;
    assert_int_equal(recv(ends[1], &note, sizeof note, MSG_WAITALL), sizeof note);
    assert_int_equal(note.kind, SW_NOTE_HELLO);
    assert_true(note.token.half[0] == 0 && note.token.half[1] == 0);
    note.kind = SW_NOTE_CHALLENGE;
    assert_int_equal(send(ends[1], &note, sizeof note, 0), sizeof note);
    pthread_join(rank.thread, NULL);
    assert_false(rank.welcome);
    close(ends[0]);
    assert_int_equal(recv(ends[1], &note, sizeof note, 0), 0);
    close(ends[1]);
}

/* The vectors of SipHash's authors. */
static void proofs_are_siphash(void **state) {
    (void)state;
    const struct sw_watch_token key = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
    const uint64_t words[] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    assert_true(sw_watch_siphash(&key, words, 0) == 0x726fdb47dd0e0e31);
    assert_true(sw_watch_siphash(&key, words, 1) == 0x93f5f5799a932462);
    assert_true(sw_watch_siphash(&key, words, 2) == 0x3f2acc7f57c29bdb);
}

/* More connections say nothing, or nonsense, than the watch waits for in turn before its time is over. */
static void strangers_keep_no_rank_out(void **state) {
    (void)state;
    enum { SILENT = 100 };
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 2 * SILENT), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
    struct sw_watch_peer peers[] = {{.socket = -1}, {.socket = -1}};
    struct sw_watch watch = {.ranks = 3, .peers = peers, .peer_count = 2, .key = {{1, 2}}};
    int stranger[SILENT];
    struct greeting rank[3];
    for (int i = 0; i < SILENT; i++) {
        stranger[i] = connect_to(at.sin_port);
        if (i % 2 == 0)
            assert_int_equal(send(stranger[i], "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    }
    /* The first one knows what a rank says, but not the job's key. */
    for (int i = 0; i < 3; i++) {
        rank[i] = (struct greeting){
            .watch = {.ranks = 3, .key = {{1, i > 0 ? 2 : 3}}, .own.rank = i % 2 + 1},
            .peer.socket = connect_to(at.sin_port),
        };
        assert_int_equal(pthread_create(&rank[i].thread, NULL, greet, &rank[i]), 0);
    }
    const struct sw_watch_listeners listeners = {.count = 1, .sockets = {listener}};
    assert_int_equal(sw_watch_accept(&watch, &listeners, 30000), SW_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(peers[i].rank, i + 1);
        close(peers[i].socket);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(rank[i].thread, NULL);
        assert_int_equal(rank[i].welcome, i > 0);
        close(rank[i].peer.socket);
    }
    for (int i = 0; i < SILENT; i++)
        close(stranger[i]);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_keep_no_rank_out),
        cmocka_unit_test(strangers_that_answer_learn_nothing),
        cmocka_unit_test(proofs_are_siphash),
        cmocka_unit_test(names_a_slow_rank_its_op_and_the_remedy),
        cmocka_unit_test(a_relaxed_start_has_many_times_as_long),
        cmocka_unit_test(silence_is_never_forgiven),
        cmocka_unit_test(all_in_one_collective_blame_the_network),
        cmocka_unit_test(a_rank_that_waits_for_the_slow_one_is_not_blamed),
        cmocka_unit_test(among_stages_who_is_in_no_collective_is_blamed),
        cmocka_unit_test(a_death_is_told_with_group_and_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
