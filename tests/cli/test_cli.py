"""The command line as a person and as a machine use it."""

from __future__ import annotations

import io
import json
import os
import pickle
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import drainsinkhorn as ds
from drainsinkhorn.cli.files import read_problems
from drainsinkhorn.cli.main import app
from drainsinkhorn.cli.show import curve
from drainsinkhorn.testing import marginal_errors
from tests.conftest import needs

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(3, 12, 2)), rng.normal(size=(3, 9, 2))
DRAIN = [sys.executable, "-m", "drainsinkhorn.cli.main"]


def drain(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def load(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return dict(archive)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def stacked(tmp_path: Path) -> Path:
    return save(tmp_path / "in.npz", x=X, y=Y, eps=[0.2, 0.5, 1.0])


def worked(pid: int, seconds: float) -> None:
    """Wait until a process has computed for so long, however busy the machine is."""
    stat, tick = Path(f"/proc/{pid}/stat"), os.sysconf("SC_CLK_TCK")
    while sum(int(ticks) for ticks in stat.read_text().rpartition(")")[2].split()[11:13]) < seconds * tick:
        time.sleep(0.1)


class TestSolve:
    def test_writes_what_the_api_finds(self, stacked: Path, tmp_path: Path) -> None:
        done = drain("solve", stacked, "-o", tmp_path / "out.npz")
        assert done.exit_code == 0, done.output
        assert "3 of 3 problems converged" in done.output
        saved, solution = load(tmp_path / "out.npz"), ds.solve(X, Y, eps=[0.2, 0.5, 1.0])
        assert np.array_equal(saved["f"], solution.potentials.f)
        assert np.array_equal(saved["g"], solution.potentials.g)
        assert saved["depth"].tolist() == [r.depth for r in solution]
        assert saved["status"].tolist() == ["CONVERGED"] * 3
        assert json.loads(str(saved["ledger"]))["slots"] == solution.ledger.slots
        assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []

    def test_the_eps_of_a_file_without_one_is_that_of_solve(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in.npz", x=X, y=Y)
        assert drain("solve", source, "-o", tmp_path / "out.npz").exit_code == 0
        assert load(tmp_path / "out.npz")["eps"].tolist() == [result.eps for result in ds.solve(X, Y)]

    def test_ragged(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "in.npz",
            x=X.reshape(-1, 2),
            x_sizes=[12, 20, 4],
            y=Y[0],
            a=np.ones(36),
            f=np.zeros(36),
            g=np.zeros(9),
            eps=0.5,
            tol=[1e-2, 1e-3, 1e-4],
            cost="euclidean",
            scale=2.0,
        )
        assert drain("solve", source, "-o", tmp_path / "out.npz").exit_code == 0
        saved = load(tmp_path / "out.npz")
        assert saved["f_sizes"].tolist() == [12, 20, 4]
        assert saved["g"].shape == (3, 9)
        second = ds.Problem(x=X.reshape(-1, 2)[12:32], y=Y[0], eps=0.5, cost=ds.Cost("euclidean", 2.0))
        potentials = ds.Potentials(saved["f"][12:32], saved["g"][1])
        assert max(marginal_errors(second, potentials)) <= 1e-3

    def test_dense_costs_stacked_and_ragged(self, tmp_path: Path) -> None:
        cost = rng.uniform(size=(2, 4, 5))
        flat = np.concatenate([cost[0].ravel(), cost[1, :2].ravel()])
        one = save(tmp_path / "1.npz", cost=cost, eps=0.5)
        two = save(tmp_path / "2.npz", cost=flat, x_sizes=[4, 2], y_sizes=[5, 5], eps=0.5)
        assert np.array_equal(read_problems(one)[1].cost, cost[1])
        assert np.array_equal(read_problems(two)[1].cost, cost[1, :2])
        assert drain("solve", two, "-o", tmp_path / "out.npz").exit_code == 0

    def test_exit_code_and_table_when_something_failed(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in.npz", x=X, y=Y, eps=[0.5, -1.0, 0.5])
        done = drain("solve", source, "-o", tmp_path / "out.npz")
        assert done.exit_code == 1
        assert "INVALID" in done.output
        assert "eps must be a positive finite number, got -1.0" in done.output
        assert "2 of 3 problems converged" in done.output
        saved = load(tmp_path / "out.npz")
        assert saved["f_sizes"].tolist() == [12, 0, 12]

    def test_json(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in.npz", x=X, y=Y, eps=[0.5, -1.0, 0.5])
        done = drain("solve", source, "-o", tmp_path / "out.npz", "--json")
        report = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert (report["problems"], report["converged"]) == (3, 2)
        assert report["failed"][0]["ticket"] == 1
        assert report["failed"][0]["row"] is None
        assert done.exit_code == 1

    def test_options_reach_the_solver(self, stacked: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"
        assert drain("solve", stacked, "-o", out, "--mode", "mask", "--tol", "1e-6", "--width", "2").exit_code == 0
        assert load(out)["row"].max() <= 1e-6
        assert drain("solve", stacked, "-o", out, "--recheck", "all").exit_code == 0
        assert "recheck must be one of" in drain("solve", stacked, "-o", out, "--recheck", "some").output
        limited = drain("solve", stacked, "-o", out, "--max-depth", "2", "--no-rescue")
        assert limited.exit_code == 1
        assert load(out)["depth"].max() == 2

    def test_quiet_when_not_a_terminal(self, stacked: Path, tmp_path: Path) -> None:
        done = subprocess.run([*DRAIN, "solve", stacked, "-o", tmp_path / "o.npz"], capture_output=True, text=True)
        assert done.stderr == ""
        assert "\x1b" not in done.stdout

    def test_a_terminal_shows_a_live_bar(self, tmp_path: Path) -> None:
        source = save(
            tmp_path / "in.npz", x=5 * rng.normal(size=(20, 60, 2)), y=5 * rng.normal(size=(20, 60, 2)), eps=0.5
        )
        parent, child = pty.openpty()
        process = subprocess.Popen(
            [*DRAIN, "solve", source, "-o", tmp_path / "o.npz"],
            stdout=subprocess.DEVNULL,
            stderr=child,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
        )
        os.close(child)
        seen = b""
        while True:
            try:
                chunk = os.read(parent, 65536)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait() in (0, 1)
        os.close(parent)
        text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode()
        assert re.search(r"draining.*\d+/20.*\d+ lanes live, [\d,]+ slots removed.*left", text), text

    def test_ctrl_c_keeps_what_was_finished(self, tmp_path: Path) -> None:
        x, y = rng.normal(size=(6, 200, 2)), rng.normal(size=(6, 200, 2))
        # At such an eps no problem ends within minutes.
        eps = np.array([1.0, 1.0, 1.0, 1e-7, 1e-7, 1e-7])
        source, out = save(tmp_path / "in.npz", x=x, y=y, eps=eps), tmp_path / "out.npz"
        process = subprocess.Popen(
            [*DRAIN, "solve", source, "-o", out, "--max-depth", "10000000", "--accelerate", "none", "--init", "zero"],
            stderr=subprocess.PIPE,
        )
        worked(process.pid, 5.0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
        assert b"interrupted: 3 of 6 problems finished" in err
        saved = load(out)
        assert saved["ticket"].tolist() == [0, 1, 2]
        assert b"Traceback" not in err


class TestFormats:
    @pytest.mark.parametrize("other", [2, 0, -1, 1.0, "1\x1b[2J", [1, 1]])
    def test_an_unknown_format_is_refused(self, other: Any, stacked: Path, tmp_path: Path) -> None:
        assert drain("solve", stacked, "-o", tmp_path / "out.npz").exit_code == 0
        for command, path in ((["solve", "-o", tmp_path / "again.npz"], stacked), (["explain"], tmp_path / "out.npz")):
            done = drain(*command, save(tmp_path / "other.npz", **{**load(path), "format": other}))
            assert done.exit_code == 2
            assert "has format" in done.output
            assert "reads format 1; use the version that wrote it" in done.output
            assert "\x1b" not in done.output

    def test_files_that_do_not_say_their_format(self, stacked: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"
        assert drain("solve", save(tmp_path / "told.npz", **load(stacked), format=1), "-o", out).exit_code == 0
        whole = load(out)
        assert whole.pop("format") == 1
        assert drain("explain", save(tmp_path / "old.npz", **whole)).output == drain("explain", out).output


class TestBadFiles:
    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"x": X, "y": Y, "eps": 1.0, "epsilon": 1.0}, "unknown key 'epsilon'; known keys are x, y, a, b, eps"),
            ({"x": X, "y": Y, "eps": 1.0, "f": X[:, :, 0]}, "only one of f and g"),
            ({"x": X[0], "y": Y[0], "eps": 1.0, "x_sizes": [5, 5]}, "x has shape (12, 2), but its sizes add up to 10"),
            ({"x": X[0], "y": Y[0], "eps": 1.0, "x_sizes": [0.5]}, "x_sizes must be a vector of counts"),
            ({"x": X[0], "y": Y[0], "eps": 1.0, "x_sizes": [[12]]}, "x_sizes must be a vector of counts"),
            ({"x": X, "y": Y[:2], "eps": 1.0}, "x for 3, y for 2"),
            ({"x": X, "eps": 1.0}, "y must be a numeric array"),
            ({"x": X, "y": Y, "eps": 1.0, "scale": [1.0, 2.0]}, "scale must be one number"),
            ({"cost": X, "eps": 1.0, "scale": 2.0}, "scale belongs to a named cost"),
            (
                {"cost": np.ones(10), "eps": 1.0, "x_sizes": [2, 3], "y_sizes": [2]},
                "x_sizes is for 2 problems and y_sizes",
            ),
            ({"cost": np.array(b"euclidean"), "eps": 1.0}, "cost must be a text or matrices"),
            ({"x": np.array([{}], dtype=object), "y": Y, "eps": 1.0}, "Object arrays need pickle, which is never read"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_problems(self, arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
        done = drain("solve", save(tmp_path / "in.npz", **arrays), "-o", tmp_path / "out.npz")
        assert done.exit_code != 0
        assert message in done.output

    def test_files_that_are_no_archive(self, tmp_path: Path) -> None:
        (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"x": 1}))
        (tmp_path / "text.npz").write_text("x,y\n1,2\n")
        (tmp_path / "empty.npz").write_bytes(b"")
        np.save(tmp_path / "array.npy", X)
        np.savez(tmp_path / "whole.npz", x=X, y=Y, eps=1.0)
        whole = (tmp_path / "whole.npz").read_bytes()
        (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "damaged.npz").write_bytes(whole[:200] + b"\x00" * 50 + whole[250:])
        for name in (
            "pickled.npz",
            "text.npz",
            "empty.npz",
            "torn.npz",
            "damaged.npz",
            "array.npy",
            "missing.npz",
            ".",
        ):
            for command in (["solve", tmp_path / name, "-o", tmp_path / "out.npz"], ["explain", tmp_path / name]):
                done = drain(*command)
                assert done.exit_code == 2, (name, done.output)
                assert done.output.startswith("error: "), (name, done.output)
                assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)

    def test_a_pickle_is_never_run(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "boom"),)

        (tmp_path / "bomb.npz").write_bytes(pickle.dumps(Bomb()))
        save(tmp_path / "hidden.npz", x=np.array([Bomb()], dtype=object), y=Y, eps=1.0)
        for name in ("bomb.npz", "hidden.npz"):
            assert drain("solve", tmp_path / name, "-o", tmp_path / "out.npz").exit_code == 2
            assert drain("explain", tmp_path / name).exit_code == 2
        assert not (tmp_path / "boom").exists()

    def test_an_output_that_cannot_be_written_fails_before_the_work(self, stacked: Path, tmp_path: Path) -> None:
        done = drain("solve", stacked, "-o", tmp_path / "no" / "out.npz")
        assert done.exit_code == 2
        assert "is no folder" in done.output

    def test_a_bad_option(self, stacked: Path, tmp_path: Path) -> None:
        done = drain("solve", stacked, "-o", tmp_path / "out.npz", "--mode", "warp")
        assert done.exit_code == 2
        assert "mode must be a Mode or one of" in done.output

    def test_an_output_that_is_a_folder_or_the_input(self, stacked: Path, tmp_path: Path) -> None:
        assert "is a folder; name a file" in drain("solve", stacked, "-o", tmp_path).output
        before = stacked.read_bytes()
        assert "holds the problems" in drain("solve", stacked, "-o", stacked).output
        assert stacked.read_bytes() == before
        assert drain("demo", "--out", tmp_path / "no" / "x.png").exit_code == 2
        assert drain("demo", "--seed", "-1").exit_code == 2

    def test_brackets_in_names_are_shown(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in[old].npz", x=X, y=Y, eps=1.0, cost="[/x]")
        assert "cost '[/x]' is unknown" in drain("solve", source, "-o", tmp_path / "o.npz").output
        source = save(tmp_path / "in[old].npz", x=X * np.nan, y=Y, eps=1.0)
        done = drain("solve", source, "-o", tmp_path / "[red]out.npz")
        assert "x[0, 0] is nan" in done.output
        assert "[red]out.npz" in done.output
        assert "in[new].npz does not exist" in drain("solve", tmp_path / "in[new].npz", "-o", tmp_path / "o.npz").output
        assert "x[0, 0] is nan" in drain("explain", tmp_path / "[red]out.npz").output

    def test_damaged_solutions(self, stacked: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.npz"
        drain("solve", stacked, "-o", out)
        whole = load(out)
        damages: list[dict[str, Any]] = [
            {"ledger": np.array("{}")},
            {"ledger": np.array("[]")},
            {"ledger": np.array("nonsense")},
            {"depth": whole["depth"][:1]},
            {"ticket": np.array(3)},
            {"row": np.array(["a", "b", "c"])},
        ]
        for damage in damages:
            done = drain("explain", save(tmp_path / "bad.npz", **{**whole, **damage}))
            assert done.exit_code == 2, damage
            assert "is a damaged solution" in done.output


class TestExplain:
    def test_shows_problems_curve_and_slots(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in.npz", x=X, y=Y, eps=[0.05, 1.0, -1.0])
        drain("solve", source, "-o", tmp_path / "out.npz")
        done = drain("explain", tmp_path / "out.npz")
        assert done.exit_code == 0
        for text in ("CONVERGED", "INVALID", "problems still at work", "slots spent", "slots removed", "█"):
            assert text in done.output
        report = json.loads(drain("explain", tmp_path / "out.npz", "--json").stdout)
        assert [row["status"] for row in report["problems"]] == ["CONVERGED", "CONVERGED", "INVALID"]
        assert report["ledger"]["removed_slots"] > 0

    def test_a_file_of_problems_is_no_solution(self, stacked: Path) -> None:
        done = drain("explain", stacked)
        assert done.exit_code == 2
        assert "is no solution" in done.output

    def test_long_tables_are_cut_unless_asked(self, tmp_path: Path) -> None:
        save(tmp_path / "in.npz", x=rng.normal(size=(30, 3, 1)), y=rng.normal(size=(30, 3, 1)), eps=1.0)
        drain("solve", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
        assert "10 more" in drain("explain", tmp_path / "out.npz").output
        assert drain("explain", tmp_path / "out.npz", "--all").output.count("CONVERGED") == 30

    def test_where_the_work_went_and_what_else_could_be(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in.npz", x=X, y=Y, eps=[0.05, 0.2, 1.0])
        drain("solve", source, "-o", tmp_path / "out.npz")
        done = drain("explain", tmp_path / "out.npz", "--plot", tmp_path / "e.png")
        for text in ("where the time went", "outside", "the same depths in every mode", "--sample", "picture: "):
            assert text in done.output
        assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
        report = json.loads(drain("explain", tmp_path / "out.npz", "--json").stdout)
        said, depths = report["explanation"], [row["depth"] for row in report["problems"]]
        assert sum(said["shares"].values()) == pytest.approx(1.0)
        assert said["removable_slots"] == 3 * max(depths) - sum(depths) == report["ledger"]["removed_slots"]
        spent = {(choice["mode"], choice["width"]): choice["slots"] for choice in said["what_if"]}
        assert spent["compact", 3] == spent["width-one", 1] == spent["compact", 1] == sum(depths)
        assert spent["mask", 3] == 3 * max(depths)
        assert ("compact", 6) not in spent

    def test_a_sample_is_really_run(self, tmp_path: Path) -> None:
        source = save(tmp_path / "in.npz", x=X, y=Y, eps=0.2, f=0 * X[:, :, 0], g=0 * Y[:, :, 0])
        done = drain("explain", source, "--sample", "2", "--tol", "1e-4", "--plot", tmp_path / "s.png")
        assert done.exit_code == 0, done.output
        for text in ("2 of 3 problems", "tol 0.0001", "tol 1e-05", "tol 0.001", "start zero", "predicted for all 3"):
            assert text in done.output
        assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
        report = json.loads(drain("explain", source, "--sample", "2", "--tol", "1e-4", "--json").stdout)
        trials = {trial["name"]: trial for trial in report["trials"]}
        truth = ds.solve(X, Y, eps=0.2, tol=1e-4, init="zero")
        assert trials["tol 0.0001"]["depths"] == [truth[place].depth for place in report["sampled"]]
        assert trials["start zero"]["depths"] == trials["tol 0.0001"]["depths"]
        assert sum(trials["tol 1e-05"]["depths"]) > sum(trials["tol 0.0001"]["depths"])
        for name in truth[0].backend.accelerations[1:]:
            assert trials[f"accelerate {name}"]["converged"] == 2
        assert all(choice["seconds"] > 0 for choice in report["what_if"])

    def test_rows_of_a_sample_say_what_ran(self, tmp_path: Path) -> None:
        # The Gaussian start of the second problem is worth nothing, and "auto" begins at zero.
        source = save(tmp_path / "in.npz", x=X[:2] * [[[9.0]], [[1.0]]], y=Y[:2], eps=1.0)
        report = json.loads(drain("explain", source, "--sample", "2", "--json").stdout)
        trials = {trial["name"]: trial for trial in report["trials"]}
        truth = ds.solve(X[:2] * [[[9.0]], [[1.0]]], Y[:2], eps=1.0)
        best = truth[0].backend.accelerations[0]
        for name, start, acceleration in (
            ("tol 0.001", "1 gaussian, 1 zero", best),
            ("start zero", "zero", best),
            ("start gaussian", "gaussian", best),
            ("accelerate none", "1 gaussian, 1 zero", "none"),
        ):
            assert (trials[name]["start"], trials[name]["acceleration"]) == (start, acceleration)
            assert trials[name]["mode"] == "compact"
        # Depths agree with the starts that the rows state.
        shallow = trials["start gaussian"]["depths"][0], trials["start zero"]["depths"][1]
        assert trials["tol 0.001"]["depths"] == list(shallow)
        euclidean = save(tmp_path / "e.npz", x=X[:1], y=Y[:1], eps=1.0, cost="euclidean")
        report = json.loads(drain("explain", euclidean, "--sample", "1", "--json").stdout)
        trials = {trial["name"]: trial for trial in report["trials"]}
        assert (trials["tol 0.001"]["mode"], trials["tol 0.001"]["start"]) == ("width-one", "zero")
        assert trials["start gaussian"]["note"].startswith("INVALID")
        given = save(tmp_path / "g.npz", x=X[:1], y=Y[:1], eps=1.0, f=X[:1, :, 0], g=Y[:1, :, 0])
        report = json.loads(drain("explain", given, "--sample", "1", "--json").stdout)
        assert report["trials"][0]["start"] == "given"
        assert "plain Sinkhorn" not in drain("explain", given, "--sample", "1").output

    def test_samples_of_every_kind_of_file(self, tmp_path: Path) -> None:
        dense = save(tmp_path / "dense.npz", cost=rng.uniform(size=(2, 4, 5)), eps=0.5)
        own = save(tmp_path / "own.npz", x=X, y=Y, eps=[0.5, -1.0, 0.5], tol=[1e-3, 1e-3, 1e-4])
        for source in (dense, own):
            assert drain("explain", source, "--sample", "9").exit_code == 0
        assert "at least 1 problem, got 0" in drain("explain", own, "--sample", "0").output
        assert drain("explain", own, "--sample", "2", "--tol", "-1").exit_code == 2
        assert drain("explain", own, "--sample", "2", "--backend", "abacus").exit_code == 2
        assert drain("explain", own, "--sample", "2", "--plot", tmp_path / "no" / "x.png").exit_code == 2


def test_demo(tmp_path: Path) -> None:
    done = drain("demo", "--workload", "digits", "--out", tmp_path / "d.png", "--json")
    report = json.loads(done.stdout)["digits"]
    assert done.exit_code == 0
    assert report["converged"] == report["problems"] == 45
    assert report["worst_residual"] <= 1e-3
    assert report["ledger"]["removed_slots"] > 1000
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert drain("demo", "--workload", "nope").exit_code == 2


def test_env_and_backends() -> None:
    # OTT warns while it is imported, and warnings are errors here.
    needs("ott")
    assert json.loads(drain("env", "--json").stdout)["drainsinkhorn"] == ds.__version__
    assert "numpy" in drain("env").output
    assert json.loads(drain("backends", "--json").stdout)["auto"] == "cpu"
    assert "auto takes cpu" in drain("backends").output


def test_tune_without_a_gpu_says_what_is_missing() -> None:
    torch = needs("torch")
    needs("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = drain("tune")
    assert done.exit_code != 0
    assert "needs a CUDA device" in done.output
    assert "pip install" not in done.output


def test_help_names_every_command() -> None:
    for command in ("demo", "solve", "distance", "explain", "warm", "env", "backends", "tune"):
        assert command in drain("--help").output
        assert drain(command, "--help").exit_code == 0


def test_version() -> None:
    done = drain("--version")
    assert done.exit_code == 0
    assert done.stdout == f"drain {ds.__version__}\n"


@pytest.mark.parametrize("survival", [[], [1], [3, 2, 1], [50] * 3 + [1] * 500])
def test_curve_of_any_length(survival: list[int]) -> None:
    from rich.console import Console

    console = Console(record=True, width=100, file=io.StringIO())
    console.print(curve(survival))
    text = console.export_text()
    assert "█" in text or not survival


def test_plots_say_what_they_show(tmp_path: Path) -> None:
    solution = ds.solve(X, Y, eps=[0.05, 0.5, 1.0])
    figure = solution.plot(str(tmp_path / "s.png"))
    left, right = figure.axes
    assert left.get_ylabel() == "problems still at work"
    assert f"{solution.ledger.removed_slots:,} removed" in right.get_title()
    assert (tmp_path / "s.png").stat().st_size > 5000
    assert ds.solve([]).plot() is not None
