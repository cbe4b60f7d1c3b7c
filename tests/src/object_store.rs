//! Object stores on loopback: servers of the S3 protocol that others have written.

use crate::built::root;
use crate::daemons::{free_port, lasting_port};
use crate::process::{Background, run, until};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Access key and secret of all servers.
pub const KEYS: (&str, &str) = ("a-key", "a-secret");
/// Bucket of all servers.
pub const BUCKET: &str = "traces";

/// Python with boto3 and pyarrow.
///
/// # Panics
/// If `tests/setup.sh` was not run.
#[must_use]
pub fn python() -> PathBuf {
    tool("test-venv", "python")
}

/// Path of a program of a Python environment of `tests/setup.sh`.
///
/// # Panics
/// If `tests/setup.sh` was not run.
#[must_use]
pub fn tool(environment: &str, name: &str) -> PathBuf {
    let path = root().join("target").join(environment).join("bin").join(name);
    assert!(path.exists(), "{} is missing: run tests/setup.sh", path.display());
    path
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Server {
    /// Moto, which keeps objects in memory.
    Moto,
    /// `weed server -s3`.
    SeaweedFs,
    /// `rclone serve s3` of a folder.
    Rclone,
}

/// A running server with the bucket [`BUCKET`].
#[derive(Debug)]
pub struct S3 {
    /// Port on loopback.
    pub port: u16,
    server: Background,
}

impl S3 {
    /// Starts a server on this port, with data below `place`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_at(server: S3Server, place: &Path, port: u16) -> S3 {
        S3::try_start(server, place, port).unwrap_or_else(|printed| panic!("{server:?} has ended\n{printed}"))
    }

    /// Returns the output of a server that ends at once, e.g. because another process has taken one
    /// of its ports.
    fn try_start(server: S3Server, place: &Path, port: u16) -> Result<S3, String> {
        let data = place.join(format!("{server:?}"));
        std::fs::create_dir_all(data.join(BUCKET)).unwrap_or_else(|e| panic!("{e}"));
        let mut command = match server {
            S3Server::Moto => {
                let mut command = Command::new(tool("test-venv", "moto_server"));
                command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
                command
            }
            S3Server::SeaweedFs => seaweedfs(&data, port),
            S3Server::Rclone => {
                let mut command = Command::new(tool("test-stores", "rclone"));
                command.args(["serve", "s3", "--config", "/dev/null"]);
                command.arg("--addr").arg(format!("127.0.0.1:{port}"));
                command.arg("--auth-key").arg(format!("{},{}", KEYS.0, KEYS.1)).arg(&data);
                command
            }
        };
        let mut s3 = S3 { port, server: Background::start(command.current_dir(&data)) };
        let mut has_ended = false;
        until("the bucket exists", || {
            has_ended = !s3.server.running();
            has_ended || run(&mut s3.client(CREATE, &[])).status.success()
        });
        if has_ended { Err(s3.server.printed()) } else { Ok(s3) }
    }

    /// [`S3::start_at`] on a free port.
    #[must_use]
    pub fn start(server: S3Server, place: &Path) -> S3 {
        const ATTEMPTS: usize = 3;
        let mut printed = String::new();
        for attempt in 0..ATTEMPTS {
            let port = if server == S3Server::SeaweedFs { seaweedfs_ports()[0] } else { free_port() };
            // An attempt leaves files that another one may not accept.
            match S3::try_start(server, &place.join(format!("attempt-{attempt}")), port) {
                Ok(started) => return started,
                Err(output) => printed.push_str(&output),
            }
        }
        panic!("{server:?} does not start\n{printed}")
    }

    /// Copies all objects below `prefix` to `into`.
    pub fn download(&self, prefix: &str, into: &Path) {
        let _ = run(&mut self.client(DOWNLOAD, &[prefix, &into.display().to_string()])).success();
    }

    fn client(&self, script: &str, words: &[&str]) -> Command {
        let mut command = Command::new(python());
        command.args(["-c", script, BUCKET]).args(words).envs(environment(self.port));
        command
    }
}

const CREATE: &str = "
import boto3, os, sys
s3 = boto3.client('s3', endpoint_url=os.environ['AWS_ENDPOINT_URL'])
if sys.argv[1] not in [bucket['Name'] for bucket in s3.list_buckets()['Buckets']]:
    s3.create_bucket(Bucket=sys.argv[1])
";

const DOWNLOAD: &str = "
import boto3, os, pathlib, sys
bucket, prefix, into = sys.argv[1:]
s3 = boto3.client('s3', endpoint_url=os.environ['AWS_ENDPOINT_URL'])
for page in s3.get_paginator('list_objects_v2').paginate(Bucket=bucket, Prefix=prefix + '/'):
    for found in page.get('Contents', []):
        path = pathlib.Path(into) / found['Key'][len(prefix) + 1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(s3.get_object(Bucket=bucket, Key=found['Key'])['Body'].read())
";

/// Environment in which programs use the server on this port.
#[must_use]
pub fn environment(port: u16) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", KEYS.0.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", KEYS.1.to_owned()),
    ]
}

