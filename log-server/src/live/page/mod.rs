//! The web page: files in this binary, and the data that they request.
//!
//! | module | role |
//! |---|---|
//! | `events` | the latest events, as a stream |
//!
//! The page requests all other data once a second from `/api/watch`. Nothing here changes any
//! state, and no resource comes from another site: the content security policy of the listener
//! forbids it.

mod events;

use crate::live::activity::ActivityRequest;
use crate::shared::Shared;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use miot_proto::activity::{ActivityWindow, ClusterActivity, MAX_WINDOW_SECONDS};
use serde::Deserialize;
use std::sync::Arc;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Path, type and content.
const ASSETS: [(&str, &str, &str); 8] = [
    ("/", HTML, include_str!("../../../assets/index.html")),
    ("/assets/page.css", CSS, include_str!("../../../assets/page.css")),
    ("/assets/icon.svg", IMAGE, include_str!("../../../assets/icon.svg")),
    ("/assets/main.js", SCRIPT, include_str!("../../../assets/main.js")),
    ("/assets/charts.js", SCRIPT, include_str!("../../../assets/charts.js")),
    ("/assets/tables.js", SCRIPT, include_str!("../../../assets/tables.js")),
    ("/assets/tail.js", SCRIPT, include_str!("../../../assets/tail.js")),
    ("/assets/numbers.js", SCRIPT, include_str!("../../../assets/numbers.js")),
];

/// | path | answer |
/// |---|---|
/// | `/`, `/assets/…` | the page |
/// | `/api/watch` | [`ClusterActivity`] as JSON; `window` (seconds or `all`), `top`, `step`, `steps` |
/// | `/api/events` | server-sent events: the latest events, with the filters of `miot tail` |
pub(crate) fn routes(shared: &Arc<Shared>) -> Router {
    let api = Router::new()
        .route("/api/watch", get(watch))
        .route("/api/events", get(events::events))
        .with_state(Arc::clone(shared));
    ASSETS.into_iter().fold(api, |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }))
    })
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WatchQuery {
    window: String,
    top: usize,
    step: u32,
    steps: usize,
}

impl Default for WatchQuery {
    fn default() -> WatchQuery {
        WatchQuery { window: "10".into(), top: 20, step: 1, steps: 300 }
    }
}

async fn watch(State(shared): State<Arc<Shared>>, Query(query): Query<WatchQuery>) -> Response {
    let window = match query.window.as_str() {
        "all" => Some(ActivityWindow::Whole),
        seconds => {
            seconds.parse().ok().filter(|s| (1..=MAX_WINDOW_SECONDS).contains(s)).map(ActivityWindow::Seconds)
        }
    };
    let Some(window) = window else {
        let reason = format!("window: expected a number of seconds up to {MAX_WINDOW_SECONDS}, or all\n");
        return (StatusCode::BAD_REQUEST, reason).into_response();
    };
    let WatchQuery { top, step, steps, .. } = query;
    match activity(&shared, ActivityRequest { window, top, step, steps }).await {
        Some(activity) => Json(activity).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "too many concurrent requests\n").into_response(),
    }
}

/// Current status and live activity.
pub(crate) async fn activity(shared: &Shared, request: ActivityRequest) -> Option<ClusterActivity> {
    let (snapshot, history) = shared.activity.query(request).await?;
    Some(ClusterActivity { status: shared.status(), snapshot, history })
}
