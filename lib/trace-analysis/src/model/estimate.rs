//! Estimate of the time of an application's I/O on another machine, from the bandwidth that a
//! benchmark of each phase reached there (Méndez et al. 2012, sections 3.2 and 3.3).

use super::{Direction, Mode, Model, Operation, Phase, Sharing};
use serde::{Deserialize, Serialize};

/// Parameters with which IOR reproduces one operation of a phase.
///
/// The paper maps `s` by the access mode, `b` = weight, `t` = rs, NP = np, and `-F` for a file per
/// process. Its weight is that of all processes, while IOR's block is that of one process, so here
/// `b` times `s` is weight / np = rep × rs. Processes that take turns (distance np × rs) are IOR's
/// segments: `s` = rep, `b` = rs. In all other cases `s` = 1, as in the paper, which replays
/// strided accesses as sequential ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ior {
    /// Number of processes.
    pub processes: u64,
    /// Segments (`-s`).
    pub segments: u64,
    /// Block (`-b`) in bytes.
    pub block: u64,
    /// Transfer (`-t`) in bytes.
    pub transfer: u64,
    /// File per process (`-F`).
    pub file_per_process: bool,
    /// Collective I/O (`-c`).
    pub collective: bool,
    /// Random offsets (`-z`).
    pub random: bool,
    /// Interface (`-a`).
    pub interface: &'static str,
    /// True for reads (`-r`), false for writes (`-w`).
    pub reads: bool,
}

impl Ior {
    /// Returns the parameters for an operation of a phase of this layer.
    #[must_use]
    pub fn of(phase: &Phase, operation: &Operation, layer: &str) -> Ior {
        let processes = phase.processes.len();
        let turns = operation.size.saturating_mul(processes);
        let takes_turns = phase.sharing == Sharing::Shared
            && matches!(operation.displacement.as_slice(), [one] if u64::try_from(one.stride) == Ok(turns))
            && operation.restarts.is_empty();
        let (segments, block) =
            if takes_turns { (operation.repetitions, operation.size) } else { (1, operation.bytes()) };
        Ior {
            processes,
            segments,
            block,
            transfer: operation.size,
            file_per_process: phase.sharing == Sharing::Unique && processes > 1,
            collective: operation.collective,
            random: operation.mode == Mode::Random,
            interface: if layer == "mpi-io" { "MPIIO" } else { "POSIX" },
            reads: operation.direction == Direction::Read,
        }
    }

    /// Returns the command line for this file, which is kept.
    #[must_use]
    pub fn command(&self, file: &str) -> String {
        let flag = |is_set: bool, flag: &str| if is_set { format!(" {flag}") } else { String::new() };
        format!(
            "mpiexec -n {} ior -a {} -{} -k -s {} -b {} -t {}{}{}{} -o {file}",
            self.processes,
            self.interface,
            if self.reads { 'r' } else { 'w' },
            self.segments,
            self.block,
            self.transfer,
            flag(self.file_per_process, "-F"),
            flag(self.collective, "-c"),
            flag(self.random, "-z"),
        )
    }

    /// Returns the bytes that IOR moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.processes.saturating_mul(self.segments).saturating_mul(self.block)
    }
}

/// Bandwidth that a benchmark of some phases reached on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Name of the configuration.
    pub configuration: String,
    /// Phase: any number of its family.
    pub phase: u64,
    /// Operation, from 1; `None` for all operations of the phase.
    pub operation: Option<u64>,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// Estimate for a family of phases on one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Name of the configuration.
    pub configuration: String,
    /// Numbers of the phases; `all` for the sum of all phases.
    pub phases: String,
    /// Bytes of the family.
    pub bytes: u64,
    /// Mean of the bandwidths measured for the operations (BW_CH).
    pub bytes_per_second: f64,
    /// For all phases of the family, equation 2: weight / BW_CH. For all phases of the model,
    /// equation 1.
    pub seconds: f64,
    /// Time that the application itself took (Time(MD)), if a model with measurements is given.
    pub measured_seconds: Option<f64>,
    /// Equation 4, bytes per second: |BW_CH − BW_MD|.
    pub error_absolute: Option<f64>,
    /// Equation 3, percent of BW_MD.
    pub error_relative: Option<f64>,
}

/// Returns the mean of the bandwidths measured for the operations of a phase. Several measurements
/// of one operation count by their mean.
fn bandwidth(phase: &Phase, configuration: &str, measured: &[Bandwidth]) -> Option<f64> {
    let of_phase: Vec<&Bandwidth> = measured
        .iter()
        .filter(|it| it.configuration == configuration && phase.numbers.place(it.phase).is_some())
        .collect();
    let mean =
        |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let of_operation = |nth: usize| {
        let of = |it: &&&Bandwidth| it.operation.is_none_or(|operation| operation == nth as u64 + 1);
        mean(of_phase.iter().filter(of).map(|it| it.bytes_per_second).collect())
    };
    mean((0..phase.operations.len()).map(of_operation).collect::<Option<Vec<f64>>>()?)
}

/// No bandwidth was measured for a family of phases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no bandwidth was measured for phases {phases}")]
pub struct NotMeasured {
    /// Numbers of the phases of the family.
    pub phases: String,
}

