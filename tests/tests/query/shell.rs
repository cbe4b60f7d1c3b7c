//! Interactive queries on a terminal.

use crate::{parts, place};
use miot_tests::built::program;
use miot_tests::process::until;
use miot_tests::tmux::Terminal;

#[test]
fn shell_accepts_statements_over_several_lines() {
    let place = place("shell");
    let trace = place.join("trace");
    let _ = parts(&trace, &[300, 200], false);
    let terminal = Terminal::new(120, 40);
    let miot = program("miot-query");
    let pid = place.join("pid");
    let start = "sh -c 'echo $$ > PID; XDG_STATE_HOME=PLACE exec QUERY TRACE'";
    let start =
        start.replace("PID", &pid.display().to_string()).replace("PLACE", &place.display().to_string());
    terminal.line(
        &start.replace("QUERY", &miot.display().to_string()).replace("TRACE", &trace.display().to_string()),
    );
    let _ = terminal.shows("\\h for help");
    terminal.line("SELECT count(*)");
    // tmux would interpret a semicolon at the end.
    terminal.line("  + 1000 AS n FROM events\\;");
    let _ = terminal.shows("| 1500 |");
    terminal.line("\\d paths");
    let _ = terminal.shows("| path ");
    terminal.line("SELECT 1 FROM evnts\\;");
    let _ = terminal.shows("did you mean `events`");
    // Would take hours.
    terminal.line(
        "SELECT count(*) FROM events a, events b, events c, events d WHERE a.seq + b.seq > c.seq + d.seq\\;",
    );
    // Before the query has started, the key would belong to the next line.
    let pid = std::fs::read_to_string(pid).unwrap();
    until("the query runs", || of_children(&pid) > 30);
    terminal.keys(&["C-c"]);
    let _ = terminal.shows("interrupted");
    // The history holds the typed lines.
    terminal.keys(&["Up", "Up", "Up", "Up", "Enter"]);
    until("the answer again", || {
        terminal.screen().iter().filter(|line| line.contains("| 1500 |")).count() == 2
    });
    terminal.line("\\q");
    until("it has ended", || terminal.screen().iter().rfind(|line| !line.is_empty()).unwrap() == "ready>");
    terminal.line("echo left: $?");
    let _ = terminal.shows("left: 0");
    assert!(std::fs::read_to_string(place.join("miot/query-history")).unwrap().contains("1000 AS n"));
}

fn of_children(pid: &str) -> u64 {
    let pid = pid.trim();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(ticks).sum()
}

/// Processor time that a process has used, hundredths of a second.
pub(crate) fn ticks(pid: &str) -> u64 {
    // A process that has just ended uses nothing.
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
