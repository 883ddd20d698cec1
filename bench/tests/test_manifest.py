from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy

import drainsinkhorn
from drainsinkhorn.model.errors import FileError, OptionsError
from drainsinkhorn_bench import manifest as making
from drainsinkhorn_bench import meters, records
from drainsinkhorn_bench.manifest import differences, manifest
from drainsinkhorn_bench.plan import Campaign, Contrast, Place, Study, Unit

CPU = meters.place("cpu")


def hash_of(campaign: Campaign, place: Place = CPU) -> str:
    return manifest(campaign, place)["hash"]


def changed(part: str, at: int = 0, **values: Any) -> Campaign:
    """The toy campaign with one thing of one part changed."""
    plan = toy.campaign()
    parts = list(getattr(plan, part))
    parts[at] = replace(parts[at], **values)
    return replace(plan, **{part: parts})


CHANGES = {
    "arm option": changed("arms", 2, options={"mode": "compact", "every": 5}),
    "arm name": replace(toy.campaign(contrasts=()), arms=[toy.arm("static"), toy.arm("mask"), toy.arm("stream")]),
    "arm label": changed("arms", label="Other"),
    "arm slack": changed("arms", slack=1.01),
    "arm order": replace(toy.campaign(), arms=toy.campaign().arms[::-1]),
    "unit tol": changed("units", tol=1e-4),
    "unit option": changed("units", options={"eps": 0.2}),
    "unit arms": changed("units", arms=("mask", "compact")),
    "unit repeats": changed("units", repeats=3),
    "unit warmups": changed("units", warmups=1),
    "unit theory": changed("units", theory=1.0),
    "unit modal": changed("units", modal=1),
    "one unit less": replace(toy.campaign(), units=toy.campaign().units[:1]),
    "contrast": replace(
        toy.campaign(), contrasts=[Contrast(name="mask / compact", numerator="mask", denominator="compact")]
    ),
    "contrast units": changed("contrasts", units=("seed0",)),
    "study": replace(toy.campaign(), studies=[Study(name="find", run=toy.find, options={"cases": 84})]),
    "inputs": replace(toy.campaign(), inputs={"metropt3.npz": "ab"}),
    "options": replace(toy.campaign(), options={"data": "generated"}),
    "scale": replace(toy.campaign(), scale="full"),
    "seed": replace(toy.campaign(), seed=1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_could_change_a_result_changes_the_hash(what: str):
    assert hash_of(CHANGES[what]) != hash_of(toy.campaign())


def test_nothing_else_does():
    assert hash_of(toy.campaign()) == hash_of(toy.campaign())


def test_the_environment_that_libraries_read_is_part_of_it(monkeypatch: pytest.MonkeyPatch):
    before = hash_of(toy.campaign())
    monkeypatch.setenv("UNRELATED", "1")
    assert hash_of(toy.campaign()) == before
    for name in ("OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "strange")
            assert hash_of(toy.campaign()) != before, name


@pytest.mark.parametrize(
    ("owner", "name"),
    [(making, "versions"), (making, "source"), (meters, "machine"), (meters, "clock_facts")],
)
def test_source_versions_machine_and_clock_are_part_of_it(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str):
    before = hash_of(toy.campaign())
    told = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: {**told(*given), "more": 1})
    assert hash_of(toy.campaign()) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("drainsinkhorn/core/audit.py", "BACK_OFF = 0.95", "BACK_OFF = 0.96"),
        ("drainsinkhorn_bench/arms.py", "PEER_SECONDS = ", "PEER_SECONDS = 1 + "),
    ],
)
def test_an_edit_of_one_source_file_changes_the_tree_hash(tmp_path: Path, file: str, old: str, new: str):
    """With git and without: both packages are copied, hashed, edited, hashed."""
    script = "from drainsinkhorn_bench.manifest import source; import json; print(json.dumps(source()))"

    def told() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    for package in (Path(drainsinkhorn.__file__).parent, Path(making.__file__).parent):
        shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    before = told()
    assert before["commit"] is None
    edited = tmp_path / file
    text = edited.read_text()
    assert old in text
    edited.write_text(text.replace(old, new))
    assert told()["tree_hash"] != before["tree_hash"]


def test_differences_are_told_by_name():
    old = manifest(toy.campaign(), CPU)
    new = manifest(changed("units", 1, tol=1e-4), CPU)
    assert list(differences(old, new)) == ["units[seed1].tol: 0.001 became 0.0001"]


def test_a_manifest_is_written_once(tmp_path: Path):
    made = manifest(toy.campaign(), CPU)
    making.freeze(tmp_path / "toy", made)
    path = tmp_path / "toy" / "manifest.json"
    before = path.read_bytes()
    making.freeze(tmp_path / "toy", made)
    assert path.read_bytes() == before
    path.write_text("{")
    with pytest.raises(FileError, match="is no manifest"):
        making.freeze(tmp_path / "toy", made)


def test_an_edited_manifest_is_refused(tmp_path: Path):
    made = manifest(toy.campaign(), CPU)
    making.freeze(tmp_path, made)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"title": "A toy"', '"title": "Another"'))
    with pytest.raises(FileError, match="was edited"):
        making.freeze(tmp_path, made)


def test_an_unknown_format_is_refused(tmp_path: Path):
    made = manifest(toy.campaign(), CPU)
    path = tmp_path / "manifest.json"
    for told, known in ((1, True), (None, True), (0, False), (2, False), ("1", False)):
        body = {**made, "format": told} if told is not None else {k: v for k, v in made.items() if k != "format"}
        path.write_text(json.dumps(body))
        if known:
            assert records.read(tmp_path).manifest == body
        else:
            with pytest.raises(FileError, match=f"has format {told!r}, and this version of drainsinkhorn reads format"):
                records.read(tmp_path)
    path.write_text("[]")
    with pytest.raises(FileError, match="has format None"):
        records.read(tmp_path)


def test_options_must_be_json():
    with pytest.raises(OptionsError, match="no JSON"):
        manifest(toy.campaign(options={"tol": float("nan")}), CPU)
    with pytest.raises(OptionsError, match="no JSON"):
        manifest(toy.campaign(units=[Unit(name="u", load=toy.load, options={"x": object()})], contrasts=()), CPU)


def test_places():
    with pytest.raises(OptionsError, match="device must be"):
        meters.place("tpu")
    assert meters.host("cpu")["name"]
    assert "name" not in meters.machine("cpu")
