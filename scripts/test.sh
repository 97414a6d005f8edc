#!/usr/bin/env bash
# Runs the tests in .venv; arguments go to pytest. The browser tests need Chromium: without one it is said how to get it,
# they are left out, and under CI that is a failure.

set -u
cd "$(dirname "$0")/.." || exit 1
python=.venv/bin/python

find_browser() {
  local name apps=${APPLICATIONS:-/Applications}
  for name in "${SPECLENS_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable \
    "$apps/Google Chrome.app/Contents/MacOS/Google Chrome" "$apps/Chromium.app/Contents/MacOS/Chromium"; do
    [ -n "$name" ] && type -P "$name" && return
  done
  "$python" - <<'PY' 2>/dev/null
import os, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    path = p.chromium.executable_path
if not os.path.exists(path):
    sys.exit(1)
print(path)
PY
}

# More threads than four gain nothing on models this small, and all of them at once starve the app's own process.
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
[ "$cores" -gt 4 ] && cores=4
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores}
export TOKENIZERS_PARALLELISM=false

chosen=()
if SPECLENS_CHROMIUM=$(find_browser) && [ -n "$SPECLENS_CHROMIUM" ]; then
  export SPECLENS_CHROMIUM
else
  unset SPECLENS_CHROMIUM
  {
    echo "No Chromium was found, and the browser tests need one. Get it with one of:"
    echo "  sudo apt-get install chromium                        (Debian, Ubuntu)"
    echo "  .venv/bin/python -m playwright install chromium      (macOS, other Linux)"
    echo "or name one: SPECLENS_CHROMIUM=/path/to/chromium make test"
  } >&2
  if [ -n "${CI:-}" ]; then
    echo "Under CI that is a failure." >&2
    exit 1
  fi
  echo "The browser tests are left out of this run." >&2
  chosen=(-m "not browser")
fi

exec "$python" -m pytest ${chosen[@]+"${chosen[@]}"} "$@"
