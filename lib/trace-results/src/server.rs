//! Connection to a log-server, for readers and operators.

use crate::Error;
use miot_proto::command::{OperatorReply, OperatorRequest};
use miot_proto::wire::{FRAME_HEADER, GREETING, MAX_FRAME, Message, Role, VERSION, frame_header};
use miot_tls::failure::refusal;
use miot_tls::{Files, TlsClient};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

/// Longest wait for an answer of the log-server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a connection to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the address if `source` has the form `host:port` and is not a directory.
#[must_use]
pub fn address(source: &str) -> Option<&str> {
    let is_address = source.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    (is_address && !Path::new(source).exists()).then_some(source)
}

/// Plain or encrypted connection.
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection after the handshake.
pub struct Connection {
    /// Messages.
    pub stream: Box<dyn Stream + Send>,
    /// The connection below it, which another thread can shut down.
    pub socket: TcpStream,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Paths of the PEM files of a client; all three or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Certificates<'a> {
    /// Certificate of a reader or an operator.
    pub certificate: Option<&'a Path>,
    /// Its private key.
    pub key: Option<&'a Path>,
    /// Certificate of the authority that signed the log-server's certificate.
    pub authority: Option<&'a Path>,
}

/// Connects and completes the handshake. `timeout` is the longest wait for a message; `None` waits
/// forever.
///
/// # Errors
/// [`Error::Option`] for an address that is not valid, [`Error::Failed`].
pub fn connect(
    address: &str,
    tls: Certificates<'_>,
    role: Role,
    timeout: Option<Duration>,
) -> Result<Connection, Error> {
    let files = Files::new(tls.certificate, tls.key, tls.authority).map_err(|e| of_tls(&e))?;
    let tls = files.map(own).transpose().map_err(|e| of_tls(&e))?;
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        let text = format!("`{address}` is not of the form HOST:PORT, such as localhost:4747");
        return Err(Error::Option(text));
    }
    let cannot =
        |error: io::Error| Error::because(&format!("cannot connect to a log-server at {address}"), &error);
    let socket = open(address).map_err(cannot)?;
    socket.set_read_timeout(timeout).map_err(cannot)?;
    let below = socket.try_clone().map_err(cannot)?;
    let mut stream: Box<dyn Stream + Send> = match tls {
        None => Box::new(socket),
        Some(tls) => Box::new(tls.connect_blocking(address, socket).map_err(|error| {
            let text = format!("cannot open an encrypted connection to the log-server at {address}");
            Error::because(&text, &error)
        })?),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    send(
        &mut *stream,
        &Message::Hello { greeting: GREETING, version: VERSION, role, node: host, session: 0 },
    )?;
    match receive(&mut *stream)? {
        Message::Welcome { .. } => Ok(Connection { stream, socket: below }),
        Message::Refused { reason, .. } => {
            Err(Error::Failed(format!("the log-server at {address} refused: {reason}")))
        }
        _ => Err(Error::Failed(format!("at {address}: {}", unexpected_reply()))),
    }
}

/// Connects to the first address of a name that answers.
fn open(name: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in name.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn of_tls(error: &miot_tls::Error) -> Error {
    Error::Failed(error.to_string())
}

/// Loads a reader's certificate, or an operator's, which also permits reading.
fn own(files: Files) -> Result<TlsClient, miot_tls::Error> {
    let operator = TlsClient::load(files.clone(), miot_tls::Role::Operator);
    operator.or_else(|_| TlsClient::load(files, miot_tls::Role::Reader))
}

/// Connects for operator requests. `timeout` is added to the longest wait for an answer.
///
/// # Errors
/// As [`connect`].
pub fn operator(
    address: &str,
    tls: Certificates<'_>,
    timeout: Duration,
) -> Result<Box<dyn Stream + Send>, Error> {
    let wait = Some(timeout.saturating_add(ANSWER_TIMEOUT));
    Ok(connect(address, tls, Role::Operator, wait)?.stream)
}

/// Sends a request and returns the reply. A refusal is an error.
///
/// # Errors
/// [`Error::Failed`].
pub fn ask(stream: &mut dyn Stream, request: &OperatorRequest) -> Result<OperatorReply, Error> {
    let failed = |error: serde_json::Error| Error::Failed(error.to_string());
    send(stream, &Message::Request { request: serde_json::to_vec(request).map_err(failed)? })?;
    let reply = match receive(stream)? {
        Message::Reply { reply } => serde_json::from_slice(&reply).map_err(failed)?,
        Message::Refused { reason, .. } => OperatorReply::Refused(reason),
        _ => return Err(unexpected_reply()),
    };
    match reply {
        OperatorReply::Refused(reason) => Err(Error::Failed(format!("the log-server refused: {reason}"))),
        reply => Ok(reply),
    }
}

/// Returns the error for an unexpected message.
#[must_use]
pub fn unexpected_reply() -> Error {
    Error::Failed("the peer is not a MIOT log-server".to_owned())
}

/// Sends a message.
///
/// # Errors
/// [`Error::Failed`].
pub fn send(stream: &mut dyn Stream, message: &Message) -> Result<(), Error> {
    let sent = stream.write_all(&message.frame()).and_then(|()| stream.flush());
    sent.map_err(|error| Error::Failed(error.to_string()))
}

/// Reads the next message.
///
/// # Errors
/// [`Error::Failed`].
pub fn receive(stream: &mut dyn Stream) -> Result<Message, Error> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).map_err(|error| connection_error(&error))?;
    let (length, crc) = frame_header(header, MAX_FRAME).map_err(|error| Error::Failed(error.to_string()))?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).map_err(|error| connection_error(&error))?;
    Message::from_payload(&payload, crc).map_err(|error| Error::Failed(error.to_string()))
}

/// Converts an error of the connection to its reason.
fn connection_error(error: &io::Error) -> Error {
    match (refusal(error), error.kind()) {
        (Some((reason, _)), _) => Error::Failed(format!("the log-server refused this client: {reason}")),
        (None, ErrorKind::UnexpectedEof) => Error::Failed("the log-server closed the connection".to_owned()),
        // The read timeout expired.
        (None, ErrorKind::WouldBlock) => Error::Failed("the log-server does not answer".to_owned()),
        _ => Error::because("lost the connection to the log-server", error),
    }
}
