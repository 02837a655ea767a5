//! An index made of entries that come in order.

use crate::content::{Content, common_len, separator, size_for};
use crate::node::{Fence, HEADER_WORDS, LARGE_WORDS, SMALL_WORDS, fence_words, payload_words};
use crate::shape::ENTRIES_MIN;
use crate::tree::{Index, KEY_BYTES_MAX, check_key};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, Result, RowId};
use tidepool_tablespace::Tablespace;
use tidepool_txn::Transactions;

/// Makes an index of entries that are given in order, node by node from the left: `CREATE INDEX` and recovery.
#[derive(Debug)]
pub struct IndexBuilder {
    index: Index,
    /// Part of a node that is filled, percent.
    fill: usize,
    /// What is to go into the next node of each level.
    levels: Vec<Pending>,
    count: u64,
}

#[derive(Debug)]
struct Pending {
    content: Content,
    /// Bytes that all of its keys have in common with its lower fence.
    prefix_len: usize,
    /// Words of a node of it, about.
    words: usize,
}

impl Pending {
    fn new(level: u8) -> Pending {
        let mut content = Content::default();
        content.level = level;
        Pending { content, prefix_len: 0, words: 0 }
    }

    /// Counts anew, after the lower fence has changed or the prefix become shorter.
    fn recount(&mut self) {
        let content = &self.content;
        self.prefix_len = (0..content.len())
            .map(|index| common_len(&content.lower.key, content.key(index)))
            .min()
            .unwrap_or(content.lower.key.len());
        // The upper fence to come is about as long as the lower.
        self.words = HEADER_WORDS + 2 * fence_words(content.lower.key.len());
        self.words += (0..content.len()).map(|index| content.entry_words(index, self.prefix_len)).sum::<usize>();
    }

    fn push(&mut self, key: &[u8], row: u64, child: u64) {
        self.content.push(key, row, child);
        let common = common_len(&self.content.lower.key, key);
        if self.content.len() == 1 || common < self.prefix_len {
            self.recount();
        } else {
            self.words += 1 + payload_words(self.content.level, row, key.len() - self.prefix_len);
        }
    }
}

impl IndexBuilder {
    /// Fills nodes to `fill_percent`, from 10 to 100.
    pub fn new(space: Arc<Tablespace>, transactions: Arc<Transactions>, fill_percent: u8) -> Result<IndexBuilder> {
        let index = Index::create(space, transactions)?;
        let fill = usize::from(fill_percent.clamp(10, 100));
        Ok(IndexBuilder { index, fill, levels: vec![Pending::new(0)], count: 0 })
    }

    /// Adds an entry, which is after all that were added. Returns whether the one before has the same key: for a unique
    /// index. 54000 and 53200 as [`Index::insert`].
    pub fn push(&mut self, key: &[u8], row: RowId) -> Result<bool> {
        check_key(key)?;
        let content = &self.levels[0].content;
        let mut is_same_key = false;
        if let Some(last) = content.len().checked_sub(1) {
            let before = (content.key(last), content.entry(last).row);
            if before >= (key, row.0) {
                return Err(Error::internal("the entries of an index that is built are not in order"));
            }
            is_same_key = before.0 == key;
        }
        self.push_at(0, key, row.0, 0)?;
        self.count += 1;
        Ok(is_same_key)
    }

    fn push_at(&mut self, level: usize, key: &[u8], row: u64, child: u64) -> Result<()> {
        if self.levels.len() == level {
            self.levels.push(Pending::new(level as u8));
        }
        let fill = self.fill;
        let pending = &mut self.levels[level];
        pending.push(key, row, child);
        // Of long keys the upper fence to come may be one that takes much.
        let few = pending.content.len() <= ENTRIES_MIN;
        let limit = if few { LARGE_WORDS - fence_words(KEY_BYTES_MAX) } else { SMALL_WORDS };
        if pending.words <= limit * fill / 100 || pending.content.len() < 3 {
            return Ok(());
        }
        // All but the entry that was one too many; or fewer, where they have more in common with their upper fence.
        let content = &pending.content;
        let most = content.len() - 1 - usize::from(level > 0);
        let wanted = if few { LARGE_WORDS } else { SMALL_WORDS };
        let fits = |at: &usize| content.words(0..*at, &content.lower, Some(&fence_at(content, *at))) <= wanted;
        let at = (most / 2 + 1..=most).rev().find(fits).unwrap_or(most);
        let fence = fence_at(content, at);
        let size = size_for(content.words(0..at, &content.lower, Some(&fence))).unwrap_or(LARGE_WORDS);
        let last_child = if level > 0 { content.entry(at).child } else { 0 };
        let image = content.build(0..at, &content.lower, Some(&fence), last_child, size);
        let node = self.index.filled(&image, level as u8)?;
        // In an inner node the entry at the fence has gone up.
        pending.content.keep_from(at + usize::from(level > 0), fence.clone());
        pending.recount();
        self.push_at(level + 1, &fence.key, fence.row, node.node().link())
    }

    /// Entries so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The index.
    pub fn finish(self) -> Result<Index> {
        let IndexBuilder { index, mut levels, .. } = self;
        let mut below = None;
        for pending in &mut levels {
            let content = &mut pending.content;
            content.last_child = below.unwrap_or(0);
            let words = content.words(0..content.len(), &content.lower, None);
            let size = size_for(words).unwrap_or(LARGE_WORDS);
            let image = content.build(0..content.len(), &content.lower, None, content.last_child, size);
            below = Some(index.filled(&image, content.level)?.node().link());
        }
        if let Some(root) = below {
            let empty = index.root.swap(root, Ordering::Release);
            // SAFETY: the root until now, in an index that nobody else knows.
            let empty = unsafe { index.node(empty) };
            if let Ok(version) = empty.read()
                && let Ok(empty) = crate::tree::Locked::new(empty, version)
            {
                empty.retire(&index.arena);
            }
        }
        Ok(index)
    }
}

/// What divides the entries below `at` from the others; in an inner node the entry itself.
fn fence_at(content: &Content, at: usize) -> Fence {
    let entry = |index: usize| (content.key(index), content.entry(index).row);
    if content.level > 0 {
        Fence { key: content.key(at).to_vec(), row: content.entry(at).row }
    } else {
        separator(entry(at - 1), entry(at))
    }
}
