#!/usr/bin/env bash
# gpu-check.sh: penstock-nvml against a real NVIDIA driver, in at most 5 minutes. It needs no Go where it runs:
#   scripts/gpu-check.sh build [DIR]    where Go and gcc are: the binaries, into DIR (bin/gpu-check)
#   scripts/gpu-check.sh run [DIR]      where the GPU is: p50 and p99 of each call at 50 ms, then the reader's life
# Exit 3 and "not run" where there is no driver.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=${2:-bin/gpu-check}
case ${1:-} in
build)
  mkdir -p "$dir"
  CGO_ENABLED=1 CGO_CFLAGS='-g -O2 -Wno-deprecated-declarations' go build -trimpath -ldflags='-s -w' -o "$dir/penstock-nvml" ./cmd/penstock-nvml
  CGO_ENABLED=0 go test -c -tags e2e -trimpath -ldflags='-s -w' -o "$dir/nvml.test" ./scraper/nvml
  ;;
run)
  if ! [ -e /dev/nvidiactl ]; then
    echo "not run: no /dev/nvidiactl on this machine" >&2
    exit 3
  fi
  command -v nvidia-smi > /dev/null && nvidia-smi -L
  timeout 90 "$dir/penstock-nvml" --check 60s
  E2E_NVML=$(realpath "$dir/penstock-nvml") timeout 120 "$dir/nvml.test" -test.v -test.timeout 100s -test.run RealDriver
  ;;
*)
  sed -n '2,5s/^# \?//p' "$0" >&2
  exit 2
  ;;
esac
