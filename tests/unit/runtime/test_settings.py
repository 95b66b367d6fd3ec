"""The command line, and what is refused there."""

import pytest
from disagg_operator.settings import read_settings

IMAGES = ["--store-image=store:1", "--router-image=router:1"]


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "operator-abc")
    monkeypatch.setenv("POD_NAMESPACE", "disagg-system")
    settings = read_settings([*IMAGES, "--engine-image-cpu=cpu:1"])
    assert (settings.identity, settings.namespace) == ("operator-abc", "disagg-system")
    assert settings.watch_namespaces == ()
    assert settings.resync_seconds == 600
    assert (settings.metrics_port, settings.health_port) == (8080, 8081)
    assert settings.pins.images.engine_cpu == "cpu:1"
    assert settings.pins.images.engine_cuda == ""
    assert not settings.leader_elect


def test_namespaces_may_be_repeated() -> None:
    assert read_settings([*IMAGES, "--watch-namespace=a", "--watch-namespace=b"]).watch_namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--resync-seconds=0", "write a number above 0"),
        ("--resync-seconds=soon", "found 'soon'"),
        ("--workers=-1", "found '-1'"),
        ("--workers=nan", "found 'nan'"),
        ("--log-format=xml", "invalid choice"),
        ("--no-such-flag", "unrecognized arguments"),
    ],
)
def test_what_cannot_be_is_refused(argument: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings([*IMAGES, argument])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_images_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings([])
    assert "--store-image" in capsys.readouterr().err
