"""The table of all rules. docs/check.md is written from it."""

from __future__ import annotations

from keepstep.check.finding import Severity
from keepstep.check.rule import Rule

_PT = "https://github.com/pytorch/pytorch"
_BREAKS, _CHANGES = Severity.BREAKS, Severity.CHANGES
_RISK, _NOTE = Severity.RISK, Severity.NOTE


def _rule(code: str, severity: Severity, title: str, why: str, mend: str) -> Rule:
    return Rule(code=code, severity=severity, title=title, why=why, mend=mend)


AREAS = {
    "KS0": "Source",
    "KS1": "Groups and devices",
    "KS2": "Names and classes of backends",
    "KS3": "Communicators and calls",
    "KS4": "Checkpoints and limits of time",
    "KS5": "Environment variables",
    "KS6": "Launch line",
    "KS7": "Machine and stack",
}

_ALL = (
    _rule(
        "KS001",
        _BREAKS,
        "source that Python does not accept",
        "the job cannot import it",
        "mend the line; where it is meant for a newer Python, run keepstep with that one",
    ),
    _rule(
        "KS101",
        _RISK,
        "a group of NCCL without `device_id`",
        "nccl2, the default from 2.15 on, binds a device when the group is made: device_id, else "
        "LOCAL_RANK modulo the number of visible devices, else the global rank modulo it; the "
        "current device (torch.cuda.set_device) is not asked (read in distributed_c10d.py of "
        "2.15.0; https://github.com/meta-pytorch/torchrec/pull/4666)",
        'pass it: init_process_group(..., device_id=torch.device("cuda", local_rank))',
    ),
    _rule(
        "KS102",
        _CHANGES,
        "`torch.cuda.set_device` after the group was made",
        "up to 2.14 the first collective decided on the device, so a later set_device counted; "
        "2.15 has bound the group by then and refuses tensors of another device (measured: "
        '"Expected tensor on cuda:0 but found tensor on cuda:1")',
        "call set_device before init_process_group, and pass the same device as device_id",
    ),
    _rule(
        "KS103",
        _BREAKS,
        "a device per rank that is not LOCAL_RANK's",
        "without device_id nccl2 takes LOCAL_RANK modulo the number of visible devices: two ranks "
        'get one card ("Duplicate GPU detected", '
        "https://github.com/meta-pytorch/torchrec/pull/4666), or an index that is not there",
        "pass the device that this rank uses as device_id; with one visible device per rank that "
        'is torch.device("cuda", 0)',
    ),
    _rule(
        "KS104",
        _BREAKS,
        "one group over several devices in one process",
        "a group of 2.15 is bound to one device and checks it on every call (measured: "
        '"Expected tensor on cuda:0 but found tensor on cuda:1"); the legacy backend with '
        "device_id refuses as well",
        "one process per device, or one group per device (new_group(..., device_id=...))",
    ),
    _rule(
        "KS105",
        _RISK,
        "`barrier()` without a device",
        "without a bound device it takes the current one: every rank that did not choose meets on "
        "cuda:0, which hangs or fills that card, and a warning is new in 2.15 (read in "
        "distributed_c10d.py of 2.15.0; https://github.com/oumi-ai/oumi/issues/1109)",
        "pass device_id to init_process_group, or device_ids=[local_rank] to barrier",
    ),
    _rule(
        "KS106",
        _NOTE,
        "a group without a named backend",
        "one is then chosen per device type (gloo for CPU, nccl for CUDA), and the default limit "
        "of time is 30 minutes instead of the 10 of nccl (read in _get_default_timeout of 2.14.1 "
        "and 2.15.0; https://github.com/pytorch/pytorch/issues/147631)",
        'name it: backend="cpu:gloo,cuda:nccl", and pass timeout=',
    ),
    _rule(
        "KS107",
        _BREAKS,
        "`enable_reconfigure` with nccl-lazy",
        'refused: "nccl-lazy does not support enable_reconfigure" (measured, 2.15.0)',
        'use backend="nccl" (nccl2) for a group that is to be reconfigured',
    ),
    _rule(
        "KS108",
        _RISK,
        "no `destroy_process_group`",
        "NCCL's threads and communicators then end in interpreter shutdown, in an order that "
        f"nobody chose: warnings, and a known way to hang at exit ({_PT}/issues/149153)",
        "call torch.distributed.destroy_process_group() as the last thing of every rank",
    ),
    _rule(
        "KS201",
        _CHANGES,
        'a backend\'s name compared with "nccl"',
        'the name no longer says what runs: "nccl" is the new ProcessGroupNCCL2 from 2.15 on, and '
        'with "nccl-legacy" or "nccl-lazy" the comparison is false, so this branch is skipped '
        "(measured; https://github.com/NVIDIA/Megatron-LM/pull/6225)",
        "ask what it can do, or for the class: torch.distributed.get_backend_impl(group); where a "
        "name must do, accept nccl, nccl2, nccl-lazy and nccl-legacy",
    ),
    _rule(
        "KS202",
        _BREAKS,
        "a group expected to be a `ProcessGroupNCCL`",
        'behind "nccl" is a ProcessGroupNCCL2 from 2.15 on, which is no subclass: the check is '
        "false and the cast fails (measured; https://github.com/pytorch/TensorRT/issues/4658: 20 "
        "tests failed)",
        "accept ProcessGroupNCCL2 and ProcessGroupNCCLLazy as well; until then start with "
        "TORCH_DIST_USE_NCCL2=0 on every rank",
    ),
    _rule(
        "KS203",
        _BREAKS,
        "a call that only the legacy backend has",
        "ProcessGroupNCCL2 does not have it (measured, 2.15.0)",
        "find another way to the same end; until then start with TORCH_DIST_USE_NCCL2=0 on every "
        "rank",
    ),
    _rule(
        "KS204",
        _BREAKS,
        "a backend that one of the two versions does not know",
        '2.11 knows neither nccl-legacy nor nccl-lazy ("Unknown backend type", measured)',
        "choose the backend by an option of the job, so that the old version can be given its own",
    ),
    _rule(
        "KS301",
        _BREAKS,
        "a group made on some ranks only",
        "every rank of the job must call new_group, members or not (its documentation); where the "
        "default group is bound to a device, as on nccl2, the communicator is split in that very "
        "call, in which every rank must take part: the members hang (read in distributed_c10d.py "
        "of 2.15.0)",
        "call new_group on every rank, and use the group only on its members; or pass "
        "use_local_synchronization=True",
    ),
    _rule(
        "KS302",
        _CHANGES,
        "a group that is made and never used",
        "eager communicators cost device memory from the moment they are made: 197 MiB each on "
        "nccl2 over NVLink, 17 MiB over sockets (measured on H200: it depends on the transport, "
        "so measure on your machine); the lazy legacy backend took none before the first use",
        "do not make it, or make it with ProcessGroupNCCL.Options() whose lazy_init is True",
    ),
    _rule(
        "KS303",
        _CHANGES,
        "communicators of a rank, counted",
        "each costs 197 MiB unused and about 485 MiB used on nccl2 over NVLink, 17 MiB over "
        "sockets (measured on H200; on A100 544 to 688 MB were reported, "
        "https://github.com/NVIDIA/nccl/issues/964): it depends on the transport, so measure on "
        "your machine",
        "set lazy_init in the options of groups that are seldom used; plan the memory for the rest",
    ),
    _rule(
        "KS304",
        _RISK,
        "an asynchronous call whose end nobody waits for",
        "its result may be read before it is there, its failure is never seen, and a tensor may "
        "be freed while it is in use: TORCH_NCCL_AVOID_RECORD_STREAMS is gone "
        f"({_PT}/pull/194701)",
        "keep the returned work and call wait() on it",
    ),
    _rule(
        "KS305",
        _RISK,
        "send and receive one by one on an eager backend",
        "a group that is connected when it is made runs its point-to-point calls one after the "
        f"other: pipelines slow down, or two ranks that send first block ({_PT}/issues/154132, "
        "https://github.com/meta-pytorch/torchrec/pull/4472)",
        'batch_isend_irecv, or a group of its own with new_group(backend="nccl-lazy")',
    ),
    _rule(
        "KS306",
        _BREAKS,
        "a call that PyTorch no longer has",
        "the *_multigpu calls are in neither 2.14.1 nor 2.15.0 (looked for in both wheels)",
        "one process per device, with the call of the same name without _multigpu",
    ),
    _rule(
        "KS401",
        _RISK,
        "`except Exception` around a checkpoint's load or save",
        "CheckpointException is a BaseException: the fallback in this handler never runs (read in "
        "torch/distributed/checkpoint/api.py of 2.14.1 and 2.15.0)",
        "except (Exception, torch.distributed.checkpoint.CheckpointException)",
    ),
    _rule(
        "KS402",
        _BREAKS,
        "`**properties.__dict__` of a checkpoint's tensors",
        "2.15 gives TensorProperties a sixth field, strides, which torch.empty and the like do "
        f"not take (measured; {_PT}/pull/194251; Megatron-core does this)",
        "pass the fields that the call takes, by name",
    ),
    _rule(
        "KS403",
        _CHANGES,
        "`torch.load` without `weights_only`",
        "the default is True from 2.6 on and refuses objects that are not allowed: a resume fails "
        "where the first start did not (https://github.com/rwth-i6/returnn/issues/1710)",
        "say it: weights_only=True with torch.serialization.add_safe_globals, or False for files "
        "that you wrote yourself",
    ),
    _rule(
        "KS404",
        _BREAKS,
        "checkpoints that the old version cannot read",
        "2.14 cannot load what 2.15 writes: too many values to unpack (expected 5) (measured): "
        "going back loses every checkpoint since the upgrade",
        "keep the way open: keepstep checkpoint downgrade PATH --for 2.14 makes a copy that 2.14 "
        "loads, keepstep checkpoint shim lets 2.14 load it as it is; or write the old form at once"
        ": keepstep.checkpoint.writer for dcp.save, write_old_format() for all saves, "
        'Checkpoint(readable_by="2.14") in keepstep run; rehearse it: keepstep checkpoint '
        "test-load",
    ),
    _rule(
        "KS405",
        _CHANGES,
        "a save under a limit of time that became shorter",
        "nccl2, nccl-lazy and nccl-legacy had 30 minutes up to 2.14 and have 10 from 2.15 on "
        f"(measured); ranks that wait for a slow save then kill the job ({_PT}/issues/172315)",
        "pass timeout=timedelta(...) to init_process_group, longer than the longest save",
    ),
    _rule(
        "KS501",
        _CHANGES,
        "an environment variable that no longer does anything",
        "the backend of the new version does not read it",
        "take it out, or use what took its place",
    ),
    _rule(
        "KS502",
        _CHANGES,
        "an environment variable with a new name",
        "the old name is ignored, or will be",
        "set the new name",
    ),
    _rule(
        "KS503",
        _NOTE,
        "an environment variable that no table knows",
        "no PyTorch from 2.11 to 2.15 was found to read it; it may be misspelled",
        "compare it with keepstep stack show",
    ),
    _rule(
        "KS504",
        _BREAKS,
        "the way back, set where it is not seen",
        'TORCH_DIST_USE_NCCL2 is read once, when "nccl" is first looked up (read in '
        "distributed_c10d.py of 2.15.0): after init_process_group it does nothing",
        "set it in the launcher's environment, the same on every rank",
    ),
    _rule(
        "KS505",
        _BREAKS,
        "the way back on some ranks only",
        "legacy and new ranks in one group do not speak with each other: the job hangs",
        "set TORCH_DIST_USE_NCCL2 in the launcher's environment, the same on every rank",
    ),
    _rule(
        "KS506",
        _RISK,
        "a hang would leave no recording",
        "the flight recorder is switched off, so that a hang cannot be explained afterwards",
        "take the variable out; keepstep check-recorder says whether a dump would survive",
    ),
    _rule(
        "KS507",
        _NOTE,
        "the store without libuv",
        "libuv is the default of the TCPStore from 2.4 on; the old server does not hold thousands "
        f"of ranks, and both sides must agree ({_PT}/issues/127957)",
        "take use_libuv=False or USE_LIBUV=0 out",
    ),
    _rule(
        "KS508",
        _RISK,
        "a hang that nobody would end",
        "with TORCH_NCCL_ASYNC_ERROR_HANDLING=0 a collective that times out does not end the "
        "process: the job stays as it is until a person comes (documentation of torch.distributed)",
        "take the variable out; its default ends the process",
    ),
    _rule(
        "KS601",
        _BREAKS,
        "`--local-rank` that the script does not take",
        "torch.distributed.launch passes --local-rank, with a dash, from 2.0 on: argparse refuses "
        "it (https://github.com/huggingface/pytorch-image-models/issues/1724)",
        'add_argument("--local-rank", "--local_rank", type=int), or start with torchrun and read '
        'os.environ["LOCAL_RANK"]',
    ),
    _rule(
        "KS602",
        _RISK,
        "a local rank from the command line that torchrun does not pass",
        "torchrun sets LOCAL_RANK and passes no option, so that every rank has the default "
        "(documentation of torch.distributed.run)",
        'read os.environ["LOCAL_RANK"]',
    ),
    _rule(
        "KS603",
        _RISK,
        "more ranks on a host than devices",
        "two ranks would share a card, which NCCL refuses on one host",
        "start as many ranks as the host has devices",
    ),
    _rule(
        "KS701",
        _BREAKS,
        "a driver too old for the wheel's CUDA",
        "CUDA starts not at all, and torch.cuda.is_available() is quietly False "
        "(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html; "
        f"{_PT}/issues/112553)",
        "update the driver, or install a wheel for the CUDA that it knows",
    ),
    _rule(
        "KS702",
        _BREAKS,
        "a GPU that the wheel has no code for",
        f'"no kernel image is available": wheels drop old architectures ({_PT}/issues/190385)',
        "stay on the old wheel there, or build for it",
    ),
    _rule(
        "KS703",
        _BREAKS,
        "fabric manager and driver of different versions",
        f"NVSwitch is then not set up: the first collective hangs ({_PT}/issues/129749)",
        "install the fabric manager of exactly the driver's version, on every host",
    ),
    _rule(
        "KS704",
        _RISK,
        "little shared memory",
        "NCCL takes its host buffers and data loaders their batches from /dev/shm; containers "
        f"give it 64 MiB ({_PT}/issues/152302)",
        "start the container with --shm-size=8g or --ipc=host",
    ),
    _rule(
        "KS705",
        _BREAKS,
        "an extension that does not import",
        "it was built for another PyTorch, Python or CUDA "
        "(https://github.com/Dao-AILab/flash-attention/issues/1644)",
        "install the build for this PyTorch, or build it again",
    ),
    _rule(
        "KS706",
        _BREAKS,
        "an extension built to cast to `ProcessGroupNCCL`",
        "it refers to that class's type information, as a dynamic_cast does; behind nccl is a "
        "ProcessGroupNCCL2 (https://github.com/pytorch/TensorRT/issues/4658)",
        "update the extension; until then start with TORCH_DIST_USE_NCCL2=0 on every rank",
    ),
    _rule(
        "KS707",
        _BREAKS,
        "two NCCL libraries",
        "which is loaded depends on the order of paths: undefined symbols, or two versions in one "
        f"job ({_PT}/issues/119932, {_PT}/issues/186591)",
        "keep the one that the wheel asks for: uv pip uninstall the other, and take it off "
        "LD_LIBRARY_PATH and LD_PRELOAD",
    ),
    _rule(
        "KS708",
        _BREAKS,
        "another PyTorch in the stack than the one that was asked for",
        "a resolver chose it (https://github.com/huggingface/open-r1/issues/684)",
        "install the version that you mean, with a lock file that has hashes",
    ),
)

RULES = {rule.code: rule for rule in _ALL}
