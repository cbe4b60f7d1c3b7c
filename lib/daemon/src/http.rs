//! The HTTP listener of a daemon.
//!
//! The pages have two parts ([`Pages`]): open pages for connections from the same machine without
//! TLS (health, metrics), and pages for readers of the trace. Access:
//!
//! | connection | pages |
//! |---|---|
//! | TLS, with a certificate of a reader or an operator | all |
//! | TLS, with another certificate | none |
//! | without TLS from this machine, and the daemon has certificates | open pages |
//! | without TLS from this machine, and the daemon has no certificates | all, as with `miot tail` |
//! | without TLS from another machine | none; all with `allow_insecure` and no certificates |
//!
//! A page of another site in a browser must not read a listener on loopback: without TLS, the
//! header `Host` must name this machine.

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, HOST, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use miot_tls::server::{Rejection, lingering_close};
use miot_tls::{Certificate, NotAllowed, Role, TlsServer, is_loopback};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of connections at a time; further ones wait.
const CONNECTIONS: usize = if cfg!(test) { 8 } else { 128 };
/// Timeout of a handshake, of the wait for a request, and of a response of which nothing is read.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Buffer size of a connection, bytes; limits the headers of a request.
const BUFFER: usize = 64 << 10;
/// Delay after a connection could not be accepted, e.g. because there are no free file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Value of the setting that disables the listener.
pub const OFF: &str = "off";

/// The pages of a listener.
#[derive(Clone, Debug)]
pub struct Pages {
    /// Open pages, without names of files, programs or users.
    pub open: Router,
    /// Pages for readers of the trace.
    pub readers: Router,
}

/// An HTTP listener.
#[derive(Debug)]
pub struct Http {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<TlsServer>>,
    timeout_after: Duration,
}

/// Error of listening on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; set `http` to another address, or to `off`")]
pub struct Unavailable {
    address: String,
    source: std::io::Error,
}

/// The setting `http` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The setting has another form.
    #[error("`{0}` is neither `{OFF}` nor of the form address:port")]
    Form(String),
    /// Other machines can reach the address, without encryption.
    #[error(
        "other machines can reach {setting}, and nothing is encrypted; {}listen on 127.0.0.1, or set `allow_insecure = \
         true` if you trust everybody on that network",
        if *.can_encrypt { "set tls_certificate, tls_key and tls_authority, " } else { "" }
    )]
    Exposed {
        /// The setting.
        setting: String,
        /// True if the daemon encrypts HTTP when it has certificates.
        can_encrypt: bool,
    },
}

/// Checks the setting `http`: [`OFF`] or `address:port`. `encrypted` is true if the daemon has
/// certificates, and `None` if it never uses them for HTTP.
///
/// # Errors
/// [`SettingError`].
pub fn check(setting: &str, encrypted: Option<bool>, allow_insecure: bool) -> Result<(), SettingError> {
    if setting == OFF {
        return Ok(());
    }
    let Some((host, _)) = setting.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) else {
        return Err(SettingError::Form(setting.to_owned()));
    };
    if encrypted != Some(true) && !allow_insecure && !is_loopback(host) {
        return Err(SettingError::Exposed { setting: setting.to_owned(), can_encrypt: encrypted.is_some() });
    }
    Ok(())
}

