/* The page of `spillway report`: a self-contained HTML file that shows runs. */
#ifndef SW_REPORT_REPORT_H
#define SW_REPORT_REPORT_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* With more runs the curves could not be told apart, and the page would be too large. */
enum { SW_REPORT_RUNS = 10 };

/* Reads the runs in these folders, changing nothing, and makes their page. The browser reloads the page after reload_s
 * seconds; 0: never. The caller frees *out_page. */
sw_status sw_report_make(const char *const *folders, int count, int64_t reload_s, char **out_page, size_t *out_bytes);

/* Writes a page to a file, completely or not at all. Refuses to replace a file that is not such a page. */
sw_status sw_report_write(const char *path, const char *page, size_t bytes);

#endif
