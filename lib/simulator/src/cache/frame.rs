//! A frame: one block in a cache.

/// Index of no frame and no transfer.
pub(crate) const NONE: u32 = u32::MAX;

/// List that a frame is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameList {
    /// The list of its owner.
    Main,
    /// 2Q: queue of new blocks.
    New,
    /// No list: the frame was pinned when it was the oldest and a victim was needed. It returns as
    /// the oldest of the main list.
    ParkedMain,
    /// As `ParkedMain`, for the queue of new blocks.
    ParkedNew,
    /// No list: the frame is empty.
    Free,
}

/// Bits of [`Frame::flags`].
pub(crate) mod flag {
    /// Holds data that the disk does not have and that is not being written.
    pub(crate) const DIRTY: u8 = 1;
    /// Is being read.
    pub(crate) const READING: u8 = 2;
    /// Is being written.
    pub(crate) const WRITING: u8 = 4;
    /// Was read ahead and has not been requested.
    pub(crate) const AHEAD: u8 = 8;
    /// CLOCK: was used since the last inspection.
    pub(crate) const USED: u8 = 16;
    /// Any of these bits prevents replacement.
    pub(crate) const PINNED: u8 = DIRTY | READING | WRITING;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(super) newer: u32,
    pub(super) older: u32,
    /// Next frame with this hash.
    pub(super) chain: u32,
    /// Next frame of the same transfer.
    pub(crate) link: u32,
    pub(crate) block: u64,
    /// Number of the last use, when several lists are compared.
    pub(super) stamp: u64,
    /// Time at which a dirty frame must be written to disk.
    pub(crate) due: u64,
    pub(crate) file: u32,
    /// Transfer that the frame is part of.
    pub(crate) transfer: u32,
    /// Owner of the list that the frame belongs to.
    pub(super) owner: u16,
    pub(super) place: FrameList,
    pub(crate) flags: u8,
}

impl Frame {
    pub(super) const FREE: Frame = Frame {
        newer: NONE,
        older: NONE,
        chain: NONE,
        link: NONE,
        block: 0,
        stamp: 0,
        due: 0,
        file: 0,
        transfer: NONE,
        owner: 0,
        place: FrameList::Free,
        flags: 0,
    };

    #[inline]
    pub(crate) fn is(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}
