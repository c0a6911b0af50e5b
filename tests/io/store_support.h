/* A small store with contents that can be told apart: each grain's bytes follow from its place and a version. */
#ifndef SW_TESTS_IO_STORE_SUPPORT_H
#define SW_TESTS_IO_STORE_SUPPORT_H

#include "tests/io/support.h"

enum { STORE_UNITS = 4, STORE_MAX_DIRECTORIES = 3, STORE_DEPTH = 8 };
extern const int64_t store_unit_grains[STORE_UNITS]; /* one of them 0 */

struct store_directories {
    const char *path[STORE_MAX_DIRECTORIES];
    int count;
};

/* Makes `count` directories below the parent. */
struct store_directories make_store_directories(const char *parent, int count);
const char *store_file(const struct store_directories *directories, int index);

struct sw_store *create_store(const struct store_directories *directories);
struct sw_store *reopen_store(const struct store_directories *directories);
/* Opens it on rings that follow the script, which must outlive the store. */
struct sw_store *reopen_store_on(const struct store_directories *directories, struct fake_ring_script *script);

void fill_grain(void *grain, int64_t bytes, int64_t unit, int64_t index, int64_t version);

/* Writes, or reads and compares, every grain of a generation. */
void write_generation(struct sw_store *store, int generation, int64_t version);
void check_generation(struct sw_store *store, int generation, int64_t version);

/* Writes versions 1 to steps into generations in turn, beginning with 0, and commits each: step s is version s with the
 * text "step s". */
void commit_steps(struct sw_store *store, int64_t from, int64_t to);
/* The store must be at this step, with its contents whole. */
void check_at_step(struct sw_store *store, int64_t step);

#endif
