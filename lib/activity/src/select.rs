//! Builds an [`ActivitySnapshot`] from tallies: the selection of rows and their values.

use super::latencies::{RANGES, quantile};
use super::recent::Ids;
use super::table::{PackedTable, Table, Tally};
use super::{
    Activity, ActivityGroup, ActivityLoss, ActivityRow, ActivitySnapshot, ActivityWindow, KINDS, Kind,
    MAX_WINDOW_SECONDS, Past, SECOND,
};
use std::cmp::Reverse;

/// Shortest time over which a rate is computed, in seconds. Rates over less are meaningless.
const LEAST: f64 = 0.001;

/// Sum of a key's tallies over several tables.
struct Sum {
    key: u64,
    tally: Tally,
    missed: u64,
}

impl Activity {
    /// Returns the activity of a window. Of each kind it has the `top` rows by requests, by bytes,
    /// by time, by longest request and by losses: between `top` and five times as many rows.
    #[must_use]
    pub fn snapshot(&mut self, window: ActivityWindow, top: usize) -> ActivitySnapshot {
        let end = self.second.unwrap_or(0);
        // The window is taken out during name look-ups, and put back afterwards.
        let kept = std::mem::take(&mut self.past);
        let whole;
        let (from, sources): (i64, Vec<&Past>) = match window {
            ActivityWindow::Seconds(seconds) => {
                let begin = end - i64::from(seconds.clamp(1, MAX_WINDOW_SECONDS));
                let first = self.first.div_euclid(SECOND).max(self.kept_from);
                (begin.max(first), kept.iter().filter(|past| past.second >= begin).collect())
            }
            ActivityWindow::Whole => {
                whole = [&self.whole, &self.present].map(|tallies| Past {
                    second: 0,
                    cluster: tallies.cluster.packed(),
                    by: tallies.by.each_ref().map(Table::packed),
                });
                (0, whole.iter().collect())
            }
        };
        let groups = KINDS.map(|kind| {
            let tables: Vec<&PackedTable> = sources.iter().map(|past| &past.by[kind as usize]).collect();
            self.group(kind, &tables, top)
        });
        let cluster: Vec<&PackedTable> = sources.iter().map(|past| &past.cluster).collect();
        let cluster = rows(&cluster, 1).0.pop().map(|(sum, counts)| row(&sum, &counts)).unwrap_or_default();
        self.past = kept;
        let (begin, end) = match window {
            ActivityWindow::Seconds(_) => (from * SECOND, end * SECOND),
            ActivityWindow::Whole => (self.first, self.last),
        };
        let [nodes, jobs, processes, files, operations] = groups;
        ActivitySnapshot {
            begin,
            end,
            seconds: ((end - begin) as f64 / SECOND as f64).max(LEAST),
            events: self.events,
            skipped: self.skipped,
            filtered: self.filtered,
            cluster,
            nodes,
            jobs,
            processes,
            files,
            operations,
            losses: self.losses.iter().map(loss).collect(),
        }
    }

    fn group(&mut self, kind: Kind, tables: &[&PackedTable], top: usize) -> ActivityGroup {
        let (rows, count, others) = rows(tables, top);
        let rows = rows.into_iter().map(|(sum, counts)| self.named(kind, sum.key, row(&sum, &counts)));
        ActivityGroup { rows: rows.collect(), count, others }
    }

    fn named(&mut self, kind: Kind, key: u64, row: ActivityRow) -> ActivityRow {
        match kind {
            Kind::Node | Kind::Job => {
                ActivityRow { name: self.texts.get(key).cloned().unwrap_or_default(), ..row }
            }
            Kind::Operation => {
                let named = self.operations.get(key as usize);
                ActivityRow { name: format!("{}.{}", named.layer, named.op), ..row }
            }
            Kind::File => {
                let row = ActivityRow { id: Some(key), ..row };
                match self.files.get(key) {
                    Some(file) => {
                        ActivityRow { name: file.path.clone(), node: Some(file.node.clone()), ..row }
                    }
                    None => row,
                }
            }
            Kind::Process => {
                let row = ActivityRow { id: Some(key), ..row };
                match self.processes.get(key) {
                    Some(process) => ActivityRow {
                        name: process.command.clone(),
                        node: Some(process.node.clone()),
                        pid: Some(process.pid),
                        uid: process.uid,
                        job: Some(process.job.clone()).filter(|job| !job.is_empty()),
                        ..row
                    },
                    None => row,
                }
            }
        }
    }
}

