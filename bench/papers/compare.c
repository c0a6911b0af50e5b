/* Compares our numbers with those of papers. */
#include "bench/papers/papers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double sw_paper_value(const struct sw_paper_number *number) {
    return number->paper != 0.0 || number->printed == NULL ? number->paper : strtod(number->printed, NULL);
}

double sw_paper_deviation(const struct sw_paper_number *number) {
    return number->ours / sw_paper_value(number) - 1.0;
}

bool sw_paper_equation_holds(const struct sw_paper_number *number) {
    if (number->printed == NULL || number->paper == 0.0)
        return true;
    const char *point = strchr(number->printed, '.');
    const double unit = point == NULL ? 1.0 : pow(10.0, -(double)strlen(point + 1));
    return fabs(number->paper - strtod(number->printed, NULL)) <= unit;
}

bool sw_paper_within(const struct sw_paper_column *column, const struct sw_paper_number *number) {
    const double deviation = sw_paper_deviation(number);
    return sw_paper_equation_holds(number) && deviation >= column->low && deviation <= column->high;
}

int sw_paper_count_outside(const struct sw_paper_table *table) {
    int outside = 0;
    for (int r = 0; r < table->rows; r++)
        for (int c = 0; c < table->columns; c++)
            outside += !sw_paper_within(&table->column[c], &table->row[r].number[c]);
    return outside;
}
