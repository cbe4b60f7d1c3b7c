//! `apps`: overhead of the `posix` hook in real programs on real file systems, with both daemons
//! running.
//!
//! The variants of a program run in turn, and the order reverses with each round. With the hook it
//! runs twice per round: with the log-server in a cgroup that gets almost no time meanwhile, as if
//! it ran on another machine, and with everything on the node. The overhead is the median over the
//! rounds of the ratio to the plain run of the same round, with its 95 % interval. Rounds end when
//! the interval is narrow or their time is used up. fio is measured in [slices] instead of whole
//! runs.

pub(crate) mod mounts;
pub(crate) mod programs;
mod slices;

use crate::daemons::{self, Daemons};
use crate::report::{interval, number};
use crate::share::Share;
use crate::stats::{Interval, Summary, median_with_interval, ratio_of_medians};
use crate::{Bench, pipeline, process, worker};
use anyhow::{Context, Result, ensure};
use mounts::{Ext4, Gluster};
use programs::{App, Judged, Length, Made, Took, once};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Places of the log-server, by their names in the tables.
pub(crate) const SERVERS: [&str; 2] = [APART, ON_NODE];
const APART: &str = "log-server apart";
const ON_NODE: &str = "everything on the node";

/// Variants of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Floor,
    /// The hook, with the log-server in this place.
    Hook(&'static str),
}

/// What all programs have in common.
struct Site<'a> {
    bench: &'a Bench,
    daemons: &'a Daemons,
    /// Group of the log-server, where one can be created.
    share: Option<&'a Share>,
    floor: PathBuf,
    hook: PathBuf,
}

pub(crate) fn run(bench: &Bench) -> Result<Value> {
    let dir = bench.disk.path();
    // Declared before the daemons, so that it is removed after their end.
    let mut share = None;
    let daemons = Daemons::start(&dir.join("daemons"), &bench.memory.path().join("node"), "drop-newest")?;
    if let [_, server] = daemons.pids()[..] {
        share = available("a cgroup of the log-server", Share::around(server));
    }
    let (floor, hook) = (wrapper(bench)?, daemons::built("libmiot_posix.so")?);
    [&floor, &hook].into_iter().try_for_each(|library| worker::expect_preloads(library))?;
    let site = Site { bench, daemons: &daemons, share: share.as_ref(), floor, hook };
    let mut results = Results::default();
    println!(
        "{:46} {:10} {:22} {:>4} {:>12} {:>9} {:>18} {:>9} {:>18} {:>9}",
        "program", "on", "", "runs", "plain", "hook %", "95 % interval", "x floor", "95 % interval", "CPU %"
    );
    let ext4 = available("ext4 on a loop device", Ext4::mount(dir));
    if let Some(ext4) = &ext4 {
        let place = ext4.dir();
        let mut apps = programs::fio(bench, "ext4", place);
        apps.push(programs::storm(bench, "ext4", place)?);
        apps.extend(available("git", programs::git(bench, "ext4", place)));
        apps.push(programs::sqlite(bench, "ext4", place)?);
        site.compare(&apps, &mut results);
    }
    drop(ext4);
    // Starting and stopping it takes half a minute: more than all the rest of a smoke run.
    let gluster = if bench.is_smoke() { None } else { available("GlusterFS", Gluster::mount(dir)) };
    if let Some(gluster) = &gluster {
        let mut apps = programs::fio(bench, "GlusterFS", gluster.dir());
        apps.push(programs::storm(bench, "GlusterFS", gluster.dir())?);
        site.compare(&apps, &mut results);
    }
    drop(gluster);
    drop(site);
    let trace = daemons.trace().to_path_buf();
    let ended = daemons.stop()?;
    let rows = pipeline::count(&trace)?;
    let per_event = |seconds: f64| seconds * 1e9 / rows.events.max(1) as f64;
    Ok(json!({
        "programs": results.rows,
        "failed": results.failed,
        "trace": {
            "events": rows.events,
            "lost": rows.lost,
            "bytes_per_event": daemons::folder_bytes(&trace) as f64 / rows.events.max(1) as f64,
            "client_ns_per_event": per_event(ended.client.cpu),
            "server_ns_per_event": per_event(ended.server.cpu),
        },
    }))
}

