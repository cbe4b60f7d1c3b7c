//! Parses lines of strace and their arguments.

/// Contents of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StraceLine<'a> {
    /// `name(args) = result`.
    Call { name: &'a str, args: Vec<&'a [u8]>, result: CallResult<'a> },
    /// `name(args <unfinished ...>`, with the text after the bracket.
    Unfinished { name: &'a str, text: &'a [u8] },
    /// `<... name resumed>rest`, with the rest.
    Resumed { name: &'a str, text: &'a [u8] },
    /// `+++ exited with 0 +++`, `+++ killed by SIGKILL +++`.
    Gone { killed: bool },
    /// `+++ superseded by execve in pid 12 +++`.
    Superseded { by: u32 },
    /// A signal, a stop.
    Other,
}

/// Result of a call: the text after the `=`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallResult<'a> {
    /// Value; a negative value is −errno. `None` for `?`.
    pub(super) value: Option<i64>,
    /// Path that `-y` shows for a new descriptor.
    pub(super) path: Option<&'a [u8]>,
    /// Text after a `?`, e.g. `ERESTARTSYS`.
    pub(super) unknown: &'a [u8],
    /// Duration in nanoseconds.
    pub(super) duration: Option<i64>,
}

/// Thread, time and the rest of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) tid: Option<u32>,
    pub(super) comm: Option<&'a [u8]>,
    /// Time in nanoseconds since 1970.
    pub(super) time: i64,
    pub(super) rest: &'a [u8],
}

/// Reason why a line is invalid.
pub(super) type Refused = &'static str;

pub(super) const NO_TIMES: Refused = "no time since 1970 in the line: MIOT needs the output of `strace -f -ttt -T -y`; -t, -tt and -r print the time of day only";

fn blanks(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses seconds with up to nine digits after the point. Returns nanoseconds and the rest of the
/// text.
fn seconds(text: &[u8]) -> Option<(i64, &[u8])> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = digits(rest.strip_prefix(b".")?);
    let whole: i64 = number(whole)?;
    let padded = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = padded.fold(0_i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    (!fraction.is_empty()).then_some((whole.checked_mul(1_000_000_000)?.checked_add(nanoseconds)?, rest))
}

/// Parses `12 `, `[pid    12] `, `12<comm> `, or nothing; then the time.
pub(super) fn head(line: &[u8]) -> Result<Head<'_>, Refused> {
    let (mut tid, mut comm, mut rest) = (None, None, blanks(line));
    if let Some(inside) = rest.strip_prefix(b"[pid ") {
        let end = inside.iter().position(|byte| *byte == b']').ok_or("[pid without ]")?;
        let (id, name) = digits(blanks(&inside[..end]));
        (tid, comm) = (number(id), comm_of(name));
        rest = blanks(&inside[end + 1..]);
    } else {
        let (id, after) = digits(rest);
        // A time has a point, or colons.
        if !id.is_empty() && matches!(after.first(), Some(b' ' | b'<')) {
            tid = number(id);
            let after = if after.first() == Some(&b'<') {
                let end = after.windows(2).position(|two| two == b"> ").ok_or("a name without >")?;
                comm = comm_of(&after[..=end]);
                &after[end + 1..]
            } else {
                after
            };
            rest = blanks(after);
        }
    }
    let (time, rest) = seconds(rest).ok_or(NO_TIMES)?;
    // `-r` prints times relative to the previous line.
    if time < 100_000_000_000_000_000 || rest.first() != Some(&b' ') {
        return Err(NO_TIMES);
    }
    Ok(Head { tid, comm, time, rest: blanks(rest) })
}

fn comm_of(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"<")?.strip_suffix(b">")
}

/// Parses the text after the time.
pub(super) fn body(text: &[u8]) -> Result<StraceLine<'_>, Refused> {
    if let Some(event) = text.strip_prefix(b"+++ ") {
        if let Some(by) = event.strip_prefix(b"superseded by execve in pid ") {
            return Ok(StraceLine::Superseded { by: number(digits(by).0).ok_or("no process id")? });
        }
        let killed = event.starts_with(b"killed by");
        return if killed || event.starts_with(b"exited with") {
            Ok(StraceLine::Gone { killed })
        } else {
            Err("neither exited, killed nor superseded")
        };
    }
    if text.starts_with(b"--- ") {
        return Ok(StraceLine::Other);
    }
    if let Some(rest) = text.strip_prefix(b"<... ") {
        let end = rest.windows(8).position(|word| word == b" resumed").ok_or("no `resumed`")?;
        let after = &rest[end + 8..];
        let after = after.strip_prefix(b">").ok_or("no > after `resumed`")?;
        return Ok(StraceLine::Resumed { name: name(&rest[..end])?, text: after });
    }
    let open = text.iter().position(|byte| *byte == b'(').ok_or("no system call")?;
    let name = name(&text[..open])?;
    let text = &text[open + 1..];
    for end in [&b"<unfinished ...>"[..], b"<detached ...>"] {
        if let Some(text) = text.trim_ascii_end().strip_suffix(end) {
            return Ok(StraceLine::Unfinished { name, text });
        }
    }
    let (args, result) = call(text)?;
    Ok(StraceLine::Call { name, args, result })
}

