"""Which backend a look takes the groups of a job to have, and why: many findings depend on it."""

from __future__ import annotations

from keepstep.check.scene import Init, Scene


def assumed(scene: Scene) -> tuple[str, ...]:
    """Return one line for each backend: its name, where it comes from, or why it is a guess."""
    if scene.inits:
        return tuple(dict.fromkeys(_of(scene, init) for init in scene.inits))
    none = "no init_process_group in the code that was read"
    if scene.cuda:
        return (f"nccl, assumed: {none}, which names CUDA",)
    return (f"nccl for the variables, none for the code, assumed: {none}, which names no CUDA",)


def _of(scene: Scene, init: Init) -> str:
    place = f"{init.part.file}:{init.call.lineno}"
    if init.backends:
        return f"{' or '.join(sorted(init.backends))}, {init.source} ({place})"
    asked = "what is asked for" if init.asked else "none is asked for"
    why = f"{asked} at {place} is only known when it runs" if init.asked else f"{asked} at {place}"
    if init.open and not init.asked:
        why = f"the arguments at {place} are only known when it runs"
    name, cuda = ("nccl", "names CUDA") if scene.cuda else ("gloo", "names no CUDA")
    return f"{name}, assumed: {why}, and the code {cuda}"
