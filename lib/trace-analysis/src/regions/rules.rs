//! Findings of regions.

use super::LoopFigures;
use crate::findings::{Figure, Finding, Rule, Unit};
use crate::programs::Programs;
use std::collections::BTreeMap;

/// Minimum time of the loop: 100 ms. In a shorter one the start of the program prevails.
const LOOP: u64 = 100_000_000;
/// Share of the loop's time that a wait must take. MIOT's choice: less is not worth a change.
const WAIT: f64 = 0.1;
/// Share for checkpoints, which few programs can do without. MIOT's choice.
const CHECKPOINT: f64 = 0.05;
/// Share of the wait for input in which requests must be in progress for I/O to be its reason.
/// MIOT's choice: most.
const BUSY: f64 = 0.5;
/// Share of the I/O that should be hidden. MIOT's choice: most.
const HIDDEN: f64 = 0.5;
/// Minimum number of fetches. Fewer are not a loop.
const FETCHES: u64 = 10;

const SOURCE: &str = "Devarajan et al., DFTracer, SC24: unoverlapped I/O";

/// Figures of all tasks of a program.
#[derive(Debug, Default)]
struct ProgramLoops {
    sum: LoopFigures,
    members: Vec<u64>,
}

/// Returns the findings of loops, by program.
#[must_use]
pub fn judge(loops: &[LoopFigures], programs: &mut Programs) -> Vec<Finding> {
    let mut by_program: BTreeMap<usize, ProgramLoops> = BTreeMap::new();
    for of in loops {
        let member = programs.member(of.main);
        let all = by_program.entry(member.program).or_default();
        all.members.push(member.member);
        all.sum = if all.sum.time == 0 { *of } else { sum(&all.sum, of) };
    }
    let mut findings = Vec::new();
    for (program, ProgramLoops { sum, mut members }) in by_program {
        members.sort_unstable();
        members.dedup();
        let rules = [loader_starved(&sum), io_not_hidden(&sum), checkpoint_blocks(&sum)];
        for found in rules.into_iter().flatten().filter(|_| sum.time >= LOOP) {
            findings.push(Finding {
                rule: found.rule,
                program: programs.get(program).clone(),
                what: found.what,
                because: found.because,
                advice: found.advice.to_owned(),
                source: SOURCE.to_owned(),
                figures: found.figures,
                files: Vec::new(),
                members: members.clone(),
                begin: Some(sum.begin),
                end: Some(sum.end),
            });
        }
    }
    findings
}

fn sum(one: &LoopFigures, other: &LoopFigures) -> LoopFigures {
    LoopFigures {
        main: one.main,
        begin: one.begin.min(other.begin),
        end: one.end.max(other.end),
        time: one.time + other.time,
        compute: one.compute + other.compute,
        fetch: one.fetch + other.fetch,
        checkpoint: one.checkpoint + other.checkpoint,
        fetches: one.fetches + other.fetches,
        checkpoints: one.checkpoints + other.checkpoints,
        io_time: one.io_time + other.io_time,
        hidden_time: one.hidden_time + other.hidden_time,
        fetch_io: one.fetch_io + other.fetch_io,
        checkpoint_io: one.checkpoint_io + other.checkpoint_io,
    }
}

struct LoopFinding {
    rule: Rule,
    what: String,
    because: String,
    advice: &'static str,
    figures: Vec<Figure>,
}

fn time(name: &'static str, value: u64) -> Figure {
    Figure { name, value: value as f64, unit: Unit::Nanoseconds }
}

fn share(name: &'static str, part: u64, whole: u64) -> Figure {
    Figure { name, value: part as f64 / whole.max(1) as f64, unit: Unit::Share }
}

fn seconds(time: u64) -> String {
    format!("{:.3} s", time as f64 / 1e9)
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / whole.max(1) as f64)
}

fn loader_starved(of: &LoopFigures) -> Option<LoopFinding> {
    if of.fetches < FETCHES || (of.fetch as f64) < WAIT * of.time as f64 {
        return None;
    }
    let is_io = of.fetch_io as f64 >= BUSY * of.fetch as f64;
    Some(LoopFinding {
        rule: Rule::LoaderStarved,
        what: format!(
            "the loop waits for input for {} of {} ({}), in {} fetches; I/O is in progress in {} of the wait",
            seconds(of.fetch),
            seconds(of.time),
            percent(of.fetch, of.time),
            of.fetches,
            percent(of.fetch_io, of.fetch)
        ),
        because: format!("at least {FETCHES} fetches that take at least {:.0} % of the loop", WAIT * 100.0),
        advice: if is_io {
            "Read ahead with more workers (num_workers, prefetch_factor), in larger requests: fewer and larger files, or \
             shards. If the bandwidth is used up, copy the data to a local disk first."
        } else {
            "The wait is not I/O: decoding and other work of the workers takes the time. Use more workers, or store the \
             data in a form that is cheaper to decode."
        },
        figures: vec![
            time("loop", of.time),
            time("fetch", of.fetch),
            share("share", of.fetch, of.time),
            time("io_in_fetch", of.fetch_io),
            Figure { name: "fetches", value: of.fetches as f64, unit: Unit::Count },
        ],
    })
}

