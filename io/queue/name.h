/* Names of open files. What is written to a file whose name was taken away is lost when the last process that has it
 * open ends. */
#ifndef SW_IO_QUEUE_NAME_H
#define SW_IO_QUEUE_NAME_H

#include "core/status.h"

#include <stdbool.h>

/* Returns whether the path leads to the open file. */
bool sw_name_holds(int fd, const char *path);

/* Makes sure that the path leads to the open file. A file that has another name, such as one that was moved, gets this
 * one again, with a warning. SW_ERR_IO says what became of the name where the file cannot have it again. */
sw_status sw_name_keep(int fd, const char *path);

/* Does the same, and puts a durable copy in the place of a file that was removed. From then on fd is open on the copy;
 * a ring that has registered the file still writes to the removed one, whose room stays taken as long. */
sw_status sw_name_put_back(int fd, const char *path);

#endif