/// Returns the value, or prints what is missing and returns `None`.
pub(crate) fn available<T>(what: &str, made: Result<T>) -> Option<T> {
    made.inspect_err(|error| eprintln!("{what} IS SKIPPED: {error:#}")).ok()
}

/// Builds the wrapper that is the lower bound for any hook. Its ring is not touched in advance, as
/// the lanes of a program are not.
fn wrapper(bench: &Bench) -> Result<PathBuf> {
    let flags = ["-shared", "-fPIC", "-ldl", "-DFLOOR", "-DPATHS", "-DUNTOUCHED"];
    worker::compile("wrapper", bench.disk.path(), &flags)
}

/// Figures of a program, of each variant.
struct Runs {
    ways: Vec<Way>,
    /// Wall time of each run, or of a request in each round of slices.
    wall: Vec<Vec<f64>>,
    /// CPU time of each run, or of a request in each round of slices.
    cpu: Vec<Vec<f64>>,
    /// What the variants with the hook have done.
    made: Made,
    /// CPU time of both daemons in the slices of each variant, % of a processor. `None` for whole
    /// runs.
    daemons_percent: Option<Vec<f64>>,
}

/// Selects a figure of [`Runs`].
type Figure = fn(&Runs) -> &[Vec<f64>];
const WALL: Figure = |runs| &runs.wall;
const CPU: Figure = |runs| &runs.cpu;

impl Runs {
    fn new(ways: Vec<Way>) -> Runs {
        let none = vec![Vec::new(); ways.len()];
        let made = Made { runs: 0, requests: 0, more: None };
        Runs { ways, wall: none.clone(), cpu: none, made, daemons_percent: None }
    }

    fn of(&self, way: Way, figure: Figure) -> Option<&[f64]> {
        self.ways.iter().position(|other| *other == way).map(|at| figure(self)[at].as_slice())
    }

    /// Returns what a variant adds to the plain run of the same round, %.
    fn percent(&self, way: Way, figure: Figure) -> Option<Interval> {
        let pairs = self.of(way, figure)?.iter().zip(self.of(Way::Plain, figure)?);
        let added: Vec<f64> = pairs.map(|(own, plain)| (own / plain - 1.0) * 100.0).collect();
        Some(median_with_interval(&added))
    }

    /// Returns what a variant adds, divided by what the floor wrapper adds.
    fn times_floor(&self, way: Way) -> Option<Interval> {
        let (own, floor) = (self.of(way, WALL)?, self.of(Way::Floor, WALL)?);
        let plain = self.of(Way::Plain, WALL)?;
        let added: Vec<(f64, f64)> = own
            .iter()
            .zip(floor)
            .zip(plain)
            .map(|((own, floor), plain)| (own - plain, floor - plain))
            .collect();
        Some(ratio_of_medians(&added))
    }

    /// Returns the figures that must have narrow intervals.
    fn judged(&self, judged: Judged) -> Vec<Interval> {
        let figure = |server| match judged {
            Judged::Percent => self.percent(Way::Hook(server), WALL),
            Judged::TimesFloor => self.times_floor(Way::Hook(server)),
        };
        SERVERS.into_iter().filter_map(figure).collect()
    }
}

/// Rows of the programs.
#[derive(Default)]
struct Results {
    rows: Vec<Value>,
    /// Programs whose check failed: these have no rows.
    failed: Vec<Value>,
}

