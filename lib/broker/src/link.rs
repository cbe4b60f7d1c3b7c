//! A connection to the broker. It is not reconnected: what was under way when it ended is unknown,
//! so everything on it ends, and begins again on a new one.

use crate::credentials::Credentials;
use crate::error::Error;
use crate::settings::{Settings, token};
use async_nats::jetstream;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerError};
use std::time::Duration;
use tokio::sync::watch;

/// Maximum time for a connection, and for the answer to a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Interval of pings: a broker that answers none of two is gone.
const PING_EVERY: Duration = Duration::from_secs(10);

/// A connection to the broker.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) settings: Settings,
    /// Reason why the connection ended, or why the broker refused something.
    broken: watch::Receiver<Option<String>>,
}

impl Link {
    /// Connects and authenticates. Answers to `node` have a subject of its own: a user who may read
    /// those of all could read what the log-server gets.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::Setting`] and [`Error::Read`] for the file of credentials.
    pub(crate) async fn connect(
        settings: &Settings,
        name: String,
        node: Option<&str>,
    ) -> Result<Link, Error> {
        let (breaks, broken) = watch::channel(None);
        let (options, addresses) = (options(settings)?, settings.addresses().map(str::to_owned));
        let addresses: Vec<String> = addresses.collect();
        let options = match node {
            Some(node) => options.custom_inbox_prefix(settings.subject("inbox", &token(node))),
            None => options,
        };
        let options = options
            .name(name)
            .no_echo()
            .connection_timeout(ANSWER_WITHIN)
            .request_timeout(Some(ANSWER_WITHIN))
            .ping_interval(PING_EVERY)
            .max_reconnects(addresses.len())
            .event_callback(move |event| {
                if let Some(reason) = reason_of(&event) {
                    breaks.send_if_modified(|broken| {
                        let first = broken.is_none();
                        broken.get_or_insert(reason);
                        first
                    });
                }
                async {}
            });
        let connected = tokio::time::timeout(ANSWER_WITHIN, options.connect(addresses)).await;
        let cannot = |reason: String| Error::Connect { url: settings.url.clone(), reason };
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                return Err(cannot(match error.kind() {
                    ConnectErrorKind::AuthorizationViolation => {
                        "it refuses user, password, token or key (`broker_credentials`)".into()
                    }
                    ConnectErrorKind::Tls => format!("{error} (`broker_authority`, `broker_certificate`)"),
                    _ => error.to_string(),
                }));
            }
            Err(_) => return Err(cannot(format!("no answer within {ANSWER_WITHIN:?}"))),
        };
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(ANSWER_WITHIN);
        Ok(Link { client, jetstream, settings: settings.clone(), broken })
    }

    /// Waits for the end of the connection, or for a refusal.
    pub(crate) async fn broken(&self) -> Error {
        let mut broken = self.broken.clone();
        match broken.wait_for(Option::is_some).await {
            Ok(reason) => error_of(reason.as_deref().unwrap_or_default()),
            Err(_) => Error::Broken("closed".into()),
        }
    }

    /// The error of a failed request: the reason of the broker, if it has given one.
    pub(crate) fn request_failed(&self, what: &str, reason: &impl ToString) -> Error {
        match self.broken.borrow().as_deref() {
            Some(reason) => error_of(reason),
            None => Error::Request { what: what.into(), reason: reason.to_string() },
        }
    }

    /// Maximum bytes of a message.
    pub(crate) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }
}

fn error_of(reason: &str) -> Error {
    if reason.to_ascii_lowercase().contains("permissions violation") {
        Error::Permission(reason.into())
    } else {
        Error::Broken(reason.into())
    }
}

/// Why the connection cannot be used any more; `None` if it can.
fn reason_of(event: &Event) -> Option<String> {
    match event {
        Event::Disconnected => Some("the broker has closed it, or the network".into()),
        Event::Closed => Some("closed".into()),
        Event::LameDuckMode => Some("the broker is being stopped".into()),
        Event::SlowConsumer(_) => Some("messages were dropped because this program did not read them".into()),
        Event::ServerError(ServerError::Other(reason)) => Some(reason.clone()),
        Event::ServerError(error) => Some(error.to_string()),
        Event::ClientError(error) => Some(error.to_string()),
        _ => None,
    }
}

fn options(settings: &Settings) -> Result<ConnectOptions, Error> {
    let invalid =
        |error: std::io::Error| Error::Setting { key: "broker_credentials", reason: error.to_string() };
    let mut options = match Credentials::read(settings.credentials.as_deref())? {
        Credentials::None => ConnectOptions::new(),
        Credentials::Jwt(text) => ConnectOptions::with_credentials(&text).map_err(invalid)?,
        Credentials::Nkey(seed) => ConnectOptions::with_nkey(seed),
        Credentials::Token(token) => ConnectOptions::with_token(token),
        Credentials::User(user, password) => ConnectOptions::with_user_and_password(user, password),
    };
    if let Some(authority) = &settings.authority {
        options = options.add_root_certificates(authority.clone());
    }
    if let (Some(certificate), Some(key)) = (&settings.certificate, &settings.key) {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(options.require_tls(settings.is_encrypted()))
}
