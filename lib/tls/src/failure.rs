//! Explanations of failed handshakes.

use rustls::{AlertDescription, CertificateError, Error};
use std::io;

/// Side of a connection that explains a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The log-server.
    Server,
    /// A client of the log-server.
    Client,
}

/// Returns why the peer rejected this side's certificate, if that ended the connection, and whether
/// a later attempt may succeed without any change.
#[must_use]
pub fn refusal(error: &io::Error) -> Option<(String, bool)> {
    match cause(error)? {
        Error::AlertReceived(alert) => Some((alerted(*alert), is_passing(*alert))),
        _ => None,
    }
}

/// Returns true for alerts with a temporary cause: no free connection, or damaged data.
fn is_passing(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::InternalError
            | AlertDescription::BadRecordMac
            | AlertDescription::RecordOverflow
            | AlertDescription::DecodeError
            | AlertDescription::IllegalParameter
            | AlertDescription::UnexpectedMessage
    )
}

/// Explains a failure, and what to do.
#[must_use]
pub fn explain(error: &io::Error, side: Peer) -> String {
    match cause(error) {
        Some(Error::AlertReceived(alert)) => alerted(*alert),
        Some(Error::InvalidCertificate(reason)) => distrusted(reason, side),
        Some(Error::NoCertificatesPresented) => {
            "it has no certificate, which is needed here (`miot pki`)".into()
        }
        Some(Error::InvalidMessage(_)) if side == Peer::Client => {
            "it does not speak TLS: it is not a log-server, or a log-server without `tls_certificate`".into()
        }
        Some(Error::InvalidMessage(_)) => "the received data is not TLS".into(),
        Some(Error::PeerIncompatible(_)) => "it does not speak TLS 1.3".into(),
        Some(other) => other.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection during the handshake".into()
        }
        None => error.to_string(),
    }
}

fn cause(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn distrusted(reason: &CertificateError, side: Peer) -> String {
    match reason {
        // Another authority may have the name of the right one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is signed by none of the authorities in `tls_authority`".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired by this machine's clock; it must be renewed there".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet by this machine's clock; is one of the clocks wrong?".into()
        }
        CertificateError::Revoked => "its certificate was revoked".into(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is not for {}, but for {}; name it as the certificate does, or make one for all its names \
             (`miot pki server`)",
            expected.to_str(),
            presented.join(", ")
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => match side {
            Peer::Server => "its certificate is not for clients of a server".into(),
            Peer::Client => "its certificate is not for a server".into(),
        },
        other => format!("its certificate cannot be used: {other}"),
    }
}

fn alerted(alert: AlertDescription) -> String {
    match alert {
        // Another authority may have the name of the right one.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it does not know the authority that signed this side's certificate: both \
             `tls_authority` must hold the authority of the other"
                .into()
        }
        AlertDescription::CertificateExpired => {
            "this side's certificate has expired, or is not valid yet, by its clock: renew it (`miot pki`)"
                .into()
        }
        AlertDescription::CertificateRevoked => "this side's certificate was revoked".into(),
        AlertDescription::CertificateRequired => "it requires a certificate from this side".into(),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            "it cannot use this side's certificate: is it one for this purpose (`miot pki show`)?".into()
        }
        AlertDescription::InternalError => "it accepts no further connection (`connections`)".into(),
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3".into(),
        other => format!("it ended the handshake: {other:?}"),
    }
}
