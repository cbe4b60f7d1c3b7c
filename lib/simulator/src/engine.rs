//! The event loop: processes the next completion, on a processor or a device, until all processes
//! have ended.

use super::cache::NONE;
use super::config::{Config, ConfigError};
use super::events::Event;
use super::observer::{Observer, Step};
use super::result::Outcome;
use super::scheduler::{Cpu, CpuActivity, Phase, Task};
use super::storage::{Progress, Storage};
use super::workload::{Request, Workload};
use std::collections::VecDeque;

/// Simulates a workload on a machine.
///
/// # Errors
/// The configuration is invalid, or there are more processes than the simulator can number.
pub fn simulate(config: &Config, workload: &Workload) -> Result<Outcome, ConfigError> {
    simulate_observed(config, workload, ())
}

/// Simulates a workload on a machine, and shows each step to an observer.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_observed<O: Observer>(
    config: &Config,
    workload: &Workload,
    observer: O,
) -> Result<Outcome, ConfigError> {
    config.check()?;
    if config.cache.limit > 0 && workload.programs.len() > usize::from(u16::MAX) {
        return Err(ConfigError(format!(
            "cache.limit with {} processes: expected at most {} processes",
            workload.programs.len(),
            u16::MAX
        )));
    }
    let mut engine = Engine {
        config,
        storage: Storage::new(config, &workload.files, workload.programs.len(), observer),
        cpus: vec![Cpu::new(); config.processors as usize],
        tasks: workload.programs.iter().map(Task::new).collect(),
        ready: VecDeque::new(),
        space_waiters: VecDeque::new(),
        waiters: Vec::new(),
        running: workload.programs.len(),
        elapsed: 0,
        now: 0,
    };
    for (nth, program) in workload.programs.iter().enumerate() {
        engine.storage.events.push(program.start, Event::Wake(nth as u32));
    }
    engine.run();
    if engine.running > 0 {
        return Err(ConfigError("the programs take more than 500 years of simulated time".into()));
    }
    Ok(engine.finish())
}

struct Engine<'a, O> {
    config: &'a Config,
    storage: Storage<'a, O>,
    cpus: Vec<Cpu>,
    tasks: Vec<Task<'a>>,
    /// Ready processes, in the order in which they get a processor.
    ready: VecDeque<u32>,
    /// Processes that wait for a block that can be replaced.
    space_waiters: VecDeque<u32>,
    waiters: Vec<(u32, bool)>,
    /// Number of processes that have not ended.
    running: usize,
    elapsed: u64,
    now: u64,
}

