# Everything from a fresh machine with Python 3.11+, make and a shell: `make demo`, `make test`.
# The tools that a target needs are installed the first time, into .venv, .tools and the user's cache.
# Stamps in .tools remember what was done, so that a second `make` goes straight to work, without network.

BIN := .venv/bin
STAMPS := .tools/stamps
# What users install, without what developers need.
BASE := --no-dev --no-group docs
# Its theme announces its successor at every start.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Not the caller's: a VIRTUAL_ENV or UV_PROJECT_ENVIRONMENT of another project, an interpreter to fetch.
unexport VIRTUAL_ENV UV_PROJECT_ENVIRONMENT PYTHONPATH PYTHONHOME
export UV_PYTHON_DOWNLOADS := never

.PHONY: help demo test test-quick test-slow test-kafka-versions test-sqs check format reference docs dist sbom bench setup clean
.DEFAULT_GOAL := help

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' Makefile

demo: $(STAMPS)/java $(STAMPS)/batch-prepared ## Run the main job on a real Kafka cluster in a box
	$(BIN)/maxbrod demo

test: check setup $(STAMPS)/test-tools ## Run the checks and the test suite
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

test-quick: setup ## Run what needs neither Kafka nor Spark, for the inner loop
	$(BIN)/pytest -m "not slow and not full" -n 2 --dist worksteal --hypothesis-profile quick

test-slow: setup $(STAMPS)/test-tools ## Run the long suite: a million fuzz cases and other sweeps
	$(BIN)/pytest -m slow

test-kafka-versions: setup ## Try backup, restore and groups on several releases of Kafka (MAXBROD_KAFKA_VERSIONS)
	$(BIN)/pytest -m slow -s tests/test_kafka_versions.py

test-sqs: setup ## Try notifications on another SQS server than the tests' own (ElasticMQ, from Maven)
	$(BIN)/pytest -m slow tests/replicate/seed/test_elasticmq.py

check: $(STAMPS)/synced ## Run the linters and the type checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MKDOCS) --quiet

format: $(STAMPS)/synced ## Put the code into its standard form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

reference: $(STAMPS)/synced ## Write docs/reference and what else follows from the declared options
	$(BIN)/python -m maxbrod_reference

dist: $(STAMPS)/synced sbom ## Build the wheel, the source distribution and what a container needs into dist/
	scripts/uv build --out-dir dist
	scripts/uv export --locked $(BASE) --no-emit-project --format requirements-txt --quiet -o dist/requirements.txt

sbom: $(STAMPS)/synced ## Write the list of components, dist/maxbrod.cdx.json (CycloneDX)
	@mkdir -p dist
	scripts/uv export --locked $(BASE) --all-extras --format cyclonedx1.5 --quiet -o dist/maxbrod.cdx.json

docs: $(STAMPS)/synced ## Build the site of the documents into site/, without network
	$(MKDOCS)

bench: setup ## Measure maxbrod against something anyone can run beside it
	$(BIN)/maxbrod bench codec
	$(BIN)/maxbrod bench layouts
	$(BIN)/maxbrod bench start
	$(BIN)/maxbrod bench backup
	$(BIN)/maxbrod bench restore
	$(BIN)/maxbrod bench table

setup: $(STAMPS)/java $(STAMPS)/layouts-prepared $(STAMPS)/values-prepared $(STAMPS)/spark-prepared ## Install everything that maxbrod needs

clean: ## Remove what the other targets made in this folder
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist site
	find src bench tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/synced: uv.lock pyproject.toml scripts/uv scripts/find-python
	python=$$(scripts/find-python) && scripts/uv sync --locked --compile-bytecode --python "$$python"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/java: $(STAMPS)/synced scripts/install-java scripts/install-package
	scripts/install-java
	@touch $@

$(STAMPS)/test-tools: scripts/install-test-tools scripts/install-package
	scripts/install-test-tools
	@mkdir -p $(STAMPS) && touch $@

# Preparations only save time later: the first run does without them.
$(STAMPS)/batch-prepared: $(STAMPS)/synced $(wildcard src/maxbrod/batch/*kernels.py)
	-$(BIN)/python -m maxbrod.prepare batches
	@touch $@

$(STAMPS)/layouts-prepared: $(STAMPS)/batch-prepared $(wildcard src/maxbrod/layouts/*kernels.py src/maxbrod/layouts/*/*kernels.py)
	-$(BIN)/python -m maxbrod.prepare layouts
	@touch $@

$(STAMPS)/values-prepared: $(STAMPS)/batch-prepared $(wildcard src/maxbrod/table/values/*kernels.py)
	-$(BIN)/python -m maxbrod.prepare values
	@touch $@

$(STAMPS)/spark-prepared: $(STAMPS)/java
	-$(BIN)/python -m maxbrod.work.prepare
	@touch $@
