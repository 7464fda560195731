"""``keepstep run``: a job that survives lost ranks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from keepstep.cli.run_summary import render_summary
from keepstep.cli.run_view import Narrator, RunView
from keepstep.exit_codes import ExitCode
from keepstep.runtime import inject, ports
from keepstep.runtime.config import transport_asked
from keepstep.runtime.handshake import new_secret
from keepstep.runtime.kept_process import InfrastructureError
from keepstep.runtime.session import RunRequest, Session
from keepstep.runtime.settings import Settings, contradiction
from keepstep.whole import write_whole

if TYPE_CHECKING:
    from keepstep.cli.run_live import LiveView

BACKENDS = ("auto", "gloo", "nccl")
ON_LOSS = ("replace", "shrink", "wait")
# Options that a training script hardly has for itself.
_OURS = ("--spares", "--inject", "--patience", "--on-loss", "--max-recoveries", "--incidents")
MOST_WORKERS, LAST_PORT = 1024, 65535
NEEDED_TORCH, NEEDED_PYTHON = (2, 15), (3, 11)


def run(
    script: Annotated[str, typer.Argument(help="The training script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments.", metavar="[ARGS]...")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", "--nproc-per-node", help="Ranks on each host.")
    ] = 1,
    spares: Annotated[int, typer.Option(help="Warm spares on each host.")] = 0,
    nnodes: Annotated[str, typer.Option(help="Hosts: N, or MIN:MAX.")] = "1",
    join: Annotated[
        str | None,
        typer.Option(
            help="Join the job whose coordinator listens at HOST:PORT; its secret is read "
            "from KEEPSTEP_SECRET."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address under which the other hosts reach this one.")
    ] = "127.0.0.1",
    backend: Annotated[str, typer.Option(help="auto, gloo or nccl.")] = "auto",
    patience: Annotated[
        float | None,
        typer.Option(
            help="Seconds without progress after which a rank counts as stalled; every "
            "other timeout follows. Default: 5 median steps, at least 1 s."
        ),
    ] = None,
    on_loss: Annotated[
        str,
        typer.Option(
            help="When no spare is ready: replace (wait for the process that is being "
            "started), shrink, or wait (also for another host)."
        ),
    ] = "replace",
    max_recoveries: Annotated[int, typer.Option(help="End the job beyond this many.")] = 1000,
    injections: Annotated[
        list[str] | None,
        typer.Option(
            "--inject", help="A fault on purpose: KIND@STEP:RANK[=VALUE].", metavar="SPEC"
        ),
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="Append events here, a JSON line each.")
    ] = None,
    summary: Annotated[Path | None, typer.Option(help="Write the summary here, as JSON.")] = None,
    incidents: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the evidence of each fault: recorder dumps, stacks, verdict. "
            "Default: keepstep/incidents in the user's state directory."
        ),
    ] = None,
    keep_incidents: Annotated[
        int, typer.Option(help="Keep the newest N incidents of that folder; 0: write none.")
    ] = 20,
    port: Annotated[int, typer.Option(help="Port of the coordinator; 0: any free one.")] = 0,
    metrics_port: Annotated[
        int, typer.Option(help="Port of the metrics for Prometheus; 0: any free one.")
    ] = 0,
    python: Annotated[
        str | None,
        typer.Option(
            help="Interpreter of the workers, such as the one of a stack; it needs torch, not "
            "keepstep. Default: the one that runs this command.",
            metavar="EXE",
        ),
    ] = None,
) -> None:
    """Run SCRIPT on several ranks and keep it going when one is lost, hangs or slows down."""
    request = _request(
        script=script,
        arguments=arguments or [],
        workers=workers,
        spares=spares,
        nnodes=nnodes,
        join=join,
        host=host,
        backend=backend,
        patience=patience,
        on_loss=on_loss,
        max_recoveries=max_recoveries,
        injections=injections or [],
        events=events,
        summary=summary,
        incidents=incidents or _state_directory() / "incidents",
        keep_incidents=keep_incidents,
        port=port,
        metrics_port=metrics_port,
        python=python,
    )
    _note_late_options(script, arguments or [])
    view = _view(request)
    request = dataclasses.replace(request, output=view.output)
    try:
        result = asyncio.run(view.follow(Session(request, view.show)))
    except InfrastructureError as error:
        sys.stderr.write(f"keepstep: {error}\n")
        raise typer.Exit(ExitCode.INFRASTRUCTURE) from error
    planned = [str(injection) for injection in request.injections]
    report = render_summary(result.summary, result.exit_code, result.why, planned)
    with contextlib.suppress(OSError):  # a terminal that is gone does not make the job a failure
        sys.stderr.write(report)
        sys.stderr.flush()
    if summary is not None and result.summary is not None:
        _write_summary(summary, json.dumps(result.summary, indent=2))
    raise typer.Exit(result.exit_code)


def _write_summary(path: Path, text: str) -> None:
    try:
        write_whole(path, [text, "\n"])
    except OSError as error:
        sys.stderr.write(
            f"keepstep: the job ended as said above, but --summary {path} could not be written: "
            f"{error.strerror or error}. The summary:\n{text}\n"
        )
        raise typer.Exit(ExitCode.INFRASTRUCTURE) from error


def _note_late_options(script: str, arguments: list[str]) -> None:
    """Say that an option of ours behind the script is the script's: nothing else would tell."""
    late = [each for each in arguments if each.partition("=")[0] in _OURS]
    if late:
        sys.stderr.write(
            f"keepstep run: {late[0]} comes after {script}, so the script gets it; for keepstep "
            "write it before the script\n"
        )


