//! Compares a trace with the output of strace, event by event. `docs/hooks/posix.md` lists the
//! rules.

use crate::align::{Step, align};
use crate::fact::{Fact, is_excluded};
use crate::rules::{Rule, strace_alone, trace_alone};
use crate::strace::{Seen, Witness};
use crate::trace::PrintedEvent;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Number of requests that are equal in every field.
    pub agreed: usize,
    /// Number of differences by design, by the rule that explains them.
    pub by_design: BTreeMap<Rule, usize>,
    /// Description of each difference that no rule explains.
    pub wrong: Vec<String>,
}

/// Replaces the random part of a name (`tmp_obj_a1B2c3`) by a constant.
pub type Rename<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Properties of a program that differ from run to run although both observers are correct.
#[expect(missing_debug_implementations, reason = "functions have none")]
#[derive(Clone, Copy)]
pub struct Unsteady<'a> {
    /// Removes random parts from a path.
    pub rename: Rename<'a>,
    /// Files that the program checks at irregular times.
    pub files: &'a [&'a str],
    /// Threads compete for descriptors, so descriptor numbers are not compared.
    pub descriptors: bool,
    /// The program accesses the buffers of streams without a library call.
    pub inline_characters: bool,
}

/// Compares both observations. Threads are matched by their requests, because their ids differ.
#[must_use]
pub fn compare(witness: &Witness, rows: &[PrintedEvent], unsteady: Unsteady<'_>) -> Verdict {
    let rename = unsteady.rename;
    let mut verdict = Verdict::default();
    let stdio = stdio_paths(rows, rename);
    for row in rows {
        if row.fact().is_some_and(|fact| fact.file().is_some_and(is_excluded)) {
            verdict.wrong.push(format!("recorded though excluded by default: {row:?}"));
        }
    }

    let mut left = Vec::new();
    for (tid, seen) in &witness.threads {
        let seen = seen.iter().map(|s| Seen { fact: steadied(&s.fact, unsteady), ..s.clone() });
        let kept: Vec<Seen> =
            seen.filter(|s| !is_stream_io(&s.fact, &stdio) && !unsteady.leaves_out(&s.fact)).collect();
        left.push((*tid, kept));
    }
    let mut right: Vec<(u32, Vec<Fact>)> = Vec::new();
    for row in rows {
        let Some(fact) = row.fact().map(|f| steadied(&f, unsteady)) else { continue };
        if is_stream_io(&fact, &stdio) || unsteady.leaves_out(&fact) {
            continue;
        }
        match right.iter_mut().find(|(tid, _)| *tid == row.tid) {
            Some((_, facts)) => facts.push(fact),
            None => right.push((row.tid, vec![fact])),
        }
    }
    for (l, r) in pair(&left, &right) {
        let seen = l.map_or(&[][..], |i| &left[i].1);
        let facts = r.map_or(&[][..], |i| &right[i].1);
        let name =
            format!("strace's thread {:?}, trace's thread {:?}", l.map(|i| left[i].0), r.map(|i| right[i].0));
        thread(&name, seen, facts, &mut verdict);
    }
    directories(witness, rows, rename, &mut verdict);
    streams(witness, rows, &stdio, unsteady, &mut verdict);
    verdict
}

impl Unsteady<'_> {
    fn leaves_out(&self, fact: &Fact) -> bool {
        fact.path.as_deref().is_some_and(|path| self.files.iter().any(|file| file.as_bytes() == path))
    }
}

fn steadied(fact: &Fact, unsteady: Unsteady<'_>) -> Fact {
    let mut fact = renamed(fact, unsteady.rename);
    if unsteady.descriptors && fact.op == "openat" && fact.result > 0 {
        fact.result = 0;
    }
    fact
}

fn renamed(fact: &Fact, rename: Rename<'_>) -> Fact {
    Fact { path: fact.path.as_deref().map(rename), path2: fact.path2.as_deref().map(rename), ..fact.clone() }
}

/// Key of a request in the alignment. The argument is compared later, where both sides have one.
fn key(fact: &Fact) -> Fact {
    Fact { arg: None, ..fact.clone() }
}

