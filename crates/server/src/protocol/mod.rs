//! PostgreSQL's frontend/backend protocol, versions 3.0 to 3.2: reading what clients send, writing what they get.
//!
//! A message is a type byte, a length (big-endian, counting itself but not the type) and a body. Reading first cuts
//! exactly one message out of the input and only then looks into it, so that a body that lies about its inner counts
//! can neither reach into the next message nor make the server panic: it is a protocol violation (08P01) and no more.

pub(crate) mod backend;
pub(crate) mod frontend;
