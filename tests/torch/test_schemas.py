"""The operators that the bridge calls through Torch's dispatcher are those of the running Torch."""

from __future__ import annotations

import torch

from mm_libtorch_encoder import Encoder, _native  # noqa: F401  (Encoder opens the bridge)


def test_every_schema_is_the_running_torchs() -> None:
    rows = _native.op_schemas()
    assert len(rows) >= 15
    differing = [
        f"{schema}\n  here: {running}"
        for name, overload, schema in rows
        if (running := str(torch._C._get_schema(name, overload))) != schema
    ]
    assert not differing, "\n".join(differing)


def test_no_operator_stands_in_the_table_twice() -> None:
    keys = [(name, overload) for name, overload, _ in _native.op_schemas()]
    assert len(keys) == len(set(keys))


def test_the_running_version_is_reported() -> None:
    numbers = torch.__version__.split("+")[0].split(".")
    assert [str(part) for part in _native.torch_version()] == numbers[:3]