fn thread(name: &str, seen: &[Seen], facts: &[Fact], verdict: &mut Verdict) {
    let left: Vec<Fact> = seen.iter().map(|s| key(&s.fact)).collect();
    let right: Vec<Fact> = facts.iter().map(key).collect();
    let mut shown = 0;
    let mut text = String::new();
    for step in align(&left, &right) {
        match step {
            Step::Both(i, j) => match (seen[i].fact.arg, facts[j].arg) {
                (Some(a), Some(b)) if a != b => {
                    let _ = writeln!(
                        text,
                        "  argument: strace {} (line {}), trace {}",
                        seen[i].fact, seen[i].line, facts[j]
                    );
                    shown += 1;
                }
                _ => verdict.agreed += 1,
            },
            Step::Left(i) => match strace_alone(seen, i) {
                Some(rule) => *verdict.by_design.entry(rule).or_default() += 1,
                None => {
                    let _ = writeln!(text, "  - strace only, line {}: {}", seen[i].line, seen[i].fact);
                    shown += 1;
                }
            },
            Step::Right(j) => match trace_alone(&facts[j]) {
                Some(rule) => *verdict.by_design.entry(rule).or_default() += 1,
                None => {
                    let _ = writeln!(text, "  + trace only, event {j}: {}", facts[j]);
                    shown += 1;
                }
            },
        }
    }
    if shown > 0 {
        let head: Vec<&str> = text.lines().take(40).collect();
        verdict.wrong.push(format!("{name}: {shown} differences\n{}", head.join("\n")));
    }
}

/// Pairs threads: first those with identical requests, then the most similar ones.
fn pair(left: &[(u32, Vec<Seen>)], right: &[(u32, Vec<Fact>)]) -> Vec<(Option<usize>, Option<usize>)> {
    let bag = |facts: &mut dyn Iterator<Item = &Fact>| {
        let mut bag: HashMap<Fact, usize> = HashMap::new();
        facts.for_each(|f| *bag.entry(key(f)).or_default() += 1);
        bag
    };
    let lefts: Vec<_> = left.iter().map(|(_, s)| bag(&mut s.iter().map(|s| &s.fact))).collect();
    let rights: Vec<_> = right.iter().map(|(_, f)| bag(&mut f.iter())).collect();
    let mut scores = Vec::new();
    for (i, l) in lefts.iter().enumerate() {
        for (j, r) in rights.iter().enumerate() {
            let common: usize = l.iter().map(|(f, n)| n.min(r.get(f).unwrap_or(&0))).sum();
            let ordered = left[i].1.iter().map(|s| key(&s.fact)).eq(right[j].1.iter().map(key));
            let total: usize = l.values().sum::<usize>() + r.values().sum::<usize>();
            scores.push((ordered, (1 + common) * 1_000_000 / (1 + total), i, j));
        }
    }
    // Among equal scores, prefer threads at the same position.
    scores.sort_by_key(|(ordered, alike, i, j)| (!ordered, usize::MAX - alike, i.abs_diff(*j), *i));
    let (mut used_left, mut used_right) = (HashSet::new(), HashSet::new());
    let mut pairs = Vec::new();
    for (_, _, i, j) in scores {
        if !used_left.contains(&i) && !used_right.contains(&j) {
            used_left.insert(i);
            used_right.insert(j);
            pairs.push((Some(i), Some(j)));
        }
    }
    pairs.extend((0..left.len()).filter(|i| !used_left.contains(i)).map(|i| (Some(i), None)));
    pairs.extend((0..right.len()).filter(|j| !used_right.contains(j)).map(|j| (None, Some(j))));
    pairs
}

/// Files that the program used through `FILE *`.
fn stdio_paths(rows: &[PrintedEvent], rename: Rename<'_>) -> HashSet<Vec<u8>> {
    let paths = rows.iter().filter(|row| row.layer == "stdio").filter_map(|row| row.path.as_deref());
    paths.map(|path| rename(path.as_bytes())).collect()
}

/// True for calls that the C library makes for a stream at times of its choice. They are compared
/// as totals, see [`streams`].
fn is_stream_io(fact: &Fact, stdio: &HashSet<Vec<u8>>) -> bool {
    matches!(fact.op.as_ref(), "read" | "readv" | "write" | "writev" | "lseek" | "fstat")
        && fact.path.as_ref().is_some_and(|path| stdio.contains(path))
}

