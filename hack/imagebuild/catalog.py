"""Which images there are, what each is made from, and the digest of its inputs. Pure but for reading files."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Image:
    """One image. `inputs` are files and folders, relative to the root, whose content decides its content."""

    name: str
    folder: str
    base: str
    inputs: tuple[str, ...]
    is_pushed: bool = True
    arguments: dict[str, str] = field(default_factory=dict)


BASE = "base"
MODEL = "model-smollm2"
IMAGES = (
    Image("engine-cpu-base", "images/engine-cpu-base", BASE, ("requirements/engine-cpu.txt",), is_pushed=False),
    Image(
        "engine-cpu",
        "images/engine",
        "engine-cpu-base",
        ("connector/src/mooncake_store_connector",),
        arguments={"MOONCAKE_PACKAGE": "mooncake-transfer-engine-non-cuda"},
    ),
    Image("store", "images/store", BASE, ("requirements/store.txt",)),
    Image(
        "operator",
        "images/operator",
        BASE,
        ("requirements/operator.txt", "operator/src/disagg_operator", "connector/src/mooncake_store_connector"),
    ),
    Image("router", "images/router", BASE, ("requirements/router.txt",)),
)
PUSHED = (*(image.name for image in IMAGES if image.is_pushed), MODEL)


def content_digest(paths: list[Path], *extra: str) -> str:
    """16 hexadecimal digits over names and contents of files and folders, and over other strings."""
    digest = hashlib.sha256()
    for text in extra:
        digest.update(text.encode() + b"\0")
    for path in paths:
        files = sorted(file for file in path.rglob("*") if is_source(file)) if path.is_dir() else [path]
        for file in files:
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def is_source(path: Path) -> bool:
    """Whether a file counts: not a folder, not what Python leaves behind, and not a page for readers."""
    return path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".pyc", ".md"}


def image_tag(image: Image, base_tag: str) -> str:
    """The tag that stands for an image's inputs: its Dockerfile's folder, its other inputs, and its base."""
    paths = [ROOT / image.folder, *(ROOT / name for name in image.inputs)]
    return content_digest(paths, base_tag, *sorted(f"{k}={v}" for k, v in image.arguments.items()))


def base_tag() -> str:
    """The tag of the Debian base."""
    return content_digest([ROOT / "images" / "base"])
