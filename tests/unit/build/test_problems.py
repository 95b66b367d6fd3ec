"""What cannot be built: each problem names the field, what was found and what would be right."""

from dataclasses import replace
from typing import Any

import pytest
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.build.problems import find_problems
from mooncake_store_connector.problems import Problem
from unit.build.samples import FACTS, PINS, build, engine, env_of, flag, make, only_problem, problems

TOKEN = "hf_" + "a" * 34


def env(name: str, **value: Any) -> list[dict[str, Any]]:
    return [{"name": name, **value}]


@pytest.mark.parametrize("name", ["a" * 46, "qwen2.5-7b", "7b-model", "a" * 63, "x", "Qwen", "a-"])
def test_names_that_children_cannot_carry_come_with_a_suggestion(name: str) -> None:
    """Field case C19."""
    found = only_problem({}, name=name)
    assert found.path == "metadata.name"
    suggested = found.remedy.rpartition(" ")[2]
    build(make(name=suggested))


def test_the_longest_name_fits() -> None:
    """Field case C19."""
    desired = build(make(name="a" * 45))
    assert max(len(c["metadata"]["name"]) for c in desired.children) <= 63


@pytest.mark.parametrize(
    "args",
    [
        ["--port", "9000"],
        ["--port=9000"],
        ["--served_model_name", "x"],
        ["--tensor-par", "2"],
        ["-tp", "2"],
        ["--kv-transfer-config", "{}"],
        ["--kv-transfer-config.kv_role", "kv_both"],
        ["--kv_transfer_config={}"],
        ["--dtype", "bfloat16", "--host", "::"],
        ["--nnodes", "2"],
        ["-n", "2"],
        ["-n2"],
        ["--data-parallel-rank", "1"],
        ["--ssl-keyfile", "/k"],
        ["--config", "/c.yaml"],
        ["--hf-token", "x"],
        ["--api-key=x"],
    ],
)
def test_flags_that_the_operator_owns_are_refused_in_every_spelling(args: list[str]) -> None:
    """Field case C16: one server is never given two values silently."""
    for spec in ({"engine": {"args": args}}, {"prefill": {"args": args}}):
        found = problems(spec)
        assert found, args
        assert found[0].path == f"spec.{next(iter(spec))}.args"
        assert found[0].remedy


@pytest.mark.parametrize(
    "args",
    [
        ["--data-parallel-backend", "mp"],
        ["--max-num-seqs", "8", "--seed", "-1"],
        ["--quantization", "awq", "--tokenizer", "org/tok"],
        ["--hf-overrides", '{"a": 1}', "--hf-overrides.b", "2"],
        ["--served-model-name-x", "y"],
        ["-O3", "-q", "fp8"],
    ],
)
def test_other_flags_pass(args: list[str]) -> None:
    desired = build(make({"engine": {"args": args}}))
    assert engine(desired)["args"][-len(args) :] == args


@pytest.mark.parametrize(
    ("prefill", "decode", "flag_name"),
    [
        (["--dtype", "float16"], ["--dtype=bfloat16"], "--dtype"),
        (["--block-size", "16"], [], "--block-size"),
        (["-q", "fp8"], ["--quantization", "awq"], "--quantization"),
        (["--kv_cache_dtype=fp8"], [], "--kv-cache-dtype"),
        ([], ["--hf-overrides.rope_scaling.factor", "2"], "--hf-overrides.rope_scaling.factor"),
        (["--disable-sliding-window"], ["--no-disable-sliding-window"], "--disable-sliding-window"),
    ],
)
def test_roles_that_disagree_on_kv_are_refused_with_both_values(
    prefill: list[str], decode: list[str], flag_name: str
) -> None:
    found = only_problem({"prefill": {"args": prefill}, "decode": {"args": decode}})
    assert flag_name in found.path
    assert "spec.prefill has" in found.found
    assert "spec.decode has" in found.found