/// Compares directory entries: `readdir` returns one entry, the kernel delivers many at once.
fn directories(witness: &Witness, rows: &[PrintedEvent], rename: Rename<'_>, verdict: &mut Verdict) {
    let mut handed_out: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut scanned: HashSet<Vec<u8>> = HashSet::new();
    // A program that stops early leaves entries unread that the kernel has delivered.
    let mut unfinished: HashMap<Vec<u8>, i64> = HashMap::new();
    for row in rows {
        let Some(path) = row.fact_path(rename) else { continue };
        match row.op.as_str() {
            "readdir" if row.result > 0 => *handed_out.entry(path).or_default() += 1,
            "readdir" => *unfinished.entry(path).or_default() -= 1,
            "opendir" | "fdopendir" => *unfinished.entry(path).or_default() += 1,
            "scandir" | "getdents" => _ = scanned.insert(path),
            _ => {}
        }
    }
    let mut delivered: HashMap<Vec<u8>, u64> = HashMap::new();
    for (path, entries) in &witness.entries {
        *delivered.entry(rename(path)).or_default() += entries;
    }
    for (path, entries) in &delivered {
        let out = handed_out.remove(path).unwrap_or(0);
        let left = out < *entries && unfinished.get(path).is_some_and(|n| *n > 0);
        if out != *entries && !left && !scanned.contains(path) {
            verdict.wrong.push(format!(
                "{}: the kernel delivered {entries} entries, readdir {out}",
                path.escape_ascii()
            ));
        }
    }
    for (path, out) in handed_out {
        verdict
            .wrong
            .push(format!("{}: {out} entries from readdir, none from the kernel", path.escape_ascii()));
    }
}

/// Compares bytes per file: the bytes of stream calls must arrive in system calls.
fn streams(
    witness: &Witness,
    rows: &[PrintedEvent],
    stdio: &HashSet<Vec<u8>>,
    unsteady: Unsteady<'_>,
    verdict: &mut Verdict,
) {
    let rename = unsteady.rename;
    let reads =
        ["read", "readv", "pread", "fread", "fscanf", "fgets", "fgetc", "getline", "getdelim", "scanf"];
    let writes = ["write", "writev", "pwrite", "fwrite", "fprintf", "fputs", "fputc", "puts", "printf"];
    for path in stdio {
        let (mut system, mut calls) = ([0i64; 2], [0i64; 2]);
        for seen in witness.threads.iter().flat_map(|(_, seen)| seen) {
            let fact = renamed(&seen.fact, rename);
            if fact.path.as_ref() == Some(path) && fact.result > 0 {
                system[0] += if reads.contains(&fact.op.as_ref()) { fact.result } else { 0 };
                system[1] += if writes.contains(&fact.op.as_ref()) { fact.result } else { 0 };
            }
        }
        let mut opens = 0;
        for row in rows.iter().filter(|row| row.fact_path(rename).as_ref() == Some(path)) {
            opens += i64::from(matches!(row.op.as_str(), "fopen" | "fdopen" | "freopen"));
            if row.result > 0 {
                calls[0] += if reads.contains(&row.op.as_str()) { row.result } else { 0 };
                calls[1] += if writes.contains(&row.op.as_str()) { row.result } else { 0 };
            }
        }
        // A stream reads ahead by up to one buffer, and all bytes put into it are written.
        let [ahead, unsaid] = [system[0] - calls[0], system[1] - calls[1]];
        let exact = (0..=4096 * opens.max(1)).contains(&ahead) && unsaid == 0;
        if !exact && unsteady.inline_characters && ahead >= 0 && unsaid >= 0 {
            *verdict.by_design.entry(Rule::InlineCharacters).or_default() += 1;
        } else if !exact {
            verdict.wrong.push(format!(
                "{}: streams read {} and wrote {} bytes, system calls {} and {}",
                path.escape_ascii(),
                calls[0],
                calls[1],
                system[0],
                system[1]
            ));
        }
        if calls != [0, 0] {
            *verdict.by_design.entry(Rule::StreamTotals).or_default() += 1;
        }
    }
}

