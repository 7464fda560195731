"""Which class really runs, and on which device: the name of a backend does not say it."""

from __future__ import annotations

from keepstep.canary.gate.case import Case, settle
from keepstep.canary.gate.seen import gpu_names
from keepstep.canary.record import Group, RunRecord
from keepstep.canary.verdict import GateResult


def backend(case: Case) -> GateResult:
    """Every rank built the class that the plan wants for this spelling on this stack."""
    problems = []
    for where, rank in case.ranks():
        groups = [group for group in rank.groups if group.asked in ("", case.cell.backend)]
        if not groups:
            problems.append(f"{where} made no group with {case.cell.backend}")
        for group in groups:
            built = _class(group, case)
            if built != case.wanted_class:
                problems.append(f"{where}: group {group.name!r} is {built or 'of no known class'}")
    return settle(
        case,
        "backend",
        problems,
        seen=f"{case.wanted_class} on every rank",
        wanted=f"{case.wanted_class} for {case.cell.backend} on {case.cell.stack}",
        mend="look at TORCH_DIST_USE_NCCL2 and at the backend that the script passes; if the class "
        "is meant, put it into backends in the plan",
    )


def binding(case: Case) -> GateResult | None:
    """Every rank has a GPU of its own, or one that it shares where the plan has fewer GPUs."""
    if not case.cell.gpus:
        return None
    shared = case.plan.topologies[case.cell.topology].ranks > case.cell.gpus
    problems = [problem for run in case.ended for problem in _doubles(run, shared=shared)]
    return settle(
        case,
        "binding",
        problems,
        seen="every rank is bound to one GPU, which others may have too: the plan has fewer GPUs "
        "than ranks"
        if shared
        else "every rank is bound to a GPU of its own",
        wanted="one GPU for each rank",
        mend="pass device_id to init_process_group, or call torch.cuda.set_device first",
    )


def _class(group: Group, case: Case) -> str:
    device = "cuda" if case.cell.gpus else "cpu"
    return group.classes.get(device, "")


def _doubles(run: RunRecord, *, shared: bool) -> list[str]:
    """Return ranks whose device is unknown, or, unless it is shared, that of another rank."""
    problems = []
    taken: dict[tuple[str, str], int] = {}
    for rank in sorted(run.ranks, key=lambda rank: rank.rank):
        devices = {group.device for group in rank.groups if group.device}
        if len(devices) != 1:
            seen = ", ".join(sorted(devices)) or "no device"
            problems.append(f"pair {run.pair}, rank {rank.rank}: bound to {seen}")
            continue
        device = (rank.host, _card(devices.pop(), gpu_names(rank)))
        if device in taken and not shared:
            problems.append(
                f"pair {run.pair}: ranks {taken[device]} and {rank.rank} share {device[1]} of "
                f"{rank.host}"
            )
        taken[device] = rank.rank
    return problems


def _card(device: str, names: list[str]) -> str:
    """Return the unique name of a device: cuda:0 is another card in each rank that sees one."""
    _, _, index = device.partition(":")
    if index.isdigit() and int(index) < len(names) and names[int(index)]:
        return names[int(index)]
    return device