def test_roles_may_spell_the_same_value_in_different_ways() -> None:
    spec = {
        "engine": {"args": ["--dtype", "float16"]},
        "prefill": {"args": ["--dtype=bfloat16", "--block_size", "32"]},
        "decode": {"args": ["--block-size", "16", "--block-size=32", "--dtype", "bfloat16", "--max-num-seqs", "4"]},
    }
    build(make(spec))


def test_environment_that_decides_kv_must_agree() -> None:
    found = only_problem({"prefill": {"env": env("VLLM_KV_CACHE_LAYOUT", value="NHD")}})
    assert "VLLM_KV_CACHE_LAYOUT" in found.path


@pytest.mark.parametrize("value", ["1", "random", ""])
def test_a_contradicting_seed_is_refused(value: str) -> None:
    """Field case C56."""
    for part in ("engine", "prefill", "decode"):
        found = only_problem({part: {"env": env("PYTHONHASHSEED", value=value)}})
        assert found.path == f"spec.{part}.env[PYTHONHASHSEED]"
        assert "every one has 0" in found.remedy


def test_the_same_seed_is_no_contradiction() -> None:
    """Field case C56."""
    build(make({"decode": {"env": env("PYTHONHASHSEED", value="0")}}))


@pytest.mark.parametrize("name", ["MOONCAKE_CONFIG_PATH", "VLLM_HOST_IP", "POD_IP", "VLLM_API_KEY", "HF_HOME"])
def test_variables_that_the_operator_sets_are_refused(name: str) -> None:
    """Field case C56."""
    assert problems({"engine": {"env": env(name, value="/x")}})[0].path == f"spec.engine.env[{name}]"
    template = {"spec": {"containers": [{"name": "engine", "env": env(name, value="/x")}]}}
    assert problems({"decode": {"template": template}})[0].path.endswith(f"env[{name}]")


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "HF_TOKEN", "value": TOKEN},
        {"name": "HUGGING_FACE_HUB_TOKEN", "value": "x"},
        {"name": "ANYTHING", "value": f"Bearer {TOKEN}"},
        {"name": "AWS_SECRET_ACCESS_KEY", "value": "wJalrXUtnFEMI"},
        {"name": "MC_REDIS_PASSWORD", "value": "hunter2"},
    ],
)
def test_secrets_in_plain_text_are_refused_and_not_repeated(entry: dict[str, str]) -> None:
    """Field case C92."""
    found = only_problem({"engine": {"env": [entry]}})
    assert entry["value"] not in str(found).replace(entry["name"], "")
    assert "secretKeyRef" in found.remedy or "tokenSecretRef" in found.remedy


def test_secrets_by_reference_pass() -> None:
    """Field case C92."""
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    desired = build(make({"engine": {"env": env("AWS_SECRET_ACCESS_KEY", valueFrom=reference)}}))
    assert env_of(engine(desired))["AWS_SECRET_ACCESS_KEY"] == reference
    build(make({"engine": {"env": env("HF_TOKEN", valueFrom=reference)}}))
    build(make({"engine": {"env": [{"name": "MY_MAX_TOKEN", "value": "16"}, {"name": "USE_TOKEN", "value": "true"}]}}))


def test_a_token_in_args_is_refused() -> None:
    """Field case C92."""
    found = problems({"engine": {"args": ["--hf-overrides", TOKEN]}})
    assert found
    assert all(TOKEN not in str(p) for p in found)


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"name": "A", "valueFrom": {"secret": {}}}, "valueFrom"),
        ({"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}, "one of them"),
        ({"name": "A=B", "value": "1"}, "name"),
    ],
)
def test_entries_that_the_api_server_would_refuse_are_found_before(entry: dict[str, Any], word: str) -> None:
    assert word in str(only_problem({"engine": {"env": [entry]}}))


