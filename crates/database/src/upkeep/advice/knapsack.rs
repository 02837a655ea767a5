//! The 0-1 knapsack: of items with a value and a weight, the set that is worth most within a capacity.
//!
//! Depth-first branch and bound over the items by falling density, bounded by the continuous relaxation (Horowitz and Sahni,
//! J. ACM 21(2), 1974; bound by Dantzig, Operations Research 5(2), 1957). Exact unless `NODES_MAX` is reached, which hundreds
//! of columns do not; then the best set so far is returned, at least as good as the greedy one, with the bound that no set
//! exceeds. Weights are bytes, so dynamic programming over the capacity is out of the question.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Finite. Items worth nothing are never taken.
    pub value: f64,
    pub weight: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// By item, in the order given.
    pub taken: Vec<bool>,
    pub value: f64,
    pub weight: u64,
    /// No set within the capacity is worth more: `value` itself if the search was exhaustive.
    pub bound: f64,
}

const NODES_MAX: usize = 1_000_000;

/// Smaller gains (of the value) are rounding.
const GAIN_MIN: f64 = 1e-12;

pub fn solve(items: &[Item], capacity: u64) -> Choice {
    solve_within(items, capacity, NODES_MAX)
}

fn solve_within(items: &[Item], capacity: u64, nodes_max: usize) -> Choice {
    let mut order: Vec<usize> =
        (0..items.len()).filter(|&index| items[index].value > 0.0 && items[index].weight <= capacity).collect();
    // Nothing weighs nothing, and is densest.
    let density = |index: usize| items[index].value / items[index].weight as f64;
    order.sort_by(|&a, &b| density(b).total_cmp(&density(a)).then(items[a].weight.cmp(&items[b].weight)));
    let search = Search::new(order.iter().map(|&index| items[index]).collect());
    let (best, exhausted) = search.run(capacity, nodes_max);

    let mut choice = Choice { taken: vec![false; items.len()], value: 0.0, weight: 0, bound: 0.0 };
    for (&index, _) in order.iter().zip(&best).filter(|(_, taken)| **taken) {
        choice.taken[index] = true;
        choice.value += items[index].value;
        choice.weight += items[index].weight;
    }
    choice.bound = if exhausted { choice.value } else { search.bound(0, capacity).max(choice.value) };
    choice
}

/// Items by falling density, with running totals in front of each.
struct Search {
    items: Vec<Item>,
    values: Vec<f64>,
    weights: Vec<u128>,
}

impl Search {
    fn new(items: Vec<Item>) -> Search {
        let (mut values, mut weights) = (vec![0.0], vec![0u128]);
        for (index, item) in items.iter().enumerate() {
            values.push(values[index] + item.value);
            weights.push(weights[index] + u128::from(item.weight));
        }
        Search { items, values, weights }
    }

    /// What the items from `from` on are worth at most within `room`: the densest, the last of them in part.
    fn bound(&self, from: usize, room: u64) -> f64 {
        let limit = self.weights[from] + u128::from(room);
        let end = from + self.weights[from..].partition_point(|weight| *weight <= limit) - 1;
        let value = self.values[end] - self.values[from];
        match self.items.get(end) {
            Some(item) => value + item.value * (limit - self.weights[end]) as f64 / item.weight as f64,
            None => value,
        }
    }

