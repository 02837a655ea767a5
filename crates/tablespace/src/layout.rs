//! Which stripe of a tablespace goes to which of its devices.

/// A sequence in which part `i` comes `counts[i]` times, spread as evenly as can be: smooth weighted round robin. Any
/// stretch of it has each part about as often as its weight says, so whatever is allocated spreads.
pub(crate) fn interleaved(counts: &[usize]) -> Vec<usize> {
    steps(counts, counts.iter().sum()).collect()
}

/// How often each part comes in the first `steps` of the sequence for `weights`.
pub(crate) fn counts(weights: &[u32], steps: usize) -> Vec<usize> {
    let mut counts = vec![0; weights.len()];
    let weights: Vec<usize> = weights.iter().map(|weight| *weight as usize).collect();
    for part in self::steps(&weights, steps) {
        counts[part] += 1;
    }
    counts
}

fn steps(weights: &[usize], steps: usize) -> impl Iterator<Item = usize> {
    let total: i64 = weights.iter().map(|weight| *weight as i64).sum();
    let weights: Vec<i64> = weights.iter().map(|weight| *weight as i64).collect();
    let mut due = vec![0i64; weights.len()];
    (0..steps).filter_map(move |_| {
        for (due, weight) in due.iter_mut().zip(&weights) {
            *due += weight;
        }
        // The first of those that are equally due.
        let next = (0..due.len()).rev().max_by_key(|part| due[*part])?;
        due[next] -= total;
        Some(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_alternate_by_weight() {
        assert_eq!(interleaved(&[2, 2]), [0, 1, 0, 1]);
        assert_eq!(interleaved(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(interleaved(&[0, 2]), [1, 1]);
        assert_eq!(interleaved(&[]), [0usize; 0]);
        assert_eq!(counts(&[3, 1], 10), [8, 2]);
        assert_eq!(counts(&[1, 1, 1], 8), [3, 3, 2]);
        for (weights, steps) in [([5usize, 3], 8usize), ([100, 1], 101), ([7, 6], 13)] {
            let sequence = interleaved(&weights);
            assert_eq!(sequence.len(), steps);
            // No stretch is off by more than one stripe a part.
            for end in 0..=steps {
                let first = sequence[..end].iter().filter(|part| **part == 0).count() as f64;
                let due = end as f64 * weights[0] as f64 / steps as f64;
                assert!((first - due).abs() <= 1.0, "{weights:?} {end}: {first} of {due}");
            }
        }
    }
}
