//! A long-running program that executes commands: `src/bin/steered.rs`.

use crate::process::{WATCHDOG, signal_id, wait};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// The running program. It is stopped when this value is dropped, also after a failed test.
#[derive(Debug)]
pub struct Steered {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Steered {
    /// Starts the program.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Steered {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (sender, answers) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        Steered { orders: child.stdin.take(), child, answers }
    }

    /// Sends a command without waiting for its answer.
    ///
    /// # Panics
    /// If the program has ended.
    pub fn send(&mut self, order: &str) {
        let orders = self.orders.as_mut().unwrap_or_else(|| panic!("no standard input"));
        writeln!(orders, "{order}").unwrap_or_else(|e| panic!("{order}: {e}"));
    }

    /// Waits for the answer to the last command and returns it.
    ///
    /// # Panics
    /// If the program ends, or does not answer before the watchdog's limit.
    pub fn answer(&mut self) -> String {
        let line = self.answers.recv_timeout(WATCHDOG);
        line.unwrap_or_else(|e| panic!("no answer: {e}; {:?}", self.child.try_wait()))
    }

    /// Sends a command, waits for its answer and returns it.
    pub fn tell(&mut self, order: &str) -> String {
        self.send(order);
        self.answer()
    }

    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program with a signal.
    ///
    /// # Panics
    /// If it does not end.
    pub fn kill(mut self, signal: Signal) -> ExitStatus {
        signal_id(self.id(), signal);
        self.waited()
    }

    /// Closes its input and waits for its end.
    ///
    /// # Panics
    /// If it does not end, or ends with an error.
    pub fn end(mut self) {
        self.orders = None;
        let status = self.waited();
        assert!(status.success(), "{status}");
    }

    fn waited(&mut self) -> ExitStatus {
        wait(&mut self.child, WATCHDOG).unwrap_or_else(|| panic!("does not end"))
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
