//! Slots in a pod's coherent memory.

use crate::slots::{SlotMemory, SlotWords};
use crate::sync::AtomicU64;
use std::sync::Arc;
use tidepool_pod::layout::{HostId, Layout};
use tidepool_pod::mapped::Mapped;

/// The slots of a pod's hosts.
#[derive(Debug)]
pub struct PodSlots {
    memory: Arc<Mapped>,
    layout: Layout,
}

impl PodSlots {
    pub fn new(memory: Arc<Mapped>, layout: Layout) -> PodSlots {
        PodSlots { memory, layout }
    }
}

impl SlotMemory for PodSlots {
    fn hosts(&self) -> usize {
        usize::from(self.layout.hosts)
    }

    fn workers(&self) -> usize {
        usize::from(self.layout.workers)
    }

    #[inline]
    fn slot(&self, host: usize, worker: usize) -> &SlotWords {
        // A tag has no more bits for either.
        self.memory.slot(self.layout, HostId(host as u8), worker as u16)
    }

    #[inline]
    fn horizon(&self, host: usize) -> &AtomicU64 {
        self.memory.horizon(self.layout, HostId(host as u8))
    }

    fn make_durable(&self, host: usize, worker: usize) {
        let standing = self.layout.standing(HostId(host as u8), worker as u16);
        // Mapped memory makes every access.
        let Ok(()) = standing.make_durable(&*self.memory) else { return };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Commit, Isolation, NEVER, NO_SNAPSHOT, Status, Tag, Transactions, Worker};
    use std::sync::atomic::Ordering;
    use tidepool_base::{CommitTs, Result, SqlState};

    const LAYOUT: Layout = Layout { hosts: 2, workers: 4, tuples: 4, ring_lines: 4, block_lines: 1, blocks: 1 };

    /// Two hosts over one memory.
    fn hosts() -> (Arc<PodSlots>, [Arc<Transactions>; 2]) {
        let slots = Arc::new(PodSlots::new(Arc::new(Mapped::of_process(LAYOUT).unwrap()), LAYOUT));
        let clock = Clock::starting_after(CommitTs(7));
        let hosts = [0, 1].map(|host| Transactions::of_host(clock.beside(), slots.clone(), host));
        (slots, hosts)
    }

    struct One<'a>(&'a AtomicU64);

    impl Commit for One<'_> {
        fn reserve(&mut self) -> Result<()> {
            Ok(())
        }

        fn is_shared(&self) -> bool {
            true
        }

        fn append(&mut self, _: CommitTs) {}

        fn stamp(&mut self, ts: CommitTs, _: &Worker) {
            self.0.store(ts.0, Ordering::Release);
        }
    }

    #[test]
    fn a_host_sees_what_another_commits_and_only_then() {
        let (_, [one, two]) = hosts();
        let begin = AtomicU64::new(0);
        let (mut writer, mut reader) = (one.worker().unwrap(), two.worker().unwrap());
        writer.begin(Isolation::Serializable).unwrap();
        begin.store(writer.tag_to_write().word(), Ordering::Release);
        let tag = Tag::of_word(begin.load(Ordering::Acquire)).unwrap();
        assert!(two.is_foreign(tag) && !one.is_foreign(tag));
        assert_eq!(two.status(tag), Status::Running);
        reader.begin(Isolation::RepeatableRead).unwrap();
        let before = reader.hold();
        assert_eq!(two.word_is_before(tag.word(), before.ts()), Some(false));
        let c = writer.commit(&mut One(&begin)).unwrap().unwrap();
        assert_eq!(two.status(tag), Status::Gone);
        assert_eq!(two.word_is_before(tag.word(), before.ts()), None, "the version has its timestamp by now");
        assert!(!before.sees(&two, &begin, 1));
        assert!(reader.snapshot_now().sees(&two, &begin, 1) && reader.snapshot_now().ts() >= c);
        writer.begin(Isolation::Serializable).unwrap();
        assert_ne!(writer.tag(), tag);
    }

    #[test]
    fn a_wait_for_another_host_ends() {
        let (_, [one, two]) = hosts();
        let (mut writer, mut waiter) = (one.worker().unwrap(), two.worker().unwrap());
        writer.begin(Isolation::Serializable).unwrap();
        let tag = writer.tag_to_write();
        waiter.begin(Isolation::Serializable).unwrap();
        let error = waiter.wait_for(tag, &|| Ok(())).unwrap_err();
        assert_eq!(error.code(), SqlState::SERIALIZATION_FAILURE);
        let waiting = std::thread::spawn(move || {
            while waiter.wait_for(tag, &|| Ok(())).is_err() {}
            waiter
        });
        writer.abort(|_| ());
        let waiter = waiting.join().unwrap();
        assert!(waiter.wait_for(tag, &|| Ok(())).is_ok());
    }

    #[test]
    fn the_horizon_of_all_is_the_least_of_any_host() {
        let (slots, [one, two]) = hosts();
        let (mut old, young) = (one.worker().unwrap(), two.worker().unwrap());
        old.begin(Isolation::RepeatableRead).unwrap();
        let oldest = old.view().ts();
        drop(young.snapshot_now());
        one.advance_horizon();
        assert!(two.advance_horizon() > oldest, "no snapshot of this host");
        assert!(one.horizon_of_all() <= oldest && two.horizon_of_all() == one.horizon_of_all());
        old.abort(|_| ());
        one.advance_horizon();
        assert!(two.horizon_of_all() > oldest);
        // As a host that has ended.
        slots.horizon(0).store(NO_SNAPSHOT, Ordering::Release);
        assert_eq!(one.horizon_of_all(), two.horizon());
        assert!(two.horizon() < NEVER);
    }

    #[test]
    fn a_host_has_as_many_slots_as_the_memory() {
        let (_, [one, two]) = hosts();
        let workers: Vec<_> = (0..4).map(|_| two.worker().unwrap()).collect();
        assert_eq!(two.worker().unwrap_err().code(), SqlState::TOO_MANY_CONNECTIONS);
        let (first, of_one) = (workers[0].index(), one.worker().unwrap());
        assert_ne!(first, of_one.index());
        drop(workers);
        assert_eq!(two.worker().unwrap().index(), first, "the lowest first");
    }
}
