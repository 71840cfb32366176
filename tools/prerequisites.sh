#!/bin/sh
# Says what this machine lacks; as root on Debian and its like it installs the missing packages.
#   tools/prerequisites.sh PYTHON
set -eu
python=$1

fail() {
    echo "prerequisites: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || fail "$python is missing. Install Python 3.11 or newer, or name one: make PYTHON=path."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is older than Python 3.11. Name a newer one: make PYTHON=path."
command -v cargo >/dev/null 2>&1 || fail "cargo is missing. Install Rust 1.95 or newer with rustup."

packages=
need() { packages="$packages $1"; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
command -v "${CXX:-g++}" >/dev/null 2>&1 || need g++
if ! printf '#include <stddef.h>\n#include <stdio.h>\n#include <jpeglib.h>\n' | "${CXX:-g++}" -x c -E - >/dev/null 2>&1; then
    if grep -qs '^ID=debian' /etc/os-release; then need libjpeg62-turbo-dev; else need libjpeg-dev; fi
fi
# Writers of test files that Pillow cannot write: installed where that is possible, no reason to stop elsewhere.
wanted=
command -v cjpeg >/dev/null 2>&1 || wanted="$wanted libjpeg-turbo-progs"
command -v tiffcp >/dev/null 2>&1 || wanted="$wanted libtiff-tools"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    packages="$packages$wanted"
elif [ -n "$wanted" ]; then
    echo "prerequisites: without$wanted some files of the image tests are not made." >&2
fi
[ -n "$packages" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # several packages
    { apt-get -q update && apt-get -qy install --no-install-recommends $packages; } ||
        fail "apt-get could not install:$packages."
else
    fail "these system packages (by their Debian names) are missing:$packages. As root: apt-get install$packages"
fi
