/* Messages for people, on standard error. Standard output belongs to results. */
#ifndef SW_CORE_LOG_H
#define SW_CORE_LOG_H

void sw_log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sw_log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
