//! The HTTP listener of a daemon.
//!
//! What is served has two parts ([`Pages`]): what everybody may see who reaches the listener without TLS from the same
//! machine (is the daemon well, how much does it do), and what is for readers of the trace. Who is what:
//!
//! | connection | sees |
//! |---|---|
//! | TLS, with a certificate of a reader or an operator | everything |
//! | TLS, with another certificate | nothing |
//! | without TLS from this machine, though the daemon has certificates | the open part |
//! | without TLS from this machine, the daemon has none | everything, as with `miot tail` |
//! | without TLS from another machine | nothing; everything with `allow_insecure` and no certificates |
//!
//! A page of another site in somebody's browser must not read a listener on loopback: without TLS the header `Host`
//! has to name this machine.

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
use miot_tls::{Certificate, Role, TlsServer, is_loopback};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Connections at a time; further ones wait.
const CONNECTIONS: usize = if cfg!(test) { 8 } else { 128 };
/// Longest handshake, longest wait for a request, and longest time in which nothing of an answer is taken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Buffer of a connection, bytes: bounds the headers of a request.
const BUFFER: usize = 64 << 10;
/// When a connection cannot be accepted for want of file descriptors, the next attempt comes after this.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The setting that means no listener.
pub const OFF: &str = "off";

/// What is served.
#[derive(Clone, Debug)]
pub struct Pages {
    /// For everybody on this machine: no names of files, programs or users.
    pub open: Router,
    /// For readers.
    pub readers: Router,
}

/// See the module.
#[derive(Debug)]
pub struct Http {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<TlsServer>>,
    patience: Duration,
}

/// The listener cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; `http` says where, or `off`")]
pub struct Unavailable {
    address: String,
    source: std::io::Error,
}

/// Checks the setting `http`: [`OFF`] or `address:port`. `encrypted`: the daemon has certificates; `None`: it never uses
/// any for this.
///
/// # Errors
/// What is wrong, and what to do.
pub fn check(setting: &str, encrypted: Option<bool>, allow_insecure: bool) -> Result<(), String> {
    if setting == OFF {
        return Ok(());
    }
    let Some((host, _)) = setting.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) else {
        return Err(format!("`{setting}` is neither `{OFF}` nor of the form address:port"));
    };
    if encrypted != Some(true) && !allow_insecure && !is_loopback(host) {
        let encrypt = encrypted.map_or("", |_| "set tls_certificate, tls_key and tls_authority, ");
        return Err(format!(
            "other machines can reach {setting}, and nothing is encrypted; {encrypt}listen on 127.0.0.1, or set \
             `allow_insecure = true` if you trust everybody on that network"
        ));
    }
    Ok(())
}

impl Http {
    /// Listens where the setting `http` says: an address, or [`OFF`]. If it says nothing, at `default`; that one may be
    /// missing, another daemon of this machine may have it.
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
                tracing::info!(%error, "nothing is answered over HTTP");
                Ok(None)
            }
        }
    }

    /// Listens.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn bind(address: &str, tls: Option<Arc<TlsServer>>) -> Result<Http, Unavailable> {
        let cannot = |source| Unavailable { address: address.to_owned(), source };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(cannot)?.collect();
        let listener = TcpListener::bind(&addresses[..]).await.map_err(cannot)?;
        let local = listener.local_addr().map_err(cannot)?;
        Ok(Http { listener, address: local, tls, patience: PATIENCE })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves for ever. Connections end when this is dropped.
    pub async fn serve(self, pages: Pages) {
        let Http { listener, address, tls, patience } = self;
        let finish = |router: Router| {
            let router = router.fallback(nowhere).layer(middleware::from_fn(finish));
            let is_local = address.ip().is_loopback();
            (
                router.clone(),
                if is_local { router.layer(middleware::from_fn(of_this_machine)) } else { router },
            )
        };
        let (everything, everything_plain) = finish(pages.open.clone().merge(pages.readers.clone()));
        // Who may not see them is told that they are there.
        let hidden = pages.readers.layer(middleware::from_fn(for_readers));
        let (_, open_plain) = finish(pages.open.merge(hidden));
        let routers = Arc::new(Routers { everything, everything_plain, open_plain, patience });
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = tokio::task::JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (tls, routers) = (tls.clone(), Arc::clone(&routers));
            connections.spawn(async move {
                connection(socket, peer, tls.as_deref(), &routers).await;
                drop(place);
            });
        }
    }
}

