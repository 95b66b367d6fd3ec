"""What every image of ours says of itself."""

from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[2] / "images"
# The one that is left out holds a model of somebody else.
OURS = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile") if path.parent.name != "model-smollm2")


@pytest.mark.parametrize("image", OURS)
def test_an_image_has_its_title_and_its_licence(image: str) -> None:
    lines = (IMAGES / image / "Dockerfile").read_text().splitlines()
    labels = dict(word.split("=", 1) for line in lines if line.startswith("LABEL ") for word in line.split()[1:])
    assert labels["org.opencontainers.image.title"] == f"disagg-{image}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
