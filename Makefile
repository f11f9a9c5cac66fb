# `make` alone lists the targets. What a target needs is built once, from the Go module proxy, at the versions of the
# go.mod files: the control plane into .assets/, code generators and linters into .tools/.

SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS     += --no-print-directory

TOOLS   := $(CURDIR)/.tools
GO      := $(shell go env GOVERSION)
ifeq ($(GO),)
$(error Go is not on PATH: install the version that go.mod names, from https://go.dev/dl)
endif
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X github.com/trivet-dev/trivet/internal/identity.version=$(VERSION)
# gRPC's request traces, which nothing shows, link html/template and with it every method of every type.
GOTAGS  := grpcnotrace
# Go's build cache shares only what is compiled alike. So all that make compiles has these tags and no cgo, as the control plane
# of tools/controlplane; only the race detector and vale need cgo.
export CGO_ENABLED := 0
export GOFLAGS     := $(filter-out -tags=% --tags=%,$(shell go env GOFLAGS)) -tags=$(GOTAGS)

# What a release contains; tools/image has the same list. The servers are links to trivet-server, in the directory that follows.
COMMANDS     := ./cmd/trivet ./cmd/trivet-agent ./cmd/trivet-server
link-servers  = for server in leasesvc bootstrapsvc slicesvc gateway; do ln -sfn trivet-server $(1)/$$server; done

# Narrow a run: make test-go PACKAGES=./internal/term/... ; make lint PACKAGES=./services/slicesvc/... ; make run ARGS='--nodes 100'
PACKAGES ?= ./...
ARGS     ?=
BENCH    ?= .

.PHONY: help
help: ## This list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Use

.PHONY: run
run: assets build-run ## Start everything on this machine: control plane, services, gateway and a simulated cluster (ARGS='--nodes 100')
	@exec bin/trivet-lab up $(ARGS)

# The simulated cluster runs the servers and the agents itself.
.PHONY: build-run
build-run:
	@mkdir -p bin
	go build -ldflags "$(LDFLAGS)" -o bin/ ./test/lab/cmd/trivet-lab ./cmd/trivet

.PHONY: build
build: ## Build all commands into bin/
	@mkdir -p bin
	go build -ldflags "$(LDFLAGS)" -o bin/ $(COMMANDS) ./test/lab/cmd/trivet-lab
	@$(call link-servers,bin)
	@ln -sf trivet bin/kubectl-trivet
	@install cmd/trivet/kubectl_complete-trivet bin/

.PHONY: assets
assets: ## Build etcd and kube-apiserver into .assets/: once, 5 minutes (KUBEBUILDER_ASSETS=dir provides them instead)
	@cd tools/controlplane && go run . --out "$(CURDIR)/.assets"

.PHONY: assets-rivals
assets-rivals: ## Build kube-controller-manager as well, which only measurements and conformance tests need: a minute more
	@cd tools/controlplane && go run . --rivals --out "$(CURDIR)/.assets"

.PHONY: assets-nodes
assets-nodes: ## Build what nodes need as well: kubelet, kube-scheduler, kube-controller-manager and containerd; 5 minutes
	@cd tools/controlplane && go run . --nodes --out "$(CURDIR)/.assets"
	@$(MAKE) $(CURDIR)/.assets/containerd-$(GO)

# containerd, its shim and ctr, static and without the file systems that need C libraries.
CONTAINERD := github.com/containerd/containerd/v2/cmd
$(CURDIR)/.assets/containerd-$(GO): tools/containerd/go.mod tools/containerd/go.sum
	@echo "Building containerd into .assets, once (a minute or two) …"
	@cd tools/containerd && go build -tags "no_btrfs no_zfs no_devmapper" -ldflags "-s -w" -o "$(CURDIR)/.assets/" \
		$(CONTAINERD)/containerd $(CONTAINERD)/containerd-shim-runc-v2 $(CONTAINERD)/ctr
	@touch $@

.PHONY: binaries-nodes
binaries-nodes: ## Build all commands into bin/static, without a C library, for images FROM nothing
	@mkdir -p bin/static
	@go build -ldflags "-s -w $(LDFLAGS)" -o bin/static/ $(COMMANDS) ./test/lab/cmd/...
	@$(call link-servers,bin/static)
	@go build -o bin/ ./test/lab/cmd/trivet-lab

# runc and the plugins of the nodes' network come from the distribution.
.PHONY: cluster
cluster: ## Start a cluster with real nodes on this machine; needs root, installs runc and containernetworking-plugins from Debian if they are missing
	@[ "$$(id -u)" = 0 ] || { echo "make cluster needs root"; exit 1; }
	@if ! command -v runc >/dev/null || ! [ -e /usr/lib/cni/bridge ]; then \
		echo "Installing runc and containernetworking-plugins with apt-get"; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends runc containernetworking-plugins; \
	fi
	@$(MAKE) assets-nodes binaries-nodes
	@bin/trivet-lab cluster up

.PHONY: cluster-down
cluster-down: ## End that cluster and remove everything about it
	@bin/trivet-lab cluster down

##@ Change

.PHONY: test
test: assets $(TOOLS)/gotestsum-$(GO) ## The tests of agent, gateway, services and commands, on a real control plane (RACE= without the race detector; THIRD= runs all long tests)
	@$(say-third)
	@$(call go-test,$(addprefix ./,$(SLOWEST)) ./agent/... ./cmd/... ./deploy/... ./docs/... ./gateway/... ./internal/... ./services/...,2)
	go test -count=1 -run TestEnumerate ./services/leasesvc/internal/nodehealth # 1.2 million worlds: without the race detector

.PHONY: test-system
test-system: assets helm $(TOOLS)/gotestsum-$(GO) ## The tests of test/: whole installations, faults, hostile input, deployments (THIRD= runs all long tests)
	@$(say-third)
	@$(call go-test,$(addprefix ./test/,$(SLOWEST_SYSTEM)) ./test/...,3)

.PHONY: test-go
test-go: THIRD :=
test-go: assets helm $(TOOLS)/gotestsum-$(GO) ## The tests of PACKAGES=./internal/term/... as `make test` runs them
	@$(call go-test,$(PACKAGES),2)

# Tests start in the order of the packages: the slowest come first, so that none of them runs alone at the end.
SLOWEST        := services/leasesvc services/bootstrapsvc services/bootstrapsvc/audit services/slicesvc gateway internal/term internal/process
SLOWEST_SYSTEM := robustness faults/apiservers e2e deploy faults/terms faults/damage hostile lab/devcluster

# RACE= leaves out the race detector, which doubles the time. THIRD is the part of the long tests and of the faults of
# test/robustness that runs.
RACE  ?= on
say-third = echo "$(if $(THIRD),third $(THIRD) of the long tests runs$(,) by the commit: THIRD= runs all,all long tests run)"
, := ,
THIRD ?= $(shell echo $$((0x0$$(git rev-parse --short=7 HEAD 2>/dev/null) % 3 + 1)))

# Tests mostly wait, so two or three packages at a time, and eight tests of each, keep two processors busy. Compilers and
# linkers run when no test needs the processor, because tests have bounds in seconds. `make check` has what vet finds. testrun
# lends the packages control planes, one at a time to each. Without the pause of a second at its end, which gives late data
# races time to be seen, the race detector costs two minutes less; testkit.Main waits for goroutines instead.
#
# Tests with bounds in seconds can fail on a machine that does other work. Up to ten failed tests and subtests run once more,
# alone on the machine. One that then passes is printed as FLAKE, and is a defect to mend. A data race fails at once, and so
# does a package of which no test failed: it does not build, or leaves goroutines behind.
go-test = dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; status=0; \
	export GORACE=atexit_sleep_ms=0 CGO_ENABLED=$(if $(RACE),1,0) TRIVET_THIRD=$(THIRD); \
	go build $(if $(RACE),-race) -o $(TOOLS)/bin/testrun ./test/lab/cmd/testrun; \
	$(TOOLS)/bin/testrun $(TOOLS)/bin/gotestsum --format standard-quiet --rerun-fails=1 \
		--rerun-fails-max-failures=10 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report "$$dir/report" --jsonfile "$$dir/events" \
		--packages "$(1)" -- $(if $(RACE),-race) -vet=off -toolexec 'nice -n 19' -timeout 15m -p $(2) -parallel 8 || status=$$?; \
	if [ -s "$$dir/report" ]; then awk '{ print ($$2 > $$4 ? "FLAKE " : "FAILED ") $$0 }' "$$dir/report"; fi; \
	awk 'match($$0, /^\{("Time":"[^"]*",)?"Action":"fail","Package":"[^"]*"/) { of = substr($$0, 1, RLENGTH); sub(/.*"Package":/, "", of); \
		if ($$0 ~ /"Package":"[^"]*","Test":/) tests[of] = 1; else failed[of] = 1 } \
		END { for (of in failed) if (!(of in tests)) { print "package " of " failed, and none of its tests"; bad = 1 }; exit bad }' \
		"$$dir/events" || status=1; \
	exit $$status

.PHONY: helm
helm: $(TOOLS)/helm-$(GO) ## Build helm into .tools/bin, once (a minute and a half); the tests of the chart need it

.PHONY: metrics
metrics: ## Write docs/metrics.md from the registries of all programs, and the table of alerts in docs/runbooks/README.md
	go test ./docs -run TestMetrics -args -update
	go test ./cmd/trivet-agent/internal/nodeagent -run TestMetrics -args -update
	go test ./test/monitoring -run TestRunbooks_ListTheAlerts -args -update

# The page and the service discoveries of Prometheus are not needed: without the latter it builds in a third of the time.
PROMETHEUS := $(TOOLS)/prometheus-promtool-$(GO)
$(PROMETHEUS): tools/prometheus/go.mod tools/prometheus/go.sum
	@echo "Building Prometheus and promtool into .tools/bin, once (a minute or two) …"
	@mkdir -p $(TOOLS)/bin
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; cd tools/prometheus; go mod download github.com/prometheus/prometheus; \
	cp -r "$$(go list -m -f '{{.Dir}}' github.com/prometheus/prometheus)/." "$$copy"; chmod -R u+w "$$copy"; \
	rm "$$copy/plugins/plugins.go"; cd "$$copy"; go build -ldflags "-s -w" -o $(TOOLS)/bin/ ./cmd/prometheus ./cmd/promtool
	@touch $@

.PHONY: test-alerts
test-alerts: $(PROMETHEUS) ## Check with promtool that each alert fires in its fault, and no other one; builds promtool once (2 minutes)
	$(TOOLS)/bin/promtool check rules deploy/monitoring/rules/*.yaml
	go test -count=1 ./test/monitoring -args -promtool="$(TOOLS)/bin/promtool"

# SCALE divides the ranges and `for` of the rules. FAULTS has names of alerts, separated by commas.
SCALE ?= 30

.PHONY: scaled-rules
scaled-rules:
	@rm -rf bin/rules
	@cd tools/prometheus && go run ./scale --by=$(SCALE) --out="$(CURDIR)/bin/rules" ../../deploy/monitoring/rules/*.yaml

.PHONY: test-alerts-live
test-alerts-live: assets $(PROMETHEUS) scaled-rules ## Inject the fault of each alert into running servers that Prometheus scrapes, 25 minutes; writes docs/alerts.md (FAULTS=TrivetNoLeader SCALE=30)
	go test -count=1 -v -timeout 90m -run TestAlerts_FireOnRunningServers ./test/alerts -args -alerts.prometheus="$(TOOLS)/bin/prometheus" \
		-alerts.rules="$(CURDIR)/bin/rules" -alerts.scale=$(SCALE) -alerts.faults="$(FAULTS)" -alerts.out="$(CURDIR)/docs/alerts.md"

# The pictures show what happens in these entries of the table of faults, which run for four minutes.
PICTURED := nothing-happens,a-node-dies-and-comes-back,TrivetReplicaDown,TrivetAllocationFinding,TrivetSliceContention

.PHONY: dashboards
dashboards: assets $(PROMETHEUS) scaled-rules ## Draw docs/dashboard-*.png: the dashboards of deploy/monitoring while faults are injected, 5 minutes (FAULTS=TrivetNoLeader)
	cd tools/dashboards && go build -o "$(TOOLS)/bin/dashboards" .
	go test -count=1 -v -timeout 30m -run TestAlerts_FireOnRunningServers ./test/alerts -args -alerts.prometheus="$(TOOLS)/bin/prometheus" \
		-alerts.rules="$(CURDIR)/bin/rules" -alerts.scale=$(SCALE) -alerts.faults="$(call given,FAULTS,$(PICTURED))" \
		-alerts.drawer="$(TOOLS)/bin/dashboards" -alerts.pictures="$(CURDIR)/docs"

.PHONY: test-alerts-nodes
test-alerts-nodes: $(PROMETHEUS) scaled-rules ## The same for faults of machines and static Pods, on a cluster with real nodes, 10 minutes; needs root and what make cluster installs
	@[ "$$(id -u)" = 0 ] || { echo "make test-alerts-nodes needs root: its nodes have network namespaces, mounts and cgroups of their own"; exit 1; }
	@$(MAKE) assets-nodes binaries-nodes
	go test -count=1 -v -timeout 40m -run TestAlerts_OnNodes ./test/cluster -args -cluster \
		-alerts.prometheus="$(TOOLS)/bin/prometheus" -alerts.rules="$(CURDIR)/bin/rules"

# A seed reproduces its history: make faults FIRST=7 SEEDS=1 EACH=60. KEEP=dir keeps the logs of all processes.
SEEDS ?= 40
FIRST ?= 1000
EACH  ?= 60
KEEP  ?=

.PHONY: faults
faults: assets ## All long forms: random histories of internal/term (SEEDS=40 FIRST=1000 EACH=60 KEEP=dir), then damage and outage
	CGO_ENABLED=1 go test -race -count=1 -v -timeout 6h ./test/faults/terms \
		-args -faults.seeds=$(SEEDS) -faults.first=$(FIRST) -faults.each=$(EACH) -faults.keep=$(KEEP)
	@$(MAKE) damage outage

OUTAGE ?= 5m

.PHONY: outage
outage: assets ## Stop etcd, then kube-apiserver, for OUTAGE=5m each: no live node may be marked unknown
	CGO_ENABLED=1 go test -race -count=1 -v -timeout 30m -run TestOutage ./services/leasesvc -args -leasesvc.outage=$(OUTAGE)

.PHONY: damage
damage: assets ## All kinds of damage to allocations, all interruptions of repairs, and random faults of kube-apiservers (15 minutes)
	CGO_ENABLED=1 go test -race -count=1 -v -timeout 30m ./test/faults/damage -args -damage.long
	CGO_ENABLED=1 go test -race -count=1 -v -timeout 60m -run Histories ./test/faults/apiservers -args -apiservers.histories=5 -apiservers.each=15

# Each target runs for TIME, or until it has run EXECS inputs. ONLY is one RPC, such as
# "leasesvc /trivet.lease.v1.HeartbeatService/Heartbeat", or one route, such as "page GET /v1/status". An input that fails
# is written to testdata/fuzz beside the target, and belongs into the change that mends it. UNGUIDED=1 does not search for
# new code: the inputs that earlier searches kept are changed, at ten times the rate. ONLY is for targets of test/access.
TIME     ?= 30s
EXECS    ?=
TARGET   ?= Fuzz
ONLY     ?=
UNGUIDED ?=
WORKERS  ?= 1

.PHONY: fuzz
fuzz: assets ## Fuzz every RPC, every HTTP route and all parsers in turn (TIME=30s or EXECS=1000000, TARGET=FuzzRPC, ONLY=one, UNGUIDED=1, WORKERS=1)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; trap 'exit 130' INT; failed=; \
	while IFS=: read -r file name; do \
		package="./$$(dirname $$file)"; \
		echo "==== $$name in $$package"; \
		go test -c $(if $(UNGUIDED),,-fuzz "^$$name\$$") -o "$$dir/fuzz.test" "$$package" && (cd "$$package" && TMPDIR="$$dir" "$$dir/fuzz.test" -test.run '^$$' \
			-test.fuzz "^$$name\$$" -test.fuzztime $(if $(EXECS),$(EXECS)x,$(TIME)) -test.fuzzminimizetime 20x -test.parallel $(WORKERS) \
			-test.fuzzcachedir "$$(go env GOCACHE)/fuzz/$$(go list .)" $(if $(ONLY),-access.only="$(ONLY)") </dev/null) || failed="$$failed $$name"; \
	done < <(grep -rEo '^func $(TARGET)[A-Za-z_]*\(' --include='*_test.go' agent cmd gateway internal services test | sed 's/func //; s/(//' | sort); \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# A seed reproduces its schedule: make robustness FIRST=7 SEEDS=1. FAULTS has names or numbers of faults, separated by
# commas; EACH=0 injects each of them once. PAIRS=1 injects two at a time, SHRINK=8 spends 8 runs on the shortest schedule
# with a violation. FULL=1 runs a world of 3 replicas, 200 agents and 50 kubelets, PROFILE=rollouts one traffic for all seeds.
# Each run is added to SAVED, and docs/robustness.md is written from all runs of the same commit, so that pieces add up:
#   make robustness FIRST=1 SEEDS=10 ; make robustness FIRST=11 SEEDS=10 ; make robustness FIRST=101 SEEDS=10 EACH=20 PAIRS=1
ROBUSTNESS ?=
FAULTS     ?=
PAIRS      ?=
SHRINK     ?= 0
FULL       ?=
PROFILE    ?=
SAVED      ?= $(CURDIR)/.robustness/runs.jsonl
# given is a variable of the command line or the environment, or another value: `make faults` has defaults of its own.
given = $(if $(filter command environment,$(firstword $(origin $(1)))),$($(1)),$(2))

.PHONY: robustness-judge
robustness-judge: ## Judge the records again that runs with KEEP=dir have kept there, and write docs/robustness.md from them
	go test -count=1 -v -run TestRecord ./test/robustness -args -robustness.record="$(KEEP)" -robustness.out="$(CURDIR)/docs/robustness.md"

.PHONY: robustness-restore
robustness-restore: assets ## Take etcd back by seconds, restart the servers, and judge what follows; adds to docs/robustness.md
	go test -count=1 -v -timeout 30m -run TestRestore ./test/robustness -args -robustness.restore=restart -robustness.first=$(call given,FIRST,1) \
		-robustness.keep="$(KEEP)" -robustness.saved="$(SAVED)" -robustness.out="$(CURDIR)/docs/robustness.md" $(ROBUSTNESS)

.PHONY: robustness
robustness: assets ## All services under faults, judged by oracles (SEEDS=1 FIRST=1 EACH=0 FAULTS=F1 PAIRS=1 FULL=1 SHRINK=8); writes docs/robustness.md
	go build -ldflags "-X github.com/trivet-dev/trivet/internal/identity.version=v0.0.0-other" -o bin/other/ ./cmd/trivet-server
	@$(call link-servers,bin/other)
	go test -count=1 -v -timeout 12h -run TestSchedules ./test/robustness -args -robustness.other="$(CURDIR)/bin/other" -robustness.seeds=$(call given,SEEDS,1) \
		-robustness.first=$(call given,FIRST,1) -robustness.each=$(call given,EACH,0) -robustness.faults="$(FAULTS)" \
		-robustness.pairs=$(if $(PAIRS),true,false) -robustness.shrink=$(SHRINK) -robustness.keep="$(KEEP)" \
		-robustness.profile=$(PROFILE) $(if $(FULL),-robustness.replicas=3 -robustness.agents=200 -robustness.kubelets=50) \
		-robustness.saved="$(SAVED)" -robustness.out="$(CURDIR)/docs/robustness.md" $(ROBUSTNESS)

# RUN=TestHerd runs some of the tests; each writes its own section of the page. OUTAGE=30s shortens the outages.
.PHONY: resources
resources: assets ## Reconnections, 100,000 callers, slow readers, scarce memory and CPU, OUTAGE=5m of etcd and kube-apiserver; writes docs/resources.md (40 minutes, idle machine)
	go test -count=1 -v -timeout 90m -run "$(call given,RUN,.)" ./test/resources \
		-args -resources.long -resources.outage=$(OUTAGE) -resources.keep="$(KEEP)" -resources.out="$(CURDIR)/docs/resources.md"

.PHONY: abuse
abuse: ## Raw HTTP/2 and TLS attacks beside 1,000 heartbeat streams: latency and memory, 6 minutes on an idle machine
	go test -count=1 -v -timeout 30m ./test/abuse -args -abuse.long

.PHONY: hostile
hostile: assets ## Hostile Kubernetes objects at their largest size beside the services, and the page in headless Chromium; 5 minutes
	go test -count=1 -v -timeout 30m ./test/hostile -args -hostile.long

.PHONY: conformance
conformance: assets-rivals ## Tests beside upstream's lease client and kube-controller-manager without the replaced controllers: 9 minutes
	cd test/conformance && CGO_ENABLED=1 go test -race -count=1 ./leaseclient
	cd cmd/trivet-agent/conformance && CGO_ENABLED=1 go test -race -count=1 ./...
	cd test/conformance && CGO_ENABLED=1 go test -race -count=1 -v ./nodehealth -args -manager="$(CURDIR)/.assets/kube-controller-manager"
	cd test/conformance && CGO_ENABLED=1 go test -race -count=1 -v ./endpointslices -args -manager="$(CURDIR)/.assets/kube-controller-manager"
	cd test/conformance && CGO_ENABLED=1 go test -race -count=1 -v ./mirroring -args -manager="$(CURDIR)/.assets/kube-controller-manager"

.PHONY: test-migrate
test-migrate: assets-rivals ## Migrations with `trivet migrate` between a real kube-controller-manager and slicesvc: 6 minutes
	go test -count=1 -v ./test/e2e -run TestMigrate_ -args -migrate

RUN ?= .

.PHONY: test-cluster
test-cluster: ## Tests on a cluster with real nodes, which this starts and ends, 10 to 12 minutes; needs root and what make cluster installs (RUN=TestNodes)
	@[ "$$(id -u)" = 0 ] || { echo "make test-cluster needs root: its nodes have network namespaces, mounts and cgroups of their own"; exit 1; }
	@$(MAKE) assets-nodes binaries-nodes
	go test -count=1 -v -timeout 40m -run '$(RUN)' ./test/cluster -args -cluster

.PHONY: test-install
test-install: ## Install, upgrade, migrations and uninstall on a cluster of upstream's components, which this starts and ends, 15 minutes; root (RUN=TestInstall_)
	@[ "$$(id -u)" = 0 ] || { echo "make test-install needs root: its nodes have network namespaces, mounts and cgroups of their own"; exit 1; }
	@$(MAKE) assets-nodes binaries-nodes chart
	go test -count=1 -v -timeout 40m -run '$(RUN)' ./test/cluster -args -install

.PHONY: recordings
recordings: assets-nodes binaries-nodes ## Record a cluster with upstream's controllers and one with ours, and write docs/upstream-recordings.md: root, 15 minutes
	go test -count=1 -v -timeout 40m ./test/cluster -run 'TestRecord' -args -record=upstream,ours -update

.PHONY: check
check: ## Linters, language, API changes, generated code, import rules, memory of calls, other modules
	@$(MAKE) --jobs=2 --output-sync=target lint breaking gen-check import-rules memory modules

.PHONY: lint
lint: $(TOOLS)/lint-$(GO) $(TOOLS)/protocol-$(GO) prose ## golangci-lint, buf lint and the language rules (PACKAGES=./services/slicesvc/...)
	nice -n 19 $(TOOLS)/bin/golangci-lint run --allow-serial-runners $(PACKAGES)
	$(TOOLS)/bin/buf lint
	$(TOOLS)/bin/buf format --diff --exit-code proto

.PHONY: breaking
breaking: $(TOOLS)/protocol-$(GO) ## Fail if proto/ breaks clients of the last release
	@PATH="$(TOOLS)/bin:$$PATH" tools/breaking.sh

# Vale reads comments and Markdown; tools/prose gives it string literals and names, on the line numbers of their files.
.PHONY: prose
prose: $(TOOLS)/prose-$(GO) ## The language rules of CONTRIBUTING.md: comments, .proto, Markdown, string literals, names
	@text=$$(mktemp -d); trap 'rm -rf "$$text"' EXIT; \
	(cd tools/prose && go run . --root "$(CURDIR)" --out "$$text"); \
	$(TOOLS)/bin/vale --glob='!{third_party/**,.assets/**,.tools/**,bin/**,**/*.pb.go,**/*.pb.gw.go}' . && \
	$(TOOLS)/bin/vale --config .vale.ini "$$text"

.PHONY: import-rules
import-rules: ## Which package may import which
	go test ./test/lab/importrules

.PHONY: memory
memory: ## How much memory a call may need; the race detector of `make test` would change it
	go test -run 'Memory|Largest' ./internal/rpcserver

.PHONY: gen
gen: $(TOOLS)/protocol-$(GO) ## Generate Go, HTTP routes and the OpenAPI document from proto/
	PATH="$(TOOLS)/bin:$$PATH" buf generate

# Generated beside the tree, so that neither the checkout nor work in progress is touched.
.PHONY: gen-check
gen-check: $(TOOLS)/protocol-$(GO) ## Fail if `make gen` would change a file
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	PATH="$(TOOLS)/bin:$$PATH" buf generate --output "$$fresh"; \
	{ diff --recursive --exclude='*.proto' proto "$$fresh/proto" && \
	diff --recursive gateway/internal/httpapi/routes "$$fresh/gateway/internal/httpapi/routes" && \
	diff gateway/internal/httpapi/openapi/openapi.swagger.json "$$fresh/gateway/internal/httpapi/openapi/openapi.swagger.json"; } || \
		{ echo "generated code is not what proto/ says: run \`make gen\` and commit the result"; exit 1; }

# Modules of their own that hold Go code; tools/gotestsum, tools/helm, tools/lint, tools/protocol and tools/vulncheck hold versions only.
MODULES := $(patsubst %/go.mod,%,$(wildcard tools/controlplane/go.mod tools/prometheus/go.mod tools/prose/go.mod tools/picture/go.mod tools/dashboards/go.mod tools/image/go.mod bench/go.mod test/conformance/go.mod services/slicesvc/conformance/go.mod cmd/trivet-agent/conformance/go.mod))

# axe-core is a tool of this test only; the page does not have it. Without chromium the test skips.
AXE := axe-core@4.14.1
.PHONY: test-page
test-page: $(TOOLS)/axe/$(AXE) ## Check the accessibility of the page with axe in headless Chromium; 2 minutes, needs npm
	go test ./gateway/web -run AxeFindsNothing -count 1 -args -axe "$(TOOLS)/axe/$(AXE)/node_modules/axe-core/axe.min.js"
$(TOOLS)/axe/$(AXE):
	@npm install --prefix "$@.new" --ignore-scripts --no-audit --no-fund --no-save --silent $(AXE)
	@mv "$@.new" "$@"

.PHONY: modules
modules: assets ## Vet and test the modules with a go.mod of their own: tools, bench, conformance
	@for module in $(MODULES); do echo "in $$module: go vet, go test"; (cd $$module && go vet ./... && go test ./...) || exit 1; done

.PHONY: bench
bench: assets ## Run the benchmarks, one package at a time (BENCH=Heartbeat PACKAGES=./services/leasesvc/...)
	go test -run '^$$' -bench '$(BENCH)' -benchmem -p 1 $(PACKAGES)

.PHONY: bench-term
bench-term: assets ## Leadership beside client-go's and etcd's own: failover, handover, cost at rest; 8 minutes (ARGS='--kills 40')
	cd bench && go run ./term $(ARGS)

.PHONY: bench-heartbeats
bench-heartbeats: assets-rivals build ## Heartbeats, memory, a large fleet and dead nodes beside gRPC, etcd and kube-controller-manager; 20 minutes (ARGS='-only steady,batched -short')
	cd bench && go run ./heartbeats $(ARGS)

.PHONY: bench-slices
bench-slices: assets-rivals build ## EndpointSlices beside kube-controller-manager and a bare client-go program; 12 minutes (ARGS='-only 1x5000 -short')
	cd bench && go run ./slices $(ARGS)

.PHONY: bench-mirroring
bench-mirroring: assets-rivals build ## Mirrored Endpoints beside kube-controller-manager: changes, starts, memory; 12 minutes (ARGS='-only 5000x20 -short')
	cd bench && go run ./mirroring $(ARGS)

.PHONY: bench-agent
bench-agent: assets build ## Memory and CPU time of trivet-agent in both modes, beside a real kube-apiserver and leasesvc; 5 minutes (ARGS='-rest 20s')
	go build -trimpath -buildvcs=false -ldflags "-s -w" -o bin/stripped/ ./cmd/trivet-agent
	cd bench && go run ./agent $(ARGS)

.PHONY: bench-audit
bench-audit: assets build ## Allocations and endpoints beside kube-apiserver's own repairers and reconciler; 12 minutes (ARGS='-only endpoints -short')
	cd bench && go run ./audit $(ARGS)

.PHONY: bench-page
bench-page: ## The page with 130,000 Nodes and 10,000 Services in headless Chromium, while 1,000 Nodes change a second; a minute
	go test ./gateway/web -run '^$$' -bench '^BenchmarkPage$$' -benchtime 1x

.PHONY: picture
picture: assets build ## Take docs/page.png anew: the page of a simulated cluster, in headless Chromium
	cd tools/picture && go build -o "$(CURDIR)/.tools/bin/picture" .
	.tools/bin/picture --out docs/page.png --size 1280x1700 --wait 30s

.PHONY: count
count: ## The size of the repository: lines, files and packages of each part
	@tools/count.sh

.PHONY: clean
clean: ## Remove everything that make has built, except Go's build cache
	rm -rf bin dist .tools .assets

##@ Release

# Everything that decides about the image's digest, besides the source and the version of Go.
IMAGE_SOURCE = --version "$(VERSION)" --revision "$$(git rev-parse HEAD 2>/dev/null || true)" --created "$$(git log -1 --format=%ct 2>/dev/null || echo 0)"
IMAGE_NAME  ?= trivet:$(VERSION)
PLATFORMS   ?= linux/amd64,linux/arm64
RUNTIME     ?= auto

# A version of Helm begins with three numbers, and git's has none before the first tag.
CHART_VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//' || true)

.PHONY: chart
chart: helm ## Write the Helm chart into dist/, for the image of this version (CHART_VERSION=1.2.3)
	@mkdir -p dist
	@$(TOOLS)/bin/helm package deploy/chart --destination dist --version "$(or $(CHART_VERSION),0.1.0)" --app-version "$(VERSION)" 2>&1 | grep -v "symbolic link"

.PHONY: image
image: ## Build the container image for amd64 and arm64, and bills of materials, into dist/, without a container engine
	@mkdir -p dist
	cd tools/image && go run . build --platforms "$(PLATFORMS)" --out "$(CURDIR)/dist" $(IMAGE_SOURCE)

# The copy has another path, no .git, other times of files and a build cache of its own.
.PHONY: image-again
image-again: ## Build the image of dist/ once more from a copy of the tree: fail unless the digest is the same (5 to 10 minutes)
	@copy=$$(mktemp -d); trap 'chmod -R u+w "$$copy"; rm -rf "$$copy"' EXIT; \
	mkdir "$$copy/source" "$$copy/dist"; \
	git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read --files-from - | tar -x --touch -C "$$copy/source"; \
	source=($(IMAGE_SOURCE)); cd "$$copy/source/tools/image"; \
	GOCACHE="$$copy/cache" go run . build --platforms "$(PLATFORMS)" --out "$$copy/dist" "$${source[@]}"; \
	cd "$(CURDIR)"; \
	for file in digest $$(cd dist && ls *.cdx.json); do cmp "dist/$$file" "$$copy/dist/$$file" || { echo "the second build differs from the first"; exit 1; }; done; \
	echo "both builds make $$(cat dist/digest)"

.PHONY: image-load
image-load: ## Give the image of dist/ to kind, docker or containerd, whichever is there (IMAGE_NAME=trivet:TAG RUNTIME=containerd)
	@cd tools/image && PATH="$$PATH:$(CURDIR)/.assets" go run . load --layout "$(CURDIR)/dist/image" --name "$(IMAGE_NAME)" --runtime "$(RUNTIME)"

.PHONY: image-archive
image-archive: ## Write the image of dist/ to dist/trivet.tar, for `ctr images import` and `docker load` on other machines
	@cd tools/image && go run . export --layout "$(CURDIR)/dist/image" --name "$(IMAGE_NAME)" --out "$(CURDIR)/dist/trivet.tar"

# govulncheck exits with 3 if it finds vulnerabilities, and with 1 if it cannot tell, as without its database.
VULNDB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: $(TOOLS)/vulncheck-$(GO) ## Search all commands for known vulnerabilities; needs the database of VULNDB=https://vuln.go.dev or a mirror
	@status=0; $(TOOLS)/bin/govulncheck -db "$(VULNDB)" $(COMMANDS) || status=$$?; \
	case $$status in \
	0) echo "make vulncheck: no known vulnerability is reachable from $(COMMANDS)";; \
	3) echo "make vulncheck: FAILED: the commands reach the vulnerabilities above"; exit 3;; \
	*) echo "make vulncheck: NOTHING WAS CHECKED: govulncheck failed (exit status $$status), see above. It needs the database"; \
	   echo "at $(VULNDB). Without access to it, set VULNDB to a mirror, such as file:///path/to/copy."; exit $$status;; \
	esac

# One stamp for each group of tools and Go version: a new version of either builds the group again.
$(TOOLS)/%-$(GO): tools/%/go.mod tools/%/go.sum
	@echo "Building the $* tools into .tools/bin, once (a minute or two) …"
	@mkdir -p $(TOOLS)/bin
	cd tools/$* && CGO_ENABLED=$(if $(filter prose,$*),1,0) GOBIN=$(TOOLS)/bin go install tool
	@touch $@
