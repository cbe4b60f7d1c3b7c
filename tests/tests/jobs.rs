//! The trace has the job, step, rank, user and control group of a process.
//!
//! Batch systems are simulated by the variables that they document: **no Slurm, PBS or Flux runs
//! here**. The launcher of parallel programs is real for MPICH and simulated for Open MPI. The
//! control group is real.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt32Type;
use arrow_array::{Array as _, RecordBatch};
use miot_tests::built::built;
use miot_tests::node::Node;
use miot_tests::process::{run, until};
use miot_tests::steered::Steered;
use miot_tests::test_dir::fresh;
use miot_trace_store::{Reader, Table};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A row of `processes` whose program is `exe`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    job: Option<String>,
    system: Option<String>,
    step: Option<String>,
    rank: Option<u32>,
    world_size: Option<u32>,
    user: Option<String>,
    cgroup: Option<String>,
}

fn place(name: &str) -> PathBuf {
    let place = fresh(&format!("jobs-{name}"));
    place.join("trace")
}

fn text(batch: &RecordBatch, name: &str, row: usize) -> Option<String> {
    let column = batch.column_by_name(name).unwrap().as_string::<i32>();
    column.is_valid(row).then(|| column.value(row).to_owned())
}

/// Rows of processes whose executable ends with `exe`.
fn processes(trace: &Path, exe: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for batch in Reader::open(trace).unwrap().table(Table::Processes).unwrap() {
        let [ranks, sizes] = ["rank", "world_size"]
            .map(|name| miot_trace_store::schema::column::<UInt32Type>(&batch, name).unwrap());
        for row in 0..batch.num_rows() {
            if text(&batch, "exe", row).is_some_and(|path| path.ends_with(exe)) {
                found.push(Found {
                    job: text(&batch, "job", row),
                    system: text(&batch, "job_system", row),
                    step: text(&batch, "job_step", row),
                    rank: ranks.is_valid(row).then(|| ranks.value(row)),
                    world_size: sizes.is_valid(row).then(|| sizes.value(row)),
                    user: text(&batch, "user", row),
                    cgroup: text(&batch, "cgroup", row),
                });
            }
        }
    }
    found
}

/// Variables that identify jobs and ranks. They are removed from the test's environment, in which
/// they would name another job.
const KNOWN: [&str; 27] = [
    "MIOT_JOB",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "PBS_JOBID",
    "FLUX_JOB_ID",
    "FLUX_TASK_RANK",
    "LSB_JOBID",
    "JOB_ID",
    "COBALT_JOBID",
    "PALS_APID",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "MIOT_RANK",
    "MIOT_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
    "ALPS_APP_PE",
    "JSM_NAMESPACE_RANK",
];

fn traced(trace: &Path, words: &[&str], env: &[(&str, &str)]) {
    let mut command = Command::new(&built().miot);
    for name in KNOWN {
        command.env_remove(name);
    }
    command.args(["run", "--quiet", "-o"]).arg(trace).arg("--").args(words).envs(env.iter().copied());
    let _ = run(&mut command).success();
}

/// Name of the user who runs the test, from another program.
fn user() -> String {
    run(Command::new("id").arg("-un")).success().stdout.trim().to_owned()
}

/// Runs long enough to be found while it runs.
const SCRIPT: &str = "echo x > /dev/shm/miot-jobs-$$; rm /dev/shm/miot-jobs-$$; sleep 0.3; cat /etc/hostname";

/// Name, environment, job with system and step, and rank with the number of ranks.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], [Option<&'a str>; 3], [Option<u32>; 2]);

