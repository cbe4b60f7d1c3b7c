//! Contents of a file system, characterized like in fsstats: distributions of the attributes of
//! files, directories and links.
//!
//! After Dayal, *Characterizing HEC Storage Systems at Rest* (CMU-PDL-08-109, 2008), whose tool
//! Carns et al. (2011, section III-B) used. Here:
//!
//! | histogram | of | value |
//! |---|---|---|
//! | `size` | files | `st_size`, bytes |
//! | `capacity` | files | `st_blocks` × 512, bytes |
//! | `positive_overhead` | files with capacity > size | capacity − size |
//! | `negative_overhead` | files with size > capacity (sparse, compressed, inline) | size − capacity |
//! | `atime_age`, `mtime_age`, `ctime_age` | files | whole days since the time |
//! | `links` | files | `st_nlink` |
//! | `directory_entries` | directories that were read completely | names, without `.` and `..` |
//! | `directory_size` | directories | `st_size`, bytes |
//! | `name_length` | names of all entries, without the root of the walk | bytes |
//! | `symlink_target` | symbolic links | length of the target, bytes |
//!
//! A regular file is counted once, independently of its number of names. [`crate::growth`] compares
//! two contents.

use crate::histogram::Histogram;
use serde::{Deserialize, Serialize};

/// Length of a day, seconds.
const DAY: i64 = 24 * 60 * 60;

/// Attributes of a file, from `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Size, bytes.
    pub size: u64,
    /// Blocks of 512 bytes on the disk.
    pub blocks: u64,
    /// Number of names.
    pub links: u64,
    /// Last access, seconds since 1970.
    pub atime: i64,
    /// Last modification, seconds since 1970.
    pub mtime: i64,
    /// Last change of the attributes, seconds since 1970.
    pub ctime: i64,
}

impl Attributes {
    /// Returns the bytes on the disk.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.blocks.saturating_mul(512)
    }
}

/// Numbers of entries that are neither files, directories nor symbolic links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Special {
    /// Block devices.
    pub block_devices: u64,
    /// Character devices.
    pub character_devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sockets.
    pub sockets: u64,
    /// Entries of unknown type.
    pub unknown: u64,
}

/// Contents of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Names of files, directories, symbolic links and special files. A file with two names counts
    /// twice.
    pub names: u64,
    /// Files, each once.
    pub files: u64,
    /// Further names of files that were counted already.
    pub further_links: u64,
    /// Directories, including the root of the walk.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Special files.
    pub special: Special,
    /// Bytes of directories on the disk.
    pub directory_capacity: u64,
    /// Files whose last access, modification or change is in the future. Their age is counted as 0.
    pub future: u64,
    /// Bytes of files.
    pub size: Histogram,
    /// Bytes of files on the disk.
    pub capacity: Histogram,
    /// Bytes on the disk beyond the size.
    pub positive_overhead: Histogram,
    /// Bytes of the size that are not on the disk.
    pub negative_overhead: Histogram,
    /// Days since the last access.
    pub atime_age: Histogram,
    /// Days since the last modification.
    pub mtime_age: Histogram,
    /// Days since the last change of attributes.
    pub ctime_age: Histogram,
    /// Names of a file.
    pub links: Histogram,
    /// Entries of a directory.
    pub directory_entries: Histogram,
    /// Bytes of a directory.
    pub directory_size: Histogram,
    /// Bytes of a name.
    pub name_length: Histogram,
    /// Bytes of the target of a symbolic link.
    pub symlink_target: Histogram,
}

/// Unit of the values of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Days of 24 hours.
    Days,
    /// A count.
    Count,
}

/// Number of histograms.
pub const HISTOGRAMS: usize = 12;

impl Contents {
    /// Adds a name.
    pub fn name(&mut self, length: u64) {
        self.names = self.names.saturating_add(1);
        self.name_length.add(length, 0, 0);
    }

    /// Adds a file that was not added before; ages are counted to `now`, seconds since 1970.
    pub fn file(&mut self, file: &Attributes, now: i64) {
        let (size, capacity) = (file.size, file.capacity());
        self.files += 1;
        self.size.add(size, size, capacity);
        self.capacity.add(capacity, size, capacity);
        if capacity > size {
            self.positive_overhead.add(capacity - size, size, capacity);
        } else if size > capacity {
            self.negative_overhead.add(size - capacity, size, capacity);
        }
        let times = [file.atime, file.mtime, file.ctime];
        let days = times.map(|time| (now.saturating_sub(time).max(0) / DAY) as u64);
        self.atime_age.add(days[0], size, capacity);
        self.mtime_age.add(days[1], size, capacity);
        self.ctime_age.add(days[2], size, capacity);
        self.future += u64::from(times.iter().any(|time| *time > now));
        self.links.add(file.links, size, capacity);
    }

    /// Adds a directory.
    pub fn directory(&mut self, directory: &Attributes) {
        self.directories += 1;
        self.directory_size.add(directory.size, 0, 0);
        self.directory_capacity = self.directory_capacity.saturating_add(directory.capacity());
    }

    /// Adds the number of entries of a directory that was read completely.
    pub fn entries(&mut self, entries: u64) {
        self.directory_entries.add(entries, 0, 0);
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, target: u64) {
        self.symlinks += 1;
        self.symlink_target.add(target, 0, 0);
    }

