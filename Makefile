# Every target does the set-up that it needs. `make help` lists them.
#
# Set-up writes into .venv, .kafka and .collector only, is done again only when what it depends on has changed, and
# names what is missing on this machine together with how to get it. The one thing that it installs on the
# machine itself, and only as root with apt-get: Debian's prometheus and prometheus-alertmanager.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
LIBS := .kafka/libs
OTELCOL := .collector/otelcol

# The first Python that the project supports (pyproject.toml: requires-python), oldest first, since the
# lock is made with it. A function of make, so that nothing runs it before it is needed.
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
	&& { echo "$$python"; break; }; done)

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.PHONY: setup
setup: $(STAMPS)/python $(LIBS)/.complete services ## .venv with .venv/bin/monitor, the broker's jars, Prometheus and Alertmanager

.PHONY: demo
demo: setup ## The three observations as live traffic, told on the terminal; ARGS=--keep leaves it running
	$(BIN)/monitor demo $(ARGS)

.PHONY: test
test: setup ## Every test that takes seconds, on a real broker; ARGS are pytest's
	$(BIN)/pytest -m "not slow" $(ARGS)

.PHONY: check
check: $(STAMPS)/python ## Lint, format, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: fix
fix: $(STAMPS)/python ## What the linter and the formatter can put right themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: setup ## The whole job and each stage, in spans a second
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: eval
eval: $(STAMPS)/python ## The monitor beside mean and max on replayed attacks, into docs/evaluation.md; ARGS="--data FOLDER"
	$(BIN)/python -m benchmarks.eval $(ARGS)

.PHONY: prove-drift
prove-drift: $(STAMPS)/python ## What the drift evidence promises, simulated, into docs/drift-proof.md; ARGS="--runs 1000" for closer limits
	$(BIN)/python -m benchmarks.drift_proof $(ARGS)

.PHONY: chaos
chaos: setup ## 200 kills under load, then everything compared: a long run
	$(BIN)/python -m tests.chaos --kills 200 $(ARGS)

.PHONY: fuzz
fuzz: $(STAMPS)/python ## Spoiled messages against every decoder for a minute; ARGS="--seconds 600 --encoding otlp_json/traces"
	$(BIN)/python -m tests.intake.fuzz $(ARGS)

.PHONY: collector
collector: $(OTELCOL) ## OpenTelemetry's Collector, which tests/collector run (needs Go; minutes the first time)
	$(OTELCOL) validate --config deploy/collector/collector.yaml

.PHONY: lock
lock: $(STAMPS)/python ## requirements.lock and deploy/requirements.lock anew from pyproject.toml; ARGS=--upgrade takes newer releases
	$(LOCK) $(ARGS) --extra dev --build-deps-for editable --output-file requirements.lock pyproject.toml
	$(LOCK) --build-deps-for wheel --constraint requirements.lock --output-file deploy/requirements.lock pyproject.toml

# Hashes, so that an install takes what was tested; no index and no folder of this machine in the file.
LOCK = CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options

.PHONY: clean
clean: ## Removes all that set-up and runs have made here; the next target starts from nothing
	rm -rf $(VENV) .kafka .collector .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up, piece by piece ------------------------------------------------------------------------------

# Under .venv, so that they go with it.
$(STAMPS)/venv:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or 3.12 is not on PATH: install one (Debian: apt-get install python3.11 python3.11-venv), or name it: make PYTHON=/path/to/python3.11 $(or $(MAKECMDGOALS),setup)" >&2; exit 2; fi
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(@D) && touch $@

$(STAMPS)/locked: requirements.lock | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

# The package itself, in place. The build's own tools are locked too, hence no isolation.
$(STAMPS)/python: pyproject.toml $(STAMPS)/locked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(LIBS)/.complete: deploy/kafka/pom.xml
	@$(MAKE) --no-print-directory java maven
	rm -rf $(LIBS)
	@# Maven 3.8 ends its colours even where it has used none, on a pipe and a dumb terminal too.
	mvn --batch-mode --quiet -Dstyle.color=never --file deploy/kafka/pom.xml 2>&1 | sed -u $$'s/\033\\[0*m//g; /^$$/d' >&2
	@touch $@

# Go keeps what it fetches and compiles where it always does; versions are go.mod's, checked by go.sum.
$(OTELCOL): deploy/collector/main.go deploy/collector/go.mod deploy/collector/go.sum
	@command -v go >/dev/null || { echo "go is not on PATH: install Go 1.21 or newer, which itself fetches the release that deploy/collector/go.mod names" >&2; exit 2; }
	cd deploy/collector && go build -mod=readonly -buildvcs=false -trimpath -ldflags="-s -w" -o $(CURDIR)/$@ .
	@touch $@

.PHONY: java
java:
	@command -v java >/dev/null || { echo "java is not on PATH: install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 2; }
	@version=$$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -1); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "java on PATH is version $${version:-unknown}, Kafka needs 17 or newer (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 2; fi

.PHONY: maven
maven:
	@command -v mvn >/dev/null || { echo "mvn is not on PATH: install Maven, which fetches the Kafka broker's jars (Debian: apt-get install maven)" >&2; exit 2; }

# Missing ones stop nothing here: what needs one says so itself (the demo exits with 3, tests are skipped,
# in CI they fail).
.PHONY: services
services:
	@missing=(); \
	command -v prometheus >/dev/null || missing+=(prometheus); \
	command -v prometheus-alertmanager >/dev/null || command -v alertmanager >/dev/null || missing+=(prometheus-alertmanager); \
	if [ "$${#missing[@]}" -eq 0 ]; then exit 0; fi; \
	if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "not on this machine: $${missing[*]}. Debian or Ubuntu: sudo apt-get install --no-install-recommends $${missing[*]}; elsewhere install Prometheus and Alertmanager and put prometheus, promtool, alertmanager and amtool on PATH" >&2; exit 0; fi; \
	echo "apt-get install $${missing[*]}"; \
	export DEBIAN_FRONTEND=noninteractive; log=$$(mktemp); \
	{ apt-get update -q && apt-get install -q -y --no-install-recommends "$${missing[@]}"; } >"$$log" 2>&1 \
		|| { cat "$$log" >&2; echo "apt-get could not install $${missing[*]}: see above" >&2; exit 2; }; \
	rm -f "$$log"; \
	: "Debian starts what it installs, on the standard ports; the stack here takes its own."; \
	if [ -d /run/systemd/system ]; then systemctl disable --quiet --now "$${missing[@]}"; fi
