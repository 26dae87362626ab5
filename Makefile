# What a newcomer types: `make demo` and `make test`. Every target that needs the environment makes it first.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types format bench clean
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/accelerate launch --config_file configs/accelerate/one-process.yaml
READY := $(VENV)/ready
CODE := $(wildcard minibert pretrain finetune tests benchmarks docs)
DEMO := runs/demo
FINETUNE := $(RUN) finetune/train.py

help:  ## list these targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## make .venv with everything that tests and the demo need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

demo: $(READY)  ## the main job on real text: corpus, pretraining, fine-tuning, report (under 10 minutes on 2 cores)
	$(BIN)/python pretrain/prepare.py --config configs/prepare/demo.yaml
	$(RUN) pretrain/train.py --config configs/pretrain/demo.yaml
	$(FINETUNE) --config configs/finetune/rotten-tomatoes.yaml
	$(FINETUNE) --config configs/finetune/rotten-tomatoes-lora.yaml
	$(FINETUNE) --config configs/finetune/rotten-tomatoes.yaml --random_weights true --output $(DEMO)/random
	$(BIN)/python -m minibert.report --pretraining $(DEMO)/pretrain \
		--finetuning $(DEMO)/full $(DEMO)/lora $(DEMO)/random --output $(DEMO)/report.html

test: $(READY)  ## all tests that need no GPU and no long time
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

check: lint types test  ## lint, types, tests

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

format: $(READY)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY)  ## ours beside what a user would pick instead, in one run
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:  ## remove the environment and the caches, never runs/
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