fn name(text: &[u8]) -> Result<&str, Refused> {
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'?');
    let text = (!text.is_empty() && text.iter().all(good)).then_some(text);
    text.and_then(|text| std::str::from_utf8(text).ok()).ok_or("no name of a system call")
}

/// Parses `args) = result <duration>`.
pub(super) fn call(text: &[u8]) -> Result<(Vec<&[u8]>, CallResult<'_>), Refused> {
    let (args, end) = arguments(text).ok_or("arguments without an end")?;
    let rest = blanks(&text[end..]);
    let rest = rest.strip_prefix(b"=").ok_or("no result")?;
    Ok((args, result(blanks(rest))?))
}

/// Returns the arguments up to the closing bracket, and the position behind it.
fn arguments(text: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let (mut args, mut depth, mut begin, mut at) = (Vec::new(), 0_usize, 0, 0);
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at)?,
            b'<' if at > 0 && text[at - 1].is_ascii_alphanumeric() => at = annotation_end(text, at)?,
            b'/' if text.get(at + 1) == Some(&b'*') => {
                at += 2 + text[at + 2..].windows(2).position(|two| two == b"*/")? + 1;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                let last = text[begin..at].trim_ascii();
                if !last.is_empty() || !args.is_empty() {
                    args.push(last);
                }
                return Some((args, at + 1));
            }
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                args.push(text[begin..at].trim_ascii());
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the index of the closing quote of a string that begins here.
fn string_end(text: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
}

/// Returns the index of the `>` that closes the annotation of a descriptor by `-y` or `-yy`. In a
/// path both brackets are escaped; `->` is an arrow.
fn annotation_end(text: &[u8], begin: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.iter().enumerate().skip(begin) {
        match byte {
            b'<' => depth += 1,
            b'>' if text[at - 1] == b'-' => {}
            b'>' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn result(text: &[u8]) -> Result<CallResult<'_>, Refused> {
    let text = text.trim_ascii_end();
    let (text, duration) = match text.iter().rposition(|byte| *byte == b'<') {
        Some(at) if text.ends_with(b">") => match seconds(&text[at + 1..]) {
            Some((duration, b">")) => (text[..at].trim_ascii_end(), Some(duration)),
            _ => (text, None),
        },
        _ => (text, None),
    };
    let (mut path, mut unknown) = (None, &b""[..]);
    let value = if let Some(after) = text.strip_prefix(b"?") {
        unknown = blanks(after);
        None
    } else if let Some(error) = text.strip_prefix(b"-1 E") {
        let end = error.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(error.len());
        Some(-super::names::errno(&text[3..4 + end]).ok_or("an error of an unknown name")?)
    } else {
        let end = text.iter().position(|byte| matches!(byte, b' ' | b'<')).unwrap_or(text.len());
        if text.get(end) == Some(&b'<') {
            path = annotation_end(text, end).map(|close| &text[end + 1..close]);
        }
        Some(integer(&text[..end]).ok_or("the result is not a number")?)
    };
    Ok(CallResult { value, path, unknown, duration })
}

/// Parses a decimal, hexadecimal or octal number.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(hexadecimal) = text.strip_prefix("0x") {
        return u64::from_str_radix(hexadecimal, 16).ok().map(|v| v as i64);
    }
    if text.len() > 1 && text.starts_with('0') {
        return u64::from_str_radix(&text[1..], 8).ok().map(|v| v as i64);
    }
    text.parse::<i64>().ok().or_else(|| text.parse::<u64>().ok().map(|v| v as i64))
}

/// Parses a number, or names and numbers joined by `|`.
pub(super) fn flags(text: &[u8]) -> Option<i64> {
    let text = match text.windows(2).position(|two| two == b"/*") {
        Some(comment) => text[..comment].trim_ascii(),
        None => text,
    };
    text.split(|byte| *byte == b'|').try_fold(0, |sum, term| {
        Some(sum | integer(term).or_else(|| super::names::constant(std::str::from_utf8(term).ok()?))?)
    })
}

