//! Draws the screen. Colors only repeat information that is also shown as text.

use super::columns::{Column, View, columns};
use super::print::summary;
use super::update::{SourceState as Progress, Update, UpdateError, window_name};
use super::view::ScreenState;
use crate::numbers::{bytes, count, time};
use miot_activity::{ActivityRow, ActivityWindow};
use miot_trace_events::text::{printable, time as moment};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};

const HELP: &str = "\
1-7 Tab     cluster, nodes ... operations, requests in flight
Left Right  sort by the next column (also < >)     r  reverse
Up Down PgUp PgDn Home End                              scroll
/           only rows with this text         Esc  all rows again
w           window: 1 s, 10 s, 60 s, whole time (sums)
space       pause, of a trace that is played back
+ -         play back faster, slower     n  on to the next event
? h         this help                    q Ctrl-C  quit

OPS FAIL READ WRITE  requests that completed, failed, and bytes
IN I/O               time in requests; 200%: two at a time
P50 P99 MAX          median, 99th percentile, longest, to 1/16
LOST                 events that are missing (docs/reference/losses.md)
~                    a lower bound: too many to count separately";

/// Number of lines above the table.
const HEAD: u16 = 4;

/// Draws the screen, and stores how much of the table fits.
pub(crate) fn draw(state: &mut ScreenState, frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (area.width, area.height);
    let style = Styles { colours: state.colours };
    let row = |y: u16| Rect { x: 0, y, width, height: 1 }.intersection(area);
    frame.render_widget(title(state, usize::from(width)), row(0));
    match &state.update {
        Some(update) => {
            let [first, second] = summary(&update.snapshot, update.window);
            frame.render_widget(Line::from(first).style(style.bold()), row(1));
            let lost = update.snapshot.losses.iter().any(|loss| loss.count > 0);
            frame.render_widget(
                Line::from(second).style(if lost { style.bad() } else { Style::new() }),
                row(2),
            );
        }
        None => frame.render_widget(Line::from("waiting for the first events ..."), row(1)),
    }
    frame.render_widget(tabs(state.view), row(3));
    let mut top = HEAD;
    if state.view == View::Cluster
        && let Some(update) = &state.update
    {
        top += graphs(update, frame, Rect { x: 0, y: HEAD, width, height: height.saturating_sub(HEAD + 1) });
    }
    let columns = columns(state.view, usize::from(width));
    let shown = usize::from(height.saturating_sub(top + 2));
    (state.page, state.width) = (shown.max(1), usize::from(width));
    if state.view == View::Requests {
        requests(state, frame, Rect { x: 0, y: top, width, height: height.saturating_sub(top + 1) });
    } else {
        frame.render_widget(heading(state, &columns), row(top));
    }
    let rates = state.update.as_ref().filter(|update| update.window != ActivityWindow::Whole);
    let rates = rates.map(|update| update.snapshot.seconds);
    let rows = state.rows();
    let scroll = state.scroll.min(rows.len().saturating_sub(shown));
    for (line, of) in rows.iter().skip(scroll).take(shown).enumerate() {
        frame.render_widget(
            table_row(of, &columns, state.view, rates, &style, usize::from(width)),
            row(top + 1 + line as u16),
        );
    }
    let footer = footer(state, rows.len(), scroll, shown, &style);
    frame.render_widget(footer, row(height.saturating_sub(1)));
    state.scroll = scroll;
    if state.help {
        help(frame, area);
    }
}

/// Styles; color alone never carries information.
struct Styles {
    colours: bool,
}

impl Styles {
    fn bold(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn bad(&self) -> Style {
        if self.colours { self.bold().fg(Color::Red) } else { self.bold() }
    }
}

fn title(state: &ScreenState, width: usize) -> Line<'static> {
    let left = format!("miot top  {}", state.source);
    let right = match state.update.as_ref().map(|update| &update.state) {
        Some(Progress::Replay { at, speed, paused, ended }) => {
            let moment = moment(*at);
            let moment = moment.split('.').next().unwrap_or(&moment);
            let how = match (paused, ended) {
                (true, _) => "paused".to_owned(),
                (_, true) => "end".to_owned(),
                _ if *speed >= 1.0 => format!("{speed}x"),
                _ => format!("1/{}x", 1.0 / speed),
            };
            format!("{moment}Z {how}")
        }
        Some(Progress::Live(status)) => {
            let connected = status.nodes.iter().filter(|node| node.connected).count();
            let behind = time(status.server.merge_lag_ns.unsigned_abs());
            let uploads = match status.server.upload.as_ref().map_or(0, |upload| upload.parts) {
                0 => String::new(),
                parts => format!(", {parts} sealed parts wait for upload"),
            };
            format!("{connected} of {} nodes connected, {behind} behind{uploads}", status.nodes.len())
        }
        None => String::new(),
    };
    let room = width.saturating_sub(right.chars().count() + 1);
    let left: String = left.chars().take(room).collect();
    let text = format!("{left:<room$} {right}");
    Line::from(text).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn tabs(view: View) -> Line<'static> {
    let tab = |(number, of): (usize, View)| {
        let text = format!(" {} {} ", number + 1, of.name());
        // Brackets, for terminals that cannot reverse.
        if of == view {
            Span::styled(
                format!("[{}]", text.trim()),
                Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
            )
        } else {
            Span::raw(text)
        }
    };
    View::ALL.into_iter().enumerate().map(tab).collect::<Vec<_>>().into()
}

