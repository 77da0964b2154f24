#!/usr/bin/env bash
# Builds what the Makefile needs on a machine with nothing installed by hand.
#
#   scripts/bootstrap.sh environment      create .venv and install this package with its extras
#   scripts/bootstrap.sh rsl_rl VERSION   put one more rsl_rl release under .rsl_rl/VERSION
#   scripts/bootstrap.sh peers            put the libraries of scripts/peers.py under .peers
#
# VENV (default .venv) and EXTRAS (default isaaclab,demo,dev) can be set in the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
EXTRAS=${EXTRAS:-isaaclab,demo,dev}
# A folder of its own: uv goes nowhere near the system's or the user's packages.
PRIVATE_UV=.venv-uv

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "bootstrap: $*"
  exit 1
}

# Interpreters that pyenv manages work by full path only: its shims refuse versions not selected.
pyenv_pythons() {
  local root
  for root in "$(pyenv root 2>/dev/null || true)" "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
    [ -z "$root" ] || ls -d "$root"/versions/$1*/bin/python3 2>/dev/null || true
  done
}

is_python_312() {
  [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = 3.12 ]
}

# Running it tells a working uv from a pyenv shim whose version is not selected.
works() { "$@" >/dev/null 2>&1; }

find_uv() {
  local uv python
  for uv in uv "$PRIVATE_UV/bin/uv" "${HOME:-}/.local/bin/uv"; do
    if works "$uv" --version; then
      echo "$uv"
      return
    fi
  done
  say "bootstrap: uv is missing; installing it into $PRIVATE_UV"
  # --target leaves an externally managed interpreter alone and needs no venv module.
  for python in python3 $(pyenv_pythons 3.); do
    if works "$python" -m pip install --quiet --target "$PRIVATE_UV" uv &&
      works "$PRIVATE_UV/bin/uv" --version; then
      echo "$PRIVATE_UV/bin/uv"
      return
    fi
  done
  fail "found neither uv nor a python3 whose pip can install it: install uv, or python3 with pip" \
    "(on Debian or Ubuntu: apt install python3-pip)."
}

find_python() {
  local uv=$1 python
  for python in python3.12 $(pyenv_pythons 3.12); do
    if is_python_312 "$python"; then
      command -v "$python"
      return
    fi
  done
  # uv knows more places (its own, Homebrew, the registry); only then may it fetch one.
  "$uv" python find --no-python-downloads 3.12 2>/dev/null && return
  say "bootstrap: Python 3.12 is missing; asking uv to fetch it"
  works "$uv" python install 3.12 && "$uv" python find 3.12 2>/dev/null && return
  fail "found no Python 3.12 and uv could not fetch one: install Python 3.12 (Isaac Lab 3.0 runs on" \
    "no other version), for example with 'pyenv install 3.12', and run make again."
}

install_environment() {
  local uv python
  uv=$(find_uv)
  if ! works "$VENV/bin/python" -c ''; then
    python=$(find_python "$uv")
    say "bootstrap: creating $VENV with $python"
    "$uv" venv --quiet --clear --python "$python" "$VENV"
  elif ! is_python_312 "$VENV/bin/python"; then
    fail "$VENV holds another Python, expected 3.12: remove it, or name a new one with VENV=folder."
  fi
  "$uv" pip install --python "$VENV/bin/python" --constraint constraints.txt --editable ".[$EXTRAS]"
}

install_rsl_rl() {
  local uv version=$1
  uv=$(find_uv)
  # Without dependencies: those of the environment serve every release.
  "$uv" pip install --quiet --python "$VENV/bin/python" --no-deps --target ".rsl_rl/$version" \
    "rsl-rl-lib==$version"
}

install_peers() {
  local uv
  uv=$(find_uv)
  # Without dependencies, as torch must not move: gymnasium and what follows it are those that the
  # peers import, for an environment without Isaac Lab.
  "$uv" pip install --quiet --python "$VENV/bin/python" --no-deps --target .peers \
    torchrl==0.14.1 hoptorch==0.1.4 sb3-contrib==2.9.2 stable-baselines3==2.9.2 skrl==2.1.1 \
    gymnasium==1.4.0 farama-notifications==0.0.6 cloudpickle==3.1.2
}

case "${1:-}" in
  environment) install_environment ;;
  rsl_rl) install_rsl_rl "${2:?usage: scripts/bootstrap.sh rsl_rl VERSION}" ;;
  peers) install_peers ;;
  *) fail "the command is '${1:-}', expected 'environment', 'rsl_rl VERSION' or 'peers'." ;;
esac
