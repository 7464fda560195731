"""Proves that one pickle is another one, but for the last items of some states.

Where only POPs were put in, nothing has to be unpickled twice to compare: all other bytes are
equal, each POP is an opcode and stands right in front of TUPLE MEMOIZE BUILD, so each object is
built as before, from a state that is one item shorter. ``limited.alone`` shows that nothing else
uses these states.
"""

from __future__ import annotations

import re
from functools import cache

from keepstep.checkpoint.errors import CannotConvertError
from keepstep.checkpoint.opcodes import (
    LONG_TEXT,
    SIMPLE_OR_MARK,
    STOP,
    TEXT,
    code_at,
    first_opcode,
    sequence,
    skip_other,
)

POP = b"0"
_STATE_ENDS = b"t\x94b"  # TUPLE MEMOIZE BUILD


def count_dropped(before: bytes, after: bytes) -> int:
    """Return how many states have lost their last item from ``before`` to ``after``.

    Args:
        before: A pickle without frames.
        after: The same with POPs put in.

    Raises:
        CannotConvertError: Anything else differs.
        UnsafeMetadataError: ``after`` holds an opcode that no checkpoint holds.
    """
    count, at, position = 0, 0, first_opcode(after)
    done = 0  # up to here all of ``after`` is accounted for
    with memoryview(before) as old, memoryview(after) as new:
        while True:
            # Never None: the pattern also matches nothing at all.
            position = _up_to_a_pop().match(after, position).end()  # type: ignore[union-attr]
            code = code_at(after, position)
            if code == LONG_TEXT:
                position = skip_other(after, position, code)
                continue
            if old[at : at + position - done] != new[done:position]:
                break
            at, done = at + position - done, position
            if code == STOP:
                if old[at:] != new[done:] or len(after) != position + 1:
                    break
                return count
            if code != POP[0]:
                skip_other(after, position, code)  # says that it is not allowed
            if old[at : at + 1] != POP:
                if new[position + 1 : position + 4] != _STATE_ENDS:
                    break
                count, done = count + 1, done + 1
            position += 1
    raise CannotConvertError(
        f"the rewritten metadata differs near byte {position} in more than what had to be dropped: "
        "nothing was changed"
    )


@cache
def _up_to_a_pop() -> re.Pattern[bytes]:
    assert SIMPLE_OR_MARK.count(POP) == 1, "POP is one of the opcodes without an argument"
    return sequence(SIMPLE_OR_MARK.replace(POP, b""), TEXT)
