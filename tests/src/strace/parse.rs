//! Parses strace's output with [`super::FLAGS`]: one call per line, every string in hexadecimal,
//! every flag as a number, and the path of every descriptor beside it.

use std::collections::HashMap;

/// One system call that returned. Calls are in order of return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Line of the output on which it returned, from 1.
    pub line: usize,
    /// Line on which it began: the same line unless another thread ran in between.
    pub began: usize,
    /// Thread.
    pub tid: u32,
    /// Name of the system call.
    pub name: String,
    /// Arguments as written.
    pub args: Vec<String>,
    /// Result, or −errno.
    pub result: i64,
    /// Path of the descriptor it returned.
    pub result_path: Option<Vec<u8>>,
}

/// Parses all calls of an output, without those that never returned or that the kernel restarted.
///
/// # Errors
/// The first line that cannot be parsed.
pub fn parse(text: &str) -> Result<Vec<Call>, String> {
    let mut calls = Vec::new();
    let mut unfinished: HashMap<u32, (usize, String)> = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let wrong = |what: &str| format!("strace output, line {number}: {what}: {line}");
        let (tid, rest) = line.split_once(' ').ok_or_else(|| wrong("no thread"))?;
        let tid = tid.parse().map_err(|_| wrong("no thread"))?;
        let rest = rest.trim_start();
        if rest.starts_with("+++") || rest.starts_with("---") {
            continue;
        }
        if let Some(head) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(tid, (number, head.to_owned()));
            continue;
        }
        let (began, whole) = match rest.strip_prefix("<... ") {
            Some(tail) => {
                let (_, tail) = tail.split_once(" resumed>").ok_or_else(|| wrong("resumed what?"))?;
                let (began, head) =
                    unfinished.remove(&tid).ok_or_else(|| wrong("resumed without a begin"))?;
                (began, head + tail)
            }
            None => (number, rest.to_owned()),
        };
        if let Some(call) = call(&whole).ok_or_else(|| wrong("not a call"))? {
            calls.push(Call { line: number, began, tid, ..call });
        }
    }
    Ok(calls)
}

/// Parses a line. `None`: not a call. `Some(None)`: a call without a result.
fn call(text: &str) -> Option<Option<Call>> {
    let (name, rest) = text.split_once('(')?;
    let (args, rest) = arguments(rest)?;
    let value = rest.trim_start().strip_prefix("= ")?;
    if value.starts_with('?') {
        return Some(None);
    }
    let (number, rest) = value.split_at(value.find([' ', '<']).unwrap_or(value.len()));
    let mut result = integer(number)?;
    if result == -1
        && let Some(name) = rest.split_whitespace().next()
        && name.starts_with('E')
    {
        result = -i64::from(miot_proto::errno::number(name)?);
    }
    let result_path = rest.strip_prefix('<').and_then(|r| r.split_once('>')).map(|(path, _)| unescape(path));
    Some(Some(Call { line: 0, began: 0, tid: 0, name: name.to_owned(), args, result, result_path }))
}

