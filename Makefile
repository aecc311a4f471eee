# kern-sbx. `make build` gives bin/kern-sbx, a static binary with kern inside, and
# bin/kern-sbx-mcp, the server for agents that kern-sbx mcp starts.
#
#   make kern   [GOARCH=arm64]   fetch and unpack the pinned kern (pkg/kernbin/kern.pin)
#   make build  [GOARCH=arm64]   build bin/kern-sbx and bin/kern-sbx-mcp
#   make demo                    run code in a real box
#   make test                    what CI runs: install what it needs, lint, test, fuzz for a while
#   make bench                   what a run costs; prints the table of the README
#   make corpus CORPUS=FILE      how often `doctor -- CMD` is right about known failures
#   make clean                   remove what make made

GO     ?= go
GOARCH ?= $(shell $(GO) env GOARCH)
BIN    ?= bin/kern-sbx
# Found beside kern-sbx, by this name.
SERVER := $(dir $(BIN))kern-sbx-mcp
CACHE  := .cache

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# Programs that run during the build are for this machine, whatever GOARCH says.
host_go = GOOS=$$($(GO) env GOHOSTOS) GOARCH=$$($(GO) env GOHOSTARCH) $(GO)

PIN      := pkg/kernbin/kern.pin
BUNDLE   := pkg/kernbin/bundled/$(GOARCH)
WHEELS   := $(CACHE)/wheels/$(GOARCH)
pin       = $(shell awk '$$1 == "$(1)" { print $$2 }' $(PIN))
platform  = $(shell awk '$$1 == "wheel" && $$2 == "$(GOARCH)" { print $$3 }' $(PIN))

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

.PHONY: build
build: kern agent
	@mkdir -p $(dir $(BIN)) $(CACHE)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -buildvcs=false -tags embedkern \
		-ldflags '$(LDFLAGS)' -o $(CACHE)/kern-sbx .
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -buildvcs=false -tags embedkern \
		-ldflags '-s -w' -o $(CACHE)/kern-sbx-mcp ./pkg/mcp/kern-sbx-mcp
	@# A copy starts 0.3-0.6 ms faster than the file the linker wrote, and a
	@# rename replaces a binary that is running.
	@cp $(CACHE)/kern-sbx $(BIN).tmp && mv -f $(BIN).tmp $(BIN)
	@cp $(CACHE)/kern-sbx-mcp $(SERVER).tmp && mv -f $(SERVER).tmp $(SERVER)

.PHONY: kern
kern: $(BUNDLE)/kern $(BUNDLE)/kern.sha256

$(BUNDLE)/kern $(BUNDLE)/kern.sha256 &: $(PIN) $(WHEELS)/.fetched
	$(host_go) run ./pkg/kernbin/extract -pin $(PIN) -arch $(GOARCH) -wheel-dir $(WHEELS) -out $(dir $(BUNDLE))

# The program that runs inside a box. Built each time: go knows when it is fresh.
AGENT := pkg/agent/bundled/$(GOARCH)/agent
.PHONY: agent
agent:
	@mkdir -p $(dir $(AGENT)) $(CACHE)
	@CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $(CACHE)/agent-$(GOARCH) ./pkg/agent/agent
	@cmp -s $(CACHE)/agent-$(GOARCH) $(AGENT) || cp $(CACHE)/agent-$(GOARCH) $(AGENT)

# The extractor checks what came against the pin, so pip need not be trusted.
$(WHEELS)/.fetched: $(PIN)
	@test -n "$(platform)" || { echo "make: $(PIN) has no wheel for GOARCH=$(GOARCH)" >&2; exit 1; }
	@mkdir -p $(WHEELS)
	@for pip in "python3 -m pip" pip3 pip; do \
		$$pip --version >/dev/null 2>&1 || continue; \
		set -x; \
		exec $$pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
			--platform $(platform) --dest $(WHEELS) "$(call pin,package)==$(call pin,version)"; \
	done; \
	echo "make: pip is needed once, to fetch $(call pin,package) $(call pin,version): install python3 with pip," \
		"or put the wheel for $(platform) into $(WHEELS) and run: touch $@" >&2; \
	exit 1
	@touch $@

