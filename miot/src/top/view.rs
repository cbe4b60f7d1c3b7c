//! State of the screen, and its changes by keys.

use super::columns::{Column, View, columns};
use super::update::{Order, Update, UpdateError, WINDOWS};
use miot_activity::{ActivityRow, ActivityWindow};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::ops::ControlFlow;

/// State of the screen.
#[derive(Debug)]
pub(crate) struct ScreenState {
    /// The trace directory or the log-server.
    pub(crate) source: String,
    pub(crate) view: View,
    pub(crate) window: ActivityWindow,
    pub(crate) sort: Column,
    pub(crate) reversed: bool,
    /// Substring of name, node or job that selects rows.
    pub(crate) filter: String,
    /// True while the user types the filter.
    pub(crate) is_typing: bool,
    /// Number of rows above the first visible row.
    pub(crate) scroll: usize,
    /// Number of rows of the table that fit on the screen, as last drawn.
    pub(crate) page: usize,
    /// Number of characters of a line, as last drawn.
    pub(crate) width: usize,
    pub(crate) help: bool,
    pub(crate) colours: bool,
    pub(crate) update: Option<Update>,
    /// Reason why the screen is not up to date.
    pub(crate) trouble: Option<UpdateError>,
}

impl ScreenState {
    pub(crate) fn new(source: String, view: View, window: ActivityWindow, colours: bool) -> ScreenState {
        ScreenState {
            source,
            view,
            window,
            sort: Column::Requests,
            reversed: false,
            filter: String::new(),
            is_typing: false,
            scroll: 0,
            page: 20,
            width: 80,
            help: false,
            colours,
            update: None,
            trouble: None,
        }
    }

    /// Returns the rows of the current view, in order.
    pub(crate) fn rows(&self) -> Vec<&ActivityRow> {
        let Some(update) = &self.update else { return Vec::new() };
        let has = |text: &str| text.to_lowercase().contains(&self.filter.to_lowercase());
        let fits = |row: &&ActivityRow| {
            self.filter.is_empty()
                || has(&row.name)
                || row.node.as_deref().is_some_and(has)
                || row.job.as_deref().is_some_and(has)
        };
        if self.view == View::Requests {
            return Vec::new();
        }
        let mut rows: Vec<&ActivityRow> =
            self.view.group(&update.snapshot).rows.iter().filter(fits).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Handles a key; `Break` quits.
    pub(crate) fn key(&mut self, key: KeyEvent) -> ControlFlow<(), Option<Order>> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return ControlFlow::Break(());
        }
        if self.is_typing {
            self.typed(key.code);
            return ControlFlow::Continue(None);
        }
        if self.help {
            self.help = false;
            return ControlFlow::Continue(None);
        }
        let mut order = None;
        match key.code {
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char(digit @ '1'..='7') => self.go_to(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => self.go_to(View::ALL[(self.view as usize + 1) % View::ALL.len()]),
            KeyCode::BackTab => {
                self.go_to(View::ALL[(self.view as usize + View::ALL.len() - 1) % View::ALL.len()]);
            }
            KeyCode::Left | KeyCode::Char('<') => self.sort_beside(false),
            KeyCode::Right | KeyCode::Char('>') => self.sort_beside(true),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => (self.is_typing, self.scroll) = (true, 0),
            KeyCode::Esc => (self.filter, self.scroll) = (String::new(), 0),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += self.page,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(self.page),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = usize::MAX / 2,
            KeyCode::Char('w') => {
                let at = WINDOWS.iter().position(|window| *window == self.window);
                self.window = WINDOWS[at.map_or(1, |at| (at + 1) % WINDOWS.len())];
                order = Some(Order::Window(self.window));
            }
            KeyCode::Char(' ') => order = Some(Order::Pause),
            KeyCode::Char('+' | '=') => order = Some(Order::Faster(true)),
            KeyCode::Char('-') => order = Some(Order::Faster(false)),
            KeyCode::Char('n') => order = Some(Order::Next),
            _ => {}
        }
        self.scroll = self.scroll.min(self.rows().len().saturating_sub(self.page));
        ControlFlow::Continue(order)
    }

