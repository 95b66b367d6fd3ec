"""The page for people who come from another operator names fields that exist (field case C20)."""

import re
from pathlib import Path

from unit.api.test_crd_schema import ALL

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "from-other-operators.md"


def test_every_field_that_it_names_exists() -> None:
    named = set(re.findall(r"`(spec\.[A-Za-z.]+)`", PAGE.read_text()))
    assert len(named) > 20
    assert named - {path for path, _ in ALL} == {"spec.workers"}, "the one that it quotes from a refusal"
