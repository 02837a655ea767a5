//! Selections as bitmaps of 64-bit words, least significant bit first, as Arrow's.

pub(crate) use tidepool_simd::positions_into as positions;

/// Words for `rows` bits.
#[inline]
pub(crate) fn words_for(rows: usize) -> usize {
    rows.div_ceil(64)
}

/// A mask with the first `rows` bits set.
pub(crate) fn ones(rows: usize) -> Vec<u64> {
    let mut words = vec![u64::MAX; words_for(rows)];
    if !rows.is_multiple_of(64) {
        *words.last_mut().expect("some rows make some words") = (1 << (rows % 64)) - 1;
    }
    words
}

#[inline]
pub(crate) fn count(words: &[u64]) -> usize {
    words.iter().map(|word| word.count_ones() as usize).sum()
}

/// Eight bytes that are 0 or 1 into eight bits.
#[inline]
pub(crate) fn gather8(bytes: [u8; 8]) -> u64 {
    // Byte i has to come to bit 56 + i: the factor's bit 56 - 7i takes it there, and no two products meet.
    u64::from_le_bytes(bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// `words &= bytes`, a byte being 0 or 1 for its bit. Bits past `bytes` are cleared within the last word.
#[inline]
pub(crate) fn and_bytes(words: &mut [u64], bytes: &[u8]) {
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(64)) {
        *word &= word_of(chunk);
    }
}

/// Up to 64 bytes that are 0 or 1 into a word.
#[inline]
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = 0;
    let (eights, rest) = bytes.as_chunks::<8>();
    for (i, eight) in eights.iter().enumerate() {
        word |= gather8(*eight) << (8 * i);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word |= gather8(last) << (8 * eights.len());
    }
    word
}

/// Clears the bits of `start..end`.
pub(crate) fn clear(words: &mut [u64], start: usize, end: usize) {
    if start >= end {
        return;
    }
    let (first, last) = (start / 64, (end - 1) / 64);
    let head = u64::MAX << (start % 64);
    let tail = u64::MAX >> (63 - (end - 1) % 64);
    if first == last {
        words[first] &= !(head & tail);
    } else {
        words[first] &= !head;
        words[first + 1..last].fill(0);
        words[last] &= !tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_bits_and_bits_become_positions() {
        let bytes: Vec<u8> = (0..150u32).map(|i| u8::from(i % 7 == 3 || i % 11 == 0)).collect();
        let mut words = ones(150);
        and_bytes(&mut words, &bytes);
        let mut found = Vec::new();
        positions(&words, 1000, &mut found);
        let expected: Vec<u32> = (0..150).filter(|i| bytes[*i as usize] == 1).map(|i| i + 1000).collect();
        assert_eq!(found, expected);
        assert_eq!(count(&words), expected.len());
    }

    #[test]
    fn ranges_are_cleared_to_the_bit() {
        for (start, end) in [(0, 0), (0, 1), (3, 64), (63, 65), (64, 128), (10, 190), (191, 192), (0, 192)] {
            let mut words = ones(192);
            clear(&mut words, start, end);
            let mut left = Vec::new();
            positions(&words, 0, &mut left);
            let expected: Vec<u32> = (0..192).filter(|i| !(start..end).contains(&(*i as usize))).collect();
            assert_eq!(left, expected, "{start}..{end}");
        }
    }
}
