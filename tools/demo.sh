#!/usr/bin/env bash
# The demo: a byte-level GPT of 4.9M parameters learns the King James Bible, with its optimizer state on NVMe.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=build/spillway
folder=build/demo
text=$folder/kjv.txt
run=$folder/run

mkdir -p "$folder"
# The package bible-kjv prints verses as "Ge1:1 In the beginning ..."; the references go.
[[ -s $text ]] || { bible -f gen1:1-rev22:21 2>/dev/null | sed 's/^[^ ]* //' >"$text.partial" && mv "$text.partial" "$text"; }
echo "the text: $text, $(wc -c <"$text") bytes of English"

rm -rf "$run"
shape=(--model gpt2-demo --batch-tokens 4096 --micro-batch 8 --place optimizer=nvme)
echo "\$ spillway plan ${shape[*]}"
"$program" plan "${shape[@]}"
train=(train "${shape[@]}" --init --data "$text" --val 2% --run "$run" --steps 600 --lr 2e-3 --min-lr 1e-4 --warmup 40
    --eval-every 200 --time-limit 235s)
echo
echo "\$ spillway ${train[*]}"
# 3: the time limit ended it, and all is saved.
"$program" "${train[@]}" || [ $? -eq 3 ]

echo
echo "\$ spillway generate $run --prompt 'And it came to pass' --max-tokens 400"
"$program" generate "$run" --prompt 'And it came to pass' --max-tokens 400
echo
echo "to go on: $program resume $run --steps 1200"