/// Parses `5`, `5</path>`, `AT_FDCWD</path>`: the descriptor and its annotation.
pub(super) fn descriptor(text: &[u8]) -> Option<(i32, Option<Vec<u8>>)> {
    let end = text.iter().position(|byte| *byte == b'<').unwrap_or(text.len());
    let number = if &text[..end] == b"AT_FDCWD" { AT_FDCWD } else { integer(&text[..end])? as i32 };
    let shown = match text.get(end) {
        Some(_) => annotation_end(text, end).map(|close| unescape(&text[end + 1..close])),
        None => None,
    };
    Some((number, shown))
}

pub(super) const AT_FDCWD: i32 = -100;

/// Returns the working directory from the annotation of the first argument of a call.
pub(super) fn working_directory(call: &[u8]) -> Option<Vec<u8>> {
    let open = call.iter().position(|byte| *byte == b'(')?;
    let argument = &call[open + 1..];
    let (number, shown) =
        descriptor(&argument[..annotation_end(argument, argument.iter().position(|b| *b == b'<')?)? + 1])?;
    shown.filter(|shown| number == AT_FDCWD && shown.starts_with(b"/"))
}

/// Returns the bytes of a quoted string; `None` if the text is not a string or was truncated.
pub(super) fn string(text: &[u8]) -> Option<Vec<u8>> {
    let inside = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    Some(unescape(inside))
}

/// Replaces escapes: `\n` and similar, `\1` to `\377`, `\x41`.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let Some((escape, tail)) = rest.split_first() else {
            out.push(b'\\');
            break;
        };
        let octal = rest.iter().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
        let hexadecimal = tail.iter().take(2).take_while(|byte| byte.is_ascii_hexdigit()).count();
        let radix = |digits: &[u8], radix| {
            std::str::from_utf8(digits)
                .ok()
                .and_then(|text| u32::from_str_radix(text, radix).ok())
                .unwrap_or(0)
        };
        let (byte, used) = match escape {
            b'0'..=b'7' => (radix(&rest[..octal], 8) as u8, octal),
            b'x' if hexadecimal > 0 => (radix(&tail[..hexadecimal], 16) as u8, 1 + hexadecimal),
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            b'r' => (b'\r', 1),
            b'v' => (0x0b, 1),
            b'f' => (0x0c, 1),
            other => (*other, 1),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}

/// Returns a field of a structure: `{flags=A|B, stack=0}`.
pub(super) fn field<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let at = text.windows(name.len() + 1).enumerate().find(|(at, window)| {
        let begins = *at == 0 || matches!(text[at - 1], b'{' | b' ' | b',');
        begins && window.strip_suffix(b"=") == Some(name.as_bytes())
    });
    let value = &text[at?.0 + name.len() + 1..];
    let end = value.iter().position(|byte| matches!(byte, b',' | b'}' | b' ')).unwrap_or(value.len());
    Some(&value[..end])
}

/// Returns the sum of all `iov_len` of a vector; `None` if the vector is incomplete.
pub(super) fn vector_length(text: &[u8]) -> Option<i64> {
    let (mut sum, mut at, mut any) = (0_i64, 0, text == b"[]");
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at)? + 1,
            b'i' if text[at..].starts_with(b"iov_len=") => {
                let (number, _) = digits(&text[at + 8..]);
                sum = sum.saturating_add(integer(number)?);
                (at, any) = (at + 8, true);
            }
            // More blocks than strace prints.
            b'.' if text[at..].starts_with(b"...") && !text[..at].ends_with(b"\"") => return None,
            _ => at += 1,
        }
    }
    any.then_some(sum)
}

/// Parses `[5]` or `[5 => 10]`: the value behind a pointer before the call.
pub(super) fn pointed(text: &[u8]) -> Option<i64> {
    let inside = text.strip_prefix(b"[")?;
    let end = inside.iter().position(|byte| matches!(byte, b']' | b' '))?;
    integer(&inside[..end])
}

