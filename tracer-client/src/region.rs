//! Regions: named parts of a program's run, such as an epoch or a checkpoint, recorded as requests
//! of the layer `app`.
//!
//! A region is an asynchronous request, not a parent of requests: regions of coroutines overlap
//! without being nested, a region may end in another thread, and requests within a region stay
//! outermost requests. Analyses link the two by process, thread and time.

use crate::thread::{self, AsyncRequest, Completion};
use miot_proto::event::{Ext, NONE};

/// A region between its begin and its end. Dropping it ends it with the result 0.
#[derive(Debug)]
pub struct Region<'a> {
    /// `None`: the region is not recorded, or has ended.
    request: Option<AsyncRequest>,
    label: Label<'a>,
}

/// Name and attributes of a region.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    /// Name, e.g. `epoch`. The trace stores each name once.
    pub name: &'a [u8],
    /// Attributes `key=value`, separated by commas; empty if none. With a number, the text before
    /// the number: `epoch=3,step=`. The trace stores each text once, so that a value that is
    /// different each time should be the number.
    pub attributes: &'a [u8],
    /// Number that follows `attributes`, below 2⁶³; [`NONE`] if none.
    pub number: u64,
}

impl<'a> Region<'a> {
    /// Begins a region, which is shown as in flight until it ends.
    #[inline]
    #[must_use]
    pub fn begin(label: Label<'a>) -> Region<'a> {
        Region { request: thread::begin_region(label.name, label.number), label }
    }

    /// Begins a region without attributes.
    #[must_use]
    pub fn named(name: &'a str) -> Region<'a> {
        Region::begin(Label { name: name.as_bytes(), attributes: &[], number: NONE })
    }

    /// Ends the region, in any thread, with a result: 0, or −errno of the error that ended it.
    /// Returns false if it is not recorded, or was dropped and counted.
    pub fn end(mut self, result: i64) -> bool {
        self.finish(result)
    }

    /// Cancels the region, which is not recorded.
    pub fn cancel(mut self) {
        if let Some(mut request) = self.request.take() {
            request.hide();
        }
    }

    pub(crate) fn from_parts(request: Option<AsyncRequest>, label: Label<'a>) -> Region<'a> {
        Region { request, label }
    }

    pub(crate) fn into_request(mut self) -> Option<AsyncRequest> {
        self.request.take()
    }

    fn finish(&mut self, result: i64) -> bool {
        let Some(request) = self.request.take() else { return false };
        let Label { name: path1, attributes: path2, number } = self.label;
        let done = Completion { length: number, ..Completion::of(result) };
        thread::complete(request, done, &Ext { path1, path2, ..Ext::default() })
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        self.finish(0);
    }
}
