//! File views of MPI-IO: which bytes of the file a request touches.
//!
//! A view shows a file through a type that is repeated from a displacement on, `extent` bytes apart. Offsets count
//! elementary types through the bytes that the type covers, one repetition after the other (MPI 3.1, section 13.3).

/// Consecutive bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// From the begin of the file, bytes.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// A view as an event of `set_view` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    displacement: u64,
    etype: u64,
    extent: u64,
    /// Blocks of the file type, and how many bytes of it come before each.
    blocks: Vec<(Range, u64)>,
    /// Bytes that the file type covers.
    size: u64,
}

impl Default for View {
    /// That of a file that has just been opened: its bytes.
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
    /// The view that an event of `set_view` has set: its offset, length and type extent, and its second path. `None` if
    /// that has no blocks, or some that no file type can have. An event whose second path was cut has lost blocks:
    /// its view must not be used.
    #[must_use]
    pub fn new(displacement: u64, etype: u64, extent: u64, text: &str) -> Option<View> {
        let (_, map) = text.split_once(' ')?;
        let mut size = 0u64;
        let mut blocks = Vec::new();
        for block in map.split(',') {
            let (offset, bytes) = block.split_once(':')?;
            let range = Range { offset: offset.parse().ok()?, bytes: bytes.parse().ok()? };
            range.offset.checked_add(range.bytes)?;
            blocks.push((range, size));
            size = size.checked_add(range.bytes)?;
        }
        (size > 0).then_some(View { displacement, etype, extent, blocks, size })
    }

    /// Each byte of the file follows the one before: offsets in bytes say where requests are.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        matches!(self.blocks.as_slice(), [(block, _)] if block.bytes == self.extent)
    }

    /// No request for so many bytes has more pieces.
    #[must_use]
    pub fn most_pieces(&self, bytes: u64) -> u64 {
        // One that is begun and one that is not ended.
        (bytes / self.size).saturating_add(2).saturating_mul(self.blocks.len() as u64)
    }

    /// The bytes of the file that a request for `bytes` bytes at `etypes` elementary types touches, in the order of the
    /// program's buffer, neighbours joined. `None` where they do not fit 64 bits.
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
            let room = if self.is_contiguous() { u64::MAX } else { block.bytes - into };
            let taken = left.min(room);
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
