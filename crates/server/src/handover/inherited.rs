//! What a host that follows has of its primary's connections.

use super::{InheritedListener, PIECE_BYTES};
use crate::incoming::shut_down;
use crate::succession::InheritedClient;
use std::collections::HashMap;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_planner::PortableSession;
use tidepool_pool::control::ControlConnection;
use zeroize::Zeroizing;

/// Of a client of the primary, as it came so far.
pub(super) struct Piecewise {
    pub(super) pass: u64,
    bytes: Zeroizing<Vec<u8>>,
    /// What has come can be read as a session, of which nobody has said that it counts: it may go on at the primary yet.
    draft: Option<PortableSession>,
    /// Once it has all come.
    pub(super) session: Option<Result<PortableSession>>,
}

impl Piecewise {
    /// It goes over as it has come.
    fn count(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.session = Some(self.draft.take().map_or_else(|| PortableSession::from_bytes(&bytes), Ok));
    }
}

/// Of a host that follows: what its primary shared.
#[derive(Default)]
pub(super) struct Inherited {
    pub(super) clients: HashMap<u64, InheritedClient>,
    /// Of some of these.
    pub(super) sessions: HashMap<u64, Piecewise>,
    pub(super) listeners: Vec<InheritedListener>,
    /// This host takes over: whatever comes still is for it.
    pub(super) takes_over: bool,
    /// It has, and accepts.
    pub(super) has_taken_over: bool,
    /// Addresses that this host was given, and at which its primary listens.
    pub(super) wanted: Vec<String>,
    /// Where the primary listens by its configuration, if it runs beside this host.
    pub(super) of_primary: Option<String>,
    /// To the primary.
    pub(super) connection: Option<Arc<ControlConnection>>,
}

impl Inherited {
    /// Of a database that nobody has taken over.
    pub(super) fn end_all(&mut self) {
        self.sessions.clear();
        self.clients.drain().for_each(|(_, client)| shut_down(&client.socket));
    }

    /// Some of a session. What does not fit to what came before is of another pass, and begins anew.
    pub(super) fn take_piece(&mut self, bytes: &[u8]) {
        let Some((pass, rest)) = bytes.split_first_chunk::<8>() else { return };
        let Some((number, rest)) = rest.split_first_chunk::<8>() else { return };
        let Some((is_last, piece)) = rest.split_first() else { return };
        let (pass, number) = (u64::from_le_bytes(*pass), u64::from_le_bytes(*number));
        let new = || Piecewise { pass, bytes: Zeroizing::default(), draft: None, session: None };
        let session = self.sessions.entry(number).or_insert_with(new);
        if session.pass != pass || session.session.is_some() {
            *session = new();
        }
        if !piece.is_empty() {
            session.bytes.extend_from_slice(piece);
            // Read now, if this is all: clients wait when this host takes over. A full piece is followed by another, as a rule.
            let may_be_all = piece.len() < PIECE_BYTES;
            session.draft = may_be_all.then(|| PortableSession::from_bytes(&session.bytes).ok()).flatten();
        }
        if *is_last == 1 {
            session.count();
        }
    }

    /// Sessions of a pass, which came before it was certain that they go over, count as they are.
    pub(super) fn take_counts(&mut self, bytes: &[u8]) {
        let Some((pass, numbers)) = bytes.split_first_chunk::<8>() else { return };
        let (numbers, _) = numbers.as_chunks::<8>();
        for number in numbers {
            if let Some(session) = self.sessions.get_mut(&u64::from_le_bytes(*number))
                && session.pass == u64::from_le_bytes(*pass)
                && session.session.is_none()
            {
                session.count();
            }
        }
    }

    /// But for those that this host may go on with.
    pub(super) fn end_clients(&mut self) {
        let Inherited { clients, sessions, .. } = self;
        let is_passed = |number: &u64| sessions.get(number).is_some_and(|session| session.session.is_some());
        let ends = |number: &u64, client: &mut InheritedClient| client.pages.is_none() && !is_passed(number);
        clients.extract_if(ends).for_each(|(_, client)| shut_down(&client.socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(pass: u64, is_last: bool, bytes: &[u8]) -> Vec<u8> {
        [&pass.to_le_bytes()[..], &7_u64.to_le_bytes(), &[u8::from(is_last)], bytes].concat()
    }

    /// Of the one client: whose session it is, if it has come and counts.
    fn user(inherited: &Inherited) -> Option<&str> {
        Some(&inherited.sessions.get(&7)?.session.as_ref()?.as_ref().unwrap().user)
    }

    #[test]
    fn a_session_counts_from_its_last_piece_on() {
        let session = |user: &str| PortableSession { user: user.to_owned(), ..PortableSession::default() }.to_bytes();
        let (one, other) = (session("one"), session("other"));
        let mut inherited = Inherited::default();
        inherited.take_piece(&piece(1, false, &one[..9]));
        inherited.take_piece(&piece(1, true, &one[9..]));
        assert_eq!(user(&inherited), Some("one"));
        // A draft of a later pass, which may be withdrawn.
        inherited.take_piece(&piece(2, false, &other[..9]));
        inherited.take_piece(&piece(2, false, &other[9..]));
        assert_eq!(user(&inherited), None);
        assert!(inherited.sessions[&7].draft.is_some());
        let counts = |pass: u64| [pass.to_le_bytes(), 6_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
        inherited.take_counts(&counts(1));
        assert_eq!(user(&inherited), None);
        inherited.take_counts(&counts(2));
        assert_eq!((user(&inherited), inherited.sessions[&7].pass), (Some("other"), 2));
        inherited.take_counts(&counts(2));
        assert_eq!(user(&inherited), Some("other"));
        // What is shorter than its head, and what is damaged.
        inherited.take_counts(&counts(3)[..12]);
        inherited.take_piece(&piece(3, true, &[])[..12]);
        inherited.take_piece(&piece(3, true, &one[1..]));
        assert!(inherited.sessions[&7].session.as_ref().is_some_and(Result::is_err));
    }
}
