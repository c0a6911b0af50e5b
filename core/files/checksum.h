/* XXH3-64, with the widest vector instructions that the CPU has. */
#ifndef SW_CORE_FILES_CHECKSUM_H
#define SW_CORE_FILES_CHECKSUM_H

#include <stdint.h>

/* Marks a grain that this process knows nothing about; sw_checksum never returns it. */
#define SW_CHECKSUM_UNKNOWN UINT64_C(0)

/* Returns the sum of the bytes. Any thread may call it. */
uint64_t sw_checksum(const void *data, int64_t bytes);

#endif
