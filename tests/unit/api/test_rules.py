"""Rules of the CRD against the code that reads the same fields: what one lets in, the other must understand.

CEL's `matches` is RE2; the patterns here keep to what Python's `re` reads the same way.
"""

import re

import pytest
from disagg_operator.api.base import OWNED_ENV
from disagg_operator.api.engine import OWNED_FLAGS, describe_remedy
from disagg_operator.api.names import MAX_NAME_LENGTH, NAME_PATTERN, suggest_name
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.api.rules import SIZE_PATTERN, text_map
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.build.problems import find_problems
from hypothesis import example, given
from hypothesis import strategies as st
from mooncake_store_connector.problems import ConfigError
from mooncake_store_connector.sizes import parse_size
from unit.api.test_crd_schema import ALL
from unit.build.samples import PINS


def is_size(text: str) -> bool:
    """Whether it reads as a size. Too large a one does; what is too large is for another rule."""
    try:
        parse_size(text, "size")
    except ConfigError as error:
        return "out of range" in str(error)
    return True


UNITS = ["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"]
UNITS += [prefix + i + b for prefix in ("", *"kKmMgGtT") for i in ("", "i") for b in "bB" if prefix or not i]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("number", ["4", "1.5", "1024"])
@pytest.mark.parametrize("blank", ["", " "])
def test_each_spelling_of_a_size_is_let_in_and_read(number: str, blank: str, unit: str) -> None:
    text = f" {number}{blank}{unit} "
    assert re.search(SIZE_PATTERN, text)
    assert is_size(text) or (number == "1.5" and unit in {"", "b", "B"}), "a fraction of a byte"


@given(st.text(alphabet=" 0123456789.eEkKmMgGtTpPiIbB-+x", max_size=12))
@example("4g")
@example("1e9")
@example("1e3Gi")
@example("4iB")
@example("1E20")
def test_what_is_let_in_can_be_read(text: str) -> None:
    """The other way round need not hold: `1e3Gi` can be read, and nobody writes it."""
    is_fraction = re.search(r"[.][0-9]*[1-9]", text) is not None
    if re.search(SIZE_PATTERN, text) and not is_fraction:
        assert is_size(text), "admitted, and then a condition"


def _problems(**engine: object) -> list[str]:
    body = {
        "metadata": {"name": "llama", "namespace": "default"},
        "spec": {"model": {"uri": "hf://a/b"}, "engine": engine},
    }
    found = find_problems(DisaggregatedInference.from_object(body), PINS, ClusterFacts())
    return [problem.path for problem in found]


@pytest.mark.parametrize("flag", OWNED_FLAGS)
def test_a_flag_that_is_refused_at_admission_is_refused_before_building_too(flag: str) -> None:
    """Resources may be older than the rule."""
    assert "spec.engine.args" in _problems(args=[flag, "1"])
    assert describe_remedy(flag).startswith(("set spec.", "remove it: "))


@pytest.mark.parametrize("name", OWNED_ENV)
def test_a_variable_that_is_refused_at_admission_is_refused_before_building_too(name: str) -> None:
    assert f"spec.engine.env[{name}]" in _problems(env=[{"name": name, "value": "x"}])


def test_the_hash_seed_that_the_operator_sets_may_be_repeated() -> None:
    assert _problems(env=[{"name": "PYTHONHASHSEED", "value": "0"}]) == []


def test_quotes_and_backslashes_in_a_map_of_texts_are_escaped() -> None:
    assert text_map({"a'b": 'c"d\\e'}) == "{'a\\'b': 'c\"d\\\\e'}"


@given(st.text(alphabet="abcXYZ019.-_/ ", max_size=80))
@example("")
@example("qwen2.5-7b")
def test_a_suggested_name_is_always_legal(name: str) -> None:
    suggestion = suggest_name(name)
    assert re.fullmatch(NAME_PATTERN, suggestion)
    assert len(suggestion) <= MAX_NAME_LENGTH


# `[[]` is RE2's and Python's "a bracket"; Python warns that this may change.
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_no_pattern_reads_differently_in_python_and_re2() -> None:
    """Python's `$` also matches before a last line break; so do tests that use these patterns, and nothing else."""
    rules = [rule["rule"] for _, node in ALL for rule in node.get("x-kubernetes-validations", [])]
    patterns = [pattern for rule in rules for pattern in re.findall(r"matches\('([^']*)'\)", rule)]
    assert len(patterns) > 30
    for pattern in patterns:
        re.compile(pattern)
        assert not re.search(r"\(\?[=!<P]|\\[ZAGk1-9]", pattern), f"RE2 lacks it: {pattern}"