.PHONY: demo
demo: build
	$(BIN) run --image host -c 'print(sum(range(100)))'

# Tools, pinned. `go install` by version keeps their dependencies out of go.mod.
TOOLS       := $(CURDIR)/$(CACHE)/tools
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

$(TOOLS)/%: Makefile
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) $(host_go) install $(TOOL)
	@touch $@
$(TOOLS)/gofumpt: TOOL = $(GOFUMPT)
$(TOOLS)/staticcheck: TOOL = $(STATICCHECK)

.PHONY: lint
lint: $(TOOLS)/gofumpt $(TOOLS)/staticcheck
	@bad=$$($(TOOLS)/gofumpt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofumpt would change:" $$bad >&2; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags embedkern ./...
	$(TOOLS)/staticcheck ./...
	@$(GO) mod tidy -diff

# What the tests want beside Go: a static busybox for images, a user-mode Linux
# with cgroup v2, tmux for the terminal, debootstrap for a root of real programs (kept
# in .cache/roots). Tests that lack one skip and say so.
PACKAGES := busybox-static user-mode-linux kmod tmux iproute2 uidmap debootstrap
.PHONY: test-deps
test-deps:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		have=$$(dpkg-query -W -f '$${Status} $${Package}\n' $(PACKAGES) 2>/dev/null | awk '$$3 == "installed" { print $$NF }'); \
		want=""; for p in $(PACKAGES); do case " $$(echo $$have) " in *" $$p "*) ;; *) want="$$want $$p" ;; esac; done; \
		[ -z "$$want" ] || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$want; } \
			|| echo "make: could not install$$want; tests that need them will skip" >&2; \
	else echo "make: not root on Debian: tests that need $(PACKAGES) skip where these are missing" >&2; fi

# The race detector needs a C compiler.
RACE := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)
FUZZTIME ?= 10s

.PHONY: test
test: export KERN_BIN = $(CURDIR)/$(BUNDLE)/kern
test: build test-deps lint
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test $(RACE) -tags embedkern -timeout 25m ./cmd/... ./pkg/...
	$(GO) test -tags embedkern -timeout 25m ./testscripts/...
	$(MAKE) fuzz

# Each fuzz target for a while, one after the other: they use all CPUs.
.PHONY: fuzz
fuzz: kern agent
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd pkg | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | sed 's/^func //'); do \
			echo "fuzz ./$$dir $$f"; \
			$(GO) test -tags embedkern -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) ./$$dir >$(CACHE)/fuzz.log 2>&1 && bad= || bad=yes; \
			cat $(CACHE)/fuzz.log; \
			[ -z "$$bad" ] || { grep -q 'context deadline exceeded' $(CACHE)/fuzz.log && ! grep -q 'Failing input' $(CACHE)/fuzz.log && \
				echo "(go test did not stop in time, and found nothing)"; }; \
		done; \
	done

ROUNDS ?= 100
.PHONY: bench
bench: build
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CACHE)/bare.linked ./testscripts/bench/bare && cp $(CACHE)/bare.linked $(CACHE)/bare
	@$(GO) run ./testscripts/bench -kern-sbx $(BIN) -kern $(CURDIR)/$(BUNDLE)/kern -bare $(CACHE)/bare -wheel '$(CURDIR)/$(WHEELS)/*.whl' -rounds $(ROUNDS)

# A file of failures with their answers, and a script beside it that builds the root
# file systems they need. Its commands run on this machine: it has to be trusted.
.PHONY: corpus
corpus: build
	@test -f '$(CORPUS)' || { echo "make: name a file of cases: make corpus CORPUS=FILE" >&2; exit 1; }
	@mkdir -p $(CACHE)/roots
	@$(GO) run ./testscripts/corpus -kern-sbx $(CURDIR)/$(BIN) -corpus '$(CORPUS)' -roots $(CURDIR)/$(CACHE)/roots

.PHONY: clean
clean:
	rm -rf bin $(CACHE) pkg/kernbin/bundled pkg/agent/bundled
