//! The metrics of `/metrics`. `docs/guide/monitoring.md` describes them for users.

use super::LOSS_PLACES;
use miot_daemon::Exposition;
use miot_proto::status::{BrokerStatus, ClusterStatus, NodeReport, NodeStatus, UploadStatus};

/// Formats the status for Prometheus.
pub(super) fn text(status: &ClusterStatus) -> Result<String, prometheus::Error> {
    let page = Exposition::default();
    server(&page, status)?;
    nodes(&page, &status.nodes)?;
    report_metrics(&page, &status.nodes)?;
    page.text()
}

fn server(page: &Exposition, status: &ClusterStatus) -> Result<(), prometheus::Error> {
    let server = &status.server;
    let number = |value: u64| value as f64;
    page.gauges(
        "miot_server_build_info",
        "Always 1; the label has the version of the log-server.",
        ["version"],
        [([server.version.as_str()], 1.0)],
    )?;
    page.gauge(
        "miot_server_start_time_seconds",
        "Start time of the log-server, Unix time.",
        server.started as f64 / 1e9,
    )?;
    page.gauge(
        "miot_server_ready",
        "1 while the trace can be written and synced.",
        f64::from(u8::from(server.durable)),
    )?;
    page.counter("miot_server_events_stored_total", "Events that are durable in the trace.", server.events)?;
    page.counter("miot_server_received_bytes_total", "Bytes received from nodes.", server.bytes)?;
    page.gauge("miot_server_waiting_events", "Events waiting to be merged.", number(server.waiting))?;
    page.gauge(
        "miot_server_merge_lag_seconds",
        "Lag of the merge behind the clock.",
        seconds(server.merge_lag_ns),
    )?;
    page.gauges(
        "miot_server_parts",
        "Parts of the trace: live (being appended to, or sealed) and sealed.",
        ["state"],
        [(["live"], number(server.live_parts)), (["sealed"], number(server.sealed_parts))],
    )?;
    waiting_uploads(page, server.upload.as_ref())?;
    broker(page, server.broker.as_ref())?;
    page.gauge(
        "miot_server_disk_free_bytes",
        "Space available to the log-server in the file system of the trace.",
        number(server.disk_free),
    )?;
    page.gauge(
        "miot_server_disk_size_bytes",
        "Size of the file system of the trace.",
        number(server.disk_total),
    )?;
    page.gauge(
        "miot_server_memory_bytes",
        "Memory for events that are not durable yet.",
        number(server.memory),
    )?;
    page.gauge("miot_server_memory_limit_bytes", "Its limit (`memory`).", number(server.memory_limit))?;
    page.gauge("miot_server_nodes_connected", "Number of connected nodes.", number(server.connections))?;
    page.gauge(
        "miot_server_nodes_known",
        "Number of nodes in the trace, current or earlier.",
        status.nodes.len() as f64,
    )?;
    page.gauge(
        "miot_server_subscribers",
        "Number of readers of the live trace.",
        number(server.subscribers),
    )?;
    page.counter(
        "miot_server_subscribers_cut_total",
        "Readers that were cut off because they, or this server, were too slow.",
        server.subscribers_cut,
    )?;
    page.counter(
        "miot_server_connections_refused_total",
        "Connections that were refused.",
        server.turned_away,
    )
}

/// 0 without an object store, so that rules find the metrics on every log-server.
fn waiting_uploads(page: &Exposition, upload: Option<&UploadStatus>) -> Result<(), prometheus::Error> {
    let of = |value: fn(&UploadStatus) -> f64| upload.map_or(0.0, value);
    page.gauge(
        "miot_server_upload_waiting_parts",
        "Sealed parts that the object store does not have yet.",
        of(|upload| upload.parts as f64),
    )?;
    page.gauge("miot_server_upload_waiting_bytes", "Their size.", of(|upload| upload.bytes as f64))?;
    page.gauge(
        "miot_server_upload_oldest_seconds",
        "Time since the oldest of them was sealed.",
        of(|upload| upload.oldest_s),
    )
}

/// 1 and 0 without a broker, likewise.
fn broker(page: &Exposition, broker: Option<&BrokerStatus>) -> Result<(), prometheus::Error> {
    let of = |value: fn(&BrokerStatus) -> u64| broker.map_or(0, value);
    page.gauge(
        "miot_server_broker_connected",
        "1 while the log-server reads the broker, or if it has none.",
        broker.map_or(1.0, |broker| f64::from(u8::from(broker.connected))),
    )?;
    page.counter(
        "miot_server_broker_connects_total",
        "Connections of the log-server to the broker.",
        of(|broker| broker.connects),
    )?;
    page.gauge(
        "miot_server_broker_waiting_messages",
        "Messages in the broker that the log-server has not read.",
        of(|broker| broker.messages) as f64,
    )?;
    page.gauge("miot_server_broker_waiting_bytes", "Their size.", of(|broker| broker.bytes) as f64)?;
    page.gauge(
        "miot_server_broker_limit_bytes",
        "Maximum size of the stream of the broker; 0: none.",
        of(|broker| broker.limit) as f64,
    )
}

