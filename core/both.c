#include "core/both.h"

#include <pthread.h>
#include <stdio.h>

enum { MESSAGE_CHARS = 512 };

/* The call on the other thread. Its message is copied, because messages belong to the thread that failed. */
struct beside {
    sw_status (*run)(void *context);
    void *context;
    sw_status status;
    char message[MESSAGE_CHARS];
};

static void *run_beside(void *argument) {
    struct beside *beside = argument;
    beside->status = beside->run(beside->context);
    if (beside->status != SW_OK)
        snprintf(beside->message, sizeof beside->message, "%s", sw_error_message(beside->status));
    return NULL;
}

sw_status sw_run_both(sw_status (*run)(void *context), void *own, void *other) {
    struct beside beside = {.run = run, .context = other};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_beside, &beside) != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start a thread to measure two things at once");
    const sw_status status = run(own);
    pthread_join(thread, NULL);
    return status == SW_OK && beside.status != SW_OK ? sw_fail(beside.status, "%s", beside.message) : status;
}
