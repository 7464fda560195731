"""The names that PyTorch writes into the metadata of a distributed checkpoint, all versions.

A file that names anything else is refused. Seen in checkpoints written by PyTorch 2.2.2, 2.3.1,
2.4.1, 2.14.1 and 2.15.0.
"""

from __future__ import annotations

METADATA = "torch.distributed.checkpoint.metadata"
SHARDED = "torch.distributed._shard.sharded_tensor.metadata"  # home of two of the names up to 2.2
FILESYSTEM = "torch.distributed.checkpoint.filesystem"

# Names that did not exist before a version; the two of SHARDED exist to this day.
SINCE = {
    f"{METADATA}.TensorProperties": "2.3",
    f"{METADATA}._MEM_FORMAT_ENCODING": "2.3",
    f"{METADATA}.StorageMeta": "2.4",
}

# Bytes of one element; 0 where elements share bytes, so that sizes are not checked.
DTYPES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
    "quint4x2": 0,
    "quint2x4": 0,
    **{f"{kind}{bits}": 0 for kind in ("int", "uint") for bits in range(1, 8)},
    **dict.fromkeys(("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"), 0),
}

ALLOWED = frozenset(
    {
        *(
            (METADATA, name)
            for name in (
                "Metadata",
                "TensorStorageMetadata",
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "TensorProperties",
                "MetadataIndex",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        (SHARDED, "TensorProperties"),
        (SHARDED, "MEM_FORMAT_ENCODING"),
        (FILESYSTEM, "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # Python 3.13 only
        *(("torch", dtype) for dtype in DTYPES),
    }
)