#[test]
fn jobs_of_batch_systems_are_known_by_variables() {
    let cases: [Case<'_>; 6] = [
        (
            "slurm",
            &[
                ("SLURM_JOB_ID", "4711"),
                ("SLURM_STEP_ID", "3"),
                ("SLURM_PROCID", "12"),
                ("SLURM_NTASKS", "16"),
            ],
            [Some("4711"), Some("slurm"), Some("3")],
            [Some(12), Some(16)],
        ),
        ("pbs", &[("PBS_JOBID", "12.pbs01")], [Some("12.pbs01"), Some("pbs"), None], [None; 2]),
        (
            "flux",
            &[("FLUX_JOB_ID", "ƒ2AX"), ("FLUX_TASK_RANK", "1")],
            [Some("ƒ2AX"), Some("flux"), None],
            [Some(1), None],
        ),
        (
            "openmpi",
            &[("SLURM_JOB_ID", "9"), ("PMIX_NAMESPACE", "prterun-n1-77@1"), ("OMPI_COMM_WORLD_RANK", "2")],
            [Some("9"), Some("slurm"), Some("prterun-n1-77@1")],
            [Some(2), None],
        ),
        (
            "said",
            &[("MIOT_JOB", "nightly"), ("SLURM_JOB_ID", "9")],
            [Some("nightly"), Some("miot"), None],
            [None; 2],
        ),
        (
            "torchrun",
            &[
                ("MIOT_JOB", "train"),
                ("RANK", "5"),
                ("WORLD_SIZE", "8"),
                ("LOCAL_RANK", "1"),
                ("TORCHELASTIC_RUN_ID", "a7"),
            ],
            [Some("train"), Some("miot"), Some("a7")],
            [Some(5), Some(8)],
        ),
    ];
    let (user, own_group) = (user(), own_cgroup());
    for (name, env, [job, system, step], [rank, world_size]) in cases {
        let trace = place(name);
        traced(&trace, &["sh", "-c", SCRIPT], env);
        let shells = processes(&trace, "/dash");
        let shells = if shells.is_empty() { processes(&trace, "sh") } else { shells };
        let expected = Found {
            job: job.map(str::to_owned),
            system: system.map(str::to_owned),
            step: step.map(str::to_owned),
            rank,
            world_size,
            user: Some(user.clone()),
            cgroup: Some(own_group.clone()),
        };
        assert_eq!(shells, [expected], "{name}");
    }
}

/// Path in this process's control group that the log-client prefers.
fn own_cgroup() -> String {
    let lines = fs::read_to_string("/proc/self/cgroup").unwrap();
    let unified = lines.lines().find_map(|line| line.strip_prefix("0::"));
    unified.or_else(|| lines.lines().find_map(|line| line.splitn(3, ':').nth(2))).unwrap().to_owned()
}

/// A control group that is removed with the test, at this path of a hierarchy.
struct Group {
    hierarchy: &'static Path,
    path: PathBuf,
}

