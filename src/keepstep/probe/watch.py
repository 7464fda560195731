"""Puts the probe's parts in place before the script runs, and closes the record after it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from keepstep.probe import companion, leftovers, memory
from keepstep.probe.calls import Calls
from keepstep.probe.checkpoints import FUNCTIONS, Checkpoints
from keepstep.probe.groups import Groups
from keepstep.probe.imports import Finder
from keepstep.probe.plants import Plants
from keepstep.probe.record import Record, note_failure
from keepstep.probe.steps import Steps
from keepstep.probe.warned import Warned

if TYPE_CHECKING:
    from collections.abc import Callable

    from keepstep.probe.options import Options

INTERRUPTED = 128 + signal.SIGINT


class Watch:
    """The probe of this process."""

    def __init__(self, options: Options) -> None:
        rank = os.environ.get("RANK", "0")
        path = options.record.absolute() / f"rank-{rank}.json"
        self.record = Record(path, os.path.abspath(options.script), options.arguments)
        self._plants = Plants(
            self.record, slow=options.slow, faster=options.faster, plants=options.plants
        )
        self._sweep = options.sweep
        self._shared = leftovers.shared_names()
        self._script_ended: float | None = None
        self._over = self._interrupted = False
        self._companion: companion.Companion | None = None

    def begin(self) -> None:
        """Write the record for the first time and get ready for the imports of the job."""
        record = self.record
        self._companion = companion.start(
            record.path, record.began, without_dump=self._plants.without_dump
        )
        if self._companion is None:
            record.about["stderr"] = "a terminal: warnings of the C++ side were not read"
        self._known = {each.ident for each in threading.enumerate()}
        record.write()
        self._groups = Groups(record)
        calls = Calls(record, self._groups, with_sweep=self._sweep, ready=self.read_fingerprint)
        checkpoints = Checkpoints(record)
        finder = Finder()
        sys.meta_path.insert(0, finder)
        finder.when_imported("torch.distributed.distributed_c10d", calls.watch)
        for name in FUNCTIONS:
            finder.when_imported(name, checkpoints.watch)
        steps = Steps(record, self._plants, self._groups)
        finder.when_imported("torch", self._torch_is_here(steps))
        finder.when_imported("torch.distributed.pipelining.stage", steps.watch_pipeline)
        Warned(record).watch()
        self._watch_hard_exit()
        atexit.register(self._at_exit)  # the first to be registered is the last to be called

    def _torch_is_here(self, steps: Steps) -> Callable[[Any, float], None]:
        def is_here(torch: Any, seconds: float) -> None:
            self.record.import_s = seconds
            steps.watch(torch)

        return is_here

    def _watch_hard_exit(self) -> None:
        leave = os._exit

        def _exit(status: int) -> None:
            if os.getpid() == self.record.pid:
                self.ended("exit", status)
                self._finish()
            leave(status)

        os._exit = _exit  # type: ignore[assignment]

    def read_fingerprint(self) -> None:
        """Read what this process runs on."""
        try:
            # Imported here: whoever uses the probe alone need not have the rest.
            from keepstep.stack.fingerprint import fingerprint

            self.record.fingerprint = fingerprint()
        except Exception:
            note_failure(self.record, "fingerprint")

    def ended(self, how: str, code: int, error: BaseException | None = None) -> None:
        """Note how the script ended; the interpreter is still to shut down."""
        record = self.record
        if os.getpid() != record.pid:
            return
        self._script_ended = time.perf_counter()
        record.end, record.exit_code = how, code
        self._interrupted = isinstance(error, KeyboardInterrupt)
        if error is not None:
            record.error = f"{type(error).__name__}: {error}"[:2000]
        record.write()

    def _at_exit(self) -> None:
        self._finish()
        if self._interrupted and os.getpid() == self.record.pid:
            # Python ends a script by this signal, but not a module (-m), which the probe is.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def _finish(self) -> None:
        record = self.record
        if self._over or os.getpid() != record.pid:
            return
        self._over = True
        if self._script_ended is not None:
            in_script = record.about.get("destroy_s", 0.0)
            record.shutdown_s = time.perf_counter() - self._script_ended + in_script
        last: tuple[tuple[str, Callable[[], None]], ...] = (
            ("groups", self._groups.count_all),
            ("memory", self._note_memory),
            ("plants", self._plants.at_the_end),
            ("leftovers", self._note_leftovers),
            ("artifacts", self._note_artifacts),
            ("fingerprint", self._read_fingerprint_once),
            ("stderr", self._stop_companion),
        )
        for what, action in last:
            try:
                action()
            except Exception:
                note_failure(record, what)
        record.write(final=True)

    def _note_memory(self) -> None:
        self.record.memory_peak = memory.peak(self.record.memory_peak)

    def _note_leftovers(self) -> None:
        found = [*leftovers.threads(self._known), *leftovers.children()]
        found += leftovers.shared_memory(self._shared)
        self.record.left_behind = [*found, *self._groups.not_destroyed()]

    def _note_artifacts(self) -> None:
        if self._plants.without_dump:
            companion.remove_dumps(self.record.began)
        self.record.artifacts = leftovers.dumps(self.record.began)

    def _read_fingerprint_once(self) -> None:
        if not self.record.fingerprint:
            self.read_fingerprint()

    def _stop_companion(self) -> None:
        if self._companion is not None:
            self.record.warnings.update(self._companion.stop())