def _request(
    *,
    script: str,
    arguments: list[str],
    workers: int,
    spares: int,
    nnodes: str,
    join: str | None,
    host: str,
    backend: str,
    patience: float | None,
    on_loss: str,
    max_recoveries: int,
    injections: list[str],
    events: Path | None,
    summary: Path | None,
    incidents: Path,
    keep_incidents: int,
    port: int,
    metrics_port: int,
    python: str | None,
) -> RunRequest:
    interpreter, import_from = _interpreter(python)
    if not Path(script).is_file():
        _refuse(f"{script}: no such script (looked in {Path.cwd()})")
    _one_of("--backend", backend, BACKENDS)
    _one_of("--on-loss", on_loss, ON_LOSS)
    _check_transport()
    if max(workers, spares) > MOST_WORKERS:
        _refuse(f"--workers and --spares: at most {MOST_WORKERS} on a host")
    for option, number in (("--port", port), ("--metrics-port", metrics_port)):
        if not 0 <= number <= LAST_PORT:
            _refuse(f"{option} {number}: wanted 1 to {LAST_PORT}, or 0 for any free one")
    if workers < 1 or min(spares, max_recoveries, keep_incidents) < 0:
        _refuse(
            "--workers must be 1 or more, --spares, --max-recoveries and --keep-incidents 0 or more"
        )
    low, high = _hosts(nnodes)
    settings = Settings(
        workers=workers,
        spares=spares,
        min_agents=low,
        max_agents=high,
        patience=patience,
        on_loss=on_loss,
        max_recoveries=max_recoveries,
    )
    problem = contradiction(settings)
    if problem is not None:
        _refuse(problem)
    try:
        plan = tuple(inject.parse(injections, settings.world_size))
    except ValueError as error:
        _refuse(str(error))
    _check_host(host)
    for option, path in (("--events", events), ("--summary", summary)):
        _check_output(option, path)
    if keep_incidents > 0:
        _check_incidents(incidents)
    if high > 1 and join is None and not os.environ.get("KEEPSTEP_SECRET"):
        _refuse(
            f"--nnodes {nnodes} needs a secret that every host knows: "
            "export KEEPSTEP_SECRET=$(openssl rand -hex 32) on each of them"
        )
    if port and join is None and not ports.is_free(host, port):
        _refuse(f"--port {port}: in use on {host}; choose another, or 0 for any free one")
    if metrics_port and not ports.is_free(host, metrics_port):
        _refuse(f"--metrics-port {metrics_port}: in use on {host}; choose another, or 0 for any")
    return RunRequest(
        settings=settings,
        backend=_backend(backend),
        command=[script, *arguments],
        injections=plan,
        host=host,
        port=port,
        events=events,
        incidents=incidents.resolve(),
        kept_incidents=keep_incidents,
        join=_address(join) if join is not None else None,
        secret=_secret(join),
        name=f"{os.uname().nodename}-{os.getpid()}",
        metrics_port=metrics_port,
        python=interpreter,
        import_from=import_from,
    )


