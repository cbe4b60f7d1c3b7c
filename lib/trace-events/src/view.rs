//! File views of MPI-IO: the bytes of the file that a request accesses.
//!
//! A view shows a file through a type that is repeated from a displacement on, `extent` bytes
//! apart. Offsets count elementary types in the bytes that the type covers, one repetition after
//! the other (MPI 3.1, section 13.3).

/// Consecutive bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// Offset from the begin of the file in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Maximum number of blocks of a file type: 24 MiB.
const MOST_BLOCKS: usize = 1 << 20;

/// Returns the blocks of `OFFSET:BYTES`, or `OFFSET:BYTES*COUNT+STRIDE…` with the innermost loop
/// first; `None` for more than `limit` blocks.
fn group_of(text: &str, limit: usize) -> Option<Vec<Range>> {
    let (offset, rest) = text.split_once(':')?;
    let mut parts = rest.split('*');
    let first = Range { offset: offset.parse().ok()?, bytes: parts.next()?.parse().ok()? };
    let mut ranges = vec![first];
    for level in parts {
        let (count, stride) = level.split_once('+')?;
        let (count, stride): (usize, u64) = (count.parse().ok()?, stride.parse().ok()?);
        let inner = ranges.len();
        if count == 0 || inner.checked_mul(count)? > limit {
            return None;
        }
        for turn in 1..count as u64 {
            let distance = stride.checked_mul(turn)?;
            for at in 0..inner {
                let Range { offset, bytes } = ranges[at];
                ranges.push(Range { offset: offset.checked_add(distance)?, bytes });
            }
        }
    }
    let is_valid = |range: &Range| range.offset.checked_add(range.bytes).is_some();
    (ranges.len() <= limit && ranges.iter().all(is_valid)).then_some(ranges)
}

/// A view from a `set_view` event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    displacement: u64,
    etype: u64,
    extent: u64,
    /// Blocks of the file type, each with the number of bytes of the type before it.
    blocks: Vec<(Range, u64)>,
    /// Number of bytes that the file type covers.
    size: u64,
}

impl Default for View {
    /// Returns the view of a file that has just been opened: its bytes.
    fn default() -> View {
        View {
            displacement: 0,
            etype: 1,
            extent: 1,
            blocks: vec![(Range { offset: 0, bytes: 1 }, 0)],
            size: 1,
        }
    }
}

impl View {
    /// Returns the view that a `set_view` event has set, from its offset, length and type extent,
    /// and its second path. `None` if that path has no blocks, or blocks that no file type can
    /// have. An event whose second path was truncated has lost blocks: its view must not be used.
    #[must_use]
    pub fn new(displacement: u64, etype: u64, extent: u64, text: &str) -> Option<View> {
        let (_, map) = text.split_once(' ')?;
        let mut size = 0u64;
        let mut blocks = Vec::new();
        for group in map.split(',') {
            for range in group_of(group, MOST_BLOCKS.checked_sub(blocks.len())?)? {
                blocks.push((range, size));
                size = size.checked_add(range.bytes)?;
            }
        }
        (size > 0).then_some(View { displacement, etype, extent, blocks, size })
    }

    /// Returns true if the view has no gaps: offsets in bytes are positions in the file.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        matches!(self.blocks.as_slice(), [(block, _)] if block.bytes == self.extent)
    }

    /// Returns the same view with its first byte at the begin of the file.
    #[must_use]
    pub fn at_begin(mut self) -> View {
        let first = self.blocks.iter().map(|(block, _)| block.offset).min().unwrap_or(0);
        self.displacement = 0;
        self.blocks.iter_mut().for_each(|(block, _)| block.offset -= first);
        self
    }

    /// Returns the number of blocks of one repetition of the file type.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of bytes that one repetition of the file type shows.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the maximum number of ranges of a request for this many bytes.
    #[must_use]
    pub fn most_ranges(&self, bytes: u64) -> u64 {
        (bytes / self.size).saturating_add(2).saturating_mul(self.blocks.len() as u64)
    }

    /// Returns the bytes of the file that a request for `bytes` bytes at `etypes` elementary types
    /// accesses, in the order of the program's buffer, with neighbors joined. `None` if they do not
    /// fit 64 bits.
    #[must_use]
    pub fn ranges(&self, etypes: u64, bytes: u64) -> Option<Vec<Range>> {
        let mut ranges: Vec<Range> = Vec::new();
        let mut position = etypes.checked_mul(self.etype)?;
        let mut left = bytes;
        while left > 0 {
            let (repetition, within) = (position / self.size, position % self.size);
            let at = self.blocks.partition_point(|(_, before)| *before <= within).checked_sub(1)?;
            let (block, before) = self.blocks[at];
            let into = within - before;
            // Repetitions of a type that is one block without a gap are one block.
            let available = if self.is_contiguous() { u64::MAX } else { block.bytes - into };
            let taken = left.min(available);
            let start = self.displacement.checked_add(repetition.checked_mul(self.extent)?)?;
            let offset = start.checked_add(block.offset)?.checked_add(into)?;
            offset.checked_add(taken)?;
            match ranges.last_mut() {
                Some(last) if last.offset + last.bytes == offset => last.bytes += taken,
                _ => ranges.push(Range { offset, bytes: taken }),
            }
            position = position.checked_add(taken)?;
            left -= taken;
        }
        Some(ranges)
    }
}
