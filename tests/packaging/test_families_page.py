"""docs/families.md is what its command writes."""

from __future__ import annotations

from pathlib import Path

from mm_libtorch_encoder import _native
from tools import families_table


def test_the_page_is_what_the_command_writes() -> None:
    assert families_table.PAGE.read_text("utf-8") == families_table.page(), (
        "run python tools/families_table.py"
    )


def test_every_family_has_facts_goldens_and_tests(root: Path) -> None:
    names = {name for name, *_ in _native.families()}
    assert set(families_table.FACTS) == names
    recorded = {file.stem for file in families_table.GOLDENS.glob("*.json")}
    assert {golden for facts in families_table.FACTS.values() for golden in facts.goldens} == recorded
    for facts in families_table.FACTS.values():
        assert (root / "tests" / "family" / f"{facts.tests}.py").is_file()
