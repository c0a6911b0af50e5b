#include "tests/equipment/cuda/fragment.h"

#include "tests/equipment/cuda/machine.h"
#include "tests/equipment/vectors.h"

#include <string.h>

enum { ROWS = 16, COLUMNS = 8, TERMS = 16, HELD_TERMS = 4, LANES = SW_EMULATION_WARP_LANES };

/* The terms of each sum stand in the order of the lanes that hold them. */
SW_WIDE_VECTORS static void add_terms(float a[ROWS][TERMS], float b[TERMS][COLUMNS], float sums[ROWS][COLUMNS]) {
    for (int row = 0; row < ROWS; row++)
        for (int term = 0; term < TERMS; term++)
            for (int column = 0; column < COLUMNS; column++)
                sums[row][column] += a[row][term] * b[term][column];
}

void sw_emulation_multiply(const struct sw_emulation_fragments *mine) {
    const char *lanes = sw_emulation_gather(mine, sizeof *mine, "mma");
    struct sw_emulation_fragments held;
    float a[ROWS][TERMS], b[TERMS][COLUMNS], sums[ROWS][COLUMNS];
    if (lanes == NULL)
        return;
    for (int lane = 0; lane < LANES; lane++) {
        const int g = lane / 4, t = lane % 4;
        memcpy(&held, lanes + lane * SW_EMULATION_LANE_BYTES, sizeof held);
        for (int i = 0; i < HELD_TERMS; i++) {
            a[g][t * HELD_TERMS + i] = held.a[i / 2 * 4 + i % 2];
            a[g + 8][t * HELD_TERMS + i] = held.a[i / 2 * 4 + i % 2 + 2];
            b[t * HELD_TERMS + i][g] = held.b[i];
        }
        memcpy(&sums[g][2 * t], held.sums, 2 * sizeof(float));
        memcpy(&sums[g + 8][2 * t], held.sums + 2, 2 * sizeof(float));
    }
    add_terms(a, b, sums);
    for (int lane = 0; lane < LANES; lane++) {
        const int g = lane / 4, t = lane % 4;
        memcpy(&held, lanes + lane * SW_EMULATION_LANE_BYTES, sizeof held);
        memcpy(held.sums, &sums[g][2 * t], 2 * sizeof(float));
        memcpy(held.sums + 2, &sums[g + 8][2 * t], 2 * sizeof(float));
    }
}