/// Name, values, and format of a value.
type Series<'a> = (&'a str, &'a [u64], fn(f64) -> String);

/// Draws requests and bytes over time; returns the number of lines used.
fn graphs(update: &Update, frame: &mut Frame<'_>, area: Rect) -> u16 {
    const LABEL: u16 = 18;
    let history = &update.history;
    // The table keeps half of the screen.
    let lines = (area.height / 6).clamp(1, 4);
    let series: [Series<'_>; 3] = [
        ("ops/s", &history.requests, count),
        ("read/s", &history.bytes_read, bytes),
        ("written/s", &history.bytes_written, bytes),
    ];
    let mut y = area.y;
    for (name, values, text) in series {
        let bars = Rect { x: LABEL, y, width: area.width.saturating_sub(LABEL), height: lines };
        let shown = &values[values.len().saturating_sub(usize::from(bars.width))..];
        let most = shown.iter().copied().max().unwrap_or(0);
        let label = Text::from(vec![Line::from(name), Line::from(format!("to {}", text(most as f64)))]);
        let label_area = Rect { x: 0, y, width: LABEL, height: lines };
        frame.render_widget(Paragraph::new(label), label_area.intersection(area));
        frame.render_widget(Sparkline::default().data(shown).max(most.max(1)), bars.intersection(area));
        y += lines;
    }
    y - area.y
}

/// Draws the requests in progress of all nodes, the oldest first.
fn requests(state: &ScreenState, frame: &mut Frame<'_>, area: Rect) {
    let Some(Progress::Live(status)) = state.update.as_ref().map(|update| &update.state) else {
        let text = "Available from a log-server: miot top HOST:PORT; or on the node: miot top --in-flight.";
        return frame.render_widget(Paragraph::new(text), area.intersection(frame.area()));
    };
    let of_node = |node: &'_ miot_proto::status::NodeStatus| {
        let (name, oldest) = (node.node.clone(), node.report.iter().flat_map(|report| report.oldest.clone()));
        oldest.map(move |request| (name.clone(), request)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = status.nodes.iter().flat_map(of_node).collect();
    all.sort_by_key(|(_, request)| std::cmp::Reverse(request.age_ns));
    let total: u64 = status.nodes.iter().filter_map(|node| Some(node.report.as_ref()?.in_flight)).sum();
    let mut lines = vec![
        Line::from(format!("{total} in flight; the oldest of each node:")),
        Line::from(format!(
            "{:>8} {:<14} {:>8} {:<16} {:<10} PROGRAM",
            "AGE", "NODE", "PID", "OPERATION", "JOB"
        ))
        .style(Style::new().add_modifier(Modifier::UNDERLINED)),
    ];
    lines.extend(all.into_iter().map(|(node, request)| {
        let words = [&node, &request.op, &request.job, &request.exe].map(|word| printable(word).into_owned());
        let [node, op, job, exe] = words;
        Line::from(format!(
            "{:>8} {node:<14} {:>8} {op:<16} {job:<10} {exe}",
            time(request.age_ns),
            request.pid
        ))
    }));
    frame.render_widget(Paragraph::new(lines), area.intersection(frame.area()));
}

fn heading(state: &ScreenState, columns: &[Column]) -> Line<'static> {
    let is_rate = state.update.as_ref().is_none_or(|update| update.window != ActivityWindow::Whole);
    let cells = columns.iter().map(|column| {
        let mut text = column.title(state.view, is_rate).to_owned();
        if *column == state.sort {
            text.push(if state.reversed { '▲' } else { '▼' });
        }
        let width = column.width();
        let text = if column.is_text() { format!("{text:<width$} ") } else { format!("{text:>width$} ") };
        let style = Style::new().add_modifier(Modifier::UNDERLINED);
        Span::styled(text, if *column == state.sort { style.add_modifier(Modifier::BOLD) } else { style })
    });
    Line::from(cells.collect::<Vec<_>>())
}

fn table_row(
    row: &ActivityRow,
    columns: &[Column],
    view: View,
    rates: Option<f64>,
    style: &Styles,
    width: usize,
) -> Line<'static> {
    let mut room = width;
    let cells = columns.iter().map(|column| {
        let mut text = column.text(row, rates);
        let wide = if *column == Column::Name { room } else { column.width() };
        if text.chars().count() > wide {
            text = shortened(&text, wide, view == View::Files && *column == Column::Name);
        }
        room = room.saturating_sub(wide + 1);
        let text = if column.is_text() { format!("{text:<wide$} ") } else { format!("{text:>wide$} ") };
        let is_bad = matches!(column, Column::Lost) && row.lost > 0;
        Span::styled(text, if is_bad { style.bad() } else { Style::new() })
    });
    Line::from(cells.collect::<Vec<_>>())
}

