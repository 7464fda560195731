"""Where PyTorch 2.15 writes a dump, and which variables each recorder reads.

Taken from the headers and libraries of PyTorch 2.15.0. Of the names of one setting the first that
is set wins; the others are deprecated spellings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keepstep.recorder.model import Backend

_TRUE = frozenset(("y", "yes", "1", "t", "true"))
_FALSE = frozenset(("n", "no", "0", "f", "false"))


class VariableError(ValueError):
    """A variable has a value that PyTorch refuses when a process group is made."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting and the names that each recorder reads for it, in their precedence."""

    default: str
    legacy: tuple[str, ...] = ()
    nccl2: tuple[str, ...] = ()
    gloo: tuple[str, ...] = ()
    torchcomms: tuple[str, ...] = ()

    def names(self, backend: Backend) -> tuple[str, ...]:
        """Return the names that the recorder of ``backend`` reads; () where it reads none."""
        match backend:
            case Backend.NCCL_LEGACY:
                return self.legacy
            case Backend.NCCL2 | Backend.NCCL_LAZY:
                return self.nccl2
            case Backend.GLOO:
                return self.gloo
            case Backend.TORCHCOMMS:
                return self.torchcomms
            case Backend.OTHER | Backend.UNKNOWN:
                return self.nccl2

    def all_names(self) -> frozenset[str]:
        """Return every name of the setting, whoever reads it."""
        return frozenset((*self.legacy, *self.nccl2, *self.gloo, *self.torchcomms))


def _pair(name: str, old: str = "NCCL_TRACE_") -> tuple[str, str]:
    return f"TORCH_FR_{name}", f"TORCH_{old}{name}"


_PREFIX = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SIZE, _CPP = _pair("BUFFER_SIZE"), _pair("CPP_STACK")
_ON_TIMEOUT = _pair("DUMP_ON_TIMEOUT", "NCCL_")
_WAIT = _pair("WAIT_TIMEOUT_DUMP_MILSEC", "NCCL_")
_DYNAMIC = ("TORCH_FR_DUMP_DYNAMIC_FILE_NAME",)

BUFFER_SIZE = Setting("2000", _SIZE, _SIZE, _SIZE, ("TORCHCOMM_FR_BUFFER_SIZE",))
CPP_STACK = Setting("false", _CPP, _CPP, _CPP, ("TORCHCOMM_FR_CPP_STACK",))
PREFIX = Setting("", _PREFIX, _PREFIX, _PREFIX, ("TORCHCOMM_FR_DUMP_TEMP_FILE",))
DYNAMIC_NAME = Setting(
    "false", _DYNAMIC, _DYNAMIC, _DYNAMIC, ("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME",)
)
DUMP_ON_TIMEOUT = Setting("true", _ON_TIMEOUT[1:], _ON_TIMEOUT)
WAIT_FOR_DUMP = Setting("15000", _WAIT[1:], _WAIT)  # milliseconds for each attempt to dump
WAIT_BEFORE_ABORT = Setting("15000", _WAIT[1:], _WAIT[1:])  # milliseconds


def _nccl(name: str, *, legacy_only: bool) -> Setting:
    names = (f"TORCH_NCCL_{name}",)
    return Setting("", names, () if legacy_only else names)


