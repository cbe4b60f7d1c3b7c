//! Byte ranges of requests in their files; for MPI-IO, through the view at the time of the request.

use crate::view::{Range, View};
use miot_proto::event::flag;
use miot_proto::op::Layer;
use miot_trace_events::Event;
use miot_trace_store::FileNames;
use std::collections::HashMap;

/// Maximum number of distinguished pieces of one request. A request with more is
/// [`Place::Unknown`].
pub const PIECES: u64 = 1 << 16;

/// Bytes of the file that a request moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The bytes from its offset on, if it has one.
    Whole,
    /// These ranges, in the order of the program's buffer, with neighbors joined. At least one.
    Pieces(Vec<Range>),
    /// Unknown: the trace does not have all blocks of the view, or there are too many of them.
    Unknown,
}

impl Place {
    /// Returns the pieces of a request that moved `moved` bytes; none if their position is unknown.
    pub fn pieces(&self, offset: Option<i64>, moved: u64) -> impl Iterator<Item = Range> {
        let whole = match self {
            Place::Whole => offset.and_then(|offset| u64::try_from(offset).ok()),
            _ => None,
        };
        let several = match self {
            Place::Pieces(pieces) => pieces.as_slice(),
            _ => &[],
        };
        let whole = whole.map(|offset| Range { offset, bytes: moved });
        whole.into_iter().chain(several.iter().copied())
    }
}

/// View of an open file.
#[derive(Clone, Debug)]
enum FileView {
    /// Offsets are positions in the file.
    Contiguous,
    Known(View),
    Unknown,
}

/// Views of open files.
#[derive(Debug, Default)]
pub struct Places {
    /// Views by process and handle.
    views: HashMap<(u64, u64), FileView>,
}

impl Places {
    /// Adds an event, which must be in order, and returns its place. `paths` contains the texts of
    /// views as well.
    pub fn of(&mut self, event: &Event, paths: &FileNames) -> Place {
        let (Some(Layer::MpiIo), Some(info)) = (event.layer, event.info) else { return Place::Whole };
        let Some(handle) = event.handle else { return Place::Whole };
        let file = (event.process, handle);
        if info.class.is_data() {
            return match self.views.get(&file) {
                Some(FileView::Contiguous) => Place::Whole,
                Some(FileView::Known(view)) => through(view, event),
                Some(FileView::Unknown) => Place::Unknown,
                // The open was not recorded. An imported trace has offsets only.
                None if event.etypes.is_none() => Place::Whole,
                None => Place::Unknown,
            };
        }
        match info.name {
            "open" if !event.failed() => drop(self.views.insert(file, FileView::Contiguous)),
            "set_view" if !event.failed() => drop(self.views.insert(file, set(event, paths))),
            "close" => drop(self.views.remove(&file)),
            _ => {}
        }
        Place::Whole
    }
}

/// Returns the view that a `set_view` event has set.
fn set(event: &Event, paths: &FileNames) -> FileView {
    let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
    let view = || {
        let text = event.file2.and_then(|text| paths.get(text))?;
        // Other data representations have different sizes in the file.
        if event.flags & flag::PATH_CUT != 0 || !text.starts_with("native ") {
            return None;
        }
        View::new(number(event.offset)?, number(event.length)?, number(event.type_extent)?, text)
    };
    match view() {
        Some(view) if view.is_contiguous() => FileView::Contiguous,
        Some(view) => FileView::Known(view),
        None => FileView::Unknown,
    }
}

fn through(view: &View, event: &Event) -> Place {
    let moved = event.moved();
    if moved == 0 {
        return Place::Whole;
    }
    let etypes = event.etypes.and_then(|etypes| u64::try_from(etypes).ok());
    let pieces = etypes.filter(|_| view.most_ranges(moved) <= PIECES).and_then(|at| view.ranges(at, moved));
    pieces.map_or(Place::Unknown, Place::Pieces)
}

#[cfg(test)]
mod tests {
    use super::{Place, Places};
    use crate::view::Range;
    use miot_proto::event::flag;
    use miot_proto::op::{Layer, by_name};
    use miot_trace_events::Event;
    use miot_trace_events::testing::event;
    use miot_trace_store::FileNames;

    fn mpi(op: &str, result: i64) -> Event {
        let info = by_name("mpi-io", op);
        Event { layer: Some(Layer::MpiIo), info, handle: Some(7), ..event("write", 0, 1, result) }
    }

    fn write(etypes: i64, bytes: i64) -> Event {
        Event { etypes: Some(etypes), offset: Some(5), length: Some(bytes), ..mpi("write_at_all", bytes) }
    }

    fn view(text: u64) -> Event {
        let of = mpi("set_view", 0);
        Event { offset: Some(10), length: Some(2), type_extent: Some(100), file2: Some(text), ..of }
    }

    #[test]
    fn requests_are_placed_by_their_view() {
        let texts = ["", "native 0:4,20:4", "native 0:100", "native 0:4,20:4", "external32 0:4,20:4"];
        let mut paths = FileNames::default();
        texts.iter().enumerate().skip(1).for_each(|(id, text)| paths.put(id as u64, text));
        let mut places = Places::default();
        assert_eq!(places.of(&write(0, 4), &paths), Place::Unknown, "no open recorded");
        let imported = Event { etypes: None, ..write(0, 4) };
        assert_eq!(places.of(&imported, &paths), Place::Whole);
        assert_eq!(places.of(&mpi("open", 0), &paths), Place::Whole);
        assert_eq!(places.of(&write(0, 4), &paths), Place::Whole);
        let _ = places.of(&view(1), &paths);
        let range = |offset, bytes| Range { offset, bytes };
        assert_eq!(
            places.of(&write(1, 12), &paths),
            Place::Pieces(vec![range(12, 2), range(30, 4), range(110, 4), range(130, 2)])
        );
        assert_eq!(places.of(&write(0, 1 << 20), &paths), Place::Unknown, "too many pieces");
        let shared = Event { etypes: None, offset: None, ..write(0, 4) };
        assert_eq!(places.of(&shared, &paths), Place::Unknown, "at the shared pointer");
        let elsewhere = Event { process: 2, ..write(0, 4) };
        assert_eq!(places.of(&elsewhere, &paths), Place::Unknown);
        let _ = places.of(&Event { result: -22, ..view(2) }, &paths);
        assert!(
            matches!(places.of(&write(0, 4), &paths), Place::Pieces(_)),
            "a failed set_view has no effect"
        );
        let _ = places.of(&view(2), &paths);
        assert_eq!(places.of(&write(0, 4), &paths), Place::Whole);
        for unknown in
            [Event { flags: flag::PATH_CUT, ..view(3) }, view(4), view(9), Event { offset: None, ..view(1) }]
        {
            let _ = places.of(&unknown, &paths);
            assert_eq!(places.of(&write(0, 4), &paths), Place::Unknown, "{unknown:?}");
        }
    }
}
