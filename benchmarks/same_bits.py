"""Solve the same problems with two states of the library and compare all that comes back, bit by bit.

    git worktree add ../old COMMIT
    python benchmarks/same_bits.py --old ../old/src
    python benchmarks/same_bits.py --old ../old/src --backends triton --device cuda --problems 2000
    python benchmarks/same_bits.py --old ../old/src --only "cpu streaming*journals"
    python benchmarks/same_bits.py --list

Compared are, for every problem, its status, message, depth, residual, arithmetic and the bytes of both potentials; for
every run its ledger and choices; values of consumers and divergences; texts of errors. Backends whose library may round
otherwise from process to process (ott, keops) are compared to rounding: potentials to 1e-5 of the largest, depths
within one stride. Events and warnings that differ are listed as information; they do not count as differences.

Each state runs in a process of its own for each backend. A process that has just compiled kernels may round otherwise
than one that loads them from disk, so other processes run all cases first.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from bit_records import count_problems, count_statuses, differences, record, record_events, without_schedule
from states import State, ask_both, serve

BACKENDS = ("reference", "cpu", "triton", "ott", "keops")
STRIDES = {"ott": 20, "keops": 1}
"""Backends that are compared to rounding, and how far depths may be apart."""
TEXT = re.compile(r"\S*(message|error): ")
"""A difference of texts."""
SHOWN = 12
"""Differences of one case that are printed."""


def answer_for(asked: argparse.Namespace) -> Any:
    """What a state answers: names and groups of its cases, or the record of one."""
    from bit_cases import cases

    backend = asked.backends[0]
    listed = cases(backend, asked.device, asked.problems, asked.seed)

    def answer(request: dict[str, Any]) -> Any:
        if "case" not in request:
            return {name: case.group for name, (case, _) in listed.items()}
        case, make_run = listed[request["case"]]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = make_run(Path(folder))
            kept: dict[str, Any] = {}
            try:
                kept["value"] = record(case.solve(run))
            except Exception as error:  # noqa: BLE001  what a case raises is its result
                kept["error"] = f"{type(error).__name__}: {record(str(error)).replace(folder, 'FOLDER')}"
            kept["events"] = record_events(run.events)
        own = [each for each in caught if type(each.message).__module__.startswith("drainsinkhorn")]
        kept["warnings"] = [f"{each.category.__name__}: {each.message}" for each in own]
        return kept

    return answer


class Comparison:
    """Two states of the library on the cases of one backend.

    Attributes:
        failed: Cases with differences.
    """

    def __init__(self, backend: str, asked: argparse.Namespace) -> None:
        self._backend, self._asked = backend, asked
        self._stride = STRIDES.get(backend, 0)
        self._environment = {"PYTHONWARNINGS": "ignore"}
        if backend == "triton" and asked.device != "cuda":
            self._environment["TRITON_INTERPRET"] = "1"
        self.failed = 0

    def run(self) -> None:
        """Compare all selected cases and print a line for each group."""
        begun = time.perf_counter()
        if self._backend == "cpu":
            with self._states() as states:
                for name in self._names(states):
                    ask_both(states, {"case": name})
        totals: dict[str, Counter[str]] = {}
        lines: list[str] = []
        with self._states() as states:
            for name, group in self._names(states).items():
                lines += self._compare(name, states, totals.setdefault(group, Counter()))
        for group, total in totals.items():
            print(summary(group, total))
            self.failed += total["different"]
        print("\n".join(lines) + ("\n" if lines else ""), end="")
        print(f"({self._backend}: {time.perf_counter() - begun:.0f} s)", flush=True)

    def _compare(self, name: str, states: list[State], total: Counter[str]) -> list[str]:
        """Run one case in both states, add it to the total of its group, and say what differs."""
        begun = time.perf_counter()
        # KeOps compiles into a folder that all processes share.
        old, new = ask_both(states, {"case": name}, together=self._backend != "keops")
        if self._asked.verbose:
            print(f"{time.perf_counter() - begun:8.1f} s  {name}", file=sys.stderr, flush=True)
        total["cases"] += 1
        total["raised"] += "error" in old
        total["problems"] += count_problems(old.get("value"))
        total.update(count_statuses(old.get("value")))
        compared = [{key: each[key] for key in ("value", "error") if key in each} for each in (old, new)]
        if self._asked.results:
            compared = [without_schedule(each) for each in compared]
        found = list(differences(*compared, self._stride))
        if self._asked.numbers:
            found = [line for line in found if not TEXT.match(line)]
        total["different"] += bool(found)
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        lines = [f"  DIFFERENT {name}: {line}" for line in [*found[:SHOWN], *more]]
        return lines + [f"  information {name}: {line}" for line in information(old, new)]

    @contextlib.contextmanager
    def _states(self) -> Any:
        asked = self._asked
        arguments = ["--serve", "--backends", self._backend, "--device", asked.device]
        arguments += ["--problems", str(asked.problems), "--seed", str(asked.seed)]
        states = [State(__file__, source, arguments, self._environment) for source in (asked.old, asked.new)]
        try:
            yield states
        finally:
            for state in states:
                state.close()

    def _names(self, states: list[State]) -> dict[str, str]:
        """Groups by name of the cases to run."""
        old, new = ask_both(states, {})
        if old != new:
            print(f"{self._backend}: cases differ: {sorted({*old} ^ {*new})}")
            self.failed += 1
        pattern = f"*{self._asked.only}*"
        return {name: group for name, group in old.items() if name in new and fnmatch.fnmatchcase(name, pattern)}


def summary(group: str, total: Counter[str]) -> str:
    """A group in one line: problems, statuses, and how many cases differ."""
    count = f"{total['problems']} problems" if total["problems"] else f"{total['cases']} cases"
    statuses = [name for name in total if name.isupper()]
    parts = ", ".join(f"{total[name]} {name}" for name in sorted(statuses))
    if total["raised"]:
        parts += f"{', ' if parts else ''}{total['raised']} cases raise"
    verdict = f"{total['different']} of {total['cases']} cases DIFFERENT" if total["different"] else "equal"
    return f"{group}: {count} {verdict}" + (f" ({parts})" if parts else "")


def information(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Differences of events, of classes that both states have, and of warnings."""
    lines = []
    counts = [each["events"]["counts"] for each in (old, new)]
    for name in sorted({*counts[0]} & {*counts[1]}):
        if counts[0][name] != counts[1][name]:
            lines.append(f"{counts[0][name]} events {name} -> {counts[1][name]}")
        elif old["events"]["fields"][name] != new["events"]["fields"][name]:
            lines.append(f"events {name} have other fields")
    one_sided = sorted({*counts[0]} ^ {*counts[1]})
    lines += [f"events {name} are seen only by {'old' if name in counts[0] else 'new'}" for name in one_sided]
    if old["warnings"] != new["warnings"]:
        lines.append(f"warnings {old['warnings']} -> {new['warnings']}")
    return lines


