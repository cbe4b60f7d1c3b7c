//! `miot pki show`: prints certificates.

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use miot_tls::Certificate;
use miot_tls::certificate::Age;
use miot_tls::files::certificates_of;
use std::path::PathBuf;

/// Print the contents of certificates and their expiry dates
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  miot pki show pki/ca.pem pki/*/*.pem")]
pub(super) struct Arguments {
    /// PEM files with certificates
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for file in &arguments.files {
        let all = certificates_of(file).with_context(|| format!("cannot show {}", file.display()))?;
        for certificate in all {
            println!("{}\n{}", file.display(), text(&certificate, Timestamp::now()));
        }
    }
    Ok(())
}

fn text(certificate: &Certificate, now: Timestamp) -> String {
    let what = match (certificate.role, certificate.authority) {
        (Some(role), _) => format!("{role} {}", certificate.names_in_words()),
        (None, true) => "authority".into(),
        (None, false) => format!("no role of MIOT, names {}", certificate.names_in_words()),
    };
    let days = (certificate.not_after.duration_since(now).as_secs().abs() + 43_200) / 86_400;
    let age = match certificate.age(now) {
        Age::Fine => format!("{days} days left"),
        Age::Soon => format!("{days} days left: renew it"),
        Age::Expired => format!("EXPIRED {days} days ago"),
        Age::NotYet => "NOT VALID YET".into(),
    };
    format!(
        "  is      {what}\n  subject {}\n  issuer  {}\n  serial  {}\n  valid   {} to {} ({age})",
        certificate.subject,
        certificate.issuer,
        certificate.serial,
        certificate.not_before,
        certificate.not_after
    )
}
