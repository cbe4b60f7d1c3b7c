//! The workers of queries.

use super::report::CheckReport;
use crate::query;
use std::io::{self, ErrorKind};
use std::process::{Command, Output};

const AREA: &str = "query";
const CHECK: &str = "worker";

pub(super) fn examine(workers: &[String], report: &mut CheckReport) {
    for worker in workers {
        match check(worker) {
            Ok(checked) if checked.status.success() => {
                report.ok(AREA, CHECK, String::from_utf8_lossy(&checked.stdout).trim());
            }
            Ok(checked) => {
                let host = worker.rsplit_once(':').map_or(worker.as_str(), |(host, _)| host);
                let advice = format!(
                    "on {host}: systemctl status miot-query-worker; compare the certificates: miot pki show CERTIFICATE \
                     (docs/guide/query.md)"
                );
                let said = String::from_utf8_lossy(&checked.stderr);
                let found = said.trim().trim_start_matches("miot query: ");
                report.problem(AREA, CHECK, found, advice);
            }
            Err(error) => {
                let found = format!("miot-query, which connects to workers, cannot be run: {error}");
                return report.problem(AREA, CHECK, found, "install the package miot-query");
            }
        }
    }
}

/// Lets `miot-query` check a worker, with the certificate of the environment.
fn check(worker: &str) -> io::Result<Output> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for program in query::programs()? {
        match Command::new(program).args(["--check", "--workers", worker]).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => last = error,
            checked => return checked,
        }
    }
    Err(last)
}