impl Site<'_> {
    /// Measures programs. One that fails does not cost the rows of the others.
    fn compare(&self, apps: &[App], results: &mut Results) {
        for app in apps {
            // Valgrind takes a second to start.
            let is_counted = !self.bench.is_smoke() || results.rows.is_empty();
            match self.rows(app, is_counted) {
                Ok(rows) => results.rows.extend(rows),
                Err(error) => {
                    let error = format!("{error:#}");
                    eprintln!("{} on {} FAILED: {error}", app.what, app.place);
                    results.failed.push(json!({ "what": app.what, "place": app.place, "error": error }));
                }
            }
        }
    }

    /// Returns the rows of a program, one for each place of the log-server.
    fn rows(&self, app: &App, is_counted: bool) -> Result<Vec<Value>> {
        let before = self.daemons.records()?;
        let runs = if app.is_sliced() { slices::measure(self, app)? } else { self.runs(app)? };
        let recorded = app.expect_recorded(self.daemons.records()? - before, runs.made)?;
        let mut instructions = Vec::new();
        for way in [Way::Plain, Way::Hook(ON_NODE)] {
            (app.reset)()?;
            let command = self.command(app, way, Length::Counted);
            instructions.push(if is_counted { count(command)? } else { None });
        }
        (app.reset)()?;
        let measured = |server: &&'static str| runs.of(Way::Hook(server), WALL).is_some();
        let servers = SERVERS.into_iter().filter(measured);
        Ok(servers.map(|server| row(app, &runs, server, &instructions, &recorded)).collect())
    }

    /// Returns the variants.
    fn ways(&self) -> Vec<Way> {
        let apart = self.share.map(|_| Way::Hook(APART));
        [Way::Plain].into_iter().chain(apart).chain([Way::Hook(ON_NODE), Way::Floor]).collect()
    }

    /// Runs a program in each variant, in turn, until its figures have narrow intervals.
    fn runs(&self, app: &App) -> Result<Runs> {
        let mut runs = Runs::new(self.ways());
        let mut started = Instant::now();
        for round in 0.. {
            if round == 1 {
                started = Instant::now();
            } else if round > 1
                && app.repeat.is_enough(round - 1, started.elapsed(), &runs.judged(app.judged))
            {
                break;
            }
            for step in 0..runs.ways.len() {
                let at = if round % 2 == 1 { runs.ways.len() - 1 - step } else { step };
                let took = self.once(app, runs.ways[at])?;
                if matches!(runs.ways[at], Way::Hook(_)) {
                    runs.made.runs += 1;
                    runs.made.requests += app.requests;
                }
                if round > 0 {
                    runs.wall[at].push(took.wall);
                    runs.cpu[at].push(took.cpu);
                }
            }
        }
        Ok(runs)
    }

    fn once(&self, app: &App, way: Way) -> Result<Took> {
        (app.reset)()?;
        quiet(self.daemons);
        let share = self.share.filter(|_| way == Way::Hook(APART));
        share.map_or(Ok(()), |share| share.limit(true))?;
        let took = once(self.command(app, way, Length::Timed), app.measure);
        share.map_or(Ok(()), |share| share.limit(false))?;
        took.with_context(|| format!("{} on {}", app.what, app.place))
    }

    fn command(&self, app: &App, way: Way, length: Length) -> Command {
        let mut command = (app.command)(length);
        command.env("MIOT_DIR", self.daemons.node());
        match way {
            Way::Plain => &mut command,
            Way::Floor => command.env("LD_PRELOAD", &self.floor),
            Way::Hook(_) => command.env("LD_PRELOAD", &self.hook),
        };
        command
    }
}

/// Waits until the daemons have finished the work of the last run.
pub(crate) fn quiet(daemons: &Daemons) {
    let patience = Instant::now() + Duration::from_secs(20);
    let spent = || daemons.pids().iter().map(|pid| process::threads_cpu(*pid)).sum::<Duration>();
    let (mut before, step) = (spent(), Duration::from_millis(60));
    while Instant::now() < patience {
        std::thread::sleep(step);
        let now = spent();
        if now.abs_diff(before) < step / 20 {
            return;
        }
        before = now;
    }
}

/// Number of user-mode instructions of a run, counted by cachegrind. `None` where valgrind is not
/// installed.
fn count(command: Command) -> Result<Option<f64>> {
    let mut counted = Command::new("valgrind");
    counted
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--"])
        .arg(command.get_program())
        .args(command.get_args());
    for (key, value) in command.get_envs() {
        counted.env(key, value.unwrap_or_default());
    }
    let Ok(output) = counted.stdin(Stdio::null()).output() else { return Ok(None) };
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "under valgrind: {text}");
    let refs = text.lines().find(|line| line.contains("I   refs:") || line.contains("I refs:"));
    let digits: String = refs
        .and_then(|line| line.rsplit_once(':'))
        .map(|(_, number)| number.chars().filter(char::is_ascii_digit).collect())
        .unwrap_or_default();
    Ok(digits.parse().ok())
}

