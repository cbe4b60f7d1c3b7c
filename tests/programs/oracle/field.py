"""A log-server, nodes with log-clients, and writers on the nodes. All are killed, stopped and
restarted at random."""

import os
import shutil
import signal
import socket
import subprocess
import time

import notes
from damage import candidates, damage

# Messages that a daemon prints only for errors of its own.
NONSENSE = ("panicked", "quarantined", "too many violations")
# Timeout in seconds: far above the normal time.
WATCHDOG = 240
# Milliseconds of running, of being dead, and of being stopped.
WRITER = {"live": (5, 3000), "still": (1, 1500)}
CLIENT = {"live": (300, 4000), "dead": (0, 400), "still": (10, 2000)}
SERVER = {"live": (500, 6000), "dead": (0, 600), "still": (10, 2000)}
WRITERS_PER_NODE = 2


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, condition):
    end = time.monotonic() + WATCHDOG
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {WATCHDOG} s"
        time.sleep(0.02)


class Daemon:
    """A daemon that is killed or stopped, and restarted or continued."""

    def __init__(self, command, environment, log, pace):
        self.command, self.environment, self.log, self.pace = command, environment, log, pace
        self.process = None
        self.still = False
        self.kills = self.stops = 0
        # Its disk is full of other files, so it must not start.
        self.full = False
        self.next = 0.0
        self.start()

    def start(self):
        if self.process is None:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    self.command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def alive(self):
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"{self.command[0]} ended by itself: {self.process.returncode}\n{self.printed()}")
        return self.process is not None

    def printed(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-8000:]

    def kill(self):
        if self.alive():
            self.process.kill()
            self.process.wait()
            self.process, self.still = None, False
            self.kills += 1

    def go_on(self):
        if self.still:
            self.process.send_signal(signal.SIGCONT)
            self.still = False

    def torment(self, random, before_start):
        """Takes the next step of the daemon's life when its time has come."""
        self.alive()
        if time.monotonic() < self.next:
            return
        if self.process is None:
            if self.full:
                return
            before_start()
            self.start()
            span = "live"
        elif self.still:
            self.go_on()
            span = "live"
        elif self.next > 0 and random.random() < 0.3:
            self.process.send_signal(signal.SIGSTOP)
            self.still = True
            self.stops += 1
            span = "still"
        elif self.next > 0:
            self.kill()
            span = "dead"
        else:
            span = "live"
        self.next = time.monotonic() + random.uniform(*self.pace[span]) / 1000

    def end(self):
        """Stops the daemon cleanly."""
        self.process.terminate()
        code = self.process.wait(WATCHDOG)
        said = self.printed()
        assert code == 0, f"{self.command[0]}: exit code {code}\n{said}"
        for nonsense in NONSENSE:
            assert nonsense not in said, said
        self.process = None


class Writer:
    """A program that writes until it ends or is killed."""

    def __init__(self, field, node, number, random):
        self.number, self.node = number, node
        self.notes = f"{field.place}/notes-{number}"
        with open(self.notes, "wb") as file:
            file.truncate(notes.BYTES)
        places, lives = random.randrange(1, 4), random.randrange(1, 25)
        # Some overflow their lanes, most do not.
        writes, pause = random.choice(((200, 5000), (5000, 10000), (100000, 20000), (20000, 5000), (3000, 0)))
        command = [field.program, str(number), str(places), str(lives), str(writes), str(pause), self.notes, field.files]
        environment = {"LD_PRELOAD": field.hook, "MIOT_DIR": node.dir}
        self.process = subprocess.Popen(command, env=os.environ | environment, stdin=subprocess.DEVNULL)
        self.until = time.monotonic() + random.uniform(*WRITER["live"]) / 1000
        self.go_on_at = None

    def torment(self, random):
        """Returns true if the program has ended."""
        now = time.monotonic()
        if self.go_on_at is not None:
            if now < self.go_on_at:
                return False
            self.process.send_signal(signal.SIGCONT)
            self.go_on_at = None
        elif random.random() < 0.003:
            self.process.send_signal(signal.SIGSTOP)
            self.go_on_at = now + random.uniform(*WRITER["still"]) / 1000
        if now > self.until:
            self.process.kill()
        code = self.process.poll()
        assert code in (None, 0, -signal.SIGKILL), f"a writer ended with {code}"
        return code is not None

    def end(self):
        self.process.kill()
        self.process.wait()


class Node:
    def __init__(self, field, name):
        self.name = name
        self.dir = f"{field.shared}/{name}"
        self.spool = f"{field.spools}/{name}"
        environment = {
            "MIOT_CLIENT_LOG": "warn",
            "MIOT_CLIENT_WHEN_FULL": field.when_full,
            # The log-client drops nothing while a writer may wait.
            "MIOT_CLIENT_WAIT": f"{2 * WATCHDOG}s",
            "MIOT_CLIENT_LANE_SLOTS": "256",
            "MIOT_CLIENT_LANE_SLOTS_MAX": "4096",
            "MIOT_CLIENT_SPOOL_BYTES": "16 MiB",
            "MIOT_CLIENT_STOP": f"{WATCHDOG}s",
        }
        command = [f"{field.binaries}/log-client", "--server", field.address, "--http", "off", "--node", name]
        command += ["--dir", self.dir, "--spool-dir", self.spool]
        self.client = Daemon(command, environment, f"{field.place}/{name}.log", CLIENT)
        until("a control page", lambda: self.client.alive() and os.path.exists(f"{self.dir}/control"))
        self.writers = []

    def left(self):
        """Remaining segments and files of the spool."""
        there = [name for name in os.listdir(self.dir) if ".seg" in name]
        return there + (os.listdir(self.spool) if there else [])


