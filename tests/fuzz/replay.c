/* Runs a target over its corpus, whose folder has the target's name, and over a number of inputs made of it: PROGRAM
 * CORPUS [SEED [NUMBER [COUNT]]]. Prints TAP. An input that ends the process or takes too long is named with its seed.
 */
#include "tests/equipment/topics.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { MOST_FILES = 256, MUTATIONS = 1000, INPUT_LIMIT_S = 10, SIGNAL_BASE = 128, MOST_TARGETS = 64 };

static struct fuzz_target targets[MOST_TARGETS], *target;
static int target_count;

static struct fuzz_input corpus[MOST_FILES];
static int corpus_count;
static char running[512]; /* what to say of an input that does not return */

static void on_fatal(int number) {
    if (write(STDOUT_FILENO, running, strlen(running)) < 0)
        _exit(SIGNAL_BASE);
    _exit(SIGNAL_BASE + number);
}

static void catch_fatal(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], on_fatal);
}

/* Ends the program by SIGPROF when it has used so many more seconds of CPU; 0: no limit. */
static void limit_cpu(int seconds) {
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = seconds}, NULL);
}

static void run_one(const uint8_t *data, size_t bytes) {
    /* A copy of its own size, so that a sanitizer sees what reads beyond it. */
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, bytes);
    limit_cpu(INPUT_LIMIT_S);
    target->test_one_input(copy, bytes);
    limit_cpu(0);
    free(copy);
}

static bool load(const char *path, struct fuzz_input *out) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    out->data = malloc(FUZZ_INPUT_BYTES);
    out->bytes = out->data == NULL ? 0 : fread(out->data, 1, FUZZ_INPUT_BYTES, file);
    const bool whole = out->data != NULL && !ferror(file) && fgetc(file) == EOF;
    fclose(file);
    return whole;
}

static bool load_corpus(const char *folder) {
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);
    bool sound = count > 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && sound) {
            snprintf(running, sizeof running, "not ok 1 - %s ended the process\n", entries[i]->d_name);
            sound = corpus_count < MOST_FILES && load(path, &corpus[corpus_count]);
            if (sound)
                run_one(corpus[corpus_count].data, corpus[corpus_count].bytes);
            corpus_count++;
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return sound && corpus_count > 0;
}

static void mutate_all(uint64_t seed, uint64_t first, uint64_t count) {
    uint8_t *input = malloc(FUZZ_INPUT_BYTES);
    if (input == NULL)
        abort();
    for (uint64_t number = first; number < first + count; number++) {
        snprintf(running, sizeof running, "not ok 2 - input %llu of seed %llu ended the process\n",
                 (unsigned long long)number, (unsigned long long)seed);
        run_one(input, fuzz_mutate(corpus, corpus_count, seed, number, input));
    }
    free(input);
}

static uint64_t number_of(const char *text, uint64_t otherwise) {
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

void fuzz_add(const struct fuzz_target *added) {
    if (target_count == MOST_TARGETS)
        abort();
    targets[target_count++] = *added;
}

/* Returns NULL if no target has the folder's name. */
static struct fuzz_target *target_of(const char *folder) {
    const char *slash = strrchr(folder, '/');
    for (int i = 0; i < target_count; i++)
        if (sw_topic_is(targets[i].file, slash != NULL ? slash + 1 : folder))
            return &targets[i];
    return NULL;
}

int main(int argc, char **argv) {
    target = argc >= 2 && argc <= 5 ? target_of(argv[1]) : NULL;
    if (target == NULL) {
        fprintf(stderr, "usage: %s CORPUS [SEED [NUMBER [COUNT]]]\n", argv[0]);
        return 2;
    }
    const uint64_t seed = number_of(argc > 2 ? argv[2] : NULL, 1);
    const uint64_t count = number_of(argc > 4 ? argv[4] : NULL, argc > 3 ? 1 : MUTATIONS);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("1..2");
    target->initialize(&argc, &argv);
    catch_fatal();
    const bool sound = load_corpus(argv[1]);
    printf("%s 1 - corpus\n", sound ? "ok" : "not ok");
    if (!sound)
        return 1;
    mutate_all(seed, number_of(argc > 3 ? argv[3] : NULL, 0), count);
    printf("# %d files, %llu inputs of seed %llu\n", corpus_count, (unsigned long long)count, (unsigned long long)seed);
    puts("ok 2 - mutations");
    return 0;
}