def _view(request: RunRequest) -> RunView | LiveView:
    """Return the live view on a terminal, plain lines elsewhere."""
    narrator = Narrator(owns_coordinator=request.join is None)
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", ""):
        return RunView(sys.stderr, narrator)
    from keepstep.cli.run_live import LiveView  # rich takes a tenth of a second to import

    return LiveView(sys.stderr, narrator, own_stdout=sys.stdout.isatty())


def _interpreter(python: str | None) -> tuple[str, str]:
    """Return the workers' interpreter, and where it finds keepstep: "" for where we found it."""
    if python is None:
        try:
            _check_torch(metadata.version("torch"))
        except metadata.PackageNotFoundError:
            _refuse(
                "torch is not installed beside keepstep; install it with: pip install "
                "'torch>=2.15', or name an interpreter that has it with --python"
            )
        return sys.executable, ""
    # Imported here: who asks for no other interpreter need not wait for it.
    from keepstep.checkpoint.testload import NoInterpreterError, environment_of
    from keepstep.stack.exposed import exposed

    try:
        found = environment_of(python)
    except NoInterpreterError as error:
        _refuse(f"--python {error}")
    if found["torch"] is None:
        _refuse(f"--python {python}: it has no torch; wanted 2.15 or newer")
    if _numbers(found["python"]) < NEEDED_PYTHON:
        _refuse(f"--python {python}: it is Python {found['python']}; wanted 3.11 or newer")
    _check_torch(str(found["torch"]["version"]))
    # Made absolute and no more: a link is what makes an environment of an interpreter.
    return os.path.abspath(shutil.which(python) or python), str(exposed())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _check_torch(version: str) -> None:
    if _numbers(version) < NEEDED_TORCH:
        _refuse(
            f"torch {version} cannot change the members of a process group: `keepstep run` needs "
            "2.15 or newer (pip install 'torch>=2.15'). With this torch the same script runs "
            "unsupervised under torchrun"
        )


def _check_host(host: str) -> None:
    if not host:
        _refuse("--host is empty: an address of this machine is wanted")
    try:
        ports.listen(host, 0).close()
    except OSError as error:
        _refuse(f"--host {host}: this machine does not have that address ({error.strerror})")


def _check_output(option: str, path: Path | None) -> None:
    """Refuse before the job what could not be written after it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        what = "is a folder" if path.is_dir() else f"{folder} is missing or not writable"
        _refuse(f"{option} {path}: {what}; name a file in a folder that you can write to")


def _state_directory() -> Path:
    """Return where this user keeps what programs write down (XDG base directories)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "keepstep"


def _check_incidents(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        _refuse(
            f"--incidents {folder}: cannot be written to ({error.strerror}); name another folder, "
            "or write none with --keep-incidents 0"
        )


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        _refuse(f"{option} {value}: known are {', '.join(allowed)}")


def _hosts(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not low.isdecimal() or (high and not high.isdecimal()) or int(low) < 1:
        _refuse(f"--nnodes {text}: wanted N or MIN:MAX, for example 2 or 2:3")
    return int(low), int(high or low)


def _check_transport() -> None:
    try:
        transport_asked(os.environ)
    except ValueError as error:
        _refuse(str(error))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        _refuse(f"--join {text}: wanted HOST:PORT, as the first host prints it when it waits")
    return host, int(port)


def _secret(join: str | None) -> str:
    secret = os.environ.get("KEEPSTEP_SECRET", "")
    if join is not None and not secret:
        _refuse(
            "--join needs the job's secret in the environment: KEEPSTEP_SECRET=... keepstep run "
            "--join ... (the first host is started with the same KEEPSTEP_SECRET)"
        )
    return secret or new_secret()


def _backend(asked: str) -> str:
    if asked == "nccl" or (asked == "auto" and _has_gpu()):
        if os.environ.get("TORCH_DIST_USE_NCCL2") == "0":
            _refuse(
                "TORCH_DIST_USE_NCCL2=0 selects the old NCCL backend, which cannot change members; "
                "unset it, or use --backend gloo"
            )
        return "nccl"
    return "gloo"


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _refuse(problem: str) -> NoReturn:
    sys.stderr.write(f"keepstep run: {problem}\n")
    raise typer.Exit(ExitCode.USAGE)