@pytest.mark.parametrize(
    ("role", "kv_role"), [("prefill", "kv_consumer"), ("decode", "kv_producer"), ("decode", "both")]
)
def test_roles_that_cannot_do_their_part_are_refused(role: str, kv_role: str) -> None:
    """Field case C14."""
    found = only_problem({role: {"kvTransferConfig": {"kv_role": kv_role}}})
    assert found.path == f"spec.{role}.kvTransferConfig.kv_role"


def test_overrides_reach_vllm_as_they_were_written() -> None:
    """Field case C14: numbers, strings, nested objects and quotes."""
    import json

    override = {
        "kv_connector": "MooncakeConnectorV1",
        "kv_port": "20001",
        "kv_rank": 0,
        "kv_buffer_size": 5e9,
        "engine_id": "0",
        "kv_connector_module_path": "x.y",
        "kv_connector_extra_config": {"prefill": {"tp_size": 8}, "note": 'it\'s "quoted" $(HOME)'},
    }
    desired = build(make({"prefill": {"kvTransferConfig": override}}))
    args = engine(desired)["args"]
    written = json.loads(args[args.index("--kv-transfer-config") + 1])
    assert {key: written[key] for key in override} == override
    assert type(written["kv_rank"]) is int
    assert sum("another connector than ours" in hint for hint in desired.hints) == 1
    assert "mooncake_store_connector" not in str(args)


def test_our_connector_keeps_its_settings_under_an_override() -> None:
    import json

    override = {"kv_connector_extra_config": {"lookup_async": True}, "kv_load_failure_policy": "fail"}
    desired = build(make({"decode": {"kvTransferConfig": override}}))
    written = json.loads(flag(engine(desired, "decode"), "--kv-transfer-config") or "")
    assert written["kv_connector_extra_config"] == {"cache_prefix": desired.kv_revision, "lookup_async": True}
    assert written["kv_load_failure_policy"] == "fail"


KEDA = {"triggers": [{"type": "cron"}]}


@pytest.mark.parametrize(
    ("without", "scaling", "path", "remedy"),
    [
        (replace(FACTS, has_scaler=False), {}, "spec.decode.scaling", "crds/"),
        (replace(FACTS, has_scaled_object=False), {"keda": KEDA}, "spec.decode.scaling.keda", "install KEDA"),
    ],
)
def test_scaling_by_what_the_cluster_lacks_is_refused_and_nothing_else(
    without: ClusterFacts, scaling: dict[str, Any], path: str, remedy: str
) -> None:
    found = only_problem({"decode": {"scaling": scaling}}, facts=without)
    assert found.path == path
    assert remedy in found.remedy
    build(make({"decode": {"scaling": scaling}}))
    build(make({"decode": {"replicas": 2}}), facts=without)


@pytest.mark.parametrize("field", ["scaleTargetRef", "minReplicaCount", "maxReplicaCount"])
def test_fields_of_a_scaled_object_that_the_operator_writes_are_refused(field: str) -> None:
    found = only_problem({"prefill": {"scaling": {"keda": {**KEDA, field: 1}}}})
    assert found.path == f"spec.prefill.scaling.keda.{field}"


def test_an_autoscaler_to_zero_needs_a_metric_that_is_there_without_pods() -> None:
    by_cpu, by_pods, by_queue = ({"type": kind} for kind in ("Resource", "Pods", "External"))

    def scaling(least: int, *metrics: dict[str, str]) -> dict[str, Any]:
        return {"decode": {"scaling": {"minReplicas": least, "maxReplicas": 2, "metrics": list(metrics)}}}

    for metrics in ([by_cpu], [by_pods, by_cpu]):
        found = only_problem(scaling(0, *metrics))
        assert found.path == "spec.decode.scaling.minReplicas"
        assert "External or Object" in found.remedy
        build(make(scaling(1, *metrics)))
    build(make(scaling(0, by_cpu, by_queue)))
    build(make({"decode": {"scaling": {"minReplicas": 0}}}))


