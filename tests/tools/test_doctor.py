"""The doctor: what it finds, and what it says where io_uring is denied."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from outcrop.ingest.build import import_graph
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.tools import doctor
from outcrop.tools.cage import group_limit_bytes
from outcrop.tools.doctor import diagnose
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


def looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that a diagnosis reads."""
    looked: list[Path] = []
    look = doctor._look_at_file

    def spy(found: doctor.Diagnosis, file: Path, measure: bool) -> None:
        looked.append(file)
        look(found, file, measure)

    monkeypatch.setattr(doctor, "_look_at_file", spy)
    assert diagnose(path).random_reads_per_second
    return looked


def test_a_store_is_measured_by_its_largest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=5000, edges=100, dim=1000))
    synthesise(tmp_path / "t", SynthOptions(nodes=5000, edges=5_000_000, dim=0))
    before = sorted(tmp_path.rglob("*"))
    assert looked_at(tmp_path / "s", monkeypatch) == [tmp_path / "s/features.npy"]
    assert looked_at(tmp_path / "t", monkeypatch) == [tmp_path / "t/topology/indices.npy"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_with_adopted_features_is_measured_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5000, 1000), np.float32))
    (tmp_path / "g.txt").write_text("0 1\n")
    attributes = file_attributes(Files(tmp_path / "x.npy", adopt_features=True))
    import_graph(
        edgelist_source(tmp_path / "g.txt", num_nodes=5000, attributes=lambda _: attributes),
        tmp_path / "s",
    )
    assert looked_at(tmp_path / "s", monkeypatch) == [tmp_path / "x.npy"]


def test_a_small_store_is_not_judged(tmp_path: Path) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=3, edges=3, dim=4, classes=2))
    before = sorted(tmp_path.rglob("*"))
    found = diagnose(tmp_path / "s")
    assert found.random_reads_per_second is None and found.engine
    assert not any("random reads" in advice.problem for advice in found.advice)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="typo"):
        diagnose(tmp_path / "typo")


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
    code = "from outcrop.tools.doctor import group_limit_bytes; print(group_limit_bytes())"
    done = run_caged([sys.executable, "-c", code], 300 << 20)
    assert done.output.strip() == str(300 << 20)
    assert group_limit_bytes() != 300 << 20
