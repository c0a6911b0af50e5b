/* Messages for people, on standard error. Standard output belongs to results. */
#ifndef SW_CORE_LOG_H
#define SW_CORE_LOG_H

/* Of several ranks, rank 0 speaks for all: the others' information is not printed, and their warnings say whose they
 * are. Of the process, as standard error is; sw_comm_open calls it. */
void sw_log_set_rank(int rank);

void sw_log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sw_log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