/// Splits at commas of the outermost level, up to the closing parenthesis.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let bytes = text.as_bytes();
    let (mut args, mut start, mut depth, mut at) = (Vec::new(), 0, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at += 1 + text[at + 1..].find('"')?,
            b'/' if text[at..].starts_with("/*") => at += 1 + text[at..].find("*/")?,
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                let last = text[start..at].trim();
                if !last.is_empty() || !args.is_empty() {
                    args.push(last.to_owned());
                }
                return Some((args, &text[at + 1..]));
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                args.push(text[start..at].trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Parses a number as strace prints it: decimal, octal or hexadecimal. `NULL` is 0.
#[must_use]
pub fn integer(text: &str) -> Option<i64> {
    // strace 6.1 writes some raw flags with an empty name before them: `|0x900`.
    let text = text.trim_start_matches('|').split(['<', ' ']).next()?;
    if text == "NULL" {
        return Some(0);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(|v| v as i64);
    }
    if text.len() > 1 && text.starts_with('0') {
        return i64::from_str_radix(text, 8).ok();
    }
    text.parse().ok().or_else(|| text.parse::<u64>().ok().map(|v| v as i64))
}

/// Parses a descriptor and the path that strace prints for it.
#[must_use]
pub fn descriptor(text: &str) -> Option<(i32, Vec<u8>)> {
    let (number, rest) = match text.split_once('<') {
        // "(deleted)" may follow.
        Some((number, rest)) => (number, rest.split_once('>')?.0),
        None => (text, ""),
    };
    Some((integer(number)? as i32, unescape(rest)))
}

/// Returns the bytes of a quoted string. `None` for a null pointer or an address.
#[must_use]
pub fn string(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('"')?;
    Some(unescape(inner.split('"').next()?))
}

/// Returns the sum of all `iov_len` of a vector.
#[must_use]
pub fn vector_length(text: &str) -> i64 {
    text.split("iov_len=").skip(1).filter_map(|t| integer(t.split(['}', ',']).next()?)).sum()
}

/// Returns the value of `name=` in a structure.
#[must_use]
pub fn field(args: &[String], name: &str) -> Option<i64> {
    let text = args.iter().find_map(|arg| arg.split_once(&format!("{name}="))).map(|(_, rest)| rest)?;
    integer(text.split(['}', ',', '|']).next()?)
}

/// Returns the number in `[7]` or `[7] => [9]`: a position passed by address. `None` for a null
/// pointer.
#[must_use]
pub fn pointed(text: &str) -> Option<i64> {
    integer(text.strip_prefix('[')?.split(']').next()?)
}

/// Returns the number before ` entries */`.
#[must_use]
pub fn entries(text: &str) -> Option<u64> {
    text.split_once("/* ")?.1.split(' ').next()?.parse().ok()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() / 4);
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex =
            |range| std::str::from_utf8(rest.get(range)?).ok().and_then(|t| u8::from_str_radix(t, 16).ok());
        match (byte, tail.first()) {
            (b'\\', Some(b'x')) if hex(2..4).is_some() => {
                out.push(hex(2..4).unwrap_or_default());
                rest = &rest[4..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Call {
        parse(line).unwrap().remove(0)
    }

    #[test]
    fn calls_results_and_descriptors() {
        let call =
            one("14003 openat(-100<\\x2f\\x74>, \"\\x61\\x62\", 0x80000) = 5<\\x2f\\x74\\x2f\\x61\\x62>");
        assert_eq!((call.tid, call.name.as_str(), call.result), (14003, "openat", 5));
        assert_eq!(call.result_path.as_deref(), Some(b"/t/ab".as_slice()));
        assert_eq!(descriptor(&call.args[0]), Some((-100, b"/t".to_vec())));
        assert_eq!(string(&call.args[1]), Some(b"ab".to_vec()));
        assert_eq!(integer(&call.args[2]), Some(0x80000));
        assert_eq!(descriptor("3<\\x2f\\x61>(deleted)"), Some((3, b"/a".to_vec())));
        let failed = one("7 access(\"\\x61\", 0x4) = -1 ENOENT (No such file or directory)");
        assert_eq!(failed.result, -2);
        let address = one("7 mmap(NULL, 37723, 0x1, 0x2, 3<\\x2f\\x61>, 0) = 0x7f5918ca7000");
        assert_eq!(address.result, 0x7f59_18ca_7000);
        assert_eq!(address.args.len(), 6);
    }

    #[test]
    fn commas_and_brackets_in_strings_structures_and_comments() {
        let call = one(
            "1 writev(4<\\x2f>, [{iov_base=\"\\x2c\", iov_len=3}, {iov_base=\"\\x29\", iov_len=2}], 2) = 5",
        );
        assert_eq!(call.args.len(), 3);
        assert_eq!(vector_length(&call.args[1]), 5);
        let call = one("1 getdents64(5<\\x2f>, 0x33548ab0 /* 5 entries */, 32768) = 144");
        assert_eq!((call.args.len(), entries(&call.args[1])), (3, Some(5)));
        let call = one("1 execve(\"\\x2f\", [\"\\x61\"], 0x7fff0b693d80 /* 35 vars, or so) */) = 0");
        assert_eq!(call.args.len(), 3);
    }

    #[test]
    fn interrupted_lines_are_joined_where_they_end() {
        let text = "1 read(3<\\x2f>,  <unfinished ...>\n2 fsync(4<\\x2f>) = 0\n1 <... read resumed>\"\\x61\", 10) = 1\n";
        let calls = parse(text).unwrap();
        assert_eq!(
            calls.iter().map(|c| (c.tid, c.began, c.line)).collect::<Vec<_>>(),
            [(2, 2, 2), (1, 1, 3)]
        );
        assert_eq!(calls[1].args.len(), 3);
        assert_eq!(integer(&calls[1].args[2]), Some(10));
    }

    #[test]
    fn call_without_return_is_not_an_event() {
        let text = "1 exit_group(0) = ?\n1 +++ exited with 0 +++\n2 --- SIGCHLD {si_signo=0x11} ---\n\
                    3 read(0<\\x2f>, \"\", 1) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)\n";
        assert_eq!(parse(text), Ok(Vec::new()));
    }

    #[test]
    fn invalid_line_is_refused_with_its_number() {
        let error = parse("1 close(3) = 0\nstrace: Process 7 attached\n").unwrap_err();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn clone_flags_and_numbers() {
        let call = one("1 clone3({flags=0x4111, exit_signal=0x11, stack=0x7f, stack_size=0x9000}, 88) = 99");
        assert_eq!(field(&call.args, "flags"), Some(0x4111));
        assert_eq!(
            (integer("0644"), integer("-1"), integer("18446744073709551615")),
            (Some(0o644), Some(-1), Some(-1))
        );
    }
}
