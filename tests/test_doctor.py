"""The doctor: what it finds, and what it says where io_uring is denied."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outcrop.doctor import cgroup_memory_limit, diagnose
from outcrop.ingest.synthetic import SynthOptions, synthesise
from tests.cage import OUTCROP, run_caged

# A real seccomp filter, as a container's: io_uring_setup, _enter and _register answer EPERM.
SECCOMP = """
import ctypes, os, struct, sys
NR = {"x86_64": (425, 426, 427), "aarch64": (425, 426, 427)}[os.uname().machine]
def op(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
load, equal, answer = 0x20, 0x15, 0x06
program = op(load, 0, 0, 0)
for number in NR:
    program += op(equal, 0, 1, number) + op(answer, 0, 0, 0x00050000 | 1)
program += op(answer, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(program)
class Prog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
prog = Prog(len(program) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
if libc.prctl(22, 2, ctypes.byref(prog), 0, 0) != 0:
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def denied(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command that may not use io_uring."""
    done = subprocess.run(
        [sys.executable, "-c", SECCOMP, *command], capture_output=True, text=True, timeout=300
    )
    if done.returncode == 77:
        pytest.skip("this kernel takes no seccomp filter")
    return done


def test_a_diagnosis_is_complete(tmp_path: Path) -> None:
    found = diagnose(tmp_path)
    assert found.cpus >= 1 and found.memory_bytes > 0 and found.free_bytes > 0
    assert found.engine in ("uring", "pool")
    assert found.random_reads_per_second and found.sequential_bytes_per_second
    assert found.versions["numpy"] and found.file_system != "unknown"
    json.dumps(found.to_json())
    assert list(tmp_path.iterdir()) == []  # the probe is removed


def test_a_store_is_measured_by_its_own_file(tmp_path: Path) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=5000, edges=100, dim=64))
    before = sorted(tmp_path.rglob("*"))
    assert diagnose(tmp_path / "s").random_reads_per_second
    assert sorted(tmp_path.rglob("*")) == before


def test_where_io_uring_is_denied_it_says_so_and_everything_works_with_the_pool(
    tmp_path: Path,
) -> None:
    done = denied([*OUTCROP, "doctor", str(tmp_path), "--json"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "Operation not permitted" in found["io_uring_refusal"]
    assert found["engine"] == "pool" and found["random_reads_per_second"] > 0
    assert any("seccomp" in advice["remedy"] for advice in found["advice"])
    store = str(tmp_path / "s")
    made = denied([*OUTCROP, "synth", store, "--nodes", "10K", "--edges", "50K", "--dim", "20"])
    assert made.returncode == 0, made.stderr
    assert denied([*OUTCROP, "verify", store]).returncode == 0
    shown = denied([*OUTCROP, "doctor", store])
    assert "denied: the kernel refuses io_uring_setup" in " ".join(shown.stdout.split())


def test_the_limit_of_the_control_group_is_seen() -> None:
    code = "from outcrop.doctor import cgroup_memory_limit; print(cgroup_memory_limit())"
    done = run_caged([sys.executable, "-c", code], 300 << 20)
    assert done.output.strip() == str(300 << 20)
    assert cgroup_memory_limit() != 300 << 20
