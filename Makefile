# What one can do here. `make` alone lists it.
SHELL := /bin/bash
# A failure must not hide behind a pipe.
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
GOLANGCI := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 500x
SIMTIME ?= 60
BENCH ?= .
COUNT ?= 1
IMAGE ?= holdfast
ROUNDS ?= 1

.PHONY: help build check lint fmt test race fuzz sim crash-long bench compare image

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the binary, static, as ./holdfast
	CGO_ENABLED=0 $(GO) build -trimpath -o holdfast .

check: lint ## vet, linters, import graph and house rules: what to run before a commit
	$(GO) vet ./...
	$(GO) vet -C bench/peers ./...
	$(GO) test -run 'Import|Libraries|OneLevel|Limits|Documented|Pure|NoInit|LeftForLater|Current|Exist|Links|Reaches' .

lint: ## the linters alone
	$(GOLANGCI) run ./...
	cd bench/peers && $(GOLANGCI) run ./...

fmt: ## format
	gofmt -w .

# The end-to-end tests measure time: they get the machine to themselves.
PACKAGES = $$($(GO) list ./... | grep -v /e2e)

test: ## every test
	$(GO) test -timeout 15m $(TESTFLAGS) $(PACKAGES)
	$(GO) test -timeout 15m $(TESTFLAGS) ./e2e
	cd bench/peers && $(GO) test -timeout 15m $(TESTFLAGS) ./...

race: ## every test with the race detector
	$(MAKE) --no-print-directory test TESTFLAGS='-race -count=1'

fuzz: ## each fuzz target for FUZZTIME (500x: inputs; or a time, 30s)
	@set -e; for f in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
	  for t in $$(grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | cut -c6-); do \
	    echo "fuzz $$(dirname $$f) $$t"; $(GO) test $$(dirname $$f) -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME); \
	  done; done

sim: ## new seeds of the delivery simulation for SIMTIME seconds (60); go test ./delivery -run Sim -seed=N repeats one
	$(GO) test ./delivery -run Sim -count=1 -timeout 30m -v -sim.time=$(SIMTIME)s

crash-long: ## the kill -9 test, the long way: 60 kills under load
	$(GO) test ./e2e -run Crash -kills 60 -count=1 -timeout 60m -v

bench: ## the micro benchmarks; BENCH=name, COUNT=5 for benchstat
	$(GO) test -run '^$$' -bench '$(BENCH)' -count $(COUNT) -benchmem -timeout 60m ./codec ./scheduler ./ack ./store ./delivery ./conn

# bench/peers is a module of its own, so that the brokers are no dependency of the product. mosquitto runs on a configuration and a port
# of the comparison's own, never as a service.
compare: ## relay, mosquitto, mochi-mqtt and holdfast on the same work, ROUNDS times (1: about five minutes); the table, bench/compare.json and .md
	@command -v mosquitto >/dev/null || test -x /usr/sbin/mosquitto || RUNLEVEL=1 apt-get install -y --no-install-recommends mosquitto
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  $(GO) build -C bench/peers -o "$$tmp/" ./mochi ./relay ./compare; \
	  CGO_ENABLED=0 $(GO) build -trimpath -o "$$tmp/holdfast" .; \
	  "$$tmp/compare" --holdfast "$$tmp/holdfast" --mochi "$$tmp/mochi" --relay "$$tmp/relay" --rounds $(ROUNDS) --data . \
	    --json bench/compare.json --markdown bench/compare.md $(if $(wildcard docs/performance.md),--page docs/performance.md) $(COMPAREFLAGS)

image: ## the container image
	docker build -t $(IMAGE) .
