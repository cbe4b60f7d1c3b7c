//! What is recorded, in the words of configuration files and of command lines: layers, operations, shortest
//! duration, sampling, what happens when a lane is full. One parser for all who ask.

use miot_proto::control::{OPS_WORDS, Settings, WhenFull, op_bit, word};
use miot_proto::op::{Layer, Op};
use miot_proto::units::format_duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Words of [`word::OPS`] per layer.
const LAYER_WORDS: usize = 4;

/// Why a choice is not understood. Its `Display` says what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceError(String);

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ChoiceError {}

/// Layers that are recorded: `posix,stdio` is only these, `-stdio` all but this, `all` and `none` what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers(
    /// Bit per layer number.
    pub u64,
);

/// Operations that are recorded: `posix.read,posix.write` is only these, `-posix.lseek` all but this. A name
/// without a layer stands for the operations of this name in all layers, `posix.*` for all of a layer, `all` and
/// `none` for what they say. Entries count in their order: `posix.*,-posix.lseek`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ops(
    /// Bit per layer and operation, see [`op_bit`].
    pub [u64; OPS_WORDS],
);

/// One request in a power of two is recorded, in the mean: `1/16`, or `16`. `1` is all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// One in 2ⁿ.
    pub shift: u32,
}

/// Largest [`Sample::shift`]: one request in two billion.
const MAX_SHIFT: u32 = 31;

/// Entries of a list, and whether each adds or takes away. An empty list, and one that begins by taking away,
/// starts from all.
fn entries(text: &str) -> (bool, impl Iterator<Item = (&str, bool)>) {
    let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let from_all = names().next().is_none_or(|first| first.starts_with('-'));
    let signed = names().map(|name| name.strip_prefix('-').map_or((name, true), |rest| (rest.trim(), false)));
    (from_all, signed)
}

fn listed(names: &[String]) -> String {
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
        let (from_all, entries) = entries(text);
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
        ChoiceError(format!("`{name}` is none of the layers {}, all, none", known.join(", ")))
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
            return f.write_str(&listed(&without));
        }
        f.write_str(&listed(&named(true).map(str::to_owned).collect::<Vec<_>>()))
    }
}

impl Default for Ops {
    fn default() -> Ops {
        Ops([u64::MAX; OPS_WORDS])
    }
}

