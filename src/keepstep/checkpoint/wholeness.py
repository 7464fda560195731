"""Whether all of a checkpoint is there: metadata that reads to its end, data files long enough."""

from __future__ import annotations

from keepstep.checkpoint.contents import ask, files_of
from keepstep.checkpoint.datafiles import lacking, with_linked
from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.findings import Finding, Weight
from keepstep.checkpoint.readers import GLOBAL, RANK_LOCAL
from keepstep.checkpoint.safetensors import verify_safetensors
from keepstep.checkpoint.store import Store


def lacks(store: Store) -> str:
    """Return what keeps every version from loading all of a checkpoint, "" when nothing does.

    Costs one listing and its metadata, read whole. The content of data files is not looked at:
    ``verify`` does that.
    """
    try:
        found = _missing(store)
    except (UnsafeMetadataError, FileNotFoundError) as error:
        return f"damaged: {error}"
    if not found:
        return ""
    more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
    return f"damaged: {found[0].file}: {found[0].text}{more}"


def _missing(store: Store) -> list[Finding]:
    files = store.files()
    names = [GLOBAL] if GLOBAL in files else sorted(filter(RANK_LOCAL.fullmatch, files))
    if not names:
        findings = verify_safetensors(store, files).findings
        return [each for each in findings if each.weight is Weight.DAMAGE]
    found: list[Finding] = []
    for name in names:
        with store.opened(name) as file:
            stored = files_of(ask(file, "summary")["summary"])
        found += lacking(with_linked(store, files, stored), stored, name)
    return found
