"""From checked tables to dumps. Equal operations, groups and stacks of all ranks become one."""

from __future__ import annotations

from keepstep.recorder.entries import Call, Entries
from keepstep.recorder.model import (
    Backend,
    Direction,
    Dump,
    Finding,
    Frame,
    Group,
    GroupName,
    Operation,
    Severity,
    Status,
)
from keepstep.recorder.table import ABSENT, STATES, CallRow, FrameRow, GroupRow, OperationRow, Table


class Builder:
    """Builds dumps and remembers the values that repeat in them. Not for several threads."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._calls: dict[CallRow, Call] = {}
        self._operations: dict[OperationRow, Operation] = {}
        self._group_names: dict[tuple[str, str], GroupName] = {}
        self._groups: dict[GroupRow, Group] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._frames: dict[FrameRow, Frame] = {}
        self._stacks: dict[tuple[FrameRow, ...], tuple[Frame, ...]] = {}

    def dump(self, table: Table) -> Dump:
        """Return the dump that ``table`` holds."""
        return Dump(
            version=self._text(table.version),
            library=self._text(table.library),
            backend=Backend(table.backend),
            groups=tuple(map(self._group, table.groups)),
            status={
                number: Status(*(None if count == ABSENT else count for count in counts))
                for number, *counts in table.status
            },
            entries=self._entries(table),
            extra=tuple(map(self._text, table.extra)),
        )

    def _entries(self, table: Table) -> Entries:
        return Entries(
            table.length,
            tuple(map(self._call, table.calls)),
            tuple(map(self._stack, table.stacks)),
            table.columns,
            table.durations,
        )

    def _call(self, row: CallRow) -> Call:
        if row not in self._calls:
            operation, pg_id, group, is_p2p, state, retired, timeout_ms, thread = row
            self._calls[row] = Call(
                operation=self._operation(operation),
                pg_id=pg_id,
                group=self._group_name(group),
                is_p2p=is_p2p,
                state=STATES[state],
                retired=retired,
                timeout_ms=None if timeout_ms == ABSENT else timeout_ms,
                thread=self._text(thread),
            )
        return self._calls[row]

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _group_name(self, key: tuple[str, str]) -> GroupName:
        if key not in self._group_names:
            self._group_names[key] = GroupName(*map(self._text, key))
        return self._group_names[key]

    def _group(self, key: GroupRow) -> Group:
        if key not in self._groups:
            name, description, ranks = key
            if ranks is not None and ranks not in self._ranks:
                self._ranks[ranks] = tuple(map(int, ranks.split(",")))
            members = None if ranks is None else self._ranks[ranks]
            self._groups[key] = Group(self._group_name((name, description)), members)
        return self._groups[key]

    def _operation(self, key: OperationRow) -> Operation:
        if key not in self._operations:
            name, in_sizes, in_dtypes, out_sizes, out_dtypes, direction, own, peer = key
            self._operations[key] = Operation(
                name=self._text(name),
                input_sizes=in_sizes,
                input_dtypes=tuple(map(self._text, in_dtypes)),
                output_sizes=out_sizes,
                output_dtypes=tuple(map(self._text, out_dtypes)),
                direction=None if direction is None else Direction(direction),
                own=own,
                peer=peer,
            )
        return self._operations[key]

    def _stack(self, key: tuple[FrameRow, ...]) -> tuple[Frame, ...]:
        if key not in self._stacks:
            self._stacks[key] = tuple(map(self._frame, key))
        return self._stacks[key]

    def _frame(self, key: FrameRow) -> Frame:
        if key not in self._frames:
            function, file, line = key
            self._frames[key] = Frame(self._text(function), self._text(file), line)
        return self._frames[key]


def findings(table: Table, path: str) -> tuple[Finding, ...]:
    """Return what was noted while the file was read."""
    return tuple(
        Finding(code, path, text, Severity(severity)) for code, text, severity in table.notes
    )
