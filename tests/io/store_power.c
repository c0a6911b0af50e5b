/* Power that fails, and processes that die, between any two requests: what opens afterwards is the last step or the one
 * that was on its way, whole, and never a mix; a creation that did not finish is refused as such. */
#include "tests/io/faulty.h"

#include <string.h>

enum {
    SEEDS = 1200,
    SEEDS_OF_ONE = 300,
    SEEDS_OF_LIES = 300,
    MOST_FLUSHES = 14,
    STEPS = 3,
    LIVES = 3,
    MOST_EVENTS = 160,
    SMALL_SECTOR = 512,
    LARGE_SECTOR = 4096
};

/* One store through several lives. */
struct history {
    struct faulty faulty;
    uint64_t draws;
    int64_t committed; /* last step whose commit returned; -1: none */
    int64_t attempted; /* last step whose commit was begun */
    bool created;
};

struct tally {
    int64_t in_creation, in_steps, kills, newer, older, torn, first_lost;
};

static int sector_of_seed(void) {
    return test_seed % 2 == 0 ? SMALL_SECTOR : LARGE_SECTOR;
}

static bool says_unfinished(const char *message) {
    static const char *const ways[] = {"creation was interrupted", "No such file", "no finished commit",
                                       "did not end cleanly"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (strstr(message, ways[i]) != NULL)
            return true;
    return false;
}

/* A store that is refused must have no commit, and the message must say so. */
static void check_refusal(const struct history *self, sw_status status) {
    const bool withdrawn = self->faulty.one_generation && self->attempted > self->committed;
    if ((self->committed >= 0 && !withdrawn) || !says_unfinished(sw_error_message(status))) {
        print_message("after step %lld: %s\n", (long long)self->committed, sw_error_message(status));
        CHECK(!"refused");
    }
    sw_error_clear();
}

/* Whatever an end left, no commit that had finished was damaged by it, and nothing says so. Gives whether one is there
 * that never finished. */
static bool check_records(const struct sw_store *store) {
    const struct sw_store_bad_record *bad;
    const int count = sw_store_bad_records(store, &bad);
    for (int i = 0; i < count; i++)
        CHECK(bad[i].loss == SW_STORE_RECORD_HARMLESS);
    return count > 0;
}

/* A store to go on with: what is there, checked, or a new one where none was finished. */
static sw_status begin_life(struct history *self, struct tally *tally, struct sw_store **out) {
    if (self->created) {
        const sw_status status = faulty_open(&self->faulty, out);
        if (status == SW_OK) {
            const int64_t step = sw_store_last_commit(*out)->step;
            CHECK(step == self->committed || step == self->attempted);
            tally->newer += step > self->committed;
            tally->older += step < self->attempted;
            tally->torn += check_records(*out);
            self->committed = self->attempted = step;
            return faulty_read(&self->faulty, *out);
        }
        if (sw_fault_ended(self->faulty.disk))
            return status;
        check_refusal(self, status);
        tally->first_lost++;
    }
    faulty_renew(&self->faulty, sector_of_seed());
    return SW_ERR_STOPPED;
}

static sw_status live(struct history *self, struct sw_store *store) {
    for (int i = 0; i < STEPS; i++) {
        self->attempted = self->committed + 1;
        SW_TRY(faulty_step(&self->faulty, store, self->attempted));
        self->committed = self->attempted;
    }
    return SW_OK;
}

/* Makes, or opens, and commits until the end. Gives whether it came. */
static bool run_life(struct history *self, struct tally *tally, int64_t event, sw_fault_end how) {
    struct sw_store *store = NULL;
    struct sw_fault_disk *disk = self->faulty.disk;
    sw_fault_end_at(disk, event > 0 ? sw_fault_events(disk) + event : 0, how);
    sw_status status = begin_life(self, tally, &store);
    if (status == SW_ERR_STOPPED) {
        self->created = false;
        self->committed = self->attempted = -1;
        disk = self->faulty.disk;
        sw_fault_end_at(disk, event, how);
        status = faulty_create(&self->faulty, &store);
        self->created = status == SW_OK;
    }
    if (status == SW_OK)
        status = live(self, store);
    sw_store_close(store);
    const bool ended = sw_fault_ended(disk);
    if (ended) {
        tally->in_creation += !self->created;
        tally->in_steps += self->created;
        tally->kills += how == SW_FAULT_KILL;
        CHECK_OK(sw_fault_restart(disk));
    }
    if (ended != (status != SW_OK))
        print_message("ended %d: %s\n", ended, sw_error_message(status));
    CHECK(ended == (status != SW_OK));
    sw_error_clear();
    return ended;
}

/* After a creation that did not finish, opening must say so. */
static void check_unfinished(struct history *self) {
    struct sw_store *store;
    const sw_status status = faulty_open(&self->faulty, &store);
    CHECK(status != SW_OK);
    check_refusal(self, status);
}

static void run_seed(const struct store_directories *directories, bool one_generation, struct tally *tally) {
    struct history self = {.committed = -1, .attempted = -1};
    faulty_begin(&self.faulty, directories, sector_of_seed());
    self.faulty.one_generation = one_generation;
    for (int life = 0; life < LIVES; life++) {
        /* The first ends go through all events of a first life in turn. */
        const int64_t event =
            life == 0 ? 1 + (int64_t)test_seed % MOST_EVENTS : 1 + random_below(&self.draws, MOST_EVENTS);
        const sw_fault_end how = random_below(&self.draws, 3) == 0 ? SW_FAULT_KILL : SW_FAULT_POWER;
        if (run_life(&self, tally, event, how) && !self.created)
            check_unfinished(&self);
    }
    CHECK(!run_life(&self, tally, 0, SW_FAULT_POWER));
    struct sw_store *store;
    CHECK_OK(faulty_open(&self.faulty, &store));
    CHECK(sw_store_last_commit(store)->step == self.committed);
    CHECK_OK(faulty_read(&self.faulty, store));
    sw_store_close(store);
    faulty_end(&self.faulty);
}

static const char *const names[STORE_MAX_DIRECTORIES] = {"a", "b", "c"};

static void make_places(const char *parent) {
    for (int i = 0; i < STORE_MAX_DIRECTORIES; i++)
        new_subdirectory(parent, names[i]);
}

static struct store_directories places_of_seed(const char *parent) {
    struct store_directories directories = {.count = 1 + (int)(test_seed % STORE_MAX_DIRECTORIES)};
    for (int i = 0; i < directories.count; i++)
        directories.path[i] = in_directory(parent, names[i]);
    return directories;
}

static struct tally run_seeds(const char *parent, bool one_generation, uint64_t seeds) {
    struct tally tally = {0};
    make_places(parent);
    for (test_seed = 1; test_seed <= seeds; test_seed++) {
        const struct store_directories directories = places_of_seed(parent);
        run_seed(&directories, one_generation, &tally);
    }
    print_message("%lld ends in creation, %lld later, %lld of them of the process alone; %lld times a step was there "
                  "that had not been reported, %lld times one that was begun was not, %lld times its record was torn, "
                  "%lld stores had no commit\n",
                  (long long)tally.in_creation, (long long)tally.in_steps, (long long)tally.kills,
                  (long long)tally.newer, (long long)tally.older, (long long)tally.torn, (long long)tally.first_lost);
    return tally;
}

static void opens_whole_after_every_end(void **state) {
    const int64_t seeds = (int64_t)faulty_seeds(SEEDS);
    const struct tally tally = run_seeds(*state, false, (uint64_t)seeds);
    CHECK(tally.in_creation > seeds / 10 && tally.in_steps > seeds && tally.newer > seeds / 50 &&
          tally.older > seeds / 50 && tally.torn > seeds / 50 && tally.first_lost > seeds / 50);
}

/* A commit that was withdrawn is gone, and nothing else is believed. */
static void one_generation_is_whole_or_refused(void **state) {
    const int64_t seeds = (int64_t)faulty_seeds(SEEDS_OF_ONE);
    const struct tally tally = run_seeds(*state, true, (uint64_t)seeds);
    CHECK(tally.in_steps > seeds && tally.newer > 0 && tally.first_lost > seeds / 10);
}

/* Outcomes of a drive that lies. */
struct lies_tally {
    int64_t whole, refused, named;
};

/* A store that opens holds a step that was begun, whole, or names the bad grain. */
static void check_after_lies(struct history *self, struct lies_tally *tally) {
    struct sw_store *store = NULL;
    sw_status status = faulty_open(&self->faulty, &store);
    const bool opened = status == SW_OK;
    if (opened) {
        CHECK(sw_store_last_commit(store)->step <= self->attempted);
        status = faulty_read(&self->faulty, store);
    }
    tally->whole += status == SW_OK;
    tally->refused += !opened;
    tally->named += opened && status != SW_OK;
    if (status != SW_OK)
        CHECK(strstr(sw_error_message(status), opened ? "grain " : SW_STORE_FILE_NAME) != NULL);
    sw_error_clear();
    sw_store_close(store);
}

static void run_seed_of_lies(const struct store_directories *directories, struct lies_tally *tally) {
    struct history self = {.committed = -1, .attempted = -1};
    struct sw_store *store = NULL;
    faulty_begin(&self.faulty, directories, sector_of_seed());
    const struct sw_fault fault = {
        .kind = random_below(&self.draws, 4) == 0 ? SW_FAULT_DROP : SW_FAULT_NO_FLUSH,
        .op = SW_RING_FLUSH,
        .first = random_below(&self.draws, (int64_t)directories->count * MOST_FLUSHES),
        .count = 1 + random_below(&self.draws, 2 * (int64_t)directories->count),
    };
    sw_fault_set(self.faulty.disk, &fault);
    sw_fault_end_at(self.faulty.disk, 1 + random_below(&self.draws, MOST_EVENTS), SW_FAULT_POWER);
    sw_status status = faulty_create(&self.faulty, &store);
    self.created = status == SW_OK;
    for (int life = 0; life < LIVES && status == SW_OK; life++)
        status = live(&self, store);
    sw_store_close(store);
    sw_error_clear();
    if (sw_fault_ended(self.faulty.disk))
        CHECK_OK(sw_fault_restart(self.faulty.disk));
    if (self.created)
        check_after_lies(&self, tally);
    faulty_end(&self.faulty);
}

static void drives_that_lie_are_found_out(void **state) {
    const uint64_t seeds = faulty_seeds(SEEDS_OF_LIES);
    struct lies_tally tally = {0};
    make_places(*state);
    for (test_seed = 1; test_seed <= seeds; test_seed++) {
        const struct store_directories directories = places_of_seed(*state);
        run_seed_of_lies(&directories, &tally);
    }
    print_message("%lld stores had a whole step, %lld were refused, of %lld a grain was named\n",
                  (long long)tally.whole, (long long)tally.refused, (long long)tally.named);
    CHECK(tally.whole > 0 && tally.refused > 0 && tally.named > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opens_whole_after_every_end, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(one_generation_is_whole_or_refused, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(drives_that_lie_are_found_out, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