fn seaweedfs(data: &Path, port: u16) -> Command {
    let keys = serde_json::json!({"identities": [{
        "name": "miot",
        "credentials": [{"accessKey": KEYS.0, "secretKey": KEYS.1}],
        "actions": ["Admin", "Read", "Write", "List"],
    }]});
    let file = data.join("keys.json");
    std::fs::write(&file, keys.to_string()).unwrap_or_else(|e| panic!("{e}"));
    let mut command = Command::new(tool("test-stores", "weed"));
    command.args(["server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64"]);
    command.arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", file.display()));
    command.arg(format!("-s3.port={port}"));
    // Other services on fixed ports, of which a second instance would die, and a report to its
    // makers.
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
    let mut others = seaweedfs_ports().into_iter().filter(|other| *other != port);
    for of in ["master.port", "volume.port", "filer.port"] {
        command.arg(format!("-{of}={}", others.next().unwrap_or_default()));
    }
    command
}

/// Free ports for SeaweedFS, which also listens on each of them + 10000. Both are below the ports
/// that the kernel gives to connections.
fn seaweedfs_ports() -> [u16; 4] {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut found = [0; 4];
    for at in 0..found.len() {
        found[at] = std::iter::repeat_with(lasting_port)
            .find(|port| !found.contains(port) && free(*port + 10_000))
            .unwrap_or_default();
    }
    found
}

/// When [`KillingProxy`] kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillAt {
    /// Before the server gets the request.
    Request,
    /// When the server answers, before the client gets the answer.
    Answer,
}

/// Proxy in front of a server that kills a process, the client or another one, by SIGKILL, at a
/// request.
#[derive(Debug)]
pub struct KillingProxy {
    /// Port on loopback.
    pub port: u16,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    to: u16,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    at: KillAt,
    /// Requests left until the kill; `None`: it was killed, or no kill is planned.
    left: Option<usize>,
    /// Id of the process to kill.
    victim: Option<u32>,
}

impl KillingProxy {
    /// Starts a proxy to a port on loopback that kills at the request with this number, counting
    /// from 0.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(to: u16, at: KillAt, request: usize) -> KillingProxy {
        KillingProxy::with(to, State { at, left: Some(request), victim: None })
    }

    /// Starts a proxy that kills at no request until [`KillingProxy::plan`].
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn without_plan(to: u16) -> KillingProxy {
        KillingProxy::with(to, State { at: KillAt::Request, left: None, victim: None })
    }

    fn with(to: u16, state: State) -> KillingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let port = listener.local_addr().unwrap_or_else(|e| panic!("{e}")).port();
        let plan = Arc::new(Plan { to, state: Mutex::new(state), changed: Condvar::new() });
        let shared = Arc::clone(&plan);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let plan = Arc::clone(&shared);
                // However a connection ends, the others go on.
                std::thread::spawn(move || drop(pass_on(client, &plan)));
            }
        });
        KillingProxy { port, plan }
    }

    /// Sets the process to kill.
    pub fn set_client(&self, process: u32) {
        self.plan.state().victim = Some(process);
        self.plan.changed.notify_all();
    }

    /// Plans to kill a process at the request with this number, counting from the next one as 0. An
    /// earlier plan must have been carried out.
    pub fn plan(&self, at: KillAt, request: usize, process: u32) {
        *self.plan.state() = State { at, left: Some(request), victim: Some(process) };
    }

    /// True if the process was killed.
    #[must_use]
    pub fn has_killed(&self) -> bool {
        self.plan.state().left.is_none()
    }
}

impl Plan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request. Returns when to kill, if this is the request.
    fn due(&self) -> Option<KillAt> {
        let mut state = self.state();
        let is_due = state.left == Some(0);
        state.left = state.left.and_then(|left| left.checked_sub(1));
        is_due.then_some(state.at)
    }

    fn kill(&self) {
        // The client may send its first request before its process id is known here.
        let waited = self.changed.wait_while(self.state(), |state| state.victim.is_none());
        if let Some(victim) = waited.unwrap_or_else(PoisonError::into_inner).victim {
            crate::process::signal_id(victim, rustix::process::Signal::KILL);
        }
    }
}

/// Passes on the requests of a connection, whose client waits for each answer.
fn pass_on(mut client: TcpStream, plan: &Arc<Plan>) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", plan.to))?;
    let (mut answers, mut back) = (server.try_clone()?, client.try_clone()?);
    let due = Arc::new(Mutex::new(false));
    let (is_due, of_answers) = (Arc::clone(&due), Arc::clone(plan));
    std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let answered = answers.read(&mut buffer);
            // A server that ends the connection instead does not cancel the plan.
            if *is_due.lock().unwrap_or_else(PoisonError::into_inner) {
                of_answers.kill();
                // The client is another process than the killed one, perhaps.
                back.shutdown(Shutdown::Both)?;
                return answers.shutdown(Shutdown::Both);
            }
            let read = answered?;
            if read == 0 {
                return back.shutdown(Shutdown::Write);
            }
            back.write_all(&buffer[..read])?;
        }
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return server.shutdown(Shutdown::Write);
        }
        let methods: [&[u8]; 5] = [b"GET ", b"PUT ", b"POST ", b"DELETE ", b"HEAD "];
        let begins = methods.iter().any(|method| buffer[..read].starts_with(method));
        match if begins { plan.due() } else { None } {
            Some(KillAt::Request) => {
                plan.kill();
                client.shutdown(Shutdown::Both)?;
                return server.shutdown(Shutdown::Both);
            }
            Some(KillAt::Answer) => *due.lock().unwrap_or_else(PoisonError::into_inner) = true,
            None => {}
        }
        server.write_all(&buffer[..read])?;
    }
}
