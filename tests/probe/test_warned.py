"""The same warning has the same text in every run."""

from __future__ import annotations

import pytest

from keepstep.probe.warned import from_stderr, normal


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("object at 0x7f3a5c00", "object at ADDRESS"),
        ("took 12.5 ms", "took N ms"),
        ("timeout after 600 seconds", "timeout after N seconds"),
        ("at 2026-11-30 00:33:56,123 UTC", "at TIME UTC"),
        ("pid 4711 is gone, thread: 12", "pid N is gone, thread: N"),
        ("connect to 10.0.0.7:29500", "connect to HOST"),
        ("connect to [::ffff:127.0.0.1]:29500", "connect to [::ffff:HOST]:PORT"),
        (
            "SocketImpl(fd=55, remote=[localhost]:27122)",
            "SocketImpl(fd=N, remote=[localhost]:PORT)",
        ),
        ("in /opt/x/lib/torch/nn/module.py:123", "in module.py"),
        ("rank 3 of torch 2.15.0 has 64 MB", "rank 3 of torch 2.15.0 has 64 MB"),
        ("and/or 1/2", "and/or 1/2"),
        ("two\n  lines", "two lines"),
    ],
)
def test_what_differs_from_run_to_run_is_taken_out(text: str, wanted: str) -> None:
    assert normal(text) == wanted


def test_normal_text_stays() -> None:
    text = "took 12.5 ms at 0x7f3a5c00 in /a/b.py:12"
    assert normal(normal(text)) == normal(text)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "[W1130 00:33:56.123456789 ProcessGroupNCCL.cpp:1250] Warning: destroy it (function x)",
            ("C++ warning", "ProcessGroupNCCL.cpp: Warning: destroy it (function x)"),
        ),
        (
            "[rank1]:[E1130 00:33:56.1 /src/torch/Store.cpp:5] [c10d] failed after 60 s",
            ("C++ error", "Store.cpp: [c10d] failed after N s"),
        ),
        (
            "host:12:34 [0] misc/socket.cc:71 NCCL WARN socketProgress: closed",
            ("NCCL warning", "socketProgress: closed"),
        ),
        ("[I1130 00:33:56.1 Store.cpp:5] all is well", None),
        ("script.py:3: UserWarning: beware", None),
        ("", None),
    ],
)
def test_lines_of_the_cpp_side(line: str, wanted: tuple[str, str] | None) -> None:
    assert from_stderr(line) == wanted
