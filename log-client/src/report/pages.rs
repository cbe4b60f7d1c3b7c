//! What the log-client answers over HTTP: numbers and health, no names. Everything else is the log-server's to tell.

use super::{Reporter, metrics};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use miot_daemon::{Pages, exposition};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// | path | answer |
/// |---|---|
/// | `/healthz` | 200 while the sweeper sweeps, 503 if it hangs |
/// | `/readyz` | 200 while there is a connection with the log-server, 503 if not |
/// | `/metrics` | numbers for Prometheus |
pub(crate) fn pages(reporter: &Arc<Reporter>) -> Pages {
    let open = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(reporter));
    Pages { open, readers: Router::new() }
}

async fn healthz(State(reporter): State<Arc<Reporter>>) -> (StatusCode, &'static str) {
    match reporter.sweeps() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the sweeper hangs\n"),
    }
}

async fn readyz(State(reporter): State<Arc<Reporter>>) -> (StatusCode, &'static str) {
    match reporter.connected.load(Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "there is no connection with the log-server\n"),
    }
}

async fn metrics(State(reporter): State<Arc<Reporter>>) -> Response {
    match metrics::text(&reporter.report()) {
        Ok(text) => ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
