use super::*;

const SILENT: Duration = Duration::from_secs(5);

fn second(start: Instant, n: u64) -> Instant {
    start + Duration::from_secs(n)
}

#[test]
fn slowest_node_that_is_not_silent_decides() {
    const S: i64 = 1_000_000_000;
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Unbounded);
    let a = nodes.add(i64::MIN, start);
    let b = nodes.add(i64::MIN, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    nodes.connected(b, Arc::default(), start, SILENT);
    nodes.heartbeat(a, 100 * S, start);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Before(i64::MIN), "b has not sent a heartbeat yet");
    nodes.heartbeat(b, 70 * S, second(start, 1));
    assert_eq!(nodes.bound(second(start, 1), SILENT), MergeBound::Before(70 * S));
    assert_eq!(
        nodes.bound(second(start, 5), SILENT),
        MergeBound::Before(70 * S),
        "a has been silent for 5 s"
    );
    nodes.heartbeat(a, 200 * S, second(start, 6));
    assert_eq!(nodes.bound(second(start, 6), SILENT), MergeBound::Before(200 * S), "now b has");
    nodes.heartbeat(b, 50 * S, second(start, 7));
    assert_eq!(nodes.bound(second(start, 7), SILENT), MergeBound::Before(70 * S), "a watermark never falls");
    nodes.said_goodbye(b);
    assert_eq!(nodes.bound(second(start, 7), SILENT), MergeBound::Before(200 * S));
    nodes.disconnected(a, second(start, 8));
    assert_eq!(nodes.bound(second(start, 12), SILENT), MergeBound::Before(200 * S));
    assert_eq!(nodes.bound(second(start, 13), SILENT), MergeBound::Unbounded);
}

#[test]
fn node_that_only_connected_does_not_hold_back() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let a = nodes.add(i64::MIN, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Before(i64::MIN));
    nodes.disconnected(a, start);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Unbounded);
}

#[test]
fn batches_without_heartbeats_time_out() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let a = nodes.add(7, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    for n in 0..29 {
        nodes.rows_received(a, second(start, n));
        assert_eq!(nodes.bound(second(start, n), SILENT), MergeBound::Before(7));
    }
    nodes.rows_received(a, second(start, 30));
    assert_eq!(nodes.bound(second(start, 30), SILENT), MergeBound::Unbounded);
}

#[test]
fn exempt_node_holds_back_once_it_advances() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let a = nodes.add(i64::MIN, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    nodes.heartbeat(a, 7, start);
    nodes.exempt(a, start);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Unbounded);
    nodes.rows_received(a, start);
    nodes.heartbeat(a, 7, start);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Unbounded);
    nodes.heartbeat(a, 9, start);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Before(9));
    nodes.exempt(a, start);
    nodes.disconnected(a, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Before(9), "until it asks for the exemption again");
}

#[test]
fn no_node_times_out_while_nothing_can_be_merged() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let a = nodes.add(i64::MIN, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    nodes.heartbeat(a, 7, start);
    for n in 0..60 {
        nodes.heartbeat(a, 7, second(start, n));
        nodes.reset_timeouts(second(start, n));
    }
    assert_eq!(nodes.bound(second(start, 60), SILENT), MergeBound::Before(7));
    assert_eq!(nodes.bound(second(start, 70), SILENT), MergeBound::Unbounded);
}

#[test]
fn node_that_is_not_read_is_not_silent() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let (pace_a, pace_b) = (Arc::new(FlowControl::default()), Arc::new(FlowControl::default()));
    let a = nodes.add(10, start);
    let b = nodes.add(20, start);
    nodes.connected(a, Arc::clone(&pace_a), start, SILENT);
    nodes.connected(b, Arc::clone(&pace_b), start, SILENT);
    pace_a.paused.store(true, Ordering::Relaxed);
    let bound = nodes.bound(second(start, 60), SILENT);
    assert_eq!(bound, MergeBound::Before(10));
    nodes.mark_nodes_behind(bound);
    assert!(pace_a.behind.load(Ordering::Relaxed) && !pace_b.behind.load(Ordering::Relaxed));
}

#[test]
fn watermark_that_hardly_advances_times_out() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let a = nodes.add(i64::MIN, start);
    let b = nodes.add(i64::MIN, start);
    nodes.connected(a, Arc::default(), start, SILENT);
    nodes.connected(b, Arc::default(), start, SILENT);
    let time = |n: u64| i64::try_from(n * 1_000_000_000).unwrap_or(0);
    for n in 0..60 {
        // a keeps up; b has caught up with an hour, and from then on repeats its watermark, or
        // hardly advances it.
        nodes.heartbeat(a, time(10_000 + n), second(start, n));
        nodes.heartbeat(
            b,
            if n < 30 { time(100 + 120 * n) } else { time(3580) + n as i64 },
            second(start, n),
        );
        let expected = if n < 40 { 100 + 120 * n.min(29) } else { 10_000 + n };
        match nodes.bound(second(start, n), SILENT) {
            MergeBound::Before(bound) => {
                assert_eq!(bound / 1_000_000_000, time(expected) / 1_000_000_000, "{n}")
            }
            MergeBound::Unbounded => panic!("a is here"),
        }
        if n == 50 {
            nodes.disconnected(b, second(start, n));
            nodes.connected(b, Arc::default(), second(start, n), SILENT);
        }
    }
    // It keeps up again, and holds back the merge once it has caught up.
    nodes.heartbeat(a, time(10_060), second(start, 60));
    nodes.heartbeat(b, time(10_050), second(start, 60));
    assert_eq!(nodes.bound(second(start, 60), SILENT), MergeBound::Before(time(10_050)));
}

