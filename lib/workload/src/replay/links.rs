//! Symbolic links that steps have made: what goes through one is done to what it leads to.

use super::Step;
use std::collections::HashMap;

/// Links that lead to links, as many as the kernel follows.
const MOST: usize = 40;

/// Where the links lead that are there.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<Vec<u8>, Vec<u8>>);

impl Links {
    /// Takes in the next step, in order of completion.
    pub(super) fn add(&mut self, step: &Step) {
        let (Some(info), Some(path)) = (step.info(), step.path.as_deref()) else { return };
        if step.result < 0 {
            return;
        }
        match (info.name, step.path2.as_deref()) {
            ("symlink" | "symlinkat", Some(link)) => _ = self.0.insert(link.to_vec(), path.to_vec()),
            ("unlink" | "unlinkat" | "remove", _) => _ = self.0.remove(path),
            ("rename" | "renameat" | "renameat2", Some(to)) => {
                self.0.remove(to);
                if let Some(target) = self.0.remove(path) {
                    self.0.insert(to.to_vec(), target);
                }
            }
            _ => {}
        }
    }

    /// The step with the names that its own lead to, if there are links in them.
    pub(super) fn through(&self, step: &Step) -> Option<Step> {
        let leads = |name: &Option<Vec<u8>>| name.as_deref().and_then(|name| self.resolve(name));
        let (path, path2) = (leads(&step.path), leads(&step.path2));
        if path.is_none() && path2.is_none() {
            return None;
        }
        let names = (path.or_else(|| step.path.clone()), path2.or_else(|| step.path2.clone()));
        Some(Step { path: names.0, path2: names.1, waits: Vec::new(), ..step.clone() })
    }

    /// What a name leads to, if there are links in it.
    fn resolve(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut found = None;
        for _ in 0..MOST {
            match self.once(found.as_deref().unwrap_or(name)) {
                Some(next) => found = Some(next),
                None => break,
            }
        }
        found
    }

    /// The name with the first link in it replaced.
    fn once(&self, name: &[u8]) -> Option<Vec<u8>> {
        if self.0.is_empty() {
            return None;
        }
        let ends = (0..name.len()).filter(|at| name[*at] == b'/').chain([name.len()]);
        ends.into_iter().find_map(|end| {
            let (link, rest) = name.split_at(end);
            let target = self.0.get(link)?;
            // Of the root there is no name to put before the rest.
            let rest = if target.is_empty() { rest.strip_prefix(b"/").unwrap_or(rest) } else { rest };
            Some([target, rest].concat())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Links, Step};
    use miot_proto::op::by_name;

    fn step(name: &str, path: &str, path2: &str) -> Step {
        let op = by_name("posix", name).unwrap().op;
        let [path, path2] = [path, path2].map(|name| Some(name.as_bytes().to_vec()));
        Step { op: (op.layer, op.number), path, path2, ..Step::default() }
    }

    #[test]
    fn links_lead_on_until_they_are_gone() {
        let mut links = Links::default();
        let resolve = |links: &Links, name: &str| {
            links.resolve(name.as_bytes()).map(|found| String::from_utf8(found).unwrap())
        };
        assert_eq!(resolve(&links, "a/l"), None);
        links.add(&step("symlink", "a/z", "a/l"));
        links.add(&step("symlinkat", "a", "b"));
        links.add(&step("symlink", "", "root"));
        links.add(&Step { result: -17, ..step("symlink", "x", "a") });
        for (name, leads) in [
            ("a/l", Some("a/z")),
            ("b/l", Some("a/z")),
            ("b/c/d", Some("a/c/d")),
            ("root/b", Some("a")),
            ("a/l2", None),
            ("a", None),
        ] {
            assert_eq!(resolve(&links, name).as_deref(), leads, "{name}");
        }
        links.add(&step("rename", "b", "c"));
        assert_eq!((resolve(&links, "b/x"), resolve(&links, "c/x")), (None, Some("a/x".to_owned())));
        links.add(&step("unlink", "a/l", ""));
        assert_eq!(resolve(&links, "a/l"), None);
        links.add(&step("symlink", "round", "round"));
        assert_eq!(resolve(&links, "round"), Some("round".to_owned()));
    }
}
