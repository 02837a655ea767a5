use super::*;

/// Tests of all levels set one for all.
static LEVELS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn positions_are_those_of_set_bits() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    let _alone = LEVELS.lock().unwrap();
    for level in [Level::Plain, Level::Avx2, Level::Avx512] {
        limit(level);
        for len in 0..40 {
            let words: Vec<u64> = (0..len)
                .map(|_| [0, u64::MAX, random() | random(), random() & random() & random()][random() as usize % 4])
                .collect();
            let mut found = vec![77];
            positions_into(&words, 0, &mut found);
            let mut later = Vec::new();
            positions_into(&words, 1000, &mut later);
            assert!(found[1..].iter().map(|row| row + 1000).eq(later));
            let expected = (0..len as u32 * 64).filter(|row| words[*row as usize / 64] >> (row % 64) & 1 == 1);
            assert_eq!(found, std::iter::once(77).chain(expected).collect::<Vec<u32>>());
            let values: Vec<i128> = (0..len as i128 * 64).map(|value| value * value).collect();
            let picked = pick(&values, &found[1..]);
            assert!(found[1..].iter().zip(picked).all(|(row, value)| value == i128::from(*row) * i128::from(*row)));
        }
    }
}

#[test]
#[should_panic(expected = "past the last")]
fn rows_past_the_last_are_not_picked() {
    pick(&[1, 2, 3], &[0, 3]);
}

#[test]
fn words_keep_the_bits_of_what_passes() {
    let _alone = LEVELS.lock().unwrap();
    for level in [Level::Plain, Level::Avx2, Level::Avx512] {
        limit(level);
        for len in [0usize, 1, 63, 64, 65, 130, 1024] {
            let values: Vec<u16> = (0..len).map(|row| (row * 7919 % 1000) as u16).collect();
            let mut words = vec![0xF0F0_F0F0_FFFF_0FF0; len.div_ceil(64) + 1];
            let before = words.clone();
            and_words_of(&values, |value| value < 400, &mut words);
            for (row, value) in values.iter().enumerate() {
                let bit = |words: &[u64]| words[row / 64] >> (row % 64) & 1 == 1;
                assert_eq!(bit(&words), bit(&before) && *value < 400);
            }
            let mut mapped = vec![7i64];
            extend_mapped(&mut mapped, &values, |value| i64::from(value) - 5);
            let mut placed = vec![0i64; len];
            map_into(&mut placed, &values, |value| i64::from(value) - 5);
            assert_eq!(placed, mapped[1..]);
            assert!(mapped.into_iter().eq(std::iter::once(7).chain(values.iter().map(|value| i64::from(*value) - 5))));
        }
    }
}

#[test]
fn values_are_found_in_bitmaps() {
    use std::sync::atomic::AtomicU64;
    let _alone = LEVELS.lock().unwrap();
    for level in [Level::Plain, Level::Avx2, Level::Avx512] {
        limit(level);
        for least in [0i64, -70, i64::MIN, i64::MAX - 100] {
            let bitmap: Vec<AtomicU64> = [0x8000_0000_0000_0001u64, 0, u64::MAX].map(AtomicU64::new).into();
            let values: Vec<i64> = (0..210).map(|row| least.wrapping_add(row * 37 % 230 - 15)).collect();
            for keep in [u64::MAX, 0x0101_0101_0101_0101, 0x00FF_FF00_FFFF_00FF] {
                let mut words = vec![keep; 4];
                and_words_in_bitmap(&values, least, &bitmap, &mut words);
                for row in 0..256 {
                    let kept = keep >> (row % 64) & 1 == 1;
                    let is_there = values.get(row).is_none_or(|value| {
                        let bit = value.wrapping_sub(least) as u64;
                        matches!(bit, 0 | 63 | 128..192)
                    });
                    assert_eq!(words[row / 64] >> (row % 64) & 1 == 1, kept && is_there, "row {row} from {least}");
                }
            }
        }
    }
}

#[test]
fn bloom_filters_forget_nothing_and_let_few_others_pass() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let _alone = LEVELS.lock().unwrap();
    // Interpreted, the largest takes minutes.
    let sizes: &[usize] = if cfg!(miri) { &[2, 16] } else { &[2, 64, 4096] };
    for words in sizes.iter().copied() {
        let filter: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let bloom = Bloom(&filter);
        let values: Vec<i64> = (0..words as i64 * 64 * 8 / 12).map(|row| row * 4 - 1000).collect();
        // An eighth of the values.
        for value in values.iter().step_by(8) {
            let (word, pattern) = bloom.place(*value);
            filter[word].fetch_or(pattern, Ordering::Relaxed);
        }
        let mut all = Vec::new();
        for level in [Level::Plain, Level::Avx2, Level::Avx512] {
            limit(level);
            let mut words = vec![u64::MAX; values.len().div_ceil(64)];
            bloom.and_words(&values, &mut words);
            let passed: Vec<bool> = (0..values.len()).map(|row| words[row / 64] >> (row % 64) & 1 == 1).collect();
            assert!(passed.iter().step_by(8).all(|passed| *passed));
            let others = passed.iter().enumerate().filter(|(row, passed)| row % 8 != 0 && **passed).count();
            assert!(words.len() < 60 || others < values.len() / 20, "{others} of {}", values.len());
            all.push(passed);
        }
        assert!(all[0] == all[1] && all[1] == all[2]);
    }
}