    /// Adds other contents. No file may be in both.
    pub fn merge(&mut self, other: &Contents) {
        let Special { block_devices, character_devices, fifos, sockets, unknown } = other.special;
        for (to, from) in [
            (&mut self.names, other.names),
            (&mut self.files, other.files),
            (&mut self.further_links, other.further_links),
            (&mut self.directories, other.directories),
            (&mut self.symlinks, other.symlinks),
            (&mut self.special.block_devices, block_devices),
            (&mut self.special.character_devices, character_devices),
            (&mut self.special.fifos, fifos),
            (&mut self.special.sockets, sockets),
            (&mut self.special.unknown, unknown),
            (&mut self.directory_capacity, other.directory_capacity),
            (&mut self.future, other.future),
        ] {
            *to = to.saturating_add(from);
        }
        let others = other.histograms();
        for (to, from) in self.histograms_mut().into_iter().zip(others) {
            to.merge(from.2);
        }
    }

    /// Returns all histograms with their names and units.
    #[must_use]
    pub fn histograms(&self) -> [(&'static str, Unit, &Histogram); HISTOGRAMS] {
        [
            ("size", Unit::Bytes, &self.size),
            ("capacity", Unit::Bytes, &self.capacity),
            ("positive_overhead", Unit::Bytes, &self.positive_overhead),
            ("negative_overhead", Unit::Bytes, &self.negative_overhead),
            ("atime_age", Unit::Days, &self.atime_age),
            ("mtime_age", Unit::Days, &self.mtime_age),
            ("ctime_age", Unit::Days, &self.ctime_age),
            ("links", Unit::Count, &self.links),
            ("directory_entries", Unit::Count, &self.directory_entries),
            ("directory_size", Unit::Bytes, &self.directory_size),
            ("name_length", Unit::Bytes, &self.name_length),
            ("symlink_target", Unit::Bytes, &self.symlink_target),
        ]
    }

    fn histograms_mut(&mut self) -> [&mut Histogram; HISTOGRAMS] {
        [
            &mut self.size,
            &mut self.capacity,
            &mut self.positive_overhead,
            &mut self.negative_overhead,
            &mut self.atime_age,
            &mut self.mtime_age,
            &mut self.ctime_age,
            &mut self.links,
            &mut self.directory_entries,
            &mut self.directory_size,
            &mut self.name_length,
            &mut self.symlink_target,
        ]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Attributes, Contents};
    use crate::histogram::Amount;

    const NOW: i64 = 1_000_000_000;

    fn file(size: u64, blocks: u64) -> Attributes {
        Attributes { size, blocks, links: 1, atime: NOW, mtime: NOW - 86_399, ctime: NOW - 5 * 86_400 }
    }

    #[test]
    fn file_is_in_histograms_of_its_attributes() {
        let mut contents = Contents::default();
        contents.file(&file(100, 8), NOW);
        let bins: Vec<_> = contents.positive_overhead.bins().collect();
        assert_eq!((bins[0].from, bins[0].amount.total), (2048, 3996));
        assert_eq!(contents.negative_overhead.sum(), Amount::default());
        assert_eq!(
            [&contents.atime_age, &contents.mtime_age, &contents.ctime_age].map(|h| h.max()),
            [0, 0, 5]
        );
        assert_eq!(contents.ctime_age.sum(), Amount { count: 1, total: 5, size: 100, capacity: 4096 });
        // A sparse file, and a file whose size is that of its blocks.
        contents.file(&file(1 << 20, 8), NOW);
        contents.file(&file(4096, 8), NOW);
        assert_eq!(contents.negative_overhead.sum().total, (1 << 20) - 4096);
        assert_eq!((contents.positive_overhead.sum().count, contents.negative_overhead.sum().count), (1, 1));
        assert_eq!(contents.capacity.sum().total, 3 * 4096);
    }

    #[test]
    fn extreme_attributes_are_counted() {
        let mut contents = Contents::default();
        let worst = Attributes {
            size: u64::MAX,
            blocks: u64::MAX,
            links: u64::MAX,
            atime: i64::MIN,
            mtime: i64::MAX,
            ctime: NOW + 1,
        };
        contents.file(&worst, NOW);
        contents.file(&worst, i64::MIN);
        contents.file(&Attributes { blocks: 0, ..worst }, i64::MAX);
        assert_eq!((contents.files, contents.future), (3, 2));
        assert_eq!(contents.size.sum().total, u64::MAX);
        assert_eq!(contents.mtime_age.max(), 0);
    }

    #[test]
    fn merging_equals_adding() {
        let one = |contents: &mut Contents| {
            contents.name(4);
            contents.file(&file(100, 8), NOW);
            contents.further_links += 2;
        };
        let two = |contents: &mut Contents| {
            contents.directory(&file(4096, 8));
            contents.entries(3);
            contents.symlink(9);
            contents.special.fifos += 1;
        };
        let (mut first, mut second, mut both) =
            (Contents::default(), Contents::default(), Contents::default());
        one(&mut first);
        two(&mut second);
        one(&mut both);
        two(&mut both);
        first.merge(&second);
        assert_eq!(first, both);
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Contents>(&text).unwrap(), both);
    }
}
