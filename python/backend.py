"""Builds the Python package: PEP 517 hooks around maturin.

A wheel brings the module, the programs and the hooks. maturin builds the module; this file builds
the rest with cargo and puts it where maturin collects the files of ``scripts`` and ``data``.

``MIOT_WHEEL_GLIBC=2.28`` builds a wheel for all machines with this version of glibc or a later one
(``manylinux_2_28``), with zig as C compiler and linker. Without it the wheel is for this machine.
``MIOT_WHEEL_PROFILE`` is the profile of cargo, by default ``dist``.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "target/wheel/miot.data"
PROGRAMS = {"miot": "miot", "miot-query": "miot-query", "log-client": "miot-log-client", "log-server": "miot-log-server"}
HOOKS = {"libmiot_posix.so": "miot-hook-posix", "libmiot_mpi.so": "miot-hook-mpi"}
#: zig's linker does not know the options of the hooks. They are linked by the compiler of this
#: machine against zig's stubs of these libraries, which have the symbols of the old glibc.
STUBS = {"libc.so.6": "", "libm.so.6": "m", "libpthread.so.0": "pthread", "libdl.so.2": "dl", "librt.so.1": "rt", "libutil.so.1": "util", "libld.so.2": "ld"}


def _glibc() -> str | None:
    return os.environ.get("MIOT_WHEEL_GLIBC") or None


def _profile() -> str:
    return os.environ.get("MIOT_WHEEL_PROFILE") or "dist"


def _target() -> str:
    return f"{platform.machine()}-unknown-linux-gnu"


def _target_dir() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # Other profiles keep the names of functions, which are a fifth of the programs.
    environment.setdefault(f"CARGO_PROFILE_{_profile().upper().replace('-', '_')}_STRIP", "symbols")
    return environment


def _run(command: list[str], **environment: str) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**_environment(), **environment})


def _packages(names) -> list[str]:
    return [word for name in names for word in ("-p", name)]


def _stubs() -> Path:
    """Returns a folder with zig's stubs of glibc."""
    folder = _target_dir() / f"glibc-{_glibc()}"
    if (folder / "libc.so").exists():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        # In an empty cache there is one of each.
        source = Path(scratch) / "main.c"
        # `stat` is in the static part of an old glibc.
        source.write_text("#include <sys/stat.h>\nint main(int n, char **p) { struct stat s; return stat(p[0], &s); }\n")
        target = f"{platform.machine()}-linux-gnu.{_glibc()}"
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target, str(source), "-o", f"{scratch}/main"]
        _run(command, ZIG_GLOBAL_CACHE_DIR=f"{scratch}/cache", ZIG_LOCAL_CACHE_DIR=f"{scratch}/cache")

        def made(name: str) -> Path:
            found = list(Path(scratch).glob(f"cache/o/*/{name}"))
            if len(found) != 1:
                raise SystemExit(f"zig made {len(found)} files {name}: expected one")
            return found[0]

        folder.mkdir(parents=True, exist_ok=True)
        for name, short in STUBS.items():
            shutil.copy(made(name), folder / name)
            if short:
                (folder / f"lib{short}.so").unlink(missing_ok=True)
                (folder / f"lib{short}.so").symlink_to(name)
        shutil.copy(made("libc_nonshared.a"), folder)
        # As glibc's own libc.so.
        (folder / "libc.so").write_text("GROUP ( libc.so.6 libc_nonshared.a libld.so.2 )\n")
    return folder


def _build_programs() -> None:
    """Builds programs and hooks, and puts them into the stage."""
    profile = ["--profile", _profile(), "--locked"]
    shutil.rmtree(STAGE, ignore_errors=True)
    # As rustc names it.
    folder = "debug" if _profile() == "dev" else _profile()
    if _glibc() is None:
        _run(["cargo", "build", *profile, *_packages([*PROGRAMS.values(), *HOOKS.values()])])
        programs = hooks = _target_dir() / folder
    else:
        target = f"{_target()}.{_glibc()}"
        _run(["cargo-zigbuild", "zigbuild", *profile, "--target", target, *_packages(PROGRAMS.values())])
        programs = _target_dir() / _target() / folder
        # The linker fails at any symbol that the old glibc does not have.
        flags = f"-C link-arg=-L{_stubs()} -C link-arg=-Wl,-z,defs"
        separate = _target_dir() / "wheel-hooks"
        build = ["cargo", "build", *profile, "--target", _target(), *_packages(HOOKS.values())]
        _run(build, RUSTFLAGS=flags, CARGO_TARGET_DIR=str(separate))
        hooks = separate / _target() / folder
    for name in PROGRAMS:
        _stage(programs / name, STAGE / "scripts" / name)
    for name in HOOKS:
        _stage(hooks / name, STAGE / "data/lib/miot" / name)


def _stage(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)
    to.chmod(0o755)


def _maturin(hook, *arguments):
    """Calls a hook of maturin with the options of this build."""
    words = ["--profile", _profile()]
    if _glibc() is None:
        # The programs are linked with the glibc of this machine, which maturin does not check.
        words += ["--compatibility", "linux"]
    else:
        # Not the folder of the programs: maturin calls zig by other names than cargo-zigbuild, so
        # that each would build C code, and what depends on it, again after the other.
        os.environ["CARGO_TARGET_DIR"] = str(_target_dir() / "wheel-module")
        words += ["--zig", "--target", _target(), "--compatibility", f"manylinux_{_glibc().replace('.', '_')}"]
    os.environ["MATURIN_PEP517_ARGS"] = " ".join(words)
    os.environ.update(_environment())
    os.chdir(ROOT)
    return hook(*arguments)


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    return [] if _glibc() is None else ["ziglang>=0.14", "cargo-zigbuild>=0.20"]


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    return get_requires_for_build_wheel()


def get_requires_for_build_sdist(config_settings=None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None) -> str:
    STAGE.mkdir(parents=True, exist_ok=True)
    return _maturin(maturin.prepare_metadata_for_build_wheel, metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    _build_programs()
    return _maturin(maturin.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    _build_programs()
    return _maturin(maturin.build_editable, wheel_directory, config_settings, metadata_directory)


def _sources() -> list[str]:
    """Returns the files of the repository, or of an unpacked source distribution."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        return [name for name in listed.decode().split("\0") if name]
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in files if path.parts[0] != "target" and path.name != "PKG-INFO"]


def build_sdist(sdist_directory, config_settings=None) -> str:
    """Packs all sources of the workspace: cargo needs each of its members."""
    with tempfile.TemporaryDirectory() as scratch:
        name = prepare_metadata_for_build_wheel(scratch)
        metadata = (Path(scratch) / name / "METADATA").read_bytes()
    base = name.removesuffix(".dist-info")
    made = f"{base}.tar.gz"
    with tarfile.open(Path(sdist_directory) / made, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for source in sorted(_sources()):
            path = ROOT / source
            if path.is_file() or path.is_symlink():
                archive.add(path, f"{base}/{source}", recursive=False)
        info = tarfile.TarInfo(f"{base}/PKG-INFO")
        info.size = len(metadata)
        archive.addfile(info, io.BytesIO(metadata))
    return made
