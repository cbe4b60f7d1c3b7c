//! Clocks: the counter that requests read, and the accuracy of the machine's time.

use super::report::CheckReport;
use miot_trace_events::text::duration;

const AREA: &str = "clock";
/// Offset above which certificates and the times of other logs may be wrong. Times of the trace are
/// corrected.
const FAR_OFF_NS: i64 = 1_000_000_000;

/// Checks the clocks. `offset` is the offset of this machine's clock from the log-server's, and the
/// shortest round trip, nanoseconds.
pub(super) fn examine(offset: Option<(i64, i64)>, report: &mut CheckReport) {
    counter(report);
    steady(report);
    match offset {
        None => report.ok(AREA, "offset", "unknown: the log-server was not reached"),
        Some((offset, round_trip)) => {
            let size = duration(offset.saturating_abs());
            let ahead = if offset >= 0 { "ahead of" } else { "behind" };
            let found = format!("{size} {ahead} the log-server's (round trip {})", duration(round_trip));
            if offset.saturating_abs() > FAR_OFF_NS {
                let found = format!("{found}; times in the trace are corrected, those in other logs are not");
                report.warning(AREA, "offset", found, "chronyc makestep, on the machine with the wrong time");
            } else {
                report.ok(AREA, "offset", found);
            }
        }
    }
}

fn counter(report: &mut CheckReport) {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".to_owned(), |source| source.trim().to_owned());
    if has("constant_tsc") && has("nonstop_tsc") {
        report.ok(
            AREA,
            "counter",
            format!("time stamp counter of the processor, invariant; the kernel uses {source}"),
        );
    } else {
        let found = format!(
            "the processor has no invariant time stamp counter (the kernel uses {source}): requests read the kernel's clock, \
             which costs more"
        );
        report.warning(
            AREA,
            "counter",
            found,
            "on a virtual machine: enable invtsc on the host (-cpu host,+invtsc)",
        );
    }
}

/// Checks whether the clock is synchronized (adjtimex(2)).
fn steady(report: &mut CheckReport) {
    // SAFETY: `timex` consists of numbers, for which zero is valid; mode 0 changes nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for writes of a `timex`.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    if state == -1 {
        return report.ok(AREA, "in step", "not reported by the kernel");
    }
    if timex.status & libc::STA_UNSYNC != 0 {
        let found =
            "this machine's clock is not synchronized: MIOT still tracks its offset, with less accuracy";
        report.warning(AREA, "in step", found, "apt install chrony");
    } else {
        let error = duration(timex.maxerror.saturating_mul(1000));
        report.ok(AREA, "in step", format!("at most {error} off, according to the kernel"));
    }
}
