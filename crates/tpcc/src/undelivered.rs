//! Where a district's orders that are not delivered begin, as terminals remember it.
//!
//! Deliveries take the oldest order of a district. The entries of those before go from the index only when no snapshot needs them any more; a
//! scan from the district's beginning would go over them as long as a query runs.

use crate::schema::DISTRICTS;
use std::sync::RwLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// By warehouse and district: all orders with lower numbers are delivered. Only ever grows, as orders get their numbers in the order in which they
/// commit.
#[derive(Debug, Default)]
pub struct Undelivered(RwLock<Vec<[AtomicI32; DISTRICTS as usize]>>);

impl Undelivered {
    /// The lowest number that an order may have that is not delivered.
    pub fn first(&self, w: i32, d: i16) -> i32 {
        let known = self.0.read().unwrap_or_else(|error| error.into_inner());
        known.get(w as usize - 1).map_or(0, |districts| districts[d as usize - 1].load(Ordering::Relaxed))
    }

    /// To be called with the oldest order that a snapshot shows, which is what is committed.
    pub fn found(&self, w: i32, d: i16, o: i32) {
        let place = w as usize - 1;
        if let Some(districts) = self.0.read().unwrap_or_else(|error| error.into_inner()).get(place) {
            districts[d as usize - 1].fetch_max(o, Ordering::Relaxed);
            return;
        }
        let mut known = self.0.write().unwrap_or_else(|error| error.into_inner());
        while known.len() <= place {
            known.push(Default::default());
        }
        known[place][d as usize - 1].fetch_max(o, Ordering::Relaxed);
    }
}
