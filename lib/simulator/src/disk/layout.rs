//! Layout of files on the disks: consecutive in one address space, which is striped over the
//! devices.

use crate::config::Disk;

#[derive(Debug)]
pub(crate) struct Layout {
    /// Address of each file.
    files: Vec<u64>,
}

impl Layout {
    pub(crate) fn new(sizes: &[u64], block: u64) -> Layout {
        let mut next = 0u64;
        let files = sizes.iter().map(|size| {
            let at = next;
            next = next.saturating_add(size.div_ceil(block).saturating_mul(block));
            at
        });
        Layout { files: files.collect() }
    }

    #[inline]
    pub(crate) fn address(&self, file: u32, offset: u64) -> u64 {
        self.files[file as usize].saturating_add(offset)
    }
}

/// Part of a transfer on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferPart {
    pub(super) device: u32,
    /// Address on the device.
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// Returns the parts of a range of addresses, one for each device in it. Stripes of one device are
/// consecutive on the device.
pub(super) fn pieces(disk: &Disk, address: u64, bytes: u64) -> impl Iterator<Item = TransferPart> {
    let (stripe, devices) = (disk.stripe, u64::from(disk.devices));
    let end = address.saturating_add(bytes);
    let (first, last) = (address / stripe, end.saturating_sub(1).max(address) / stripe);
    let count = (last - first + 1).min(devices);
    (0..count).map(move |nth| {
        let begin_stripe = first + nth;
        let end_stripe = begin_stripe + (last - begin_stripe) / devices * devices;
        let local = |stripe_number: u64| stripe_number / devices * stripe;
        let at = local(begin_stripe) + if nth == 0 { address % stripe } else { 0 };
        let until = local(end_stripe) + if end_stripe == last { end - last * stripe } else { stripe };
        TransferPart { device: (begin_stripe % devices) as u32, at, bytes: until.saturating_sub(at) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_stripes_of_each_device() {
        let disk = Disk { devices: 3, stripe: 1000, ..Disk::default() };
        let of = |address, bytes| -> Vec<_> {
            pieces(&disk, address, bytes).map(|p| (p.device, p.at, p.bytes)).collect()
        };
        assert_eq!(of(0, 1000), [(0, 0, 1000)]);
        assert_eq!(of(500, 1000), [(0, 500, 500), (1, 0, 500)]);
        assert_eq!(of(2500, 4000), [(2, 500, 1500), (0, 1000, 1500), (1, 1000, 1000)]);
        assert_eq!(of(3000, 0), [(0, 1000, 0)]);
    }
}