#[test]
fn reconnecting_does_not_restart_the_timeout() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let a = nodes.add(i64::MIN, start);
    let mut open = Vec::new();
    for n in 0..30 {
        nodes.connected(a, Arc::default(), second(start, n), SILENT);
        nodes.heartbeat(a, 7, second(start, n));
        nodes.disconnected(a, second(start, n));
        if nodes.bound(second(start, n), SILENT) == MergeBound::Unbounded {
            open.push(n);
        }
    }
    assert_eq!(open, (10..30).collect::<Vec<_>>());
}

#[test]
fn successive_unknown_nodes_do_not_stop_the_merge() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let honest = nodes.add(i64::MIN, start);
    nodes.connected(honest, Arc::default(), start, SILENT);
    let mut went_on = Vec::new();
    for n in 0..20 {
        let stranger = nodes.add(i64::MIN, second(start, n));
        nodes.connected(stranger, Arc::default(), second(start, n), SILENT);
        let watermark = n as i64 * 1_000_000_000;
        nodes.heartbeat(honest, watermark, second(start, n));
        if nodes.bound(second(start, n), SILENT) == MergeBound::Before(watermark) {
            went_on.push(n);
        }
    }
    assert_eq!(went_on, [5, 11, 17]);
}

#[test]
fn merge_waits_while_thousands_of_nodes_connect() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let connect = |nodes: &mut Watermarks, second_of: u64| {
        (0..1000).for_each(|_| {
            let node = nodes.add(i64::MIN, second(start, second_of));
            nodes.connected(node, Arc::default(), second(start, second_of), SILENT);
        });
    };
    // A thousand nodes connect each second, and send their first heartbeat three seconds later.
    for n in 0..11 {
        if n < 8 {
            connect(&mut nodes, n);
        }
        assert_eq!(
            nodes.bound(second(start, n), SILENT),
            MergeBound::Before(i64::MIN),
            "{n} s after the first connection"
        );
        if n >= 3 {
            let first = (n as usize - 3) * 1000;
            (first..first + 1000).for_each(|node| nodes.heartbeat(NodeId(node), 7, second(start, n)));
        }
    }
    assert_eq!(nodes.bound(second(start, 11), SILENT), MergeBound::Before(7));
    // The next ones are few.
    connect(&mut nodes, 62);
    for n in 62..=67 {
        let time = n as i64 * 1_000_000_000;
        (0..8000).for_each(|node| nodes.heartbeat(NodeId(node), time, second(start, n)));
        (8000..9000).for_each(|node| nodes.rows_received(NodeId(node), second(start, n)));
        let expected = if n < 67 { i64::MIN } else { time };
        assert_eq!(nodes.bound(second(start, n), SILENT), MergeBound::Before(expected), "{n}");
    }
}

#[test]
fn node_that_returns_with_thousands_of_others_may_be_silent_longer() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let all: Vec<NodeId> = (0..5000).map(|_| nodes.add(7, start)).collect();
    all.iter().for_each(|node| nodes.connected(*node, Arc::default(), start, SILENT));
    // The same node counts once.
    for _ in 0..5000 {
        nodes.disconnected(all[0], start);
        nodes.connected(all[0], Arc::default(), start, SILENT);
        nodes.heartbeat(all[0], 7, start);
    }
    let time = |n: u64| i64::try_from(n * 1_000_000_000).unwrap_or(0);
    for n in 0..22 {
        all[..4999].iter().for_each(|node| nodes.heartbeat(*node, time(100 + n), second(start, n)));
        let expected = if n < 20 { 7 } else { time(100 + n) };
        assert_eq!(nodes.bound(second(start, n), SILENT), MergeBound::Before(expected), "{n}");
    }
    // Alone it may not.
    nodes.disconnected(all[4999], second(start, 60));
    nodes.heartbeat(all[4999], time(160), second(start, 60));
    nodes.connected(all[4999], Arc::default(), second(start, 60), SILENT);
    for n in 60..67 {
        all[..4999].iter().for_each(|node| nodes.heartbeat(*node, time(101 + n), second(start, n)));
        let expected = if n < 65 { time(160) } else { time(101 + n) };
        assert_eq!(nodes.bound(second(start, n), SILENT), MergeBound::Before(expected), "{n}");
    }
}

#[test]
fn node_that_fills_its_memory_does_not_hold_back() {
    let (start, mut nodes) = (Instant::now(), Watermarks::default());
    let memory = Budget::new(1 << 30).child(100);
    let flow = Arc::new(FlowControl { memory: Some(Arc::clone(&memory)), ..FlowControl::default() });
    let a = nodes.add(10, start);
    nodes.connected(a, Arc::clone(&flow), start, SILENT);
    let charge = memory.charge(90);
    flow.full.store(20, Ordering::Relaxed);
    flow.sent.store(1, Ordering::Relaxed);
    assert_eq!(nodes.bound_without_full(start, SILENT), None, "the store has not taken its input yet");
    nodes.input_taken(a);
    assert_eq!(nodes.bound_without_full(start, SILENT), Some(MergeBound::Unbounded));
    assert_eq!(nodes.bound(start, SILENT), MergeBound::Before(10));
    drop(charge);
    assert_eq!(nodes.bound_without_full(start, SILENT), None, "there is capacity again");
}
