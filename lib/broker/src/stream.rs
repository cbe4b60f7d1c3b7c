//! The stream of JetStream that keeps the messages of the nodes until a log-server has read them.
//!
//! It is a work queue: a message leaves it when it is read, and two consumers of one node cannot be
//! in it. When it is full, it refuses new messages and keeps the old ones; the nodes keep the new
//! ones in their spools.

use crate::error::Error;
use crate::link::Link;
use crate::settings::Settings;
use crate::state::StreamState;
use async_nats::jetstream::context::{GetStreamErrorKind, RequestError, RequestErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use std::error::Error as _;

/// Maximum size of a new stream, bytes; an administrator may change it (`nats stream edit`).
const MAX_BYTES: i64 = 1 << 30;

/// Returns the stream; creates it if it is missing.
///
/// # Errors
/// Those of [`find`].
pub(crate) async fn open(link: &Link) -> Result<Stream, Error> {
    if let Some(stream) = find(link).await? {
        return Ok(stream);
    }
    let created = link.jetstream.create_stream(config(&link.settings)).await;
    created.map_err(|error| {
        let what = format!("create the stream `{}`", link.settings.stream);
        link.request_failed(&what, &with_source(&error))
    })
}

/// Returns the stream; `None` if it is missing.
///
/// # Errors
/// [`Error::NoJetStream`], [`Error::Permission`], [`Error::OtherStream`], [`Error::Request`].
async fn find(link: &Link) -> Result<Option<Stream>, Error> {
    let (name, settings) = (&link.settings.stream, &link.settings);
    let stream = match link.jetstream.get_stream(name).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                return Ok(None);
            }
            GetStreamErrorKind::JetStream(answer) if is_off(&answer) => {
                let reason = answer.to_string();
                return Err(Error::NoJetStream { url: settings.url.clone(), reason });
            }
            _ => {
                let reason = with_source(&error);
                // An account without JetStream has no part that answers.
                let source = error.source().and_then(|source| source.downcast_ref::<RequestError>());
                if source.is_some_and(|source| source.kind() == RequestErrorKind::NoResponders) {
                    return Err(Error::NoJetStream { url: settings.url.clone(), reason });
                }
                return Err(link.request_failed(&format!("find the stream `{name}`"), &reason));
            }
        },
    };
    check(settings, &stream.cached_info().config)?;
    Ok(Some(stream))
}

/// An error and its causes.
pub(crate) fn with_source(error: &dyn std::error::Error) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

fn is_off(answer: &jetstream::Error) -> bool {
    [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT]
        .contains(&answer.error_code())
}

fn config(settings: &Settings) -> Config {
    Config {
        name: settings.stream.clone(),
        description: Some("MIOT: messages of nodes that no log-server has read".into()),
        subjects: vec![settings.subject("up", "*")],
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        max_bytes: MAX_BYTES,
        num_replicas: 1,
        ..Config::default()
    }
}

/// Checks what correctness depends on. Limits, storage and replicas are the administrator's.
fn check(settings: &Settings, found: &Config) -> Result<(), Error> {
    let differs = |expected: String, found: String| {
        Err(Error::OtherStream { stream: settings.stream.clone(), expected, found })
    };
    let subject = settings.subject("up", "*");
    if found.subjects != [subject.clone()] {
        return differs(format!("the subject {subject}"), found.subjects.join(", "));
    }
    if found.retention != RetentionPolicy::WorkQueue {
        return differs("retention by work queue".into(), format!("{:?}", found.retention));
    }
    if found.discard != DiscardPolicy::New {
        return differs(
            "that new messages are refused when it is full".into(),
            format!("discard {:?}", found.discard),
        );
    }
    if found.sealed || found.no_ack {
        return differs(
            "a stream that acknowledges messages".into(),
            "one that does not, or is sealed".into(),
        );
    }
    Ok(())
}

/// What an administrator wants to know of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The stream; `None` if it is missing.
    pub stream: Option<StreamState>,
    /// The log-server that reads it, as it describes itself; `None` if no one does.
    pub reader: Option<String>,
}

/// Connects, as `node` if that is given, and looks for the stream and for its log-server. Changes
/// nothing.
///
/// # Errors
/// Those of the connection and of the stream.
pub async fn survey(settings: &Settings, name: &str, node: Option<&str>) -> Result<Survey, Error> {
    let link = Link::connect(settings, name.into(), node).await?;
    let stream = find(&link).await?.map(|stream| state_of(&stream, &link));
    let reader = link.client.request(settings.claim(), Bytes::new()).await.ok();
    let reader = reader.map(|answer| String::from_utf8_lossy(&answer.payload).into_owned());
    Ok(Survey { stream, reader })
}

pub(crate) fn state_of(stream: &Stream, link: &Link) -> StreamState {
    let info = stream.cached_info();
    StreamState {
        messages: info.state.messages,
        bytes: info.state.bytes,
        max_bytes: u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0),
        max_payload: link.max_payload(),
    }
}