@pytest.mark.parametrize("kinds", [["cpu"], ["memory", "cpu"]])
def test_keda_to_zero_needs_a_trigger_that_can_be_idle(kinds: list[str]) -> None:
    def scaling(least: int, kinds: list[str]) -> dict[str, Any]:
        keda = {"triggers": [{"type": kind} for kind in kinds]}
        return {"decode": {"scaling": {"minReplicas": least, "keda": keda}}}

    found = only_problem(scaling(0, kinds))
    assert found.path == "spec.decode.scaling.minReplicas"
    build(make(scaling(1, kinds)))
    build(make(scaling(0, [*kinds, "cron"])))


def test_a_ratio_that_holds_nobody_is_a_hint() -> None:
    ratio = {"scaling": {"ratio": {"max": 1}}}
    assert any("spec.scaling.ratio" in hint for hint in build(make(ratio)).hints)
    assert not any("spec.scaling.ratio" in hint for hint in build(make({**ratio, "decode": {"scaling": {}}})).hints)


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ({"command": ["sh", "-c", "vllm serve --kv-transfer-config '{}'"]}, "command"),
        ({"args": ["--port", "8000"]}, "args"),
        ({"image": "mine:1"}, "image"),
        ({"$patch": "delete"}, "engine"),
        ({"ports": [{"name": "x"}]}, "ports"),
    ],
)
def test_a_template_cannot_take_over_the_engine(container: dict[str, Any], field: str) -> None:
    """Field case C16."""
    found = only_problem({"prefill": {"template": {"spec": {"containers": [{"name": "engine", **container}]}}}})
    assert found.path.startswith("spec.prefill.template.spec.containers")
    assert field in found.path


@pytest.mark.parametrize(
    "value",
    [
        '--enforce-eager --kv-transfer-config "{\\"kv_connector\\":\\"NixlConnector\\"}"',
        '--kv-transfer-config={"kv_connector":"NixlConnector"}',
        "--kv_transfer_config.kv_connector NixlConnector",
    ],
)
def test_a_transfer_config_in_a_variable_is_refused(value: str) -> None:
    """Field case C16: other images read flags from a variable, and `$(NAME)` in args would bring a second config."""
    for part in ("engine", "prefill"):
        found = only_problem({part: {"env": env("VLLM_ADDITIONAL_ARGS", value=value)}})
        assert found.path == f"spec.{part}.env[VLLM_ADDITIONAL_ARGS]"
        assert "kvTransferConfig" in found.remedy
    template = {"spec": {"containers": [{"name": "engine", "env": env("FLAGS", value=value)}]}}
    assert only_problem({"decode": {"template": template}}).path.endswith("env[FLAGS]")


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": {"labels": {"inference.disagg.io/role": "decode"}}},
        {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}},
        {"metadata": {"labels": {"n": 1}}},
        {"metadata": {"annotations": {"inference.disagg.io/config-hash": "x"}}},
        {"spec": {"hostNetwork": True}},
        {"spec": {"enableServiceLinks": True}},
        {"spec": {"restartPolicy": "Never"}},
        {"spec": {"terminationGracePeriodSeconds": 5}},
        {"spec": {"containers": None}},
        {"spec": {"containers": {"engine": {}}}},
        {"spec": {"containers": [{"image": "nameless:1"}]}},
        {"spec": {"containers": [{"name": "sidecar"}]}},
        {"spec": {"containers": [{"name": "sidecar", "image": "s:1", "ports": [{"containerPort": 8000}]}]}},
        {"spec": {"volumes": [{"name": "config", "emptyDir": {}}]}},
        {"spec": []},
        {"template": {}},
    ],
)
def test_templates_that_would_break_the_pod_are_refused(template: dict[str, Any]) -> None:
    """Field cases C16 and C49."""
    found = only_problem({"decode": {"template": template}})
    assert found.path.startswith("spec.decode.template")