SETTINGS = (
    BUFFER_SIZE,
    CPP_STACK,
    PREFIX,
    DYNAMIC_NAME,
    DUMP_ON_TIMEOUT,
    WAIT_FOR_DUMP,
    Setting("true", ("TORCH_INCLUDE_STACK_TRACE",), ("TORCH_INCLUDE_STACK_TRACE",)),
    Setting("false", ("TORCH_INCLUDE_ONLY_ACTIVE",), ("TORCH_INCLUDE_ONLY_ACTIVE",)),
    Setting("3", *2 * (("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"),)),
    Setting("", (), ("TORCH_NCCL2_RECONFIGURE_SHRINK_GROW",)),
    Setting("", (), (), ("TORCH_GLOO_LAZY_INIT",)),
    Setting("0", (), ("TORCH_DIST_NAN_CHECK",)),
    Setting("15000", (), (), (), ("TORCHCOMM_HEALTH_CHECK_WAIT_MS",)),
    *(
        _nccl(name, legacy_only=False)
        for name in (
            *("BLOCKING_WAIT", "HIGH_PRIORITY", "ENABLE_TIMING", "CUDA_EVENT_CACHE"),
            *("USE_COMM_NONBLOCKING", "RANKS_PER_ROOT", "NONBLOCKING_TIMEOUT"),
        )
    ),
    *(
        _nccl(name, legacy_only=True)
        for name in (
            *("PROPAGATE_ERROR", "DESYNC_DEBUG", "ENABLE_MONITORING", "HEARTBEAT_TIMEOUT_SEC"),
            *("COORD_CHECK_MILSEC", "DEBUG_INFO_PIPE_FILE", "EXTRA_DUMP_ON_EXEC"),
            *("RETHROW_CUDA_ERRORS", "TEARDOWN_ON_TIMEOUT", "NAN_CHECK", "BCAST_UNIQUEID"),
            *("LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"),
        )
    ),
)


def value(environment: Mapping[str, str], setting: Setting, backend: Backend) -> str:
    """Return the value that the recorder of ``backend`` uses."""
    names = setting.names(backend)
    return next((environment[name] for name in names if name in environment), setting.default)


def flag(environment: Mapping[str, str], setting: Setting, backend: Backend) -> bool:
    """Return the value of a yes-or-no setting.

    Raises:
        VariableError: PyTorch knows the text neither as yes nor as no.
    """
    for name in setting.names(backend):  # PyTorch checks the names that lose, too
        if name in environment and environment[name].lower() not in _TRUE | _FALSE:
            raise VariableError(f"{name}={environment[name]!r}: 1 or 0 was wanted")
    return value(environment, setting, backend).lower() in _TRUE


def number(environment: Mapping[str, str], setting: Setting, backend: Backend) -> int:
    """Return the value of a whole-number setting.

    Raises:
        VariableError: the text is no whole number.
    """
    for name in setting.names(backend):
        try:
            int(environment.get(name, "0"))
        except ValueError:
            text = f"{name}={environment[name]!r}: a whole number was wanted"
            raise VariableError(text) from None
    return int(value(environment, setting, backend))


@dataclass(frozen=True, slots=True)
class DumpPath:
    """Where one rank writes its dump."""

    path: str
    source: str  # the variable that says so, "" for the default
    dynamic: bool  # the variable is read again when the dump is written, so this may change


def effective_path(
    environment: Mapping[str, str], rank: int, backend: Backend = Backend.NCCL2
) -> DumpPath:
    """Return where the recorder of ``backend`` writes the dump of the global ``rank``.

    Raises:
        VariableError: a variable has a value that PyTorch refuses.
    """
    source = next((name for name in PREFIX.names(backend) if name in environment), "")
    prefix = environment[source] if source else default_prefix(environment)
    dynamic = flag(environment, DYNAMIC_NAME, backend)
    return DumpPath(f"{prefix}{rank}", source, dynamic)


def default_prefix(environment: Mapping[str, str]) -> str:
    """Return the prefix where no variable names one: in the user's cache directory."""
    cache = environment.get("XDG_CACHE_HOME")  # an empty one counts: PyTorch does not look inside
    if cache is None:
        cache = environment.get("HOME", "/tmp") + "/.cache"
    return f"{cache}/torch/comm_lib_trace_rank_"


def ignored(environment: Mapping[str, str], backend: Backend) -> tuple[str, ...]:
    """Return the variables that are set, known, and not read by the recorder of ``backend``."""
    read = {name for setting in SETTINGS for name in setting.names(backend)}
    known = {name for setting in SETTINGS for name in setting.all_names()}
    return tuple(sorted(environment.keys() & (known - read)))


def unknown(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that look like settings of a recorder and exist nowhere in PyTorch."""
    known = {name for setting in SETTINGS for name in setting.all_names()}
    prefixes = ("TORCH_FR_", "TORCH_NCCL_FLIGHT", "TORCH_NCCL_TRACE", "TORCH_NCCL_DEBUG_INFO")
    return tuple(
        sorted(name for name in environment if name.startswith(prefixes) and name not in known)
    )
