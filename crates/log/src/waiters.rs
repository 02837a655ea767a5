//! Statements and commits that wait for what hosts have applied, each until it is answered or goes away by itself.

use tidepool_base::Result;

/// Is called once, with how the wait ended.
pub type Answer = Box<dyn FnOnce(Result<()>) + Send>;

/// Those that wait for a point `P` in what is applied. Whoever owns it locks it, and calls answers without that lock.
pub struct Waiters<P> {
    waiting: Vec<(u64, P, Answer)>,
    next: u64,
}

impl<P> Default for Waiters<P> {
    fn default() -> Waiters<P> {
        Waiters { waiting: Vec::new(), next: 0 }
    }
}

impl<P: Copy + Ord> Waiters<P> {
    /// Returns the number by which it goes away.
    pub fn add(&mut self, point: P, answer: Answer) -> u64 {
        self.next += 1;
        self.waiting.push((self.next, point, answer));
        self.next
    }

    /// Nothing, if it was answered.
    pub fn remove(&mut self, number: u64) {
        self.waiting.retain(|(known, ..)| *known != number);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The furthest point that is waited for.
    pub fn furthest(&self) -> Option<P> {
        self.waiting.iter().map(|(_, point, _)| *point).max()
    }

    /// Takes those that wait for a point up to this one, to be answered.
    pub fn take_up_to(&mut self, reached: P) -> Vec<Answer> {
        self.waiting.extract_if(.., |(_, point, _)| *point <= reached).map(|(.., answer)| answer).collect()
    }

    pub fn take_all(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.waiting).into_iter().map(|(.., answer)| answer).collect()
    }
}

/// Answers all alike.
pub fn answer(answers: Vec<Answer>, outcome: &Result<()>) {
    answers.into_iter().for_each(|answer| answer(outcome.clone()));
}
