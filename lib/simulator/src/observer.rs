//! Observers of the steps of a simulation.

/// Something that happens. Processes and processors are numbers from 0; blocks are of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum Step {
    /// A process gets a processor; `switch`: nanoseconds of changing to it.
    Dispatch { processor: u32, process: u32, switch: u64 },
    /// It computes.
    Compute { process: u32, time: u64 },
    /// Somebody else is ready: it computes only to the end of its quantum, so many nanoseconds from now.
    Turn { process: u32, left: u64 },
    /// Its time is up and others are ready.
    Preempt { process: u32 },
    /// It makes a request; `overhead`: nanoseconds until the cache is asked.
    Call { process: u32, request: u64, overhead: u64 },
    /// What the cache had of a read, or took of a write.
    Cache { process: u32, hits: u64, late: u64, misses: u64, written: u64 },
    /// A transfer begins.
    Transfer { transfer: u32, file: u32, offset: u64, bytes: u64, write: bool, ahead: bool },
    /// A transfer is done.
    Done { transfer: u32, write: bool },
    /// A processor serves the interrupt.
    Interrupt { processor: u32, time: u64 },
    /// It waits for transfers.
    Block { process: u32, transfers: u32 },
    /// It waits because no block of the cache can be replaced.
    NoRoom { process: u32 },
    /// It is ready to run.
    Ready { process: u32 },
    /// It has ended.
    End { process: u32 },
}

/// Sees each step, in order of time.
pub trait Observer {
    /// `time`: nanoseconds since the begin of the simulation.
    fn see(&mut self, time: u64, step: Step);
}

/// Looks away.
impl Observer for () {
    #[inline(always)]
    fn see(&mut self, _: u64, _: Step) {}
}

impl<F: FnMut(u64, Step)> Observer for F {
    fn see(&mut self, time: u64, step: Step) {
        self(time, step);
    }
}
