"""Files of clouds of any origin: each fault is one line, and sizes are checked before anything is read."""

from __future__ import annotations

import contextlib
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drainsinkhorn.cli.clouds import READERS, Room, read_cloud
from drainsinkhorn.model.errors import BackendUnavailable, FileError
from tests.conftest import needs

rng = np.random.default_rng(0)
HEAD = "VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH {n}\nHEIGHT 1\nPOINTS {n}\nDATA {data}\n"


def npy(shape: str, dtype: str = "<f8", body: bytes = b"") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (117 - len(head)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body


def refused(path: Path, content: bytes | str, limit: int | None = None) -> str:
    """The message with which a file is refused, after little memory was taken."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    tracemalloc.start()
    try:
        with pytest.raises(FileError) as caught:
            read_cloud(path, Room(limit))
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff", "cannot be read"),
        (npy("(10000000000000, 3)"), "declares float64 of shape"),
        (npy("(-1, 3)"), "declares"),
        (npy("(2, 2)", "|O"), "pickle, which is never read"),
        (npy("(2,)", body=b"0" * 16), "a cloud is (n, d)"),
        (npy("(2, 2)", "<c16", b"0" * 64), "points are numbers"),
        (npy("(0, 3)"), "has no points"),
        (npy("__import__('os').system('true')"), "cannot be read"),
        (pickle.dumps([1, 2]), "cannot be read"),
    ],
)
def test_npy(content: bytes, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path / "x.npy", content)


def test_an_array_without_numbers_is_not_a_million_clouds(tmp_path: Path) -> None:
    assert "--read-limit" in refused(tmp_path / "x.npy", npy("(1000000000000, 0, 3)"), 2**30)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no points"),
        ("a,b\n", "has no points"),
        ("1,2\n3,x\n", "could not convert string 'x'"),
        ("1,2\n3\n", "number of columns"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("1," * 2**23, "first line is longer"),
    ],
)
def test_csv(content: bytes | str, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path / "x.csv", content)


def test_kitti(tmp_path: Path) -> None:
    assert "no records of four float32" in refused(tmp_path / "x.bin", b"0" * 17)
    assert "has no points" in refused(tmp_path / "x.bin", b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"FIELDS " + b"x" * 10**6, "no header"),
        ("VERSION 0.7\n" * 100, "no header"),
        (HEAD.format(n=10**15, data="binary"), "declares 1,000,000,000,000,000 points, but it has 0 bytes"),
        (HEAD.format(n=10**15, data="ascii") + "1 2 3\n", "declares"),
        (HEAD.format(n=2, data="ascii") + "1 2 3\n", "declares 2 points, but it has 1"),
        (HEAD.format(n=1, data="ascii") + "1 2 x\n", "could not convert"),
        (HEAD.format(n=1, data="binary_compressed") + "0", "binary_compressed"),
        (HEAD.format(n="many", data="ascii"), "no valid POINTS"),
        (HEAD.format(n=-1, data="ascii"), "no valid POINTS"),
        (HEAD.replace("x y z", "x y w").format(n=1, data="ascii"), "x, y and z are needed"),
        (HEAD.replace("F F F", "F F").format(n=1, data="ascii"), "differ in length"),
        (HEAD.replace("4 4 4", "4 4 3").format(n=1, data="ascii"), "size 3"),
        (HEAD.replace("1 1 1", "1 1 9999999999").format(n=1, data="ascii"), "count 9999999999"),
        (HEAD.format(n=0, data="binary"), "has no points"),
    ],
)
def test_pcd(content: bytes | str, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path / "x.pcd", content)


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("pyarrow")
    pd = needs("pandas")
    assert "cannot be read" in refused(tmp_path / "x.parquet", b"PAR1" + bytes(100) + b"PAR1")
    pd.DataFrame({"x": [1.0], "name": ["a"]}).to_parquet(tmp_path / "text.parquet")
    with pytest.raises(FileError, match="column 'name' holds"):
        read_cloud(tmp_path / "text.parquet", Room())
    # A constant column of many rows is a small file.
    pd.DataFrame({"x": np.zeros(10**6)}).to_parquet(tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 10**5
    with pytest.raises(FileError, match="--read-limit"):
        read_cloud(tmp_path / "bomb.parquet", Room(10**6))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(BackendUnavailable, match=r"drainsinkhorn\[parquet\]"):
        read_cloud(tmp_path / "x.parquet", Room())


def test_files_share_one_limit(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((100, 3)))
    room = Room(2 * 2400 + 100)
    for _ in range(2):
        read_cloud(tmp_path / "x.npy", room)
    with pytest.raises(FileError, match=r"x\.npy would take .* and with the files before it more than the limit"):
        read_cloud(tmp_path / "x.npy", room)


@pytest.mark.parametrize("suffix", READERS)
def test_what_is_no_file(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    os.mkfifo(tmp_path / f"pipe{suffix}")
    for name, message in (("folder", "no regular file"), ("pipe", "no regular file"), ("absent", "does not exist")):
        with pytest.raises(FileError, match=message):
            read_cloud(tmp_path / f"{name}{suffix}", Room())


@pytest.mark.parametrize("suffix", [suffix for suffix in READERS if suffix != ".parquet"])
def test_any_damage_is_one_error(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    points: Any = rng.normal(size=(6, 3)).astype("<f4")
    whole = {
        ".npy": npy("(6, 3)", "<f4", points.tobytes()),
        ".csv": "\n".join(",".join(map(repr, row)) for row in points.tolist()).encode(),
        ".bin": np.c_[points, points[:, 0]].astype("<f4").tobytes(),
        ".pcd": HEAD.format(n=6, data="binary").encode() + points.tobytes(),
    }[suffix]
    path.write_bytes(whole)
    assert np.allclose(read_cloud(path, Room()), points)
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] = rng.integers(256)
        path.write_bytes(bytes(damaged[: rng.integers(1, len(whole) + 1)]))
        # Any other error would fail this test.
        with contextlib.suppress(FileError):
            read_cloud(path, Room())
