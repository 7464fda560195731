"""A rehearsal on the terminal: the same answers in the same order, without the measurements."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from keepstep.canary.verdict import Verdict
from keepstep.incident.answer import printable
from keepstep.report.alike import in_trouble, troubled_gates
from keepstep.report.figures import PER, count_text, ratio_text, seconds_text, sentence_text
from keepstep.report.grid import Block, Grid, grids
from keepstep.report.model import CellResult, ReceiptFile, Rehearsal
from keepstep.report.numbers import numbers_line
from keepstep.report.signs import SIGN
from keepstep.report.steps import steps
from keepstep.report.summary import WHOSE_JOBS, gaps, sentence, verdict_of, verdict_of_cell

_STYLE = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_RUN: "dim",
}


def as_text(
    rehearsal: Rehearsal,
    width: int = 100,
    color: bool = False,
    sealed: ReceiptFile | None = None,
) -> str:
    """Return what is printed.

    Args:
        rehearsal: All that was found. Nothing of its text can steer the terminal.
        width: Columns of the terminal.
        color: Whether to use colours; every verdict is a word as well.
        sealed: The receipt over all of it.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(width, 40),
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in _parts(rehearsal, sealed):
        console.print(part)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).rstrip()


def _parts(rehearsal: Rehearsal, sealed: ReceiptFile | None) -> Iterator[RenderableType]:
    found = verdict_of(rehearsal)
    yield Text(f"{SIGN[found]} {found.value.upper()}", style=_STYLE[found])
    yield _text(sentence(rehearsal), "bold")
    yield _head("What to do next")
    for number, step in enumerate(steps(rehearsal), 1):
        about = f" ({step.about})" if step.about else ""
        yield _indented(f"{number}. {sentence_text(step.text)}{about}")
    yield _head("The matrix")
    for grid in grids(rehearsal):
        yield from _grid(grid)
    yield _indented(numbers_line(rehearsal))
    yield from _controls(rehearsal)
    yield from _trouble(rehearsal)
    yield _head("The drills")
    if rehearsal.drills:
        yield _indented(WHOSE_JOBS)
    yield from _drills(rehearsal)
    yield _head("The boundary: what can be switched back, and until when")
    for row in rehearsal.boundary:
        yield _line(row.proven, row.lever, f"undoes {row.undoes}")
        yield _indented(f"until: {row.until}; keeps checkpoints: {row.keeps_checkpoints}", 6)
        yield _indented(f"cannot undo: {row.cannot_undo}", 6)
    yield from _checkpoint(rehearsal)
    yield from _costs(rehearsal)
    yield from _open(rehearsal)
    if sealed is not None:
        yield _head("Receipt")
        yield _indented(f"{sealed.file}, sha256 {sealed.sha256}")


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _head(title: str) -> Text:
    return Text(f"\n{printable(title)}", style="bold")


def _indented(text: str, by: int = 2, style: str = "") -> Padding:
    return Padding(_text(text, style), (0, 0, 0, by))


def _mark(verdict: Verdict, word: str = "") -> Text:
    return Text(f"{SIGN[verdict]} {word or verdict.value}", style=_STYLE[verdict])


def _line(verdict: Verdict, what: str, why: str) -> Padding:
    line = Text.assemble(_mark(verdict), "  ", (printable(what), "bold"), f": {printable(why)}")
    return Padding(line, (0, 0, 0, 2))


def _grid(grid: Grid) -> Iterator[RenderableType]:
    """Yield one table for each topology, with the jobs that it has."""
    for block in grid.blocks:
        found = [cell for row in block.rows for cell in row.cells if cell is not None]
        if all(cell.state == "not run" for cell in found):
            yield _indented(f"{block.topology}: {count_text(len(found), 'cell')} not run", 2, "dim")
        else:
            yield _block(grid.jobs, block)


