"""The conservation oracle: numbered writes through all tiers, which are killed and stopped at
random. Afterwards each write is in the Parquet and Arrow files once, or counted in `losses`.
`tests/soak.sh oracle` runs it."""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

import mutants
from field import Field
from judge import Judge

POLICIES = ("drop-newest", "overwrite-oldest", "wait")
DISKS = (None, "trace", "spool")
# Number of the round for mutants: a short one without damage, whose trace is judged with one error
# after another.
MUTANTS = -1
MUTANTS_SECONDS = 2
# Exit codes of `miot fsck --repair`: no problem or all repaired; repaired, and events are lost.
REPAIRED = (0, 3)


def arguments():
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("--bin", required=True, metavar="DIR", help="folder of the binaries")
    parser.add_argument("--seconds", type=int, default=600, help="total run time of writers [default: 600]")
    parser.add_argument("--round", type=int, default=20, help="seconds of writers in a round, which has a trace of its own [default: 20]")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MIOT_SEED", 0)) or time.time_ns() % 2**32)
    parser.add_argument("--damage", action="store_true", help="damage files of daemons that are down, and sealed parts")
    parser.add_argument("--keep", action="store_true", help="leave the files of a failed round")
    parser.add_argument("--only", type=int, metavar="N", help="only the round of this number")
    return parser.parse_args()


def main():
    options = arguments()
    sys.stdout.reconfigure(line_buffering=True)
    if "MIOT_ORACLE_MOUNTS" not in os.environ:
        enter_mount_namespace()
    mounts = os.environ["MIOT_ORACLE_MOUNTS"] == "yes"
    if not mounts:
        print("NOT TESTED: disks that are full (needs root, or user namespaces)")
    print(f"oracle: MIOT_SEED={options.seed}, {options.seconds} s in rounds of {options.round} s")
    rounds = max(1, options.seconds // options.round)
    failed = 0
    if options.only is None:
        failed += not play(options, MUTANTS, mounts)
    for number in range(rounds) if options.only is None else [options.only]:
        failed += not play(options, number, mounts)
    print(f"oracle: {rounds} rounds, {failed} failed; MIOT_SEED={options.seed}")
    sys.exit(failed > 0)


def enter_mount_namespace():
    """Small private file systems, which are unmounted with the process."""
    words = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    mounts = subprocess.run(words + ["true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    os.environ["MIOT_ORACLE_MOUNTS"] = "yes" if mounts else "no"
    words = (words if mounts else []) + [sys.executable] + sys.argv
    os.execvp(words[0], words)


def play(options, number, mounts):
    """Runs one round. Returns true if there was no problem."""
    chance = random.Random(f"{options.seed} {number}")
    when_full = POLICIES[number % len(POLICIES)] if number != MUTANTS else POLICIES[0]
    # Combines each policy with each full disk, in turn.
    full = DISKS[(number // len(POLICIES) + number) % len(DISKS)] if mounts and number != MUTANTS else None
    place = tempfile.mkdtemp(prefix="miot-oracle-")
    shared = tempfile.mkdtemp(prefix="miot-oracle-", dir="/dev/shm")
    problems, field, judge = [], None, None
    try:
        program = f"{place}/numbered"
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numbered.c")
        subprocess.run(["gcc", "-O1", "-pthread", "-o", program, source], check=True)
        damages = options.damage and number != MUTANTS
        field = Field(options.bin, program, place, shared, when_full, full, damages)
        field.run(chance, options.round if number != MUTANTS else MUTANTS_SECONDS)
        if damages:
            field.damage_at_rest(chance)
        problems += checked(options.bin, field)
        judge = Judge(field.trace, field.programs, when_full, bool(field.damaged))
        problems += judge.judge()
        if number == MUTANTS and not problems:
            problems += mutants.unnoticed(field.trace, field.programs, when_full)
    except AssertionError as error:
        problems.append(str(error))
    finally:
        if field is not None:
            field.remove(keep=options.keep and problems)
    print(f"round {number}, {when_full}, full disk: {full or 'none'}: {judge or 'not judged'}")
    if field is not None:
        clients = [node.client for node in field.nodes]
        print(
            f"  {field.killed} writers killed, {field.ended} ended; log-clients {sum(c.kills for c in clients)} times killed, "
            f"{sum(c.stops for c in clients)} stopped; log-server {field.server.kills} and {field.server.stops}; "
            f"disk full {field.ballast.times if field.ballast else 0} times; {len(field.damaged)} files damaged"
        )
    for what in (field.damaged if field is not None else []) if problems else []:
        print(f"  damaged: {what}")
    for problem in problems:
        print(f"  WRONG: {problem}")
    if problems and options.keep:
        print(f"  kept: {place}")
    return not problems


def checked(binaries, field):
    """Checks with `miot fsck` that the trace has no problem, or that it is repaired."""
    repair = ["--repair"] if field.damaged else []
    fsck = subprocess.run([f"{binaries}/miot", "fsck", *repair, field.trace], capture_output=True, text=True, check=False)
    expected = REPAIRED if field.damaged else (0,)
    if fsck.returncode in expected:
        return []
    return [f"miot fsck {' '.join(repair)}: exit code {fsck.returncode}\n{fsck.stdout}{fsck.stderr}"]


main()