fn nodes(page: &Exposition, nodes: &[NodeStatus]) -> Result<(), prometheus::Error> {
    type Value = fn(&NodeStatus) -> Option<f64>;
    let gauges: [(&str, &str, Value); 7] = [
        ("miot_node_connected", "1 while the node has a connection.", |n| {
            Some(f64::from(u8::from(n.connected)))
        }),
        ("miot_node_last_heard_timestamp_seconds", "Time of the last message of the node, Unix time.", |n| {
            n.last_heard.map(|time| time as f64 / 1e9)
        }),
        (
            "miot_node_watermark_lag_seconds",
            "Lag of the node's watermark (all earlier events were sent) behind the clock.",
            |n| n.lag_ns.map(seconds),
        ),
        ("miot_node_holds_back", "1 while the merge waits for the node.", |n| {
            Some(f64::from(u8::from(n.holds_back)))
        }),
        ("miot_node_clock_offset_seconds", "Offset that is added to the node's times.", |n| {
            n.clock.map(|clock| seconds(clock.offset_ns))
        }),
        ("miot_node_clock_uncertainty_seconds", "Maximum error of the node's times.", |n| {
            n.clock.map(|clock| seconds(clock.uncertainty_ns))
        }),
        (
            "miot_node_clock_estimated_error_seconds",
            "Standard error of the node's times, if the network delays in both directions are equal.",
            |n| n.clock?.estimated_error_ns.map(seconds),
        ),
    ];
    for (name, help, value) in gauges {
        let series = nodes.iter().filter_map(|node| Some(([node.node.as_str()], value(node)?)));
        page.gauges(name, help, ["node"], series)?;
    }
    page.gauges(
        "miot_node_clock_drift_ratio",
        "Slowness of the node's clock, seconds per second.",
        ["node"],
        nodes.iter().filter_map(|n| Some(([n.node.as_str()], n.clock?.drift_ppb as f64 / 1e9))),
    )?;
    type Count = fn(&NodeStatus) -> u64;
    let counters: [(&str, &str, Count); 3] = [
        ("miot_node_connects_total", "Connections of the node.", |n| n.connects),
        ("miot_node_events_received_total", "Events received from the node, repeats included.", |n| n.events),
        ("miot_node_received_bytes_total", "Bytes received from the node.", |n| n.bytes),
    ];
    for (name, help, value) in counters {
        page.counters(name, help, ["node"], nodes.iter().map(|n| ([n.node.as_str()], value(n))))?;
    }
    let losses = nodes.iter().flat_map(|node| {
        LOSS_PLACES.map(|place| ([node.node.as_str(), place], node.losses.get(place).copied().unwrap_or(0)))
    });
    page.counters(
        "miot_node_lost_events_total",
        "Events missing in the trace, by the place of the loss; `filtered` events were excluded by a filter.",
        ["node", "place"],
        losses,
    )
}

/// Metrics from the status reports of connected nodes.
fn report_metrics(page: &Exposition, nodes: &[NodeStatus]) -> Result<(), prometheus::Error> {
    let reports = || {
        let there = nodes.iter().filter(|node| node.connected);
        there.filter_map(|node| Some((node.node.as_str(), node.report.as_ref()?)))
    };
    page.gauges(
        "miot_node_build_info",
        "Always 1; the label has the version of the log-client.",
        ["node", "version"],
        reports().map(|(node, report)| ([node, report.version.as_str()], 1.0)),
    )?;
    type Value = fn(&NodeReport) -> f64;
    let gauges: [(&str, &str, Value); 9] = [
        ("miot_node_processes", "Processes being read.", |r| r.processes as f64),
        ("miot_node_lanes", "Lanes (threads) being read.", |r| r.lanes as f64),
        ("miot_node_segment_bytes", "Shared memory of all segments.", |r| r.segment_bytes as f64),
        ("miot_node_segment_limit_bytes", "Its limit (`node_bytes`).", |r| r.segment_limit as f64),
        ("miot_node_spool_bytes", "Bytes in the spool.", |r| r.spool.bytes as f64),
        ("miot_node_spool_limit_bytes", "Their limit (`spool_bytes`).", |r| r.spool.limit as f64),
        ("miot_node_requests_in_flight", "Requests that have started and not ended.", |r| r.in_flight as f64),
        (
            "miot_node_oldest_request_age_seconds",
            "Age of the oldest request in flight; 0 without one.",
            |r| r.oldest.first().map_or(0.0, |oldest| oldest.age_ns as f64 / 1e9),
        ),
        ("miot_node_recording", "1 while the node records.", |r| f64::from(u8::from(r.settings.enabled))),
    ];
    for (name, help, value) in gauges {
        page.gauges(name, help, ["node"], reports().map(|(node, report)| ([node], value(report))))?;
    }
    Ok(())
}

fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e9
}