def _block(jobs: Sequence[str], block: Block) -> Padding:
    used = [at for at in range(len(jobs)) if any(row.cells[at] for row in block.rows)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(printable(block.topology), overflow="fold", header_style="dim")
    for at in used:
        table.add_column(printable(jobs[at]), overflow="fold")
    for row in block.rows:
        label = Text.assemble(printable(row.label), (f"  {row.role}", "dim"))
        table.add_row(label, *(_chip(row.cells[at]) for at in used))
    return Padding(table, (0, 0, 0, 2))


def _chip(cell: CellResult | None) -> Text:
    if cell is None:
        return Text("")
    return _mark(verdict_of_cell(cell), "interrupted" if cell.state == "interrupted" else "")


def _controls(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    controls = rehearsal.judgement.controls
    ran = [control for control in controls if control.verdict is not Verdict.NOT_RUN]
    for control in ran:
        yield _line(control.verdict, f"control {control.name}", control.reason)
    if len(ran) < len(controls):
        yield _indented(f"{count_text(len(controls) - len(ran), 'control')} more: not run")


def _trouble(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    """Yield what did not pass, each with the gates and metrics that say why."""
    for each in in_trouble(rehearsal.cells):
        yield _line(each.found.verdict, each.title, each.reason)
        for names, gate in troubled_gates(each.found):
            wanted = "" if "," in names else f"; wanted {gate.wanted}"
            yield _indented(f"{names}: seen {gate.seen}{wanted}", 6)
        for soft in each.found.soft:
            if soft.judged and soft.verdict is not Verdict.PASS:
                yield _indented(f"{soft.metric}: {ratio_text(soft.ratio)}; {soft.reason}", 6)


def _drills(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    for drill in rehearsal.drills:
        yield _line(drill.verdict, drill.name, drill.reason)
        # A drill that passes is told in one line; what each proof has seen is on the page.
        for proof in () if drill.verdict is Verdict.PASS else drill.proofs:
            yield _indented(f"{SIGN[proof.verdict]} {proof.what}: {proof.seen}", 6)
    if not rehearsal.drills:
        yield _indented("none was run: whether the way back works is not known")


def _checkpoint(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    answer = rehearsal.checkpoint
    if answer is not None:
        yield _head(answer.question)
        yield _line(answer.verdict, "answer", answer.answer)
        for line in answer.evidence:
            yield _indented(line, 6)


def _costs(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    if not rehearsal.costs:
        return
    yield _head(f"What {PER:,} useful steps cost")
    for cost in rehearsal.costs:
        first = next(iter(cost.per_step.values()), None)
        yield _indented(cost.what)
        for variant, hours in cost.per_step.items():
            value = "not known" if hours is None else f"{hours * PER:.3g} {cost.unit}"
            ratio = f" ({ratio_text(hours / first)})" if first and hours else ""
            yield _indented(f"{variant}: {value}{'' if hours == first else ratio}", 4)


def _open(rehearsal: Rehearsal) -> Iterator[RenderableType]:
    yield _head("Open differences")
    for each in rehearsal.differences:
        values = ", ".join(f"{place}: {value}" for place, value in each.values.items())
        yield _indented(f"{each.where}: {each.what}: {values}")
    if not rehearsal.differences:
        yield _indented("none")
    yield _head("What was not run")
    for gap in gaps(rehearsal):
        yield _line(Verdict.NOT_RUN, gap.proves, f"{gap.why} ({_shortened(gap.what)})")
    if not rehearsal.not_run:
        yield _indented("every cell and drill of the plan was begun")
    for line in rehearsal.unprovable:
        yield _indented(f"no machine of this kind can prove {line}")
    yield _head("What ran")
    for stack in rehearsal.stacks:
        facts = ", ".join(f"{name} {value}" for name, value in stack.facts.items())
        yield _indented(f"{stack.name}: PyTorch {stack.torch}{'; ' if facts else ''}{facts}")
    yield _indented(f"{rehearsal.machine.host}, {seconds_text(rehearsal.seconds)} of work")
    for note in rehearsal.notes:
        yield _indented(note)


def _shortened(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
