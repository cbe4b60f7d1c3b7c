//! Where the bytes of a request through a view lie in the file: the pieces of a request, numbered by what is different.
//!
//! Pieces count from the first byte of the request, so that it does not matter whether a program goes on in one view or
//! sets another for each request, as PnetCDF and HDF5 do.

use super::nest::{Nest, Sequence};
use crate::view::View;
use miot_trace_store::FileNames;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// Pieces of a request that are taken apart: one through a view of 64 MiB has as many of 64 bytes.
const MOST_PIECES: u64 = 1 << 20;

/// Blocks of all different views that are kept: 400 MiB of them.
const MOST_BLOCKS: usize = 1 << 24;

/// Events of views that are remembered: a cache.
const MOST_KNOWN: usize = 1 << 16;

/// Requests whose pieces are remembered by their place in the view.
const MOST_REMEMBERED: usize = 1 << 14;

/// Why the trace does not say where the bytes of a request lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unplaced {
    /// The event of the view has lost blocks.
    Cut,
    /// The event of the view has no blocks.
    NoBlocks,
    /// A request has more pieces than are taken apart, or than a model lists.
    TooMany,
}

impl fmt::Display for Unplaced {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Unplaced::Cut => "the file type of the view has more irregular blocks than an event holds",
            Unplaced::NoBlocks => {
                "the file type of the view was made by a call that MIOT does not take apart"
            }
            Unplaced::TooMany => "the view shows more irregular pieces than a model lists",
        })
    }
}

/// How the bytes of a request lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lie {
    /// In a row.
    #[default]
    Together,
    /// As the pieces of this number.
    Pieces(u32),
    /// Not known: its offset counts the bytes that the view shows.
    Unknown(Unplaced),
}

impl Lie {
    /// Requests that lie in the same way may be of the same phase; which pieces they have is another question.
    pub(crate) fn kind(self) -> u8 {
        match self {
            Lie::Together => 0,
            Lie::Pieces(_) => 1,
            Lie::Unknown(_) => 2,
        }
    }
}

/// Pieces of the same length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) bytes: u64,
    /// Where they begin, counted from the first byte of the request.
    pub(crate) nests: Vec<Nest>,
}

impl Group {
    pub(crate) fn count(&self) -> u64 {
        self.nests.iter().map(Nest::len).fold(0, u64::saturating_add)
    }
}

/// The pieces of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pieces {
    pub(crate) groups: Vec<Group>,
}

impl Pieces {
    pub(crate) fn count(&self) -> u64 {
        self.groups.iter().map(Group::count).fold(0, u64::saturating_add)
    }

    /// Begin and length of each.
    pub(crate) fn all(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        self.groups.iter().flat_map(|group| {
            let of = |nest| (0..Nest::len(nest)).map(move |at| nest.at(at));
            group.nests.iter().flat_map(of).map(|offset| (offset, group.bytes))
        })
    }

    /// The same with a group for each shape of loops: few, where parts of arrays are cut in the middle of a plane.
    pub(crate) fn by_shape(&self) -> Pieces {
        let mut groups: Vec<Group> = Vec::new();
        for group in &self.groups {
            for nest in &group.nests {
                let is_same = |it: &&mut Group| it.bytes == group.bytes && it.nests[0].loops == nest.loops;
                match groups.iter_mut().find(is_same) {
                    Some(same) => same.nests.push(nest.clone()),
                    None => groups.push(Group { bytes: group.bytes, nests: vec![nest.clone()] }),
                }
            }
        }
        Pieces { groups }
    }

    /// True if another request has pieces of the same shapes, made by [`by_shape`](Self::by_shape) as these.
    pub(crate) fn has_shapes_of(&self, other: &Pieces) -> bool {
        let same = |(a, b): (&Group, &Group)| a.nests[0].loops == b.nests[0].loops;
        self.is_like(other) && self.groups.iter().zip(&other.groups).all(same)
    }

    /// True if those of another request may be of the same operation: as many of each length.
    pub(crate) fn is_like(&self, other: &Pieces) -> bool {
        self.groups.len() == other.groups.len()
            && self
                .groups
                .iter()
                .zip(&other.groups)
                .all(|(a, b)| a.bytes == b.bytes && a.count() == b.count())
    }
}

/// The view of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum VisibleBytes {
    /// All of the file.
    #[default]
    File,
    /// What the view of this number shows.
    Through(u32),
    Unknown(Unplaced),
}

/// What an event of `set_view` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Set {
    /// File whose path has the blocks of the file type; `None`: there is none, or it has lost some.
    pub(crate) map: Option<u64>,
    pub(crate) is_cut: bool,
    /// Bytes that the file type shows, and from one repetition of it to the next.
    pub(crate) size: Option<u64>,
    pub(crate) extent: Option<u64>,
}

