//! HTTP pages of the log-client: metrics and health, without names. All other pages are served by
//! the log-server.

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
/// | `/healthz` | 200 while the sweeper runs, 503 if it hangs |
/// | `/readyz` | 200 while the log-server is connected, 503 otherwise |
/// | `/metrics` | metrics in the Prometheus text format |
pub(crate) fn pages(reporter: &Arc<Reporter>) -> Pages {
    let open = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(reporter));
    Pages { open, readers: Router::new() }
}

async fn healthz(State(reporter): State<Arc<Reporter>>) -> (StatusCode, &'static str) {
    match reporter.is_sweeping() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the sweeper is hung\n"),
    }
}

async fn readyz(State(reporter): State<Arc<Reporter>>) -> (StatusCode, &'static str) {
    match reporter.connected.load(Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not connected to the log-server\n"),
    }
}

async fn metrics(State(reporter): State<Arc<Reporter>>) -> Response {
    match metrics::text(&reporter.report()) {
        Ok(text) => ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
