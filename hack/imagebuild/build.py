"""Builds what is not built yet, in order: the Debian base, the images on it, the model."""

import tempfile
from pathlib import Path

from imagebuild import buildah, model
from imagebuild.catalog import BASE, IMAGES, MODEL, ROOT, Image, base_tag, content_digest, image_tag


def tags() -> dict[str, str]:
    """The tag of every image, by its inputs as they are now."""
    known = {BASE: base_tag()}
    for image in IMAGES:
        known[image.name] = image_tag(image, known[image.base])
    known[MODEL] = content_digest([ROOT / "images" / MODEL, ROOT / "requirements" / "model.txt"], model.RECIPE)
    return known


def build_all(wanted: list[str]) -> None:
    """Build the wanted images and what they stand on. Says which were there already."""
    known = tags()
    for image in IMAGES:
        if image.name in wanted:
            _build_with_bases(image, known)
    if MODEL in wanted:
        _build_model(known)


def _build_with_bases(image: Image, known: dict[str, str]) -> None:
    if buildah.has_image(image.name, known[image.name]):
        print(f"  {image.name}: there ({known[image.name]})", flush=True)
        return
    if image.base == BASE:
        build_base(known[BASE])
    else:
        _build_with_bases(next(other for other in IMAGES if other.name == image.base), known)
    print(f"  {image.name}: building", flush=True)
    arguments = {"BASE_IMAGE": f"{buildah.LOCAL}/{image.base}:{known[image.base]}", **image.arguments}
    buildah.build(ROOT / image.folder / "Dockerfile", ROOT, image.name, known[image.name], arguments)
    _check_unchanged(image, known)


def _check_unchanged(image: Image, known: dict[str, str]) -> None:
    """Keep no image under the tag of other inputs than it was made from."""
    if image_tag(image, known[image.base]) != known[image.name]:
        buildah.remove(image.name, known[image.name])
        raise buildah.BuildError(f"{image.name}: its inputs changed while it was built; build it again")


def build_base(tag: str) -> None:
    """The slim Debian base, by mmdebstrap: an image without any public registry."""
    if buildah.has_image(BASE, tag):
        return
    print("  base: building", flush=True)
    lines = (ROOT / "images" / "base" / "packages.txt").read_text().splitlines()
    packages = ",".join(line for line in lines if line and not line.startswith("#"))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base.tar"
        command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", "--mode=root", "bookworm", str(tree)]
        buildah.run(*command, what="mmdebstrap")
        (Path(folder) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\nENV LANG=C.UTF-8\n")
        buildah.build(Path(folder) / "Dockerfile", Path(folder), BASE, tag, {})


def make_model() -> Path:
    """Make the test model if it is not there whole, and first the image to make it in. Returns its folder."""
    folder = model.model_dir()
    if model.is_whole(folder):
        return folder
    known = tags()
    builder = next(image for image in IMAGES if image.name == "engine-cpu-base")
    _build_with_bases(builder, known)
    return model.make_model(f"{buildah.LOCAL}/{builder.name}:{known[builder.name]}")


def _build_model(known: dict[str, str]) -> None:
    folder = make_model()
    if buildah.has_image(MODEL, known[MODEL]):
        print(f"  {MODEL}: there ({known[MODEL]})", flush=True)
        return
    print(f"  {MODEL}: building", flush=True)
    buildah.build(ROOT / "images" / MODEL / "Dockerfile", folder, MODEL, known[MODEL], {})


def prune(*, everything: bool) -> None:
    """Remove images whose inputs are no longer those of this checkout, or all of them; then layers that none has."""
    known = tags()
    for name, tag in buildah.images():
        if everything or known.get(name, tag) != tag:
            print(f"  removing {name}:{tag}", flush=True)
            buildah.remove(name, tag)
    buildah.remove_loose_layers()
