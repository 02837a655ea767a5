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
    of_texts: HashMap<Arc<str>, Vec<T>>,
    /// How often sessions found something here, by text: those that most have in common are of use to others, too.
    found: HashMap<Arc<str>, u64>,
    /// Of all of them.
    bytes: u64,
}

pub type Programs = Shared<Known>;

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(Mutex::new(Kept { of_texts: HashMap::new(), found: HashMap::new(), bytes: 0 }))
    }
}

impl<T: OfText> Shared<T> {
    /// `key`: the text, and what parameters are.
    pub fn find(&self, key: &str, is_for: impl Fn(&Known) -> bool) -> Option<T> {
        let mut kept = self.0.lock();
        let (text, of_text) = kept.of_texts.get_key_value(key)?;
        let found = of_text.iter().find(|one| is_for(one.known())).cloned()?;
        let text = text.clone();
        *kept.found.entry(text).or_default() += 1;
        Some(found)
    }

    /// What is kept, with its text, the most often found first.
    pub fn list(&self) -> Vec<(Arc<str>, T)> {
        let kept = self.0.lock();
        let found = |key: &Arc<str>| kept.found.get(key).copied().unwrap_or(0);
        let mut texts: Vec<(&Arc<str>, u64)> = kept.of_texts.keys().map(|key| (key, found(key))).collect();
        texts.sort_unstable_by_key(|(_, found)| std::cmp::Reverse(*found));
        let of_text = |key: &Arc<str>| kept.of_texts[key].iter().map(|one| (key.clone(), one.clone())).collect();
        texts.into_iter().flat_map(|(key, _)| -> Vec<(Arc<str>, T)> { of_text(key) }).collect()
    }

    /// `memory` is told what is kept, and says how much may be.
    pub fn keep(&self, key: &str, one: T, memory: &ClientMemory) {
        let bytes = entry_bytes(key, &one);
        if bytes > memory.cache_bytes_max() {
            return;
        }
        let mut kept = self.0.lock();
        let before = kept.bytes;
        let is_full = kept.of_texts.len() >= SHARED_MAX && !kept.of_texts.contains_key(key);
        if is_full || kept.bytes + bytes > memory.cache_bytes_max() {
            kept.drop_some(memory.cache_bytes_max() - bytes);
        }
        let of_text = kept.of_texts.remove(key).unwrap_or_default();
        // Of another state nobody asks any more.
        let known = one.known();
        let (mut of_text, old): (Vec<T>, Vec<T>) =
            of_text.into_iter().partition(|other| !other.known().is_for(&known.settings, known.role));
        let older = of_text.split_off(of_text.len().min(7));
        kept.bytes -= old.iter().chain(&older).map(|old| entry_bytes(key, old)).sum::<u64>();
        kept.bytes += bytes;
        of_text.push(one);
        kept.of_texts.insert(Arc::from(key), of_text);
        memory.note(Held::Plans, kept.bytes.saturating_sub(before), before.saturating_sub(kept.bytes));
    }
}

impl<T: OfText> Kept<T> {
    /// Any: those that are in use are in their sessions' hands. Down to three quarters, and so many bytes.
    fn drop_some(&mut self, bytes_max: u64) {
        let texts_max = SHARED_MAX - SHARED_MAX / 4;
        let bytes_max = bytes_max / 4 * 3;
        let (mut texts, mut bytes) = (0, 0);
        self.of_texts.retain(|key, of_text| {
            let of_this: u64 = of_text.iter().map(|one| entry_bytes(key, one)).sum();
            let stays = texts < texts_max && bytes + of_this <= bytes_max;
            if stays {
                texts += 1;
                bytes += of_this;
            }
            stays
        });
        self.bytes = bytes;
        let of_texts = &self.of_texts;
        self.found.retain(|key, _| of_texts.contains_key(key));
    }
}

/// What an entry takes beside what it is made of.
const ENTRY_BYTES: u64 = 256;

fn entry_bytes<T: OfText>(key: &str, one: &T) -> u64 {
    one.bytes() + key.len() as u64 + ENTRY_BYTES
}
