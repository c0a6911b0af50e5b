/* A second opinion on plans, by brute force and sharing nothing with offload/plan/check.c: the whole order relation of
 * the unrolled steps, every pair of conflicting accesses, and the contents that possible executions find: one in which
 * all redo ops run and, where the program repeats, one in which none does. */
#ifndef SW_TESTS_OFFLOAD_ORACLE_H
#define SW_TESTS_OFFLOAD_ORACLE_H

#include "offload/plan/plan.h"

/* NULL where the program is sound, else what is wrong. */
const char *oracle_judge(const struct sw_plan *plan, sw_program_kind kind);

/* NULL where no two slots overlap and every tier holds its slots and is within its budget. */
const char *oracle_judge_memory(const struct sw_plan *plan);

#endif
