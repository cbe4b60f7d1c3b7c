//! Comparison of two models.

use super::{Model, Operation, Phase};
use serde::Serialize;

/// A difference between two models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Place: `application`, or the phases of the first model, of the second, or of both.
    pub place: String,
    /// Name of the field.
    pub field: String,
    /// Value in the first model.
    pub one: String,
    /// Value in the second model.
    pub other: String,
}

/// Returns all differences between two models, apart from measurements and the names of files and
/// application, which the application does not determine. Families are paired in order.
#[must_use]
pub fn compare(one: &Model, other: &Model) -> Vec<Difference> {
    let mut found = DifferenceList { place: "application".into(), all: Vec::new() };
    found.see("processes", &one.processes, &other.processes);
    found.see("layer", &one.layer, &other.layer);
    let families = one.phases.len().max(other.phases.len());
    for at in 0..families {
        match (one.phases.get(at), other.phases.get(at)) {
            (Some(one), Some(other)) => found.phase(one, other),
            (Some(one), None) => found.missing(one, true),
            (None, Some(other)) => found.missing(other, false),
            (None, None) => {}
        }
    }
    found.all
}

struct DifferenceList {
    place: String,
    all: Vec<Difference>,
}

impl DifferenceList {
    fn see<T: PartialEq + Serialize>(&mut self, field: &str, one: &T, other: &T) {
        if one != other {
            self.push(field, &file_text(one), &file_text(other));
        }
    }

    fn push(&mut self, field: &str, one: &str, other: &str) {
        let [one, other] = [one, other].map(str::to_owned);
        self.all.push(Difference { place: self.place.clone(), field: field.to_owned(), one, other });
    }

    fn missing(&mut self, phase: &Phase, is_in_one: bool) {
        self.place = format!("phases {}", phase.numbers);
        let it = format!("{} bytes", phase.weight);
        if is_in_one { self.push("phases", &it, "-") } else { self.push("phases", "-", &it) }
    }

    fn phase(&mut self, one: &Phase, other: &Phase) {
        self.place = format!("phases {}", one.numbers);
        self.see("numbers", &one.numbers, &other.numbers);
        self.see("sharing", &one.sharing, &other.sharing);
        self.see("file_per_phase", &one.file_per_phase, &other.file_per_phase);
        self.see("processes", &one.processes, &other.processes);
        self.see("weight", &one.weight, &other.weight);
        self.see("operations", &one.operations.len(), &other.operations.len());
        let place = self.place.clone();
        for (nth, (a, b)) in one.operations.iter().zip(&other.operations).enumerate() {
            if one.operations.len() > 1 {
                self.place = format!("{place}, operation {}", nth + 1);
            }
            self.operation(a, b);
        }
    }

    fn operation(&mut self, one: &Operation, other: &Operation) {
        self.see("direction", &one.direction, &other.direction);
        self.see("size", &one.size, &other.size);
        self.see("sizes", &one.sizes, &other.sizes);
        self.see("size_by_process", &one.size_by_process, &other.size_by_process);
        self.see("repetitions", &one.repetitions, &other.repetitions);
        self.see("repetitions_between", &one.repetitions_between, &other.repetitions_between);
        self.see("mode", &one.mode, &other.mode);
        self.see("pointer", &one.pointer, &other.pointer);
        self.see("collective", &one.collective, &other.collective);
        self.see("nonblocking", &one.nonblocking, &other.nonblocking);
        self.see("etype", &one.etype, &other.etype);
        self.see("piece", &one.piece, &other.piece);
        if one.pieces != other.pieces {
            let count = |op: &Operation| op.most_pieces().to_string();
            self.push("pieces", &count(one), &count(other));
        }
        self.see("unplaced", &one.unplaced, &other.unplaced);
        self.see("space", &one.space, &other.space);
        self.see("displacement", &one.displacement, &other.displacement);
        if one.restarts != other.restarts {
            self.push("restarts", &one.restarts.len().to_string(), &other.restarts.len().to_string());
        }
        if one.offset != other.offset {
            self.push("offset", &one.offset.to_string(), &other.offset.to_string());
        }
        if one.offset_per_phase != other.offset_per_phase {
            self.push(
                "offset_per_phase",
                &one.offset_per_phase.to_string(),
                &other.offset_per_phase.to_string(),
            );
        }
    }
}

/// Returns a value as in the file.
fn file_text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).map_or_else(|_| "?".into(), |text| text.trim_matches('"').to_owned())
}
