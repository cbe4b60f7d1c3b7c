//! Content of a certificate, and the rights that it gives.
//!
//! A certificate of MIOT has one role, as a URI among its alternative names (`miot:server`,
//! `miot:node`, `miot:reader` or `miot:operator`), and its names as DNS names (a server also as IP
//! addresses). Names are compared byte by byte, without wildcards: the name of a node is data in
//! the trace, where `Node1` and `node1` are different.

use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Remaining validity below which a warning is logged.
pub const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Role of the holder of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A log-server.
    Server,
    /// A log-client, which writes as a node.
    Node,
    /// A reader of the merged trace.
    Reader,
    /// An operator, who controls recording on nodes.
    Operator,
}

impl Role {
    /// Name of the role, as in `miot pki`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Node => "node",
            Role::Reader => "reader",
            Role::Operator => "operator",
        }
    }

    /// URI of the role among the alternative names.
    #[must_use]
    pub fn uri(self) -> String {
        format!("miot:{}", self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(name: &str) -> Result<Role, ()> {
        let roles = [Role::Server, Role::Node, Role::Reader, Role::Operator];
        roles.into_iter().find(|role| role.name() == name).ok_or(())
    }
}

/// A certificate cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes are not an X.509 certificate in DER.
    #[error(transparent)]
    Syntax(#[from] x509_parser::nom::Err<X509Error>),
    /// An extension is not valid.
    #[error(transparent)]
    Extension(#[from] X509Error),
    /// The validity is outside the range of a timestamp.
    #[error(transparent)]
    Validity(#[from] jiff::Error),
}

/// A certificate does not give a right. The text is for the holder of the certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// The certificate has another role.
    #[error(
        "your certificate is for a {own}, but this requires a {wanted}; create one with `miot pki {wanted}`"
    )]
    OtherRole {
        /// Role of the certificate.
        own: Role,
        /// Required role.
        wanted: Role,
    },
    /// The certificate has no role or several roles.
    #[error(
        "your certificate does not have exactly one role of MIOT (a URI such as {} among its alternative names); create one with \
         `miot pki {wanted}`", wanted.uri()
    )]
    NoRole {
        /// Required role.
        wanted: Role,
    },
    /// The certificate belongs to another node.
    #[error(
        "your certificate is for {own}, not for the node `{}`; set `node` to that, or create a certificate with \
         `miot pki node`", node.escape_debug()
    )]
    OtherNode {
        /// Names and addresses of the certificate, as text.
        own: String,
        /// Name of the node.
        node: String,
    },
}

/// Content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Subject.
    pub subject: String,
    /// Issuer.
    pub issuer: String,
    /// Serial number, hexadecimal.
    pub serial: String,
    /// DNS names.
    pub names: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Role; `None` if the certificate does not have exactly one role of MIOT.
    pub role: Option<Role>,
    /// True if it may sign other certificates.
    pub authority: bool,
    /// First moment at which it is valid.
    pub not_before: Timestamp,
    /// Last moment at which it is valid.
    pub not_after: Timestamp,
}

impl Certificate {
    /// Parses a certificate in DER. Does not check its signature.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn parse(der: &[u8]) -> Result<Certificate, ParseError> {
        let (_, x509) = X509Certificate::from_der(der)?;
        let alternative = x509.subject_alternative_name()?;
        let (mut names, mut addresses, mut roles) = (Vec::new(), Vec::new(), Vec::new());
        for name in alternative.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
                GeneralName::URI(uri) => roles.extend(uri.strip_prefix("miot:").map(str::parse::<Role>)),
                _ => {}
            }
        }
        let role = match roles[..] {
            [Ok(role)] => Some(role),
            _ => None,
        };
        Ok(Certificate {
            subject: x509.subject().to_string(),
            issuer: x509.issuer().to_string(),
            serial: x509.raw_serial_as_string(),
            names,
            addresses,
            role,
            authority: x509.is_ca(),
            not_before: Timestamp::from_second(x509.validity().not_before.timestamp())?,
            not_after: Timestamp::from_second(x509.validity().not_after.timestamp())?,
        })
    }

    /// Checks that the holder may act in `role` under `name`. Only a node must have the name; that
    /// of a reader is used only in logs.
    ///
    /// # Errors
    /// [`NotAllowed`].
    pub fn allows(&self, role: Role, name: &str) -> Result<(), NotAllowed> {
        match self.role {
            Some(own) if own == role => {}
            Some(own) => return Err(NotAllowed::OtherRole { own, wanted: role }),
            None => return Err(NotAllowed::NoRole { wanted: role }),
        }
        if role == Role::Node && !self.names.iter().any(|own| own == name) {
            return Err(NotAllowed::OtherNode { own: self.names_in_words(), node: name.to_owned() });
        }
        Ok(())
    }

    /// Names and addresses, as text.
    #[must_use]
    pub fn names_in_words(&self) -> String {
        let names = self.names.iter().map(|name| format!("`{}`", name.escape_debug()));
        let all: Vec<String> = names.chain(self.addresses.iter().map(|ip| format!("`{ip}`"))).collect();
        if all.is_empty() { "no name".into() } else { all.join(", ") }
    }

    /// Validity at `now`.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Age {
        if now > self.not_after {
            Age::Expired
        } else if now < self.not_before {
            Age::NotYet
        } else if self.not_after.duration_since(now) < SOON {
            Age::Soon
        } else {
            Age::Fine
        }
    }
}