/// Returns the strings of `["a", "b"]`.
pub(super) fn strings(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(begin) = text.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'"')) {
        let begin = at + begin;
        let Some(end) = string_end(text, begin) else { break };
        out.push(unescape(&text[begin + 1..end]));
        at = end + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> (Vec<String>, Option<i64>, Option<i64>) {
        let (args, result) = call(text.as_bytes()).unwrap();
        let args = args.into_iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        (args, result.value, result.duration)
    }

    #[test]
    fn heads() {
        let time = 1_700_000_000_000_001_000;
        for (line, tid, comm) in [
            ("12  1700000000.000001 x", Some(12), None),
            ("1700000000.000001 x", None, None),
            ("[pid    12] 1700000000.000001 x", Some(12), None),
            ("12<a b> 1700000000.000001 x", Some(12), Some(&b"a b"[..])),
            ("12 1700000000.000001000 x", Some(12), None),
        ] {
            assert_eq!(head(line.as_bytes()).unwrap(), Head { tid, comm, time, rest: b"x" }, "{line}");
        }
        for line in
            ["12 12:34:56.000001 x", "12:34:56 x", "12 read(3, \"\", 0) = 0", "     0.000012 x", "", "12 "]
        {
            assert_eq!(head(line.as_bytes()), Err(NO_TIMES), "{line}");
        }
    }

    #[test]
    fn arguments_end_at_the_closing_bracket() {
        assert_eq!(one(r#""a,)\"", 3</t,(\76x>, [1, {b=2}], 0x1 /* a, b) */) = 5 <0.000012>"#).0.len(), 4);
        assert_eq!(one("3<TCP:[127.0.0.1:1->127.0.0.1:2]>, 4</dev/null<char 1:3>>)   = 0").0.len(), 2);
        assert_eq!(one(r#"3, "x"..., 1 << 2) = 1"#).0.len(), 3);
        assert_eq!(one(") = 0").0, Vec::<String>::new());
        assert_eq!(one("1) = -1 ENOENT (No such file or directory) <1.5>").1, Some(-2));
        assert_eq!(one("1) = 0x7fff").1, Some(0x7fff));
        assert_eq!(one("1) = 0x8402 (flags O_RDWR|O_APPEND)").1, Some(0x8402));
        let (_, result) = call(b"1) = ? ERESTARTSYS (To be restarted) <0.1>").unwrap();
        assert_eq!((result.value, result.duration), (None, Some(100_000_000)));
        let (_, result) = call(b"1) = 3</a\\76b> <0.000001>").unwrap();
        assert_eq!(
            (result.value, result.path, result.duration),
            (Some(3), Some(&b"/a\\76b"[..]), Some(1000))
        );
        for bad in ["1, 2", "1) 0", "1) = x", "\"a) = 0", "1] = 0", "1) = -1 ENOSUCH (x)", "3</a) = 0"] {
            assert!(call(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_are_parsed() {
        assert_eq!(body(b"+++ killed by SIGKILL (core dumped) +++"), Ok(StraceLine::Gone { killed: true }));
        assert_eq!(body(b"+++ superseded by execve in pid 7 +++"), Ok(StraceLine::Superseded { by: 7 }));
        assert_eq!(body(b"--- SIGCHLD {si_signo=SIGCHLD} ---"), Ok(StraceLine::Other));
        assert_eq!(
            body(b"read(3,  <unfinished ...>"),
            Ok(StraceLine::Unfinished { name: "read", text: b"3,  " })
        );
        assert_eq!(
            body(b"<... read resumed>\"\", 1) = 0"),
            Ok(StraceLine::Resumed { name: "read", text: b"\"\", 1) = 0" })
        );
        for bad in ["", "read", "rea d(1) = 0", "<... read", "+++ +++"] {
            assert!(body(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn values() {
        assert_eq!(string(br#""a\n\0\x41\3771\12""#), Some(b"a\n\0A\xff1\n".to_vec()));
        assert_eq!(string(br#""cut"..."#), None);
        assert_eq!(flags(b"O_RDWR|O_CREAT|0x80000"), Some(0o2 | 0o100 | 0x80000));
        assert_eq!((flags(b"O_SUCH"), flags(b"0666"), flags(b"SEEK_END")), (None, Some(0o666), Some(2)));
        assert_eq!(descriptor(b"AT_FDCWD</t\\76>"), Some((-100, Some(b"/t>".to_vec()))));
        assert_eq!(descriptor(b"3</a>(deleted)"), Some((3, Some(b"/a".to_vec()))));
        assert_eq!(
            vector_length(br#"[{iov_base="iov_len=9", iov_len=3}, {iov_base="x"..., iov_len=40}]"#),
            Some(43)
        );
        assert_eq!(vector_length(br#"[{iov_base="x", iov_len=3}, ...]"#), None);
        assert_eq!((pointed(b"[5]"), pointed(b"[5 => 10]"), pointed(b"NULL")), (Some(5), Some(5), None));
        assert_eq!(field(b"{flags=CLONE_VM|CLONE_FILES, x=1}", "flags"), Some(&b"CLONE_VM|CLONE_FILES"[..]));
        assert_eq!(strings(br#"["a", "b\"c"]"#), [b"a".to_vec(), b"b\"c".to_vec()]);
    }
}
