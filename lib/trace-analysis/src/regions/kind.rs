//! What the main thread does in a region.

use serde::Serialize;

/// What the main thread does in a region, by the region's attribute `kind`, else by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionKind {
    /// It computes: I/O of other threads and processes is hidden.
    Compute,
    /// It waits for input.
    Fetch,
    /// It saves the state of the program.
    Checkpoint,
    /// It waits for other I/O.
    Io,
    /// Anything, such as an epoch: the regions around it determine what the thread does.
    Other,
}

/// Names of regions. The part of a region's name before the first dot is looked up, in lower case.
/// Those for training are the names of DFTracer's Python interface (`dftracer.python.ai`) without
/// their prefix.
const NAMES: [(RegionKind, &[&str]); 4] = [
    (
        RegionKind::Compute,
        &["compute", "forward", "backward", "step", "optimizer", "train", "validate", "evaluate", "infer"],
    ),
    (RegionKind::Fetch, &["fetch", "dataloader", "load", "read", "input"]),
    (RegionKind::Checkpoint, &["checkpoint", "save"]),
    (RegionKind::Io, &["io", "write", "output", "open", "restart"]),
];

impl RegionKind {
    /// Returns the kind of a region with this name and these attributes (`key=value`, separated by
    /// commas).
    #[must_use]
    pub fn of(name: &str, attributes: &str) -> RegionKind {
        let given = attributes.split(',').find_map(|attribute| attribute.strip_prefix("kind="));
        let given = given.and_then(|kind| match kind {
            "compute" => Some(RegionKind::Compute),
            "fetch" => Some(RegionKind::Fetch),
            "checkpoint" => Some(RegionKind::Checkpoint),
            "io" => Some(RegionKind::Io),
            "other" => Some(RegionKind::Other),
            _ => None,
        });
        let word = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let named = || NAMES.iter().find(|(_, names)| names.contains(&word.as_str())).map(|(kind, _)| *kind);
        given.or_else(named).unwrap_or(RegionKind::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::RegionKind::{self, *};

    #[test]
    fn attribute_overrides_name() {
        for (name, attributes, kind) in [
            ("forward", "", Compute),
            ("Backward.layer3", "", Compute),
            ("fetch", "step=", Fetch),
            ("checkpoint", "kind=io", Io),
            ("solve", "it=3,kind=compute,step=", Compute),
            ("solve", "kind=unknown", Other),
            ("epoch", "", Other),
            ("", "", Other),
        ] {
            assert_eq!(RegionKind::of(name, attributes), kind, "{name} {attributes}");
        }
    }
}