impl PrintedEvent {
    fn fact_path(&self, rename: Rename<'_>) -> Option<Vec<u8>> {
        self.path.as_deref().map(|path| rename(&crate::fact::normal_path(b"/", path.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRACE: &str = "\
1 openat(-100<\\x2f\\x77>, \"\\x61\", 0x42, 0600) = 3<\\x2f\\x77\\x2f\\x61>
1 write(3<\\x2f\\x77\\x2f\\x61>, \"\", 10) = 10
1 write(3<\\x2f\\x77\\x2f\\x61>, \"\", 20) = 20
1 openat(-100<\\x2f\\x77>, \"\\x64\", 0x90800) = 4<\\x2f\\x77\\x2f\\x64>
1 newfstatat(4<\\x2f\\x77\\x2f\\x64>, \"\", {}, 0x1000) = 0
1 getdents64(4<\\x2f\\x77\\x2f\\x64>, 0x5 /* 3 entries */, 32768) = 80
1 close(4<\\x2f\\x77\\x2f\\x64>) = 0
2 unlink(\"\\x2f\\x77\\x2f\\x61\") = -1 EPERM (Operation not permitted)
2 openat(-100<\\x2f\\x77>, \"\\x2f\\x6c\\x2f\\x78\\x2e\\x73\\x6f\", 0x0) = 3<\\x2f\\x6c\\x2f\\x78\\x2e\\x73\\x6f>
";

    fn row(tid: u32, op: &str, path: &str, numbers: [Option<i64>; 3], result: i64) -> PrintedEvent {
        let [offset, length, arg] = numbers;
        let layer = "posix".to_owned();
        PrintedEvent {
            tid,
            layer,
            op: op.into(),
            path: Some(path.into()),
            offset,
            length,
            arg,
            result,
            ..PrintedEvent::default()
        }
    }

    fn rows() -> Vec<PrintedEvent> {
        let none = [None, None, None];
        let mut rows = vec![
            row(71, "open", "/w/a", [None, None, Some(0x42 | 0o600 << 32)], 3),
            row(71, "write", "/w/a", [Some(0), Some(10), None], 10),
            row(72, "unlink", "/w/./a", none, -1),
            row(71, "write", "/w/a", [Some(10), Some(20), None], 20),
            row(71, "opendir", "/w/d", none, 4),
        ];
        rows.extend((0..3).map(|_| row(71, "readdir", "/w/d", none, 1)));
        rows.push(row(71, "readdir", "/w/d", none, 0));
        rows.push(row(71, "closedir", "/w/d", none, 0));
        rows
    }

    fn wrong(rows: &[PrintedEvent]) -> Vec<String> {
        let witness = crate::strace::witness(STRACE, b"/w", &|_| 0).unwrap();
        let unsteady =
            Unsteady { rename: &<[u8]>::to_vec, files: &[], descriptors: false, inline_characters: false };
        compare(&witness, rows, unsteady).wrong
    }

    #[test]
    fn identical_runs_agree() {
        assert_eq!(wrong(&rows()), Vec::<String>::new());
    }

    #[test]
    fn every_difference_is_noticed() {
        type Mutation = fn(&mut Vec<PrintedEvent>);
        let mutants: [(&str, Mutation); 11] = [
            ("an event is missing", |rows| _ = rows.remove(1)),
            ("an event is there twice", |rows| rows.insert(1, rows[1].clone())),
            ("two events are swapped", |rows| rows.swap(1, 3)),
            ("wrong offset", |rows| rows[3].offset = Some(11)),
            ("no offset", |rows| rows[3].offset = None),
            ("wrong length", |rows| rows[1].length = Some(11)),
            ("wrong result", |rows| rows[2].result = 0),
            ("wrong path", |rows| rows[2].path = Some("/w/b".into())),
            ("wrong flags", |rows| rows[0].arg = Some(0x40)),
            ("a directory entry is missing", |rows| _ = rows.remove(5)),
            ("an event of another thread", |rows| rows[1].tid = 72),
        ];
        for (what, mutate) in mutants {
            let mut rows = rows();
            mutate(&mut rows);
            assert!(!wrong(&rows).is_empty(), "{what}");
        }
        let mut rows = rows();
        rows.push(row(71, "open", "/proc/stat", [None, None, Some(0)], 3));
        assert!(!wrong(&rows).is_empty(), "an excluded file is recorded");
    }
}
