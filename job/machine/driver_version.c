#include "job/machine/driver_version.h"

#include "core/system_file.h"

#include <stdio.h>
#include <string.h>

/* Finds the first word that begins with a digit and has a point in "NVRM version: NVIDIA UNIX x86_64 Kernel Module
 * 535.129.03 DATE". */
void sw_driver_version(const char *root, char out[SW_DRIVER_VERSION_CHARS]) {
    char line[SW_DRIVER_VERSION_CHARS], *rest = NULL;
    out[0] = '\0';
    if (!sw_system_line(root, line, sizeof line, "/proc/driver/nvidia/version"))
        return;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest))
        if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.') != NULL) {
            snprintf(out, SW_DRIVER_VERSION_CHARS, "%s", word);
            return;
        }
    snprintf(out, SW_DRIVER_VERSION_CHARS, "of unknown version");
}
