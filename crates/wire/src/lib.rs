//! Requests from a compute process to a memory node, and their answers.
//!
//! A database can have its memory on another machine, at a *memory node*, and have the node run parts of its plans.
//! This crate is what lies between: it carries requests and answers, and knows nothing of what they mean.
//!
//! # The protocol
//!
//! A connection carries [frames](frame): a head of 32 bytes with a checksum, then a body. It begins with a
//! [handshake](hello) of four `HELLO`s, in which both sides prove by HMAC that they know the same [`Token`], and agree
//! on [`Limits`]. Then the compute process sends [requests](message), each under a number of its own, and the node
//! sends answers under the same numbers, in any order:
//!
//! ```text
//! compute                                     node
//!    | HELLO offer  (tablespace, epoch, nonce) |
//!    |---------------------------------------->|
//!    |               HELLO challenge   (nonce) |
//!    |<----------------------------------------|
//!    | HELLO proof                             |
//!    |---------------------------------------->|  older epochs end here
//!    |   HELLO welcome (proof, limits, facts)  |
//!    |<----------------------------------------|
//!    | 1 READ  (places)                        |
//!    | 2 FLUSH (place, bytes)                  |
//!    |---------------------------------------->|
//!    |                          2 DONE, 1 DATA |
//!    |<----------------------------------------|
//!    | 3 FRAGMENT (plan, credit)               |
//!    |---------------------------------------->|
//!    |                      3 BATCH, 3 BATCH … |
//!    |<----------------------------------------|
//!    | 3 CREDIT                                |
//!    |---------------------------------------->|
//!    |                       3 BATCH … 3 DONE  |
//!    |<----------------------------------------|
//! ```
//!
//! What holds:
//!
//! * **Limits.** A peer is never believed how much there will be: frames, lists, reads, requests under way and their
//!   bytes are bounded by what was agreed on, and refused beyond that before memory is taken for them.
//! * **Credits.** A request's body counts against the connection's credit until the request is answered. Rows of a
//!   fragment count against the request's own credit, which `CREDIT` raises as they are consumed. Both are bytes.
//! * **Once.** A request that comes twice happens once, and one that comes after it was cancelled does not happen.
//! * **Cancelling.** `CANCEL` is answered by the end of the request that it names: it is done after all, or had no
//!   effect (57014). A deadline cancels. Whatever is not answered then is unknown, and the connection ends (08006).
//! * **Epochs.** Each frame has its sender's [`Epoch`]. Once a `HELLO` of a newer one is answered, nothing of an older
//!   one happens any more (57P01). The next connection of the same lane of a process ends the one before in the same
//!   way. So a process that connects again may read what its lost requests came to, and no late frame changes it
//!   afterwards.
//! * **Damage.** A frame whose checksum is wrong, or that is malformed, ends the connection (08P01).
//!
//! # The parts
//!
//! [`Connection`] is the compute process's side, shared by threads. [`DirectConnection`] only reads and writes,
//! and takes no memory, for a handler of page faults. [`Server`] is the node's side, over a [`Service`]. Under them is a
//! [`Transport`](transport::Transport): TCP, unix sockets, a pair in one process that can be paced, or a simulated
//! network.
//!
//! ```
//! use std::time::Duration;
//! use tidepool_base::Result;
//! use tidepool_wire::transport::local::Link;
//! use tidepool_wire::{
//!     Admission, Connection, Done, Epoch, Extent, Identity, Limits, Offer, Place, Request, Responder, Server,
//!     ServerConfig, Service, Timeouts, Token,
//! };
//!
//! /// A node whose memory is the same byte everywhere.
//! struct Sevens;
//!
//! impl Service for Sevens {
//!     fn admit(&self, _: &Offer) -> Result<Admission> {
//!         Ok(Admission::default())
//!     }
//!
//!     fn serve(&self, _: &Offer, request: Request<'_>, responder: Responder) {
//!         // An error here means that the peer is gone.
//!         let _ = match request {
//!             Request::Read(extents) => {
//!                 let bytes: usize = extents.iter().map(|extent| extent.bytes as usize).sum();
//!                 responder.data(&[&vec![7; bytes]])
//!             }
//!             Request::Ping(word) => responder.pong(word),
//!             _ => responder.done(Done::default()),
//!         };
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let token = Token::new(b"sixteen or more random bytes")?;
//! let server = Server::new(Sevens, token.clone(), ServerConfig::default())?;
//! let (near, far) = Link::unpaced().pair();
//! let node = std::thread::spawn({
//!     let server = server.clone();
//!     move || server.serve(Box::new(far))
//! });
//!
//! let offer = Offer {
//!     tablespace: Identity([1; 16]),
//!     epoch: Epoch(1),
//!     client: Identity::random()?,
//!     lane: 0,
//!     incarnation: 1,
//!     limits: Limits::default(),
//!     bare_data: true,
//! };
//! let connection = Connection::open(Box::new(near), &offer, &token, Timeouts::default())?;
//! let mut bytes = [0; 100];
//! connection.read_into(&[Extent { place: Place(4096), bytes: 100 }], &mut bytes)?;
//! assert_eq!(bytes, [7; 100]);
//! drop(connection);
//! # let _ = node.join();
//! # Ok(())
//! # }
//! ```
//!
//! Leaves to others: what is asked and answered, which memory a place is, what a plan says, whether a failure is
//! overcome.

#![forbid(unsafe_code)]

pub mod client;
mod clock;
mod codec;
pub mod direct;
mod fault;
mod fence;
pub mod frame;
pub mod hello;
mod limits;
pub mod message;
pub mod server;
mod sync;
mod token;
pub mod transport;

pub use client::{Batches, Canceller, Connection, Outcome, Pending, Timeouts};
pub use clock::{Clock, SystemClock, VirtualClock};
pub use codec::{Entry, List, Payload};
pub use direct::{DIRECT_EXTENTS_MAX, DirectConnection};
pub use fault::Fault;
pub use frame::{Epoch, Flags, Head, Kind, RequestId};
pub use hello::{Agreement, Hello, Identity, NodeFacts, Offer};
pub use limits::{ENTRIES_MAX, FRAME_BYTES_MIN, Limits, REQUESTS_MAX};
pub use message::{Allocation, Answer, Done, Extent, Place, Refusal, Request, total_bytes};
pub use server::{Admission, Responder, Server, ServerConfig, Service};
pub use token::{TOKEN_BYTES_MIN, Token};