/// See [`Certificate::age`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Valid for longer than [`SOON`].
    Fine,
    /// Valid, and expires within [`SOON`].
    Soon,
    /// No longer valid.
    Expired,
    /// Not valid yet.
    NotYet,
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn certificate(names: &[&str], uris: &[&str]) -> Certificate {
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        let key = KeyPair::generate().unwrap();
        Certificate::parse(params.self_signed(&key).unwrap().der()).unwrap()
    }

    #[test]
    fn node_certificates_allow_only_their_names() {
        let node = certificate(&["node1", "node1.cluster"], &["miot:node"]);
        assert_eq!(node.allows(Role::Node, "node1"), Ok(()));
        assert_eq!(node.allows(Role::Node, "node1.cluster"), Ok(()));
        for other in ["node2", "Node1", "node1.", "node", "", "node1\0", "node1.cluster.org", "*"] {
            let refused = node.allows(Role::Node, other).unwrap_err().to_string();
            assert!(refused.contains("`node1`, `node1.cluster`"), "{other:?}: {refused}");
        }
        let refused = node.allows(Role::Reader, "node1").unwrap_err().to_string();
        assert!(refused.contains("for a node") && refused.contains("miot pki reader"), "{refused}");
        assert!(node.allows(Role::Server, "node1").is_err());
    }

    #[test]
    fn wildcards_match_only_themselves() {
        let all = certificate(&["*", "*.cluster"], &["miot:node"]);
        assert!(all.allows(Role::Node, "node1").is_err());
        assert!(all.allows(Role::Node, "node1.cluster").is_err());
    }

    #[test]
    fn readers_may_have_any_name_and_cannot_write() {
        let reader = certificate(&["alice"], &["miot:reader"]);
        assert_eq!(reader.allows(Role::Reader, "laptop"), Ok(()));
        assert!(reader.allows(Role::Node, "alice").unwrap_err().to_string().contains("miot pki node"));
    }

    #[test]
    fn certificates_have_exactly_one_role() {
        for uris in [
            &[][..],
            &["miot:node", "miot:reader"],
            &["miot:node", "miot:node"],
            &["miot:everything"],
            &["miot:node", "miot:everything"],
            &["https://example.org/node"],
            &["MIOT:node"],
        ] {
            let certificate = certificate(&["node1"], uris);
            assert_eq!(certificate.role, None, "{uris:?}");
            assert!(
                certificate.allows(Role::Node, "node1").unwrap_err().to_string().contains("exactly one role")
            );
        }
        assert_eq!(certificate(&["a"], &["https://example.org", "miot:node"]).role, Some(Role::Node));
    }

    #[test]
    fn addresses_are_not_names_of_nodes() {
        let node = certificate(&["10.0.0.1"], &["miot:node"]);
        assert_eq!(node.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(node.allows(Role::Node, "10.0.0.1").is_err());
    }

    #[test]
    fn expiry_is_reported_in_time() {
        let node = certificate(&["node1"], &["miot:node"]);
        let at = |days: i64| node.not_after + SignedDuration::from_hours(24 * days);
        for (now, age) in
            [(at(-31), Age::Fine), (at(-29), Age::Soon), (at(0), Age::Soon), (at(1), Age::Expired)]
        {
            assert_eq!(node.age(now), age);
        }
        assert_eq!(node.age(node.not_before - SignedDuration::from_secs(1)), Age::NotYet);
    }

    #[test]
    fn invalid_certificates_are_errors() {
        for bytes in [&b""[..], b"\x30", b"hello", &[0x30; 100]] {
            assert!(Certificate::parse(bytes).is_err());
        }
    }
}
