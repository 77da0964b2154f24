#!/usr/bin/env bash
# Builds what the Makefile needs on a machine with nothing installed by hand.
#
#   scripts/ci/bootstrap.sh COMMAND
#   environment [NAME]  create an environment with this package, by default main:
#       main       .venv            Isaac Lab 3.0 and EnvPool, Python 3.12
#       mjlab      .venv-mjlab      mjlab, PYTHON=3.10 to 3.13 (default 3.12)
#       playground .venv-playground MuJoCo Playground, Python 3.12
#       isaaclab2  .venv-isaaclab2  Isaac Lab 2.3 as far as it runs without Isaac Sim, Python 3.11
#   rsl_rl VERSION      put another rsl_rl release under .rsl_rl/VERSION
#   torch VERSION       put another torch under .torch/VERSION, with its dependencies
#   robot               create .venv-robot: Python 3.8 with what a robot needs to run a bundle
#   browser             install Chromium, its driver and npm by Debian's apt-get, if they are missing
#   package FOLDER      build sdist and wheel into FOLDER/dist and install the wheel into
#                       FOLDER/venv, with no extras except EXTRAS
#
# VENV (another folder) and EXTRAS (other extras of this package) can be set in the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# A separate folder keeps uv away from the system's and the user's packages.
PRIVATE_UV=.venv-uv

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "bootstrap: $*"
  exit 1
}

# pyenv's shims refuse versions that are not selected, so its interpreters need their full path.
pyenv_pythons() {
  local root
  for root in "$(pyenv root 2>/dev/null || true)" "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
    [ -z "$root" ] || ls -d "$root"/versions/$1*/bin/python3 2>/dev/null || true
  done
}

is_python() {
  [ "$("$2" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]
}

# Runs a program: a pyenv shim exists even if its version is not selected, but it fails.
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
  local uv=$1 version=$2 python
  for python in "python$version" $(pyenv_pythons "$version"); do
    if is_python "$version" "$python"; then
      command -v "$python"
      return
    fi
  done
  # uv searches more places (its own, Homebrew, the registry) before it may fetch one.
  "$uv" python find --no-python-downloads "$version" 2>/dev/null && return
  say "bootstrap: Python $version is missing; asking uv to fetch it"
  works "$uv" python install "$version" && "$uv" python find "$version" 2>/dev/null && return
  fail "found no Python $version and uv could not fetch one: install Python $version, which this" \
    "environment needs, for example with 'pyenv install $version', and run make again."
}

# Sets an environment's folder, Python version, extras of this package, extra packages, and packages
# that are installed without dependencies because no registry has those.
describe() {
  packages='' without_deps=''
  case "$1" in
    main) folder=.venv version=3.12 extras=isaaclab,envpool,wandb,demo,dev,docs ;;
    mjlab)
      folder=.venv-mjlab version=${PYTHON:-3.12} extras=mjlab,demo,dev
      packages=gaitkeeper # a reader of bundles, with which tests run them
      ;;
    playground) folder=.venv-playground version=3.12 extras=tools,dev packages=playground ;;
    isaaclab2)
      folder=.venv-isaaclab2 version=3.11 extras=isaaclab2,dev
      # Imports of Isaac Lab 2.3's config classes, environment wrapper and logger.
      packages='gymnasium tensorboard toml trimesh usd-core warp-lang'
      without_deps=isaaclab==2.3.2.post1
      ;;
    *) fail "the environment is '$1', expected 'main', 'mjlab', 'playground' or 'isaaclab2'." ;;
  esac
  case "$version" in
    3.10 | 3.11 | 3.12 | 3.13) ;;
    *) fail "PYTHON is '$version', expected 3.10, 3.11, 3.12 or 3.13." ;;
  esac
  folder=${VENV:-$folder} extras=${EXTRAS:-$extras}
}

install_environment() {
  local name=$1 folder version extras packages without_deps uv python
  describe "$name"
  uv=$(find_uv)
  if ! works "$folder/bin/python" -c ''; then
    python=$(find_python "$uv" "$version")
    say "bootstrap: creating $folder with $python"
    "$uv" venv --quiet --clear --python "$python" "$folder"
  elif ! is_python "$version" "$folder/bin/python"; then
    fail "$folder holds another Python, expected $version: remove it, or name a new one with" \
      "VENV=folder."
  fi
  "$uv" pip install --python "$folder/bin/python" --constraint constraints.txt \
    --constraint "constraints-$name.txt" --editable ".[$extras]" $packages
  [ -z "$without_deps" ] || "$uv" pip install --python "$folder/bin/python" --no-deps $without_deps
}

install_rsl_rl() {
  local uv version=$1
  uv=$(find_uv)
  # Without dependencies: those of the environment serve every release.
  "$uv" pip install --quiet --python "${VENV:-.venv}/bin/python" --no-deps --target ".rsl_rl/$version" \
    "rsl-rl-lib==$version"
}

install_torch() {
  local uv version=$1
  uv=$(find_uv)
  # Its dependencies get the environment's versions, because .torch comes first on the path.
  "$uv" pip install --quiet --python "${VENV:-.venv}/bin/python" --target ".torch/$version" \
    --constraint - "torch==$version" <<<"$(grep -v '^torch' constraints.txt)"
}

install_robot() {
  local uv
  uv=$(find_uv)
  "$uv" venv --quiet --clear --python "$(find_python "$uv" 3.8)" .venv-robot
  "$uv" pip install --quiet --python .venv-robot/bin/python numpy==1.24.4 onnxruntime==1.19.2
}

install_browser() {
  local missing=()
  works chromium --version || missing+=(chromium)
  works chromedriver --version || missing+=(chromium-driver)
  works npm --version || missing+=(npm)
  [ "${#missing[@]}" -eq 0 ] || { works apt-get update && works apt-get install -y "${missing[@]}"; } || fail \
    "${missing[*]} is missing and apt-get could not install it: run this as root, or install it."
}

package() {
  local uv wheel folder=$1
  uv=$(find_uv)
  # The wheel is built from the sdist: this also checks that the sdist is complete.
  "$uv" build --quiet --out-dir "$folder/dist"
  "$uv" venv --quiet --clear --python "$(find_python "$uv" 3.12)" "$folder/venv"
  wheel=$(ls "$folder"/dist/*.whl)
  "$uv" pip install --quiet --python "$folder/venv/bin/python" --constraint constraints.txt \
    --constraint constraints-main.txt "$wheel${EXTRAS:+[$EXTRAS]}"
}

case "${1:-}" in
  environment) install_environment "${2:-main}" ;;
  rsl_rl) install_rsl_rl "${2:?usage: scripts/ci/bootstrap.sh rsl_rl VERSION}" ;;
  torch) install_torch "${2:?usage: scripts/ci/bootstrap.sh torch VERSION}" ;;
  robot) install_robot ;;
  browser) install_browser ;;
  package) package "${2:?usage: scripts/ci/bootstrap.sh package FOLDER}" ;;
  *)
    fail "the command is '${1:-}', expected 'environment [NAME]', 'rsl_rl VERSION'," \
      "'torch VERSION', 'robot', 'browser' or 'package FOLDER'."
    ;;
esac
