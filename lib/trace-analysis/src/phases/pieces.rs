//! Layout of the bytes of a request through a view: the pieces of a request, numbered by distinct
//! layout.
//!
//! Pieces are relative to the first byte of the request, so that a program that continues in one
//! view and one that sets a new view for each request, as PnetCDF and HDF5 do, have the same
//! result.

use super::nest::{Nest, Sequence};
use crate::view::View;
use miot_trace_store::FileNames;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// Maximum number of pieces into which a request is split: a request through a view of 64 MiB has
/// this many of 64 bytes.
const MOST_PIECES: u64 = 1 << 20;

/// Maximum number of blocks of all distinct views: 400 MiB.
const MOST_BLOCKS: usize = 1 << 24;

/// Size of the cache of view events.
const MOST_KNOWN: usize = 1 << 16;

/// Size of the cache of pieces by position in the view.
const MOST_REMEMBERED: usize = 1 << 14;

/// Reason why the trace does not determine the position of the bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unplaced {
    /// The event of the view was truncated and lacks blocks.
    Cut,
    /// The event of the view has no blocks.
    NoBlocks,
    /// A request has more pieces than the limit, or than a model lists.
    TooMany,
}

impl fmt::Display for Unplaced {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Unplaced::Cut => "the file type of the view has more irregular blocks than an event holds",
            Unplaced::NoBlocks => "the file type of the view was made by a call that MIOT does not decode",
            Unplaced::TooMany => "the view shows more irregular pieces than a model lists",
        })
    }
}

/// Layout of the bytes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum RequestLayout {
    /// Contiguous.
    #[default]
    Contiguous,
    /// The pieces of this number.
    Pieces(u32),
    /// Unknown: the offset is in the bytes that the view shows.
    Unknown(Unplaced),
}

impl RequestLayout {
    /// Returns the kind of layout. Requests of the same kind may belong to the same phase, even if
    /// their pieces differ.
    pub(crate) fn kind(self) -> u8 {
        match self {
            RequestLayout::Contiguous => 0,
            RequestLayout::Pieces(_) => 1,
            RequestLayout::Unknown(_) => 2,
        }
    }
}

/// Pieces of the same length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) bytes: u64,
    /// Begins, relative to the first byte of the request.
    pub(crate) nests: Vec<Nest>,
}

impl Group {
    pub(crate) fn count(&self) -> u64 {
        self.nests.iter().map(Nest::len).fold(0, u64::saturating_add)
    }
}

/// Pieces of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pieces {
    pub(crate) groups: Vec<Group>,
}

impl Pieces {
    pub(crate) fn count(&self) -> u64 {
        self.groups.iter().map(Group::count).fold(0, u64::saturating_add)
    }

    /// Returns begin and length of each piece.
    pub(crate) fn all(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        self.groups.iter().flat_map(|group| {
            let of = |nest| (0..Nest::len(nest)).map(move |at| nest.at(at));
            group.nests.iter().flat_map(of).map(|offset| (offset, group.bytes))
        })
    }

    /// Returns the pieces with one group for each shape of loops: few groups, if parts of arrays
    /// are split in the middle of a plane.
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

    /// Returns true if another request has pieces of the same shapes; both must be results of
    /// [`by_shape`](Self::by_shape).
    pub(crate) fn has_shapes_of(&self, other: &Pieces) -> bool {
        let same = |(a, b): (&Group, &Group)| a.nests[0].loops == b.nests[0].loops;
        self.is_like(other) && self.groups.iter().zip(&other.groups).all(same)
    }

    /// Returns true if the pieces of another request may be of the same operation: equal numbers of
    /// each length.
    pub(crate) fn is_like(&self, other: &Pieces) -> bool {
        self.groups.len() == other.groups.len()
            && self
                .groups
                .iter()
                .zip(&other.groups)
                .all(|(a, b)| a.bytes == b.bytes && a.count() == b.count())
    }
}

/// View of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum VisibleBytes {
    /// The whole file.
    #[default]
    File,
    /// The bytes that the view of this number shows.
    Through(u32),
    Unknown(Unplaced),
}

/// Data of a `set_view` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Set {
    /// File whose path contains the blocks of the file type; `None` if there is none, or if it lost
    /// some.
    pub(crate) map: Option<u64>,
    pub(crate) is_cut: bool,
    /// Bytes that the file type shows, and the distance between its repetitions.
    pub(crate) size: Option<u64>,
    pub(crate) extent: Option<u64>,
}

/// All views and pieces of a trace.
#[derive(Debug, Default)]
pub(crate) struct Views {
    views: Vec<View>,
    view_numbers: HashMap<View, u32>,
    /// Number of blocks of all views.
    blocks: usize,
    known: HashMap<Set, VisibleBytes>,
    remembered: HashMap<(u32, u64, u64), RequestLayout>,
    pieces: Vec<Pieces>,
    numbers: HashMap<Pieces, u32>,
}

impl Views {
    /// Adds a view that was set.
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

    /// Returns the number of a view. Programs that set a view for each request set the same view at
    /// different displacements.
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

    /// Returns the layout of the bytes of a request that begins at a byte of the view.
    pub(crate) fn layout(&mut self, shown: VisibleBytes, position: Option<u64>, bytes: u64) -> RequestLayout {
        let number = match shown {
            VisibleBytes::File => return RequestLayout::Contiguous,
            VisibleBytes::Unknown(why) => return RequestLayout::Unknown(why),
            VisibleBytes::Through(number) => number,
        };
        // The position of a shared pointer is unknown.
        let Some(position) = position else { return RequestLayout::Contiguous };
        let view = &self.views[number as usize];
        let key = (number, position % view.size(), bytes);
        if let Some(layout) = self.remembered.get(&key) {
            return *layout;
        }
        let layout = match split(view, key.1, bytes) {
            Some(pieces) if pieces.count() == 1 => RequestLayout::Contiguous,
            Some(pieces) => {
                let next = self.pieces.len() as u32;
                RequestLayout::Pieces(*self.numbers.entry(pieces).or_insert_with_key(|pieces| {
                    self.pieces.push(pieces.clone());
                    next
                }))
            }
            None => RequestLayout::Unknown(Unplaced::TooMany),
        };
        if self.remembered.len() >= MOST_REMEMBERED {
            self.remembered.clear();
        }
        self.remembered.insert(key, layout);
        layout
    }

    /// Returns the pieces of a layout.
    pub(crate) fn pieces(&self, layout: RequestLayout) -> Option<&Pieces> {
        match layout {
            RequestLayout::Pieces(number) => self.pieces.get(number as usize),
            RequestLayout::Contiguous | RequestLayout::Unknown(_) => None,
        }
    }
}

/// Returns the pieces of a request, by length; `None` if there are too many, or if they exceed the
/// maximum file size.
fn split(view: &View, position: u64, bytes: u64) -> Option<Pieces> {
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
