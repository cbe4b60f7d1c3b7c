//! Measures the cost of encryption: CPU time of both ends of a log-client's writes through TCP on
//! loopback, with and without TLS.
//!
//! ```text
//! cargo run --release -p miot-tls --example tls_cost -- [MIB]
//! ```

use miot_tls::{Files, Role, TlsClient, TlsServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// Size of a write of a log-client and of a read of a log-server, bytes.
const WRITE: usize = 256 << 10;
const READ: usize = 64 << 10;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let mib: usize = std::env::args().nth(1).and_then(|mib| mib.parse().ok()).unwrap_or(1024);
    let dir = tempfile::tempdir()?;
    make(dir.path())?;
    println!("CPU time, ns per KiB");
    for (name, tls) in [("without TLS", false), ("with TLS", true)] {
        let (client, server) = run(dir.path(), tls, mib * (1 << 20) / WRITE)?;
        println!(
            "{name:12}  sender {:6.1}  receiver {:6.1}",
            client / mib as f64 / 1024.0,
            server / mib as f64 / 1024.0
        );
    }
    Ok(())
}

fn run(dir: &Path, tls: bool, writes: usize) -> Result<(f64, f64)> {
    let files = |role: Role| {
        let file = |name: String| dir.join(name);
        let (pem, key) = (file(format!("{role}.pem")), file(format!("{role}.key")));
        Files::new(Some(&pem), Some(&key), Some(&dir.join("ca.pem")))
    };
    let server = files(Role::Server)?.map(TlsServer::load).transpose()?.filter(|_| tls);
    let client =
        files(Role::Node)?.map(|files| TlsClient::load(files, Role::Node)).transpose()?.filter(|_| tls);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let receiving = std::thread::spawn(move || {
        Builder::new_current_thread().enable_all().build()?.block_on(async {
            let (stream, _) = TcpListener::from_std(listener)?.accept().await?;
            match server {
                None => receive(stream).await,
                Some(server) => receive(server.accept(stream).await.map_err(|e| format!("{e:?}"))?.0).await,
            }
        })
    });
    let sent = Builder::new_current_thread().enable_all().build()?.block_on(async {
        let stream = TcpStream::connect(address).await?;
        match client {
            None => send(stream, writes).await,
            Some(client) => send(client.connect("localhost:1", stream).await?, writes).await,
        }
    })?;
    Ok((sent, receiving.join().map_err(|_| "the receiver failed")??))
}

/// Returns the CPU time of this thread, ns.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

async fn send(mut stream: impl AsyncWrite + Unpin, writes: usize) -> Result<f64> {
    let (bytes, before) = (vec![0xa5; WRITE], cpu());
    for _ in 0..writes {
        stream.write_all(&bytes).await?;
        stream.flush().await?;
    }
    stream.shutdown().await?;
    Ok(cpu() - before)
}

async fn receive(mut stream: impl AsyncRead + Unpin) -> Result<f64> {
    let (mut bytes, before) = (vec![0; READ], cpu());
    while stream.read(&mut bytes).await? > 0 {}
    Ok(cpu() - before)
}

/// Creates certificates of an authority, a server and a node.
fn make(dir: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(dir.join("ca.pem"), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    for role in [Role::Server, Role::Node] {
        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        params.subject_alt_names.push(SanType::URI(role.uri().try_into()?));
        let key = KeyPair::generate()?;
        std::fs::write(dir.join(format!("{role}.pem")), params.signed_by(&key, &issuer)?.pem())?;
        let file = dir.join(format!("{role}.key"));
        std::fs::write(&file, key.serialize_pem())?;
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    Ok(())
}
