# Start with `make demo` or `make test`. Both first install fedsim into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Three processes, each with whole test files: the tests of a file share a Ray, a browser and a server, and mostly wait for
# them. Files run in the order of their folders, because the last folders have short tests.
SPREAD ?= -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: venv demo test test-postgres test-reference test-weekly test-gpu test-newest check format docs clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedsim needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing fedsim and its libraries into $(VENV); this takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs,aws,postgres,table,text,timm,peft,privacy,tune,tensorboard,mlflow,wandb,onnx]'
	touch $(STAMP)

demo: venv
	$(BIN)/fedsim demo

test: venv
	$(BIN)/python -m pytest -m 'not slow and not reference and not weekly' $(SPREAD)

test-postgres: venv
	FEDSIM_TEST_STORE=postgres $(BIN)/python -m pytest -m "not slow and not reference and not weekly" \
	  tests/api/server/test_routes.py tests/api/server/test_refusals.py tests/api/server/test_clone.py tests/api/server/test_events.py \
	  tests/api/sdk/test_client.py tests/api/sdk/test_client_streams.py tests/api/sdk/test_sweep.py tests/api/server/test_logs.py \
	  tests/api/server/test_limits.py tests/api/server/test_security.py tests/api/server/test_metrics.py tests/api/cli/test_cli_jobs.py \
	  tests/api/server/test_description.py tests/jobs/queue/test_dispatcher.py tests/e2e/test_service.py

test-reference: venv
	$(BIN)/python -m pytest -m '(slow or reference) and not weekly' --timeout 900 -o faulthandler_timeout=1500 -n 2 --dist loadfile --no-loadscope-reorder

test-weekly: venv
	$(BIN)/python -m pytest -m weekly --timeout 1400 -o faulthandler_timeout=1800

# What needs a GPU; other tests take GPUs for numbers.
test-gpu: venv
	$(BIN)/python -m pytest tests/fedsim/engine/test_gpu.py tests/fedsim/base/test_precision.py tests/actors/plan/test_short_rounds.py $(SPREAD)

# The newest versions that pyproject.toml allows, but for torch: a service with a job, a run on Ray, in an environment and a folder of
# their own.
test-newest:
	$(PYTHON) -m venv --clear $(VENV)-newest
	grep -E '^torch(vision)?==' constraints.txt > $(VENV)-newest/torch.txt
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)-newest/torch.txt .
	bin="$$PWD/$(VENV)-newest/bin" && cd "$$(mktemp -d)" && export FEDSIM_HOME="$$PWD/home" && "$$bin/fedsim" demo && \
	  "$$bin/fedsim" run demo --set resources.workers=2 --set rounds=3 && "$$bin/fedsim" schema > schema.json && "$$bin/fedsim" stop

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV)-newest build client/build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
