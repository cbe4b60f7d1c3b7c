//! Limits of the lists in messages. A list is counted before memory is reserved for it: in memory,
//! some elements take sixteen times their size on the wire.

use crate::wire::{MAX_DEVICES, MAX_MEMBERS, MAX_RANGES};

/// Tags of the messages that contain such a list.
const GIVEN_UP: u8 = 16;
const DEVICES: u8 = 23;
const MEMBERS: u8 = 27;

/// A list in a message is longer than its limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListTooLong {
    /// Name of the elements.
    elements: &'static str,
    found: u64,
    limit: usize,
}

impl std::fmt::Display for ListTooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ListTooLong { elements, found, limit } = self;
        write!(f, "{found} {elements}, at most {limit} are allowed")
    }
}

/// Checks the lengths of the lists in a payload.
///
/// # Errors
/// [`ListTooLong`] for a list that exceeds its limit. A payload that cannot be decoded is not an
/// error here: decoding it reports that.
pub(crate) fn check(payload: &[u8]) -> Result<(), ListTooLong> {
    let Some((tag, fields)) = payload.split_first() else { return Ok(()) };
    // The fields before the list, and the length of the list.
    let (elements, limit, found) = match *tag {
        GIVEN_UP => {
            let fields = postcard::take_from_bytes::<(u64, u32, u64, u64)>(fields);
            ("ranges of records that were given up", MAX_RANGES, fields.map(|((.., found), _)| found))
        }
        DEVICES => {
            let fields = postcard::take_from_bytes::<(u64, u128, u64, i64, u64, u64)>(fields);
            ("devices in a sample", MAX_DEVICES, fields.map(|((.., found), _)| found))
        }
        MEMBERS => {
            let found = postcard::take_from_bytes::<u64>(fields);
            ("log-servers of a set", MAX_MEMBERS, found.map(|(found, _)| found))
        }
        _ => return Ok(()),
    };
    match found {
        Ok(found) if found > limit as u64 => Err(ListTooLong { elements, found, limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::wire::{Device, DeviceCounters, DeviceKind, DeviceSample};
    use crate::wire::{FRAME_HEADER, FrameError, MAX_DEVICES, MAX_RANGES, Message, frame_header};

    fn read(message: &Message) -> Result<Message, FrameError> {
        let frame = message.frame();
        let (header, payload) = frame.split_first_chunk::<FRAME_HEADER>().unwrap();
        Message::from_payload(payload, frame_header(*header, payload.len()).unwrap().1)
    }

    #[test]
    fn list_over_its_limit_is_reported_with_limit_and_length() {
        let given_up = |count| Message::GivenUp {
            seq: 300,
            stream: 300,
            after: 300,
            ranges: vec![(1, 2); count],
            time: 1,
        };
        let device = Device {
            kind: DeviceKind::Nfs,
            name: vec![1],
            mount: vec![],
            counters: DeviceCounters::default(),
        };
        let devices = |count| {
            let devices = vec![device.clone(); count];
            let sample = DeviceSample { boot: u128::MAX, uptime: 300, time: -300, interval: 300, devices };
            Message::Devices { seq: 300, sample }
        };
        for message in [given_up(MAX_RANGES), devices(MAX_DEVICES)] {
            assert!(read(&message).unwrap() == message);
        }
        for (message, found, most, list) in [
            (given_up(MAX_RANGES + 1), MAX_RANGES + 1, MAX_RANGES, "ranges"),
            (devices(MAX_DEVICES + 7), MAX_DEVICES + 7, MAX_DEVICES, "devices"),
        ] {
            let error = read(&message).unwrap_err().to_string();
            assert!(error.contains(&format!("{found} {list}")), "{error}");
            assert!(error.contains(&format!("at most {most} ")), "{error}");
        }
    }
}
