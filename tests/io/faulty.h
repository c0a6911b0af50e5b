/* A store of a few grains on drives that fail. Step s is version s of every grain. */
#ifndef SW_TESTS_IO_FAULTY_H
#define SW_TESTS_IO_FAULTY_H

#include "tests/equipment/drive/fault.h"
#include "tests/io/store_support.h"

/* So many units, most of them empty, that a label has several sectors. */
enum { FAULTY_UNITS = 200, FAULTY_GRAINS = 3 };

struct faulty {
    struct store_directories directories;
    struct sw_fault_disk *disk;
    char *buf; /* of FAULTY_GRAINS */
    bool one_generation;
};

/* How many seeds a test goes through: as many as SW_TEST_SEEDS says, or this many. */
uint64_t faulty_seeds(uint64_t usual);

/* New drives in the directories, whose sectors have so many bytes. */
void faulty_begin(struct faulty *self, const struct store_directories *directories, int sector_bytes);
/* Removes the files. */
void faulty_end(struct faulty *self);
/* Removes the files and forgets what the drives held. */
void faulty_renew(struct faulty *self, int sector_bytes);

sw_status faulty_create(struct faulty *self, struct sw_store **out);
sw_status faulty_open(struct faulty *self, struct sw_store **out);
sw_status faulty_open_at(struct faulty *self, int64_t most_step, struct sw_store **out);

/* Writes the step into the generation that is not committed, all units at once, and commits it. In one generation, the
 * step before is withdrawn first. */
sw_status faulty_step(struct faulty *self, struct sw_store *store, int64_t step);
/* Reads the committed generation, which must be the step that the store says, whole. */
sw_status faulty_read(struct faulty *self, struct sw_store *store);

#endif