/// Shortens a text: keeps the end of a path, the start of a command.
fn shortened(text: &str, width: usize, keep_end: bool) -> String {
    let Some(kept) = width.checked_sub(1) else { return String::new() };
    if keep_end {
        let skipped = text.chars().count() - kept;
        format!("…{}", text.chars().skip(skipped).collect::<String>())
    } else {
        format!("{}…", text.chars().take(kept).collect::<String>())
    }
}

fn footer(state: &ScreenState, rows: usize, scroll: usize, shown: usize, style: &Styles) -> Line<'static> {
    if let Some(UpdateError { reason, is_over }) = &state.trouble {
        let again = if *is_over { "" } else { "; trying again" };
        return Line::from(format!("{reason}{again} (q quits)")).style(style.bad());
    }
    if state.is_typing {
        return Line::from(format!("/{}_   Enter: keep, Esc: all rows", state.filter)).style(style.bold());
    }
    if let Some([first, others @ ..]) = state.update.as_ref().map(|update| update.away.as_slice()) {
        let others = if others.is_empty() { String::new() } else { format!("; {} more", others.len()) };
        return Line::from(format!("without {first}{others}; trying again   ? help  q quit"))
            .style(style.bad());
    }
    if state.view == View::Requests {
        return Line::from("? help  q quit");
    }
    let mut text = format!(
        "{}-{} of {rows}   ? help  q quit  w {}",
        (scroll + 1).min(rows),
        (scroll + shown).min(rows),
        window_name(state.window)
    );
    if !state.filter.is_empty() {
        text += &format!("  / {}", state.filter);
    }
    let others = state.update.as_ref().map_or(0, |update| state.view.group(&update.snapshot).others);
    if others > 0 {
        text += &format!("  {} requests in further rows", count(others as f64));
    }
    Line::from(text)
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let (lines, columns) =
        (HELP.lines().count(), HELP.lines().map(|line| line.chars().count()).max().unwrap_or(0));
    let (width, height) = ((columns as u16 + 4).min(area.width), (lines as u16 + 2).min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" miot top: any key goes back ");
    let text: Vec<Line<'_>> = HELP.lines().map(|line| Line::from(format!(" {line}"))).collect();
    frame.render_widget(Paragraph::new(text).block(block), place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::update;
    use miot_activity::{ActivityGroup, ActivityHistory, ActivitySnapshot};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(view: View, width: u16, height: u16, help: bool) -> Vec<String> {
        let row = |name: String, requests| ActivityRow {
            name,
            node: Some("node-with-a-long-name".into()),
            pid: Some(4_194_304),
            requests,
            bytes_read: requests << 20,
            max: 1_234_567,
            lost: 3,
            ..ActivityRow::default()
        };
        let rows = (1..100u64)
            .map(|n| row(format!("/a/very/long/path/to/some/directory/with/file-{n}"), n))
            .collect();
        let snapshot = ActivitySnapshot {
            seconds: 10.0,
            files: ActivityGroup { rows, count: 99, others: 7 },
            operations: ActivityGroup {
                rows: vec![row("posix.read".into(), 70)],
                ..ActivityGroup::default()
            },
            ..ActivitySnapshot::default()
        };
        let mut state = ScreenState::new("trace".into(), view, ActivityWindow::Seconds(10), true);
        let history = ActivityHistory { requests: (0..300).collect(), ..ActivityHistory::default() };
        let at = 1_700_000_000_000_000_000;
        let playing = update::SourceState::Replay { at, speed: 10.0, paused: false, ended: false };
        state.update = Some(Update {
            snapshot,
            window: ActivityWindow::Seconds(10),
            history,
            state: playing,
            away: Vec::new(),
        });
        state.help = help;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(&mut state, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn screen_of_80_by_24_is_enough() {
        let lines = screen(View::Files, 80, 24, false);
        assert!(lines[0].ends_with("2023-11-14T22:13:20Z 10x"), "{lines:#?}");
        assert!(lines[3].contains("[5 files]") && lines[3].contains(" 6 operations"), "{lines:#?}");
        assert!(lines[4].contains("OPS/S▼") && lines[4].ends_with("FILE"), "{lines:#?}");
        assert!(lines[5].contains("9.9 ") && lines[5].ends_with("file-99"), "{lines:#?}");
        assert!(lines[23].starts_with("1-18 of 99   ? help  q quit"), "{lines:#?}");
        let lines = screen(View::Cluster, 80, 24, false);
        assert!(
            lines[4].starts_with("ops/s") && lines.iter().any(|line| line.ends_with("posix.read")),
            "{lines:#?}"
        );
        let lines = screen(View::Files, 80, 24, true);
        assert!(lines.iter().any(|line| line.contains("q Ctrl-C  quit")), "{lines:#?}");
    }

    #[test]
    fn all_screen_sizes_are_drawn() {
        for (width, height) in [(1, 1), (2, 3), (20, 5), (79, 6), (500, 200)] {
            for view in View::ALL {
                screen(view, width, height, false);
                screen(view, width, height, true);
            }
        }
    }
}
