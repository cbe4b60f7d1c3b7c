//! Settings of what is recorded, as they are written in configuration files and on command lines:
//! layers, operations, minimum duration, sampling, full-lane policy. One parser for all users of
//! these settings.

use miot_proto::control::{OPS_WORDS, Settings, WhenFull, op_bit, word};
use miot_proto::op::{Layer, Op};
use miot_proto::units::format_duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Words of [`word::OPS`] per layer.
const LAYER_WORDS: usize = 4;

/// Parse error of such a setting. Its `Display` names what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceError(String);

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ChoiceError {}

/// Layers to record: `posix,stdio` selects only these, `-stdio` all except this one; also `all` and
/// `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers(
    /// Bit per layer number.
    pub u64,
);

/// Operations to record: `posix.read,posix.write` selects only these, `-posix.lseek` all except
/// this one. A name without a layer selects the operations of this name in all layers, `posix.*`
/// all of a layer; also `all` and `none`. Entries apply in order: `posix.*,-posix.lseek`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ops(
    /// Bit per layer and operation, see [`op_bit`].
    pub [u64; OPS_WORDS],
);

/// Sampling rate: one request in a power of two is recorded on average, written `1/16` or `16`. `1`
/// records all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleRate {
    /// One in 2ⁿ.
    pub shift: u32,
}

/// Maximum [`SampleRate::shift`]: one request in two billion.
const MAX_SHIFT: u32 = 31;

/// Splits a list into entries, each with true if it adds and false if it removes. The first value
/// is true if the list starts from all: an empty list, or one whose first entry removes.
fn split_entries(text: &str) -> (bool, impl Iterator<Item = (&str, bool)>) {
    let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let from_all = names().next().is_none_or(|first| first.starts_with('-'));
    let signed = names().map(|name| name.strip_prefix('-').map_or((name, true), |rest| (rest.trim(), false)));
    (from_all, signed)
}

fn join_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

impl Default for Layers {
    fn default() -> Layers {
        Layers(u64::MAX)
    }
}

impl FromStr for Layers {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Layers, ChoiceError> {
        let (from_all, entries) = split_entries(text);
        let mut mask = if from_all { u64::MAX } else { 0 };
        for (name, added) in entries {
            let bits = match name {
                "all" => u64::MAX,
                "none" => {
                    mask = 0;
                    continue;
                }
                name => 1 << layer(name)? as u8,
            };
            mask = if added { mask | bits } else { mask & !bits };
        }
        Ok(Layers(mask))
    }
}

fn layer(name: &str) -> Result<Layer, ChoiceError> {
    Layer::from_name(name).ok_or_else(|| {
        let known: Vec<_> = Layer::ALL.iter().map(|layer| layer.name()).collect();
        ChoiceError(format!("`{name}` is not a layer: expected {}, all, none", known.join(", ")))
    })
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == u64::MAX {
            return f.write_str("all");
        }
        let named = |wanted: bool| {
            let chosen = move |layer: &Layer| (self.0 >> *layer as u8 & 1 != 0) == wanted;
            Layer::ALL.into_iter().filter(chosen).map(Layer::name)
        };
        let without: Vec<_> = named(false).map(|name| format!("-{name}")).collect();
        if without.join(",").parse() == Ok(*self) {
            return f.write_str(&join_or_none(&without));
        }
        f.write_str(&join_or_none(&named(true).map(str::to_owned).collect::<Vec<_>>()))
    }
}

impl Default for Ops {
    fn default() -> Ops {
        Ops([u64::MAX; OPS_WORDS])
    }
}

/// The operations of a layer that this version knows.
fn known_ops(layer: Layer) -> impl Iterator<Item = (Op, &'static str)> {
    (1..=u8::MAX)
        .map(move |number| Op { layer: layer as u8, number })
        .map_while(|op| op.name().map(|name| (op, name)))
}

impl Ops {
    const NONE: Ops = Ops([0; OPS_WORDS]);

    fn choose(&mut self, op: Op, recorded: bool) {
        let (at, bit) = op_bit(op);
        let word = &mut self.0[(at - word::OPS) / 8];
        *word = *word & !(1 << bit) | u64::from(recorded) << bit;
    }

    fn has(&self, op: Op) -> bool {
        let (at, bit) = op_bit(op);
        self.0[(at - word::OPS) / 8] >> bit & 1 != 0
    }

