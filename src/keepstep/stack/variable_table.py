"""The table of environment variables: who reads each, from which PyTorch on, and how that is known.

Only names that stand here are ever read from an environment. Standard library only, Python 3.10.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Version = tuple[int, int]

OLDEST: Version = (2, 11)

# Implementations, not spellings: what `nccl` is depends on the version.
GLOO, LEGACY, NCCL2, LAZY = "gloo", "legacy", "nccl2", "lazy"
_NCCLS = (LEGACY, NCCL2, LAZY)
_NEW = (NCCL2, LAZY)

_PULL = "https://github.com/pytorch/pytorch/pull/"
_WHEELS = "of the wheels 2.13.0, 2.14.1 and 2.15.0"
_HEADERS = f"headers {_WHEELS}"
_STRINGS = f"names in the libraries {_WHEELS}"
_PYTHON = f"torch/distributed {_WHEELS}"
_NCCL = "names in libnccl.so.2 of 2.29.7 (torch 2.13.0) and 2.30.7 (2.14.1, 2.15.0)"
_HONOURED = f"{_PULL}192280"  # what nccl2 took over from the legacy backend; 2.14.1 has it


@dataclass(frozen=True)
class Row:
    """What holds for one variable in a span of versions."""

    name: str
    readers: tuple[str, ...] | None  # implementations; None: read whatever the backend
    source: str
    note: str = ""
    first: Version = OLDEST
    last: Version | None = None  # the last version that reads it
    instead: str = ""  # the name to use now, while this one is still read
    later: str = ""  # the name that holds after `last`
    gone_source: str = ""  # of what holds after `last`
    material: bool = True
    elsewhere: dict[str, str] = field(default_factory=dict)  # by implementation: a name, or a word


def _legacy_only(*names: str) -> list[Row]:
    return [Row(name, (LEGACY,), _HEADERS) for name in names]


def _read(
    readers: tuple[str, ...] | None, source: str, *names: str, material: bool = True, note: str = ""
) -> list[Row]:
    return [Row(name, readers, source, note, material=material) for name in names]


def _old_name(name: str, to: str, readers: tuple[str, ...]) -> Row:
    return Row(name, readers, _HEADERS, "still read, with a warning", instead=to)


_C10D_NCCL = [
    *_read(
        _NCCLS,
        _HONOURED,
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"),
        *("TORCH_NCCL_HIGH_PRIORITY", "TORCH_NCCL_USE_COMM_NONBLOCKING"),
        *("TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_CUDA_EVENT_CACHE"),
    ),
    *_read(_NCCLS, _STRINGS, "TORCH_NCCL_RANKS_PER_ROOT"),
    *_legacy_only(
        *("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_ENABLE_MONITORING"),
        *("TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_DESYNC_DEBUG"),
        *("TORCH_NCCL_COORD_CHECK_MILSEC", "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"),
        *("TORCH_NCCL_BCAST_UNIQUEID", "TORCH_NCCL_RETHROW_CUDA_ERRORS"),
        *("TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "TORCH_NCCL_NONBLOCKING_TIMEOUT"),
        *("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",),
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING",
    ),
    Row(
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        (LEGACY,),
        _HONOURED,
        "nccl2 always registers what the caching allocator allocates",
    ),
    Row(
        "TORCH_NCCL_NAN_CHECK",
        (LEGACY,),
        _PYTHON,
        elsewhere=dict.fromkeys(_NEW, "TORCH_DIST_NAN_CHECK"),
    ),
    Row(
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        (LEGACY,),
        _HEADERS,
        "2.15 never records streams, so it has nothing to switch",
        last=(2, 14),
        gone_source=f"{_PULL}194701",
    ),
    Row("TORCH_NCCL_TEARDOWN_ON_TIMEOUT", (LEGACY,), _HEADERS, first=(2, 15)),
    Row("TORCH_NCCL2_RECONFIGURE_SHRINK_GROW", (NCCL2,), _STRINGS, first=(2, 15)),
    _old_name("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", _NCCLS),
    _old_name("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT", _NCCLS),
    _old_name("NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING", _NCCLS),
    _old_name("NCCL_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG", (LEGACY,)),
    _old_name(
        "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        (LEGACY,),
    ),
]

# nccl2 writes through a hook since 2.15; before, only what somebody attached by hand.
_NO_RECORDER = dict.fromkeys(_NEW, "nothing records on this backend before 2.15")
_NO_DUMP = "a group of nccl-lazy left no dump when it hung (measured on H200)"


def _recorder(name: str, instead: str = "") -> list[Row]:
    every = (GLOO, LEGACY)
    return [
        Row(name, every, _HEADERS, last=(2, 14), instead=instead, elsewhere=_NO_RECORDER),
        Row(name, (*every, NCCL2, LAZY), _HEADERS, first=(2, 15), instead=instead),
    ]


def _dump(name: str, old: bool) -> list[Row]:
    rows = [Row(name, (LEGACY,), _HEADERS, last=(2, 14), elsewhere=_NO_RECORDER)] if old else []
    now = Row(
        name,
        (LEGACY, NCCL2) if old else (NCCL2,),
        _HEADERS,
        first=(2, 15),
        elsewhere={LAZY: _NO_DUMP} if old else {LEGACY: f"TORCH_NCCL_{name[9:]}", LAZY: _NO_DUMP},
    )
    return [*rows, now]


_RECORDER = [
    *_recorder("TORCH_FR_BUFFER_SIZE"),
    *_recorder("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
    *_recorder("TORCH_FR_CPP_STACK"),
    *_recorder("TORCH_NCCL_TRACE_CPP_STACK", "TORCH_FR_CPP_STACK"),
    *_recorder("TORCH_FR_DUMP_TEMP_FILE"),
    *_recorder("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    *_recorder("TORCH_FR_DUMP_DYNAMIC_FILE_NAME"),
    *_recorder("TORCH_INCLUDE_STACK_TRACE"),
    *_recorder("TORCH_INCLUDE_ONLY_ACTIVE"),
    *_dump("TORCH_NCCL_DUMP_ON_TIMEOUT", old=True),
    *_dump("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", old=True),
    *_dump("TORCH_FR_DUMP_ON_TIMEOUT", old=False),
    *_dump("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", old=False),
    *_read(None, "torch/utils of the wheels", "TORCH_SYMBOLIZE_MODE", "TORCH_DISABLE_ADDR2LINE"),
]

_C10D = [
    Row(
        "TORCH_DIST_USE_NCCL2",
        None,
        f"{_PULL}192281",
        "read once a process, when nccl is first named; on 2.14 it opts in with 1",
        first=(2, 14),
        last=(2, 14),
    ),
    Row(
        "TORCH_DIST_USE_NCCL2",
        None,
        f"{_PULL}192281",
        "read once a process, when nccl is first named; 0 brings the legacy backend back",
        first=(2, 15),
    ),
    Row("TORCH_DIST_NAN_CHECK", None, _PYTHON, first=(2, 14)),
    *_read(None, _PYTHON, "TORCH_DIST_INIT_BARRIER", "TORCH_DISTRIBUTED_USE_TORCHCOMMS"),
    *_read(None, _PYTHON, "TORCH_DISTRIBUTED_DEBUG", "USE_LIBUV"),
    Row(
        "TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P",
        None,
        _PYTHON,
        "2.15 ignores the old name without a word",
        first=(2, 14),
        last=(2, 14),
        later="TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P",
        gone_source="torch/distributed/config.py of the wheel 2.15.0",
    ),
    Row("TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P", None, _PYTHON, first=(2, 15)),
    Row("TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK", None, _PYTHON, last=(2, 13)),
    Row(
        "TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK",
        None,
        "torch/compiler/config.py of the wheels 2.14.1 and 2.15.0",
        first=(2, 14),
        instead="TORCH_COMPILE_ON_ONE_RANK",
    ),
    Row("TORCH_COMPILE_ON_ONE_RANK", None, _PYTHON, first=(2, 14)),
    Row("TORCH_WATCHDOG_POLL_INTERVAL_SECS", None, _PYTHON, first=(2, 15)),
    Row("TORCH_WATCHDOG_HEALTH_INTERVAL_SECS", None, _PYTHON, first=(2, 15)),
    Row("TORCH_WATCHDOG_STUCK_ACTION", None, _PYTHON, first=(2, 15)),
    *_read(None, _STRINGS, "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"),
    *_read(None, _STRINGS, "TORCH_SYMM_MEM_DISABLE_MULTICAST"),
    *_read(None, _HEADERS, "TORCH_SYMMMEM_NBLOCKS"),
    *_read(None, _PYTHON, "TORCH_SYMMMEM_IMPLICIT_POOL", "TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP"),
    *_read(None, _PYTHON, "DCP_USE_PREFIX_STORE", "DCP_DISABLE_AUTOMATIC_GC"),
    *_read(None, _PYTHON, "DCP_DISABLE_MANUAL_GC"),
]

_GLOO = [
    *_read((GLOO,), _STRINGS, "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"),
    *_read((GLOO,), _HEADERS, "TORCH_GLOO_LAZY_INIT"),
    *_read((GLOO,), _STRINGS, "GLOO_DISABLE_CONNECTION_RETRIES", "GLOO_ENABLE_STORE_V2_API"),
    *_read((GLOO,), _STRINGS, "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER"),
    *_read((GLOO,), _STRINGS, "GLOO_LOG_LEVEL", material=False),
]

_LAUNCH = [
    *_read(
        None,
        _PYTHON,
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        material=False,
    ),
    *_read(
        None,
        "CUDA, cuBLAS, OpenMP and PyTorch's own documentation",
        *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER"),
        *("CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
        *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"),
        *("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "TORCH_BLAS_PREFER_CUBLASLT"),
    ),
    *_read(None, _STRINGS, "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", material=False),
]


def _nccl(*names: str, material: bool = True) -> list[Row]:
    return [Row(f"NCCL_{name}", _NCCLS, _NCCL, material=material) for name in names]


_NEW_IN_2_30 = (
    *("IBVERBS_LIB", "MULTI_RANK_GPU_ENABLE", "NET_MERGE_POLICY", "IB_OOO_RQ"),
    *("MNNVL_CROSS_CLIQUE", "P2P_MAX_PEERS", "RMA_DISABLE", "GRAPH_STREAM_ORDERING"),
)

_NCCL_LIBRARY = [
    # How groups begin, and what they cost.
    *_nccl("COMM_ID", "HOSTID", "CONF_FILE", "RUNTIME_CONNECT", "COMM_BLOCKING", "WIN_ENABLE"),
    *_nccl("COMM_SPLIT_SHARE_RESOURCES", "COMM_SHRINK_SHARE_RESOURCES", "CUMEM_ENABLE"),
    *_nccl("CUMEM_HOST_ENABLE", "NVLS_ENABLE", "NVLS_NCHANNELS", "BUFFSIZE", "LL_BUFFSIZE"),
    *_nccl("LL128_BUFFSIZE", "OOB_NET_ENABLE", "OOB_NET_IFNAME"),
    *_nccl("UID_STAGGER_RATE", "UID_STAGGER_THRESHOLD", "ENABLE_VERSION_CHECK"),
    # Which way the bytes go.
    *_nccl("SOCKET_IFNAME", "SOCKET_FAMILY", "SOCKET_NTHREADS", "NSOCKS_PERTHREAD"),
    *_nccl("SOCKET_RETRY_CNT", "SOCKET_RETRY_SLEEP_MSEC", "SOCKET_POLL_TIMEOUT_MSEC"),
    *_nccl("IB_DISABLE", "IB_HCA", "IB_TIMEOUT", "IB_RETRY_CNT", "IB_GID_INDEX", "IB_TC", "IB_SL"),
    *_nccl("IB_PKEY", "IB_ADAPTIVE_ROUTING", "IB_AR_THRESHOLD", "IB_QPS_PER_CONNECTION"),
    *_nccl("IB_SPLIT_DATA_ON_QPS", "IB_PCI_RELAXED_ORDERING", "IB_MERGE_NICS", "IB_ADDR_FAMILY"),
    *_nccl("IB_ADDR_RANGE", "IB_ROCE_VERSION_NUM", "IB_DATA_DIRECT", "IB_RETURN_ASYNC_EVENTS"),
    *_nccl("IB_ECE_ENABLE", "IB_FIFO_TC", "IB_USE_INLINE", "NET", "NET_PLUGIN"),
    *_nccl("NET_GDR_LEVEL", "NET_GDR_READ", "NET_GDR_C2C", "NET_SHARED_BUFFERS", "NET_MERGE_LEVEL"),
    *_nccl("NETDEVS_POLICY", "CROSS_NIC", "DMABUF_ENABLE", "GDRCOPY_ENABLE", "TUNER_PLUGIN"),
    *_nccl("PROFILER_PLUGIN", "ENV_PLUGIN", "GIN_ENABLE", "GIN_TYPE", "GIN_PLUGIN"),
    *_nccl("P2P_DISABLE", "P2P_LEVEL", "P2P_DIRECT_DISABLE", "P2P_USE_CUDA_MEMCPY"),
    *_nccl("P2P_READ_ENABLE", "PXN_DISABLE", "PXN_C2C", "P2P_PXN_LEVEL", "SHM_DISABLE"),
    *_nccl("SHM_LOCALITY", "MNNVL_ENABLE", "MNNVL_UUID", "MNNVL_CLIQUE_ID", "TOPO_FILE"),
    *_nccl("GRAPH_FILE", "IGNORE_CPU_AFFINITY", "IGNORE_DISABLED_P2P"),
    # How collectives are computed.
    *_nccl("ALGO", "PROTO", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS"),
    *_nccl("MIN_P2P_NCHANNELS", "MAX_P2P_NCHANNELS", "NCHANNELS_PER_NET_PEER", "CTA_POLICY"),
    *_nccl("CGA_CLUSTER_SIZE", "COLLNET_ENABLE", "COLLNET_NODE_THRESHOLD", "PAT_ENABLE"),
    *_nccl("ALLGATHERV_ENABLE", "LAUNCH_MODE", "LAUNCH_ORDER_IMPLICIT", "GRAPH_REGISTER"),
    *_nccl("GRAPH_MIXING_SUPPORT", "LOCAL_REGISTER", "LEGACY_CUDA_REGISTER", "SYM_KERNEL"),
    *_nccl("SYM_CTAS", "WORK_FIFO_BYTES", "WORK_ARGS_BYTES", "MEM_SYNC_DOMAIN", "NVB_DISABLE"),
    *_nccl("SET_STACK_SIZE", "CHECK_POINTERS", "CHECK_MODE", "DISABLE_MEM_MANAGER"),
    *_nccl("RAS_ENABLE", "RAS_ADDR", "RAS_TIMEOUT_FACTOR", "SET_THREAD_NAME", "NVTX_DISABLE"),
    *(Row(f"NCCL_{name}", _NCCLS, _NCCL, first=(2, 14)) for name in _NEW_IN_2_30),
    *(
        Row(f"NCCL_{name}", _NCCLS, _NCCL, last=(2, 13), gone_source=_NCCL)
        for name in ("SHM_USE_CUDA_MEMCPY", "SHM_MEMCPY_MODE")
    ),
    # What it says.
    *_nccl("DEBUG", "DEBUG_SUBSYS", "DEBUG_FILE", "DEBUG_TIMESTAMP_FORMAT", material=False),
    *_nccl("TOPO_DUMP_FILE", "GRAPH_DUMP_FILE", "WARN_ENABLE_DEBUG_INFO", material=False),
]


def _by_name(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return {name: tuple(sorted(each, key=lambda row: row.first)) for name, each in found.items()}


ROWS: dict[str, tuple[Row, ...]] = _by_name(
    [*_C10D, *_C10D_NCCL, *_RECORDER, *_GLOO, *_NCCL_LIBRARY, *_LAUNCH]
)
