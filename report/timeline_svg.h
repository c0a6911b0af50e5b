/* One step's timeline as an SVG image: lanes as rows, work as bars, in the colors of the report's page. */
#ifndef SW_REPORT_TIMELINE_SVG_H
#define SW_REPORT_TIMELINE_SVG_H

#include "core/status.h"

#include <stdio.h>

/* Refuses a path where something exists: it may be mistyped, and name state or data. */
sw_status sw_timeline_svg_check(const char *path);

/* Writes the image of a timeline (the JSON of offload/engine/trace.h) to a new file. The image has at most one bar
 * per span of the timeline, and less than 1 MB in all. */
sw_status sw_timeline_svg_write(const char *path, const char *timeline, const char *title);

#endif