    fn layer(&mut self, layer: Layer) -> &mut [u64] {
        &mut self.0[layer as usize * LAYER_WORDS..][..LAYER_WORDS]
    }

    /// Applies one entry.
    fn apply_entry(&mut self, name: &str, added: bool) -> Result<(), ChoiceError> {
        let fill = if added { u64::MAX } else { 0 };
        match name.split_once('.') {
            Some((of, "*")) => self.layer(layer(of)?).fill(fill),
            Some((of, name)) => {
                let of = layer(of)?;
                let (op, _) = known_ops(of).find(|(_, known)| *known == name).ok_or_else(|| {
                    ChoiceError(format!("`{name}` is not an operation of the layer {}", of.name()))
                })?;
                self.choose(op, added);
            }
            None if name == "all" => self.0.fill(fill),
            None if name == "none" => self.0.fill(0),
            None => {
                let named: Vec<_> = Layer::ALL
                    .into_iter()
                    .flat_map(known_ops)
                    .filter(|(_, known)| *known == name)
                    .map(|(op, _)| op)
                    .collect();
                if named.is_empty() {
                    let hint = if Layer::from_name(name).is_some() {
                        format!("; write `{name}.*` for all operations of the layer")
                    } else {
                        String::new()
                    };
                    return Err(ChoiceError(format!(
                        "`{name}` is not an operation: expected e.g. read, posix.read, posix.*, all, none, with a leading \
                         `-` to exclude it{hint}"
                    )));
                }
                named.into_iter().for_each(|op| self.choose(op, added));
            }
        }
        Ok(())
    }
}

impl FromStr for Ops {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Ops, ChoiceError> {
        let (from_all, mut entries) = split_entries(text);
        let mut ops = if from_all { Ops::default() } else { Ops::NONE };
        entries.try_for_each(|(name, added)| ops.apply_entry(name, added))?;
        Ok(ops)
    }
}

impl fmt::Display for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Operations that this version cannot name are selected as a whole: in layers without a
        // name, and above the known numbers of each layer.
        let from_all = self.0[0] != 0;
        let mut names = Vec::new();
        for layer in Layer::ALL {
            let all = self.has(Op { layer: layer as u8, number: u8::MAX });
            let sign = |chosen| if chosen { "" } else { "-" };
            if all != from_all {
                names.push(format!("{}{}.*", sign(all), layer.name()));
            }
            let others = known_ops(layer).filter(|(op, _)| self.has(*op) != all);
            names.extend(others.map(|(_, name)| format!("{}{}.{name}", sign(!all), layer.name())));
        }
        f.write_str(&if names.is_empty() && from_all { "all".to_owned() } else { join_or_none(&names) })
    }
}

impl FromStr for SampleRate {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<SampleRate, ChoiceError> {
        let trimmed = text.trim();
        let one_in = match trimmed.split_once('/') {
            Some((one, of)) if one.trim() == "1" => of.trim(),
            Some(_) => "",
            None => trimmed,
        };
        let one_in = one_in.parse::<u64>().ok().filter(|n| n.is_power_of_two());
        one_in.map(u64::trailing_zeros).filter(|shift| *shift <= MAX_SHIFT).map(|shift| SampleRate { shift }).ok_or_else(
            || {
                ChoiceError(format!(
                    "`{text}` is not a sampling rate: expected one request in a power of two, e.g. 1/16 (or 16), up to 1/{}; 1 \
                     records all",
                    1u64 << MAX_SHIFT
                ))
            },
        )
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shift {
            0 => f.write_str("1"),
            shift => write!(f, "1/{}", 1u64 << shift.min(63)),
        }
    }
}

/// Forms of such a setting in a file: a string, a list of strings, a number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
enum TextOrList {
    One(String),
    Many(Vec<String>),
    Number(u64),
}

fn read<'de, D: Deserializer<'de>, T: FromStr<Err = ChoiceError>>(deserializer: D) -> Result<T, D::Error> {
    let text = match TextOrList::deserialize(deserializer)? {
        TextOrList::One(text) => text,
        TextOrList::Many(texts) => texts.join(","),
        TextOrList::Number(number) => number.to_string(),
    };
    text.parse().map_err(D::Error::custom)
}

macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                read(deserializer)
            }
        }
    )*};
}

as_text!(Layers, Ops, SampleRate);

const POLICIES: [(&str, WhenFull); 3] = [
    ("drop-newest", WhenFull::DropNewest),
    ("wait", WhenFull::Wait),
    ("overwrite-oldest", WhenFull::OverwriteOldest),
];

