#!/usr/bin/env bash
# Builds the Python wheel and the source distribution with the profile `dist`, checks them, and runs the
# tests of python/tests against the wheel in a fresh virtual environment, away from the repository.
#
#   tests/wheel.sh                   wheel for glibc 2.28 and later, in target/wheel
#   tests/wheel.sh --sdist-build     also build a wheel from the source distribution (as long again)
#   tests/wheel.sh --speed DIR       also measure reading of a long trace (python/tests/speed.py)
#   tests/wheel.sh --old-debian      also trace a program in a Debian 11 (needs root and its mirror)
#
# Needs cargo, a C compiler, Python 3.9 or later with venv, and a package index for pip.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/wheel
most_mib=60
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
say() { printf '\n== %s ==\n' "$*"; }
python=${PYTHON:-/usr/bin/python3}

say "tools"
tools=${WHEEL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/miot-tests/wheel-tools}
packages="maturin==1.16.0 ziglang==0.17.1 auditwheel==6.8.2"
if [ "$(cat "$tools/complete" 2> /dev/null)" != "$packages" ]; then
    "$python" -m venv "$tools"
    # shellcheck disable=SC2086
    "$tools/bin/pip" install --quiet --disable-pip-version-check $packages
    echo "$packages" > "$tools/complete"
fi
export PATH="$tools/bin:$PATH"

say "wheel and source distribution"
mkdir -p "$out"
rm -f "$out"/*.whl "$out"/*.tar.gz
MIOT_WHEEL_GLIBC=2.28 pip wheel . --no-deps --no-build-isolation --wheel-dir "$out" -v | grep -v '^ *Compiling'
wheel=$(echo "$out"/miot-*.whl)
"$tools/bin/python" - "$out" <<'EOF'
import sys
out = sys.argv[1]
sys.path.insert(0, "python")
import backend
print(backend.build_sdist(out))
EOF
sdist=$(echo "$out"/miot-*.tar.gz)

say "content"
mib=$(($(stat -c %s "$wheel") >> 20))
echo "$(basename "$wheel"): $mib MiB, installed $(unzip -l "$wheel" | tail -1 | awk '{ print int($1 / 1048576) }') MiB; $(basename "$sdist"): $(($(stat -c %s "$sdist") >> 10)) KiB"
auditwheel show "$wheel" | tee "$scratch/audit"
grep -q 'manylinux_2_28_x86_64\|manylinux_2_[0-9]_\|manylinux_2_1[0-9]\|manylinux_2_2[0-7]' "$scratch/audit" ||
    { echo "wheel.sh: the wheel is not for glibc 2.28" >&2 && exit 1; }
# Programs and hooks are not all seen by auditwheel.
"$python" - "$wheel" "$scratch/files" <<'EOF'
import re, subprocess, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2])
    names = [name for name in wheel.namelist() if "/scripts/" in name or name.endswith(".so")]
assert len(names) == 7, names
for name in names:
    table = subprocess.run(["objdump", "-T", f"{sys.argv[2]}/{name}"], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", table)}
    assert versions and max(versions) <= (2, 28), f"{name} needs glibc {max(versions)}"
    # Symbols without a version that are not weak: the module takes those of Python.
    undefined = [line.split("*UND*") for line in table.splitlines() if "*UND*" in line and "(" not in line]
    needed = [symbol.split()[-1] for flags, symbol in undefined if " w " not in flags]
    needed = [symbol for symbol in needed if not re.match("_?Py", symbol)]
    assert not needed, f"{name} needs {needed}, which this glibc lacks"
    print(name, "needs glibc", ".".join(map(str, max(versions))))
EOF

say "tests, in a fresh virtual environment"
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel[all]" pytest
cp -r python/tests "$scratch/tests"
tests() {
    # Workloads have an environment of their own (tests/setup.sh); tests/tests/python.rs runs them.
    (cd "$scratch" && env -u MIOT_BIN_DIR -u PYTHONPATH "$1" -m pytest -q -p no:cacheprovider \
        --ignore "$scratch/tests/test_workloads.py" "$scratch/tests")
}
tests "$scratch/venv/bin/python"

say "the first minute of the documentation, without optional libraries"
"$python" -m venv "$scratch/plain"
"$scratch/plain/bin/pip" install --quiet --disable-pip-version-check "$wheel"
(
    cd "$scratch"
    # As another user than root, if possible.
    as=()
    [ "$(id -u)" != 0 ] || as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    mkdir -p first && chmod 777 first && cd first
    "${as[@]}" env PATH="$scratch/plain/bin:$PATH" HOME="$PWD" sh -euc '
        miot run -o miot-trace -- python -c "open(\"written\", \"w\").write(\"x\" * 100000)"
        python -c "import miot; t = miot.open(\"miot-trace\"); print(t); print(t.stat(\"file\", top=3))"'
)

if [[ " $* " = *" --sdist-build "* ]]; then
    say "a wheel from the source distribution"
    mkdir "$scratch/sdist"
    CARGO_TARGET_DIR=$scratch/sdist/target pip wheel "$sdist" --no-deps --wheel-dir "$scratch/sdist" --quiet
    "$python" -m venv "$scratch/venv2"
    "$scratch/venv2/bin/pip" install --quiet --disable-pip-version-check "$scratch"/sdist/*.whl pyarrow pandas pytest
    "$scratch/venv2/bin/python" -m pytest -q "$scratch/tests/test_events.py" -p no:cacheprovider
fi

if [[ " $* " =~ " --speed "([^ ]+) ]]; then
    say "speed"
    "$scratch/venv/bin/python" "$scratch/tests/speed.py" "${BASH_REMATCH[1]}"
fi

if [[ " $* " = *" --old-debian "* ]]; then
    bash tests/old-debian.sh "$wheel"
fi

# Last, so that a wheel that is too large is tested nevertheless.
[ "$mib" -le "$most_mib" ] || { echo "wheel.sh: the wheel has $mib MiB, more than $most_mib" >&2 && exit 1; }
