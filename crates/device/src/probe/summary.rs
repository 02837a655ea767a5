use serde::Serialize;

/// Repetitions of one measurement: its median, and how far they scatter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub min: f64,
    /// A quarter of the repetitions are below.
    pub quartile_lower: f64,
    pub median: f64,
    /// A quarter are above.
    pub quartile_upper: f64,
    pub max: f64,
    pub samples: usize,
}

impl Summary {
    /// `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Between the two samples that a quantile falls between, linearly.
        let quantile = |part: f64| {
            let at = part * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[at as usize], sorted[at.ceil() as usize]);
            below + (above - below) * at.fract()
        };
        (!sorted.is_empty()).then(|| Summary {
            min: quantile(0.0),
            quartile_lower: quantile(0.25),
            median: quantile(0.5),
            quartile_upper: quantile(0.75),
            max: quantile(1.0),
            samples: samples.len(),
        })
    }

    /// The same in another unit, of which one of this has `by`.
    pub fn scaled(self, by: f64) -> Summary {
        let Summary { min, quartile_lower, median, quartile_upper, max, samples } = self;
        let [min, quartile_lower, median, quartile_upper, max] =
            [min, quartile_lower, median, quartile_upper, max].map(|value| value * by);
        Summary { min, quartile_lower, median, quartile_upper, max, samples }
    }

    /// The middle half's width as a part of the median.
    pub fn spread(&self) -> f64 {
        (self.quartile_upper - self.quartile_lower) / self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_where_they_should() {
        let summary = Summary::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((summary.min, summary.quartile_lower, summary.median), (1.0, 2.0, 3.0));
        assert_eq!((summary.quartile_upper, summary.max, summary.samples), (4.0, 5.0, 5));
        assert_eq!(summary.spread(), 2.0 / 3.0);
        let two = Summary::of(&[2.0, 1.0]).unwrap();
        assert_eq!((two.quartile_lower, two.median), (1.25, 1.5));
        assert_eq!(Summary::of(&[7.0]).unwrap().median, 7.0);
        assert_eq!(Summary::of(&[]), None);
    }
}
