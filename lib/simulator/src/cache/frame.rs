//! A frame: one block in a cache.

/// No frame, no transfer.
pub(crate) const NONE: u32 = u32::MAX;

/// What a frame is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameList {
    /// The list of its owner.
    Main,
    /// 2Q: the queue of new blocks.
    New,
    /// None: it was the oldest and pinned when a victim was looked for; it comes back as the oldest of the list.
    ParkedMain,
    /// The same for the queue of new blocks.
    ParkedNew,
    /// None: it is empty.
    Free,
}

/// Bits of [`Frame::flags`].
pub(crate) mod flag {
    /// Holds data that the disk does not have, and that is not on its way there.
    pub(crate) const DIRTY: u8 = 1;
    /// Is being read.
    pub(crate) const READING: u8 = 2;
    /// Is being written.
    pub(crate) const WRITING: u8 = 4;
    /// Was read ahead and has not been asked for.
    pub(crate) const AHEAD: u8 = 8;
    /// CLOCK: was used since it was looked at.
    pub(crate) const USED: u8 = 16;
    /// Any of these: it cannot be replaced.
    pub(crate) const PINNED: u8 = DIRTY | READING | WRITING;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(super) newer: u32,
    pub(super) older: u32,
    /// The next one with this hash.
    pub(super) chain: u32,
    /// The next one of the same transfer.
    pub(crate) link: u32,
    pub(crate) block: u64,
    /// Number of its last use, where several lists are compared.
    pub(super) stamp: u64,
    /// When it has to go to disk, if it is dirty.
    pub(crate) due: u64,
    pub(crate) file: u32,
    /// The transfer it is part of.
    pub(crate) transfer: u32,
    /// Which list is its own.
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
