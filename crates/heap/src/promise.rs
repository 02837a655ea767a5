//! Room of a heap's budget that is set apart for what a thread is about to allocate.
//!
//! A promise counts as taken from its beginning, and the pages that its thread takes meanwhile are paid for by it. So of several
//! threads that find room for a large block at the same time, each has the room that it found.

use std::cell::Cell;

/// Of one arena, by tag (zero: of none).
#[derive(Clone, Copy)]
struct Promised {
    tag: u16,
    bytes: u64,
}

thread_local! {
    // Constant and without a destructor: read inside the allocator.
    static PROMISED: Cell<Promised> = const { Cell::new(Promised { tag: 0, bytes: 0 }) };
}

/// Of `bytes` that this thread takes for an arena, those that are promised to it. They are not any more.
pub fn redeem(tag: u16, bytes: u64) -> u64 {
    let now = PROMISED.get();
    if now.tag != tag {
        return 0;
    }
    let redeemed = now.bytes.min(bytes);
    PROMISED.set(Promised { bytes: now.bytes - redeemed, ..now });
    redeemed
}

/// What was redeemed and not taken is promised again.
pub fn restore(tag: u16, bytes: u64) {
    let now = PROMISED.get();
    if now.tag == tag {
        PROMISED.set(Promised { bytes: now.bytes + bytes, ..now });
    }
}

/// Runs `work` with a promise of `bytes`, which the arena's books have as taken. `give_back` is told how many of them were not.
pub fn during<R>(tag: u16, bytes: u64, give_back: impl FnOnce(u64), work: impl FnOnce() -> R) -> R {
    struct End<F: FnOnce(u64)> {
        before: Promised,
        tag: u16,
        give_back: Option<F>,
    }

    impl<F: FnOnce(u64)> Drop for End<F> {
        fn drop(&mut self) {
            let now = PROMISED.get();
            let before = if self.before.tag == self.tag { self.before.bytes } else { 0 };
            let left = if now.tag == self.tag { now.bytes } else { 0 };
            // What is nested in another promise uses up its own first.
            let kept = Promised { bytes: left.min(before), ..self.before };
            PROMISED.set(if self.before.tag == self.tag { kept } else { self.before });
            if let Some(give_back) = self.give_back.take() {
                give_back(left.saturating_sub(before));
            }
        }
    }

    let before = PROMISED.get();
    let nested = if before.tag == tag { before.bytes } else { 0 };
    PROMISED.set(Promised { tag, bytes: nested + bytes });
    let _end = End { before, tag, give_back: Some(give_back) };
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_redeemed_is_given_back() {
        let mut back = Vec::new();
        let inner = during(
            7,
            100,
            |left| back.push(left),
            || {
                assert_eq!([redeem(7, 30), redeem(8, 30)], [30, 0]);
                let mut within = 0;
                during(7, 50, |left| within = left, || assert_eq!(redeem(7, 20), 20));
                // The other promise is as it was.
                assert_eq!(redeem(7, 60), 60);
                restore(7, 5);
                within
            },
        );
        assert_eq!((inner, back), (30, vec![15]));
        assert_eq!(redeem(7, 1), 0);
    }
}
