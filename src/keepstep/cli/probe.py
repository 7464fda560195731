"""``keepstep probe``: run a script as it is and say what one rank of it did."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from keepstep.canary.record import RankRecord
from keepstep.exit_codes import ExitCode
from keepstep.parent import die_with_parent


def probe(
    script: Annotated[str, typer.Argument(help="The training script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments.", metavar="[ARGS]...")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Folder for the record, rank-N.json.", metavar="DIR", show_default=False),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option("--sweep/--no-sweep", help="Measure a few collectives when groups exist."),
    ] = True,
    slow: Annotated[
        float, typer.Option(help="Plant a slowdown: 1.10 makes steps 10 % longer.")
    ] = 1,
    faster: Annotated[float, typer.Option(help="Plant a gain: note step times divided by it.")] = 1,
    plants: Annotated[
        list[str] | None,
        typer.Option(
            "--plant",
            help="Plant a fault: hang@STEP:RANK, crash@STEP:RANK, gradient@STEP:RANK, leak:MB, "
            "dump:RANK or warn:TEXT.",
            metavar="FAULT",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The record as JSON; the job's output to stderr.")
    ] = False,
) -> None:
    """Run SCRIPT unchanged and record what it does; the exit code is the script's.

    Without RANK in the environment it runs as the only rank. With it (torchrun --no-python keepstep
    probe SCRIPT) every rank writes its record.
    """
    if not Path(script).is_file():
        _refuse(f"{script}: no such script (looked in {Path.cwd()})")
    with tempfile.TemporaryDirectory() as scratch:
        folder = record or Path(scratch)
        command = [sys.executable, "-m", "keepstep.probe", "--record", str(folder)]
        command += [] if sweep else ["--no-sweep"]
        command += [f"--slow={slow}", f"--faster={faster}"]
        command += [f"--plant={each}" for each in plants or []]
        code = _run([*command, script, *(arguments or [])], sys.stderr if as_json else None)
        found = _read(folder / f"rank-{os.environ.get('RANK', '0')}.json")
    if as_json:
        print(found.model_dump_json() if found else json.dumps(None))
    elif found is not None and "RANK" not in os.environ:
        sys.stderr.write("\n".join(lines(found, kept=record)) + "\n")
    raise typer.Exit(code)


_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _run(command: list[str], output: Any) -> int:
    """Run it with this terminal; return its exit code as a shell would."""
    with subprocess.Popen(
        command, env=_environment(), stdout=output, preexec_fn=die_with_parent
    ) as process:
        for number in _PASSED_ON:  # launchers and schedulers know only us
            signal.signal(number, lambda got, _: process.send_signal(got))
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:  # the job has got it as well, and decides
                continue


def _environment() -> dict[str, str]:
    """Return torchrun's variables for one rank, unless a launcher has set them."""
    if "RANK" in os.environ:
        return dict(os.environ)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **os.environ,
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    }


def _read(path: Path) -> RankRecord | None:
    try:
        return RankRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None  # the probe has said why


def lines(found: RankRecord, *, kept: Path | None) -> list[str]:
    """Return the summary of one rank for people."""
    ends = {
        "running": "was killed, or never ended",
        "complete": "ran to its end",
        "exception": f"raised {found.error}",
        "exit": f"called exit ({found.exit_code})",
    }
    torch = (found.fingerprint.get("torch") or {}).get("version", "none")
    told = [f"rank {found.rank} of {found.world_size} {ends[found.end]} (torch {torch})"]
    told += [f"  {name:<15}{text}" for name, text in _facts(found) if text]
    return told + ([f"  {'record':<15}{kept}/rank-{found.rank}.json"] if kept else [])


def _facts(found: RankRecord) -> list[tuple[str, str]]:
    planted = found.fingerprint.get("probe", {}).get("planted", [])
    return [
        ("planted", "; ".join(planted)),
        ("start", _start(found)),
        *(("group", _group(each)) for each in found.groups),
        *(("latency", text) for text in _latencies(found)),
        ("steps", _steps(found) or "none: no optimizer stepped"),
        ("memory", _memory(found)),
        *(
            (each.action, f"{each.seconds:.2f} s in {each.function}")
            for each in found.checkpoints[:5]
        ),
        ("shutdown", "" if found.shutdown_s is None else f"{found.shutdown_s:.2f} s"),
        *(
            ("warning", f"{each.times} x {each.category}: {each.text[:120]}")
            for each in found.warnings
        ),
        *(("left behind", each) for each in found.left_behind),
        *(("recorder dump", each) for each in found.artifacts),
    ]


def _start(found: RankRecord) -> str:
    times = [
        ("import torch", found.import_s),
        ("init_process_group", found.init_s),
        ("first collective", found.first_collective_s),
    ]
    return ", ".join(f"{name} {_seconds(time)}" for name, time in times if time is not None)


def _group(group: Any) -> str:
    classes = " and ".join(sorted(set(group.classes.values())))
    device = f" on {group.device}" if group.device else ""
    timeout = f", timeout {group.timeout_s:g} s" if group.timeout_s else ""
    ranks = f"{len(group.ranks)} rank{'s' if len(group.ranks) != 1 else ''}"
    asked = group.asked or "no backend asked for"
    return f"{group.name}: {asked} is {classes}{device}, {ranks}{timeout}, {group.calls} calls"


def _latencies(found: RankRecord) -> list[str]:
    operations = dict.fromkeys(each.operation for each in found.latencies)
    return [
        f"{operation}: "
        + ", ".join(
            f"{_seconds(each.median_s)} for {_bytes(each.bytes)}"
            for each in found.latencies
            if each.operation == operation
        )
        for operation in operations
    ]


def _steps(found: RankRecord) -> str:
    if not found.steps:
        return ""
    ordered = sorted(step.seconds for step in found.steps)
    losses = [step.loss for step in found.steps if step.loss is not None]
    text = f"{len(ordered)}, median {_seconds(ordered[len(ordered) // 2])}"
    if losses:
        text += f", loss {losses[0]:.4f} to {losses[-1]:.4f} in the first {len(losses)}"
    return text


def _memory(found: RankRecord) -> str:
    before, peak = found.memory_before_first_step, found.memory_peak
    texts = [f"{_bytes(before)} before the first step"] if before is not None else []
    return ", ".join(texts + ([f"{_bytes(peak)} at the peak"] if peak is not None else []))


def _seconds(time: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if time * factor >= 1:
            return f"{time * factor:.3g} {unit}"
    return f"{time * 1e6:.3g} us"


def _bytes(size: int) -> str:
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.3g} {unit}"


def _refuse(problem: str) -> NoReturn:
    sys.stderr.write(f"keepstep probe: {problem}\n")
    raise typer.Exit(ExitCode.USAGE)
