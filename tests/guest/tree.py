"""The guest's file system: busybox, this Python with the agent's libraries, and the project."""

from __future__ import annotations

import compileall
import importlib.metadata
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from tests.guest.packages import GuestError

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# What the agent and its tests import; the operator's, the client's and the linters' stay outside.
SOURCES = ("crds", "agent", "tests", "tools", "pyproject.toml")
NOT_TAKEN = shutil.ignore_patterns(
    "oracle", "traces", "cluster", "vllm", "*_cache", "test", "idlelib", "lib2to3", "tkinter",
    "ensurepip", "config-3*", "site-packages", "pydoc_data", "turtledemo",
)  # fmt: skip
DISTRIBUTIONS = ("pytest", "pytest-asyncio", "pytest-timeout")
EXTRAS = {"agent"}
# The machine code of the client's copies; the agent does not import it.
NOT_NEEDED = {"llvmlite"}
# The suite writes 450 MiB of page cache and pytest's folders.
FREE_MIB = 900
PROGRAMS = ("sh", "mount", "cat", "mkdir", "poweroff", "sync", "echo")


def build(packages: Path, folder: Path, *, select: str) -> Path:
    """Make the ext4 image in ``folder``; returns its path.

    ``select``: pytest's expression of what to run, "" for everything.

    Raises:
        GuestError: mke2fs failed.
    """
    root = folder / "root"
    for name in ("bin", "proc", "sys", "dev", "tmp", "run", "lib64", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy2(next(iter(packages.glob("*bin/busybox"))), root / "bin" / "busybox")
    for name in PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    shutil.copy2(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    (root / "init.env").write_text(
        f"PYTHON={python(root)}\nPROJECT={ROOT}\nSELECT={shlex.quote(select)}\n"
    )
    project(root)
    compile_all(root)
    return image(root, folder / "disk.img")


def python(root: Path) -> str:
    """Copy the running interpreter, its library and its environment to the same places."""
    base = Path(sys.base_prefix)
    program = base / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(base)}))
    shutil.copytree(library, inside(root, library), ignore=NOT_TAKEN)
    copy(root, program)
    environment = Path(sys.prefix)
    copy(root, environment / "pyvenv.cfg")
    venv_python = environment / "bin" / "python"
    inside(root, venv_python).parent.mkdir(parents=True, exist_ok=True)
    inside(root, venv_python).symlink_to(program)
    site = Path(sysconfig.get_path("purelib"))
    for name in distributions():
        for file in importlib.metadata.distribution(name).files or ():
            installed = Path(str(file.locate())).resolve()
            if installed.is_relative_to(environment) and installed.is_file():
                copy(root, installed)
    for link in site.glob("*kvoffload*.pth"):
        copy(root, link)
    for library_path in shared_libraries(inside(root, base), inside(root, environment), program):
        copy(root, library_path)
    return str(venv_python)


def distributions() -> list[str]:
    """Return the names of what the agent and pytest need, dependencies included."""
    needed = {"kvoffload"}
    queue = [("kvoffload", EXTRAS), *((name, set[str]()) for name in DISTRIBUTIONS)]
    while queue:
        name, extras = queue.pop()
        for requirement in importlib.metadata.distribution(name).requires or ():
            wanted, _, marker = requirement.partition(";")
            extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
            if marker and not (extra and extra.group(1) in extras):
                continue
            plain = re.match(r"[\w.-]+", wanted)
            if plain and plain.group() not in needed | NOT_NEEDED:
                needed.add(plain.group())
                queue.append((plain.group(), set()))
    return sorted(needed | set(DISTRIBUTIONS))


def shared_libraries(*places: Path) -> Iterable[Path]:
    """Return the system libraries that programs and extension modules below these places use."""
    objects = []
    for place in places:
        objects += [place] if place.is_file() else list(place.rglob("*.so*"))
    found: set[Path] = set()
    for start in range(0, len(objects), 100):
        listed = subprocess.run(
            ["ldd", *map(str, objects[start : start + 100])],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,  # a library that lacks another is told by the tests that import it
        ).stdout
        found |= {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(", listed, re.MULTILINE)}
    return sorted(path for path in found if not any(path.is_relative_to(p) for p in places))


def project(root: Path) -> None:
    """Copy what is under test to where it is here, so that paths in ``.pth`` files hold."""
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, inside(root, source), ignore=NOT_TAKEN, dirs_exist_ok=True)
        else:
            copy(root, source)
    # It brings the fixtures of a control plane, which is not in the guest.
    inside(root, ROOT / "tests" / "integration" / "conftest.py").unlink()


def compile_all(root: Path) -> None:
    """Compile every module here: emulated, the agent's imports would take minutes."""
    compileall.compile_dir(
        root,
        stripdir=str(root),
        prependdir="/",
        quiet=2,
        workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def image(root: Path, path: Path) -> Path:
    """Make a file system of a folder, with room for what the suite writes."""
    used = sum(file.lstat().st_size for file in root.rglob("*") if not file.is_dir()) >> 20
    made = subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(path), f"{used * 5 // 4 + FREE_MIB}M"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if made.returncode:
        raise GuestError(f"mke2fs ended with {made.returncode}: {made.stderr.strip()[-500:]}")
    return path


def inside(root: Path, path: Path) -> Path:
    """Return where a path of this machine is in the guest's tree."""
    return root / str(path.absolute()).lstrip("/")


def copy(root: Path, path: Path) -> None:
    """Copy one file to the same place, times kept: Python compares them with its caches."""
    target = inside(root, path)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
