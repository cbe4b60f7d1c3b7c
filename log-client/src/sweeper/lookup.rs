//! Cached lookups that may block: in a remote user database, or on a file system whose server does
//! not respond.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Maximum wait for an answer, once per key.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// Lifetime of an answer. The old answer remains valid until the new one arrives.
const LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of cached answers.
const MAX_ANSWERS: usize = 1 << 16;

/// Cache of answers by key. A thread performs the lookups. It ends with the cache, or with the
/// process if it hangs.
#[derive(Debug)]
pub(super) struct LookupCache<K, Q, A> {
    name: &'static str,
    find: fn(Q) -> Option<A>,
    cache: HashMap<K, CachedAnswer<A>>,
    #[expect(clippy::type_complexity, reason = "both ends")]
    thread: Option<(Sender<(K, Q)>, Receiver<(K, Option<A>)>)>,
}

#[derive(Debug)]
struct CachedAnswer<A> {
    answer: Option<A>,
    asked: Instant,
}

impl<K, Q, A> LookupCache<K, Q, A>
where
    K: Copy + Eq + Hash + Send + 'static,
    Q: Send + 'static,
    A: Send + 'static,
{
    /// `name`: name of the thread.
    pub(super) fn new(name: &'static str, find: fn(Q) -> Option<A>) -> LookupCache<K, Q, A> {
        LookupCache { name, find, cache: HashMap::new(), thread: None }
    }

    /// The answer for a key; `None` if there is none, or not yet.
    pub(super) fn get(&mut self, key: K, question: Q) -> Option<&A> {
        let arrived = self.thread.as_ref().map(|(_, answers)| answers.try_iter().collect::<Vec<_>>());
        arrived.into_iter().flatten().for_each(|(key, answer)| self.store(key, answer));
        match self.cache.get_mut(&key) {
            None => self.lookup(key, question),
            Some(cached) if cached.asked.elapsed() >= LIFETIME => {
                cached.asked = Instant::now();
                self.send(key, question);
            }
            Some(_) => {}
        }
        self.cache.get(&key)?.answer.as_ref()
    }

    /// Starts a lookup and waits up to [`MAX_WAIT`] for it.
    fn lookup(&mut self, key: K, question: Q) {
        // Prevents a second wait for the same key.
        self.store(key, None);
        self.send(key, question);
        let until = Instant::now() + MAX_WAIT;
        while let Some((_, answers)) = &self.thread {
            let Ok((answered, answer)) =
                answers.recv_timeout(until.saturating_duration_since(Instant::now()))
            else {
                break;
            };
            self.store(answered, answer);
            if answered == key {
                break;
            }
        }
    }

    fn store(&mut self, key: K, answer: Option<A>) {
        if self.cache.len() >= MAX_ANSWERS {
            self.cache.clear();
        }
        self.cache.insert(key, CachedAnswer { answer, asked: Instant::now() });
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
                tracing::warn!(%error, name, "cannot start a lookup thread, some process data is not recorded");
            }
            (questions, answers)
        });
        // Fails without a thread: then there is no answer.
        let _ = questions.send((key, question));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_answer_is_waited_for_once() {
        let mut users: LookupCache<u32, u32, String> = LookupCache::new("test", miot_daemon::user_name);
        assert_eq!(users.get(0, 0).map(String::as_str), Some("root"));
        assert_eq!(users.get(4_000_000_123, 4_000_000_123), None);
        assert!(users.cache.contains_key(&4_000_000_123));
        assert_eq!(users.get(0, 0).map(String::as_str), Some("root"));
    }

    #[test]
    fn late_answer_is_returned_later() {
        let (go, wait) = channel::<()>();
        let mut slow = LookupCache::new("test", |wait: Receiver<()>| wait.recv().ok());
        assert_eq!(slow.get(1, wait), None);
        go.send(()).unwrap();
        let (_, closed) = channel();
        let (mut closed, mut tries) = (Some(closed), 0);
        while slow.get(1, closed.take().unwrap_or_else(|| channel().1)).is_none() && tries < 1000 {
            std::thread::sleep(Duration::from_millis(10));
            tries += 1;
        }
        assert!(tries < 1000);
    }
}
