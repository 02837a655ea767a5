use crate::{Purpose, Tablespace};
use std::sync::Arc;

/// An owned run of bytes in a tablespace. Send and Sync; freed on drop; keeps its tablespace open.
#[derive(Debug)]
pub struct Region {}

impl Region {
    pub fn tablespace(&self) -> &Arc<Tablespace> {
        unimplemented!()
    }
    pub fn purpose(&self) -> Purpose {
        unimplemented!()
    }
}

impl std::ops::Deref for Region {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}

impl std::ops::DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        unimplemented!()
    }
}
