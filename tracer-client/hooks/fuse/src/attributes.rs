//! Conversion of file attributes between `stat` and FUSE.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{Stat, Timespec, UTIME_NOW, UTIME_OMIT};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the attributes of a file, with `number` as its inode number.
pub(crate) fn attributes(number: u64, stat: &Stat) -> FileAttr {
    let mode = stat.st_mode;
    FileAttr {
        ino: INodeNo(number),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: UNIX_EPOCH,
        kind: file_type(rustix::fs::FileType::from_raw_mode(mode)),
        perm: (mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: encode_device(stat.st_rdev),
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

/// Converts a file type. `Unknown` occurs in directories whose file system does not store types;
/// the kernel then looks the entry up.
pub(crate) fn file_type(file_type: rustix::fs::FileType) -> FileType {
    match file_type {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::Fifo => FileType::NamedPipe,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        rustix::fs::FileType::RegularFile | rustix::fs::FileType::Unknown => FileType::RegularFile,
    }
}

/// Encodes a device number as the FUSE protocol does, in 32 bits: Linux's `new_encode_dev`.
fn encode_device(number: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Decodes a device number of the FUSE protocol.
pub(crate) fn decode_device(wire: u32) -> u64 {
    rustix::fs::makedev((wire & 0xfff00) >> 8, (wire & 0xff) | ((wire >> 12) & 0xfff00))
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(u64::from(nanoseconds))
}

/// Converts a time to set. For a time before 1970, −seconds + nanoseconds, fuser returns
/// 1970 − (seconds + nanoseconds).
pub(crate) fn time_to_set(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                Timespec { tv_sec: -(before.as_secs() as i64), tv_nsec: before.subsec_nanos().into() }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(1, 3), (8, 1), (259, 0), (4095, 255), (10, 0xfffff)] {
            let number = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(number)), number, "{major}:{minor}");
        }
    }

    #[test]
    fn nanoseconds_before_1970_count_forward() {
        assert_eq!(time(-2, 800_000_000), UNIX_EPOCH - Duration::from_millis(1200));
        assert_eq!(time(3, 5), UNIX_EPOCH + Duration::new(3, 5));
    }
}
