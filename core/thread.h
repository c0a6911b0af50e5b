/* Starts threads that leave signals to the program's other threads. */
#ifndef SW_CORE_THREAD_H
#define SW_CORE_THREAD_H

#include <pthread.h>

/* Calls pthread_create, and blocks all signals in the new thread but those by which a fault ends the process. A program
 * that this code is a library of may expect its signals in a thread of its own, and its handlers may use what only
 * that thread has. */
int sw_thread_start(pthread_t *out, void *(*run)(void *argument), void *argument);

#endif
