//! Targets of the paper's table and figures.

use super::Limit::{Maximum, Minimum};
use super::{Found, Target, push};
use serde_json::Value;

pub(super) fn paper(results: &Value, targets: &mut Vec<Target>) {
    let figures = crate::paper::figures(results);
    push(
        targets,
        "Table I: formatted line beside its raw copy",
        Minimum(54.0),
        "×",
        Found::of(figures.ratio),
    );
    let limit = Maximum(1.81);
    let worst = limit.worst(figures.added.into_iter().filter_map(Found::of));
    push(targets, "Fig. 7: added by MIOT at the service time of the paper, worst of four", limit, "%", worst);
    push(
        targets,
        "Fig. 6: log-client at the service time of the paper, mean CPU",
        Maximum(1.27),
        "% of a processor",
        figures.load.and_then(Found::of),
    );
}
