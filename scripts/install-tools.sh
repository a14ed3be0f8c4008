#!/usr/bin/env bash
# install-tools.sh [GROUP...]: the pinned developer tools, into $TOOLS_BIN (.tools/bin).
# Groups: lint (default), test, proto. A tool that is there at its version is not built again.
set -euo pipefail
bin=${TOOLS_BIN:-$PWD/.tools/bin}
mkdir -p "$bin"
want() {
  for tool in "$@"; do
    local stamp="$bin/.${tool//[\/@]/_}"
    [ -e "$stamp" ] && continue
    echo "building $tool" >&2
    GOBIN=$bin GOFLAGS= CGO_ENABLED=0 go install -ldflags='-s -w' "$tool"
    touch "$stamp"
  done
}
# npm has buf as its makers build it: building it takes two minutes of CPU time.
want_buf() {
  local stamp=$bin/.buf-$1
  [ -e "$stamp" ] && return
  if command -v npm > /dev/null && npm install --silent --no-fund --no-audit --prefix "$bin/npm" "@bufbuild/buf@$1"; then
    ln -sf npm/node_modules/.bin/buf "$bin/buf"
    touch "$stamp"
  else
    want "github.com/bufbuild/buf/cmd/buf@v$1"
  fi
}
[ $# -gt 0 ] || set -- lint
for group in "$@"; do
  case $group in
  lint) want mvdan.cc/gofumpt@v0.12.0 github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 ;;
  test) want golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da ;;
  proto)
    want_buf 1.75.0
    want google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12 google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
    ;;
  *) echo "install-tools.sh: unknown group '$group'; groups are: lint test proto" >&2; exit 2 ;;
  esac
done
