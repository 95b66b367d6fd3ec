"""The health check for Argo CD, held against its test data, which are in the form of Argo CD's own repository.

The data are statuses that the operator wrote on a real API server; tests/api/operator_runs/gitops holds them to that.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.gitops.lua import SCRIPT, Health, ask_health, lua_literal

FOLDER = SCRIPT.parent
Json = dict[str, Any]
CASES: list[Json] = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]
GENERATION = {"generation": 2}


def condition(kind: str, status: str = "True") -> Json:
    return {"type": kind, "status": status, "message": f"{kind} is {status}"}


def seen(*conditions: Json, **status: Any) -> Json:
    return {"metadata": GENERATION, "status": {"observedGeneration": 2, "conditions": list(conditions), **status}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["inputPath"]).stem)
def test_the_check_says_of_its_data_what_is_written_there(case: Json) -> None:
    body = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
    assert ask_health(body) == Health(**case["healthStatus"])


def test_every_file_has_a_case_and_every_health_that_the_check_knows_has_a_file() -> None:
    assert {case["inputPath"] for case in CASES} == {f"testdata/{path.name}" for path in FOLDER.glob("testdata/*")}
    assert {case["healthStatus"]["status"] for case in CASES} == {"Healthy", "Progressing", "Degraded"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"metadata": GENERATION}, "Progressing"),
        ({"metadata": GENERATION, "status": {}}, "Progressing"),
        ({"metadata": GENERATION, "status": {"observedGeneration": -1}}, "Progressing"),
        (seen(), "Progressing"),
        (seen(conditions=None), "Progressing"),
        (seen(condition("Available")), "Progressing"),
        (seen(condition("Ready", "Unknown")), "Progressing"),
        (seen(condition("Ready"), observedGeneration=1), "Progressing"),
        (seen(condition("Ready", "False"), condition("Stalled"), observedGeneration=1), "Progressing"),
        (seen(condition("Ready"), condition("KVSharing", "False"), condition("ScalingLimited")), "Healthy"),
        (seen(condition("Ready"), condition("Available", "False")), "Healthy"),
        (seen(condition("Ready", "False"), condition("Degraded")), "Progressing"),
        (seen(condition("Ready", "False"), condition("Stalled", "False")), "Progressing"),
        (seen(condition("Ready", "False"), condition("Degraded"), condition("Stalled")), "Degraded"),
    ],
)
def test_what_the_operator_never_writes_is_judged_too(body: Json, expected: str) -> None:
    told = ask_health(body)
    assert (told.status, bool(told.message)) == (expected, True)


def test_a_failure_is_told_while_the_operator_goes_on_trying() -> None:
    body = seen(condition("Ready", "False"), condition("Degraded"))
    assert ask_health(body) == Health("Progressing", "Degraded is True")


def test_the_interpreter_offers_no_more_than_argo_cds(tmp_path: Path) -> None:
    for line in ('return string.format("x")', 'return ("x"):upper()', "os.exit(0)", 'io.write("x")'):
        script = tmp_path / "health.lua"
        script.write_text(line)
        with pytest.raises(subprocess.CalledProcessError):
            ask_health({}, script)


def test_values_come_over_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "health.lua"
    script.write_text(
        'return {status = obj.a[2]["b c"], message = tostring(obj.n) .. tostring(obj.t) .. tostring(obj.z)}'
    )
    body = {"a": [1, {"b c": 'q"\\\n]]é'}], "n": -1, "t": True, "z": None}
    told = ask_health(body, script)
    assert f"{told.status}\n{told.message}" == 'q"\\\n]]é\n-1truenil'
    assert lua_literal([None]) == "{nil}"
