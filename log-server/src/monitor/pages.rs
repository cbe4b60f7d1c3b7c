//! HTTP pages of the log-server.

use super::metrics;
use crate::live::page;
use crate::shared::Shared;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use miot_daemon::{Pages, exposition};
use miot_proto::status::ClusterStatus;
use std::sync::Arc;

/// Routes:
///
/// | path | access | answer |
/// |---|---|---|
/// | `/healthz` | all | 200 while the loops of the server run, 503 if one hangs |
/// | `/readyz` | all | 200 while the trace can be written and synced, 503 with the reason if not |
/// | `/metrics` | all | metrics for Prometheus |
/// | `/api/status` | readers | [`ClusterStatus`] as JSON |
/// | `/`, and the requests of the page | readers | see [`page`] |
pub(crate) fn pages(shared: &Arc<Shared>) -> Pages {
    let open = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(shared));
    let status = Router::new().route("/api/status", get(status)).with_state(Arc::clone(shared));
    let readers = status.merge(page::routes(shared));
    Pages { open, readers }
}

async fn healthz(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    match shared.monitor.store_is_running() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the store hangs\n"),
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    match shared.monitor.failure() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match metrics::text(&shared.monitor.status()) {
        Ok(text) => ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn status(State(shared): State<Arc<Shared>>) -> Json<ClusterStatus> {
    Json(shared.status())
}
