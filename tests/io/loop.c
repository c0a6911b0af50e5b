#include "tests/io/loop.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOP_ATTEMPTS = 20 };

int loop_open(const char *backing, int64_t bytes, int sector_bytes, char name[LOOP_NAME_CHARS]) {
    const int file = open(backing, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, bytes) == 0);
    const struct loop_config config = {
        .fd = (uint32_t)file, .block_size = (uint32_t)sector_bytes, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
    int loop = -1;
    /* Another process may take the free one first. */
    for (int attempt = 0; control >= 0 && loop < 0 && attempt < LOOP_ATTEMPTS; attempt++) {
        const int number = ioctl(control, LOOP_CTL_GET_FREE);
        snprintf(name, LOOP_NAME_CHARS, "/dev/loop%d", number);
        loop = number < 0 ? -1 : open(name, O_RDWR | O_CLOEXEC);
        if (loop >= 0 && ioctl(loop, LOOP_CONFIGURE, &config) != 0) {
            close(loop);
            loop = -1;
        }
    }
    if (control >= 0)
        close(control);
    close(file);
    return loop;
}

bool loop_make_file_system(const char *device) {
    const pid_t child = fork_child();
    if (child == 0) {
        execlp("mkfs.ext4", "mkfs.ext4", "-q", "-b", "4096", "-m", "0", device, (char *)NULL);
        _exit(CHILD_SKIPPED);
    }
    int result;
    CHECK(waitpid(child, &result, 0) == child);
    return WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

void loop_run_or_skip(void (*function)(void *context), void *context) {
    const int result = run_in_child(function, context);
    if (result == CHILD_SKIPPED) {
        print_message("no root or loop device: a disk cannot be made\n");
        skip();
    }
    CHECK(result == 0);
}