/// Returns the name of a policy.
#[must_use]
pub fn when_full_name(policy: WhenFull) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name)
}

/// Parses the name of a policy.
///
/// # Errors
/// [`ChoiceError`] with the valid names.
pub fn parse_when_full(text: &str) -> Result<WhenFull, ChoiceError> {
    let found = POLICIES.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
    found.ok_or_else(|| {
        ChoiceError(format!(
            "`{text}` is not a policy: expected one of {}",
            POLICIES.map(|(name, _)| name).join(", ")
        ))
    })
}

/// Serde's `with` for a policy.
pub(super) mod when_full {
    use super::{Deserialize, Deserializer, Serializer, WhenFull, parse_when_full, when_full_name};
    use serde::de::Error;

    pub(in super::super) fn serialize<S: Serializer>(
        policy: &WhenFull,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(when_full_name(*policy))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<WhenFull, D::Error> {
        parse_when_full(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Describes the settings in one line for display.
#[must_use]
pub fn settings_summary(settings: &Settings) -> String {
    format!(
        "{}; layers {}; operations {}; at least {}; sample {}; {}{}{}",
        if settings.enabled { "on" } else { "off" },
        Layers(settings.layers),
        Ops(settings.chosen),
        format_duration(Duration::from_nanos(settings.min_duration_ns)),
        SampleRate { shift: settings.sample_shift },
        when_full_name(settings.when_full),
        if settings.flight_recorder { "; flight recorder" } else { "" },
        if settings.cpu_time { "; CPU time" } else { "" }
    )
}

/// A change of the settings; fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// Recording on or off.
    pub enabled: Option<bool>,
    /// Layers to record.
    pub layers: Option<Layers>,
    /// Operations to record.
    pub ops: Option<Ops>,
    /// Minimum duration of recorded requests.
    pub min_duration: Option<Duration>,
    /// Sampling rate.
    pub sample: Option<SampleRate>,
    /// Full-lane policy.
    pub when_full: Option<WhenFull>,
    /// Maximum wait of [`WhenFull::Wait`] for one record.
    pub wait: Option<Duration>,
    /// Flight recorder. On: lanes overwrite their oldest records and are read only on demand. Off,
    /// without a policy in the same change: lanes drop the newest records.
    pub flight_recorder: Option<bool>,
}

impl SettingsChange {
    /// Applies the change.
    ///
    /// # Errors
    /// [`ChoiceError`] if the flight recorder is combined with a policy other than
    /// `overwrite-oldest`. Then `settings` stay unchanged.
    pub fn apply_to(&self, settings: &mut Settings) -> Result<(), ChoiceError> {
        let mut changed = settings.clone();
        if let Some(enabled) = self.enabled {
            changed.enabled = enabled;
        }
        if let Some(Layers(layers)) = self.layers {
            changed.layers = layers;
        }
        if let Some(Ops(chosen)) = self.ops {
            changed.chosen = chosen;
        }
        if let Some(least) = self.min_duration {
            changed.min_duration_ns = nanoseconds(least);
        }
        if let Some(wait) = self.wait {
            changed.wait_ns = nanoseconds(wait);
        }
        if let Some(sample) = self.sample {
            changed.sample_shift = sample.shift;
        }
        match (self.flight_recorder, self.when_full) {
            (Some(true), None) => changed.when_full = WhenFull::OverwriteOldest,
            (Some(false), None) if settings.flight_recorder => changed.when_full = WhenFull::DropNewest,
            (_, Some(policy)) => changed.when_full = policy,
            (_, None) => {}
        }
        changed.flight_recorder = self.flight_recorder.unwrap_or(settings.flight_recorder);
        if changed.flight_recorder && changed.when_full != WhenFull::OverwriteOldest {
            return Err(ChoiceError(format!(
                "a flight recorder requires the policy `overwrite-oldest`, not `{}`: omit the policy, or switch the flight \
                 recorder off",
                when_full_name(changed.when_full)
            )));
        }
        *settings = changed;
        Ok(())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use miot_proto::op::{client, posix, stdio};
    use proptest::prelude::*;

    fn ops(text: &str) -> Ops {
        text.parse().unwrap()
    }

    #[test]
    fn lists_select_or_exclude_operations() {
        let only = ops("posix.read, posix.write");
        assert!(only.has(posix::READ) && only.has(posix::WRITE));
        assert!(!only.has(posix::OPEN) && !only.has(stdio::FREAD));
        let but = ops("-posix.lseek");
        assert!(!but.has(posix::LSEEK) && but.has(posix::READ) && but.has(client::SEEK));
        let rest = ops("posix.*,-posix.lseek");
        assert!(!rest.has(posix::LSEEK) && rest.has(posix::READ) && !rest.has(client::READ));
        let everywhere = ops("read");
        assert!(everywhere.has(posix::READ) && everywhere.has(client::READ) && !everywhere.has(posix::PREAD));
        assert_eq!((ops(""), ops("all"), ops("none")), (Ops::default(), Ops::default(), Ops::NONE));
    }

    #[test]
    fn lists_select_or_exclude_layers() {
        let mask = |text: &str| text.parse::<Layers>().unwrap().0;
        assert_eq!(mask("posix,stdio"), 1 << 4 | 1 << 3);
        assert_eq!(mask("-stdio"), !(1 << 3));
        assert_eq!((mask(""), mask("all"), mask("none")), (u64::MAX, u64::MAX, 0));
        for text in ["all", "none", "posix", "stdio,posix", "-stdio,-posix"] {
            assert_eq!(text.parse::<Layers>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn parse_errors_name_valid_values() {
        let refused = |text: &str| text.parse::<Ops>().unwrap_err().to_string();
        assert!(refused("raed").contains("posix.read"));
        assert!(refused("posix").contains("posix.*"));
        assert!(refused("posx.read").contains("posix"));
        assert!(refused("posix.fread").contains("posix"));
        assert!("posx".parse::<Layers>().unwrap_err().to_string().contains("mpi-io"));
        for text in ["1/10", "0", "2/4", "", "1/", "0.5", "1/4294967296", "-16"] {
            assert!(text.parse::<SampleRate>().unwrap_err().to_string().contains("1/16"), "{text}");
        }
        assert!(parse_when_full("block").unwrap_err().to_string().contains("overwrite-oldest"));
    }

    #[test]
    fn sampling_rates_are_powers_of_two() {
        for (text, shift, shown) in [
            ("1/16", 4, "1/16"),
            ("16", 4, "1/16"),
            ("1", 0, "1"),
            ("1 / 2", 1, "1/2"),
            ("1/2147483648", 31, "1/2147483648"),
        ] {
            let sample: SampleRate = text.parse().unwrap();
            assert_eq!((sample.shift, sample.to_string().as_str()), (shift, shown));
        }
    }

    #[test]
    fn flight_recorder_switches_the_full_lane_policy() {
        let mut settings = Settings::default();
        SettingsChange { flight_recorder: Some(true), ..SettingsChange::default() }
            .apply_to(&mut settings)
            .unwrap();
        assert_eq!((settings.flight_recorder, settings.when_full), (true, WhenFull::OverwriteOldest));
        let wrong = SettingsChange { when_full: Some(WhenFull::Wait), ..SettingsChange::default() };
        let before = settings.clone();
        assert!(wrong.apply_to(&mut settings).unwrap_err().to_string().contains("wait"));
        assert_eq!(settings, before, "a refused change changes nothing");
        SettingsChange { flight_recorder: Some(false), ..SettingsChange::default() }
            .apply_to(&mut settings)
            .unwrap();
        assert_eq!((settings.flight_recorder, settings.when_full), (false, WhenFull::DropNewest));
        let mut settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
        SettingsChange { flight_recorder: Some(false), ..SettingsChange::default() }
            .apply_to(&mut settings)
            .unwrap();
        assert_eq!(settings.when_full, WhenFull::Wait, "the flight recorder was off already");
    }

    proptest! {
        #[test]
        fn operations_round_trip_through_text(entries in prop::collection::vec((0usize..6, 1u8..=110, any::<bool>()), 0..12)) {
            let text: Vec<_> = entries
                .iter()
                .map(|(layer, number, added)| {
                    let layer = Layer::ALL[*layer];
                    let op = Op { layer: layer as u8, number: *number };
                    let name = format!("{}.{}", layer.name(), op.name().unwrap_or("*"));
                    if *added { name } else { format!("-{name}") }
                })
                .collect();
            let ops: Ops = text.join(",").parse().unwrap();
            prop_assert_eq!(ops.to_string().parse::<Ops>(), Ok(ops.clone()), "{}", ops);
        }
    }
}