fn row(
    app: &App,
    runs: &Runs,
    server: &'static str,
    instructions: &[Option<f64>],
    recorded: &Value,
) -> Value {
    let hook = Way::Hook(server);
    let summaries = |figure: Figure| {
        [Way::Plain, hook].map(|way| Summary::of(runs.of(way, figure).unwrap_or_default().to_vec()))
    };
    let at = |way: Way| runs.ways.iter().position(|other| *other == way);
    let daemons = |way: Way| runs.daemons_percent.as_ref().zip(at(way)).map(|(percent, at)| percent[at]);
    let added = instructions[0].zip(instructions[1]).map(|(plain, hook)| (hook / plain - 1.0) * 100.0);
    let row = json!({
        "what": app.what, "place": app.place, "server": server, "unit": app.measure.unit(),
        "wall": summaries(WALL), "cpu": summaries(CPU),
        "wall_percent": runs.percent(hook, WALL), "cpu_percent": runs.percent(hook, CPU),
        "floor_percent": runs.percent(Way::Floor, WALL), "times_floor": runs.times_floor(hook),
        "sliced": app.is_sliced(), "daemons_percent": [daemons(Way::Plain), daemons(hook)],
        "instructions": instructions, "instructions_percent": added, "recorded": recorded,
    });
    println!(
        "{:46} {:10} {:22} {:>4} {:>12} {:>9} {:>18} {:>9} {:>18} {:>9}",
        app.what,
        app.place,
        server,
        row["wall_percent"]["repetitions"],
        number(&row["wall"][0]["median"], 1),
        number(&row["wall_percent"]["median"], 2),
        interval(&row["wall_percent"], 2),
        number(&row["times_floor"]["median"], 2),
        interval(&row["times_floor"], 2),
        number(&row["cpu_percent"]["median"], 2)
    );
    row
}

pub(crate) fn table(results: &Value) -> String {
    let mut text = String::from(
        "| program | on | log-server | rounds | plain | unit | added by the hook, % | 95 % interval | by the floor wrapper, % | × floor | 95 % interval | CPU plain | CPU added, % | user instructions, millions | added, % |\n|---|---|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in results["programs"].as_array().into_iter().flatten() {
        let word = |key: &str| row[key].as_str().unwrap_or("").to_string();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            word("what"),
            word("place"),
            if row["server"] == APART { "apart" } else { "on the node" },
            row["wall_percent"]["repetitions"],
            number(&row["wall"][0]["median"], 0),
            word("unit"),
            number(&row["wall_percent"]["median"], 2),
            interval(&row["wall_percent"], 2),
            number(&row["floor_percent"]["median"], 2),
            number(&row["times_floor"]["median"], 2),
            interval(&row["times_floor"], 2),
            number(&row["cpu"][0]["median"], 0),
            number(&row["cpu_percent"]["median"], 2),
            row["instructions"][0].as_f64().map_or("–".into(), |count| format!("{:.1}", count / 1e6)),
            number(&row["instructions_percent"], 2)
        );
    }
    for program in results["failed"].as_array().into_iter().flatten() {
        let [what, place, error] = ["what", "place", "error"].map(|key| program[key].as_str().unwrap_or(""));
        let _ = writeln!(text, "\n{what} on {place} failed: {error}");
    }
    let trace = &results["trace"];
    let _ = writeln!(
        text,
        "\nThe daemons ran beside it: {} events recorded, {} lost (policy `drop-newest`), {} bytes per event sealed, log-client {} ns and log-server {} ns of CPU per event.",
        trace["events"],
        trace["lost"],
        number(&trace["bytes_per_event"], 1),
        number(&trace["client_ns_per_event"], 0),
        number(&trace["server_ns_per_event"], 0)
    );
    text
}