    fn typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(character) if self.filter.len() < 200 => self.filter.push(character),
            _ => {}
        }
    }

    fn go_to(&mut self, view: View) {
        (self.view, self.scroll) = (view, 0);
        if !columns(view, self.width).contains(&self.sort) {
            (self.sort, self.reversed) = (Column::Requests, false);
        }
    }

    fn sort_beside(&mut self, right: bool) {
        let columns = columns(self.view, self.width);
        let at = columns.iter().position(|column| *column == self.sort).unwrap_or(0);
        let to = if right { (at + 1).min(columns.len() - 1) } else { at.saturating_sub(1) };
        (self.sort, self.reversed, self.scroll) = (columns[to], false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::update;
    use miot_activity::{ActivityGroup, ActivityHistory, ActivitySnapshot};

    fn state() -> ScreenState {
        let row =
            |name: &str, requests| ActivityRow { name: name.into(), requests, ..ActivityRow::default() };
        let rows = vec![row("/data/a", 5), row("/data/b", 9), row("/home/a", 7)];
        let snapshot = ActivitySnapshot {
            files: ActivityGroup { rows, ..ActivityGroup::default() },
            ..ActivitySnapshot::default()
        };
        let mut state = ScreenState::new("x".into(), View::Files, ActivityWindow::Seconds(10), false);
        state.update = Some(Update {
            snapshot,
            window: ActivityWindow::Seconds(10),
            history: ActivityHistory::default(),
            state: update::SourceState::Replay { at: 0, speed: 1.0, paused: false, ended: false },
            away: Vec::new(),
        });
        state
    }

    fn press(state: &mut ScreenState, keys: &str) -> Vec<Option<Order>> {
        let pressed = keys.chars().map(|key| {
            let code = match key {
                '\n' => KeyCode::Enter,
                key => KeyCode::Char(key),
            };
            match state.key(code.into()) {
                ControlFlow::Continue(order) => order,
                ControlFlow::Break(()) => panic!("{key} quits"),
            }
        });
        pressed.collect()
    }

    fn names(state: &ScreenState) -> Vec<&str> {
        state.rows().iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_reversed_and_filtered() {
        let mut state = state();
        assert_eq!(names(&state), ["/data/b", "/home/a", "/data/a"]);
        press(&mut state, "r");
        assert_eq!(names(&state), ["/data/a", "/home/a", "/data/b"]);
        press(&mut state, ">>>>>>>>");
        assert_eq!((state.sort, state.reversed), (Column::Name, false));
        press(&mut state, "/DATAq\n");
        assert_eq!(names(&state), Vec::<&str>::new());
        let _ = state.key(KeyCode::Esc.into());
        press(&mut state, "/DATA\n");
        assert_eq!(names(&state), ["/data/a", "/data/b"]);
    }

    #[test]
    fn keys_change_views_and_give_orders() {
        let mut state = state();
        assert_eq!(
            press(&mut state, "ww"),
            [ActivityWindow::Seconds(60), ActivityWindow::Whole].map(|w| Some(Order::Window(w)))
        );
        assert_eq!(
            press(&mut state, "+- n"),
            [Some(Order::Faster(true)), Some(Order::Faster(false)), Some(Order::Pause), Some(Order::Next)]
        );
        press(&mut state, "2");
        assert_eq!(state.view, View::Nodes);
        let _ = state.key(KeyCode::BackTab.into());
        let _ = state.key(KeyCode::BackTab.into());
        assert_eq!(state.view, View::Requests);
        press(&mut state, "?1");
        assert_eq!(
            (state.view, state.help),
            (View::Requests, false),
            "any key leaves the help and does no more"
        );
        assert!(state.key(KeyCode::Char('q').into()).is_break());
        assert!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)).is_break());
    }
}