impl Group {
    /// Creates the group in the first usable hierarchy. Otherwise it prints a message that this is
    /// not tested.
    fn new(hierarchies: &[&'static str], path: &str) -> Option<Group> {
        let made = hierarchies.iter().map(|hierarchy| Path::new(*hierarchy)).find_map(|hierarchy| {
            let group = Group { hierarchy, path: hierarchy.join(path) };
            let there = hierarchy.join("cgroup.procs").exists() && fs::create_dir_all(&group.path).is_ok();
            (there && group.path.join("cgroup.procs").exists()).then_some(group)
        });
        if made.is_none() {
            println!("NOT TESTED HERE: control groups cannot be made in any of {hierarchies:?}");
        }
        made
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in self.path.ancestors().take_while(|folder| *folder != self.hierarchy) {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Row of a program that runs in a control group with the variables `env`.
fn in_group(name: &str, group: &Group, env: &[(&str, &str)]) -> Found {
    let place = place(name).parent().unwrap().to_owned();
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$1\" && LD_PRELOAD=$2 exec \"$3\" \"$4\"", "sh"]);
    shell.arg(group.path.join("cgroup.procs")).arg(&built().hook);
    shell.arg(env!("CARGO_BIN_EXE_steered")).arg(place.join("data")).env("MIOT_DIR", &node.dir);
    for name in KNOWN {
        shell.env_remove(name);
    }
    let mut program = Steered::start(shell.envs(env.iter().copied()));
    program.tell("pwrite 1");
    // So the log-client found the process while it was running.
    until("its writes are in the trace", || node.so_far().iter().any(|row| row.op == "pwrite"));
    program.end();
    let trace = node.trace.clone();
    let _ = node.end();
    let found = processes(&trace, "/steered");
    let [found] = &found[..] else { panic!("{found:?}") };
    found.clone()
}

/// Hierarchies of version 2, also beside version 1.
const VERSION_2: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Hierarchies of version 1 that Slurm uses.
const VERSION_1: &[&str] = &["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/memory"];

/// Programs whose job is known only from their control group, such as those of a user who logged in
/// with ssh.
#[test]
fn control_group_alone_identifies_the_job() {
    let own = std::process::id().to_string();
    let slurm_2 = format!("miot-{own}-slurmstepd.scope/job_815/step_7/user/task_0");
    let slurm_1 = format!("slurm/uid_0/job_{own}/step_3/task_0");
    let unit = format!("miot-{own}.service");
    for (name, hierarchies, path, [job, system], step) in [
        ("cgroup-2", VERSION_2, &slurm_2, ["815", "slurm"], Some("7")),
        ("cgroup-1", VERSION_1, &slurm_1, [own.as_str(), "slurm"], Some("3")),
        ("cgroup-unit", VERSION_2, &unit, [unit.as_str(), "systemd"], None),
    ] {
        let Some(group) = Group::new(hierarchies, path) else { continue };
        let found = in_group(name, &group, &[]);
        let said = [&found.job, &found.system, &found.step].map(|text| text.as_deref());
        assert_eq!(said, [Some(job), Some(system), step], "{name}: {found:?}");
        assert!(
            found.cgroup.as_deref().is_some_and(|cgroup| cgroup.ends_with(path.as_str())),
            "{name}: {found:?}"
        );
    }
}

/// The kernel's control group takes precedence over the environment.
#[test]
fn control_group_takes_precedence_over_variables() {
    let path = format!("miot-other-{}-slurmstepd.scope/job_815/step_7", std::process::id());
    let Some(group) = Group::new(VERSION_2, &path) else { return };
    let found = in_group("cgroup-other", &group, &[("SLURM_JOB_ID", "1"), ("SLURM_STEP_ID", "9")]);
    let said = [&found.job, &found.system, &found.step].map(|text| text.as_deref());
    assert_eq!(said, [Some("815"), Some("slurm"), Some("7")], "{found:?}");
}

/// Processes of a real launcher have their ranks.
#[test]
fn ranks_of_mpich_are_recorded() {
    let mpirun = ["mpirun.mpich", "mpiexec.hydra", "mpirun"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
        .expect("no mpirun: run tests/setup.sh");
    let trace = place("mpich");
    traced(&trace, &[mpirun, "-n", "3", "sh", "-c", SCRIPT], &[("SLURM_JOB_ID", "55")]);
    let cats = processes(&trace, "/cat");
    let ranks: BTreeSet<_> = cats.iter().map(|found| found.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2)].into(), "{cats:?}");
    assert!(cats.iter().all(|found| found.job.as_deref() == Some("55")), "{cats:?}");
}

#[test]
fn events_of_one_job_can_be_selected() {
    let trace = place("filter");
    traced(
        &trace,
        &["sh", "-c", "cat /etc/hostname; SLURM_JOB_ID=2 cat /etc/passwd"],
        &[("SLURM_JOB_ID", "1")],
    );
    let cat = |job: &str| {
        let mut command = Command::new(&built().miot);
        run(command.arg("cat").arg(&trace).args(["--job", job, "--path", "/etc/**"])).success().stdout
    };
    assert!(cat("1").contains("/etc/hostname") && !cat("1").contains("/etc/passwd"));
    assert!(cat("2").contains("/etc/passwd") && !cat("2").contains("/etc/hostname"));
    assert_eq!(cat("3"), "");
}
