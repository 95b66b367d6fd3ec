"""Generated files: fresh in the repository, and told when they are not."""

import shutil
from pathlib import Path

import pytest
import yaml
from disagg_operator.api.crd import build_crd, build_scaler_crd
from generate import __main__ as command
from generate import api_reference, chart, crd

ROOT = Path(__file__).parents[3]


def test_the_repositorys_generated_files_are_fresh() -> None:
    assert [str(path.relative_to(ROOT)) for path in command.stale_files(ROOT)] == [], "run `make generate`"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is generated and of what it is generated from."""
    for folder in ("crds", "docs/reference", str(chart.CHART)):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["generate", *arguments])
    return command.main()


def test_a_stale_file_is_told_and_left_alone(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copy / "docs" / "reference" / "api.md"
    page.write_text("old")
    assert run(monkeypatch, "--check") == 1
    assert "docs/reference/api.md" in capsys.readouterr().err
    assert page.read_text() == "old"


def test_writing_makes_all_fresh_and_touches_nothing_else(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in command.stale_files(copy) or crd.outputs(copy):
        path.unlink()
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    assert run(monkeypatch) == 0
    assert run(monkeypatch, "--check") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_crd_files_read_back_as_they_were_built() -> None:
    texts = list(crd.outputs(ROOT).values())
    assert [yaml.safe_load(text) for text in texts] == [build_crd(), build_scaler_crd()]
    assert not any("&id" in text for text in texts), "anchors cannot be reviewed"


def test_the_reference_page_has_every_field() -> None:
    page = api_reference.build_page(build_crd(), build_scaler_crd())
    spec = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name, part in spec["properties"].items():
        assert f"| `{name}` |" in page
        for inner in part.get("properties", {}):
            assert f"| `{inner}` |" in page
    anchors = {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    links = {line.split("](#")[1].split(")")[0] for line in page.splitlines() if "](#" in line}
    assert links <= {"".join(c for c in anchor if c.isalnum() or c == "-") for anchor in anchors}


def test_types_that_stand_in_several_places_are_told_once() -> None:
    page = api_reference.build_page(build_crd(), build_scaler_crd())
    assert page.count("## spec.prefill\n") == 1
    assert "## spec.decode\n" not in page
    assert "The same for `spec.decode`." in page
