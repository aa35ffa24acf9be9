#!/usr/bin/env bash
# The main job on the embedded tiny pair: measure, price, plan. Called by `make demo`; $1 is the folder of `specplan`.
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
export PATH="$bin:$PATH"
mkdir -p demo

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

run specplan profile --target tiny --draft tiny --time-budget 120 -o demo/profile.json
run specplan tables demo/profile.json -o demo/tables.json
run specplan simulate profiles/traces/tiny-code.parquet --tables demo/tables.json \
    --policy fixed:1 --policy fixed:3 --policy fixed:7 --policy adaptive --policy oracle \
    --concurrency 1,4,16,64 -o demo/simulation.json
