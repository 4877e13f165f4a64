# make help lists the targets; CONTRIBUTING.md says what each is for.
SHELL := /bin/sh
VENV := .venv
QUICKSTART := $(VENV)/bin/quickstart
PACKAGES := quickstart/host/packages.txt
SCRIPTS := $(wildcard quickstart/initramfs/init/*) quickstart/artefact/run.sh quickstart/volume/nfs/serve.sh \
	quickstart/cli/shells/in-overlay.sh tests/contract/starterbox.sh tracers/strace-init tracers/strace-stop tracers/ldd-all tracers/maps-all tracers/units-all tracers/units-started tracers/reads-all \
	$(wildcard quickstart/reference/guestpkg/scripts/*) $(wildcard quickstart/launch/appliance/guest/*) \
	$(filter-out %.service %.conf %.py %__pycache__,$(wildcard quickstart/image/targets/disk/*)) $(wildcard tests/vm/guest/*.sh)
# A guest and its volume take a core; `make test AT_ONCE=` is one after the other.
AT_ONCE := -n 2 --dist loadfile --no-loadscope-reorder
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help setup demo static check unit contract vm test test-full fuzz fuzz-c man figures reports clean

help:
	@echo "setup      install the Debian packages that are missing, and quickstart into $(VENV)"
	@echo "demo       setup; build nginx, boot it, show its times beside the stock boot's"
	@echo "check      ruff, mypy --strict, shellcheck, clang-format, unit tests (about 2 minutes)"
	@echo "test       setup; check, contract tests, tests in VMs (30 to 90 minutes)"
	@echo "test-full  test, and what takes longer; goes on where it was interrupted; SHARD=1/3: a third of it"
	@echo "fuzz-c     our C programs under libFuzzer for FUZZ_C_S seconds (needs clang; 10 minutes)"
	@echo "fuzz       hostile inputs for each parser, FUZZ_SECONDS=600 in all (docs/internals/fuzzing.md)"
	@echo "man        make the manual pages in docs/man again"
	@echo "reports    make report.html and figures of bench/results again, out of each results.json"
	@echo "figures    draw the pictures in docs/figures again"
	@echo "clean      remove $(VENV) and caches of the checkout (the store is kept)"

# What two of the packages would start, on every address of the machine, and we start ourselves in a network of our own (docs/users/storage.md).
UNSTARTED := nfs-ganesha.service nfs-ganesha-lock.service rpcbind.service rpcbind.socket

# One list names what we need of Debian: tool, package, use. Whoever has a server of such a package already keeps it as it is.
setup: $(VENV)/.installed
	@missing=$$(awk '!/^#/ && NF { print $$2 }' $(PACKAGES) | sort -u | while read -r name; do \
		dpkg-query -W -f '$${db:Status-Status}\n' "$$name" 2>/dev/null | grep -qx installed || echo "$$name"; done); \
	if [ -n "$$missing" ]; then \
		for unit in $(UNSTARTED); do \
			package=$${unit%.*}; package=$${package%-lock}; \
			if echo "$$missing" | grep -qx "$$package" && command -v systemctl >/dev/null; then \
				$(SUDO) systemctl mask "$$unit" || exit 1; fi; done; \
		$(SUDO) apt-get update -q && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; fi

$(VENV)/.installed: pyproject.toml
	@dpkg-query -W -f '$${db:Status-Status}\n' python3-venv 2>/dev/null | grep -qx installed || { \
		$(SUDO) apt-get update -q && $(SUDO) apt-get install -y -q --no-install-recommends python3-venv; }
	/usr/bin/python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --editable '.[dev]'
	@touch $@

demo: setup
	$(QUICKSTART) build --profile nginx -o quickstart-nginx
	$(QUICKSTART) run quickstart-nginx --beside-stock

static: setup
	$(VENV)/bin/ruff check quickstart tests bench docs
	$(VENV)/bin/ruff format --check quickstart tests bench docs
	$(VENV)/bin/mypy
	shellcheck $(SCRIPTS)
	find quickstart tracers tests -name '*.[ch]' -exec clang-format --dry-run -Werror {} +

check: static
	$(VENV)/bin/pytest -q $(AT_ONCE) tests/unit

contract: setup
	$(VENV)/bin/pytest -q tests/contract

vm: setup
	$(VENV)/bin/pytest -q $(AT_ONCE) -m "not full" tests/vm

# One pytest run, so that one closing line counts them all. Two modules at a time: each keeps a guest of its own busy.
# The longest tests are named at the end: whoever adds one sees what it costs.
test: static
	$(VENV)/bin/pytest $(AT_ONCE) -m "not full" --durations=40 --durations-min=5 tests

# What it finds is in fuzz-c/TARGET: an input, and the log that says where.
FUZZ_C_S := 600
fuzz-c: setup
	$(VENV)/bin/python -m tests.sanitize.fuzz $(FUZZ_C_S)

# What it finds, and what it learned for the next time, is in .fuzz.
FUZZ_SECONDS := 600
fuzz: setup
	$(VENV)/bin/pip install --quiet --editable '.[dev,fuzz]'
	$(VENV)/bin/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) --findings .fuzz

# The committed manual pages, out of the commands.
man: setup
	$(VENV)/bin/python -m quickstart.cli.manpages docs/man

# The committed pictures of the documents, out of their scripts.
figures: setup
	$(VENV)/bin/python docs/figures/intervals.py

# What is not committed: one page for each results.json, and its figures. RESULTS="bench/results/gate ..." makes these only.
RESULTS :=
reports: setup
	$(VENV)/bin/python bench/reports.py $(RESULTS)

# What has passed is recorded in .full, for the tree as it is. SHARD=I/N: the I-th of N shares of the test files.
SHARD := 1/1
test-full: static
	$(VENV)/bin/python -m tests.full --shard $(SHARD) -- $(AT_ONCE)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
