# make run     set up what is missing, then open the app in the browser   (make run ARGS="--server.port 8600")
# make test    set up what is missing, then run every test                (make test ARGS="-k acceptance")
# make setup   build .venv and the bundled models, nothing else
# make clean   remove .venv

ARGS ?=

.PHONY: run test setup clean

# A browser is opened where there is a screen to open it on; elsewhere the address is printed.
run: setup
	@headless=true; \
	if [ "$$(uname -s)" = Darwin ] || [ -n "$${DISPLAY:-}$${WAYLAND_DISPLAY:-}" ]; then headless=false; fi; \
	exec .venv/bin/python -m streamlit run app.py --server.headless=$$headless --server.showEmailPrompt=false $(ARGS)

test:
	@bash scripts/setup.sh --test
	@bash scripts/test.sh $(ARGS)

setup:
	@bash scripts/setup.sh

clean:
	rm -rf .venv
