# A thin front: every target sets up what it needs and builds. See scripts/ for what they do.
BUILD ?= build
SCRIPTS := scripts

.PHONY: all setup build test demo reproduce sanitize coverage format lint clean

all: build

setup:
	@$(SCRIPTS)/setup

build: setup
	@$(SCRIPTS)/build $(BUILD)

test: build
	@$(SCRIPTS)/test $(BUILD)

demo: build
	@$(SCRIPTS)/demo $(BUILD)

reproduce: build
	@$(SCRIPTS)/reproduce $(BUILD)

sanitize: setup
	@$(SCRIPTS)/sanitize build-sanitize

coverage: setup
	@$(SCRIPTS)/coverage build-coverage

format:
	@$(SCRIPTS)/format

lint: build
	@$(SCRIPTS)/lint $(BUILD)

clean:
	rm -rf build build-sanitize build-coverage build-fuzz