fn io_not_hidden(of: &LoopFigures) -> Option<LoopFinding> {
    // A checkpoint has a rule of its own.
    let io_time = of.io_time.saturating_sub(of.checkpoint_io);
    let visible = io_time.saturating_sub(of.hidden_time);
    let is_visible = (of.hidden_time as f64) < HIDDEN * io_time as f64;
    if of.compute == 0 || !is_visible || (visible as f64) < WAIT * of.time as f64 {
        return None;
    }
    Some(LoopFinding {
        rule: Rule::IoNotHidden,
        what: format!(
            "of {} with I/O, {} are hidden behind computation; {} are not, which is {} of the loop",
            seconds(io_time),
            percent(of.hidden_time, io_time),
            seconds(visible),
            percent(visible, of.time)
        ),
        because: format!(
            "less than {:.0} % of the time with I/O, apart from checkpoints, is hidden, and the rest is at least {:.0} % \
             of the loop",
            HIDDEN * 100.0,
            WAIT * 100.0
        ),
        advice: "Let other threads or processes do the I/O while the program computes: prefetch the next batch, write in \
                 the background.",
        figures: vec![
            time("loop", of.time),
            time("io", io_time),
            time("hidden", of.hidden_time),
            share("hidden_share", of.hidden_time, io_time),
            share("share", visible, of.time),
        ],
    })
}

fn checkpoint_blocks(of: &LoopFigures) -> Option<LoopFinding> {
    if of.checkpoints == 0 || (of.checkpoint as f64) < CHECKPOINT * of.time as f64 {
        return None;
    }
    Some(LoopFinding {
        rule: Rule::CheckpointBlocks,
        what: format!(
            "{} checkpoints stop the loop for {} of {} ({}); I/O is in progress in {} of that",
            of.checkpoints,
            seconds(of.checkpoint),
            seconds(of.time),
            percent(of.checkpoint, of.time),
            percent(of.checkpoint_io, of.checkpoint)
        ),
        because: format!("checkpoints take at least {:.0} % of the loop", CHECKPOINT * 100.0),
        advice: "Copy the state to memory and write it in the background (torch.distributed.checkpoint.async_save), write \
                 one part per rank, or write less often.",
        figures: vec![
            time("loop", of.time),
            time("checkpoint", of.checkpoint),
            share("share", of.checkpoint, of.time),
            time("io_in_checkpoint", of.checkpoint_io),
            Figure { name: "checkpoints", value: of.checkpoints as f64, unit: Unit::Count },
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rules(of: LoopFigures) -> Vec<Rule> {
        judge(&[of], &mut Programs::default()).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn each_rule_matches_its_own_loop() {
        let base = LoopFigures {
            time: 10 * SECOND,
            compute: 9 * SECOND,
            fetch: SECOND / 2,
            fetches: 100,
            io_time: 5 * SECOND,
            hidden_time: 4 * SECOND,
            ..LoopFigures::default()
        };
        assert_eq!(rules(base), []);
        let starved = LoopFigures { compute: 7 * SECOND, fetch: 3 * SECOND, fetch_io: 2 * SECOND, ..base };
        assert_eq!(rules(starved), [Rule::LoaderStarved]);
        assert_eq!(rules(LoopFigures { fetches: 9, ..starved }), []);
        let visible = LoopFigures { hidden_time: SECOND, ..base };
        assert_eq!(rules(visible), [Rule::IoNotHidden]);
        assert_eq!(rules(LoopFigures { checkpoint_io: 4 * SECOND, ..visible }), []);
        let blocked = LoopFigures { checkpoint: SECOND / 2, checkpoints: 1, ..base };
        assert_eq!(rules(blocked), [Rule::CheckpointBlocks]);
        assert_eq!(rules(LoopFigures { time: LOOP - 1, ..blocked }), []);
    }

    #[test]
    fn advice_depends_on_what_the_workers_do() {
        let of = |fetch_io| LoopFigures {
            time: 10 * SECOND,
            fetch: 4 * SECOND,
            fetches: 50,
            fetch_io,
            ..LoopFigures::default()
        };
        let advice = |fetch_io| judge(&[of(fetch_io)], &mut Programs::default())[0].advice.clone();
        assert!(advice(2 * SECOND).starts_with("Read ahead"));
        assert!(advice(SECOND).starts_with("The wait is not I/O"));
    }

    #[test]
    fn tasks_of_a_program_are_one_finding() {
        let of = |main, begin| LoopFigures {
            main,
            begin,
            end: begin + 10,
            time: 10 * SECOND,
            checkpoint: SECOND,
            checkpoints: 2,
            ..LoopFigures::default()
        };
        let found = judge(&[of(4, 50), of(9, 20)], &mut Programs::default());
        assert_eq!((found.len(), found[0].members.as_slice()), (1, &[4, 9][..]));
        assert_eq!((found[0].begin, found[0].end), (Some(20), Some(60)));
        assert!(found[0].what.starts_with("4 checkpoints stop the loop for 2.000 s of 20.000 s (10 %)"));
    }
}
