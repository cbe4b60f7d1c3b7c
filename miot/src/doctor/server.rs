//! The log-server of this machine, if there is one.

use super::certificates::{age, of_authority};
use super::disk::folder;
use super::report::CheckReport;
use crate::numbers::bytes;
use miot_log_server::Config;
use miot_log_server::config::DEFAULT_FILE;
use miot_tls::{Files, TlsServer};
use std::path::Path;
use std::time::Duration;

/// Time within which a sealed part is uploaded if the uploader and the store work.
const UPLOADED_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Number of parts for which a trace directory needs space: the live part, and one that is being
/// sealed.
const PARTS: u64 = 2;

pub(super) fn examine(file: Option<&Path>, report: &mut CheckReport) {
    if file.is_none() && !Path::new(DEFAULT_FILE).is_file() {
        return;
    }
    let name = file.unwrap_or(Path::new(DEFAULT_FILE)).display();
    let config = match Config::load(file, serde_json::json!({})) {
        Ok(config) => config,
        Err(error) => {
            return report.problem("configuration", "log-server", error.to_string(), format!("fix {name}"));
        }
    };
    let found =
        format!("{name} is valid: listens on {}, writes to {}", config.listen, config.trace.display());
    report.ok("configuration", "log-server", found);
    let wanted = config.seal_bytes.saturating_mul(PARTS);
    folder("trace", &config.trace, config.user.as_deref(), wanted, report);
    uploads(&config, report);
    #[cfg(feature = "broker")]
    if let Some(broker) = config.broker() {
        super::broker::examine("log-server", &broker, None, report);
    }
    certificates(&config, report);
}

/// Sealed parts that the object store should have by now.
fn uploads(config: &Config, report: &mut CheckReport) {
    let Some(store) = &config.store else { return };
    // A trace that does not exist yet has no parts.
    let Ok(waiting) = miot_trace_store::upload::backlog(&config.trace, store) else { return };
    if waiting.oldest < UPLOADED_WITHIN {
        return report.ok(
            "trace",
            "uploads",
            format!("no sealed part has waited longer than 15 min for {store}"),
        );
    }
    let minutes = waiting.oldest.as_secs() / 60;
    let found = format!(
        "{} sealed parts ({}) wait for their upload to {store}, the oldest for {minutes} min; they are not removed before",
        waiting.parts,
        bytes(waiting.bytes as f64),
    );
    report.warning("trace", "uploads", found, "systemctl status miot-uploader (docs/guide/object-store.md)");
}

fn certificates(config: &Config, report: &mut CheckReport) {
    const AREA: &str = "certificates";
    let (certificate, key) = (config.tls_certificate.as_deref(), config.tls_key.as_deref());
    let renew = "miot pki server PKI NAME (docs/guide/security.md)".to_owned();
    match Files::new(certificate, key, config.tls_authority.as_deref())
        .map(|files| files.map(TlsServer::load))
    {
        Ok(None) => {}
        Ok(Some(Ok(server))) => {
            let own = server.own();
            report.ok(AREA, "log-server", format!("for {}", own.names_in_words()));
            age("log-server", &own, renew, report);
            if let Some(authority) = &config.tls_authority {
                of_authority(&own, authority, report);
            }
        }
        Ok(Some(Err(error))) | Err(error) => report.problem(AREA, "log-server", error.to_string(), renew),
    }
}