impl<O: Observer> Engine<'_, O> {
    /// Runs until all is done, or until the time does not fit in 64 bits.
    fn run(&mut self) {
        loop {
            let event = self.storage.events.next().unwrap_or(u64::MAX);
            let (cpu, until) = match self.cpus.as_slice() {
                [only] => (0, only.until),
                all => {
                    let earliest = all.iter().enumerate().min_by_key(|(_, cpu)| cpu.until);
                    earliest.map_or((0, u64::MAX), |(nth, cpu)| (nth, cpu.until))
                }
            };
            // Completions elsewhere are processed before a processor's step at the same time.
            if event <= until {
                let Some((time, event)) = self.storage.events.pop() else { return };
                self.now = time;
                if time == u64::MAX {
                    return;
                }
                match event {
                    Event::Part(part) => self.part_done(part),
                    Event::Wake(process) => self.make_ready(process),
                    Event::Flush => self.storage.flush(time),
                }
            } else {
                self.now = until;
                self.step(cpu);
            }
        }
    }

    /// Ends the current activity of a processor.
    #[inline]
    fn step(&mut self, cpu: usize) {
        let at = &mut self.cpus[cpu];
        match std::mem::replace(&mut at.doing, CpuActivity::Nothing) {
            CpuActivity::Nothing => {}
            CpuActivity::Interrupt => {
                (at.until, at.idle_since) = (u64::MAX, self.now);
                self.dispatch(cpu);
                return;
            }
            CpuActivity::Overhead => {}
            CpuActivity::Compute(time) => {
                at.totals.run += time;
                let task = &mut self.tasks[at.process as usize];
                task.totals.run += time;
                if let Phase::Compute(left) = &mut task.phase {
                    *left -= time;
                }
            }
        }
        self.go_on(cpu);
    }

    /// Continues the process of a processor until something takes time.
    fn go_on(&mut self, cpu: usize) {
        let process = self.cpus[cpu].process;
        loop {
            let at = &mut self.cpus[cpu];
            let task = &mut self.tasks[process as usize];
            match task.phase {
                Phase::Compute(0) => {
                    let more = task.next < task.program.requests.len();
                    task.phase = if more { Phase::Call } else { Phase::End };
                }
                Phase::Compute(left) => {
                    if self.now >= at.slice_end {
                        if !self.ready.is_empty() {
                            return self.preempt(cpu);
                        }
                        at.slice_end = self.now.saturating_add(self.config.quantum);
                    }
                    // The only process computes without interruption. It computes to the end of its
                    // turn if another process becomes ready meanwhile.
                    let turn = if self.ready.is_empty() { left } else { at.slice_end - self.now };
                    let time = left.min(turn);
                    at.doing = CpuActivity::Compute(time);
                    at.until = self.now.saturating_add(time);
                    return self.storage.observer.see(self.now, Step::Compute { process, time });
                }
                Phase::Call => {
                    if self.now >= at.slice_end && !self.ready.is_empty() {
                        return self.preempt(cpu);
                    }
                    let request = self.begin_request(process);
                    let access = self.storage.access(process, request);
                    let task = &mut self.tasks[process as usize];
                    (task.phase, task.access) = (Phase::Access, Some(access));
                    if self.config.call > 0 {
                        return self.cpus[cpu].overhead(self.now, self.config.call);
                    }
                }
                Phase::Access => {
                    let Some(access) = &mut task.access else { unreachable!("a request is under way") };
                    let progress = self.storage.go_on(access, self.now);
                    task.phase = Phase::Accessed(progress);
                    task.waits = access.waits;
                    task.later += std::mem::take(&mut access.later);
                    if access.cost > 0 {
                        return at.overhead(self.now, access.cost);
                    }
                }
                Phase::Accessed(progress) => {
                    if self.is_blocked_by_access(process, progress) {
                        return self.leave(cpu);
                    }
                    if !self.space_waiters.is_empty() && self.storage.has_room() {
                        self.wake_space_waiter();
                    }
                }
                Phase::End => {
                    self.end(process);
                    return self.leave(cpu);
                }
            }
        }
    }

    /// Chooses the phase after a step of an access. Returns true if the process must wait, for
    /// transfers or for a free block.
    #[inline]
    fn is_blocked_by_access(&mut self, process: u32, progress: Progress) -> bool {
        let task = &mut self.tasks[process as usize];
        let is_free_of_cost = task.access.as_ref().is_none_or(|access| access.cost == 0);
        task.phase = match progress {
            Progress::Done => task.after_request(),
            Progress::NoRoom | Progress::Locked => Phase::Access,
        };
        if task.waits > 0 {
            task.totals.waits += 1;
            task.blocked = true;
            let transfers = task.waits;
            self.storage.observer.see(self.now, Step::Block { process, transfers });
            return true;
        }
        // Moving data may have freed a block.
        if progress == Progress::NoRoom && is_free_of_cost {
            task.totals.room_waits += 1;
            self.storage.observer.see(self.now, Step::NoRoom { process });
            self.space_waiters.push_back(process);
            return true;
        }
        false
    }

    /// Ends a process, or lets it wait for its remaining transfers.
    fn end(&mut self, process: u32) {
        let task = &mut self.tasks[process as usize];
        if task.later > 0 {
            task.ending = true;
            let transfers = task.later;
            self.storage.observer.see(self.now, Step::Block { process, transfers });
            return;
        }
        task.totals.ended = self.now;
        self.running -= 1;
        self.elapsed = self.now;
        self.storage.observer.see(self.now, Step::End { process });
    }

    #[inline]
    fn begin_request(&mut self, process: u32) -> Request {
        let task = &mut self.tasks[process as usize];
        let mut request = task.program.requests[task.next];
        request.file += task.program.first_file;
        let point = self.storage.rates.at(self.now);
        if request.write {
            point.written += request.length;
            task.totals.writes += 1;
            task.totals.bytes_written += request.length;
        } else {
            point.read += request.length;
            task.totals.reads += 1;
            task.totals.bytes_read += request.length;
        }
        let step = Step::Call { process, request: task.next as u64, overhead: self.config.call };
        task.next += 1;
        self.storage.observer.see(self.now, step);
        request
    }

    fn preempt(&mut self, cpu: usize) {
        let process = self.cpus[cpu].process;
        self.storage.observer.see(self.now, Step::Preempt { process });
        self.ready.push_back(process);
        self.leave(cpu);
    }

    /// Removes the process from its processor, which takes the next one.
    #[inline]
    fn leave(&mut self, cpu: usize) {
        let at = &mut self.cpus[cpu];
        let task = &mut self.tasks[at.process as usize];
        // The time that the program ran is subtracted from this at the end of the simulation.
        task.totals.overhead += task.lap(self.now);
        at.last = std::mem::replace(&mut at.process, NONE);
        (at.doing, at.until, at.idle_since) = (CpuActivity::Nothing, u64::MAX, self.now);
        self.dispatch(cpu);
    }

    /// Gives a free processor the next ready process.
    #[inline]
    fn dispatch(&mut self, cpu: usize) {
        let Some(process) = self.ready.pop_front() else { return };
        let at = &mut self.cpus[cpu];
        let task = &mut self.tasks[process as usize];
        task.totals.ready += task.lap(self.now);
        at.totals.idle += self.now - at.idle_since;
        at.process = process;
        let switched = at.last != process && at.last != NONE;
        let switch = if switched { self.config.switch } else { 0 };
        at.totals.switches += u64::from(switched);
        at.slice_end = self.now.saturating_add(switch).saturating_add(self.config.quantum);
        self.storage.observer.see(self.now, Step::Dispatch { processor: cpu as u32, process, switch });
        if switch > 0 {
            return at.overhead(self.now, switch);
        }
        self.go_on(cpu);
    }

    /// Makes a waiting process ready.
    #[inline]
    fn make_ready(&mut self, process: u32) {
        let task = &mut self.tasks[process as usize];
        task.totals.blocked += task.lap(self.now);
        task.blocked = false;
        self.storage.observer.see(self.now, Step::Ready { process });
        self.ready.push_back(process);
        let free = |cpu: &&Cpu| cpu.is_free();
        let known = self.cpus.iter().position(|cpu| cpu.is_free() && cpu.last == process);
        let any = || self.cpus.iter().enumerate().find(|(_, cpu)| free(cpu)).map(|(nth, _)| nth);
        match known.or_else(any) {
            Some(cpu) => self.dispatch(cpu),
            None => self.cut_turns(),
        }
    }

    /// Limits each computing process to the end of its current quantum, because another process
    /// waits.
    fn cut_turns(&mut self) {
        for cpu in &mut self.cpus {
            let CpuActivity::Compute(time) = &mut cpu.doing else { continue };
            let turns = self.now.saturating_sub(cpu.slice_end).div_ceil(self.config.quantum);
            cpu.slice_end = cpu.slice_end.saturating_add(turns.saturating_mul(self.config.quantum));
            let end = cpu.slice_end;
            if cpu.until > end {
                *time -= cpu.until - end;
                cpu.until = end;
                let step = Step::Turn { process: cpu.process, left: end - self.now };
                self.storage.observer.see(self.now, step);
            }
        }
    }

    #[inline]
    fn part_done(&mut self, part: u32) {
        let mut waiters = std::mem::take(&mut self.waiters);
        let done = self.storage.part_done(part, self.now, &mut waiters);
        if done {
            let served = self.interrupt();
            for (process, is_async) in waiters.drain(..) {
                let task = &mut self.tasks[process as usize];
                let ready = if is_async {
                    task.later -= 1;
                    task.ending && task.later == 0
                } else {
                    task.waits -= 1;
                    task.blocked && task.waits == 0
                };
                if ready {
                    self.wake(process, served);
                }
            }
            if self.config.cache.limit > 0 {
                while let Some(process) = self.space_waiters.pop_front() {
                    self.wake(process, served);
                }
            } else if let Some(process) = self.space_waiters.pop_front() {
                self.wake(process, served);
            }
        }
        self.waiters = waiters;
    }

    fn wake_space_waiter(&mut self) {
        if let Some(process) = self.space_waiters.pop_front() {
            self.storage.events.push(self.now, Event::Wake(process));
        }
    }

    #[inline]
    fn wake(&mut self, process: u32, served: u64) {
        self.storage.events.push(served, Event::Wake(process));
    }

    /// Serves the interrupt of a transfer on a processor, on a free one if there is one. Returns
    /// the time at which it has been served.
    #[inline]
    fn interrupt(&mut self) -> u64 {
        let time = self.config.interrupt;
        if time == 0 || self.running == 0 {
            return self.now;
        }
        let least =
            self.cpus.iter().enumerate().min_by_key(|(_, cpu)| (!cpu.is_free(), cpu.totals.interrupts));
        let Some((nth, _)) = least else { return self.now };
        let cpu = &mut self.cpus[nth];
        cpu.totals.interrupts += 1;
        cpu.totals.overhead += time;
        cpu.interrupted = cpu.interrupted.max(self.now).saturating_add(time);
        if cpu.is_free() {
            cpu.totals.idle += self.now - cpu.idle_since;
            cpu.doing = CpuActivity::Interrupt;
            cpu.until = cpu.interrupted;
        } else {
            // The interrupted activity takes longer.
            cpu.until = cpu.until.saturating_add(time);
            cpu.slice_end = cpu.slice_end.saturating_add(time);
        }
        self.storage.observer.see(self.now, Step::Interrupt { processor: nth as u32, time });
        cpu.interrupted
    }

    fn finish(mut self) -> Outcome {
        for cpu in &mut self.cpus {
            // The last process may end while another processor is still serving an interrupt, or
            // while it has been idle for some time.
            if cpu.interrupted > self.elapsed {
                let over = cpu.interrupted - self.elapsed;
                cpu.totals.overhead = cpu.totals.overhead.saturating_sub(over);
            }
            if cpu.idle_since < self.elapsed {
                cpu.totals.idle += self.elapsed - cpu.idle_since;
            }
        }
        let processes = self.tasks.into_iter().map(|task| {
            let mut totals = task.totals;
            totals.overhead -= totals.run;
            totals
        });
        Outcome {
            elapsed: self.elapsed,
            drained: self.now.max(self.elapsed),
            processors: self.cpus.iter().map(|cpu| cpu.totals).collect(),
            processes: processes.collect(),
            cache: self.storage.totals,
            disk: self.storage.disk_totals(),
            rates: self.storage.rates,
        }
    }
}

impl Task<'_> {
    #[inline]
    fn after_request(&self) -> Phase {
        Phase::Compute(self.program.requests.get(self.next).map_or(self.program.rest, |request| request.cpu))
    }
}
