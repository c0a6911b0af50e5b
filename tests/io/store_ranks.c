/* Stores of ranks that commit together, when the power fails or the processes die between their commits: the newest
 * step that all of them have is whole in each, also where some have a later one, and training goes on from there. */
#include "tests/io/faulty.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 3, SEEDS = 350, STEPS = 3, LIVES = 4, MOST_EVENTS = 220, SECTOR = 512 };

struct job {
    struct faulty rank[RANKS]; /* on the drives of the first */
    struct sw_store *store[RANKS];
    uint64_t draws;
    int64_t committed; /* last step that all have committed; -1: none */
    /* From one step to the next: each life has its own, so that what a step of an earlier one left is told apart. */
    int64_t stride;
};

struct tally {
    int64_t ends, apart, in_going_back;
};

static void begin_job(struct job *self, const char *parent) {
    for (int r = 0; r < RANKS; r++) {
        char name[8];
        snprintf(name, sizeof name, "rank%d", r);
        struct store_directories directories = {.path = {in_directory(parent, name)}, .count = 1};
        faulty_begin(&self->rank[r], &directories, SECTOR);
        if (r > 0) {
            sw_fault_disk_destroy(self->rank[r].disk);
            self->rank[r].disk = self->rank[0].disk;
        }
    }
    for (int r = 0; r < RANKS; r++)
        CHECK_OK(faulty_create(&self->rank[r], &self->store[r]));
}

static void close_stores(struct job *self) {
    for (int r = 0; r < RANKS; r++) {
        sw_store_close(self->store[r]);
        self->store[r] = NULL;
    }
}

static void end_job(struct job *self) {
    close_stores(self);
    for (int r = 1; r < RANKS; r++) {
        self->rank[r].disk = NULL;
        faulty_end(&self->rank[r]);
    }
    faulty_end(&self->rank[0]);
}

/* Each writes and commits, whoever is faster first; nobody begins the next step before all have committed. */
static sw_status live(struct job *self) {
    for (int i = 0; i < STEPS; i++) {
        const int64_t step = self->committed + self->stride, first = random_below(&self->draws, RANKS);
        for (int r = 0; r < RANKS; r++)
            SW_TRY(faulty_step(&self->rank[(first + r) % RANKS], self->store[(first + r) % RANKS], step));
        self->committed = step;
    }
    return SW_OK;
}

static sw_status newest_of_all(struct job *self, int64_t *out, bool *out_apart) {
    *out = INT64_MAX;
    int64_t most = -1;
    for (int r = 0; r < RANKS; r++) {
        SW_TRY(faulty_open(&self->rank[r], &self->store[r]));
        const int64_t step = sw_store_last_commit(self->store[r])->step;
        *out = step < *out ? step : *out;
        most = step > most ? step : most;
    }
    CHECK(most == *out || most == *out + self->stride);
    *out_apart = most > *out;
    close_stores(self);
    return SW_OK;
}

static sw_status resume(struct job *self, struct tally *tally) {
    int64_t step;
    bool apart;
    SW_TRY(newest_of_all(self, &step, &apart));
    CHECK(step == self->committed || step == self->committed + self->stride);
    tally->apart += apart;
    self->committed = step;
    for (int r = 0; r < RANKS; r++) {
        SW_TRY(faulty_open_at(&self->rank[r], step, &self->store[r]));
        CHECK(sw_store_last_commit(self->store[r])->step == step);
        SW_TRY(faulty_read(&self->rank[r], self->store[r]));
    }
    for (int r = 0; r < RANKS; r++)
        SW_TRY(sw_store_go_back(self->store[r]));
    self->stride++;
    return SW_OK;
}

/* A first step that not all had committed is no run: it is begun anew. */
static bool has_a_step(struct job *self) {
    bool has = true;
    for (int r = 0; r < RANKS; r++) {
        has = faulty_open(&self->rank[r], &self->store[r]) == SW_OK && has;
        sw_error_clear();
    }
    close_stores(self);
    return has;
}

static bool run_life(struct job *self, struct tally *tally, bool first, int64_t event, sw_fault_end how) {
    struct sw_fault_disk *disk = self->rank[0].disk;
    sw_fault_end_at(disk, event > 0 ? sw_fault_events(disk) + event : 0, how);
    const int64_t before = self->committed;
    sw_status status = first ? SW_OK : resume(self, tally);
    const bool resumed = status == SW_OK;
    if (resumed)
        status = live(self);
    close_stores(self);
    const bool ended = sw_fault_ended(disk);
    if (ended != (status != SW_OK))
        print_message("after step %lld: %s\n", (long long)before, sw_error_message(status));
    CHECK(ended == (status != SW_OK));
    sw_error_clear();
    tally->ends += ended;
    tally->in_going_back += ended && !resumed;
    if (ended)
        CHECK_OK(sw_fault_restart(disk));
    return ended;
}

static void goes_on_from_what_all_have(void **state) {
    struct tally tally = {0};
    const int64_t seeds = faulty_seeds(SEEDS);
    for (int r = 0; r < RANKS; r++) {
        char name[8];
        snprintf(name, sizeof name, "rank%d", r);
        new_subdirectory(*state, name);
    }
    for (test_seed = 1; test_seed <= (uint64_t)seeds; test_seed++) {
        struct job job = {.committed = -1, .stride = 1};
        begin_job(&job, *state);
        for (int life = 0; life < LIVES; life++) {
            const sw_fault_end how = random_below(&job.draws, 3) == 0 ? SW_FAULT_KILL : SW_FAULT_POWER;
            run_life(&job, &tally, life == 0, 1 + random_below(&job.draws, MOST_EVENTS), how);
            if (!has_a_step(&job))
                break;
        }
        if (has_a_step(&job))
            CHECK(!run_life(&job, &tally, false, 0, SW_FAULT_POWER));
        end_job(&job);
    }
    print_message("%lld ends, %lld of them while going back; %lld times the ranks were one step apart\n",
                  (long long)tally.ends, (long long)tally.in_going_back, (long long)tally.apart);
    CHECK(tally.ends > seeds && tally.apart > seeds / 4 && tally.in_going_back > seeds / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(goes_on_from_what_all_have, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
