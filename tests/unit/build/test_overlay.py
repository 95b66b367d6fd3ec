"""Partial templates over generated ones: what merges, what is replaced, what goes."""

from disagg_operator.build.overlay import merge_json, merge_template

BASE = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                "readinessProbe": {"httpGet": {"path": "/health"}, "periodSeconds": 5},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


def merged(**spec: object) -> dict[str, object]:
    result: dict[str, object] = merge_template(BASE, {"spec": spec})["spec"]
    return result


def engine(**fields: object) -> dict[str, object]:
    containers = merged(containers=[{"name": "engine", **fields}])["containers"]
    assert isinstance(containers, list)
    first: dict[str, object] = containers[0]
    return first


def test_maps_merge_by_key_and_unknown_keys_pass() -> None:
    result = merge_template(BASE, {"metadata": {"labels": {"b": "2"}}, "spec": {"futureField": {"x": [1]}}})
    assert result["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert result["spec"]["futureField"] == {"x": [1]}


def test_env_entries_are_replaced_whole() -> None:
    source = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}
    assert engine(env=[source, {"name": "C", "value": "3"}])["env"] == [
        source,
        {"name": "B", "value": "2"},
        {"name": "C", "value": "3"},
    ]


def test_volumes_are_replaced_whole() -> None:
    claim = {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}}
    assert merged(volumes=[claim])["volumes"] == [claim]


def test_containers_and_mounts_are_added() -> None:
    sidecar = {"name": "sidecar", "image": "s:1"}
    result = merged(containers=[sidecar])["containers"]
    assert isinstance(result, list)
    assert [c["name"] for c in result] == ["engine", "sidecar"]
    assert engine(volumeMounts=[{"name": "x", "mountPath": "/x"}])["volumeMounts"] == [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "x", "mountPath": "/x"},
    ]


def test_ports_merge_by_number_and_protocol() -> None:
    ports = engine(ports=[{"containerPort": 8000, "hostPort": 80}, {"containerPort": 8000, "protocol": "UDP"}])["ports"]
    assert ports == [
        {"name": "http", "containerPort": 8000, "protocol": "TCP", "hostPort": 80},
        {"containerPort": 8000, "protocol": "UDP"},
    ]


def test_another_way_to_probe_takes_the_place_of_the_generated_one() -> None:
    probe = engine(readinessProbe={"exec": {"command": ["true"]}})["readinessProbe"]
    assert probe == {"exec": {"command": ["true"]}, "periodSeconds": 5}


def test_other_lists_are_replaced() -> None:
    base = {"spec": {"tolerations": [{"key": "a"}]}}
    assert merge_template(base, {"spec": {"tolerations": [{"key": "b"}]}})["spec"]["tolerations"] == [{"key": "b"}]


def test_null_and_patch_delete_take_away() -> None:
    assert "readinessProbe" not in engine(readinessProbe=None)
    assert engine(env=[{"name": "A", "$patch": "delete"}])["env"] == [{"name": "B", "value": "2"}]
    assert merged(containers=[{"name": "sidecar", "image": "s:1", "command": None}])["containers"] == [
        BASE["spec"]["containers"][0],  # type: ignore[index]
        {"name": "sidecar", "image": "s:1"},
    ]


def test_arguments_are_left_alone() -> None:
    before = repr(BASE)
    overlay = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    merge_template(BASE, overlay)["spec"]["volumes"][1]["emptyDir"]["medium"] = "Memory"
    assert repr(BASE) == before
    assert overlay == {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}


def test_json_merges_as_rfc_7386_says() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1]}
    assert merge_json(base, {"a": {"b": None, "e": {"f": None}}, "d": [2], "g": 1.5}) == {
        "a": {"c": 2, "e": {}},
        "d": [2],
        "g": 1.5,
    }
