//! A control connection by which a primary and a reader pass each other sessions.

use super::{Arrived, LOOK_INTERVAL, Parcel, Routing};
use crate::passing::BYTES_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tidepool_database::Lsn;
use tidepool_pool::control::{Arrival, ControlConnection};
use tidepool_pool::words::Host;
use zeroize::Zeroizing;

/// How long a reader has to say that it has what it was offered, and a primary.
const READER_TAKES_WITHIN: Duration = Duration::from_millis(100);
const PRIMARY_TAKES_WITHIN: Duration = Duration::from_secs(1);

/// How long a reader is offered nothing more that did not take a session or could not go on with it.
const QUIET: Duration = Duration::from_millis(200);

/// Bytes of a session in one message.
const PIECE_BYTES: usize = 32 << 10;

/// Some of a session: the offer's number, the position in the log, flags, and bytes. The first has the socket.
const OFFER: u8 = b'O';
/// The session is there whole.
const HAVE: u8 = b'H';
/// It will not be gone on with.
const REFUSED: u8 = b'R';
/// It is the other host's from now on.
const GO: u8 = b'G';
/// The offer does not stand any more.
const WITHDRAWN: u8 = b'W';
/// Of a reader: its statements under way, and the sessions that it has of the primary.
const LOAD: u8 = b'L';
/// A client's request to cancel.
const CANCEL: u8 = b'X';

/// Flags of `OFFER`.
const IS_LAST: u8 = 1;
const STAYS: u8 = 2;

#[derive(Default)]
struct Offers {
    open: HashMap<u64, (Parcel, Instant)>,
    /// Nobody looks after offers any more.
    is_over: bool,
}

/// What a reader has to do: what it said last, and what it was offered since.
#[derive(Default)]
struct Load {
    statements: u32,
    guests: u32,
    offered: u32,
    quiet_until: Option<Instant>,
    /// It did not answer in time, and has said nothing since.
    is_late: bool,
}

/// A session that is offered, as it came so far. This process does not own it.
struct Coming {
    socket: Option<OwnedFd>,
    bytes: Zeroizing<Vec<u8>>,
    seen: Lsn,
    stays: bool,
}

pub(super) struct Link {
    connection: ControlConnection,
    offers: Mutex<Offers>,
    load: Mutex<Load>,
    is_broken: AtomicBool,
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

impl Link {
    pub(super) fn new(connection: ControlConnection) -> Link {
        Link { connection, offers: Mutex::default(), load: Mutex::default(), is_broken: AtomicBool::new(false) }
    }

    pub(super) fn peer(&self) -> Host {
        self.connection.peer()
    }

    pub(super) fn has_offers(&self) -> bool {
        !self.offers.lock().open.is_empty()
    }

    pub(super) fn may_be_chosen(&self, now: Instant) -> bool {
        let load = self.load.lock();
        !load.is_late && load.quiet_until.is_none_or(|until| until <= now) && !self.is_broken.load(Ordering::Relaxed)
    }

    /// Grows with what the reader has to do.
    pub(super) fn load(&self) -> (u32, u32) {
        let load = self.load.lock();
        (load.statements + load.offered, load.guests + load.offered)
    }

    /// Says something without waiting. An error where that is not possible: the connection is of no use any more then.
    fn say(&self, message: &[u8]) -> Result<()> {
        let said = self.connection.try_send(message, &[]);
        let said = said.and_then(|is_sent| if is_sent { Ok(()) } else { Err(does_not_read(self.peer())) });
        if said.is_err() {
            self.is_broken.store(true, Ordering::Release);
        }
        said
    }

    fn say_of(&self, what: u8, offer: u64) -> Result<()> {
        self.say(&[&[what][..], &offer.to_le_bytes()].concat())
    }

    pub(super) fn say_load(&self, (statements, guests): (u32, u32)) {
        // What the next message fails by ends the link.
        let _ = self.say(&[&[LOAD][..], &statements.to_le_bytes(), &guests.to_le_bytes()].concat());
    }

    pub(super) fn cancel(&self, process_id: i32, secret: &[u8]) {
        let _ = self.say(&[&[CANCEL][..], &process_id.to_le_bytes(), secret].concat());
    }

    /// Offers a session, which stays this host's. Back comes one that is not offered.
    pub(super) fn offer(&self, offer: u64, parcel: Parcel) -> std::result::Result<(), Parcel> {
        let mut offers = self.offers.lock();
        if offers.is_over || self.is_broken.load(Ordering::Acquire) {
            return Err(parcel);
        }
        match self.send_pieces(offer, &parcel) {
            Ok(true) => {
                offers.open.insert(offer, (parcel, Instant::now()));
                self.load.lock().offered += 1;
                Ok(())
            }
            Ok(false) => {
                self.load.lock().is_late = true;
                Err(parcel)
            }
            Err(error) => {
                tracing::debug!("{error}");
                self.is_broken.store(true, Ordering::Release);
                Err(parcel)
            }
        }
    }

