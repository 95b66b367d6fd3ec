"""What holds for every field of the CRD, whatever the fields are."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from disagg_operator.api.crd import build_crd

Json = dict[str, Any]

SCHEMA: Json = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(path: str, node: Json) -> Iterator[tuple[str, Json]]:
    """Every part of a schema with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(f"{path}.{name}", child)
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(f"{path}[]", node[key])


ALL = [found for part in ("spec", "status") for found in nodes(part, SCHEMA["properties"][part])]
FIELDS = [(path, node) for path, node in ALL if not path.endswith("[]")]


def failing(condition: Any) -> list[str]:
    return [path for path, node in ALL if not condition(node)]


def test_every_field_says_what_it_is() -> None:
    assert [path for path, node in FIELDS if not node.get("description", "").rstrip().endswith((".", ")"))] == []
    assert len(FIELDS) > 100


def test_every_string_is_bounded() -> None:
    def is_bounded(node: Json) -> bool:
        if node.get("x-kubernetes-int-or-string"):
            return "maxLength" in node
        return node.get("type") != "string" or "maxLength" in node or "enum" in node

    assert failing(is_bounded) == []


def test_every_list_and_map_is_bounded() -> None:
    assert failing(lambda node: node.get("type") != "array" or "maxItems" in node) == []
    assert failing(lambda node: "additionalProperties" not in node or "maxProperties" in node) == []


def test_every_list_tells_how_it_is_merged() -> None:
    kinds = {node["x-kubernetes-list-type"] for _, node in ALL if node.get("type") == "array"}
    assert kinds == {"atomic", "map"}
    for path, node in ALL:
        for key in node.get("x-kubernetes-list-map-keys", []):
            assert key in node["items"]["required"], path


def test_every_integer_has_a_width() -> None:
    assert failing(lambda node: node.get("type") != "integer" or node.get("format") in {"int32", "int64"}) == []
    assert dict(ALL)["status.observedGeneration"]["format"] == "int64"
    assert dict(ALL)["spec.prefill.replicas"]["format"] == "int32"


def test_every_field_is_structural() -> None:
    """No references, unions, titles or nulls: the API server would drop unknown fields in silence otherwise."""
    forbidden = {"anyOf", "oneOf", "allOf", "$ref", "$defs", "title", "nullable", "const", "discriminator"}
    assert failing(lambda node: not forbidden & node.keys()) == []
    assert failing(lambda node: "type" in node or node.get("x-kubernetes-int-or-string")) == []


def test_objects_without_fields_say_that_they_take_all() -> None:
    def is_open_on_purpose(node: Json) -> bool:
        has_fields = "properties" in node or "additionalProperties" in node
        return node.get("type") != "object" or has_fields or node.get("x-kubernetes-preserve-unknown-fields") is True

    assert failing(is_open_on_purpose) == []


def test_there_are_no_booleans_but_kubernetes_own() -> None:
    """An enum can grow a third value; a boolean cannot."""
    assert {path.rpartition(".")[2] for path, node in ALL if node.get("type") == "boolean"} == {"optional", "paused"}


def test_what_is_required_has_no_default() -> None:
    for path, node in ALL:
        for name in node.get("required", []):
            assert "default" not in node["properties"][name], f"{path}.{name}"


def test_status_has_no_defaults() -> None:
    """A default that its writer did not write would be a difference for ever. A status as a whole is always written."""
    assert [path for path, node in ALL if path.startswith("status") and "default" in node] == ["status"]


def _rules() -> Iterator[tuple[str, Json]]:
    for path, node in [("", SCHEMA), *ALL]:
        for rule in node.get("x-kubernetes-validations", []):
            yield path, rule


def test_every_rule_says_what_would_be_right() -> None:
    remedies = ("write", "set ", "use ", "remove", "must", "lower", "can be at most")
    for path, rule in _rules():
        assert any(word in rule["message"] for word in remedies), f"{path}: {rule['message']}"
        assert "\n" not in rule["message"], "the API server takes no line breaks"
        assert len(rule["message"]) <= 256, f"{path}: longer than a terminal shows well"


def test_no_rule_stands_twice_on_a_field() -> None:
    told = [(path, rule["rule"]) for path, rule in _rules()]
    assert len(told) == len(set(told)) > 40


@pytest.mark.parametrize("part", ["spec.prefill.template", "spec.decode.template", "spec.router.template"])
def test_pod_templates_stay_without_schema(part: str) -> None:
    node = dict(ALL)[part]
    assert node["x-kubernetes-preserve-unknown-fields"] is True
    assert "properties" not in node


def test_it_is_far_below_the_limit_of_client_side_apply() -> None:
    assert len(json.dumps(build_crd())) < 131_072


def test_it_is_the_same_each_time() -> None:
    assert json.dumps(build_crd()) == json.dumps(build_crd())


def test_the_columns_are_those_that_people_look_for() -> None:
    version = build_crd()["spec"]["versions"][0]
    columns = [(column["name"], column.get("priority", 0)) for column in version["additionalPrinterColumns"]]
    names = ["Ready", "Prefill", "Decode", "Model", "Reason", "Age"]
    assert columns == [(name, 0) for name in names]
    assert version["subresources"] == {"status": {}}, "one /scale could only ever move one of two roles"
