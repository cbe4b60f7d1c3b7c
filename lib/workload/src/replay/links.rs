//! Symbolic links that steps have created: a request through a link acts on its target.

use super::ReplayStep;
use miot_proto::op::posix;
use std::collections::HashMap;

/// Links that are followed in a row; the kernel follows as many.
const MAX_FOLLOWED: usize = 40;

/// Targets of the existing links, by path.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<Vec<u8>, Vec<u8>>);

impl Links {
    /// Adds the next step, in order of completion.
    pub(super) fn add(&mut self, step: &ReplayStep) {
        let (Some(info), Some(path)) = (step.info(), step.path.as_deref()) else { return };
        if step.result < 0 {
            return;
        }
        match (info.op, step.path2.as_deref()) {
            (posix::SYMLINK | posix::SYMLINKAT, Some(link)) => {
                _ = self.0.insert(link.to_vec(), path.to_vec())
            }
            (posix::UNLINK | posix::UNLINKAT | posix::REMOVE, _) => _ = self.0.remove(path),
            (posix::RENAME | posix::RENAMEAT | posix::RENAMEAT2, Some(to)) => {
                self.0.remove(to);
                if let Some(target) = self.0.remove(path) {
                    self.0.insert(to.to_vec(), target);
                }
            }
            _ => {}
        }
    }

    /// Returns the step with its paths resolved; `None` if they contain no link.
    pub(super) fn resolve_step(&self, step: &ReplayStep) -> Option<ReplayStep> {
        let resolve = |path: &Option<Vec<u8>>| path.as_deref().and_then(|path| self.resolve(path));
        let (path, path2) = (resolve(&step.path), resolve(&step.path2));
        if path.is_none() && path2.is_none() {
            return None;
        }
        let (path, path2) = (path.or_else(|| step.path.clone()), path2.or_else(|| step.path2.clone()));
        Some(ReplayStep { path, path2, waits: Vec::new(), ..step.clone() })
    }

    /// Returns the target of a path; `None` if the path contains no link.
    fn resolve(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut target = None;
        for _ in 0..MAX_FOLLOWED {
            match self.resolve_first(target.as_deref().unwrap_or(path)) {
                Some(next) => target = Some(next),
                None => break,
            }
        }
        target
    }

    /// Returns the path with its first link replaced by the target.
    fn resolve_first(&self, path: &[u8]) -> Option<Vec<u8>> {
        if self.0.is_empty() {
            return None;
        }
        let ends = (0..path.len()).filter(|at| path[*at] == b'/').chain([path.len()]);
        ends.into_iter().find_map(|end| {
            let (link, rest) = path.split_at(end);
            let target = self.0.get(link)?;
            // The path of the root is empty, so the rest begins without a slash.
            let rest = if target.is_empty() { rest.strip_prefix(b"/").unwrap_or(rest) } else { rest };
            Some([target, rest].concat())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Links, ReplayStep};
    use miot_proto::op::by_name;

    fn step(name: &str, path: &str, path2: &str) -> ReplayStep {
        let op = by_name("posix", name).unwrap().op;
        let [path, path2] = [path, path2].map(|name| Some(name.as_bytes().to_vec()));
        ReplayStep { op: (op.layer, op.number), path, path2, ..ReplayStep::default() }
    }

    #[test]
    fn links_are_resolved_until_they_are_removed() {
        let mut links = Links::default();
        let resolve = |links: &Links, name: &str| {
            links.resolve(name.as_bytes()).map(|found| String::from_utf8(found).unwrap())
        };
        assert_eq!(resolve(&links, "a/l"), None);
        links.add(&step("symlink", "a/z", "a/l"));
        links.add(&step("symlinkat", "a", "b"));
        links.add(&step("symlink", "", "root"));
        links.add(&ReplayStep { result: -17, ..step("symlink", "x", "a") });
        for (path, target) in [
            ("a/l", Some("a/z")),
            ("b/l", Some("a/z")),
            ("b/c/d", Some("a/c/d")),
            ("root/b", Some("a")),
            ("a/l2", None),
            ("a", None),
        ] {
            assert_eq!(resolve(&links, path).as_deref(), target, "{path}");
        }
        links.add(&step("rename", "b", "c"));
        assert_eq!((resolve(&links, "b/x"), resolve(&links, "c/x")), (None, Some("a/x".to_owned())));
        links.add(&step("unlink", "a/l", ""));
        assert_eq!(resolve(&links, "a/l"), None);
        links.add(&step("symlink", "round", "round"));
        assert_eq!(resolve(&links, "round"), Some("round".to_owned()));
    }
}