/// A sum and its durations by range.
type Summed = (Sum, Box<[u64; RANGES]>);

/// Returns the selected rows in descending order of requests, the number of all rows, and the
/// requests of the rows that were not selected.
fn rows(tables: &[&PackedTable], top: usize) -> (Vec<Summed>, u64, u64) {
    let unseen: u64 = tables.iter().map(|table| table.floor).sum();
    let mut places = Ids::<usize>::default();
    let mut sums: Vec<Sum> = Vec::new();
    for table in tables {
        for (entry, _) in table.iter() {
            let place = *places.entry(entry.key).or_insert_with(|| {
                sums.push(Sum { key: entry.key, tally: Tally::default(), missed: unseen });
                sums.len() - 1
            });
            sums[place].tally.add(&entry.tally);
            sums[place].missed = (sums[place].missed + entry.missed).saturating_sub(table.floor);
        }
    }
    let count = sums.len() as u64;
    let total: u64 = sums.iter().map(|sum| sum.tally.requests).sum();
    let rest: u64 = tables.iter().map(|table| table.rest.requests).sum();
    let mut chosen = vec![false; sums.len()];
    let orders: [fn(&Tally) -> u64; 5] = [
        |tally| tally.requests,
        |tally| tally.bytes_read.saturating_add(tally.bytes_written),
        |tally| tally.time,
        |tally| tally.longest,
        |tally| tally.lost,
    ];
    for order in orders {
        let mut best: Vec<usize> = (0..sums.len()).filter(|place| order(&sums[*place].tally) > 0).collect();
        if best.len() > top {
            best.select_nth_unstable_by_key(top, |place| Reverse(order(&sums[*place].tally)));
            best.truncate(top);
        }
        best.iter().for_each(|place| chosen[*place] = true);
    }
    let mut chosen: Vec<Sum> =
        sums.into_iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(sum, _)| sum).collect();
    chosen.sort_by_key(|sum| (Reverse(sum.tally.requests), sum.key));
    let places: Ids<usize> = chosen.iter().enumerate().map(|(place, sum)| (sum.key, place)).collect();
    let mut counts = vec![Box::new([0u64; RANGES]); chosen.len()];
    for (entry, latencies) in tables.iter().flat_map(|table| table.iter()) {
        if let Some(place) = places.get(&entry.key) {
            latencies
                .iter()
                .for_each(|(range, count)| counts[*place][usize::from(*range)] += u64::from(*count));
        }
    }
    let shown: u64 = chosen.iter().map(|sum| sum.tally.requests).sum();
    (chosen.into_iter().zip(counts).collect(), count, rest + total - shown)
}

fn row(sum: &Sum, counts: &[u64; RANGES]) -> ActivityRow {
    let tally = &sum.tally;
    ActivityRow {
        requests: tally.requests,
        failed: tally.failed,
        bytes_read: tally.bytes_read,
        bytes_written: tally.bytes_written,
        time: tally.time,
        p50: quantile(counts, 0.5, tally.longest),
        p99: quantile(counts, 0.99, tally.longest),
        max: tally.longest,
        lost: tally.lost,
        missed: sum.missed,
        ..ActivityRow::default()
    }
}

fn loss(((node, place), count): (&(String, String), &u64)) -> ActivityLoss {
    ActivityLoss { node: node.clone(), place: place.clone(), count: *count }
}
