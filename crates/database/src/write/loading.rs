//! Rows of loads that are not encoded yet, of all loads together.

use crate::Database;
use std::sync::Arc;
use tidepool_heap::{ClientMemory, Held};

/// A writer's rows that are not encoded yet, in the process's books until dropped.
pub(crate) struct Loading {
    memory: Arc<ClientMemory>,
    bytes: u64,
}

impl Loading {
    pub fn of(database: &Database) -> Loading {
        Loading { memory: database.client_memory().clone(), bytes: 0 }
    }

    /// Adds rows. True when all loads together hold so much that those that have something worth encoding should.
    pub fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.memory.note(Held::Loads, bytes as u64, 0) > self.memory.load_bytes_max()
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.memory.note(Held::Loads, 0, self.bytes);
    }
}