    /// False: there was no room for the first of them. An error where there was none for another one.
    fn send_pieces(&self, offer: u64, parcel: &Parcel) -> Result<bool> {
        let Some(socket) = &parcel.socket else { return Err(Error::internal("a session without a socket")) };
        let mut pieces = parcel.bytes.chunks(PIECE_BYTES).peekable();
        let mut is_first = true;
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { IS_LAST } else { 0 } | if parcel.stays { STAYS } else { 0 };
            let head = [&[OFFER][..], &offer.to_le_bytes(), &parcel.seen.0.to_le_bytes(), &[flags]].concat();
            let message = Zeroizing::new([&head[..], piece].concat());
            let sockets = [socket.as_fd()];
            let with = if is_first { &sockets[..] } else { &[] };
            match self.connection.try_send(&message, with)? {
                true => is_first = false,
                false if is_first => return Ok(false),
                false => {
                    // Long sessions are rare, and what reads them is a thread of its own.
                    let end = Instant::now() + READER_TAKES_WITHIN;
                    while !self.connection.try_send(&message, &[])? {
                        if Instant::now() > end {
                            return Err(does_not_read(self.peer()));
                        }
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            }
        }
        Ok(true)
    }

    /// Serves the connection until it ends. Returns what was offered and not taken.
    pub(super) fn serve(&self, routing: &Routing) -> Vec<Parcel> {
        let mut coming = HashMap::new();
        while !routing.is_stopped() && !self.is_broken.load(Ordering::Acquire) {
            match self.connection.receive(LOOK_INTERVAL) {
                Ok(Arrival::Message { bytes, descriptors }) => {
                    let bytes = Zeroizing::new(bytes);
                    self.load.lock().is_late = false;
                    if let Err(error) = self.hear(routing, &mut coming, &bytes, descriptors) {
                        tracing::debug!("{error}");
                        break;
                    }
                }
                Ok(Arrival::Nothing) => {}
                Ok(Arrival::End) | Err(_) => break,
            }
            self.withdraw_late(routing);
        }
        // What came and was not let go of by its owner is its owner's: it is only forgotten here.
        let mut offers = self.offers.lock();
        offers.is_over = true;
        offers.open.drain().map(|(_, (parcel, _))| parcel).collect()
    }

    fn hear(
        &self,
        routing: &Routing,
        coming: &mut HashMap<u64, Coming>,
        bytes: &[u8],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<()> {
        let Some((&what, rest)) = bytes.split_first() else { return Ok(()) };
        match what {
            OFFER => {
                let Some((offer, rest)) = rest.split_first_chunk::<8>() else { return Ok(()) };
                let Some((seen, rest)) = rest.split_first_chunk::<8>() else { return Ok(()) };
                let Some((flags, piece)) = rest.split_first() else { return Ok(()) };
                let (offer, seen) = (u64::from_le_bytes(*offer), Lsn(u64::from_le_bytes(*seen)));
                let new = || Coming { socket: None, bytes: Zeroizing::default(), seen, stays: flags & STAYS != 0 };
                let of = coming.entry(offer).or_insert_with(new);
                of.socket = of.socket.take().or_else(|| descriptors.pop());
                of.bytes.extend_from_slice(piece);
                if of.bytes.len() > BYTES_MAX {
                    coming.remove(&offer);
                    return self.say_of(REFUSED, offer);
                }
                if flags & IS_LAST != 0 {
                    if of.socket.is_some() && routing.takes() {
                        return self.say_of(HAVE, offer);
                    }
                    coming.remove(&offer);
                    return self.say_of(REFUSED, offer);
                }
            }
            GO => {
                if let Some(Coming { socket: Some(socket), bytes, seen, stays }) =
                    number(rest).and_then(|offer| coming.remove(&offer))
                {
                    if stays {
                        // The reader could not do it.
                        self.load.lock().quiet_until = Some(Instant::now() + QUIET);
                    }
                    let parcel = Parcel { socket: Some(socket), bytes, seen, stays };
                    // Where nobody receives it, the server has stopped, and the connection ends.
                    let _ = routing.arrived.send(Arrived::Session(parcel));
                }
            }
            WITHDRAWN => _ = number(rest).and_then(|offer| coming.remove(&offer)),
            HAVE => {
                let offered = number(rest).and_then(|offer| Some((offer, self.offers.lock().open.remove(&offer)?)));
                let Some((offer, (parcel, _))) = offered else { return Ok(()) };
                if let Err(error) = self.say_of(GO, offer) {
                    // It was not said.
                    routing.not_taken(parcel);
                    return Err(error);
                }
                parcel.let_go();
                routing.taken(self);
            }
            REFUSED => {
                let offered = number(rest).and_then(|offer| self.offers.lock().open.remove(&offer));
                self.load.lock().quiet_until = Some(Instant::now() + QUIET);
                offered.into_iter().for_each(|(parcel, _)| routing.not_taken(parcel));
            }
            LOAD => {
                if let Some((statements, rest)) = rest.split_first_chunk::<4>()
                    && let Ok(guests) = rest.try_into()
                {
                    let mut load = self.load.lock();
                    (load.statements, load.guests) = (u32::from_le_bytes(*statements), u32::from_le_bytes(guests));
                    load.offered = 0;
                }
            }
            CANCEL => {
                if let Some((process_id, secret)) = rest.split_first_chunk::<4>() {
                    let (process_id, secret) = (i32::from_le_bytes(*process_id), secret.to_vec());
                    let _ = routing.arrived.send(Arrived::Cancel { process_id, secret });
                }
            }
            // Of a later release.
            _ => {}
        }
        Ok(())
    }

    /// Takes offers back that were not answered in time.
    fn withdraw_late(&self, routing: &Routing) {
        let within = if routing.database.is_reader() { PRIMARY_TAKES_WITHIN } else { READER_TAKES_WITHIN };
        let late: Vec<_> = {
            let mut offers = self.offers.lock();
            offers.open.extract_if(|_, (_, since)| since.elapsed() > within).collect()
        };
        for (offer, (parcel, _)) in late {
            self.load.lock().is_late = true;
            // Where it cannot be said the connection ends, which says it, too.
            let _ = self.say_of(WITHDRAWN, offer);
            routing.not_taken(parcel);
        }
    }
}

fn does_not_read(host: Host) -> Error {
    Error::new(tidepool_base::SqlState::CONNECTION_FAILURE, format!("{host} does not read what it is told"))
}
