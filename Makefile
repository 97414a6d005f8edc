# make run     set up what is missing, then open the app in the browser
# make test    set up what is missing, then run every test      (make test ARGS="-k acceptance")
# make setup   build .venv and the bundled models, nothing else
# make clean   remove .venv

PYTHON_IN_VENV = .venv/bin/python
ARGS ?=

.PHONY: run test setup clean help

run: setup
	@exec $(PYTHON_IN_VENV) -m streamlit run app.py --server.showEmailPrompt=false --browser.gatherUsageStats=false $(ARGS)

test:
	@bash scripts/setup.sh --test
	@bash scripts/test.sh $(ARGS)

setup:
	@bash scripts/setup.sh

clean:
	rm -rf .venv

help:
	@sed -n 's/^# //p' Makefile
