//! Cached lookups that may block: in a remote user database, or on a file system whose server does
//! not respond.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Maximum wait for an answer, since the question. While a question has no answer for longer, no
/// other one is waited for: the thread hangs.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Lifetime of an answer. The old answer remains valid until the new one arrives.
const LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of cached answers.
const MAX_ANSWERS: usize = 1 << 16;

/// Cache of answers by key. A thread performs the lookups, in the order of the questions. It ends
/// with the cache, or with the process if it hangs.
#[derive(Debug)]
pub(super) struct LookupCache<K, Q, A> {
    name: &'static str,
    find: fn(Q) -> Option<A>,
    cache: HashMap<K, CachedAnswer<A>>,
    /// Times of the questions without an answer, oldest first.
    open: VecDeque<Instant>,
    #[expect(clippy::type_complexity, reason = "both ends")]
    thread: Option<(Sender<(K, Q)>, Receiver<(K, Option<A>)>)>,
}

#[derive(Debug)]
struct CachedAnswer<A> {
    /// The last answer, in which `None` says that nothing was found.
    answer: Option<Option<A>>,
    /// Time of the answer, or of the question if that is open.
    since: Instant,
    is_open: bool,
}

impl<K, Q, A> LookupCache<K, Q, A>
where
    K: Copy + Eq + Hash + Send + 'static,
    Q: Send + 'static,
    A: Send + 'static,
{
    /// `name`: name of the thread.
    pub(super) fn new(name: &'static str, find: fn(Q) -> Option<A>) -> LookupCache<K, Q, A> {
        LookupCache { name, find, cache: HashMap::new(), open: VecDeque::new(), thread: None }
    }

    /// The answer for a key; `None` if there is none, or not yet. Waits up to [`MAX_WAIT`] for the
    /// first one.
    pub(super) fn get(&mut self, key: K, question: Q) -> Option<&A> {
        self.prepare(key, question);
        while let Some(CachedAnswer { answer: None, is_open: true, .. }) = self.cache.get(&key)
            && let (Some(oldest), Some((_, answers))) = (self.open.front(), &self.thread)
            && let Ok((key, answer)) = answers.recv_timeout(MAX_WAIT.saturating_sub(oldest.elapsed()))
        {
            self.store(key, answer);
        }
        self.cache.get(&key)?.answer.as_ref()?.as_ref()
    }

    /// Looks an answer up that is unknown or outdated, without waiting for it.
    pub(super) fn prepare(&mut self, key: K, question: Q) {
        let arrived = self.thread.as_ref().map(|(_, answers)| answers.try_iter().collect::<Vec<_>>());
        arrived.into_iter().flatten().for_each(|(key, answer)| self.store(key, answer));
        let old = match self.cache.get_mut(&key) {
            Some(cached) if cached.is_open || cached.since.elapsed() < LIFETIME => return,
            old => old.and_then(|cached| cached.answer.take()),
        };
        let since = Instant::now();
        let is_open = self.send(key, question);
        if is_open {
            self.open.push_back(since);
        }
        self.insert(key, CachedAnswer { answer: old, since, is_open });
    }

    /// Stores the answer to the oldest open question.
    fn store(&mut self, key: K, answer: Option<A>) {
        self.open.pop_front();
        self.insert(key, CachedAnswer { answer: Some(answer), since: Instant::now(), is_open: false });
    }

    fn insert(&mut self, key: K, cached: CachedAnswer<A>) {
        if self.cache.len() >= MAX_ANSWERS {
            self.cache.clear();
        }
        self.cache.insert(key, cached);
    }

    /// Returns false without a thread.
    fn send(&mut self, key: K, question: Q) -> bool {
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
        questions.send((key, question)).is_ok()
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
    fn hanging_lookup_is_waited_for_once() {
        let (_go, wait) = channel::<()>();
        let mut slow = LookupCache::new("test", |wait: Receiver<()>| wait.recv().ok());
        slow.prepare(1, wait);
        assert_eq!(slow.get(1, channel().1), None);
        assert_eq!(slow.open.len(), 1, "a prepared question is not repeated");
        assert!(slow.open[0].elapsed() >= MAX_WAIT);
        // If each of these waited, the test would not end in time.
        let answers = (2..=20_000).filter_map(|key| slow.get(key, channel().1).copied());
        assert_eq!(answers.count(), 0);
        assert_eq!(slow.open.len(), 20_000);
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
