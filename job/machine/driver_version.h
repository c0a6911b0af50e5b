/* Finds out which NVIDIA driver this machine has. */
#ifndef SW_JOB_MACHINE_DRIVER_VERSION_H
#define SW_JOB_MACHINE_DRIVER_VERSION_H

enum { SW_DRIVER_VERSION_CHARS = 256 };

/* Writes "535.129.03", "of unknown version", or an empty text if there is no driver. root: the prefix of /proc
 * (core/system_file.h). */
void sw_driver_version(const char *root, char out[SW_DRIVER_VERSION_CHARS]);

#endif
