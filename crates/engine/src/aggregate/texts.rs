//! States of text: a value that may be replaced, its bytes beside.

use crate::observed::{Hold, Observer};
use crate::text::{INLINE_MAX, Text};
use arrow_buffer::Buffer;
use tidepool_base::{Error, Result};

/// A value, or none: then all of its bytes are 0.
#[derive(Clone, Copy)]
pub(super) struct TextState {
    text: Text,
    /// Bytes that a long value may take where it lies.
    room: u32,
    is_there: u32,
}

impl TextState {
    #[inline]
    pub fn is_there(&self) -> bool {
        self.is_there != 0
    }

    pub fn text(&self) -> Text {
        self.text
    }

    /// # Safety
    ///
    /// What it points to is there: the store that set it, or its buffers.
    #[inline]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller's word.
        unsafe { self.text.bytes() }
    }

    /// Whether `bytes` come before it (`least`) or after it, or there is none.
    ///
    /// # Safety
    ///
    /// As for [`TextState::bytes`].
    #[inline]
    pub unsafe fn is_beaten(&self, bytes: &[u8], least: bool) -> bool {
        // SAFETY: the caller's word.
        let order = || bytes.cmp(unsafe { self.bytes() });
        !self.is_there() || if least { order().is_lt() } else { order().is_gt() }
    }
}

const BLOCK_BYTES: usize = 64 << 10;

/// What states of text of one worker point to. Blocks never move.
#[derive(Debug, Default)]
pub(super) struct TextStore {
    blocks: Vec<Vec<u8>>,
    holds: Vec<Hold>,
    observer: Observer,
    /// Taken of the last block.
    used: usize,
}

impl TextStore {
    pub fn new(observer: &Observer) -> TextStore {
        TextStore { observer: observer.clone(), ..TextStore::default() }
    }

    /// Sets a state that this store has set before, or that is of nothing.
    pub fn set(&mut self, state: &mut TextState, bytes: &[u8]) -> Result<()> {
        state.is_there = 1;
        if bytes.len() <= INLINE_MAX {
            *state = TextState { text: Text::short(bytes), room: 0, is_there: 1 };
            return Ok(());
        }
        // Room grows by a half, so that a value that is replaced over and over takes no more than a few times its length.
        let room = bytes.len() + bytes.len() / 2;
        let Ok(room_stated) = u32::try_from(room) else { return Err(Error::unsupported("text of more than 2 GB")) };
        let at = if state.room as usize >= bytes.len() {
            state.text.rest() as usize
        } else {
            if self.blocks.last().is_none_or(|block| block.len() - self.used < room) {
                let block = crate::room::filled(0, room.max(BLOCK_BYTES))?;
                self.holds.push(self.observer.hold_vec(&block));
                self.blocks.push(block);
                self.used = 0;
            }
            let Some(block) = self.blocks.last_mut() else { unreachable!("just pushed") };
            let at = block[self.used..self.used + room].as_mut_ptr().expose_provenance();
            self.used += room;
            state.room = room_stated;
            at
        };
        let place = std::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: `room` bytes there belong to this state alone (it was made above, now or when the state was last set), within a
        // block that is here and never moves. `bytes` are the caller's, so they are not these.
        state.text = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            Text::new(std::slice::from_raw_parts(place, bytes.len()))
        };
        Ok(())
    }

    /// What the states point to, once no more are set.
    pub fn freeze(self) -> (Vec<Buffer>, Vec<Hold>) {
        (self.blocks.into_iter().map(Buffer::from_vec).collect(), self.holds)
    }
}
