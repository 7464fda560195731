"""How large a dump may be. A real one of 20,000 entries with stacks has about 25 MB."""

from __future__ import annotations

FILE_BYTES = 256 << 20  # one file or one member of an archive
ARCHIVE_BYTES = 16 << 30  # all members of an archive, unpacked
ARCHIVE_MEMBERS = 100_000
TREE_FILES = 200_000
ENTRIES = 500_000  # of one dump; the recorder's default is 2,000
VALUES = 20_000_000  # frames of one dump; stops what expands by references
OPERATION_VALUES = 1 << 18  # tensors, or their dimensions, of one operation
TEXT = 65_536  # characters of one name
RANK = 1 << 24  # beyond any job
INTEGER = (1 << 63) - 1

CHILD_MEMORY = 1536 << 20  # address space of a reading process, bytes
CHILD_SECONDS = 60  # of the processor, for one file