/// The time of a model's I/O on a configuration: a row for each family, then one for all.
///
/// # Errors
/// [`NotMeasured`], for the first family without a bandwidth on this configuration.
pub fn estimate(
    model: &Model,
    configuration: &str,
    measured: &[Bandwidth],
    truth: Option<&Model>,
) -> Result<Vec<Estimate>, NotMeasured> {
    let mut rows = Vec::new();
    for phase in &model.phases {
        let reached = bandwidth(phase, configuration, measured).filter(|reached| *reached > 0.0);
        let reached = reached.ok_or_else(|| NotMeasured { phases: phase.numbers.to_string() })?;
        let bytes = phase.weight.saturating_mul(phase.count());
        let same = truth.and_then(|truth| truth.phases.iter().find(|it| it.numbers == phase.numbers));
        let real = same.and_then(|phase| phase.measured).filter(|measured| measured.seconds > 0.0);
        rows.push(row(
            configuration,
            phase.numbers.to_string(),
            bytes,
            bytes as f64 / reached,
            real.map(|r| r.seconds),
        ));
    }
    let bytes = rows.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
    let seconds = rows.iter().map(|row| row.seconds).sum();
    let real = rows.iter().map(|row| row.measured_seconds).sum();
    rows.push(row(configuration, "all".into(), bytes, seconds, real));
    Ok(rows)
}

fn row(configuration: &str, phases: String, bytes: u64, seconds: f64, real: Option<f64>) -> Estimate {
    let reached = if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
    let truth = real.filter(|real| *real > 0.0).map(|real| bytes as f64 / real);
    let error = truth.map(|truth| (reached - truth).abs());
    Estimate {
        configuration: configuration.to_owned(),
        phases,
        bytes,
        bytes_per_second: reached,
        seconds,
        measured_seconds: real,
        error_absolute: error,
        error_relative: error.zip(truth).map(|(error, truth)| 100.0 * error / truth),
    }
}

#[cfg(test)]
mod tests {
    use super::{Bandwidth, Ior, NotMeasured, estimate};
    use crate::model::tests::{bt_io, phase};
    use crate::model::{Loop, Mode, Numbers};

    #[test]
    fn parameters_move_the_weight() {
        let model = bt_io(36, 50, 1 << 20);
        let write = Ior::of(&model.phases[0], &model.phases[0].operations[0], "mpi-io");
        assert_eq!(write.command("x"), "mpiexec -n 36 ior -a MPIIO -w -k -s 1 -b 1048576 -t 1048576 -c -o x");
        let read = Ior::of(&model.phases[1], &model.phases[1].operations[0], "mpi-io");
        assert_eq!((read.segments, read.block, read.reads), (50, 1 << 20, true), "ranks take turns");
        for (phase, ior) in model.phases.iter().zip([write, read]) {
            assert_eq!(ior.bytes(), phase.weight);
        }
        let mut random = phase(1, 4, 100, 8);
        random.operations[0].mode = Mode::Random;
        random.operations[0].displacement.clear();
        random.sharing = crate::model::Sharing::Unique;
        let ior = Ior::of(&random, &random.operations[0], "posix");
        assert_eq!(ior.command("y"), "mpiexec -n 4 ior -a POSIX -w -k -s 1 -b 800 -t 100 -F -z -o y");
        let mut strided = phase(1, 4, 100, 8);
        strided.operations[0].displacement = vec![Loop { count: 8, stride: 1000 }];
        strided.operations[0].offset = Numbers::constant(0);
        assert_eq!(Ior::of(&strided, &strided.operations[0], "posix").segments, 1);
    }

    /// Table 3 of the paper, configuration A with 64 processes, with the bandwidths that correspond
    /// to its times.
    #[test]
    fn times_and_errors_are_those_of_the_paper() {
        let model = bt_io(64, 50, 40 << 20);
        let bytes = 64.0 * 50.0 * f64::from(40 << 20);
        let of = |phase, seconds: f64| Bandwidth {
            configuration: "A".into(),
            phase,
            operation: None,
            bytes_per_second: bytes / seconds,
        };
        let mut truth = model.clone();
        for (phase, seconds) in truth.phases.iter_mut().zip([1153.05, 2984.75]) {
            phase.measured = Some(crate::model::Measured { seconds, ..Default::default() });
        }
        let rows = estimate(&model, "A", &[of(7, 1167.40), of(51, 2868.51)], Some(&truth)).unwrap();
        let near = |one: f64, other: f64| (one - other).abs() < 0.005;
        assert!(near(rows[0].seconds, 1167.40) && near(rows[1].seconds, 2868.51), "{rows:?}");
        // As recomputed with equation 3: 1.23 % and 4.05 %.
        assert!(near(rows[0].error_relative.unwrap(), 1.23), "{rows:?}");
        assert!(near(rows[1].error_relative.unwrap(), 4.05), "{rows:?}");
        assert!(near(rows[2].seconds, 1167.40 + 2868.51), "equation 1: {rows:?}");
        assert_eq!(estimate(&model, "A", &[of(51, 1.0)], None), Err(NotMeasured { phases: "1-50".into() }));
        assert_eq!(
            estimate(&model, "B", &[of(1, 1.0), of(51, 1.0)], None),
            Err(NotMeasured { phases: "1-50".into() })
        );
    }

    #[test]
    fn bandwidth_of_a_phase_is_the_mean_of_its_operations() {
        let mut model = bt_io(4, 2, 100);
        let second = model.phases[0].operations[0].clone();
        model.phases[0].operations.push(second);
        model.phases[0].weight *= 2;
        let of = |phase, operation, bytes_per_second| Bandwidth {
            configuration: "A".into(),
            phase,
            operation,
            bytes_per_second,
        };
        let rows =
            estimate(&model, "A", &[of(1, Some(1), 100.0), of(1, Some(2), 300.0), of(3, None, 1.0)], None);
        assert_eq!(rows.unwrap()[0].bytes_per_second, 200.0);
    }
}
