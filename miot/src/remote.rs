//! Connection to a log-server, for readers and operators.

use anyhow::Context as _;
use clap::Args;
use miot_proto::command::{OperatorReply, OperatorRequest};
use miot_proto::wire::{FRAME_HEADER, GREETING, MAX_FRAME, Message, Role, VERSION, frame_header};
use miot_tls::failure::refusal;
use miot_tls::{Files, TlsClient};
use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for an answer of the log-server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the address if `source` has the form `host:port` and is not a directory.
pub(crate) fn address(source: &str) -> Option<&str> {
    let is_address = source.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    (is_address && !Path::new(source).exists()).then_some(source)
}

/// Options for certificates; see `miot pki`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS (all three or none)")]
pub(crate) struct Tls {
    /// Your certificate, a PEM file made by `miot pki reader` or `miot pki operator`
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_CERTIFICATE", global = true)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_KEY", global = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificate of the authority that signed the log-server's certificate, a PEM file
    #[arg(long, value_name = "FILE", env = "MIOT_TLS_AUTHORITY", global = true)]
    pub(crate) tls_authority: Option<PathBuf>,
}

/// Plain or encrypted connection.
pub(crate) trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Connects and completes the handshake. `timeout` is the longest wait for a message; `None` waits
/// forever.
pub(crate) fn connect(
    address: &str,
    tls: &Tls,
    role: Role,
    timeout: Option<Duration>,
) -> anyhow::Result<Box<dyn Stream + Send>> {
    let (certificate, key) = (tls.tls_certificate.as_deref(), tls.tls_key.as_deref());
    let files = Files::new(certificate, key, tls.tls_authority.as_deref())?;
    let tls = files.map(own).transpose()?;
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    anyhow::ensure!(port.is_some(), "`{address}` is not of the form HOST:PORT, such as localhost:4747");
    let stream = TcpStream::connect(address)
        .with_context(|| format!("cannot connect to a log-server at {address}"))?;
    stream.set_read_timeout(timeout)?;
    let mut stream: Box<dyn Stream + Send> = match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.connect_blocking(address, stream).with_context(|| {
            format!("cannot open an encrypted connection to the log-server at {address}")
        })?),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    send(
        &mut *stream,
        &Message::Hello { greeting: GREETING, version: VERSION, role, node: host, session: 0 },
    )?;
    match receive(&mut *stream)? {
        Message::Welcome { .. } => Ok(stream),
        Message::Refused { reason, .. } => anyhow::bail!("the log-server at {address} refused: {reason}"),
        _ => Err(unexpected_reply().context(format!("at {address}"))),
    }
}

/// Loads a reader's certificate, or an operator's, which also permits reading.
fn own(files: Files) -> Result<TlsClient, miot_tls::Error> {
    let operator = TlsClient::load(files.clone(), miot_tls::Role::Operator);
    operator.or_else(|_| TlsClient::load(files, miot_tls::Role::Reader))
}

/// Connects for operator requests. `timeout` is added to the longest wait for an answer.
pub(crate) fn operator(
    address: &str,
    tls: &Tls,
    timeout: Duration,
) -> anyhow::Result<Box<dyn Stream + Send>> {
    connect(address, tls, Role::Operator, Some(timeout.saturating_add(ANSWER_TIMEOUT)))
}

/// Sends a request and returns the reply. A refusal is an error.
pub(crate) fn ask(stream: &mut dyn Stream, request: &OperatorRequest) -> anyhow::Result<OperatorReply> {
    send(stream, &Message::Request { request: serde_json::to_vec(request)? })?;
    let reply = match receive(stream)? {
        Message::Reply { reply } => serde_json::from_slice(&reply)?,
        Message::Refused { reason, .. } => OperatorReply::Refused(reason),
        _ => return Err(unexpected_reply()),
    };
    match reply {
        OperatorReply::Refused(reason) => anyhow::bail!("the log-server refused: {reason}"),
        reply => Ok(reply),
    }
}

/// Returns the error for an unexpected message.
pub(crate) fn unexpected_reply() -> anyhow::Error {
    anyhow::anyhow!("the peer is not a MIOT log-server")
}

/// Sends a message.
pub(crate) fn send(stream: &mut dyn Stream, message: &Message) -> anyhow::Result<()> {
    stream.write_all(&message.frame())?;
    Ok(stream.flush()?)
}

/// Reads the next message.
pub(crate) fn receive(stream: &mut dyn Stream) -> anyhow::Result<Message> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).map_err(connection_error)?;
    let (length, crc) = frame_header(header, MAX_FRAME)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).map_err(connection_error)?;
    Ok(Message::from_payload(&payload, crc)?)
}

/// Converts an error of the connection to its reason.
fn connection_error(error: Error) -> anyhow::Error {
    match (refusal(&error), error.kind()) {
        (Some((reason, _)), _) => anyhow::anyhow!("the log-server refused this client: {reason}"),
        (None, ErrorKind::UnexpectedEof) => anyhow::anyhow!("the log-server closed the connection"),
        // The read timeout expired.
        (None, ErrorKind::WouldBlock) => anyhow::anyhow!("the log-server does not answer"),
        _ => anyhow::Error::new(error).context("lost the connection to the log-server"),
    }
}