impl Http {
    /// Listens on the address of the setting `http`, unless it is [`OFF`]. Without a setting,
    /// listens on `default` if that is possible: another daemon of this machine may use it.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn listen(
        setting: Option<&str>,
        default: &str,
        tls: Option<Arc<TlsServer>>,
    ) -> Result<Option<Http>, Unavailable> {
        if setting == Some(OFF) {
            return Ok(None);
        }
        match Http::bind(setting.unwrap_or(default), tls).await {
            Ok(http) => Ok(Some(http)),
            Err(error) if setting.is_some() => Err(error),
            Err(error) => {
                tracing::info!(%error, "HTTP is disabled");
                Ok(None)
            }
        }
    }

    /// Listens on an address.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn bind(address: &str, tls: Option<Arc<TlsServer>>) -> Result<Http, Unavailable> {
        let cannot = |source| Unavailable { address: address.to_owned(), source };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(cannot)?.collect();
        let listener = TcpListener::bind(&addresses[..]).await.map_err(cannot)?;
        let local = listener.local_addr().map_err(cannot)?;
        Ok(Http { listener, address: local, tls, timeout_after: TIMEOUT })
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped, which ends all connections.
    pub async fn serve(self, pages: Pages) {
        let Http { listener, address, tls, timeout_after } = self;
        let finish = |router: Router| {
            let router = router.fallback(not_found).layer(middleware::from_fn(add_headers));
            let is_local = address.ip().is_loopback();
            (
                router.clone(),
                if is_local { router.layer(middleware::from_fn(of_this_machine)) } else { router },
            )
        };
        let (everything, everything_plain) = finish(pages.open.clone().merge(pages.readers.clone()));
        // Pages that a connection may not read answer with 403, not 404.
        let hidden = pages.readers.layer(middleware::from_fn(for_readers));
        let (_, open_plain) = finish(pages.open.merge(hidden));
        let routers = Arc::new(Routers { everything, everything_plain, open_plain, timeout_after });
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = tokio::task::JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (tls, routers) = (tls.clone(), Arc::clone(&routers));
            connections.spawn(async move {
                connection(socket, peer, tls.as_deref(), &routers).await;
                drop(permit);
            });
        }
    }
}

struct Routers {
    everything: Router,
    everything_plain: Router,
    open_plain: Router,
    timeout_after: Duration,
}

async fn connection(socket: TcpStream, peer: SocketAddr, tls: Option<&TlsServer>, routers: &Routers) {
    let _ = socket.set_nodelay(true);
    let timeout_after = routers.timeout_after;
    // The kernel ends a connection whose peer reads nothing, even if it acknowledges: tcp(7).
    // Otherwise a peer that sends requests and does not read would occupy a connection forever.
    let milliseconds = u32::try_from(timeout_after.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(&socket, milliseconds) {
        tracing::debug!(%error, "cannot set the timeout of a connection: a peer that does not read occupies it");
    }
    let Some(tls) = tls else {
        return answer(socket, routers.everything_plain.clone(), true, timeout_after).await;
    };
    let log_refused = |reason: &str| tracing::warn!(%peer, reason, "HTTP connection refused");
    match timeout(timeout_after, tls.accept(socket)).await {
        Ok(Ok((stream, certificate))) => match may_read(&certificate) {
            Ok(()) => answer(stream, routers.everything.clone(), true, timeout_after).await,
            Err(reason) => {
                log_refused(&reason.to_string());
                refuse(stream, format!("{reason}\n"), timeout_after).await;
            }
        },
        Ok(Err(Rejection::Plain(socket))) if peer.ip().is_loopback() => {
            answer(socket, routers.open_plain.clone(), true, timeout_after).await;
        }
        Ok(Err(Rejection::Plain(socket))) => {
            log_refused("it does not speak TLS");
            let reason = "this is https, and you need a certificate of a reader (`miot pki reader`)\n";
            refuse(socket, reason.to_owned(), timeout_after).await;
        }
        Ok(Err(Rejection::Failed(socket, reason))) => {
            log_refused(&reason);
            lingering_close(socket, timeout_after).await;
        }
        Ok(Err(Rejection::Gone)) => {}
        Err(_) => log_refused("TLS handshake timed out"),
    }
}

fn may_read(certificate: &Certificate) -> Result<(), NotAllowed> {
    let operator = certificate.role == Some(Role::Operator);
    if operator { Ok(()) } else { certificate.allows(Role::Reader, "") }
}

/// Answers one request with a reason for the refusal, within the timeout.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    reason: String,
    timeout_after: Duration,
) {
    let router = Router::new().fallback((StatusCode::FORBIDDEN, reason));
    let _ = timeout(timeout_after, answer(stream, router, false, timeout_after)).await;
}

