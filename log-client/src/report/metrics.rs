//! The metrics of `/metrics`. `docs/guide/monitoring.md` is their reference.

use miot_daemon::Exposition;
use miot_proto::status::NodeReport;

/// Formats the report in the Prometheus text format.
pub(super) fn text(report: &NodeReport) -> Result<String, prometheus::Error> {
    let page = Exposition::default();
    let is = |value: bool| f64::from(u8::from(value));
    page.gauges(
        "miot_client_build_info",
        "Always 1; the label is the version.",
        ["version"],
        [([report.version.as_str()], 1.0)],
    )?;
    let gauges = [
        ("miot_client_uptime_seconds", "Time since the start of the log-client.", report.uptime_s),
        ("miot_client_connected", "1 while the log-server is connected.", is(report.connected)),
        ("miot_client_processes", "Processes being read.", report.processes as f64),
        ("miot_client_lanes", "Lanes (threads) being read.", report.lanes as f64),
        ("miot_client_segment_bytes", "Shared memory of all segments.", report.segment_bytes as f64),
        (
            "miot_client_segment_limit_bytes",
            "Maximum shared memory of all segments (`node_bytes`).",
            report.segment_limit as f64,
        ),
        (
            "miot_client_segments_full",
            "1 while the limit is reached: no more lanes are created.",
            is(report.segments_full),
        ),
        ("miot_client_spool_bytes", "Bytes in the spool.", report.spool.bytes as f64),
        (
            "miot_client_spool_limit_bytes",
            "Maximum bytes in the spool (`spool_bytes`).",
            report.spool.limit as f64,
        ),
        (
            "miot_client_spool_full",
            "1 while lanes are not read because the spool is full.",
            is(report.spool.full),
        ),
        (
            "miot_client_unacknowledged_messages",
            "Messages that the log-server has not acknowledged.",
            report.spool.messages as f64,
        ),
        ("miot_client_requests_in_flight", "Requests in flight.", report.in_flight as f64),
        (
            "miot_client_oldest_request_age_seconds",
            "Age of the oldest request in flight; 0 without one.",
            report.oldest.first().map_or(0.0, |oldest| oldest.age_ns as f64 / 1e9),
        ),
        ("miot_client_recording", "1 while the node records.", is(report.settings.enabled)),
    ];
    for (name, help, value) in gauges {
        page.gauge(name, help, value)?;
    }
    let counters = [
        ("miot_client_connects_total", "Connections to the log-server.", report.connects),
        ("miot_client_events_read_total", "Records taken from lanes.", report.events),
        ("miot_client_shipped_bytes_total", "Bytes of the messages shipped.", report.bytes),
        ("miot_client_sweeps_total", "Sweeps over all lanes.", report.sweeps),
        ("miot_client_processes_seen_total", "Processes found.", report.processes_seen),
    ];
    for (name, help, value) in counters {
        page.counter(name, help, value)?;
    }
    page.counters(
        "miot_client_lost_events_total",
        "Events lost on this node, by place; `filtered`: not recorded because of the settings.",
        ["place"],
        report.losses.iter().map(|(place, count)| ([place.as_str()], *count)),
    )?;
    page.text()
}
