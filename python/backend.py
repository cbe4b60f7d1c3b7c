"""Builds the Python package: PEP 517 hooks around maturin.

A wheel brings the module, the programs and the hooks. maturin builds the module; this file builds
the rest with cargo and puts it where maturin collects the files of ``scripts`` and ``data``.

``MIOT_WHEEL_GLIBC=2.28`` builds a wheel for all machines with this version of glibc or a later one
(``manylinux_2_28``): the compiler of this machine links against zig's stubs of that glibc. Without it
the wheel is for this machine.
``MIOT_WHEEL_PROFILE`` is the profile of cargo, by default ``dist``.
"""

from __future__ import annotations

import io
import os
import platform
import shlex
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
#: zig makes stubs of these libraries, which have the symbols of the old glibc, and the files with which
#: a program for it starts.
STUBS = {"libc.so.6": "", "libm.so.6": "m", "libpthread.so.0": "pthread", "libdl.so.2": "dl", "librt.so.1": "rt", "libutil.so.1": "util", "libld.so.2": "ld"}


def _glibc() -> str | None:
    return os.environ.get("MIOT_WHEEL_GLIBC") or None


def _profile() -> str:
    return os.environ.get("MIOT_WHEEL_PROFILE") or "dist"


def _target() -> str:
    return f"{platform.machine()}-unknown-linux-gnu"


def _target_dir() -> Path:
    # Not that of other builds: their miot-query has the service of workers.
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target/wheel-build")


def _environment() -> dict[str, str]:
    environment = {**os.environ, "CARGO_TARGET_DIR": str(_target_dir())}
    # Other profiles keep the names of functions, which are a fifth of the programs.
    environment.setdefault(f"CARGO_PROFILE_{_profile().upper().replace('-', '_')}_STRIP", "symbols")
    if _glibc() is not None:
        environment[f"CARGO_TARGET_{_target().upper().replace('-', '_')}_LINKER"] = str(_linker())
    return environment


def _run(command: list[str], **environment: str) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**_environment(), **environment})


def _packages(names) -> list[str]:
    return [word for name in names for word in ("-p", name)]


def _stubs() -> Path:
    """Returns a folder with zig's stubs of glibc."""
    folder = _target_dir() / f"glibc-{_glibc()}"
    if (folder / "libc.so").exists() and (folder / "Scrt1.o").exists():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        # In an empty cache there is one of each.
        source = Path(scratch) / "main.c"
        # `stat` is in the static part of an old glibc.
        source.write_text("#include <sys/stat.h>\nint main(int n, char **p) { struct stat s; return stat(p[0], &s); }\n")
        target = f"{platform.machine()}-linux-gnu.{_glibc()}"
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target, str(source), "-pie", "-o", f"{scratch}/main"]
        caches = {f"ZIG_{kind}_CACHE_DIR": f"{scratch}/cache" for kind in ("GLOBAL", "LOCAL")}
        subprocess.run(command, check=True, env={**os.environ, **caches})

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
        for name in ("libc_nonshared.a", "Scrt1.o"):
            shutil.copy(made(name), folder)
        # As glibc's own libc.so.
        (folder / "libc.so").write_text("GROUP ( libc.so.6 libc_nonshared.a libld.so.2 )\n")
    return folder


#: Programs are linked with identical functions once, if the linker is lld: generic code is compiled in
#: each crate that uses it. Not the hooks, whose functions must have addresses of their own.
#: The libraries of this machine need its own glibc, which is not there when they are linked.
LINKER = """#!/bin/sh
case " $* " in
*" -shared "*) ;;
*" -fuse-ld=lld "*) set -- "$@" -Wl,--icf=all ;;
esac
exec cc -B{stubs}/ -L{stubs} -Wl,--allow-shlib-undefined "$@"
"""


def _linker() -> Path:
    """Returns a program that links for the old glibc. In programs it fails at any symbol that this lacks."""
    path = _stubs() / "linker"
    path.write_text(LINKER.format(stubs=shlex.quote(str(path.parent))))
    path.chmod(0o755)
    return path


def _build_programs() -> None:
    """Builds programs and hooks, and puts them into the stage."""
    profile = ["--profile", _profile(), "--locked"]
    shutil.rmtree(STAGE, ignore_errors=True)
    # As rustc names it.
    folder = "debug" if _profile() == "dev" else _profile()
    built = _target_dir() / folder
    if _glibc() is not None:
        profile += ["--target", _target()]
        built = _target_dir() / _target() / folder
    # The workers of queries run on servers, which have packages.
    query = ["--no-default-features", "--features", "engine,remote"]
    _run(["cargo", "build", *profile, *query, "-p", "miot-query"])
    _run(["cargo", "build", *profile, *_packages(set(PROGRAMS.values()) - {"miot-query"})])
    # A library may lack symbols; a hook must not.
    _run(["cargo", "build", *profile, *_packages(HOOKS.values())], RUSTFLAGS=f"{os.environ.get('RUSTFLAGS', '')} -C link-arg=-Wl,-z,defs")
    for name in PROGRAMS:
        _stage(built / name, STAGE / "scripts" / name)
    for name in HOOKS:
        _stage(built / name, STAGE / "data/lib/miot" / name)


def _stage(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)
    to.chmod(0o755)


def _maturin(hook, *arguments):
    """Calls a hook of maturin with the options of this build."""
    words = ["--profile", _profile(), "--compression-level", "9"]
    if _glibc() is None:
        # The programs are linked with the glibc of this machine, which maturin does not check.
        words += ["--compatibility", "linux"]
    else:
        words += ["--target", _target(), "--compatibility", f"manylinux_{_glibc().replace('.', '_')}"]
    os.environ["MATURIN_PEP517_ARGS"] = " ".join(words)
    os.environ.update(_environment())
    os.chdir(ROOT)
    return hook(*arguments)


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    return [] if _glibc() is None else ["ziglang>=0.14"]


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
