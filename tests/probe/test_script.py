"""A script under the probe behaves as it does under Python. None of these imports torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode
from keepstep.probe.options import OptionsError, check_ranks, parse
from tests.probe.probing import probed, record, run, variables

SCRIPTS = {
    "end": "print('done')",
    "arguments": "import sys; print(sys.argv, __name__, __file__, sys.path[0], __spec__)",
    "exit": "import sys; sys.exit(5)",
    "exit without a code": "import sys; sys.exit()",
    "exit with a text": "import sys; sys.exit('this is why')",
    "hard exit": "import os, sys; print('x', flush=True); os._exit(9)",
    "exception": (
        "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError:\n    raise KeyError(1)"
    ),
    "syntax error": "x = = 1",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[1])\nraise ValueError(3)",
    "interrupt": "raise KeyboardInterrupt",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "at exit": "import atexit; atexit.register(print, 'late')\nraise SystemExit(2)",
    "thread": "import threading, time\nthreading.Thread(target=lambda: print('thread')).start()",
    "warning": "import warnings; warnings.warn('beware'); warnings.warn('old', DeprecationWarning)",
    "log": "import logging; logging.getLogger('torch.x').warning('look')",
    "pickled": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "wait for children": (
        "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('none')"
    ),
    "fork": (
        "import os\nif os.fork() == 0:\n    os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    ),
    "annotations": "x: int = 1; print(__annotations__)",  # evaluated, unlike in the probe's modules
    "spawn": (
        "import multiprocessing as m\n"
        "def f(q): q.put(__name__)\n"
        "if __name__ == '__main__':\n"
        "    c = m.get_context('spawn'); q = c.Queue(); p = c.Process(target=f, args=(q,))\n"
        "    p.start(); print(q.get()); p.join(); print(p.exitcode)"
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_cannot_tell(name: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPTS[name])
    words = ["script.py", "--record", "a b"]
    (plain,) = run([sys.executable, *words], cwd=tmp_path)
    (seen,) = run(probed(tmp_path / "seen", *words), cwd=tmp_path)
    assert seen == plain


@pytest.mark.parametrize(
    ("name", "end", "code"),
    [
        ("end", "complete", 0),
        ("exit", "exit", 5),
        ("exit without a code", "exit", 0),
        ("exit with a text", "exit", 1),
        ("hard exit", "exit", 9),
        ("exception", "exception", 1),
        ("syntax error", "exception", 1),
        ("interrupt", "exception", 130),
        ("terminated", "running", None),
        ("fork", "complete", 0),
    ],
)
def test_the_record_says_how_it_ended(
    name: str, end: str, code: int | None, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPTS[name])
    run(probed(tmp_path, str(tmp_path / "script.py")))
    found = record(tmp_path)
    assert (found.end, found.exit_code) == (end, code)
    assert found.steps == ()
    assert found.groups == ()


def test_the_exception_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPTS["exception"])
    run(probed(tmp_path, str(tmp_path / "script.py")))
    assert record(tmp_path).error == "KeyError: 1"


LAST_WORDS = """
import os, signal, warnings
warnings.warn("at 0x7f00deadbeef")
os.write(2, b"plain text\\n[rank0]:[W1130 00:33:56.123456789 Some.cpp:12] Warning: in 5 ms\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_last_words_of_a_killed_rank_arrive_and_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LAST_WORDS)
    (ended,) = run(probed(tmp_path, str(tmp_path / "script.py")))
    assert ended.code == -signal.SIGKILL
    assert ended.errors.endswith("Some.cpp:12] Warning: in 5 ms\n")
    found = record(tmp_path)
    assert found.end == "running"
    # The Python warning came after the last write and died with the process; this one did not.
    assert [(each.category, each.text) for each in found.warnings] == [
        ("C++ warning", "Some.cpp: Warning: in N ms")
    ]


LEFT = """
import subprocess, threading
child = subprocess.Popen(["sleep", "30"], stdout=subprocess.DEVNULL)
threading.Thread(target=threading.Event().wait, name="stays", daemon=True).start()
"""


def test_what_is_left_behind_is_listed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        LEFT + "import atexit; atexit.register(print, child.pid, flush=True)"
    )
    command = probed(tmp_path, str(tmp_path / "script.py"))
    done = subprocess.run(command, env=variables(), stdout=subprocess.PIPE, text=True, timeout=20)
    subprocess.run(["kill", done.stdout.strip()], check=True)
    assert record(tmp_path).left_behind == ("thread stays (daemon)", "child sleep 30")


