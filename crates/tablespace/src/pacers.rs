use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};
use tidepool_device::{CostModel, Pacer};

/// A tablespace's pacer, which is read at every access and replaced when the tablespace is made of other devices.
#[derive(Debug)]
pub(crate) struct Pacers {
    /// One of `all`, or null.
    current: AtomicPtr<Pacer>,
    /// From `Box::into_raw`. All that there ever were: there are few, and one that was replaced may still be in use.
    all: Mutex<Vec<*mut Pacer>>,
}

// SAFETY: the pointers are to pacers that are shared by reference only, and those are `Send` and `Sync`.
unsafe impl Send for Pacers {}
// SAFETY: as above.
unsafe impl Sync for Pacers {}

impl Pacers {
    pub fn new(model: Option<CostModel>) -> Pacers {
        let pacers = Pacers { current: AtomicPtr::new(std::ptr::null_mut()), all: Mutex::new(Vec::new()) };
        pacers.replace(model);
        pacers
    }

    #[inline]
    pub fn current(&self) -> Option<&Pacer> {
        // SAFETY: null, or a pacer that lives until `self` is dropped. Acquire pairs with the store that published it.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// `None`: nothing is paced from now on.
    pub fn replace(&self, model: Option<CostModel>) {
        let next = model.map_or(std::ptr::null_mut(), |model| {
            let pacer = match self.current() {
                Some(before) => before.followed_by(model),
                None => Pacer::new(model),
            };
            let pacer = Box::into_raw(Box::new(pacer));
            self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(pacer);
            pacer
        });
        self.current.store(next, Ordering::Release);
    }
}

impl Drop for Pacers {
    fn drop(&mut self) {
        for pacer in self.all.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).drain(..) {
            // SAFETY: from `Box::into_raw`, and nobody refers to it once its owner is dropped.
            drop(unsafe { Box::from_raw(pacer) });
        }
    }
}