def show_list(asked: argparse.Namespace) -> None:
    """Print the names of all selected cases."""
    for backend in asked.backends:
        arguments = ["--serve", "--backends", backend, "--problems", str(asked.problems), "--seed", str(asked.seed)]
        state = State(__file__, asked.new, [*arguments, "--device", asked.device], {"TRITON_INTERPRET": "1"})
        for name in state.ask({}):
            if fnmatch.fnmatchcase(name, f"*{asked.only}*"):
                print(name)
        state.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="folder with the package of the old state")
    parser.add_argument("--new", default=str(Path(__file__).parent.parent / "src"), help="that of the new state")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--problems", type=int, default=400, help="drawn problems on the CPU; slow backends get a part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where Triton runs: cpu interprets it")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="cases whose name contains this; * and ? as in a shell"
    )
    parser.add_argument("--numbers", action="store_true", help="leave texts of messages and errors out")
    parser.add_argument("--results", action="store_true", help="leave out when lanes were audited and repacked")
    parser.add_argument("--verbose", action="store_true", help="print the seconds of every case")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(answer_for(asked))
        return
    if asked.list:
        show_list(asked)
        return
    if asked.old is None:
        parser.error("--old is missing: the source folder of the state to compare with")
    failed = 0
    for backend in asked.backends:
        comparison = Comparison(backend, asked)
        comparison.run()
        failed += comparison.failed
    print("all cases are equal" if not failed else f"{failed} cases are DIFFERENT")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
