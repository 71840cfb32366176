#!/bin/sh
# Runs the Rust tests of the featureless crate for 64-bit Arm under emulation, where the tools for it are.
# On Debian: rustup target add aarch64-unknown-linux-gnu; dpkg --add-architecture arm64; apt-get update;
#   apt-get install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user libjpeg62-turbo-dev:arm64
set -eu
target=aarch64-unknown-linux-gnu

skip() {
    echo "arm-test: not run: $1 (what it needs: tools/arm_test.sh)" >&2
    exit 0
}

command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || skip "aarch64-linux-gnu-gcc is missing"
command -v qemu-aarch64 >/dev/null 2>&1 || skip "qemu-aarch64 is missing"
[ -e /usr/lib/aarch64-linux-gnu/libjpeg.so ] || skip "libjpeg-turbo for arm64 is missing"
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || skip "Rust's standard library for $target is missing"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64
# Emulation is slow enough without unoptimised code.
export CARGO_PROFILE_DEV_OPT_LEVEL=3
# One test is about time, which emulation has its own of.
exec cargo test --locked --target "$target" "$@" -- --skip read_quickly
