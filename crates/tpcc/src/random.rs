//! Random numbers and texts as the specification asks for them (clauses 2.1.5, 2.1.6, 4.3.2, 4.3.3).

/// xorshift64*: quick, and good enough for what is drawn here.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The constants C of clause 2.1.6, of the load and of a run: that of last names differs by 66, as clause 2.1.6.1 allows.
const C_LAST_LOAD: u64 = 157;
const C_LAST_RUN: u64 = 223;
const C_CUSTOMER: u64 = 259;
const C_ITEM: u64 = 7911;

const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab";

/// Of last names, three of which make one.
const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        random
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From `first` to `last`, both included.
    #[inline]
    pub fn within(&mut self, first: u64, last: u64) -> u64 {
        first + ((u128::from(self.next()) * u128::from(last - first + 1)) >> 64) as u64
    }

    #[inline]
    pub fn percent(&mut self, percent: u64) -> bool {
        self.within(1, 100) <= percent
    }

    #[inline]
    fn not_uniform(&mut self, a: u64, c: u64, first: u64, last: u64) -> u64 {
        ((self.within(0, a) | self.within(first, last)) + c) % (last - first + 1) + first
    }

    #[inline]
    pub fn customer(&mut self) -> i32 {
        self.not_uniform(1023, C_CUSTOMER, 1, 3000) as i32
    }

    #[inline]
    pub fn item(&mut self) -> i32 {
        self.not_uniform(8191, C_ITEM, 1, 100_000) as i32
    }

    pub fn last_name_to_load(&mut self) -> String {
        last_name(self.not_uniform(255, C_LAST_LOAD, 0, 999) as usize)
    }

    #[inline]
    pub fn last_name(&mut self) -> LastName {
        LastName::new(self.not_uniform(255, C_LAST_RUN, 0, 999) as usize)
    }

    /// A text of `least` to `most` letters and digits.
    pub fn text(&mut self, least: u64, most: u64) -> String {
        let length = self.within(least, most) as usize;
        let mut text = String::with_capacity(length);
        let mut bits = 0;
        for at in 0..length {
            if at % 10 == 0 {
                bits = self.next();
            }
            text.push(char::from(LETTERS[(bits & 63) as usize]));
            bits >>= 6;
        }
        text
    }

    pub fn digits(&mut self, length: usize) -> String {
        (0..length).map(|_| char::from(b'0' + self.within(0, 9) as u8)).collect()
    }

    /// As `text`, with "ORIGINAL" somewhere in a tenth of them.
    pub fn data(&mut self, least: u64, most: u64) -> String {
        let mut text = self.text(least, most);
        if self.percent(10) {
            let at = self.within(0, text.len() as u64 - 8) as usize;
            text.replace_range(at..at + 8, "ORIGINAL");
        }
        text
    }

    pub fn zip(&mut self) -> String {
        self.digits(4) + "11111"
    }

    /// The numbers from 1 on in a random order.
    pub fn permutation(&mut self, count: i32) -> Vec<i32> {
        let mut numbers: Vec<i32> = (1..=count).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.within(0, at as u64) as usize);
        }
        numbers
    }
}

pub fn last_name(number: usize) -> String {
    LastName::new(number).as_str().to_owned()
}

/// A last name, without memory of its own.
#[derive(Clone, Copy, Debug)]
pub struct LastName {
    bytes: [u8; 15],
    length: u8,
}

impl LastName {
    fn new(number: usize) -> LastName {
        let mut name = LastName { bytes: [0; 15], length: 0 };
        for syllable in [number / 100, number / 10 % 10, number % 10].map(|at| SYLLABLES[at].as_bytes()) {
            let start = usize::from(name.length);
            name.bytes[start..start + syllable.len()].copy_from_slice(syllable);
            name.length += syllable.len() as u8;
        }
        name
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("")
    }
}
