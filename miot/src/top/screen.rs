//! The terminal: initialized, and restored in all cases.

use super::draw::draw;
use super::update::{Order, Update, UpdateError};
use super::view::ScreenState;
use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Duration;

/// Interval at which keys and updates are polled.
const LOOK: Duration = Duration::from_millis(50);

/// Shows the updates of a source until the user quits. The source runs in a separate thread, so
/// that the screen responds to keys while the source reads.
pub(crate) fn show(
    mut state: ScreenState,
    source: impl FnOnce(&Receiver<Order>, &SyncSender<Result<Update, UpdateError>>) + Send + 'static,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT]).context("cannot watch signals")?;
    std::thread::Builder::new().name("miot-signals".into()).spawn(move || end_on(&mut signals))?;
    let (orders, ordered) = channel();
    let (updates, updated) = sync_channel(1);
    std::thread::Builder::new().name("miot-top".into()).spawn(move || source(&ordered, &updates))?;
    // Also sets a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let shown = serve(&mut terminal, &mut state, &orders, &updated);
    ratatui::restore();
    shown?;
    if let Some(UpdateError { reason, is_over: true }) = state.trouble {
        anyhow::bail!(reason);
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the program at the first signal, as if the signal were not caught. It runs in a separate
/// thread, because reading keys never returns after the terminal was closed: the library treats the
/// end of the file as an expired wait.
fn end_on(signals: &mut Signals) {
    if let Some(number) = signals.forever().next() {
        // Restoring fails if the terminal was closed.
        let _ = ratatui::try_restore();
        std::process::exit(128 + number);
    }
}

fn serve(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut ScreenState,
    orders: &Sender<Order>,
    updated: &Receiver<Result<Update, UpdateError>>,
) -> anyhow::Result<()> {
    let mut is_stale = true;
    loop {
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| draw(state, frame)).context("cannot draw")?;
        }
        if event::poll(LOOK).context("cannot read keys")? {
            match event::read().context("cannot read keys")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match state.key(key) {
                    ControlFlow::Break(()) => return Ok(()),
                    ControlFlow::Continue(Some(order)) => drop(orders.send(order)),
                    ControlFlow::Continue(None) => {}
                },
                _ => {}
            }
            is_stale = true;
        }
        let is_over = state.trouble.as_ref().is_some_and(|trouble| trouble.is_over);
        match updated.try_recv() {
            Ok(Ok(update)) => (state.update, state.trouble) = (Some(update), None),
            Ok(Err(trouble)) => state.trouble = Some(trouble),
            Err(TryRecvError::Disconnected) if !is_over => {
                let reason = "the source has ended".to_owned();
                state.trouble = Some(UpdateError { reason, is_over: true });
            }
            Err(_) => continue,
        }
        is_stale = true;
    }
}
