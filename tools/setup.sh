#!/usr/bin/env bash
# What `make` needs before it can run anything: system packages, a Python with the pinned packages, and the build.
##
## Variables:
##   BROACH_PYTHON=/path/python  build and test with this interpreter, which has torch; no .venv, no apt, no network
##   TORCH_SPEC=torch==2.13.0    another torch, or a path to a wheel, in place of the pinned one
##   PIP_EXTRA_ARGS="..."        passed to pip, such as the index of torch's CPU builds (the default index may serve CUDA's)
##   CMAKE_ARGS="..."            passed to the configure step
##   JOBS=2                      compilers running at once
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly packages=(g++ cmake ninja-build ccache libzstd-dev zlib1g-dev doctest-dev python3-venv python3-dev git)
readonly oldest='import sys; sys.exit(sys.version_info < (3, 11))'

die() {
  echo "setup: $*" >&2
  exit 1
}

interpreter() { echo "${BROACH_PYTHON:-$PWD/.venv/bin/python}"; }

installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing_packages() {
  local package version
  for package in "${packages[@]}"; do
    installed "$package" || echo "$package"
  done
  for version in 19 20 21; do
    ! installed "llvm-$version-dev" || return 0
  done
  echo llvm-19-dev
}

install_system() {
  command -v dpkg-query >/dev/null || return 0 # CMake names what a system of another kind lacks
  local missing root=()
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  echo "setup: installing ${missing[*]}"
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "run 'apt-get install ${missing[*]}' as root first (no sudo here)"
    root=(sudo)
  fi
  "${root[@]}" apt-get update -q
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# The first Python that is new enough and has its headers and ensurepip.
base_python() {
  local name
  for name in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.14; do
    command -v "$name" >/dev/null || continue
    "$name" -c "$oldest" 2>/dev/null || continue
    "$name" - 2>/dev/null <<'PY' || continue
import ensurepip, os, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
PY
    echo "$name"
    return
  done
  die "no Python 3.11 or newer with its headers and venv module was found"
}

install_python() {
  local python torch stamp=build/setup.stamp state
  python=$(interpreter)
  torch=${TORCH_SPEC:-$(grep '^torch==' requirements.txt)}
  state=$(echo "$PWD $torch ${PIP_EXTRA_ARGS:-}" | cat - requirements.txt | sha256sum)
  if [[ -x $python && -f $stamp && $(<"$stamp") == "$state" ]]; then return; fi
  if ! "$python" -c "$oldest" 2>/dev/null; then
    local base
    base=$(base_python)
    echo "setup: creating .venv with $("$base" --version)"
    "$base" -m venv --clear .venv
  fi
  # shellcheck disable=SC2086  # PIP_EXTRA_ARGS is a list of words
  "$python" -m pip install -q --disable-pip-version-check ${PIP_EXTRA_ARGS:-} "$torch" \
    -r <(grep -v '^torch==' requirements.txt)
  mkdir -p build
  echo "$state" >"$stamp"
}

setup() {
  if [[ -n ${BROACH_PYTHON:-} ]]; then
    "$BROACH_PYTHON" -c 'import torch' || die "BROACH_PYTHON=$BROACH_PYTHON cannot import torch"
    return
  fi
  install_system
  install_python
}

build() {
  local python configured=build/configure.stamp line
  python=$(interpreter)
  line="-DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$python ${CMAKE_ARGS:-}"
  if [[ ! -f build/build.ninja || ! -f $configured || $(<"$configured") != "$line" ]]; then
    # shellcheck disable=SC2086  # CMAKE_ARGS is a list of words
    cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" ${CMAKE_ARGS:-}
    echo "$line" >"$configured"
  fi
  cmake --build build -j "${JOBS:-$(nproc)}"
  if [[ -n ${BROACH_PYTHON:-} ]]; then
    "$python" tools/install_editable.py --no-pth
  else
    "$python" tools/install_editable.py
  fi
}

case ${1:-} in
  setup) setup ;;
  build) build ;;
  python) interpreter ;;
  *) die "usage: tools/setup.sh setup|build|python" ;;
esac
