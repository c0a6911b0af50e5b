/* The page of `spillway report`: a self-contained HTML file that shows runs. */
#ifndef SW_REPORT_REPORT_H
#define SW_REPORT_REPORT_H

#include "core/status.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* With more runs the curves could not be told apart, and the page would be too large. */
enum { SW_REPORT_RUNS = 10 };

/* Reads the runs in these folders, changing nothing, and makes their page. The browser reloads the page after reload_s
 * seconds; 0: never. Writes what the page says of pipelines to `said`, too (may be NULL). The caller frees *out_page.
 */
sw_status sw_report_make(const char *const *folders, int count, int64_t reload_s, FILE *said, char **out_page,
                         size_t *out_bytes);

/* Writes a page to a file, completely or not at all. Refuses to replace a file that is not such a page. */
sw_status sw_report_write(const char *path, const char *page, size_t bytes);

/* Serves the page of running runs to whoever has its address on this machine. */

/* Answers GET /SECRET/ on 127.0.0.1 with the current page of these runs, until *stop is set. The secret is new each
 * time, because all users of the machine can reach the port. port 0: any free port. Prints the address on standard
 * error, even if the process is quiet. */
sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop);

/* The page's HTML, style and script, which embed.py makes into C arrays. The runs' data go between the two parts. */
extern const char sw_page_before[], sw_page_after[];
extern const size_t sw_page_before_bytes, sw_page_after_bytes;

/* The page's colours as rules for classes, light and dark: back, ink and quiet fill, line strokes, and w0, w1, ... fill
 * the kinds of work of a timeline. */
extern const char sw_page_colors[];
extern const size_t sw_page_colors_bytes;

#endif
