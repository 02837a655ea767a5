//! What a primary and a standby say to each other by the control socket.

use super::ListenerKind;
use crate::kept::Keeper;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use tidepool_base::Result;
use tidepool_planner::StatementInUse;
use tidepool_pool::control::ControlConnection;

pub(super) type Shared = Arc<OwnedFd>;

/// A client's socket, and what is kept of its connection.
#[derive(Clone)]
pub(super) struct SharedSocket {
    pub(super) socket: Shared,
    pub(super) keeper: Option<Arc<Keeper>>,
}

/// What goes to a standby.
#[derive(Clone)]
pub(super) enum Message {
    Listener(ListenerKind, String, Shared),
    Client(u64, SharedSocket),
    Gone(u64),
    /// The host that the address belongs to has it now.
    LetGo(String),
    Statement(StatementInUse),
    /// Of a pass and a client, some of its session.
    Piece {
        pass: u64,
        number: u64,
        is_last: bool,
        bytes: Arc<[u8]>,
    },
    /// Of a pass, clients whose sessions count as they came.
    Counts {
        pass: u64,
        numbers: Arc<[u64]>,
    },
    /// Asks of a pass how many sessions the standby has whole.
    Ask {
        pass: u64,
        answer: SyncSender<u64>,
    },
}

pub(super) const LISTENER: u8 = b'L';
pub(super) const CLIENT: u8 = b'C';
pub(super) const GONE: u8 = b'G';
pub(super) const LET_GO: u8 = b'U';
pub(super) const STATEMENT: u8 = b'S';
pub(super) const PIECE: u8 = b'P';
pub(super) const COUNTS: u8 = b'D';
pub(super) const ASK: u8 = b'A';
/// From a standby: it was given this address, and wants it.
pub(super) const WANTED: u8 = b'W';
/// The answer: it has it.
pub(super) const YOURS: u8 = b'Y';
/// From a standby, the answer to `ASK`.
pub(super) const HAS: u8 = b'H';
/// From a standby: a request to cancel.
pub(super) const CANCEL: u8 = b'X';

impl Message {
    pub(super) fn send(&self, connection: &ControlConnection) -> Result<()> {
        match self {
            Message::Listener(kind, address, socket) => {
                let kind = match kind {
                    ListenerKind::Tcp => b't',
                    ListenerKind::Local => b'l',
                };
                connection.send(&[&[LISTENER, kind], address.as_bytes()].concat(), &[socket.as_fd()])
            }
            Message::Client(number, SharedSocket { socket, keeper }) => {
                let mut descriptors = vec![socket.as_fd()];
                descriptors.extend(keeper.iter().map(|keeper| keeper.file().as_fd()));
                connection.send(&[&[CLIENT][..], &number.to_le_bytes()].concat(), &descriptors)
            }
            Message::Gone(number) => connection.send(&[&[GONE][..], &number.to_le_bytes()].concat(), &[]),
            Message::LetGo(address) => connection.send(&[&[LET_GO], address.as_bytes()].concat(), &[]),
            Message::Statement(statement) => {
                connection.send(&[&[STATEMENT], statement.to_bytes().as_slice()].concat(), &[])
            }
            Message::Piece { pass, number, is_last, bytes } => {
                let (pass, number) = (pass.to_le_bytes(), number.to_le_bytes());
                connection.send(&[&[PIECE][..], &pass, &number, &[u8::from(*is_last)], bytes].concat(), &[])
            }
            Message::Counts { pass, numbers } => {
                let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                connection.send(&[&[COUNTS][..], &pass.to_le_bytes(), &numbers].concat(), &[])
            }
            Message::Ask { pass, .. } => connection.send(&[&[ASK][..], &pass.to_le_bytes()].concat(), &[]),
        }
    }
}
