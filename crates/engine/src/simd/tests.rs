use super::*;
use tidepool_table::CompareOp;

#[test]
fn every_level_gives_the_same() {
    let ops = [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
    let bits = |words: Vec<u64>, len: usize| {
        assert_eq!(words.len(), len.div_ceil(64));
        (0..words.len() * 64).map(|row| words[row / 64] >> (row % 64) & 1 == 1).collect::<Vec<bool>>()
    };
    for level in [Level::Plain, Level::Avx2, Level::Avx512] {
        limit(level);
        for len in [0usize, 1, 7, 8, 63, 64, 65, 127, 200] {
            let ints: Vec<i64> = (0..len as i64).map(|row| (row * 7) % 5 - 2 + (row % 3) * i64::MAX / 3).collect();
            let others: Vec<i64> = ints.iter().rev().copied().collect();
            let float = |value: &i64| if *value == 1 { f64::NAN } else { *value as f64 / 2.0 };
            let floats: Vec<f64> = ints.iter().map(float).collect();
            let other_floats: Vec<f64> = others.iter().map(float).collect();
            for op in ops {
                let test = |order: Option<std::cmp::Ordering>| match (op, order) {
                    (CompareOp::Ne, None) => true,
                    (_, None) => false,
                    (CompareOp::Eq, Some(order)) => order.is_eq(),
                    (CompareOp::Ne, Some(order)) => order.is_ne(),
                    (CompareOp::Lt, Some(order)) => order.is_lt(),
                    (CompareOp::Le, Some(order)) => order.is_le(),
                    (CompareOp::Gt, Some(order)) => order.is_gt(),
                    (CompareOp::Ge, Some(order)) => order.is_ge(),
                };
                let padded = |expected: Vec<bool>| {
                    let mut expected = expected;
                    expected.resize(len.div_ceil(64) * 64, false);
                    expected
                };
                let expected = padded(ints.iter().map(|value| test(value.partial_cmp(&1))).collect());
                assert_eq!(bits(compare_constant(op, &ints, 1), len), expected);
                assert_eq!(bits(words_of(&ints, |value| test(value.partial_cmp(&1))), len), expected);
                let expected = padded(floats.iter().map(|value| test(value.partial_cmp(&0.5))).collect());
                assert_eq!(bits(compare_constant(op, &floats, 0.5), len), expected);
                let both = ints.iter().zip(&others).map(|(a, b)| test(a.partial_cmp(b)));
                let expected = padded(both.collect());
                assert_eq!(bits(compare_pairs(op, &ints, &others), len), expected);
                assert_eq!(bits(words_of_pairs(&ints, &others, |a, b| test(a.partial_cmp(&b))), len), expected);
                let both = floats.iter().zip(&other_floats).map(|(a, b)| test(a.partial_cmp(b)));
                assert_eq!(bits(compare_pairs(op, &floats, &other_floats), len), padded(both.collect()));
            }
            assert_eq!(map(&ints, |value| value ^ 5), ints.iter().map(|value| value ^ 5).collect::<Vec<_>>());
        }
    }
}
