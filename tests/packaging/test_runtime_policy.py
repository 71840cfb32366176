"""Which host fits which wheel: the policy as a table, and the record's own form."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

import install_wheel
from mm_libtorch_encoder import runtime

EXACT = {"policy": "exact", "libc": "glibc 2.36", "key": "torch-2.14.1-cu130-x86_64-0"}
NO_TORCH = dict.fromkeys(("torch", "torch_revision", "torch_build", "torch_cuda", "cxx11_abi"))


def test_both_files_hold_the_same_policy() -> None:
    def policy(module: Any) -> str:
        source = inspect.getsource(module)
        return source[source.index("# The policy.") : source.index("# End of the policy.")]

    assert policy(runtime) == policy(install_wheel)


@pytest.mark.parametrize(
    ("manifest_changes", "host_changes", "fields"),
    [
        pytest.param({}, {}, [], id="stable-same"),
        pytest.param(
            {}, {"torch": "2.11.0+cu130", "torch_revision": "x", "torch_build": "y"}, [], id="stable-oldest"
        ),
        pytest.param({}, {"torch": "2.10.1+cu130"}, ["torch"], id="stable-too-old"),
        pytest.param({}, {"torch": "2.9.0"}, ["torch"], id="stable-9-is-less-than-11"),
        pytest.param({}, {"torch": "3.0.0a0+git1234567"}, [], id="stable-next-major"),
        pytest.param({}, {"torch": "2.11.0.dev20260101"}, [], id="stable-nightly"),
        pytest.param({}, {"torch": "unknown"}, ["torch"], id="stable-unreadable-version"),
        pytest.param({}, {"torch_cuda": "13.4"}, [], id="stable-same-cuda-major"),
        pytest.param({}, {"torch_cuda": "12.9"}, ["cuda"], id="stable-other-cuda-major"),
        pytest.param({}, {"torch_cuda": None, "torch": "2.14.1+cpu"}, [], id="stable-cuda-wheel-cpu-host"),
        pytest.param({"cuda": None}, {"torch_cuda": "12.9"}, [], id="stable-cpu-wheel-any-cuda"),
        pytest.param({}, {"libc": "glibc 2.34"}, [], id="stable-libc-equal"),
        pytest.param({}, {"libc": "glibc 2.31"}, ["libc"], id="stable-libc-older"),
        pytest.param({"libc": "glibc 2.9"}, {"libc": "glibc 2.34"}, [], id="stable-libc-is-numeric"),
        pytest.param({}, {"libc": "unknown"}, ["libc"], id="stable-no-glibc"),
        pytest.param({}, {"libc": "musl 9.9"}, ["libc"], id="stable-musl"),
        pytest.param({}, {"machine": "aarch64"}, ["machine"], id="stable-machine"),
        pytest.param({}, {"cxx11_abi": False}, [], id="stable-needs-no-cxx-abi"),
        pytest.param({}, {"python": "cp313"}, [], id="newer-python"),
        pytest.param({}, {"python": "cp310"}, ["python"], id="older-python"),
        pytest.param({}, {"python": "cp313t"}, ["python"], id="free-threaded-has-no-abi3"),
        pytest.param({}, {"python": "pypy311"}, ["python"], id="pypy"),
        pytest.param({}, NO_TORCH, ["torch"], id="stable-no-torch"),
        pytest.param(
            {},
            {"torch": "2.4.0", "torch_cuda": "11.8", "machine": "arm64", "libc": "unknown", "python": "cp39"},
            ["torch", "cuda", "machine", "libc", "python"],
            id="stable-everything",
        ),
        pytest.param(EXACT, {}, [], id="exact-same"),
        pytest.param(EXACT, {"torch": "2.14.2+cu130"}, ["torch"], id="exact-patch-release"),
        pytest.param(EXACT, {"torch_revision": "0"}, ["torch_revision"], id="exact-revision"),
        pytest.param(EXACT, {"torch_build": "0"}, ["torch_build"], id="exact-build"),
        pytest.param(EXACT, {"torch_cuda": "13.1"}, ["torch_cuda"], id="exact-cuda-minor"),
        pytest.param(EXACT, {"torch_cuda": None}, ["torch_cuda"], id="exact-no-cuda"),
        pytest.param(EXACT, {"cxx11_abi": False}, ["cxx11_abi"], id="exact-cxx-abi"),
        pytest.param(EXACT, {"machine": "aarch64"}, ["machine"], id="exact-machine"),
        pytest.param(EXACT, {"libc": "glibc 2.37"}, ["libc"], id="exact-newer-libc"),
        pytest.param(EXACT, {"python": "cp312"}, [], id="exact-newer-python"),
        pytest.param(EXACT, {"python": "cp310"}, ["python"], id="exact-older-python"),
        pytest.param(EXACT, NO_TORCH, ["torch"], id="exact-no-torch"),
    ],
)
def test_policy(
    manifest: dict[str, Any],
    host: dict[str, Any],
    manifest_changes: dict[str, Any],
    host_changes: dict[str, Any],
    fields: list[str],
) -> None:
    manifest.update(manifest_changes)
    host.update(host_changes)
    found = runtime.differences(manifest, host)
    assert [field for field, _, _ in found] == fields
    sentence = runtime.mismatch(manifest, host)
    assert (sentence is None) == (not fields)
    for field, wanted, has in found:
        assert f"{field}: built for {wanted}, host has {has}" in str(sentence)


@pytest.mark.parametrize(
    ("policy", "kernels", "changes", "key"),
    [
        ("stable", True, {}, "torch-stable-2.11-cu13-x86_64"),
        ("stable", False, {}, "torch-stable-2.11-cpu-x86_64"),
        ("stable", True, {"torch_cuda": "12.8"}, "torch-stable-2.11-cu12-x86_64"),
        ("stable", True, {"torch_cuda": None}, "torch-stable-2.11-cpu-x86_64"),
        ("stable", True, {"machine": "aarch64"}, "torch-stable-2.11-cu13-aarch64"),
        ("stable", True, {"torch": "2.10.0"}, None),
        ("stable", True, NO_TORCH, None),
    ],
)
def test_runtime_key(
    host: dict[str, Any], policy: str, kernels: bool, changes: dict[str, Any], key: str | None
) -> None:
    host.update(changes)
    assert runtime.runtime_key(policy, kernels, host) == key


def test_exact_key_is_readable_and_differs_with_every_field(host: dict[str, Any]) -> None:
    key = runtime.runtime_key("exact", True, host)
    assert key is not None
    assert key.startswith("torch-2.14.1-cu130-x86_64-")
    others = {
        "torch_revision": "0",
        "torch_build": "0",
        "torch_cuda": "13.1",
        "cxx11_abi": False,
        "libc": "glibc 2.37",
    }
    keys = {runtime.runtime_key("exact", True, {**host, field: value}) for field, value in others.items()}
    assert len(keys | {key}) == len(others) + 1


def test_the_sentence_names_the_key_of_a_fitting_wheel(
    manifest: dict[str, Any], host: dict[str, Any]
) -> None:
    host["torch_cuda"] = "12.8"
    sentence = runtime.mismatch(manifest, host)
    assert sentence is not None
    assert "cuda: built for 13.x, host has 12.8" in sentence
    assert "torch-stable-2.11-cu12-x86_64 would fit" in sentence
    host["torch"] = "2.8.0"
    assert "No wheel fits this host before it has Torch 2.11" in str(runtime.mismatch(manifest, host))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 60_000, "not valid JSON"),
        (b"1" * 60_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"{}", "not of format 1"),
        (b'{"format": 2}', "not of format 1"),
        (b'{"format": "1"}', "not of format 1"),
        (b'{"format": 1}', "lacks the field"),
        (b" " * (64 * 1024 + 1), "larger than"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_damaged_records(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        runtime.parse_manifest(text)


@pytest.mark.parametrize("field", sorted(set(runtime.MANIFEST_FIELDS) - {"format"}))
def test_every_field_is_required_and_typed(manifest: dict[str, Any], field: str) -> None:
    assert runtime.parse_manifest(json.dumps(manifest).encode()) == manifest
    with pytest.raises(ValueError, match=f"a '{field}' of the wrong type"):
        runtime.parse_manifest(json.dumps({**manifest, field: ["list"]}).encode())
    del manifest[field]
    with pytest.raises(ValueError, match=f"lacks the field '{field}'"):
        runtime.parse_manifest(json.dumps(manifest).encode())


def test_unknown_policy(manifest: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="neither 'stable' nor 'exact'"):
        runtime.parse_manifest(json.dumps({**manifest, "policy": "loose"}).encode())