class Ballast:
    """Fills a small file system from time to time."""

    def __init__(self, folder, daemons):
        self.file, self.daemons = f"{folder}/ballast", daemons
        self.until = None
        self.times = 0

    def torment(self, random):
        if self.until is not None:
            if time.monotonic() > self.until:
                self.empty()
        elif random.random() < 0.004 and all(daemon.alive() for daemon in self.daemons):
            self.times += 1
            self.until = time.monotonic() + random.uniform(0.1, 2)
            leave = random.randrange(1 << 20)
            for daemon in self.daemons:
                daemon.full = True
            try:
                with open(self.file, "wb", buffering=0) as file:
                    free = os.statvfs(file.fileno())
                    os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - leave))
            except OSError:
                pass

    def empty(self):
        if os.path.exists(self.file):
            os.remove(self.file)
        for daemon in self.daemons:
            daemon.full = False
        self.until = None


class Field:
    """One round. `full` is the disk that is small and full from time to time: None, `trace` or
    `spool`."""

    def __init__(self, binaries, program, place, shared, when_full, full, damages):
        self.binaries, self.program, self.place, self.shared = binaries, program, place, shared
        self.hook = f"{binaries}/libmiot_posix.so"
        self.when_full, self.damages = when_full, damages
        self.damaged = []
        self.programs = []
        self.started = self.killed = self.ended = 0
        self.files = f"{shared}/files"
        os.makedirs(self.files)
        disks = {name: f"{place}/{name}-disk" for name in ("trace", "spool")}
        for name, folder in disks.items():
            os.makedirs(folder)
            if name == full:
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", folder], check=True)
        self.mounted = disks.get(full)
        self.trace, self.spools = f"{disks['trace']}/trace", disks["spool"]
        self.address = f"127.0.0.1:{free_port()}"
        environment = {
            "MIOT_SERVER_LOG": "warn",
            "MIOT_SERVER_SEAL_ROWS": "50000",
            # A full spool waits until the server merges. The server waits at most this long for
            # events that are earlier than those in the spool.
            "MIOT_SERVER_SILENT_AFTER": "1s",
        }
        command = [f"{binaries}/log-server", "--listen", self.address, "--http", "off", "--trace", self.trace]
        self.server = Daemon(command, environment, f"{place}/server.log", SERVER)
        self.nodes = [Node(self, name) for name in ("a", "b")]
        clients = [node.client for node in self.nodes]
        self.ballast = Ballast(self.mounted, [self.server] if full == "trace" else clients) if full else None

    def damage(self, random, files):
        """Damages one of these files, if the round has damage."""
        files = list(files)
        if self.damages and files and random.random() < 0.5:
            self.damaged.append(damage(random.choice(files), random))

    def damage_at_rest(self, random):
        """Damages up to three sealed and live files after the end."""
        for _ in range(random.randrange(4)):
            self.damage(random, candidates(self.trace, []))

    def run(self, random, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.server.torment(random, lambda: self.damage(random, candidates(self.trace, [])))
            for node in self.nodes:
                node.client.torment(random, lambda node=node: self.damage(random, candidates("", [node.spool])))
                self.writers(node, random)
            if self.ballast is not None:
                self.ballast.torment(random)
            time.sleep(0.002)
        self.conclude()

    def writers(self, node, random):
        running = []
        for writer in node.writers:
            if writer.torment(random):
                self.collect(writer)
            else:
                running.append(writer)
        while len(running) < WRITERS_PER_NODE:
            self.started += 1
            running.append(Writer(self, node, self.started, random))
        node.writers = running

    def collect(self, writer):
        self.killed += writer.process.returncode != 0
        self.ended += writer.process.returncode == 0
        self.programs.append(notes.read(writer.notes, writer.number, writer.node.name, writer.process.pid))
        os.remove(writer.notes)
        for life, *_ in self.programs[-1].lives:
            path = f"{self.files}/{writer.number * notes.MOST_LIVES + life}"
            if os.path.exists(path):
                os.remove(path)

    def conclude(self):
        """Ends the writers, waits until everything is delivered, and ends the daemons."""
        if self.ballast is not None:
            self.ballast.empty()
        for node in self.nodes:
            for writer in node.writers:
                writer.end()
                self.collect(writer)
            node.writers = []
        for daemon in self.daemons():
            daemon.go_on()
            daemon.start()
        for node in self.nodes:
            until("segments are left", lambda node=node: self.server.alive() and node.client.alive() and not node.left())
            node.client.end()
            assert os.listdir(node.spool) == [], f"the spool of {node.name} is not empty"
        self.server.end()

    def daemons(self):
        return [self.server] + [node.client for node in self.nodes]

    def remove(self, keep):
        """Ends the remaining processes, also after a failure, and removes the files."""
        for node in getattr(self, "nodes", []):
            for writer in node.writers:
                writer.end()
        for daemon in self.daemons() if hasattr(self, "nodes") else [self.server]:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()
        shutil.rmtree(self.shared, ignore_errors=True)
        if keep and self.mounted:
            shutil.copytree(self.mounted, f"{self.mounted}-kept")
        if self.mounted:
            subprocess.run(["umount", "--lazy", self.mounted], check=False)
        if not keep:
            shutil.rmtree(self.place, ignore_errors=True)
