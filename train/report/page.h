/* The page's HTML, style and script, which embed.py makes a C array of. The runs' data goes between the two parts. */
#ifndef SW_TRAIN_REPORT_PAGE_H
#define SW_TRAIN_REPORT_PAGE_H

#include <stddef.h>

extern const char sw_page_before[], sw_page_after[];
extern const size_t sw_page_before_bytes, sw_page_after_bytes;

#endif
