"""Sizes: each spelling of the page, and nothing that is not on it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.problems import ConfigError
from mooncake_store_connector.sizes import MAX_SIZE, SEGMENT_ALIGNMENT, align_segment, parse_size

_PAGE = Path(__file__).parents[3] / "docs" / "mooncake-config.md"


def _table(heading: str) -> list[tuple[str, str]]:
    """The first two cells of each row of the table below a heading."""
    section = _PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", section, re.MULTILINE)
    return [row for row in rows[1:] if not row[0].startswith("---")]


def _value(cell: str) -> object:
    """What a cell means: `text` in quotes is a string, else a number or a JSON word."""
    text = cell.strip("`")
    if text.startswith('"'):
        return text.strip('"')
    words: dict[str, object] = {"true": True, "null": None}
    if text in words:
        return words[text]
    return float(text) if "." in text else int(text)


def test_the_page_says_what_the_code_does() -> None:
    """Field case C07."""
    rows = _table("Sizes")
    assert len(rows) > 20
    for spelling, meaning in rows:
        if meaning.startswith("refused"):
            with pytest.raises(ConfigError):
                parse_size(_value(spelling), "p")
        else:
            assert parse_size(_value(spelling), "p") == int(meaning.replace(",", "")), spelling


@pytest.mark.parametrize("value", ["", "abc", "-1", -1, True, None, "0x10", "1g", 1.5, "1.5", [1], "1e999999999"])
def test_a_refusal_names_the_field_and_a_remedy(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size(value, "spec.kvStore.segmentSize")
    (problem,) = caught.value.problems
    assert problem.path == "spec.kvStore.segmentSize"
    assert problem.found.startswith("found ")
    assert problem.remedy.startswith("write ")


@given(st.integers(0, MAX_SIZE))
def test_integers_are_bytes(size: int) -> None:
    assert parse_size(size, "p") == parse_size(str(size), "p") == size


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.from_regex(r"[0-9]+e[0-9]+")))
def test_anything_is_a_size_or_a_refusal(value: object) -> None:
    size = 0
    try:
        size = parse_size(value, "p")
    except ConfigError as error:
        told = str(error)
    else:
        told = "p: a size"
    assert told.startswith("p: ")
    assert 0 <= size <= MAX_SIZE


@pytest.mark.parametrize("text", ["1e999999999", "9" * 10_000, "1e999990Ei"])
def test_a_huge_number_is_refused_without_being_computed(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size(text, "p")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("size", [21474836481, 1500 << 20, (80 << 30) // 3])
def test_segments_are_rounded_down_to_whole_pieces(size: int) -> None:
    """Field case C08."""
    aligned = align_segment(size)
    assert aligned % SEGMENT_ALIGNMENT == 0
    assert 0 <= size - aligned < SEGMENT_ALIGNMENT
