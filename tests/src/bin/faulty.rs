//! Programs whose events are difficult for every trace: `faulty WHAT …`.
//!
//! `undefined N`: N requests of each of 256 layers, and N of an operation that no layer defines,
//! beside N valid ones. `past N`: N requests whose completion is recorded two seconds late. `notes
//! N`: N notes of 4000 incompressible bytes. `long-lived FILE N`: writes FILE N times, waits for a
//! line, writes FILE N times again, and waits for another line.

use miot_tracer::{Completion, Ext, Op, begin, end, note, op, record, ticks};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    match words.first().map(String::as_str) {
        Some("undefined") => undefined(number(1)),
        Some("past") => past(number(1)),
        Some("notes") => notes(number(1)),
        Some("long-lived") => return long_lived(&words[1], number(2)),
        _ => std::process::exit(2),
    }
    Ok(())
}

fn undefined(count: u64) {
    for _ in 0..count {
        for layer in 0..=u8::MAX {
            make(Op { layer, number: 1 });
        }
        make(Op { layer: op::client::READ.layer, number: u8::MAX });
        make(op::client::READ);
    }
}

fn make(op: Op) {
    if let Some(begun) = begin(op) {
        end(begun, Completion { length: 2, ..Completion::of(2) });
    }
}

fn notes(count: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut text = [0; 4000];
    for _ in 0..count {
        for bytes in text.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.copy_from_slice(&(state | 0x0101_0101_0101_0101).to_le_bytes());
        }
        note(&text);
    }
}

fn past(count: u64) {
    make(op::client::OPEN);
    let begin = ticks();
    std::thread::sleep(Duration::from_secs(2));
    for number in 0..count {
        record(op::client::READ, begin, begin + number, Completion::of(1), &Ext::default());
    }
}

fn long_lived(path: &str, count: u64) -> std::io::Result<()> {
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(path)?;
    let write = || (0..count).try_for_each(|number| file.write_all_at(b"12345678", number * 8));
    write()?;
    println!("written");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    write()?;
    println!("written again");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