def test_templates_of_router_and_master_are_judged_too() -> None:
    args = {"spec": {"containers": [{"name": "admin-front", "command": ["sh"]}]}}
    assert "admin port" in only_problem({"kvStore": {"master": {"template": args}}}).remedy
    account = {"spec": {"serviceAccountName": "admin"}}
    assert only_problem({"router": {"template": account}}).path == "spec.router.template.spec.serviceAccountName"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"prefill": {"resources": {"limits": {"memory": "64GiB"}}}}, "spec.prefill.resources.limits.memory"),
        ({"prefill": {"resources": {"requests": {"cpu": "-1"}}}}, "spec.prefill.resources.requests.cpu"),
        (
            {"decode": {"resources": {"requests": {"cpu": 4}, "limits": {"cpu": "2"}}}},
            "spec.decode.resources.requests.cpu",
        ),
        (
            {"decode": {"resources": {"requests": {"nvidia.com/gpu": 1}}}},
            "spec.decode.resources.requests.nvidia.com/gpu",
        ),
        ({"engine": {"sharedMemorySize": "lots"}}, "spec.engine.sharedMemorySize"),
        ({"model": {"uri": "pvc://Models/x"}}, "spec.model.uri"),
        ({"model": {"uri": "hf://o/m", "name": "--port=1"}}, "spec.model.name"),
        ({"model": {"uri": "pvc://models/../x"}}, "spec.model.uri"),
        ({"model": {"uri": "s3://bucket/x"}}, "spec.model.uri"),
        ({"apiKeySecretRef": {"name": "My_Secret", "key": "k"}}, "spec.apiKeySecretRef.name"),
        ({"apiKeySecretRef": {"name": "s", "key": "a b"}}, "spec.apiKeySecretRef.key"),
    ],
)
def test_values_that_the_api_server_would_refuse_later_are_found_before(spec: dict[str, Any], path: str) -> None:
    assert only_problem(spec).path == path


WITHOUT_CPU = replace(PINS, images=replace(PINS.images, engine_cpu=""))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "not given for prefill and decode, and this operator has no engine image for device cpu"),
        ({"prefill": {"image": "mine:1"}}, "not given for decode, and"),
        ({"decode": {"image": "mine:1"}}, "not given for prefill, and"),
    ],
    ids=["both", "decode", "prefill"],
)
def test_engines_without_an_image_are_refused(spec: dict[str, Any], told: str) -> None:
    found = only_problem({"engine": {"device": "cpu"}, **spec}, pins=WITHOUT_CPU)
    assert found.path == "spec.engine.image"
    assert told in found.found
    assert "--engine-image-cpu" in found.remedy
    assert "images.engine.cpu" in found.remedy


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"device": "cuda"}},
        {"engine": {"device": "cpu", "image": "mine:1"}},
        {"engine": {"device": "cpu"}, "prefill": {"image": "mine:1"}, "decode": {"image": "mine:2"}},
    ],
    ids=["other-device", "shared", "roles"],
)
def test_an_operator_without_one_devices_image_serves_whom_it_can(spec: dict[str, Any]) -> None:
    build(make(spec), pins=WITHOUT_CPU)


def test_a_pasted_secret_is_not_repeated() -> None:
    """Field case C92: people paste the token where its Secret's name belongs."""
    found = only_problem({"model": {"uri": "hf://o/m", "tokenSecretRef": {"name": TOKEN, "key": "k"}}})
    assert TOKEN not in str(found)


def test_all_problems_are_told_at_once() -> None:
    spec = {
        "kvStore": {"segmentSize": "abc"},
        "prefill": {"scaling": {"keda": {"scaleTargetRef": {}}}, "env": env("POD_IP", value="1")},
        "decode": {"args": ["--port", "1"]},
    }
    paths = [p.path for p in find_problems(make(spec), PINS, FACTS)]
    assert paths == [
        "spec.kvStore.segmentSize",
        "spec.decode.args",
        "spec.prefill.env[POD_IP]",
        "spec.prefill.scaling.keda.scaleTargetRef",
    ]


def test_a_problem_reads_as_one_sentence() -> None:
    assert str(Problem("spec.a", "found b", "write c")) == "spec.a: found b; write c"
