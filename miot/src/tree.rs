//! `miot cat --tree`: each request with those made during it, and each region with the requests of
//! its thread within it.

use crate::filter::Matcher;
use arrow_array::RecordBatch;
use miot_trace_events::text::{LineHead, LineTail};
use miot_trace_events::{
    EventColumns, EventRow, Linker, MissingColumn, NodeNumbers, RegionTrees, Request, Tree,
};
use miot_trace_events::{Format, row, within};
use miot_trace_store::{Corrections, Reader, Select};
use std::io::Write;

/// Maximum number of requests that wait for their parent. Beyond it, requests are printed as if
/// they had no parent.
const WAITING: usize = 1 << 20;

/// Formatted request.
struct RequestLine {
    /// Text before the indentation.
    head: String,
    /// Text after the indentation, or the whole request as JSON.
    tail: String,
    matches: bool,
    is_region: bool,
}

/// Prints trees that contain a matching event, as soon as they are complete.
pub(crate) struct Trees<W: Write> {
    out: W,
    is_json: bool,
    nodes: NodeNumbers,
    linker: Linker<RequestLine>,
    regions: RegionTrees<RequestLine>,
    linked: Vec<Tree<RequestLine>>,
    complete: Vec<Tree<RequestLine>>,
    node_times: Option<Corrections>,
    left: u64,
}

impl<W: Write> Trees<W> {
    /// Prints at most `limit` trees. Reads the regions of the trace first.
    ///
    /// # Errors
    /// If the format does not support trees; errors of reading.
    pub(crate) fn new(
        out: W,
        reader: &Reader,
        format: Format,
        node_times: Option<Corrections>,
        limit: u64,
    ) -> anyhow::Result<Trees<W>> {
        anyhow::ensure!(
            format != Format::Csv,
            "--tree: CSV cannot represent trees; use --format json, where `children` holds the requests made during a request"
        );
        let mut regions = RegionTrees::new(WAITING);
        for batch in reader.scan(&Select::columns(within::COLUMNS))? {
            let batch = batch?;
            let columns = EventColumns::of(&batch, within::COLUMNS)?;
            (0..batch.num_rows()).for_each(|row| regions.expect(&columns, row));
        }
        regions.ready();
        Ok(Trees {
            out,
            is_json: format == Format::Json,
            nodes: NodeNumbers::default(),
            linker: Linker::new(WAITING),
            regions,
            linked: Vec::new(),
            complete: Vec::new(),
            node_times,
            left: limit,
        })
    }

    /// Adds events in order. Returns false once `limit` trees are printed.
    pub(crate) fn add(&mut self, batch: &RecordBatch, matcher: &Matcher) -> anyhow::Result<bool> {
        let columns = row::columns(batch)?;
        let nodes = self.nodes.column(batch).ok_or(MissingColumn { name: "node" })?;
        for i in 0..batch.num_rows() {
            let mut row = EventRow::of(&columns, i);
            if let Some(corrections) = &self.node_times {
                row.use_node_time(corrections);
            }
            let line = RequestLine {
                head: if self.is_json { String::new() } else { LineHead(&row).to_string() },
                tail: if self.is_json { serde_json::to_string(&row)? } else { LineTail(&row).to_string() },
                matches: matcher.matches_row(&columns, i),
                is_region: within::is_region(&columns, i),
            };
            let request = Request::of(&columns, nodes.number(i), i);
            if line.is_region {
                self.linked.push(Tree::leaf(request, line));
            } else {
                self.linker.push(request, line, &mut self.linked);
            }
            self.nest();
            if !self.print()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prints the requests that still wait.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let linker = std::mem::replace(&mut self.linker, Linker::new(0));
        linker.finish(&mut self.linked);
        self.nest();
        std::mem::replace(&mut self.regions, RegionTrees::new(0)).finish(&mut self.complete);
        self.print()?;
        Ok(self.out.flush()?)
    }

    /// Puts the trees that are complete into their regions.
    fn nest(&mut self) {
        for tree in self.linked.drain(..) {
            let is_region = tree.value.is_region;
            self.regions.push(tree, is_region, &mut self.complete);
        }
    }

    fn print(&mut self) -> anyhow::Result<bool> {
        for tree in self.complete.drain(..) {
            if self.left == 0 {
                break;
            }
            if !any(&tree) {
                continue;
            }
            self.left -= 1;
            if self.is_json {
                json(&mut self.out, &tree)?;
                writeln!(self.out)?;
            } else {
                text(&mut self.out, &tree, 0)?;
            }
        }
        Ok(self.left > 0)
    }
}

fn any(tree: &Tree<RequestLine>) -> bool {
    tree.value.matches || tree.children.iter().any(any)
}

fn text(out: &mut impl Write, tree: &Tree<RequestLine>, depth: usize) -> std::io::Result<()> {
    writeln!(out, "{}{:indent$}{}", tree.value.head, "", tree.value.tail, indent = 2 * depth)?;
    tree.children.iter().try_for_each(|child| text(out, child, depth + 1))
}

/// Prints the JSON object of the request, with its children as a further member.
fn json(out: &mut impl Write, tree: &Tree<RequestLine>) -> std::io::Result<()> {
    let open = tree.value.tail.strip_suffix('}').unwrap_or(&tree.value.tail);
    write!(out, "{open},\"children\":[")?;
    for (i, child) in tree.children.iter().enumerate() {
        if i > 0 {
            write!(out, ",")?;
        }
        json(out, child)?;
    }
    write!(out, "]}}")
}
