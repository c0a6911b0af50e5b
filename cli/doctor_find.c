/* A finding: printed at once, or kept for the JSON object. */
#include "cli/commands.h"
#include "cli/doctor.h"
#include "core/size.h"

#include <stdarg.h>
#include <stdio.h>

enum { FOUND_CHARS = 4608, FOUND_COLUMN = 17 };

json_t *sw_fact_text(const char *text) {
    return text == NULL || text[0] == '\0' ? json_null() : json_string(text);
}

json_t *sw_fact_number(int64_t number) {
    return number < 0 ? json_null() : json_integer((json_int_t)number);
}

void sw_doctor_find(struct sw_doctor *doctor, struct sw_finding finding, const char *format, ...) {
    static const char *const states[] = {
        [SW_FOUND_FINE] = "ok", [SW_FOUND_PROBLEM] = "fix", [SW_FOUND_UNKNOWN] = "unknown"};
    static const char *const marks[] = {[SW_FOUND_FINE] = "ok", [SW_FOUND_PROBLEM] = "FIX", [SW_FOUND_UNKNOWN] = "?"};
    const sw_found state = finding.fix != NULL ? SW_FOUND_PROBLEM : finding.unknown ? SW_FOUND_UNKNOWN : SW_FOUND_FINE;
    char found[FOUND_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    doctor->problems += state == SW_FOUND_PROBLEM;
    json_array_append_new(doctor->findings,
                          json_pack("{s:s, s:s?, s:s, s:s, s:s?, s:o}", "what", doctor->what, "folder", doctor->folder,
                                    "state", states[state], "found", found, "fix", finding.fix, "facts",
                                    finding.facts != NULL ? finding.facts : json_object()));
    if (doctor->json)
        return;
    printf("%-3s %-12s ", marks[state], doctor->what);
    sw_command_print(FOUND_COLUMN, FOUND_COLUMN, "%s%s%s", doctor->folder != NULL ? doctor->folder : "",
                     doctor->folder != NULL ? ": " : "", found);
    if (finding.fix != NULL) {
        printf("%*s", FOUND_COLUMN, "");
        sw_command_print(FOUND_COLUMN, FOUND_COLUMN, "%s", finding.fix);
    }
    fflush(stdout);
}
