//! `miot query worker`: reads and aggregates parts for queries of other machines.

mod places;
mod plans;

use crate::session::limits;
use crate::workers::channels::Channels;
use crate::workers::connection::{CONNECT_TIME, Connection, KEEP_ALIVE};
use crate::workers::{reader, version};
use crate::{STACK, temporary};
use anyhow::{Context as _, ensure};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion_distributed::{DistributedExt as _, Worker, WorkerQueryContext};
use futures_util::{Stream, stream};
use miot_daemon::program::{WRONG_USAGE, reload_tls, run_main};
use miot_daemon::{notify, signals};
use miot_query::cli::WorkerOptions;
use miot_tls::server::Rejection;
use miot_tls::{Files, Role, TlsClient, TlsServer, is_loopback};
use places::Places;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::Server;

/// Number of accepted connections that wait for the server.
const ACCEPTED: usize = 16;
/// Longest time for running queries to end after a request to stop.
const STOP_TIME: Duration = Duration::from_secs(10);
/// Pause after an error of the listener, for instance if there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Age at which a connection is replaced by a new one, whose certificate is checked.
const CONNECTION_AGE: Duration = Duration::from_secs(3600);
/// Largest request: a plan, with the rows of small tables.
const MAX_REQUEST: usize = 64 << 20;

/// Certificates of both directions.
#[derive(Clone)]
struct Tls {
    server: Arc<TlsServer>,
    client: Arc<TlsClient>,
}

/// Runs a worker until it is stopped.
pub(crate) fn main(options: &WorkerOptions) -> ExitCode {
    let ended = run_main("miot-query", options.log.as_deref(), || {
        let usage = |error: anyhow::Error| (WRONG_USAGE, format!("{error:#}"));
        let failed = |error: anyhow::Error| (1, format!("{error:#}"));
        let tls = tls(options).map_err(usage)?;
        let places = Places::new(&options.places).map_err(usage)?;
        let runtime = limits(&options.limits).and_then(|limits| {
            let limits = limits.with_object_store_registry(Arc::new(places));
            limits.build_arc().map_err(|error| error.into())
        });
        let runtime = runtime.map_err(|failure| (failure.code, failure.text))?;
        let engine = Builder::new_multi_thread().enable_all().thread_stack_size(STACK).build();
        let engine = engine.map_err(|error| failed(error.into()))?;
        let ended = engine.block_on(serve(options, tls, runtime)).map_err(failed);
        engine.shutdown_background();
        ended
    });
    temporary::remove();
    ended
}

/// Loads the certificates.
fn tls(options: &WorkerOptions) -> anyhow::Result<Option<Tls>> {
    let authority = options.tls_authority.as_deref();
    let files = Files::new(options.tls_certificate.as_deref(), options.tls_key.as_deref(), authority)?;
    let Some(files) = files else {
        let host = options.listen.rsplit_once(':').map_or("", |(host, _)| host);
        ensure!(
            options.allow_insecure || is_loopback(host),
            "without TLS, only this machine is served: create certificates with `miot pki`, listen on 127.0.0.1, \
             or use --allow-insecure if you trust the network"
        );
        return Ok(None);
    };
    let own = Files::new(options.reader_certificate.as_deref(), options.reader_key.as_deref(), authority);
    let own = own.ok().flatten().context(
        "with TLS, a worker also needs the certificate of a reader, for other workers: --reader-certificate and --reader-key",
    )?;
    Ok(Some(Tls { server: Arc::new(TlsServer::load(files)?), client: Arc::new(reader(own)?) }))
}

async fn serve(options: &WorkerOptions, tls: Option<Tls>, runtime: Arc<RuntimeEnv>) -> anyhow::Result<()> {
    // A query names the workers that it uses.
    let is_local = tls.is_none() && !options.allow_insecure;
    let channels = Channels::new(tls.as_ref().map(|tls| Arc::clone(&tls.client)), is_local);
    let session = move |query: WorkerQueryContext| {
        let channels = channels.clone();
        async move {
            let builder = query.builder.with_distributed_channel_resolver(channels);
            Ok(builder.with_distributed_worker_plan_rewrite_handler(plans::check).build())
        }
    };
    let worker = Worker::from_session_builder(session).with_runtime_env(runtime).with_version(version());
    let listener = TcpListener::bind(&options.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", options.listen))?;
    let address = listener.local_addr()?;
    let (stop, mut reload) = (signals::stop()?, signals::Reload::watch()?);
    let (to, accepted) = mpsc::channel(ACCEPTED);
    let accepting = tokio::spawn(accept(listener, tls.as_ref().map(|tls| Arc::clone(&tls.server)), to));
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut server =
        Server::builder().http2_keepalive_interval(Some(KEEP_ALIVE)).max_connection_age(CONNECTION_AGE);
    let server = server.add_service(worker.into_worker_server().max_decoding_message_size(MAX_REQUEST));
    let mut serving = tokio::spawn(server.serve_with_incoming_shutdown(incoming(accepted), async {
        let _ = stopped.await;
    }));
    tracing::info!(%address, places = options.places.join(" "), tls = tls.is_some(), "queries are accepted");
    notify::ready(&format!("accepting queries on {address}"));
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            () = reload.wanted() => if let Some(tls) = &tls {
                reload_tls(|| tls.server.reload().and_then(|()| tls.client.reload()));
            },
            ended = &mut serving => return Ok(ended??),
        }
    }
    notify::stopping();
    accepting.abort();
    drop(stopping);
    if timeout(STOP_TIME, serving).await.is_err() {
        tracing::warn!("queries were running; they fail");
    }
    Ok(())
}

/// Accepts connections of readers, forever.
async fn accept(listener: TcpListener, tls: Option<Arc<TlsServer>>, to: mpsc::Sender<Connection>) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                let (tls, to) = (tls.clone(), to.clone());
                tokio::spawn(async move {
                    match timeout(CONNECT_TIME, admit(socket, tls.as_deref())).await {
                        Ok(Ok(connection)) => drop(to.send(connection).await),
                        Ok(Err(reason)) => tracing::warn!(%peer, reason, "connection refused"),
                        Err(_) => tracing::warn!(%peer, "connection refused: no TLS within 10 s"),
                    }
                });
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Performs the handshake and checks the role of the peer.
async fn admit(socket: TcpStream, tls: Option<&TlsServer>) -> Result<Connection, String> {
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else { return Ok(Connection::new(socket)) };
    let (stream, certificate) = tls.accept(socket).await.map_err(|rejection| match rejection {
        Rejection::Plain(_) => "it does not use TLS".to_owned(),
        Rejection::Failed(_, reason) => reason,
        Rejection::Gone => "it has closed the connection".to_owned(),
    })?;
    match certificate.role {
        Some(Role::Reader | Role::Operator) => Ok(Connection::new(stream)),
        _ => Err(format!("{} is no reader and no operator", certificate.names_in_words())),
    }
}

fn incoming(accepted: mpsc::Receiver<Connection>) -> impl Stream<Item = io::Result<Connection>> {
    stream::unfold(accepted, |mut accepted| async move { Some((Ok(accepted.recv().await?), accepted)) })
}