/// The operations of a layer that this version knows.
fn known(layer: Layer) -> impl Iterator<Item = (Op, &'static str)> {
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
    fn enter(&mut self, name: &str, added: bool) -> Result<(), ChoiceError> {
        let fill = if added { u64::MAX } else { 0 };
        match name.split_once('.') {
            Some((of, "*")) => self.layer(layer(of)?).fill(fill),
            Some((of, name)) => {
                let of = layer(of)?;
                let (op, _) = known(of).find(|(_, known)| *known == name).ok_or_else(|| {
                    ChoiceError(format!("`{name}` is no operation of the layer {}", of.name()))
                })?;
                self.choose(op, added);
            }
            None if name == "all" => self.0.fill(fill),
            None if name == "none" => self.0.fill(0),
            None => {
                let named: Vec<_> = Layer::ALL
                    .into_iter()
                    .flat_map(known)
                    .filter(|(_, known)| *known == name)
                    .map(|(op, _)| op)
                    .collect();
                if named.is_empty() {
                    let hint = if Layer::from_name(name).is_some() {
                        format!("; for all of the layer say `{name}.*`")
                    } else {
                        String::new()
                    };
                    return Err(ChoiceError(format!(
                        "`{name}` is no operation; names are such as read, posix.read, posix.*, all, none, each \
                         with a `-` before it to leave it out{hint}"
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
        let (from_all, mut entries) = entries(text);
        let mut ops = if from_all { Ops::default() } else { Ops::NONE };
        entries.try_for_each(|(name, added)| ops.enter(name, added))?;
        Ok(ops)
    }
}

impl fmt::Display for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever this version does not know by name is chosen as a whole: in the layers without a name, and per
        // layer beyond the known numbers.
        let from_all = self.0[0] != 0;
        let mut names = Vec::new();
        for layer in Layer::ALL {
            let all = self.has(Op { layer: layer as u8, number: u8::MAX });
            let sign = |chosen| if chosen { "" } else { "-" };
            if all != from_all {
                names.push(format!("{}{}.*", sign(all), layer.name()));
            }
            let others = known(layer).filter(|(op, _)| self.has(*op) != all);
            names.extend(others.map(|(_, name)| format!("{}{}.{name}", sign(!all), layer.name())));
        }
        f.write_str(&if names.is_empty() && from_all { "all".to_owned() } else { listed(&names) })
    }
}

impl FromStr for Sample {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Sample, ChoiceError> {
        let trimmed = text.trim();
        let one_in = match trimmed.split_once('/') {
            Some((one, of)) if one.trim() == "1" => of.trim(),
            Some(_) => "",
            None => trimmed,
        };
        let one_in = one_in.parse::<u64>().ok().filter(|n| n.is_power_of_two());
        one_in.map(u64::trailing_zeros).filter(|shift| *shift <= MAX_SHIFT).map(|shift| Sample { shift }).ok_or_else(
            || {
                ChoiceError(format!(
                    "`{text}` is no sampling: one request in a power of two, such as 1/16 (or 16), up to 1/{}; 1 is all",
                    1u64 << MAX_SHIFT
                ))
            },
        )
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shift {
            0 => f.write_str("1"),
            shift => write!(f, "1/{}", 1u64 << shift.min(63)),
        }
    }
}

/// What a file may hold where a choice is expected: a text, a list of texts, a number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, or a list of texts")]
enum Words {
    One(String),
    Many(Vec<String>),
    Number(u64),
}

fn read<'de, D: Deserializer<'de>, T: FromStr<Err = ChoiceError>>(deserializer: D) -> Result<T, D::Error> {
    let text = match Words::deserialize(deserializer)? {
        Words::One(text) => text,
        Words::Many(texts) => texts.join(","),
        Words::Number(number) => number.to_string(),
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

as_text!(Layers, Ops, Sample);

const POLICIES: [(&str, WhenFull); 3] = [
    ("drop-newest", WhenFull::DropNewest),
    ("wait", WhenFull::Wait),
    ("overwrite-oldest", WhenFull::OverwriteOldest),
];

/// The name of a policy.
#[must_use]
pub fn when_full_name(policy: WhenFull) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name)
}

/// The policy of a name.
///
/// # Errors
/// [`ChoiceError`] with the names there are.
pub fn parse_when_full(text: &str) -> Result<WhenFull, ChoiceError> {
    let found = POLICIES.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
    found.ok_or_else(|| {
        ChoiceError(format!("`{text}` is none of {}", POLICIES.map(|(name, _)| name).join(", ")))
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

/// What is recorded, in one line for people.
#[must_use]
pub fn in_short(settings: &Settings) -> String {
    format!(
        "{}; layers {}; operations {}; at least {}; sample {}; {}{}{}",
        if settings.enabled { "on" } else { "off" },
        Layers(settings.layers),
        Ops(settings.chosen),
        format_duration(Duration::from_nanos(settings.min_duration_ns)),
        Sample { shift: settings.sample_shift },
        when_full_name(settings.when_full),
        if settings.flight_recorder { "; flight recorder" } else { "" },
        if settings.cpu_time { "; CPU time" } else { "" }
    )
}

/// A change of what is recorded: what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// On or off.
    pub enabled: Option<bool>,
    /// Layers.
    pub layers: Option<Layers>,
    /// Operations.
    pub ops: Option<Ops>,
    /// Requests that take less are left out.
    pub min_duration: Option<Duration>,
    /// One request in so many.
    pub sample: Option<Sample>,
    /// When a lane is full.
    pub when_full: Option<WhenFull>,
    /// Longest wait of [`WhenFull::Wait`] for one record.
    pub wait: Option<Duration>,
    /// Lanes are read only when there is a reason. On: lanes overwrite their oldest records. Off, with no policy
    /// beside it: they drop the newest again.
    pub flight_recorder: Option<bool>,
}

impl Change {
    /// Applies the change.
    ///
    /// # Errors
    /// [`ChoiceError`] if the flight recorder is to go with a policy other than `overwrite-oldest`.
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
                "a flight recorder keeps the latest records: its policy is `overwrite-oldest`, not `{}`; leave the \
                 policy out, or switch the flight recorder off",
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
    fn only_and_all_but() {
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
    fn layers_are_chosen_alike() {
        let mask = |text: &str| text.parse::<Layers>().unwrap().0;
        assert_eq!(mask("posix,stdio"), 1 << 4 | 1 << 3);
        assert_eq!(mask("-stdio"), !(1 << 3));
        assert_eq!((mask(""), mask("all"), mask("none")), (u64::MAX, u64::MAX, 0));
        for text in ["all", "none", "posix", "stdio,posix", "-stdio,-posix"] {
            assert_eq!(text.parse::<Layers>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_understood_is_named_with_what_would_be() {
        let refused = |text: &str| text.parse::<Ops>().unwrap_err().to_string();
        assert!(refused("raed").contains("posix.read"));
        assert!(refused("posix").contains("posix.*"));
        assert!(refused("posx.read").contains("posix"));
        assert!(refused("posix.fread").contains("posix"));
        assert!("posx".parse::<Layers>().unwrap_err().to_string().contains("mpi-io"));
        for text in ["1/10", "0", "2/4", "", "1/", "0.5", "1/4294967296", "-16"] {
            assert!(text.parse::<Sample>().unwrap_err().to_string().contains("1/16"), "{text}");
        }
        assert!(parse_when_full("block").unwrap_err().to_string().contains("overwrite-oldest"));
    }

    #[test]
    fn one_in_a_power_of_two() {
        for (text, shift, shown) in [
            ("1/16", 4, "1/16"),
            ("16", 4, "1/16"),
            ("1", 0, "1"),
            ("1 / 2", 1, "1/2"),
            ("1/2147483648", 31, "1/2147483648"),
        ] {
            let sample: Sample = text.parse().unwrap();
            assert_eq!((sample.shift, sample.to_string().as_str()), (shift, shown));
        }
    }

    #[test]
    fn a_flight_recorder_overwrites_and_its_end_drops_again() {
        let mut settings = Settings::default();
        Change { flight_recorder: Some(true), ..Change::default() }.apply_to(&mut settings).unwrap();
        assert_eq!((settings.flight_recorder, settings.when_full), (true, WhenFull::OverwriteOldest));
        let wrong = Change { when_full: Some(WhenFull::Wait), ..Change::default() };
        let before = settings.clone();
        assert!(wrong.apply_to(&mut settings).unwrap_err().to_string().contains("wait"));
        assert_eq!(settings, before, "a refused change changes nothing");
        Change { flight_recorder: Some(false), ..Change::default() }.apply_to(&mut settings).unwrap();
        assert_eq!((settings.flight_recorder, settings.when_full), (false, WhenFull::DropNewest));
        let mut settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
        Change { flight_recorder: Some(false), ..Change::default() }.apply_to(&mut settings).unwrap();
        assert_eq!(settings.when_full, WhenFull::Wait, "it was off already");
    }

    proptest! {
        #[test]
        fn a_choice_survives_being_written(entries in prop::collection::vec((0usize..6, 1u8..=110, any::<bool>()), 0..12)) {
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