/// All views and pieces of a trace.
#[derive(Debug, Default)]
pub(crate) struct Views {
    views: Vec<View>,
    view_numbers: HashMap<View, u32>,
    /// Of all of them.
    blocks: usize,
    known: HashMap<Set, VisibleBytes>,
    remembered: HashMap<(u32, u64, u64), Lie>,
    pieces: Vec<Pieces>,
    numbers: HashMap<Pieces, u32>,
}

impl Views {
    /// A view that was set.
    pub(crate) fn set(&mut self, set: Set, files: &FileNames) -> VisibleBytes {
        if let Some(shown) = self.known.get(&set) {
            return *shown;
        }
        let text = set.map.and_then(|map| files.get(map)).filter(|_| !set.is_cut);
        let view = text.zip(set.extent).and_then(|(text, extent)| View::new(0, 1, extent, text));
        let shown = match view {
            Some(view) => self.number(view.at_begin()),
            // A file type without gaps.
            None if set.size.is_some() && set.size == set.extent => VisibleBytes::File,
            None if set.is_cut => VisibleBytes::Unknown(Unplaced::Cut),
            None => VisibleBytes::Unknown(Unplaced::NoBlocks),
        };
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(set, shown);
        shown
    }

    /// Programs that set a view for each request set the same one at another place.
    fn number(&mut self, view: View) -> VisibleBytes {
        if let Some(number) = self.view_numbers.get(&view) {
            return VisibleBytes::Through(*number);
        }
        if self.blocks + view.blocks() > MOST_BLOCKS {
            return VisibleBytes::Unknown(Unplaced::TooMany);
        }
        self.blocks += view.blocks();
        let number = self.views.len() as u32;
        self.views.push(view.clone());
        self.view_numbers.insert(view, number);
        VisibleBytes::Through(number)
    }

    /// How the bytes of a request lie that begins at a byte of what is shown.
    pub(crate) fn lie(&mut self, shown: VisibleBytes, position: Option<u64>, bytes: u64) -> Lie {
        let number = match shown {
            VisibleBytes::File => return Lie::Together,
            VisibleBytes::Unknown(why) => return Lie::Unknown(why),
            VisibleBytes::Through(number) => number,
        };
        // Of a shared pointer nobody knows where it is.
        let Some(position) = position else { return Lie::Together };
        let view = &self.views[number as usize];
        let key = (number, position % view.size(), bytes);
        if let Some(lie) = self.remembered.get(&key) {
            return *lie;
        }
        let lie = match taken_apart(view, key.1, bytes) {
            Some(pieces) if pieces.count() == 1 => Lie::Together,
            Some(pieces) => {
                let next = self.pieces.len() as u32;
                Lie::Pieces(*self.numbers.entry(pieces).or_insert_with_key(|pieces| {
                    self.pieces.push(pieces.clone());
                    next
                }))
            }
            None => Lie::Unknown(Unplaced::TooMany),
        };
        if self.remembered.len() >= MOST_REMEMBERED {
            self.remembered.clear();
        }
        self.remembered.insert(key, lie);
        lie
    }

    /// The pieces of a request that lies so.
    pub(crate) fn pieces(&self, lie: Lie) -> Option<&Pieces> {
        match lie {
            Lie::Pieces(number) => self.pieces.get(number as usize),
            Lie::Together | Lie::Unknown(_) => None,
        }
    }
}

/// The pieces of a request, by length; `None`: too many, or beyond what a file can have.
fn taken_apart(view: &View, position: u64, bytes: u64) -> Option<Pieces> {
    if view.most_ranges(bytes) > 2 * MOST_PIECES {
        return None;
    }
    let ranges = view.ranges(position, bytes)?;
    let first = i64::try_from(ranges.first()?.offset).ok()?;
    let mut groups: Vec<(u64, Sequence<()>)> = Vec::new();
    let mut places: HashMap<u64, usize> = HashMap::new();
    for range in &ranges {
        let offset = i64::try_from(range.offset).ok()?.checked_sub(first)?;
        let at = *places.entry(range.bytes).or_insert_with(|| {
            groups.push((range.bytes, Sequence::default()));
            groups.len() - 1
        });
        groups[at].1.push(offset, ());
    }
    let groups = groups.into_iter().map(|(bytes, sequence)| {
        let nests = || sequence.terms.iter().map(|term| term.nest.clone()).collect();
        (!sequence.is_irregular).then(|| Group { bytes, nests: nests() })
    });
    Some(Pieces { groups: groups.collect::<Option<_>>()? })
}