def test_a_planted_leak_is_left_behind_and_marked(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('done')")
    command = probed(tmp_path, "--plant", "leak:1", str(tmp_path / "script.py"))
    with subprocess.Popen(command, env=variables(), start_new_session=True) as process:
        assert process.wait(20) == 0
        found = record(tmp_path)
        os.killpg(process.pid, signal.SIGKILL)
    Path(f"/dev/shm/keepstep-planted-{process.pid}").unlink()
    assert found.fingerprint["probe"]["planted"] == ["leak:1"]
    assert any(each.startswith("child /bin/sh") for each in found.left_behind)
    assert any(each.startswith("shared memory keepstep-planted") for each in found.left_behind)


def test_an_existing_dump_of_before_is_not_this_ranks(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_text("old")
    os.utime(tmp_path / "dump_0", (1, 1))
    (tmp_path / "script.py").write_text("import os; open(os.environ['NEW'] + '0', 'w').write('d')")
    for name, listed in (("dump_", []), ("new_", [f"{tmp_path}/new_0"])):
        names = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/{name}", "NEW": f"{tmp_path}/new_"}
        command = probed(tmp_path, str(tmp_path / "script.py"))
        subprocess.run(command, env={**variables(), **names}, check=True, timeout=20)
        assert list(record(tmp_path).artifacts) == listed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no script was named"),
        (["--record"], "--record wants a value"),
        (["script.py"], "--record DIR is missing"),
        (["--record", "d", "--fats", "2", "s.py"], "--fats: no such option"),
        (["--record", "d", "--slow", "0.5", "s.py"], "--slow 0.5: wanted a factor from 1 to 100"),
        (["--record", "d", "--slow", "nan", "s.py"], "--slow nan: wanted a factor"),
    ],
)
def test_a_command_line_that_is_not_understood(words: list[str], says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        parse(words)


@pytest.mark.parametrize("plant", ["hang", "hang@x:1", "leak:much", "dump:", "warn:", "flood:1"])
def test_an_unknown_plant_is_refused_before_the_script_runs(plant: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    (ended,) = run(probed(tmp_path, f"--plant={plant}", str(tmp_path / "script.py")))
    assert (ended.code, ended.output) == (2, "")
    assert f"--plant {plant}: wanted hang@STEP:RANK" in ended.errors


def test_options_after_the_script_are_the_scripts() -> None:
    options = parse(["--record=d", "--no-sweep", "--slow", "1.10", "s.py", "--no-sweep", "--slow"])
    assert (options.script, options.arguments) == ("s.py", ["--no-sweep", "--slow"])
    assert (options.sweep, options.slow, options.faster) == (False, 1.1, 1.0)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    (ended,) = run(probed(tmp_path, "none.py"))
    assert ended.code == 2
    assert "none.py: No such file or directory; wanted a Python script" in ended.errors


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"RANK": "x"}, "RANK='x'"),
        ({"RANK": ""}, "RANK=''"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "007"}, "RANK='007'"),
        ({"RANK": "9" * 20}, "RANK='999"),
        ({"RANK": "0", "LOCAL_RANK": "q"}, "LOCAL_RANK='q'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2"),
    ],
)
def test_variables_that_say_no_rank_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionsError, match=f"^{said}.*wanted .*unset RANK"):
        check_ranks(given)


@pytest.mark.parametrize(
    "given", [{}, {"RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}]
)
def test_variables_that_say_a_rank_are_taken(given: dict[str, str]) -> None:
    check_ranks(given)


def test_the_command_refuses_them_before_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text("print('ran')")
    assert execute(["probe", "--record", str(script), str(script)]) == ExitCode.USAGE
    assert "wanted one, or a new name" in capfd.readouterr().err
    monkeypatch.setenv("RANK", "x")
    assert execute(["probe", str(script)]) == ExitCode.USAGE
    told = capfd.readouterr()
    assert "RANK='x'" in told.err
    assert "ran" not in told.out
