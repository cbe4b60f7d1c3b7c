//! Numbers by process: as a function of the process if possible, otherwise as a list.

use super::Nest;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number for each process of a phase, by its place from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Numbers {
    /// A function of the place: nested loops, the innermost one first.
    Function(Nest),
    /// A list; places beyond the end have the last number.
    List(Vec<i64>),
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers::constant(0)
    }
}

impl Numbers {
    /// Returns the same number for all processes.
    #[must_use]
    pub fn constant(value: i64) -> Numbers {
        Numbers::Function(Nest::one(value))
    }

    /// Returns the function that generates exactly these numbers, if there is a short one.
    #[must_use]
    pub fn of(numbers: &[i64]) -> Numbers {
        match numbers.first() {
            Some(first) if numbers.iter().all(|number| number == first) => Numbers::constant(*first),
            _ => Nest::of(numbers.iter().copied())
                .map_or_else(|| Numbers::List(numbers.to_vec()), Numbers::Function),
        }
    }

    /// Returns the number at a place.
    #[must_use]
    pub fn at(&self, place: u64) -> i64 {
        match self {
            Numbers::Function(nest) => nest.at(place),
            Numbers::List(list) => {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                list.get(place).or(list.last()).copied().unwrap_or(0)
            }
        }
    }

    /// Returns true if all numbers are 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Numbers::default()
    }

    /// Returns the function as a sum over `process`, such as `4096 + 1024*p`; `None` for a list.
    #[must_use]
    pub fn formula(&self, process: &str) -> Option<String> {
        let Numbers::Function(nest) = self else { return None };
        let mut terms = Vec::new();
        let mut inner = 1u64;
        for (level, it) in nest.loops.iter().enumerate() {
            let is_outermost = level + 1 == nest.loops.len();
            let digit = match (inner, is_outermost) {
                (1, true) => process.to_owned(),
                (1, false) => format!("({process} mod {})", it.count),
                (_, true) => format!("({process} div {inner})"),
                (_, false) => format!("({process} div {inner} mod {})", it.count),
            };
            inner = inner.saturating_mul(it.count);
            match it.stride {
                0 => {}
                1 => terms.push(digit),
                stride => terms.push(format!("{stride}*{digit}")),
            }
        }
        if nest.start != 0 || terms.is_empty() {
            terms.insert(0, nest.start.to_string());
        }
        Some(terms.join(" + ").replace("+ -", "- "))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Maximum number of displayed list elements.
        const SHOWN: usize = 4;
        match (self.formula("p"), self) {
            (Some(formula), _) => out.write_str(&formula),
            (None, Numbers::List(list)) => {
                let shown: Vec<String> = list.iter().take(SHOWN).map(ToString::to_string).collect();
                let more = if list.len() > SHOWN { " …" } else { "" };
                write!(out, "{}{more}", shown.join(" "))
            }
            (None, Numbers::Function(_)) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Numbers;

    #[test]
    fn functions_are_found_and_written() {
        let grid: Vec<i64> = (0..9).map(|p| 5 + 100 * (p % 3) + 7000 * (p / 3)).collect();
        for (numbers, formula) in [
            (vec![3], "3"),
            (vec![0, 0, 0], "0"),
            (vec![0, 40, 80, 120], "40*p"),
            (vec![8, 7, 6], "8 - 1*p"),
            (grid, "5 + 100*(p mod 3) + 7000*(p div 3)"),
        ] {
            let found = Numbers::of(&numbers);
            assert_eq!(found.formula("p").as_deref(), Some(formula));
            let again: Vec<i64> = (0..numbers.len() as u64).map(|place| found.at(place)).collect();
            assert_eq!(again, numbers);
        }
        let list = Numbers::of(&[1, 5, 2, 9, 4]);
        assert_eq!((list.formula("p"), list.to_string()), (None, "1 5 2 9 …".into()));
        assert_eq!((list.at(3), list.at(99)), (9, 4));
    }
}
