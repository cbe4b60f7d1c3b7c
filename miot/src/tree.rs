//! `miot cat --tree`: each request with those made within it.

use crate::filter::Matcher;
use crate::output::{Columns, Format, What, Where};
use arrow_array::RecordBatch;
use miot_trace_analysis::{Linker, Nodes, Requests, Tree};
use miot_trace_store::Corrections;
use std::io::Write;

/// Requests that may wait for the one that encloses them. Those of more are printed as if none did.
const WAITING: usize = 1 << 20;

/// A request as it will be printed.
struct Line {
    /// What comes before the indentation.
    head: String,
    /// The rest, or all of it as JSON.
    tail: String,
    matches: bool,
}

/// Prints trees in which an event matches, as they become complete.
pub(crate) struct Trees<W: Write> {
    out: W,
    is_json: bool,
    nodes: Nodes,
    linker: Linker<Line>,
    complete: Vec<Tree<Line>>,
    node_times: Option<Corrections>,
    left: u64,
}

impl<W: Write> Trees<W> {
    /// At most `limit` trees.
    ///
    /// # Errors
    /// For a format that has no trees.
    pub(crate) fn new(
        out: W,
        format: Format,
        node_times: Option<Corrections>,
        limit: u64,
    ) -> anyhow::Result<Trees<W>> {
        anyhow::ensure!(
            format != Format::Csv,
            "--tree: CSV has lines of one kind only; use --format json, where `children` holds the requests made within one"
        );
        Ok(Trees {
            out,
            is_json: format == Format::Json,
            nodes: Nodes::default(),
            linker: Linker::new(WAITING),
            complete: Vec::new(),
            node_times,
            left: limit,
        })
    }

    /// Takes in events, in order. False: as many are printed as were asked for.
    pub(crate) fn add(&mut self, batch: &RecordBatch, matcher: &Matcher) -> anyhow::Result<bool> {
        let columns = Columns::of(batch)?;
        let requests = Requests::of(batch, &mut self.nodes).ok_or_else(|| {
            anyhow::anyhow!(
                "the trace lacks columns that say how requests are linked: is it of another version?"
            )
        })?;
        for i in 0..batch.num_rows() {
            let mut row = columns.row(i);
            if let Some(corrections) = &self.node_times
                && let Some(own) = corrections.node_time(row.node, row.time, row.flags)
            {
                row.time = own;
            }
            let line = Line {
                head: if self.is_json { String::new() } else { Where(&row).to_string() },
                tail: if self.is_json { serde_json::to_string(&row)? } else { What(&row).to_string() },
                matches: columns.matches(matcher, i),
            };
            let request = requests.request(i);
            self.linker.push(request, line, &mut self.complete);
            if !self.print()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prints what still waits.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let linker = std::mem::replace(&mut self.linker, Linker::new(0));
        linker.finish(&mut self.complete);
        self.print()?;
        Ok(self.out.flush()?)
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

fn any(tree: &Tree<Line>) -> bool {
    tree.value.matches || tree.children.iter().any(any)
}

fn text(out: &mut impl Write, tree: &Tree<Line>, depth: usize) -> std::io::Result<()> {
    writeln!(out, "{}{:indent$}{}", tree.value.head, "", tree.value.tail, indent = 2 * depth)?;
    tree.children.iter().try_for_each(|child| text(out, child, depth + 1))
}

/// The object of the request, with one more member.
fn json(out: &mut impl Write, tree: &Tree<Line>) -> std::io::Result<()> {
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
