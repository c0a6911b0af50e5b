/* The page's HTML, style and script, which embed.py makes into C arrays. The runs' data go between the two parts. */
#ifndef SW_REPORT_PAGE_H
#define SW_REPORT_PAGE_H

#include <stddef.h>

extern const char sw_page_before[], sw_page_after[];
extern const size_t sw_page_before_bytes, sw_page_after_bytes;

/* The page's colours as rules for classes, light and dark: back, ink and quiet fill, line strokes, and w0, w1, ... fill
 * the kinds of work of a timeline. */
extern const char sw_page_colors[];
extern const size_t sw_page_colors_bytes;

#endif
