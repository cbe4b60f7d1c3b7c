//! The three files of a configuration: a certificate with its chain, its key, and the authorities
//! that are trusted.

use crate::certificate::{Age, Certificate};
use crate::provider;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest file that is read, bytes: hundreds of authorities.
const MAX_FILE: u64 = 1 << 20;

/// Reason why files cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some of the three keys are missing.
    #[error(
        "`{missing}` is missing: `tls_certificate`, `tls_key` and `tls_authority` go together; give all three, or none"
    )]
    Incomplete {
        /// The first of them.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("{key}: cannot read {path}: {source}{}", may_not(.source))]
    Read {
        /// Key of the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file does not have the expected content.
    #[error("{key}: {path} contains no {wanted} in PEM ({found}); create one with `miot pki`")]
    Content {
        /// Key of the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Expected content.
        wanted: &'static str,
        /// Content found instead.
        found: String,
    },
    /// A certificate or key is well-formed but cannot be used.
    #[error("{key}: {path}: {reason}")]
    Unusable {
        /// Key of the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// Other users can read or change the private key.
    #[error(
        "tls_key: {path} can be read or changed by others than its owner (mode {mode:03o}): \
         chmod 600 {path}, or 640 for a group of its own; if others could read it, make a new one"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Key and certificate are not of one pair.
    #[error(
        "tls_key: {key} does not belong to the certificate {certificate}: use the key that was created with the certificate"
    )]
    Mismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
}

/// Paths of certificate, key and authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authority: PathBuf,
}

/// Content of the files.
pub(crate) struct Material {
    /// The own certificate.
    pub(crate) own: Certificate,
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Files {
    /// Creates the paths from the keys `tls_certificate`, `tls_key` and `tls_authority`; `None` if
    /// none of them is given.
    ///
    /// # Errors
    /// [`Error::Incomplete`].
    pub fn new(
        certificate: Option<&Path>,
        key: Option<&Path>,
        authority: Option<&Path>,
    ) -> Result<Option<Files>, Error> {
        let missing = match (certificate, key, authority) {
            (Some(certificate), Some(key), Some(authority)) => {
                return Ok(Some(Files {
                    certificate: certificate.into(),
                    key: key.into(),
                    authority: authority.into(),
                }));
            }
            (None, None, None) => return Ok(None),
            (None, _, _) => "tls_certificate",
            (_, None, _) => "tls_key",
            (_, _, None) => "tls_authority",
        };
        Err(Error::Incomplete { missing })
    }

    /// Returns the file of the certificate.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    pub(crate) fn read(&self) -> Result<Material, Error> {
        let chain = certificates("tls_certificate", &self.certificate)?;
        let own = parse("tls_certificate", &self.certificate, chain.first())?;
        let key = self.read_key()?;
        let unusable = |reason: String| Error::Unusable { key: "tls_key", path: self.key.clone(), reason };
        let signing = provider()
            .key_provider
            .load_private_key(key)
            .map_err(|_| unusable("unsupported kind of key; `miot pki` creates ECDSA P-256".into()))?;
        let certified = CertifiedKey::new(chain, signing);
        match certified.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                return Err(Error::Mismatch { key: self.key.clone(), certificate: self.certificate.clone() });
            }
            Err(error) => return Err(unusable(error.to_string())),
        }
        let mut roots = RootCertStore::empty();
        for authority in certificates("tls_authority", &self.authority)? {
            let bad = |reason| Error::Unusable { key: "tls_authority", path: self.authority.clone(), reason };
            if !parse("tls_authority", &self.authority, Some(&authority))?.authority {
                return Err(bad(
                    "a certificate that may not sign others; the authority's is `ca.pem` of `miot pki`"
                        .into(),
                ));
            }
            roots.add(authority).map_err(|error| bad(error.to_string()))?;
        }
        Ok(Material { own, certified: Arc::new(certified), roots: Arc::new(roots), revoked: self.revoked()? })
    }

    fn read_key(&self) -> Result<PrivateKeyDer<'static>, Error> {
        let fail = |source| Error::Read { key: "tls_key", path: self.key.clone(), source };
        let file = File::open(&self.key).map_err(fail)?;
        // The group may read the key, for a daemon that is not root; others may not.
        let mode = file.metadata().map_err(fail)?.mode() & 0o777;
        if mode & 0o037 != 0 {
            return Err(Error::Exposed { path: self.key.clone(), mode });
        }
        let text = read(file).map_err(fail)?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| Error::Content {
            key: "tls_key",
            path: self.key.clone(),
            wanted: "private key",
            found: found(&error, &text),
        })
    }

    /// Returns the revocation lists in the file of the authorities.
    fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
        let text = open("tls_authority", &self.authority)?;
        CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|error| {
            Error::Unusable {
                key: "tls_authority",
                path: self.authority.clone(),
                reason: format!("a list of revoked certificates cannot be read: {error}"),
            }
        })
    }
}

fn open(key: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    File::open(path).and_then(read).map_err(|source| Error::Read { key, path: path.into(), source })
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("longer than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// Returns all certificates of a file; at least one.
fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = open(key, path)?;
    let content = |found| Error::Content { key, path: path.into(), wanted: "certificate", found };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| content(found(&error, &text)))?;
    if all.is_empty() { Err(content(found(&PemError::NoItemsFound, &text))) } else { Ok(all) }
}

/// Returns the content of the certificates of a PEM file.
///
/// # Errors
/// [`Error::Read`], [`Error::Content`], [`Error::Unusable`].
pub fn certificates_of(path: &Path) -> Result<Vec<Certificate>, Error> {
    const KEY: &str = "certificate";
    certificates(KEY, path)?.iter().map(|der| parse(KEY, path, Some(der))).collect()
}

fn parse(key: &'static str, path: &Path, der: Option<&CertificateDer<'_>>) -> Result<Certificate, Error> {
    let der = der.map_or(&[][..], |der| der.as_ref());
    Certificate::parse(der).map_err(|reason| Error::Unusable {
        key,
        path: path.into(),
        reason: format!("the certificate cannot be read: {reason}"),
    })
}

/// Describes the kind of content of a PEM file, never the content itself.
fn found(error: &PemError, text: &[u8]) -> String {
    let PemError::NoItemsFound = error else { return format!("broken PEM: {error}") };
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(text).flatten();
    match sections.map(|(kind, _)| kind).next() {
        None if text.is_empty() => "the file is empty".into(),
        None => "no PEM at all".into(),
        Some(SectionKind::Certificate) => "but a certificate".into(),
        Some(SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey) => {
            "but a private key".into()
        }
        Some(_) => "but something else".into(),
    }
}

/// Logs a warning or an error if a certificate expires soon or is not valid.
pub(crate) fn warn_of_end(own: &Certificate, path: &Path) {
    let (now, file) = (Timestamp::now(), path.display());
    match own.age(now) {
        Age::Fine => {}
        Age::Soon => {
            let days = own.not_after.duration_since(now).as_hours() / 24;
            tracing::warn!(%file, expires = %own.not_after, days, "the certificate expires soon: renew it");
        }
        Age::Expired => {
            tracing::error!(%file, expired = %own.not_after, "the certificate has expired: peers refuse it; renew it");
        }
        Age::NotYet => {
            tracing::error!(%file, from = %own.not_before, "the certificate is not valid yet: check the clock");
        }
    }
}

/// Returns advice for a file that may not be read.
fn may_not(error: &std::io::Error) -> &'static str {
    let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
    if denied {
        "; the user of this daemon must be able to: chgrp it to its group (miot), and chmod 640"
    } else {
        ""
    }
}
