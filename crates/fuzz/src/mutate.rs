//! Bytes made from valid ones by small damages, as libFuzzer's mutators do it.

use rand::Rng;
use rand::rngs::StdRng;

/// No input grows beyond this, so that a run tries many.
const BYTES_MAX: usize = 64 << 10;

/// Integers at which lengths and counts go wrong.
const EDGES: [u64; 12] =
    [0, 1, 2, 7, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

/// A damaged copy of one of `seeds`, perhaps with a piece of another one.
pub fn mutated(seeds: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..1 << random.random_range(0..4) {
        damage(&mut bytes, seeds, random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

/// A place in `bytes`, its end included.
fn place(bytes: &[u8], random: &mut StdRng) -> usize {
    random.random_range(0..=bytes.len())
}

/// A short run of `bytes`.
fn run(bytes: &[u8], random: &mut StdRng) -> std::ops::Range<usize> {
    let start = place(bytes, random);
    let len = (1_usize << random.random_range(0..7)).min(bytes.len() - start);
    start..start + random.random_range(0..=len)
}

fn damage(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut StdRng) {
    match random.random_range(0..9) {
        0 if !bytes.is_empty() => {
            let at = random.random_range(0..bytes.len());
            bytes[at] ^= 1 << random.random_range(0..8);
        }
        1 if !bytes.is_empty() => {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        2 => {
            let run = run(bytes, random);
            bytes.drain(run);
        }
        3 => {
            let piece = bytes[run(bytes, random)].to_vec();
            let at = place(bytes, random);
            bytes.splice(at..at, piece);
        }
        4 => {
            let other = &seeds[random.random_range(0..seeds.len())];
            let piece = other[run(other, random)].to_vec();
            let at = place(bytes, random);
            let end = if random.random() { at } else { (at + piece.len()).min(bytes.len()) };
            bytes.splice(at..end, piece);
        }
        5 => {
            // An integer at an edge, in either order of bytes, over what is there.
            let (edge, len) = (EDGES[random.random_range(0..EDGES.len())], 1 << random.random_range(0..4));
            let edge = if random.random() { edge.wrapping_neg() } else { edge };
            let mut word = edge.to_le_bytes()[..len].to_vec();
            if random.random() {
                word.reverse();
            }
            let at = place(bytes, random);
            let end = (at + len).min(bytes.len());
            bytes.splice(at..end, word);
        }
        6 => {
            let at = place(bytes, random);
            bytes.truncate(at);
        }
        7 => {
            // The same again and again: what nests or grows with each repetition.
            let piece = bytes[run(bytes, random)].to_vec();
            let at = place(bytes, random);
            let times = 1 << random.random_range(0..8);
            if piece.len() * times <= BYTES_MAX {
                bytes.splice(at..at, piece.repeat(times));
            }
        }
        _ => {
            let other = &seeds[random.random_range(0..seeds.len())];
            let at = place(bytes, random);
            let from = place(other, random);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}
