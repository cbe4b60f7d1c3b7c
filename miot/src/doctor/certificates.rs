//! Checks certificates: files exist, only their users can read them, keys match, one authority
//! signed them, they have not expired, names match.

use super::report::CheckReport;
use jiff::Timestamp;
use miot_log_client::Config;
use miot_tls::certificate::Age;
use miot_tls::files::certificates_of;
use miot_tls::{Certificate, Files, Role, TlsClient, is_loopback};
use std::path::Path;

const AREA: &str = "certificates";

/// Returns the TLS configuration for a connection, if it is valid.
pub(super) fn examine(config: &Config, report: &mut CheckReport) -> Option<TlsClient> {
    let (certificate, key) = (config.tls_certificate.as_deref(), config.tls_key.as_deref());
    let files = match Files::new(certificate, key, config.tls_authority.as_deref()) {
        Ok(Some(files)) => files,
        Ok(None) => {
            let host = config.server.rsplit_once(':').map_or("", |(host, _)| host);
            if is_loopback(host) {
                report.ok(AREA, "files", "none needed: the log-server is on this machine");
            } else {
                let found = format!("none: the connection to {host} is neither encrypted nor authenticated");
                let advice = format!(
                    "miot pki init pki && miot pki node pki {} (docs/guide/security.md)",
                    config.node
                );
                report.warning(AREA, "files", found, advice);
            }
            return None;
        }
        Err(error) => {
            report.problem(
                AREA,
                "files",
                error.to_string(),
                "name all three in the configuration (docs/guide/security.md)",
            );
            return None;
        }
    };
    let renew = format!("miot pki node PKI {} (docs/guide/security.md)", config.node);
    let client = match TlsClient::load(files, Role::Node) {
        Ok(client) => client,
        Err(error) => {
            report.problem(AREA, "files", error.to_string(), renew);
            return None;
        }
    };
    report.ok(AREA, "files", "certificate, key and authority exist, and the key matches");
    let own = client.own();
    match own.allows(Role::Node, &config.node) {
        Ok(()) => report.ok(AREA, "name", format!("for the node `{}`", config.node)),
        Err(error) => report.problem(AREA, "name", error.to_string(), renew.clone()),
    }
    age("expiry", &own, renew, report);
    if let Some(authority) = &config.tls_authority {
        of_authority(&own, authority, report);
    }
    Some(client)
}

/// Checks the validity of a certificate.
pub(super) fn age(check: &'static str, own: &Certificate, renew: String, report: &mut CheckReport) {
    let now = Timestamp::now();
    let days = own.not_after.duration_since(now).as_hours() / 24;
    match own.age(now) {
        Age::Fine => report.ok(AREA, check, format!("{days} days left")),
        Age::Soon => report.warning(AREA, check, format!("{days} days left, until {}", own.not_after), renew),
        Age::Expired => report.problem(AREA, check, format!("expired on {}", own.not_after), renew),
        Age::NotYet => {
            let found = format!("not valid before {} by this machine's clock", own.not_before);
            report.problem(AREA, check, found, "set the clock: chronyc makestep");
        }
    }
}

/// Checks that the certificate was signed by this authority, and the validity of the authority. A
/// log-server usually has the same authority.
pub(super) fn of_authority(own: &Certificate, file: &Path, report: &mut CheckReport) {
    let Ok(authorities) = certificates_of(file) else { return };
    match authorities.iter().find(|authority| authority.subject == own.issuer) {
        Some(authority) => {
            age(
                "authority",
                authority,
                "miot pki init, and new certificates for all (docs/guide/security.md)".into(),
                report,
            );
        }
        None => {
            let found = format!(
                "the certificate was signed by {}, which is not in {}: a log-server with the same `tls_authority` refuses it",
                own.issuer,
                file.display()
            );
            report.warning(
                AREA,
                "authority",
                found,
                "use certificate and ca.pem of the same `miot pki` directory",
            );
        }
    }
}
