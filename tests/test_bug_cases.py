"""docs/bug-cases.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path


def test_each_row_names_its_tests(root: Path) -> None:
    lines = (root / "docs" / "bug-cases.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| reported", "| ---"))]
    assert len(rows) == 18
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.rsplit("|", 2)[1])
        assert named, row
        for file, test in named:
            assert re.search(rf"^def {test}\(", (root / file).read_text("utf-8"), re.MULTILINE), (file, test)
