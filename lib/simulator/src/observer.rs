//! Observers of the steps of a simulation.

/// A step of the simulation. Processes and processors are numbers from 0; counts of blocks are
/// cache blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field names are self-explanatory")]
pub enum Step {
    /// A process gets a processor. `switch` is the switching time in nanoseconds.
    Dispatch { processor: u32, process: u32, switch: u64 },
    /// The process computes.
    Compute { process: u32, time: u64 },
    /// Another process is ready: the process computes only to the end of its quantum, `left`
    /// nanoseconds from now.
    Turn { process: u32, left: u64 },
    /// The quantum of the process is over and others are ready.
    Preempt { process: u32 },
    /// The process makes a request. `overhead` is the number of nanoseconds until the cache is
    /// accessed.
    Call { process: u32, request: u64, overhead: u64 },
    /// Blocks that the cache had of a read, or accepted of a write.
    Cache { process: u32, hits: u64, late: u64, misses: u64, written: u64 },
    /// A transfer begins.
    Transfer { transfer: u32, file: u32, offset: u64, bytes: u64, write: bool, ahead: bool },
    /// A transfer is done.
    Done { transfer: u32, write: bool },
    /// A processor serves the interrupt.
    Interrupt { processor: u32, time: u64 },
    /// The process waits for transfers.
    Block { process: u32, transfers: u32 },
    /// The process waits because no block of the cache can be replaced.
    NoRoom { process: u32 },
    /// The process is ready to run.
    Ready { process: u32 },
    /// The process has ended.
    End { process: u32 },
}

/// Receives each step, in order of time.
pub trait Observer {
    /// Handles a step at `time`, in nanoseconds since the begin of the simulation.
    fn see(&mut self, time: u64, step: Step);
}

/// Ignores all steps.
impl Observer for () {
    #[inline(always)]
    fn see(&mut self, _: u64, _: Step) {}
}

impl<F: FnMut(u64, Step)> Observer for F {
    fn see(&mut self, time: u64, step: Step) {
        self(time, step);
    }
}