    /// The best set found, and whether none was left out.
    fn run(&self, capacity: u64, nodes_max: usize) -> (Vec<bool>, bool) {
        let count = self.items.len();
        let (mut taken, mut value, mut room) = (vec![false; count], 0.0, capacity);
        let (mut best, mut best_value) = (taken.clone(), 0.0);
        let mut next = 0;
        for _ in 0..nodes_max {
            if value + self.bound(next, room) > best_value * (1.0 + GAIN_MIN) {
                while next < count && self.items[next].weight <= room {
                    taken[next] = true;
                    value += self.items[next].value;
                    room -= self.items[next].weight;
                    next += 1;
                }
                if next < count {
                    // Does not fit: go on without it.
                    next += 1;
                    continue;
                }
                if value > best_value * (1.0 + GAIN_MIN) {
                    best.clone_from(&taken);
                    best_value = value;
                }
            }
            let Some(last) = taken[..next].iter().rposition(|taken| *taken) else { return (best, true) };
            taken[last] = false;
            value -= self.items[last].value;
            room += self.items[last].weight;
            next = last + 1;
        }
        (best, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn brute_force(items: &[Item], capacity: u64) -> f64 {
        let sets = 0..1u32 << items.len();
        sets.map(|set| (0..items.len()).filter(move |index| set >> index & 1 == 1).map(|index| items[index]))
            .filter(|set| set.clone().map(|item| item.weight).sum::<u64>() <= capacity)
            .map(|set| set.map(|item| item.value).sum())
            .fold(0.0, f64::max)
    }

    #[track_caller]
    fn check(items: &[Item], capacity: u64, choice: &Choice) {
        let chosen = || items.iter().zip(&choice.taken).filter(|(_, taken)| **taken).map(|(item, _)| item);
        assert_eq!(chosen().map(|item| item.weight).sum::<u64>(), choice.weight);
        assert!(choice.weight <= capacity);
        assert!(chosen().all(|item| item.value > 0.0));
        let value: f64 = chosen().map(|item| item.value).sum();
        assert!((value - choice.value).abs() <= 1e-9 * value.max(1.0));
        assert!(choice.bound >= choice.value);
    }

    #[test]
    fn finds_what_brute_force_finds() {
        let mut random = StdRng::seed_from_u64(7);
        for round in 0..2000 {
            let count = random.random_range(0..=12);
            // Few distinct weights and values make ties, many make none.
            let most = if round % 2 == 0 { 6 } else { 1 << 40 };
            let items: Vec<Item> = (0..count)
                .map(|_| Item {
                    value: random.random_range(-1..=most as i64) as f64,
                    weight: random.random_range(0..=most),
                })
                .collect();
            let capacity = random.random_range(0..=most * 6);
            let choice = solve(&items, capacity);
            check(&items, capacity, &choice);
            let best = brute_force(&items, capacity);
            assert!((choice.value - best).abs() <= 1e-9 * best, "{items:?} within {capacity}: {choice:?}, not {best}");
            assert_eq!(choice.bound, choice.value);
        }
    }

    #[test]
    fn a_search_cut_short_is_as_good_as_greed_and_says_how_good() {
        let mut random = StdRng::seed_from_u64(8);
        for _ in 0..200 {
            // Values close to weights: the hard kind.
            let items: Vec<Item> = (0..60)
                .map(|_| random.random_range(1000..=2000))
                .map(|weight| Item { value: weight as f64 + 100.0, weight })
                .collect();
            let capacity = 40_000;
            let choice = solve_within(&items, capacity, 200);
            check(&items, capacity, &choice);
            let mut order = items.clone();
            order.sort_by(|a, b| (b.value / b.weight as f64).total_cmp(&(a.value / a.weight as f64)));
            let (mut greedy, mut room) = (0.0, capacity);
            for item in order.into_iter().filter(|item| item.weight <= capacity) {
                if item.weight <= room {
                    room -= item.weight;
                    greedy += item.value;
                }
            }
            assert!(choice.value >= greedy - 1e-6);
            let exact = solve(&items, capacity);
            assert!(exact.value <= choice.bound + 1e-6 && choice.value <= exact.value + 1e-6);
        }
    }

    #[test]
    fn nothing_fits_in_no_room_but_what_weighs_nothing() {
        let items = [Item { value: 3.0, weight: 0 }, Item { value: 5.0, weight: 1 }];
        assert_eq!(solve(&items, 0).taken, [true, false]);
        assert_eq!(solve(&[], 10).value, 0.0);
        let all = solve(&items, u64::MAX);
        assert_eq!((all.value, all.weight), (8.0, 1));
    }
}
