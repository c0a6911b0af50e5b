/* Which driver of NVIDIA this machine has. */
#ifndef SW_TRAIN_DEVICES_DRIVER_VERSION_H
#define SW_TRAIN_DEVICES_DRIVER_VERSION_H

enum { SW_DRIVER_VERSION_CHARS = 256 };

/* "535.129.03", "of unknown version", or empty where there is none. root: before /proc (core/system_file.h). */
void sw_driver_version(const char *root, char out[SW_DRIVER_VERSION_CHARS]);

#endif
