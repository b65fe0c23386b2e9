from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.reported import finished_of
from longtail.cli import main
from longtail.runs.config import resolve
from longtail.support.signals import Stopped

SMALL = ["--tasks", "6", "--zero-shot", "1", "--features", "6", "--hidden", "8", "--cap", "30"]
SMALL += ["--epochs", "2", "--lr", "0.003"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ctrl_c():
    """Ctrl-C does what it does in a terminal, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def longtail(*args: str, **kwargs) -> subprocess.Popen:
    command = [sys.executable, "-m", "longtail", *args]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        **kwargs,
    )


@pytest.mark.parametrize("args", [[], ["--help"], *([c, "--help"] for c in ("study", "report"))])
def test_help_has_examples(args, capsys):
    assert main(args) == 0
    assert "examples:\n  longtail " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "list", "data"])
def test_help_of_our_commands(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"examples:\n  longtail {command}" in text


def test_help_of_a_benchmark_shows_every_setting_with_help_and_default(capsys):
    assert main(["run", "toy", "--method", "ewc", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--tasks", "--lr", "--strength", "--fisher-cap", "--beta3", "--no-compile"):
        assert flag in text
    for flag in ("--policy", "--optimizer", "--data-seed"):  # `--seed` is the run's
        assert flag in text
    assert "--schedule constant|linear" in text
    default = resolve("toy", flags={"method": "ewc"}).methods.strength
    assert f"weight λ of the penalty (default: {default})" in " ".join(text.split())


def test_version(capsys):
    from longtail import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_the_package_is_a_command_too():
    command = [sys.executable, "-m", "longtail", "run", "tooy"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 2
    assert done.stderr == "longtail: unknown benchmark 'tooy'; did you mean 'toy'?\n"


def test_help_does_not_load_torch():
    code = "import sys; from longtail.cli import main; main(['--help']); main(['run', '--help']); "
    code += "main(['list', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr.decode()[-500:]


def test_run_prints_plain_lines_in_a_pipe_and_writes_the_default_folder(capsys):
    assert main(["run", "toy", "--method", "derpp", "--buffer", "9", "--seed", "2", *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("toy, derpp, continual, seed 2: 6 tasks\n")
    assert "\x1b" not in out
    folder = Path("runs/toy-derpp-continual-s2")
    assert f"in {folder}" in out
    assert json.loads((folder / "summary.json").read_text())["tasks"] == 6
    # again: nothing to do, the same summary
    assert main(["run", "toy", "--method", "derpp", "--buffer", "9", "--seed", "2", *SMALL]) == 0
    assert capsys.readouterr().out == "".join(out.splitlines(keepends=True)[-2:])


def test_quiet_is_silent(capsys):
    assert main(["run", "toy", "--quiet", *SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_json_lines(capsys):
    assert main(["run", "toy", "--json", "--evaluate-every", "2", "--out", "x", *SMALL]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "start"
    assert names[-1] == "end"
    evaluations = [event for event in events if event["event"] == "evaluation"]
    assert [event["after"] for event in evaluations][-3:] == [1, 3, 5]
    assert evaluations[-1]["RP"] == pytest.approx(events[-1]["summary"]["RP"])
    assert events[-1]["summary"] == json.loads(Path("x/summary.json").read_text())


def test_settings_from_file_flags_and_set(capsys):
    Path("my.toml").write_text('method = "ewc"\n[methods]\nstrength = 2.0\n[train]\nclip = 1.0\n')
    args = ["--config", "my.toml", "--strength", "3", "--set", "train.eps=1e-6", "--out", "x"]
    assert main(["run", "toy", *args, *SMALL, "--betas", "0.8,0.9", "--no-fused", "--quiet"]) == 0
    text = Path("x/config.toml").read_text()
    for line in ('method = "ewc"', "strength = 3.0", "clip = 1.0", "eps = 1e-06", "fused = false"):
        assert line in text
    assert "0.8,\n    0.9" in text


def test_config_of_a_run_repeats_it(capsys):
    assert main(["run", "toy", "--method", "reservoir", "--out", "a", "--quiet", *SMALL]) == 0
    assert main(["run", "--config", "a/config.toml", "--out", "b", "--quiet"]) == 0
    for name in ("config.toml", "scores.jsonl", "summary.json", "model.safetensors"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rn"], "unknown command 'rn'; did you mean 'run'?"),
        (["run"], None),
        (["run", "tooy"], "unknown benchmark 'tooy'; did you mean 'toy'?"),
        (["run", "--seed", "1"], "name a benchmark right after `run`"),
        (["run", "toy", "--method", "ewx"], "unknown method 'ewx'; did you mean 'ewc'?"),
        (["run", "toy", "--policy", "sdg"], "did you mean the optimizer 'sgd' (--optimizer)?"),
        (["run", "toy", "--epoch", "1"], "unknown flag --epoch, did you mean --epochs?"),
        (["--quiet", "run", "toy"], "--quiet stands before the command"),
        (
            ["report", ".", "--no-pag"],
            "longtail report: unknown flag --no-pag, did you mean --no-p",
        ),
        (
            ["run", "toy", "--buffer", "3"],
            "unknown flag --buffer: it is a setting of reservoir, derpp, agem and ",
        ),
        (["run", "toy", "--strength=3"], "unknown flag --strength: it is a setting of ewc, "),
        (["run", "toy", "--alpha", "1"], "it is a setting of derpp"),
        (["run", "toy", "--lr", "fast"], "train.lr must be number, got 'fast'"),
        (["run", "toy", "--lr"], "expected one argument"),
        (["run", "toy", "--seed", "-3"], "seed must not be negative"),
        (["run", "toy", "--seed", "1.5"], "seed must be integer, got 1.5"),
        (["run", "toy", "--set", "lr"], "--set takes key=value, got 'lr'"),
        (["run", "toy", "--set", "train.lrr=1"], "did you mean 'train.lr'?"),
        (["run", "toy", "--set", "train.foo=1"], "unknown setting 'train.foo'; known: train."),
        (["run", "toy", "--set", "buffer=1"], "unknown setting 'buffer': it is a setting of res"),
        (["run", "toy", "--set", "methods.buffer=1"], "it is a setting of reservoir, "),
        (["run", "toy", "--config", "absent.toml"], "no such file: absent.toml"),
        (["run", "toy", "--device", "tpu9x"], "unknown device 'tpu9x'"),
        (["run", "toy", "--threads", "0"], "threads must be at least 1, got 0"),
        (["run", "toy", "--threads", "100000"], "threads must be at most "),
        (["run", "toy", "--device", "meta"], "device 'meta': nothing trains on meta; try cpu"),
        (["run", "toy", "--out", ""], "argument --out: it must name a folder, got ''"),
        (["run", "toy", "--out="], "argument --out: it must name a folder, got ''"),
        (["run", "toy", "--out", "a" * 300], "aaa: cannot be made a folder (File name too long)"),
        (["study", "mine.toml", "--out", ""], "argument --out: it must name a folder, got ''"),
        (["report", ".", "--out", ""], "argument --out: it must name a folder, got ''"),
        (["report", ""], "argument folder: it must name a folder, got ''"),
        (["report", "a" * 300], "aaa: File name too long"),
        (["run", "toy", "--snapshot-minutes", "-1"], "must not be negative, got -1"),
        (["run", "toy", "extra"], "unexpected argument 'extra'"),
        (["list", "tooy"], "did you mean 'toy'?"),
        (["list", "--tasks"], "need a BENCHMARK"),
        (["list", "--method", "nope"], "--tasks, --set and --method need a BENCHMARK"),
        (["list", "toy", "--set", "data.tasks=abc"], "--set data.tasks=abc goes with --tasks"),
        (["list", "toy", "--tasks", "--method", "nope"], "--method nope goes without --tasks"),
        (["list", "toy", "--method", "nope"], "unknown method 'nope'"),
        (["data", "mnist", "--source", "generated"], "unknown flag --source"),
        (["data", "wsd", "--strict"], "unknown flag --strict"),
        (["data", "tooy"], "did you mean 'toy'?"),
        (["data"], "the following arguments are required: BENCHMARK"),
        (["study", "absent.toml"], "absent.toml"),
        (["report", "absent"], "absent"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(args, message, capsys):
    assert main(args) == 2
    captured = capsys.readouterr()
    if message is not None:
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
    assert list(Path().iterdir()) == []


def test_bug_is_a_sentence_and_a_traceback_on_request(monkeypatch, capsys):
    from longtail.runs import session

    def broken(*args, **kwargs):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(session, "build_run", broken)
    assert main(["run", "toy", "--out", "x", *SMALL]) == 1
    assert capsys.readouterr().err == (
        "longtail: RuntimeError: out of luck (LONGTAIL_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("LONGTAIL_DEBUG", "1")
    with pytest.raises(RuntimeError, match="out of luck"):
        main(["run", "toy", "--out", "x", *SMALL])


def test_list(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for word in ("toy", "derpp", "multitask", "continual", "table1"):
        assert word in text
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["policies"]) == {"continual", "continual_seen", "kept", "new"}


def test_list_of_a_benchmark(capsys):
    assert main(["list", "toy", "--method", "ewc"]) == 0
    assert "methods.strength" in capsys.readouterr().out
    assert main(["list", "toy", "--tasks", "--set", "data.tasks=30"]) == 0
    text = capsys.readouterr().out
    assert "gini" in text
    assert "█" in text
    assert main(["list", "toy", "--tasks", "--json", "--set", "data.tasks=30"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == 30


def test_data_of_a_generated_benchmark(capsys):
    assert main(["data", "toy"]) == 0
    assert capsys.readouterr().out == "toy is generated and needs no files.\n"
    assert main(["data", "toy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"benchmark": "toy", "files": []}


def test_interrupt_saves_and_says_how_to_go_on(capsys):
    out = Path("x").absolute()
    args = ["run", "toy", "--epochs", "400", "--out", str(out)]
    process = longtail(*args)
    while not (out / "tasks.json").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 130, error
    assert error.startswith("longtail: stopped at task ")
    assert "the same command goes on from there" in error
    assert error.count("\n") == 1
    assert list((out / "snapshot").glob("*.pt"))


def test_exit_code_of_sigterm(monkeypatch, capsys):
    from longtail.runs import session

    def stopped(*args, **kwargs):
        raise Stopped("stopped at task 3", 143)

    monkeypatch.setattr(session, "train_run", stopped)
    assert main(["run", "toy", *SMALL]) == 143
    assert capsys.readouterr().err == "longtail: stopped at task 3\n"


def test_reader_of_a_pipe_that_goes_away(capsys):
    process = longtail("run", "toy", "--json", *SMALL)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    process.wait(600)
    assert "Traceback" not in error


@pytest.mark.parametrize("raised", ["ImportError('broken')", "ValueError('odd')"])
def test_an_interrupt_that_an_import_turns_into_an_error_is_still_one(raised, capsys, ctrl_c):
    code = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    os.stat('.')"
    Path("late.py").write_text(f"{code}\nexcept KeyboardInterrupt:\n    raise {raised} from None\n")
    assert main(["run", "toy", "--method", "late:Mine"]) == 130
    assert capsys.readouterr().err == "longtail: stopped\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_suggested_for_a_name_that_is_like_no_other(capsys):
    assert main(["run", "toy", "--zzzz", "1"]) == 2
    assert main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_an_out_that_is_a_file_is_bad_input(capsys):
    Path("taken").write_text("mine")
    assert main(["run", "toy", "--out", "taken", *SMALL]) == 2
    assert capsys.readouterr().err == (
        "longtail: --out taken: cannot be made a folder (File exists)\n"
    )


def test_replicas_are_seeds_in_one_program_and_their_mean(capsys):
    assert main(["run", "toy", "--replicas", "3", "--seed", "1", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "3 runs of toy: 6 tasks" in out
    assert " ± " in out
    found = finished_of("runs/toy-finetune-continual-s1-x3")
    assert sorted(run.seed for run in found) == [1, 2, 3]
    mean = sum(run.numbers["RP"] for run in found) / 3
    assert f"RP {mean:.4f} ± " in out
    assert main(["run", "toy", "--seed", "2", "--out", "one", "--quiet", *SMALL]) == 0
    (single,) = finished_of("one")
    (same,) = (run for run in found if run.seed == 2)
    assert same.numbers["RP"] == pytest.approx(single.numbers["RP"], abs=1e-6)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["toy", "--replicas", "0"], "--replicas must be at least 1, got 0"),
        (["toy", "--replicas", "100000000"], "--replicas must be at most 10,000, got 100000000"),
        (
            ["toy", "--replicas", "9", "--seed", str(2**63 - 8)],
            "--replicas: the last seed must be below 2**63, got 9223372036854775800 + 9 - 1",
        ),
        (["toy", "--replicas", "2", "--log", "wandb"], "`longtail report DIR --log TOOL`"),
        (["nlp5", "--miniature", "--replicas", "2"], "`longtail study FILE` with seeds"),
    ],
)
def test_replicas_that_cannot_be_point_to_what_can(args, message, capsys):
    assert main(["run", *args]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()
