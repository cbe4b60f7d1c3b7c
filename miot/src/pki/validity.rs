//! Validity of certificates.

use anyhow::Context as _;
use clap::Args;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Start of a new certificate's validity before now, for machines whose clock is behind.
const BEFORE: SignedDuration = SignedDuration::from_hours(1);

#[derive(Args, Debug)]
pub(super) struct Validity {
    /// Validity in days [default: 365, for an authority 3650]
    #[arg(long, value_name = "N", conflicts_with = "not_after")]
    days: Option<u32>,
    /// Expiry date: 2027-01-31 or 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    not_after: Option<String>,
}

impl Validity {
    /// Returns the first and last moment of validity.
    pub(super) fn times(&self, default_days: u32) -> anyhow::Result<(Timestamp, Timestamp)> {
        let now = Timestamp::now();
        let last = match &self.not_after {
            Some(text) => parse(text)?,
            None => now
                .checked_add(SignedDuration::from_hours(24 * i64::from(self.days.unwrap_or(default_days))))
                .context("--days is too large: the expiry date is out of range")?,
        };
        Ok((now.min(last).saturating_sub(BEFORE)?, last))
    }
}

fn parse(text: &str) -> anyhow::Result<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let date: Date =
        text.parse().with_context(|| format!("--not-after: `{text}` is not a time such as 2027-01-31"))?;
    Ok(date.to_zoned(TimeZone::UTC)?.timestamp())
}
