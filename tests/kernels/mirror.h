/* Lets a device whose memory is not the host's be tested by the same tests as the CPU: its ops take buffers of the
 * tests, which lie in host memory. Each call brings every buffer that it names to the device, whole and with the guards
 * around it, runs the op there, and takes all of them back, so that guards and comparisons see what the device wrote.
 * What it names beside NULL must be in a buffer. */
#ifndef SW_TESTS_KERNELS_MIRROR_H
#define SW_TESTS_KERNELS_MIRROR_H

#include "kernels/device.h"

/* Begins for one device at a time, before its streams are opened. */
void mirror_begin(struct sw_device *device);
/* Ends, before the device is closed. */
void mirror_end(struct sw_device *device);

#endif
