#!/usr/bin/env bash
# The GPU tests and measurements on a host that has a GPU, PyTorch and g++ but no network: nothing is installed.
#   PYTHONPATH=SITE:. scripts/gpu_host.sh OUT [STEP ...]      steps: build tests flow bench hopper cpu calls search sets suites
#                                                                verify sanitize mutants counters probe sgemm ladder steps
#                                                                tensorcore models timeline
# SITE holds TVM and the other Python packages that the host lacks. Everything is written under OUT.
# search and suites go on from the files of BEFORE (default: benchmarks/results/nvidia-h200), for SECONDS_SEARCH and
# SECONDS_SUITES, over SUITES, sets for SECONDS_SETS; SEARCH, BENCH and SETS are more options for them, MUTANTS for mutants
# (--at-once 1: of simt the sanitizer catches nearly all).
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: gpu_host.sh OUT [STEP ...]}
shift
steps=("$@")
((${#steps[@]})) || steps=(build tests flow bench hopper cpu calls)
mkdir -p "$out"
cli="python3 -m tirgemm.service.cli"
commit=(); [[ -n ${COMMIT:-} ]] && commit=(--commit "$COMMIT")   # a copy without its history cannot tell
run() { echo "== $*"; local began=$SECONDS; "$@"; local code=$?; echo "== exit $code after $((SECONDS - began)) s"; }
read -ra suites <<<"${SUITES:-square deepgemm llama skinny odd}"
before=${BEFORE:-benchmarks/results/nvidia-h200}
kept() { # FILE...: copies of earlier runs' files, to go on from
  local file
  for file in "$@"; do [[ -e $out/$file || ! -e $before/$file ]] || cp "$before/$file" "$out/$file"; done
}
for step in "${steps[@]}"; do
  case $step in
    build) run python3 -m tirgemm.artifact.build; run $cli devices ;;
    tests) run timeout 240 python3 -m pytest -p no:cacheprovider -q tests/gpu --timeout 120 --durations 8 ${GPU_TESTS:-} ;;
    flow) run timeout 150 $cli tune 1023x1021x1027:f16:nn --device cuda:0 --trials 48 --seconds 40 --data "$out/data" \
            --output "$out/kernel.tirgemm" --json
          ;;
    bench) run timeout 400 $cli bench simt --family simt --device cuda:0 --data "$out/data" --trials 64 --seconds 60 --out "$out/simt.sustained.json" "${commit[@]}" ;;
    hopper) run timeout 420 $cli bench hopper --family wgmma --device cuda:0 --data "$out/data" --trials 32 --seconds 30 \
              --out "$out/hopper.sustained.json" "${commit[@]}" ;;
    cpu)  # twice where one call is too short: it goes on from its file
      run timeout 570 $cli bench x86 --device cpu --data "$out/data" --trials 48 --seconds 40 --limit 460 --resume \
        --out "$out/x86.sustained.json" "${commit[@]}" ;;
    calls) run timeout 120 python3 benchmarks/call_overhead.py --out "$out/calls.json" "${commit[@]}" ;;
    models)  # whole models beside PyTorch; goes on from its file, if of the same transformers and choice of kernels (else BEFORE=none)
      kept models.json
      run timeout 570 python3 benchmarks/models/race.py --device "${DEVICE:-cuda:0}" --data "$out/data" \
        --limit "${SECONDS_MODELS:-480}" --resume --out "$out/models.json" ${MODELS:-} "${commit[@]}"
      run python3 benchmarks/check.py "$out/models.json" ;;
    search)  # into the database of $OUT/data, from what is recorded in the repository
      limit=${SECONDS_SEARCH:-480}
      run $cli db import tuning_db/shipped/nvidia-h200.jsonl.gz --data "$out/data"
      # shellcheck disable=SC2086 - options
      run timeout --signal INT "$limit" $cli tune "${suites[@]/#/--suite=}" --device "${DEVICE:-cuda:0}" \
        --family "${FAMILY:-wgmma}" --regime "${REGIME:-sustained}" --data "$out/data" ${SEARCH:-}
      run $cli db export "$out/records.jsonl.gz" --data "$out/data" ;;  # scripts/ship_records.py takes it into the package
    sets)  # kernel sets of all families, from what is recorded in the repository and by earlier runs; SETS are more options
      for records in tuning_db/shipped/nvidia-h200.jsonl.gz "$out/records.jsonl.gz"; do
        [[ ! -e $records ]] || run $cli db import "$records" --data "$out/data"
      done
      # shellcheck disable=SC2086 - options
      run timeout --signal INT "${SECONDS_SETS:-480}" $cli tune --suite sets --device "${DEVICE:-cuda:0}" \
        --regime "${REGIME:-sustained}" --data "$out/data" ${SETS:-}
      run $cli db export "$out/records.jsonl.gz" --data "$out/data" ;;  # scripts/ship_records.py --sets takes it into the package
    suites)
      files=()
      for suite in "${suites[@]}"; do
        for regime in sustained isolated; do files+=("$suite.$regime".json{,.gz}); done
      done
      kept "${files[@]}"
      limit=${SECONDS_SUITES:-480}
      # shellcheck disable=SC2086 - options
      run timeout $((limit + 70)) $cli bench "${suites[@]}" --device "${DEVICE:-cuda:0}" --family "${FAMILY:-wgmma}" \
        --regime "${REGIMES:-sustained,isolated}" --recorded --limit "$limit" --resume --compress \
        --out "$out" --data "$out/data" ${BENCH:-} "${commit[@]}"
      run python3 benchmarks/check.py "$out"/*.json.gz ;;
    verify) run timeout 330 python3 -m verification.verify_family "${FAMILY:-wgmma}" --device "${DEVICE:-cuda:0}" \
              --count 640 --seconds 290 --out "$out/${FAMILY:-wgmma}.verified.json.gz" "${commit[@]}" ;;
    sanitize)  # compute-sanitizer is mostly start-up: many at a time
      kept "${FAMILY:-wgmma}.sanitized.json.gz"
      limit=${SECONDS_SANITIZE:-200}
      run timeout $((limit + 60)) python3 -m verification.sanitize "${FAMILY:-wgmma}" --device "${DEVICE:-cuda:0}" \
        --seconds "$limit" --parallel "${PARALLEL:-12}" --out "$out/${FAMILY:-wgmma}.sanitized.json.gz" "${commit[@]}" ;;
    mutants)
      kept "${FAMILY:-wgmma}.mutants.json.gz"
      limit=${SECONDS_MUTANTS:-330}
      run timeout $((limit + 130)) python3 -m verification.mutants "${FAMILY:-wgmma}" --device "${DEVICE:-cuda:0}" \
        --seconds "$limit" --parallel "${PARALLEL:-12}" ${MUTANTS:-} --out "$out/${FAMILY:-wgmma}.mutants.json.gz" "${commit[@]}" ;;
    counters) run timeout 420 python3 -m benchmarks.counters --device "${DEVICE:-cuda:0}" --seconds 380 \
                --out "$out/counters.json" ${COUNTERS:-} "${commit[@]}" ;;
    probe) run timeout 200 python3 -m benchmarks.bank_probe --device "${DEVICE:-cuda:0}" --seconds 160 \
             --out "$out/banks.counters.json" "${commit[@]}" ;;
    sgemm)  # the fastest simt configs of large fp32 problems, for SECONDS_SGEMM
      run timeout --signal INT "${SECONDS_SGEMM:-75}" $cli tune --suite sgemm --device "${DEVICE:-cuda:0}" --family simt \
        --data "$out/data" ;;
    ladder)  # every rung; with the configs that sgemm found one more
      # shellcheck disable=SC2086 - options
      run timeout "${SECONDS_LADDER:-480}" $cli ladder --suite ladder --device "${DEVICE:-cuda:0}" --recorded \
        --data "$out/data" --out "$out/ladder.sustained.json" --html "$out/ladder.html" --resume ${LADDER:-} "${commit[@]}"
      run python3 benchmarks/check.py "$out/ladder.sustained.json" ;;
    tensorcore)  # the ceiling of mma.sync; mma and wmma searched, then measured beside cuBLAS and CUTLASS where it is installed
      run timeout 60 python3 -m benchmarks.mma_ceiling --device "${DEVICE:-cuda:0}" --out "$out/mma_ceiling.json" "${commit[@]}"
      limit=${SECONDS_SEARCH:-60}
      for family in mma wmma; do
        run timeout --signal INT "$limit" $cli tune --suite "$family" --device "${DEVICE:-cuda:0}" --family "$family" --data "$out/data"
        run timeout 150 $cli bench "$family" --family "$family" --device "${DEVICE:-cuda:0}" --data "$out/data" \
          --recorded --finalists 10 --measure 4 --limit 110 \
          --out "$out/$family.sustained.json" "${commit[@]}"
      done ;;
    steps)  # from WMMA to mma.sync on permuted tiles, one change at a time
      kept tensorcore_steps.sustained.json
      run timeout 420 python3 benchmarks/tensorcore_steps.py --device "${DEVICE:-cuda:0}" --limit "${SECONDS_STEPS:-300}" \
        --resume --out "$out/tensorcore_steps.sustained.json" "${commit[@]}"
      run python3 benchmarks/check.py "$out/tensorcore_steps.sustained.json" ;;
    timeline) run timeout 200 python3 -m benchmarks.timeline.record --device "${DEVICE:-cuda:0}" --out "$out" "${commit[@]}"
      run python3 benchmarks/check.py "$out"/*.timeline.json.gz ;;
    *) echo "unknown step $step"; exit 2 ;;
  esac
done
