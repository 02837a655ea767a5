//! Connections that have not said who they are.
//!
//! They cost a socket each and nobody is answerable for them, so there are only so many, apart from the clients that are known. Where another one comes,
//! the one that has said nothing for longest makes room: a client that means it has sent its first packet by then. Of several addresses it is one of that
//! which has most of them.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::task::AbortHandle;

pub(crate) struct Strangers {
    max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// In the order in which they came.
    strangers: BTreeMap<u64, Stranger>,
}

struct Stranger {
    /// `None`: by the local socket.
    address: Option<IpAddr>,
    /// Its first packet came whole.
    has_opened: bool,
    /// `None` until its task is there.
    task: Option<AbortHandle>,
}

/// A connection's place among the strangers, until dropped.
pub(crate) struct Stranded {
    strangers: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    pub(crate) fn new(max: usize) -> Arc<Strangers> {
        Arc::new(Strangers { max: max.max(1), inner: Mutex::default() })
    }

    /// A place for one more, and whether another one had to go for it.
    pub(crate) fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> (Stranded, bool) {
        let mut inner = self.inner.lock();
        let is_full = inner.strangers.len() >= self.max;
        if is_full
            && let Some(number) = inner.dispensable()
            && let Some(gone) = inner.strangers.remove(&number)
            && let Some(task) = gone.task
        {
            // Whoever is known by now is not in the list.
            task.abort();
        }
        let number = inner.next;
        inner.next += 1;
        inner.strangers.insert(number, Stranger { address, has_opened: false, task: None });
        (Stranded { strangers: self.clone(), number }, is_full)
    }

    /// What to abort when the connection of this number has to go.
    pub(crate) fn set_task(&self, number: u64, task: AbortHandle) {
        if let Some(stranger) = self.inner.lock().strangers.get_mut(&number) {
            stranger.task = Some(task);
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.inner.lock().strangers.len()
    }
}

impl Inner {
    /// Of the address with most strangers the oldest that has said nothing, or else the oldest.
    fn dispensable(&self) -> Option<u64> {
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        self.strangers.values().for_each(|stranger| *counts.entry(stranger.address).or_default() += 1);
        let most = counts.values().copied().max()?;
        let mut candidates = self.strangers.iter().filter(|(_, stranger)| counts[&stranger.address] == most);
        let silent = candidates.clone().find(|(_, stranger)| !stranger.has_opened);
        silent.or_else(|| candidates.next()).map(|(number, _)| *number)
    }
}

impl Stranded {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Its first packet came whole.
    pub(crate) fn has_opened(&self) {
        if let Some(stranger) = self.strangers.inner.lock().strangers.get_mut(&self.number) {
            stranger.has_opened = true;
        }
    }

    /// It is known who it is. False: it had to go just now.
    pub(crate) fn make_known(self) -> bool {
        self.strangers.inner.lock().strangers.remove(&self.number).is_some()
    }
}

impl Drop for Stranded {
    fn drop(&mut self) {
        self.strangers.inner.lock().strangers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn the_oldest_silent_one_makes_room() {
        let strangers = Strangers::new(3);
        let [first, second, third] = [(); 3].map(|()| strangers.enter(address(1)).0);
        first.has_opened();
        let (fourth, is_full) = strangers.enter(address(1));
        assert!(is_full && strangers.count() == 3);
        // The first has spoken; the second went.
        assert!(!second.make_known());
        assert!(first.make_known() && third.make_known());
        assert_eq!(strangers.count(), 1);
        drop(fourth);
        assert_eq!(strangers.count(), 0);
    }

    #[test]
    fn an_address_with_many_makes_room_for_others() {
        let strangers = Strangers::new(4);
        let (other, _) = strangers.enter(address(2));
        let many: Vec<Stranded> = (0..3).map(|_| strangers.enter(address(1)).0).collect();
        many.iter().for_each(Stranded::has_opened);
        let (last, is_full) = strangers.enter(address(3));
        assert!(is_full);
        // Silent, and the oldest of all, but the only one of its address.
        assert!(other.make_known() && last.make_known());
        assert_eq!(many.into_iter().map(Stranded::make_known).collect::<Vec<_>>(), [false, true, true]);
    }

    #[tokio::test]
    async fn what_makes_room_is_ended() {
        let strangers = Strangers::new(1);
        let (stranded, _) = strangers.enter(None);
        let number = stranded.number();
        let task = tokio::spawn(async move {
            let _stranded = stranded;
            std::future::pending::<()>().await;
        });
        strangers.set_task(number, task.abort_handle());
        let (second, is_full) = strangers.enter(None);
        assert!(is_full && task.await.unwrap_err().is_cancelled());
        assert!(second.make_known());
    }
}
