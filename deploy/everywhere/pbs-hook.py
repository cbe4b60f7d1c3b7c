"""Hook of OpenPBS and PBS Professional, event execjob_launch: programs of jobs are traced. docs/guide/node-wide.md.

    qmgr -c "create hook miot event=execjob_launch"
    qmgr -c "import hook miot application/x-python default pbs-hook.py"

A job that is not to be traced: qsub -v MIOT_TRACE=off
"""

import glob

LIBRARIES = ["/usr/lib/miot/libmiot_posix.so", "/usr/lib/*/miot/libmiot_posix.so", "/usr/lib64/miot/libmiot_posix.so"]


def environment(env, libraries=LIBRARIES):
    """What is to be added to the environment of a job's program."""
    if env.get("MIOT_TRACE", "on") == "off":
        return {}
    found = [path for pattern in libraries for path in sorted(glob.glob(pattern))]
    before = env.get("LD_PRELOAD", "")
    if not found or "libmiot_posix.so" in before:
        return {}
    return {"LD_PRELOAD": before + ":" + found[0] if before else found[0]}


def main():
    import pbs

    event = pbs.event()
    for name, value in environment(dict(event.env)).items():
        event.env[name] = value
    event.accept()


if __name__ in ("__main__", "__builtin__", "builtins"):
    main()
