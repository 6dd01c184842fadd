"""Doctor: a machine and a path -> what Outcrop can do there, how fast, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from outcrop import _core
from outcrop._version import __version__
from outcrop.disk import Disk
from outcrop.options import DiskOptions, format_size
from outcrop.rates import LEAST_BYTES, Measuring, measure_rates
from outcrop.store.format import MANIFEST, read_manifest
from outcrop.threads.parallel import cpu_count
from outcrop.tools.cage import group_limit_bytes

_PROBE_BYTES = 256 << 20
# Fewer reads end before every worker has begun: the result says nothing about the drive.
_MEASURED = Measuring(16384, 64 << 20)
_PACKAGES = ("numpy", "torch", "torch-geometric")


@dataclass(frozen=True)
class Advice:
    """Something that costs speed or safety here, and what to do about it."""

    problem: str
    remedy: str


@dataclass
class Diagnosis:
    """Everything that the doctor found."""

    outcrop: str = __version__
    python: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    system: str = ""
    cpu: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    """The limit of the control group, where it sets one."""
    gpus: list[str] = field(default_factory=list)
    io_uring_compiled: bool = False
    io_uring_refusal: str | None = None
    """Why it is not allowed; None where it is."""
    path: str = ""
    file_system: str = ""
    free_bytes: int = 0
    direct: bool = False
    """Whether O_DIRECT works there."""
    block_bytes: int = 0
    engine: str = ""
    random_reads_per_second: float | None = None
    """None where nothing was measured: not wanted, or the store is too small."""
    sequential_bytes_per_second: float | None = None
    advice: list[Advice] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(path: str | os.PathLike[str] = ".", *, measure: bool = True) -> Diagnosis:
    """Looks at the machine, and reads a file at `path`: a store's largest, or a temporary one."""
    found = Diagnosis()
    _look_at_machine(found)
    _look_at_path(found, Path(path), measure)
    _advise(found)
    return found


def _look_at_machine(found: Diagnosis) -> None:
    found.python = platform.python_version()
    found.versions = package_versions()
    found.system = f"{platform.system()} {platform.release()}"
    found.cpu = _cpu_name()
    found.cpus = cpu_count()
    found.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found.memory_limit_bytes = group_limit_bytes()
    found.gpus = _gpus()
    found.io_uring_compiled = _core.uring_compiled()
    found.io_uring_refusal = _core.uring_refusal() or None


def package_versions() -> dict[str, str | None]:
    """By the packages' names; None: not installed."""
    found: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _look_at_path(found: Diagnosis, path: Path, measure: bool) -> None:
    found.path = str(path)
    os.stat(path)  # a path that does not exist is an error, not its folder
    folder = path if path.is_dir() else path.parent
    usage = os.statvfs(folder)
    found.free_bytes = usage.f_bavail * usage.f_frsize
    found.file_system = _file_system(folder)
    existing = _largest_file(path) if (path / MANIFEST).exists() else path
    if existing.is_file():
        _look_at_file(found, existing, measure)
        return
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".outcrop-doctor-") as file:
        # Real bytes: a file that was only allocated is read without touching the device.
        block = np.random.default_rng(0).bytes(1 << 20)
        size = min(_PROBE_BYTES, found.free_bytes // 4) if measure else 1 << 20
        for _ in range(max(size >> 20, 1)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        _look_at_file(found, Path(file.name), measure)


def _largest_file(store: Path) -> Path:
    """The largest of a store's own or adopted arrays."""
    arrays = read_manifest(store).arrays.values()
    return store / max(arrays, key=lambda entry: entry.file_bytes).file


def _file_system(folder: Path) -> str:
    """The type of the file system that holds the folder."""
    best, kind = "", "unknown"
    real = os.path.realpath(folder)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def _look_at_file(found: Diagnosis, path: Path, measure: bool) -> None:
    with Disk(DiskOptions(gap_bytes=0)) as disk, disk.open(path) as file:
        found.engine = disk.engine
        found.direct = file.direct
        found.block_bytes = file.block_bytes
        if not measure or file.size < LEAST_BYTES:
            return
        rates = measure_rates(file, _MEASURED)
        found.random_reads_per_second = rates.requests_per_second
        found.sequential_bytes_per_second = rates.bytes_per_second


def _advise(found: Diagnosis) -> None:
    def say(problem: str, remedy: str) -> None:
        found.advice.append(Advice(problem, remedy))

    if not found.io_uring_compiled:
        say(
            "This build has no io_uring; reads go through a pool of threads.",
            "Install liburing-dev (Debian, Ubuntu) or liburing-devel, then reinstall outcrop.",
        )
    elif found.io_uring_refusal is not None:
        say(
            f"io_uring is compiled in, but {found.io_uring_refusal}; "
            "reads go through a pool of threads, which costs more CPU.",
            "In a container, allow io_uring_setup, io_uring_enter and io_uring_register in its "
            "seccomp profile; else see the sysctl kernel.io_uring_disabled and ulimit -l.",
        )
    if not found.direct:
        say(
            f"{found.file_system} at {found.path} does not take O_DIRECT; reads go through "
            "the page cache, which then competes with Outcrop's own caches.",
            "Put the store on a local ext4 or xfs drive.",
        )
    if found.random_reads_per_second is not None and found.random_reads_per_second < 20_000:
        say(
            f"Only {found.random_reads_per_second:,.0f} random reads per second.",
            "Use a local NVMe drive; prefer strategies that read in sequence.",
        )
    limit = found.memory_limit_bytes
    if limit is not None and limit < 2_000_000_000:
        say(
            f"This process may use {format_size(limit)} of memory.",
            "Give every command a --memory below that.",
        )
    if found.free_bytes < 10_000_000_000:
        say(
            f"Only {format_size(found.free_bytes)} are free at {found.path}.",
            "Imports need about twice the size of the finished store while they run.",
        )
