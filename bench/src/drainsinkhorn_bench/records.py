"""Raw records: one JSON object a line, appended, never edited.

Every record has `kind`, `campaign`, `unit`, `arm` (both null where they do not apply), `host` and `attempt`.

- `host`: `facts`. Written when a run begins on a machine.
- `gate`: `passed`, `tol`, `residual` (largest audited), `problems`, `audited`, `depths`, `arithmetic`, `fingerprint`,
  `note`. One per unit and arm, before any timing. Where it did not pass, unit and arm are void and are not timed. A
  second one, with `passed` false, follows where a timed run contradicts the first.
- `timing`: `repeat`, `position`, `seconds` {"e1", "e2", "e3"}, `reconstructed`, `slots`, `active_slots`, `padding`,
  `widths` [[cycle, width], ...], `joules`, `peak_bytes`, `extrapolated`, `note`.
- `fact`: `name`, `value`; and `study` where one found it.
- `done`: closes an attempt at a unit or a study; `seconds` it took.

An attempt that was interrupted has no `done`: its records stay in the file, and `read` leaves them out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drainsinkhorn.model.errors import FileError

Record = dict[str, Any]
MANIFEST, RAW = "manifest.json", "raw.jsonl"
FORMAT = 1
"""Version of both files, stated in the manifest. A manifest that does not state its format has this one."""


def line(record: Record) -> str:
    """A record as one line of text; NaN and infinity have no place in it."""
    return json.dumps(record, allow_nan=False, sort_keys=True, separators=(",", ":")) + "\n"


class Log:
    """The raw file of a campaign, open for appending. What `append` was given is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        keep = len(whole(path.read_bytes())) if path.exists() else 0
        self._file = path.open("ab")
        if self._file.tell() > keep:
            # A torn last line is unfinished writing; a line break ends it, so that it spoils no other.
            self._file.write(b"\n")

    def append(self, records: Iterable[Record]) -> None:
        """Append records, together."""
        self._file.write("".join(map(line, records)).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def whole(raw: bytes) -> bytes:
    """The part of a raw file that ends with a line break."""
    return raw[: raw.rfind(b"\n") + 1]


@dataclass(frozen=True, slots=True)
class Run:
    """A campaign as its files tell it.

    Attributes:
        manifest: The frozen description.
        records: Those of closed attempts, in the order of the file; without `host` and `done`.
        hosts: Facts of every machine, by its hash.
        closed: Names of the units and studies that are done: ("unit", name) or ("study", name), with their seconds.
        abandoned: Records of interrupted attempts, left out.
        torn: Lines that were not whole, left out.
    """

    manifest: dict[str, Any]
    records: list[Record]
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    closed: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    abandoned: int = 0
    torn: int = 0

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.manifest["campaign"]

    def kind(self, kind: str) -> list[Record]:
        """Records of a kind."""
        return [record for record in self.records if record["kind"] == kind]

    def facts(self, name: str) -> list[Record]:
        """Fact records of a name."""
        return [record for record in self.kind("fact") if record["name"] == name]


def parse(raw: bytes) -> tuple[list[Record], int]:
    """The records of a raw file, and how many lines of it were torn."""
    records, torn = list[Record](), 0
    for text in raw.split(b"\n"):
        if not text:
            continue
        try:
            record = json.loads(text)
        except ValueError:
            torn += 1
            continue
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
        else:
            torn += 1
    return records, torn


def _key(record: Record) -> tuple[str, str]:
    """What an attempt is at: a unit or a study."""
    return ("study", record["study"]) if record.get("study") else ("unit", str(record["unit"]))


def settle(manifest: dict[str, Any], records: Sequence[Record], torn: int = 0) -> Run:
    """Keep the closed attempts."""
    closed = {(*_key(r), r["attempt"]): r["seconds"] for r in records if r["kind"] == "done"}
    kept = list[Record]()
    abandoned = 0
    for record in records:
        if record["kind"] in ("host", "done"):
            continue
        if (*_key(record), record["attempt"]) in closed:
            kept.append(record)
        else:
            abandoned += 1
    hosts = {r["host"]: r["facts"] for r in records if r["kind"] == "host"}
    done = {(kind, name): seconds for (kind, name, _), seconds in closed.items()}
    return Run(manifest, kept, hosts, done, abandoned, torn)


def read(folder: Path) -> Run:
    """Read the folder of one campaign."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / MANIFEST} cannot be read ({error}); drain bench run writes it") from error
    version = manifest.get("format", FORMAT) if isinstance(manifest, dict) else None
    if version != FORMAT:
        raise FileError(
            f"{folder / MANIFEST} has format {version!r}, and this version of drainsinkhorn reads format {FORMAT}; "
            "report it with the version that wrote it"
        )
    raw = folder / RAW
    records, torn = parse(raw.read_bytes()) if raw.exists() else ([], 0)
    return settle(manifest, records, torn)


def read_all(*outs: Path) -> list[Run]:
    """Read every campaign under some run folders, by name; a name that several have is merged."""
    found: dict[str, list[Run]] = {}
    for out in outs:
        folders = sorted(path.parent for path in out.glob(f"*/{MANIFEST}")) if out.is_dir() else []
        if not folders:
            raise FileError(f"{out} holds no campaign; drain bench run --out {out} makes one")
        for folder in folders:
            found.setdefault(folder.name, []).append(read(folder))
    return [merge(runs) for _, runs in sorted(found.items())]


OWN = ("machine", "versions", "environment", "clock", "hash")
"""Parts of a manifest that may differ between machines whose records are summed up together."""


def merge(runs: Sequence[Run]) -> Run:
    """One run from those of several machines: the same campaign, source, inputs and options on each."""
    first = runs[0]
    for run in runs[1:]:
        differ = [k for k in first.manifest if k not in OWN and first.manifest[k] != run.manifest.get(k)]
        if differ:
            raise FileError(
                f"two folders hold different campaigns under the name {first.name} ({', '.join(differ)} differ); "
                "report them apart"
            )
    return Run(
        first.manifest,
        [record for run in runs for record in run.records],
        {host: facts for run in runs for host, facts in run.hosts.items()},
        {what: seconds for run in runs for what, seconds in run.closed.items()},
        sum(run.abandoned for run in runs),
        sum(run.torn for run in runs),
    )
