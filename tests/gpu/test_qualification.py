"""The checks of `python -m mm_libtorch_encoder.qualify`, on the first GPU and a small checkpoint of every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mm_libtorch_encoder import _native
from mm_libtorch_encoder.qualify import command as qualification
from mm_libtorch_encoder.qualify.context import Context

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FAMILIES = [family for family, *_ in _native.families()]
# Timings are no test, and the sanitizers start this very program.
CHECKS = [name for name in qualification.CHECKS if not name.startswith("timings") and name != "sanitizers"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("check", CHECKS)
def test_check(demo_checkpoint: Callable[[str], Path], check: str, family: str, dtype: str) -> None:
    context = Context(demo_checkpoint(family), "cuda:0", dtype=dtype, family=family)
    finding = qualification.run(check, context)
    assert finding.status != qualification.FAILED, finding.detail
    if finding.status == qualification.NOT_RUN:
        pytest.skip(finding.detail)
