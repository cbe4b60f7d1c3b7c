//! Shortest edit script between two sequences: the greedy algorithm of Myers (1986).

/// One step of an alignment: indices into the two sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Elements that are equal in both.
    Both(usize, usize),
    /// Element that is only in the left sequence.
    Left(usize),
    /// Element that is only in the right sequence.
    Right(usize),
}

/// Aligns two sequences with the least number of unmatched elements.
#[must_use]
pub fn align<T: PartialEq>(left: &[T], right: &[T]) -> Vec<Step> {
    let (n, m) = (left.len() as isize, right.len() as isize);
    let mut furthest = vec![0isize; (2 * (n + m) + 3) as usize];
    let zero = n + m + 1;
    let at = |k: isize| (zero + k) as usize;
    let mut history: Vec<Vec<isize>> = Vec::new();
    for d in 0..=n + m {
        // Only diagonals -d..=d have been written.
        history.push(furthest[at(-d - 1)..=at(d + 1)].to_vec());
        for k in (-d..=d).step_by(2) {
            let down = k == -d || (k != d && furthest[at(k - 1)] < furthest[at(k + 1)]);
            let mut x = if down { furthest[at(k + 1)] } else { furthest[at(k - 1)] + 1 };
            while x < n && x - k < m && left[x as usize] == right[(x - k) as usize] {
                x += 1;
            }
            furthest[at(k)] = x;
            if x >= n && x - k >= m {
                return trace_back(&history, n, m);
            }
        }
    }
    Vec::new()
}

fn trace_back(history: &[Vec<isize>], mut x: isize, mut y: isize) -> Vec<Step> {
    let mut steps = Vec::new();
    for (d, furthest) in history.iter().enumerate().rev() {
        let d = d as isize;
        let get = |k: isize| furthest[(k + d + 1) as usize];
        let k = x - y;
        let down = k == -d || (k != d && get(k - 1) < get(k + 1));
        let before = if down { k + 1 } else { k - 1 };
        let (from_x, from_y) = if d == 0 { (0, 0) } else { (get(before), get(before) - before) };
        while x > from_x && y > from_y {
            (x, y) = (x - 1, y - 1);
            steps.push(Step::Both(x as usize, y as usize));
        }
        if d > 0 {
            steps.push(if down { Step::Right(from_y as usize) } else { Step::Left(from_x as usize) });
            (x, y) = (from_x, from_y);
        }
    }
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(left: &str, right: &str) -> usize {
        let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
        let steps = align(&left, &right);
        let (mut l, mut r, mut alone) = (Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Both(i, j) => {
                    assert_eq!(left[i], right[j]);
                    l.push(i);
                    r.push(j);
                }
                Step::Left(i) => (l.push(i), alone += 1).0,
                Step::Right(j) => (r.push(j), alone += 1).0,
            }
        }
        assert_eq!(
            (l, r),
            ((0..left.len()).collect(), (0..right.len()).collect()),
            "each element once, in order"
        );
        alone
    }

    #[test]
    fn shortest_edit_script_is_found() {
        assert_eq!(alone("", ""), 0);
        assert_eq!(alone("abc", "abc"), 0);
        assert_eq!(alone("", "abc"), 3);
        assert_eq!(alone("abc", ""), 3);
        assert_eq!(alone("abcabba", "cbabac"), 5);
        assert_eq!(alone("xaxbxc", "abc"), 3);
    }
}
