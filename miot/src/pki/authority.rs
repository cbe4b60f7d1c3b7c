//! The authority and the certificates it signs. Keys are ECDSA on P-256, which every tool supports.

use super::files::Pair;
use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use miot_tls::Role;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd,
};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Longest name, bytes.
const MAX_NAME: usize = 253;

/// First and last moment of validity.
type Times = (Timestamp, Timestamp);

/// Returns certificate and key of a new authority, in PEM.
pub(super) fn new(name: &str, times: Times) -> anyhow::Result<(String, String)> {
    let mut params = params(times)?;
    params.distinguished_name.push(DnType::CommonName, format!("MIOT authority of {name}"));
    // The authority signs certificates, not further authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Authority loaded from a directory.
pub(super) struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    pub(super) fn open(dir: &Path) -> anyhow::Result<Authority> {
        let Pair { certificate, key } = Pair::authority(dir);
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| {
                format!("cannot read {}: is this the directory of `miot pki init`?", path.display())
            })
        };
        let pair = KeyPair::from_pem(&read(&key)?)
            .with_context(|| format!("{} is not a private key in PEM", key.display()))?;
        let issuer = Issuer::from_ca_cert_pem(&read(&certificate)?, pair)
            .with_context(|| format!("{} is not an authority's certificate in PEM", certificate.display()))?;
        Ok(Authority(issuer))
    }

    /// Returns certificate and key for these names, in PEM.
    pub(super) fn issue(
        &self,
        role: Role,
        names: &[String],
        times: Times,
    ) -> anyhow::Result<(String, String)> {
        let mut params = params(times)?;
        let first = names.first().map_or("", String::as_str);
        params.distinguished_name.push(DnType::CommonName, first);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match role {
            Role::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Role::Node | Role::Reader | Role::Operator => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) if role == Role::Server => SanType::IpAddress(address),
                _ => SanType::DnsName(name.as_str().try_into()?),
            });
        }
        params.subject_alt_names.push(SanType::URI(role.uri().try_into()?));
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }
}

fn params((first, last): Times) -> anyhow::Result<CertificateParams> {
    let time = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).context("a certificate cannot be valid before 1970")?;
        anyhow::Ok(date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds))
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    (params.not_before, params.not_after) = (time(first)?, time(last)?);
    Ok(params)
}

/// Checks a name. Names are also used as file names.
pub(super) fn check_name(role: Role, name: &str) -> anyhow::Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let address = role == Role::Server && name.parse::<IpAddr>().is_ok();
    let named = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(fine)
        && !name.starts_with(['.', '-'])
        && !name.ends_with('.');
    ensure!(
        address || named,
        "`{}` is not a valid name: expected 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`{}",
        name.escape_debug(),
        if role == Role::Server { ", or an IP address" } else { "" }
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        for good in ["node1", "gpu_3", "Node-1.cluster", "10.0.0.1"] {
            check_name(Role::Node, good).unwrap();
        }
        for bad in ["", ".", "..", "../x", "a/b", "a b", "-x", "*.cluster", "nöd", "a\n", &"x".repeat(254)] {
            assert!(check_name(Role::Node, bad).is_err(), "{bad:?}");
        }
        check_name(Role::Server, "::1").unwrap();
        assert!(check_name(Role::Node, "::1").is_err());
    }
}
