//! Patches: what it takes to make one image of another, for logs.
//!
//! ```text
//! [bytes of the new image][bytes at its end that are those at the old one's end]
//! then as often as need be: [bytes that are the old image's at the same place][bytes that are not][those bytes]
//! ```
//!
//! Numbers are unsigned LEB128. What is behind the last step is the old image's at the same place again. A patch holds a checksum of the
//! image that it makes, as nothing else tells that it was applied to the image that it is of.

use tidepool_base::{CommitTs, Error, Result};
use xxhash_rust::xxh3::xxh3_64;

/// As many bytes that stay cost less as they are than a step of their own.
const STEP_MIN: usize = 4;

/// How a row changed at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch<'p> {
    /// The commit that the image before is of.
    pub base: CommitTs,
    /// Of the image after ([`checksum`]).
    pub checksum: u32,
    pub steps: &'p [u8],
}

/// Of an image.
pub fn checksum(image: &[u8]) -> u32 {
    xxh3_64(image) as u32
}

/// Appends to `steps` what makes `new` of `old`. False, and nothing is appended, where that takes `most` bytes or more.
pub fn make(old: &[u8], new: &[u8], most: usize, steps: &mut Vec<u8>) -> bool {
    let start = steps.len();
    // Where both are of one length, the same is in the same place.
    let tail = if old.len() == new.len() { 0 } else { same_at_end(old, new) };
    put_number(steps, new.len());
    put_number(steps, tail);
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let rest = |at: usize| &old[at.min(old.len())..];
    let mut at = 0;
    while steps.len() - start < most {
        let same = same_at_start(rest(at), &new[at..]);
        let from = at + same;
        if from == new.len() {
            return true;
        }
        let mut to = from + 1;
        loop {
            while to < new.len() && old.get(to) != Some(&new[to]) {
                to += 1;
            }
            let same = same_at_start(rest(to), &new[to..]);
            if same >= STEP_MIN || to + same == new.len() {
                break;
            }
            to += same;
        }
        put_number(steps, same);
        put_number(steps, to - from);
        steps.extend_from_slice(&new[from..to]);
        at = to;
    }
    steps.truncate(start);
    false
}

impl Patch<'_> {
    /// Puts what becomes of `old` in place of what `image` holds. XX001 if that is not what the patch was made for.
    pub fn apply(&self, old: &[u8], image: &mut Vec<u8>) -> Result<()> {
        image.clear();
        self.steps_on(old, image)
            .filter(|()| checksum(image) == self.checksum)
            .ok_or_else(|| Error::corrupted("a row's change does not fit the row"))
    }

    fn steps_on(&self, old: &[u8], image: &mut Vec<u8>) -> Option<()> {
        let mut steps = self.steps;
        let len = number(&mut steps)?;
        let tail = number(&mut steps)?;
        let body = len.checked_sub(tail).filter(|_| len <= super::IMAGE_BYTES_MAX)?;
        let tail = &old[old.len().checked_sub(tail)?..];
        while !steps.is_empty() {
            let (same, other) = (number(&mut steps)?, number(&mut steps)?);
            let at = image.len();
            image.extend_from_slice(old.get(at..at.checked_add(same)?)?);
            let (bytes, rest) = steps.split_at_checked(other)?;
            image.extend_from_slice(bytes);
            steps = rest;
        }
        if image.len() != body {
            image.extend_from_slice(old.get(image.len()..body)?);
        }
        image.extend_from_slice(tail);
        Some(())
    }
}

fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn same_at_start(a: &[u8], b: &[u8]) -> usize {
    let (words, _) = a.as_chunks::<8>();
    let (others, _) = b.as_chunks::<8>();
    for (place, (a, b)) in words.iter().zip(others).enumerate() {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return place * 8 + differ.trailing_zeros() as usize / 8;
        }
    }
    let done = words.len().min(others.len()) * 8;
    done + a[done..].iter().zip(&b[done..]).take_while(|(a, b)| a == b).count()
}

fn same_at_end(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    fn patch<'p>(new: &[u8], steps: &'p [u8]) -> Patch<'p> {
        Patch { base: CommitTs(1), checksum: checksum(new), steps }
    }

    #[test]
    fn an_image_comes_out_of_the_one_before() {
        let mut next = noise(7);
        for round in 0..20_000 {
            let len = next() as usize % 90;
            let old: Vec<u8> = (0..len).map(|_| (next() % 3) as u8).collect();
            let mut new = old.clone();
            for _ in 0..next() % 4 {
                let at = next() as usize % (new.len() + 1);
                match next() % 3 {
                    0 => new.insert(at, 9),
                    1 if at < new.len() => drop(new.remove(at)),
                    _ => new.iter_mut().skip(at).take(next() as usize % 9).for_each(|byte| *byte ^= 1),
                }
            }
            if round % 50 == 0 {
                new = (0..next() % 40).map(|_| next() as u8).collect();
            }
            let mut steps = vec![1, 2, 3];
            assert!(make(&old, &new, usize::MAX, &mut steps));
            let mut image = b"of before".to_vec();
            patch(&new, &steps[3..]).apply(&old, &mut image).unwrap();
            assert_eq!(image, new);
            let len = steps.len() - 3;
            let mut bounded = Vec::new();
            assert!(make(&old, &new, len + 1, &mut bounded));
            assert_eq!(bounded, steps[3..]);
            bounded.clear();
            assert!(!make(&old, &new, len, &mut bounded));
            assert!(bounded.is_empty());
        }
    }

    #[test]
    fn little_is_said_of_what_stays() {
        let old: Vec<u8> = (0..300).map(|byte| byte as u8).collect();
        let mut new = old.clone();
        new[40..48].fill(0xff);
        new[200] = 0;
        let mut steps = Vec::new();
        assert!(make(&old, &new, 300, &mut steps));
        assert_eq!(steps.len(), 2 + 1 + 2 + 8 + 3 + 1);
        // Longer in the middle: what is behind has moved.
        new.splice(100..100, *b"more");
        steps.clear();
        assert!(make(&old, &new, 300, &mut steps));
        assert!(steps.len() < 130, "{}", steps.len());
    }

    #[test]
    fn bytes_that_are_no_patch_of_an_image_are_refused() {
        let (old, new) = ([1u8; 64], [2u8; 64]);
        let mut steps = Vec::new();
        assert!(make(&old, &new, usize::MAX, &mut steps));
        let mut image = Vec::new();
        for cut in 0..steps.len() {
            assert!(patch(&new, &steps[..cut]).apply(&old, &mut image).is_err());
        }
        let other = [3u8; 64];
        let mut one = old;
        one[5] = 9;
        steps.clear();
        assert!(make(&old, &one, usize::MAX, &mut steps));
        assert!(patch(&one, &steps).apply(&old, &mut image).is_ok());
        assert!(patch(&one, &steps).apply(&other, &mut image).is_err());
        let mut next = noise(3);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..next() % 12).map(|_| next() as u8).collect();
            let _ = patch(&new, &bytes).apply(&old, &mut image);
        }
    }
}
