TOOLS_BIN ?= $(CURDIR)/.tools/bin
export TOOLS_BIN
# go-nvml's headers mark what old drivers need as deprecated.
export CGO_CFLAGS = -g -O2 -Wno-deprecated-declarations

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

build: ## the binary, into bin/; with gcc also penstock-nvml, which reads GPUs
	CGO_ENABLED=0 go build -trimpath -o bin/penstock ./cmd/penstock
	@if command -v gcc > /dev/null; then set -x; CGO_ENABLED=1 go build -trimpath -o bin/penstock-nvml ./cmd/penstock-nvml; \
	else echo "no gcc: bin/penstock-nvml is not built; penstock runs without it"; fi

test: lint ## lint, then every test under -race
	go test -race -vet=off -shuffle=on ./...

lint: ## gofumpt, vet and the short linter list
	@scripts/install-tools.sh lint
	@out=$$($(TOOLS_BIN)/gofumpt -l .); [ -z "$$out" ] || { echo "not formatted (make fmt): $$out"; exit 1; }
	go vet -tags e2e ./...
	$(TOOLS_BIN)/golangci-lint run ./...

gen: ## regenerate golden files; read the diff before committing it
	go test ./scheduler ./sim/engine ./gateway ./queue/rocketmq ./cmd/penstock -rewrite

proto: ## regenerate proto/ and check it against the last release
	scripts/proto

bench: ## the benchmarks whose figures docs/benchmarks.md quotes
	go test -run '^$$' -bench . -benchmem ./scraper ./scheduler ./vllm ./queue/memory ./response ./gateway ./agent ./registry/memory
	go build -trimpath -o bin/penstock ./cmd/penstock
	go run ./e2e/latency
	scripts/law

sim: ## a simulated engine on 127.0.0.1:8000
	go run ./cmd/penstock sim engine --listen 127.0.0.1:8000

e2e: ## end to end: a real vLLM on the CPU (6 GB, installed on first use), a fleet on RocketMQ and Redis
	scripts/e2e

chaos: ## the fault tests repeated, and a whole fleet killed at 120 points; output in docs/results
	scripts/chaos

fmt: ## format the code
	@scripts/install-tools.sh lint
	$(TOOLS_BIN)/gofumpt -w .

.PHONY: help build test lint gen proto bench sim e2e chaos fmt
