//! Questions whose answer may take its time: of a user database far away, of a file system whose server is gone.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Longest wait for an answer, once for each key.
const PATIENCE: Duration = Duration::from_millis(20);
/// After this the question is asked again; until then, and until the new answer comes, the old one counts.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// Most answers kept.
const MOST: usize = 1 << 16;

/// Answers by key, to questions that a thread asks. The thread ends with it, or with the process if it hangs.
#[derive(Debug)]
pub(super) struct Ask<K, Q, A> {
    name: &'static str,
    find: fn(Q) -> Option<A>,
    known: HashMap<K, Known<A>>,
    #[expect(clippy::type_complexity, reason = "both ends")]
    thread: Option<(Sender<(K, Q)>, Receiver<(K, Option<A>)>)>,
}

#[derive(Debug)]
struct Known<A> {
    answer: Option<A>,
    asked: Instant,
}

impl<K, Q, A> Ask<K, Q, A>
where
    K: Copy + Eq + Hash + Send + 'static,
    Q: Send + 'static,
    A: Send + 'static,
{
    /// `name`: of the thread.
    pub(super) fn new(name: &'static str, find: fn(Q) -> Option<A>) -> Ask<K, Q, A> {
        Ask { name, find, known: HashMap::new(), thread: None }
    }

    /// The answer for a key; `None`: there is none, or not yet.
    pub(super) fn of(&mut self, key: K, question: Q) -> Option<&A> {
        let heard = self.thread.as_ref().map(|(_, answers)| answers.try_iter().collect::<Vec<_>>());
        heard.into_iter().flatten().for_each(|(key, answer)| self.put(key, answer));
        match self.known.get_mut(&key) {
            None => self.ask(key, question),
            Some(known) if known.asked.elapsed() >= ASK_AGAIN => {
                known.asked = Instant::now();
                self.send(key, question);
            }
            Some(_) => {}
        }
        self.known.get(&key)?.answer.as_ref()
    }

    /// Asks, and waits a little.
    fn ask(&mut self, key: K, question: Q) {
        // Until it is answered, nobody waits for this key again.
        self.put(key, None);
        self.send(key, question);
        let until = Instant::now() + PATIENCE;
        while let Some((_, answers)) = &self.thread {
            let Ok((answered, answer)) =
                answers.recv_timeout(until.saturating_duration_since(Instant::now()))
            else {
                break;
            };
            self.put(answered, answer);
            if answered == key {
                break;
            }
        }
    }

    fn put(&mut self, key: K, answer: Option<A>) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(key, Known { answer, asked: Instant::now() });
    }

    fn send(&mut self, key: K, question: Q) {
        let (name, find) = (self.name, self.find);
        let (questions, _) = self.thread.get_or_insert_with(|| {
            let (questions, asked) = channel::<(K, Q)>();
            let (answer, answers) = channel();
            let spawned = std::thread::Builder::new().name(name.into()).spawn(move || {
                for (key, question) in asked {
                    if answer.send((key, find(question))).is_err() {
                        break;
                    }
                }
            });
            if let Err(error) = spawned {
                tracing::warn!(%error, name, "something about processes is not recorded: no thread to ask for it");
            }
            (questions, answers)
        });
        // Without a thread there is no answer.
        let _ = questions.send((key, question));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_answer_is_not_waited_for_again() {
        let mut users: Ask<u32, u32, String> = Ask::new("test", miot_daemon::user_name);
        assert_eq!(users.of(0, 0).map(String::as_str), Some("root"));
        assert_eq!(users.of(4_000_000_123, 4_000_000_123), None);
        assert!(users.known.contains_key(&4_000_000_123));
        assert_eq!(users.of(0, 0).map(String::as_str), Some("root"));
    }

    #[test]
    fn a_late_answer_is_there_the_next_time() {
        let (go, wait) = channel::<()>();
        let mut slow = Ask::new("test", |wait: Receiver<()>| wait.recv().ok());
        assert_eq!(slow.of(1, wait), None);
        go.send(()).unwrap();
        let (_, closed) = channel();
        let (mut closed, mut tries) = (Some(closed), 0);
        while slow.of(1, closed.take().unwrap_or_else(|| channel().1)).is_none() && tries < 1000 {
            std::thread::sleep(Duration::from_millis(10));
            tries += 1;
        }
        assert!(tries < 1000);
    }
}