struct Routers {
    everything: Router,
    everything_plain: Router,
    open_plain: Router,
    patience: Duration,
}

async fn connection(socket: TcpStream, peer: SocketAddr, tls: Option<&TlsServer>, routers: &Routers) {
    let _ = socket.set_nodelay(true);
    let patience = routers.patience;
    // The kernel ends a connection whose peer reads nothing, whatever it acknowledges: tcp(7). Without that, who asks and does
    // not read would keep a place for ever.
    let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(&socket, milliseconds) {
        tracing::debug!(%error, "who does not read what was asked for keeps a place");
    }
    let Some(tls) = tls else {
        return answer(socket, routers.everything_plain.clone(), true, patience).await;
    };
    let turned_away = |reason: &str| tracing::warn!(%peer, reason, "HTTP connection turned away");
    match timeout(patience, tls.accept(socket)).await {
        Ok(Ok((stream, certificate))) => match may_read(&certificate) {
            Ok(()) => answer(stream, routers.everything.clone(), true, patience).await,
            Err(reason) => {
                turned_away(&reason);
                refuse(stream, reason + "\n", patience).await;
            }
        },
        Ok(Err(Rejection::Plain(socket))) if peer.ip().is_loopback() => {
            answer(socket, routers.open_plain.clone(), true, patience).await;
        }
        Ok(Err(Rejection::Plain(socket))) => {
            turned_away("it does not speak TLS");
            let reason = "this is https, and you need a certificate of a reader (`miot pki reader`)\n";
            refuse(socket, reason.to_owned(), patience).await;
        }
        Ok(Err(Rejection::Failed(socket, reason))) => {
            turned_away(&reason);
            lingering_close(socket, patience).await;
        }
        Ok(Err(Rejection::Gone)) => {}
        Err(_) => turned_away("no TLS handshake in time"),
    }
}

fn may_read(certificate: &Certificate) -> Result<(), String> {
    let operator = certificate.role == Some(Role::Operator);
    if operator { Ok(()) } else { certificate.allows(Role::Reader, "") }
}

/// Answers one request of somebody who sees nothing, in time.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    reason: String,
    patience: Duration,
) {
    let router = Router::new().fallback((StatusCode::FORBIDDEN, reason));
    let _ = timeout(patience, answer(stream, router, false, patience)).await;
}

/// Answers requests until the peer goes, or says nothing for long.
async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
    keep_alive: bool,
    patience: Duration,
) {
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(BUFFER)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = conversation.await {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

async fn nowhere() -> Response {
    (StatusCode::NOT_FOUND, "there is nothing here\n").into_response()
}

/// What all answers have.
async fn finish(request: Request, next: Next) -> Response {
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
    let reason = "this is for readers of the trace: come with https and a certificate of a reader \
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
    (StatusCode::MISDIRECTED_REQUEST, "call this by the name `localhost` or its address\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn other_machines_need_certificates_or_leave() {
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
        let advice = |encrypted| check("0.0.0.0:1", encrypted, false).unwrap_err().contains("tls_key");
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
    async fn a_page_of_another_site_reads_nothing() {
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
    async fn who_asks_and_does_not_read_gives_the_place_back() {
        let mut http = Http::bind("127.0.0.1:0", None).await.unwrap();
        http.patience = Duration::from_millis(300);
        let address = http.local_addr();
        // More than the kernel keeps for a connection.
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
