#!/bin/sh
# compile_kernel.sh REPORT COMMAND...: runs nvcc with -Xptxas -v and keeps in REPORT what the assembler says of every
# kernel's registers, stack and shared memory, and what its PTX says of its blocks (tools/kernel_report.py reads both).
# Only other messages are shown.
report=$1
shift
kept=$(mktemp -d "$report.XXXXXX") || exit
"$@" -Xptxas -v --keep --keep-dir "$kept" 2>"$report"
status=$?
grep -v -e '^ptxas info ' -e '^ *[0-9]* bytes stack frame' "$report" >&2
grep -h -e '^// Cuda compilation tools' -e '\.entry ' -e '^\.maxntid ' -e '// dynamic shared bytes ' "$kept"/*.ptx >>"$report"
rm -r "$kept"
exit $status