/// Answers requests until the peer closes the connection or a timeout expires.
async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
    keep_alive: bool,
    timeout_after: Duration,
) {
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout_after)
        .max_buf_size(BUFFER)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = conversation.await {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "no such page\n").into_response()
}

/// Adds the headers of all responses.
async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let mut set = |name: HeaderName, value| {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(CACHE_CONTROL, "no-store");
    set(HeaderName::from_static("content-security-policy"), "default-src 'self'; frame-ancestors 'none'");
    response
}

async fn for_readers(_: Request, _: Next) -> Response {
    let reason = "this page is for readers of the trace: use https and a certificate of a reader \
                  (`miot pki reader`)\n";
    (StatusCode::FORBIDDEN, reason).into_response()
}

async fn of_this_machine(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    if is_loopback(name) {
        return next.run(request).await;
    }
    (StatusCode::MISDIRECTED_REQUEST, "use the name `localhost` or the address of this server\n")
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn other_machines_need_certificates_or_allow_insecure() {
        for (setting, encrypted, insecure, fine) in [
            ("off", Some(false), false, true),
            ("127.0.0.1:1", None, false, true),
            ("[::1]:0", Some(false), false, true),
            ("0.0.0.0:1", Some(false), false, false),
            ("0.0.0.0:1", None, false, false),
            ("0.0.0.0:1", Some(true), false, true),
            ("0.0.0.0:1", None, true, true),
            ("localhost", Some(true), true, false),
        ] {
            assert_eq!(check(setting, encrypted, insecure).is_ok(), fine, "{setting}");
        }
        let advice =
            |encrypted| check("0.0.0.0:1", encrypted, false).unwrap_err().to_string().contains("tls_key");
        assert!(advice(Some(false)) && !advice(None), "only where it would help");
    }

    async fn ask(address: SocketAddr, host: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn pages_of_other_sites_are_refused() {
        let http = Http::bind("127.0.0.1:0", None).await.unwrap();
        let address = http.local_addr();
        let pages = Pages {
            open: Router::new().route("/healthz", get(|| async { "well\n" })),
            readers: Router::new().route("/api", get(|| async { "secret\n" })),
        };
        let serving = tokio::spawn(http.serve(pages));
        for host in ["localhost", "127.0.0.1:80", "[::1]:1", "[::1]"] {
            let answer = ask(address, host, "/api").await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("secret\n"), "{host}: {answer}");
        }
        for host in ["example.org", "localhost.example.org:80", ""] {
            let answer = ask(address, host, "/api").await;
            assert!(answer.starts_with("HTTP/1.1 421") && !answer.contains("secret"), "{host}: {answer}");
        }
        let answer = ask(address, "localhost", "/nowhere").await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("nosniff"), "{answer}");
        serving.abort();
    }

    #[tokio::test]
    async fn peers_that_do_not_read_are_disconnected() {
        let mut http = Http::bind("127.0.0.1:0", None).await.unwrap();
        http.timeout_after = Duration::from_millis(300);
        let address = http.local_addr();
        // More than the kernel buffers for a connection.
        let much = axum::body::Bytes::from(vec![b'x'; 32 << 20]);
        let open = Router::new()
            .route("/healthz", get(|| async { "well\n" }))
            .route("/much", get(|| async move { much.clone() }));
        let serving = tokio::spawn(http.serve(Pages { open, readers: Router::new() }));
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            idle.push(stream);
        }
        let asked = timeout(Duration::from_secs(60), ask(address, "localhost", "/healthz"));
        let answer = asked.await.expect("there is a place again");
        assert!(answer.ends_with("well\n"), "{answer}");
        serving.abort();
    }
}
