"""How a pydantic model becomes a structural schema."""

from enum import StrEnum
from typing import Annotated

import pytest
from disagg_operator.api.base import ApiModel, Freeform, Quantity
from disagg_operator.api.schema import structural_schema, without_defaults
from pydantic import Field


class Colour(StrEnum):
    """Not told: the field says it."""

    RED = "red"


class Inner(ApiModel):
    """What an inner object is."""

    some_count: int = Field(3, ge=0, description="How many.")
    maybe: Annotated[str, Field(max_length=5)] | None = Field(None, description="Perhaps.")


class Outer(ApiModel):
    """What it is."""

    colour: Colour = Field(Colour.RED, description="Which.")
    inner: Inner = Field(Inner(), description="The\n   field's own words.")
    others: Annotated[list[Inner], Field(max_length=2)] = Field(default_factory=list, description="More.")
    amounts: Annotated[dict[str, Annotated[str, Field(max_length=9)]], Field(max_length=4)] | None = Field(
        None, description="By name."
    )
    share: float | None = Field(None, gt=0, le=1, description="Part.")
    any_thing: Freeform | None = Field(None, description="Raw.")
    size: Quantity = Field("1Gi", description="Large.")
    far: int = Field(0, le=2**40, description="Wide.")


SCHEMA = structural_schema(Outer)
FIELDS = SCHEMA["properties"]


def test_references_are_put_in_place_and_the_fields_words_win() -> None:
    assert FIELDS["inner"]["properties"]["someCount"] == {
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "default": 3,
        "description": "How many.",
    }
    assert FIELDS["inner"]["description"] == "The field's own words."
    assert FIELDS["others"]["items"]["description"] == "What an inner object is."


def test_what_may_be_null_is_simply_not_required() -> None:
    assert FIELDS["inner"]["properties"]["maybe"] == {"type": "string", "maxLength": 5, "description": "Perhaps."}
    assert "required" not in SCHEMA


def test_a_default_object_is_whole() -> None:
    """The API server holds rules against a default before it fills in nested ones."""
    assert FIELDS["inner"]["default"] == {"someCount": 3}


def test_an_empty_default_is_left_out() -> None:
    assert "default" not in FIELDS["others"]


def test_enums_lists_and_maps() -> None:
    assert FIELDS["colour"] == {"type": "string", "enum": ["red"], "default": "red", "description": "Which."}
    assert (FIELDS["others"]["x-kubernetes-list-type"], FIELDS["others"]["maxItems"]) == ("atomic", 2)
    assert FIELDS["amounts"]["additionalProperties"] == {"type": "string", "maxLength": 9}
    assert FIELDS["amounts"]["maxProperties"] == 4


def test_bounds_are_written_as_openapi_3_0_has_them() -> None:
    share = FIELDS["share"]
    assert (share["minimum"], share["exclusiveMinimum"], share["maximum"]) == (0, True, 1)


def test_kinds_that_pydantic_lacks() -> None:
    assert FIELDS["anyThing"]["x-kubernetes-preserve-unknown-fields"] is True
    assert FIELDS["size"]["x-kubernetes-int-or-string"] is True
    assert "type" not in FIELDS["size"]
    assert FIELDS["far"]["format"] == "int64"


def test_a_union_of_two_types_is_refused() -> None:
    class Odd(ApiModel):
        """It has a field of two types."""

        either: int | str = Field(1, description="What?")

    with pytest.raises(TypeError, match="union of 2 types"):
        structural_schema(Odd)


def test_defaults_can_be_left_out() -> None:
    bare = without_defaults(SCHEMA)
    assert "default" not in str(bare)
    assert FIELDS["inner"]["default"] == {"someCount": 3}, "the given schema is not touched"
