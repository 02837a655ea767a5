//! Programs that were made before, and statements that were prepared, by the texts that they were made of.

use super::Program;
use crate::settings::Settings;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tidepool_base::RoleId;
use tidepool_database::StateMark;
use tidepool_heap::{ClientMemory, Held};

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
    /// What the program takes of memory, about.
    pub bytes: u64,
}

impl Known {
    pub fn is_for(&self, settings: &Settings, role: RoleId) -> bool {
        self.role == role && self.settings.mean_the_same(settings)
    }
}

/// What is known of texts.
pub trait OfText: Clone {
    fn known(&self) -> &Known;

    /// What it takes of memory, about.
    fn bytes(&self) -> u64;
}

impl OfText for Known {
    fn known(&self) -> &Known {
        self
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Of all sessions: another one with the same role and settings need not make them again.
pub struct Shared<T>(Mutex<Kept<T>>);

struct Kept<T> {
    texts: HashMap<Arc<str>, KeptText<T>>,
    /// Of all of them.
    bytes: u64,
}

/// What is kept of a text: by settings and roles.
struct KeptText<T> {
    entries: Vec<T>,
    /// How often sessions found something here: what most have in common is of use to others, too.
    found: u64,
}

impl<T: OfText> KeptText<T> {
    fn bytes(&self, text: &str) -> u64 {
        self.entries.iter().map(|entry| entry_bytes(text, entry)).sum()
    }
}

pub type Programs = Shared<Known>;

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(Mutex::new(Kept { texts: HashMap::new(), bytes: 0 }))
    }
}

impl<T: OfText> Shared<T> {
    /// `key`: the text, and what parameters are.
    pub fn find(&self, key: &str, is_for: impl Fn(&Known) -> bool) -> Option<T> {
        let mut kept = self.0.lock();
        let text = kept.texts.get_mut(key)?;
        let found = text.entries.iter().find(|entry| is_for(entry.known())).cloned()?;
        text.found += 1;
        Some(found)
    }

    /// What is kept, with its text, the most often found first.
    pub fn list(&self) -> Vec<(Arc<str>, T)> {
        let kept = self.0.lock();
        let mut texts: Vec<(&Arc<str>, &KeptText<T>)> = kept.texts.iter().collect();
        texts.sort_unstable_by_key(|(_, text)| std::cmp::Reverse(text.found));
        let entries = |(key, text): (&Arc<str>, &KeptText<T>)| -> Vec<(Arc<str>, T)> {
            text.entries.iter().map(|entry| (key.clone(), entry.clone())).collect()
        };
        texts.into_iter().flat_map(entries).collect()
    }

    /// `memory` is told what is kept, and says how much may be.
    pub fn keep(&self, key: &str, one: T, memory: &ClientMemory) {
        let bytes = entry_bytes(key, &one);
        if bytes > memory.cache_bytes_max() {
            return;
        }
        let mut kept = self.0.lock();
        let before = kept.bytes;
        let is_full = kept.texts.len() >= SHARED_MAX && !kept.texts.contains_key(key);
        if is_full || kept.bytes + bytes > memory.cache_bytes_max() {
            kept.drop_some(memory.cache_bytes_max() - bytes);
        }
        let (key, KeptText { entries, found }) = kept
            .texts
            .remove_entry(key)
            .unwrap_or_else(|| (Arc::from(key), KeptText { entries: Vec::new(), found: 0 }));
        // Of another state nobody asks any more.
        let known = one.known();
        let (mut entries, old): (Vec<T>, Vec<T>) =
            entries.into_iter().partition(|other| !other.known().is_for(&known.settings, known.role));
        let older = entries.split_off(entries.len().min(7));
        kept.bytes -= old.iter().chain(&older).map(|old| entry_bytes(&key, old)).sum::<u64>();
        kept.bytes += bytes;
        entries.push(one);
        kept.texts.insert(key, KeptText { entries, found });
        memory.note(Held::Plans, kept.bytes.saturating_sub(before), before.saturating_sub(kept.bytes));
    }
}

impl<T: OfText> Kept<T> {
    /// Any: those that are in use are in their sessions' hands. Down to three quarters, and so many bytes.
    fn drop_some(&mut self, bytes_max: u64) {
        let texts_max = SHARED_MAX - SHARED_MAX / 4;
        let bytes_max = bytes_max / 4 * 3;
        let (mut texts, mut bytes) = (0, 0);
        self.texts.retain(|key, text| {
            let of_this = text.bytes(key);
            let stays = texts < texts_max && bytes + of_this <= bytes_max;
            if stays {
                texts += 1;
                bytes += of_this;
            }
            stays
        });
        self.bytes = bytes;
    }
}

/// What an entry takes beside what it is made of.
const ENTRY_BYTES: u64 = 256;

fn entry_bytes<T: OfText>(key: &str, one: &T) -> u64 {
    one.bytes() + key.len() as u64 + ENTRY_BYTES
}
