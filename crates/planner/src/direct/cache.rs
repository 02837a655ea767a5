//! Programs that were made before, and statements that were prepared, by the texts that they were made of.

use super::Program;
use crate::settings::Settings;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tidepool_base::RoleId;
use tidepool_database::StateMark;

/// Texts that are kept, of all sessions and of one.
const SHARED_MAX: usize = 2_048;
pub const OWN_MAX: usize = 256;

/// What is known of a text: its program, or that there is none.
#[derive(Clone)]
pub struct Known {
    pub program: Option<Arc<Program>>,
    pub state: StateMark,
    pub settings: Arc<Settings>,
    pub role: RoleId,
}

impl Known {
    pub fn is_for(&self, settings: &Settings, role: RoleId) -> bool {
        self.role == role && self.settings.mean_the_same(settings)
    }
}

/// What is known of texts.
pub trait OfText: Clone {
    fn known(&self) -> &Known;
}

impl OfText for Known {
    fn known(&self) -> &Known {
        self
    }
}

/// Of all sessions: another one with the same role and settings need not make them again.
pub struct Shared<T>(Mutex<HashMap<Arc<str>, Vec<T>>>);

pub type Programs = Shared<Known>;

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(Mutex::default())
    }
}

impl<T: OfText> Shared<T> {
    /// `key`: the text, and what parameters are.
    pub fn find(&self, key: &str, is_for: impl Fn(&Known) -> bool) -> Option<T> {
        self.0.lock().get(key)?.iter().find(|one| is_for(one.known())).cloned()
    }

    pub fn keep(&self, key: &str, one: T) {
        let mut all = self.0.lock();
        if all.len() >= SHARED_MAX && !all.contains_key(key) {
            // Any: those that are in use are in their sessions' hands.
            let some: Vec<Arc<str>> = all.keys().take(SHARED_MAX / 4).cloned().collect();
            some.iter().for_each(|key| drop(all.remove(key)));
        }
        let of_text = all.entry(Arc::from(key)).or_default();
        // Of another state nobody asks any more.
        let known = one.known();
        of_text.retain(|other| !other.known().is_for(&known.settings, known.role));
        of_text.truncate(7);
        of_text.push(one);
    }
}
