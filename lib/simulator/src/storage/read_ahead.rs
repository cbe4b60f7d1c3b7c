//! Read-ahead: the size of the last sequential read (Miller 1990, section 6.2).

use super::transfer::Run;
use super::{Access, Storage};
use crate::cache::{Cache, flag};
use crate::observer::Observer;

impl<O: Observer> Storage<'_, O> {
    /// Reads the range that follows a request, of the same length, up to the end of the file and as
    /// far as blocks can be replaced.
    #[inline]
    pub(super) fn read_ahead(&mut self, home: &mut Cache, access: &Access, now: u64) {
        let request = access.request;
        let size = self.files[request.file as usize];
        let end = request.end().saturating_add(request.length).min(size);
        if end <= request.end() {
            return;
        }
        let owner = self.owner(access.process);
        let mut run = Run::new(request.file, false);
        run.ahead = true;
        for block in request.end() >> self.block_shift..=(end - 1) >> self.block_shift {
            if home.find(request.file, block).is_some() {
                continue;
            }
            let Some(at) = home.insert(request.file, block, owner) else { break };
            self.totals.read_ahead += 1;
            self.put(&mut run, home, at, flag::READING | flag::AHEAD, None, now);
        }
        self.end_run(&mut run, home, None, now);
    }
}
