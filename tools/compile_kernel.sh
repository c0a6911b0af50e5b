#!/bin/sh
# compile_kernel.sh REPORT COMMAND...: runs nvcc with -Xptxas -v and keeps in REPORT what the assembler says of every
# kernel's registers, stack and shared memory (tools/kernel_report.py reads it). Only other messages are shown.
report=$1
shift
"$@" -Xptxas -v 2>"$report"
status=$?
grep -v -e '^ptxas info ' -e '^ *[0-9]* bytes stack frame' "$report" >&2
exit $status
