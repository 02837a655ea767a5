//! In place of a pool's host, in models: where the words of `tidepool_pool` are loom's, it maps no pool. Nobody has one of
//! these.

use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_device::Location;
use tidepool_pool::layout::Layout;
use tidepool_pool::words::{Extent, Generation, Kind, Owner, Root};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "as the real one")]
pub enum Refusal {
    Full,
    Quota,
}

#[derive(Debug)]
pub enum Member {}

#[derive(Debug)]
pub enum Pool {}

impl Member {
    pub fn pool(&self) -> &Arc<Pool> {
        match *self {}
    }

    pub fn lease_one(&self, _: Kind, _: &dyn Fn(Extent) -> bool) -> Result<Extent, Refusal> {
        match *self {}
    }

    pub fn give_back(&self, _: Extent) -> Result<()> {
        match *self {}
    }

    pub fn publish(&self, _: Extent, _: Generation) -> Result<()> {
        match *self {}
    }

    pub fn owner(&self, _: Extent) -> Result<Owner> {
        match *self {}
    }

    pub fn reclaim(&self, _: Extent, _: Owner, _: Generation) -> Result<bool> {
        match *self {}
    }

    pub fn root(&self) -> Result<Root> {
        match *self {}
    }

    pub fn why_refused(&self, _: usize) -> Refusal {
        match *self {}
    }

    pub fn refused(&self, _: Refusal, _: usize) -> Error {
        match *self {}
    }
}

impl Pool {
    pub fn device_identity(&self, _: usize) -> Option<(u64, u64)> {
        match *self {}
    }

    pub fn place(&self, _: Extent) -> Option<(usize, usize)> {
        match *self {}
    }

    pub fn is_readers(&self) -> bool {
        match *self {}
    }

    pub fn is_dealt(&self) -> bool {
        match *self {}
    }

    pub fn extent_bytes(&self) -> u64 {
        match *self {}
    }

    pub fn layout(&self) -> Layout {
        match *self {}
    }

    pub fn device_location(&self, _: usize) -> Option<Location> {
        match *self {}
    }

    pub fn refresh(&self) -> Result<()> {
        match *self {}
    }

    pub fn room(&self) -> Result<(u64, u64)> {
        match *self {}
    }
}
