//! The words of the books: what each of them says, in 64 bits, with its check.
//!
//! A word is changed by compare-and-swap from the exact value that was read, and names the incarnation or term that it
//! speaks of: a swap that comes late meets another value and fails. Every word carries a check, so that a bit that the
//! memory lost is noticed and never taken for a decision.
//!
//! From the most significant bit on:
//!
//! | word | fields, in bits |
//! | --- | --- |
//! | `OWNER` of an extent | state 4, kind 4, slot or database 8, CRC-16, then incarnation 32, or generation 32; of a handed extent the receiver's slot 6 and the giver's incarnation 26, of an orphan the slot 6 and incarnation 26 beside its database |
//! | `IDENT` of a host | incarnation 32, state 8, role 8, database 8, CRC-8 |
//! | `TERM` of a database | term 32, slot 6, state 2, low bits of the incarnation 16, CRC-8 |
//! | `ROOT` of a database | extent of the manifest 24, generation 32, CRC-8 |
//! | `ENTRY` of a database | count of lives 32, state 8, slot 8, zero 8, CRC-8 |
//! | `FIRST` of a term | number of the segment 44, low bits of the term 12, CRC-8 |
//! | `SEAL` of a term | low bits of the segment's number 20, offset in units of 64 bytes 24, low bits of the term 12, CRC-8 |
//! | `SEGMENT` of the log | term 32, extent 24, CRC-8 |
//! | `DEVICE` | first extent 24, extents 24, state 8, CRC-8 |
//! | `HOLD` of a slice | count of a machine's tenures of it 28, which start of the machine 20, state 8, CRC-8 |
//! | numbers | value 60, CRC-4 |
//!
//! Each CRC finds every single bit that is wrong, itself included.

use std::fmt;

/// A place for one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u8);

/// One life of a host. The first is 1; 0 says that a slot never had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// `HANDED` has 26 bits for it. A slot that lived as often is not taken again.
    pub const MAX: Incarnation = Incarnation((1 << 26) - 1);
}

/// One life of one slot: the owner of extents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    pub slot: Slot,
    pub incarnation: Incarnation,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}.{}", self.slot.0, self.incarnation.0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A place in the directory of databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Database(pub u8);

impl Database {
    /// Of hosts that work for none: tools.
    pub const NONE: Database = Database(0xff);
}

/// One primary's reign over a database. Grows by one with each take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u32);

/// Counts a database's roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// Numbers the extents of all devices of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent(pub u32);

impl Extent {
    pub const MAX: Extent = Extent((1 << 24) - 1);
}

/// What a word says cannot be: its check is wrong, or a field has a value that this release does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub bits: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.bits)
    }
}

/// A word of the books: a value that has one form in bits.
pub trait Word: Copy + Eq + fmt::Debug {
    fn bits(self) -> u64;

    fn read(bits: u64) -> Result<Self, Fault>;
}

/// A check: the remainder of a word, its own bits zero, by a polynomial. It starts from ones, so that a word of zeroes is no
/// valid word.
struct Crc {
    width: u32,
    /// The remainders of each first byte, aligned to the left.
    table: [u16; 256],
}

impl Crc {
    /// `polynomial`: without its first term.
    const fn new(width: u32, polynomial: u16) -> Crc {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut remainder = (byte as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                let leads = remainder >> 15 == 1;
                remainder <<= 1;
                if leads {
                    remainder ^= polynomial << (16 - width);
                }
                bit += 1;
            }
            table[byte] = remainder;
            byte += 1;
        }
        Crc { width, table }
    }

    fn of(&self, bits: u64) -> u64 {
        let mut remainder = u16::MAX << (16 - self.width);
        for byte in bits.to_be_bytes() {
            remainder = remainder << 8 ^ self.table[usize::from((remainder >> 8) as u8 ^ byte)];
        }
        u64::from(remainder >> (16 - self.width))
    }
}

static CRC_16: Crc = Crc::new(16, 0x1021);
static CRC_8: Crc = Crc::new(8, 0x2f);
static CRC_4: Crc = Crc::new(4, 0x3);

const OWNER_CHECK_SHIFT: u32 = 32;

/// CRC-16 of the 48 bits around it.
fn owner_check(bits: u64) -> u64 {
    CRC_16.of(bits & !(0xffff << OWNER_CHECK_SHIFT)) << OWNER_CHECK_SHIFT
}

fn check8(bits: u64) -> u64 {
    CRC_8.of(bits & !0xff)
}

fn checked8(bits: u64) -> u64 {
    bits | check8(bits)
}

fn valid8(bits: u64) -> Result<u64, Fault> {
    if bits & 0xff == check8(bits) { Ok(bits) } else { Err(Fault { bits }) }
}

macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $code:literal $text:literal),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$each])* $variant = $code),* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),*];

            fn of(code: u64) -> Option<$name> {
                match code { $($code => Some($name::$variant),)* _ => None }
            }

            /// As it is shown to people.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}

codes! {
    /// What an extent is used for. 11 to 15 are kept for the areas of pods.
    Kind {
        Heap = 1 "heap",
        Delta = 2 "delta",
        Index = 3 "index",
        Near = 4 "near",
        Log = 5 "log",
        Main = 6 "main",
        Image = 7 "image",
        Manifest = 8 "manifest",
        Dead = 9 "dead positions",
        Run = 10 "index run",
    }
}

impl Kind {
    /// Written by one incarnation, published once, then read by several hosts.
    pub fn is_shared(self) -> bool {
        matches!(self, Kind::Main | Kind::Image | Kind::Manifest | Kind::Dead | Kind::Run)
    }
}

/// What an extent without an owner holds: whose bytes the next owner must not be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contents {
    Zeroes,
    /// Bytes of this database alone.
    Of(Database),
    /// Its last owner ended between two states.
    Unknown,
}

impl Contents {
    const ZEROES: u64 = 0xff;
    const UNKNOWN: u64 = 0xfe;

    fn code(self) -> u64 {
        match self {
            Contents::Zeroes => Contents::ZEROES,
            Contents::Of(database) => u64::from(database.0),
            Contents::Unknown => Contents::UNKNOWN,
        }
    }

    fn of(code: u64) -> Option<Contents> {
        match code {
            Contents::ZEROES => Some(Contents::Zeroes),
            Contents::UNKNOWN => Some(Contents::Unknown),
            code if code < DATABASES as u64 => Some(Contents::Of(Database(code as u8))),
            _ => None,
        }
    }

    /// A host of `database` may be handed it as it is.
    pub fn may_be_shown_to(self, database: Database) -> bool {
        match self {
            Contents::Zeroes => true,
            Contents::Of(of) => of == database,
            Contents::Unknown => false,
        }
    }
}

/// Places in the directory of databases.
pub const DATABASES: usize = 16;

/// Places for hosts.
pub const SLOTS: usize = 64;

/// Whose an extent is. States are exhaustive and mutually exclusive.
///
/// `Free → Claimed → Private | Log | Filling → Shared → Returning → Free`; hand-over between hosts by way of `Handed`; what
/// a dead or superseded primary was writing becomes `Orphan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// No device is there.
    Absent,
    /// The books themselves, and the first extent of each device.
    Control,
    Free {
        holds: Contents,
    },
    /// Taken by a host that makes it ready.
    Claimed {
        by: Host,
    },
    Private {
        by: Host,
        kind: Kind,
    },
    Log {
        by: Host,
    },
    /// Being written, to be read by others.
    Filling {
        by: Host,
        kind: Kind,
    },
    /// Written once, by an incarnation that publishes it; no host writes here again. `generation` was the root in force then.
    Shared {
        database: Database,
        kind: Kind,
        generation: Generation,
    },
    /// On its way back. No other host stores here.
    Returning {
        by: Host,
    },
    Handed {
        from: Host,
        to: Slot,
        kind: Kind,
    },
    /// What a primary was writing when its term ended. Read like `Shared`, and like the log up to the seal; it may still be
    /// stored to by `by`, at places that nothing names.
    Orphan {
        by: Host,
        database: Database,
        kind: Kind,
    },
}

impl Owner {
    fn parts(self) -> (u64, u64, u64, u64) {
        let host = |host: Host| (u64::from(host.slot.0), u64::from(host.incarnation.0));
        let packed = |slot: Slot, host: Host| u64::from(slot.0) << 26 | u64::from(host.incarnation.0);
        match self {
            Owner::Absent => (1, 0, 0, 0),
            Owner::Control => (2, 0, 0, 0),
            Owner::Free { holds } => (3, 0, holds.code(), 0),
            Owner::Claimed { by } => (4, 0, host(by).0, host(by).1),
            Owner::Private { by, kind } => (5, kind as u64, host(by).0, host(by).1),
            Owner::Log { by } => (6, Kind::Log as u64, host(by).0, host(by).1),
            Owner::Filling { by, kind } => (7, kind as u64, host(by).0, host(by).1),
            Owner::Shared { database, kind, generation } => {
                (8, kind as u64, u64::from(database.0), u64::from(generation.0))
            }
            Owner::Returning { by } => (9, 0, host(by).0, host(by).1),
            Owner::Handed { from, to, kind } => (10, kind as u64, host(from).0, packed(to, from)),
            Owner::Orphan { by, database, kind } => (11, kind as u64, u64::from(database.0), packed(by.slot, by)),
        }
    }

    /// The incarnation that may store here, if there is one.
    pub fn writer(self) -> Option<Host> {
        match self {
            Owner::Claimed { by }
            | Owner::Private { by, .. }
            | Owner::Log { by }
            | Owner::Filling { by, .. }
            | Owner::Returning { by }
            | Owner::Orphan { by, .. } => Some(by),
            Owner::Handed { from, .. } => Some(from),
            Owner::Absent | Owner::Control | Owner::Free { .. } | Owner::Shared { .. } => None,
        }
    }

    /// What its bytes are used for, where the word says so.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Owner::Log { .. } => Some(Kind::Log),
            Owner::Private { kind, .. }
            | Owner::Filling { kind, .. }
            | Owner::Shared { kind, .. }
            | Owner::Handed { kind, .. }
            | Owner::Orphan { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// As it is shown to people.
    pub fn text(self) -> &'static str {
        match self {
            Owner::Absent => "absent",
            Owner::Control => "control",
            Owner::Free { .. } => "free",
            Owner::Claimed { .. } => "claimed",
            Owner::Private { .. } => "private",
            Owner::Log { .. } => "log",
            Owner::Filling { .. } => "filling",
            Owner::Shared { .. } => "shared",
            Owner::Returning { .. } => "returning",
            Owner::Handed { .. } => "handed over",
            Owner::Orphan { .. } => "orphan",
        }
    }
}

impl Word for Owner {
    fn bits(self) -> u64 {
        let (state, kind, whose, number) = self.parts();
        let bits = state << 60 | kind << 56 | whose << 48 | number;
        bits | owner_check(bits)
    }

    fn read(bits: u64) -> Result<Owner, Fault> {
        let fault = Fault { bits };
        if bits & (0xffff << OWNER_CHECK_SHIFT) != owner_check(bits) {
            return Err(fault);
        }
        let (kind, whose, number) = (Kind::of(bits >> 56 & 0xf), bits >> 48 & 0xff, bits & 0xffff_ffff);
        let slot = || if whose < SLOTS as u64 { Ok(Slot(whose as u8)) } else { Err(fault) };
        let host = || Ok(Host { slot: slot()?, incarnation: Incarnation(number as u32) });
        let of_kind = |is_right: fn(Kind) -> bool| kind.filter(|kind| is_right(*kind)).ok_or(fault);
        let owner = match bits >> 60 {
            1 => Owner::Absent,
            2 => Owner::Control,
            3 => Owner::Free { holds: Contents::of(whose).ok_or(fault)? },
            4 => Owner::Claimed { by: host()? },
            5 => Owner::Private { by: host()?, kind: of_kind(|kind| !kind.is_shared() && kind != Kind::Log)? },
            6 => Owner::Log { by: host()? },
            7 => Owner::Filling { by: host()?, kind: of_kind(Kind::is_shared)? },
            8 if whose < DATABASES as u64 => Owner::Shared {
                database: Database(whose as u8),
                kind: of_kind(Kind::is_shared)?,
                generation: Generation(number as u32),
            },
            9 => Owner::Returning { by: host()? },
            10 => Owner::Handed {
                from: Host { slot: slot()?, incarnation: Incarnation((number & 0x3ff_ffff) as u32) },
                to: Slot((number >> 26) as u8),
                kind: of_kind(|kind| !kind.is_shared() && kind != Kind::Log)?,
            },
            11 if whose < DATABASES as u64 => Owner::Orphan {
                by: Host { slot: Slot((number >> 26) as u8), incarnation: Incarnation((number & 0x3ff_ffff) as u32) },
                database: Database(whose as u8),
                kind: of_kind(|kind| kind.is_shared() || kind == Kind::Log)?,
            },
            _ => return Err(fault),
        };
        // One form for each value: spare fields are zero.
        if owner.bits() == bits { Ok(owner) } else { Err(fault) }
    }
}

codes! {
    /// What a host is doing.
    HostState {
        Free = 1 "free",
        Joining = 2 "joining",
        Attached = 3 "attached",
        Following = 4 "following",
        Promoting = 5 "promoting",
        Primary = 6 "primary",
        Leaving = 7 "leaving",
        /// Another host heard nothing of it for too long. It may still be alive: what it owns is in quarantine.
        Suspect = 8 "suspect",
        /// It will be dead: a command was given.
        Fenced = 9 "fenced",
        /// Known to store nothing any more.
        Dead = 10 "dead",
    }
}

impl HostState {
    /// The host itself goes on working.
    pub fn is_live(self) -> bool {
        !matches!(self, HostState::Free | HostState::Suspect | HostState::Fenced | HostState::Dead)
    }
}

codes! {
    /// What a host is for.
    Role {
        None = 1 "none",
        Primary = 2 "primary",
        Standby = 3 "standby",
        Reader = 4 "reader",
        Tool = 5 "tool",
        PodMember = 6 "pod member",
        MemoryNode = 7 "memory node",
        /// It follows the log of a database in another pool, and no host may follow or succeed it until it reigns.
        Copy = 8 "copy",
    }
}

/// What the slot of a host says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ident {
    pub incarnation: Incarnation,
    pub state: HostState,
    pub role: Role,
    pub database: Database,
}

impl Ident {
    /// A slot that no host had yet.
    pub const NEW: Ident =
        Ident { incarnation: Incarnation(0), state: HostState::Free, role: Role::None, database: Database::NONE };
}

impl Word for Ident {
    fn bits(self) -> u64 {
        checked8(
            u64::from(self.incarnation.0) << 32
                | (self.state as u64) << 24
                | (self.role as u64) << 16
                | u64::from(self.database.0) << 8,
        )
    }

    fn read(bits: u64) -> Result<Ident, Fault> {
        valid8(bits)?;
        let fault = Fault { bits };
        let database = Database((bits >> 8) as u8);
        if database != Database::NONE && usize::from(database.0) >= DATABASES {
            return Err(fault);
        }
        Ok(Ident {
            incarnation: Incarnation((bits >> 32) as u32),
            state: HostState::of(bits >> 24 & 0xff).ok_or(fault)?,
            role: Role::of(bits >> 16 & 0xff).ok_or(fault)?,
            database,
        })
    }
}

codes! {
    /// How far a term is.
    TermState {
        /// No primary: there never was one, or the last one handed its work in.
        Ended = 0 "ended",
        /// A host ends the term before and begins this one. It acknowledges nothing yet.
        Sealing = 1 "sealing",
        Running = 2 "running",
    }
}

/// Which host reigns over a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reign {
    pub term: Term,
    pub state: TermState,
    pub slot: Slot,
    /// Its low 16 bits: terms grow, so no word comes back.
    pub incarnation_low: u16,
}

impl Reign {
    /// Of a database that had no primary yet.
    pub const NEW: Reign = Reign { term: Term(0), state: TermState::Ended, slot: Slot(0), incarnation_low: 0 };

    pub fn of(term: Term, state: TermState, host: Host) -> Reign {
        Reign { term, state, slot: host.slot, incarnation_low: host.incarnation.0 as u16 }
    }

    pub fn is_of(self, host: Host) -> bool {
        self.state != TermState::Ended && self.slot == host.slot && self.incarnation_low == host.incarnation.0 as u16
    }
}

impl Word for Reign {
    fn bits(self) -> u64 {
        checked8(
            u64::from(self.term.0) << 32
                | u64::from(self.slot.0) << 26
                | (self.state as u64) << 24
                | u64::from(self.incarnation_low) << 8,
        )
    }

    fn read(bits: u64) -> Result<Reign, Fault> {
        valid8(bits)?;
        Ok(Reign {
            term: Term((bits >> 32) as u32),
            slot: Slot((bits >> 26 & 0x3f) as u8),
            state: TermState::of(bits >> 24 & 0x3).ok_or(Fault { bits })?,
            incarnation_low: (bits >> 8) as u16,
        })
    }
}

/// Where the manifest in force begins: the first byte of an extent. Extent 0, which the books are in, stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    pub place: Extent,
    pub generation: Generation,
}

impl Root {
    pub const NEW: Root = Root { place: Extent(0), generation: Generation(0) };
}

impl Word for Root {
    fn bits(self) -> u64 {
        checked8(u64::from(self.place.0) << 40 | u64::from(self.generation.0) << 8)
    }

    fn read(bits: u64) -> Result<Root, Fault> {
        valid8(bits)?;
        Ok(Root { place: Extent((bits >> 40) as u32), generation: Generation((bits >> 8) as u32) })
    }
}

codes! {
    /// What a place in the directory is.
    EntryState {
        Free = 1 "free",
        Creating = 2 "being made",
        Live = 3 "live",
        Dropping = 4 "being dropped",
    }
}

/// A place in the directory of databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// How many databases this place has had.
    pub life: u32,
    pub state: EntryState,
    /// The host that makes or drops it.
    pub by: Slot,
}

impl Entry {
    pub const NEW: Entry = Entry { life: 0, state: EntryState::Free, by: Slot(0) };
}

impl Word for Entry {
    fn bits(self) -> u64 {
        checked8(u64::from(self.life) << 32 | (self.state as u64) << 24 | u64::from(self.by.0) << 16)
    }

    fn read(bits: u64) -> Result<Entry, Fault> {
        valid8(bits)?;
        let fault = Fault { bits };
        let entry = Entry {
            life: (bits >> 32) as u32,
            state: EntryState::of(bits >> 24 & 0xff).ok_or(fault)?,
            by: Slot((bits >> 16) as u8),
        };
        if usize::from(entry.by.0) < SLOTS && entry.bits() == bits { Ok(entry) } else { Err(fault) }
    }
}

const TERM_LOW: u32 = (1 << 12) - 1;

/// The number of the first segment of a term's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct First {
    pub number: u64,
    /// Low 12 bits. The ring of terms has fewer places, so a word of a place never comes back within 4,096 terms.
    pub term_low: u32,
}

impl First {
    pub fn new(term: Term, number: u64) -> First {
        First { number, term_low: term.0 & TERM_LOW }
    }

    pub fn is_of(self, term: Term) -> bool {
        self.term_low == term.0 & TERM_LOW
    }
}

impl Word for First {
    fn bits(self) -> u64 {
        debug_assert!(self.number < 1 << 44);
        checked8(self.number << 20 | u64::from(self.term_low) << 8)
    }

    fn read(bits: u64) -> Result<First, Fault> {
        valid8(bits)?;
        Ok(First { number: bits >> 20, term_low: (bits >> 8) as u32 & TERM_LOW })
    }
}

/// Where a term's log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// It goes on.
    Open,
    /// Nothing of the term counts: it was ended before it began a log.
    Empty,
    /// Before this place: low 20 bits of a segment's number, and the offset there in units of 64 bytes, from 1 on.
    At { number_low: u32, offset: u32 },
}

/// How a term ended. Changed once, from open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seal {
    pub end: End,
    pub term_low: u32,
}

impl Seal {
    pub const OFFSET_UNIT: usize = 64;
    const NUMBER_LOW: u32 = (1 << 20) - 1;
    const OFFSET_MAX: u32 = (1 << 24) - 1;

    pub fn new(term: Term, end: End) -> Seal {
        Seal { end, term_low: term.0 & TERM_LOW }
    }

    pub fn is_of(self, term: Term) -> bool {
        self.term_low == term.0 & TERM_LOW
    }

    /// The term, of those up to `newest` whose low bits tell.
    pub fn term_up_to(self, newest: Term) -> Option<Term> {
        newest.0.checked_sub(newest.0.wrapping_sub(self.term_low) & TERM_LOW).filter(|term| *term > 0).map(Term)
    }

    /// Of a later term than `term`, of those whose low bits tell.
    pub fn is_after(self, term: Term) -> bool {
        (1..=TERM_LOW / 2).contains(&(self.term_low.wrapping_sub(term.0) & TERM_LOW))
    }
}

impl End {
    /// The end at byte `offset` of segment `number`.
    pub fn at(number: u64, offset: usize) -> End {
        let units = (offset / Seal::OFFSET_UNIT) as u32;
        debug_assert!(offset.is_multiple_of(Seal::OFFSET_UNIT) && (1..Seal::OFFSET_MAX).contains(&units));
        End::At { number_low: number as u32 & Seal::NUMBER_LOW, offset: units }
    }
}

impl Word for Seal {
    fn bits(self) -> u64 {
        let (number, offset) = match self.end {
            End::Open => (0, 0),
            End::Empty => (0, Seal::OFFSET_MAX),
            End::At { number_low, offset } => (number_low, offset),
        };
        checked8(u64::from(number) << 44 | u64::from(offset) << 20 | u64::from(self.term_low) << 8)
    }

    fn read(bits: u64) -> Result<Seal, Fault> {
        valid8(bits)?;
        let offset = (bits >> 20) as u32 & Seal::OFFSET_MAX;
        let end = match offset {
            0 => End::Open,
            Seal::OFFSET_MAX => End::Empty,
            offset => End::At { number_low: (bits >> 44) as u32, offset },
        };
        let seal = Seal { end, term_low: (bits >> 8) as u32 & TERM_LOW };
        if seal.bits() == bits { Ok(seal) } else { Err(Fault { bits }) }
    }
}

/// Which extent holds a segment of the log. The segment's number says where in the table this is; term 0 holds none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    pub term: Term,
    pub extent: Extent,
}

impl Segment {
    pub const NONE: Segment = Segment { term: Term(0), extent: Extent(0) };
}

impl Word for Segment {
    fn bits(self) -> u64 {
        checked8(u64::from(self.term.0) << 32 | u64::from(self.extent.0) << 8)
    }

    fn read(bits: u64) -> Result<Segment, Fault> {
        valid8(bits)?;
        Ok(Segment { term: Term((bits >> 32) as u32), extent: Extent((bits >> 8) as u32 & Extent::MAX.0) })
    }
}

codes! {
    DeviceState {
        Absent = 1 "absent",
        Present = 2 "present",
        /// Being added. If its host ends within that, the number stays unused.
        Adding = 3 "being added",
    }
}

/// Which extents a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceWord {
    pub first: Extent,
    pub extents: u32,
    pub state: DeviceState,
}

impl DeviceWord {
    pub const NONE: DeviceWord = DeviceWord { first: Extent(0), extents: 0, state: DeviceState::Absent };
}

impl Word for DeviceWord {
    fn bits(self) -> u64 {
        checked8(u64::from(self.first.0) << 40 | u64::from(self.extents) << 16 | (self.state as u64) << 8)
    }

    fn read(bits: u64) -> Result<DeviceWord, Fault> {
        valid8(bits)?;
        Ok(DeviceWord {
            first: Extent((bits >> 40) as u32),
            extents: (bits >> 16) as u32 & Extent::MAX.0,
            state: DeviceState::of(bits >> 8 & 0xff).ok_or(Fault { bits })?,
        })
    }
}

codes! {
    /// What a machine has of a slice of a pool that is dealt out.
    HoldState {
        Free = 1 "free",
        /// It looks whether another machine has it, and has not read anything of it yet.
        Taking = 2 "being taken",
        Held = 3 "held",
    }
}

/// What a machine says of a slice, in a line that it alone writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Grows by one each time that the machine takes the slice.
    pub tenure: u32,
    /// Some bits that tell the machine's starts apart.
    pub start: u32,
    pub state: HoldState,
}

impl Hold {
    pub const NEW: Hold = Hold { tenure: 0, start: 0, state: HoldState::Free };

    pub const TENURE_MAX: u32 = (1 << 28) - 1;

    pub const START_MASK: u32 = (1 << 20) - 1;
}

impl Word for Hold {
    fn bits(self) -> u64 {
        let start = u64::from(self.start & Hold::START_MASK);
        checked8(u64::from(self.tenure & Hold::TENURE_MAX) << 36 | start << 16 | (self.state as u64) << 8)
    }

    fn read(bits: u64) -> Result<Hold, Fault> {
        valid8(bits)?;
        Ok(Hold {
            tenure: (bits >> 36) as u32,
            start: (bits >> 16) as u32 & Hold::START_MASK,
            state: HoldState::of(bits >> 8 & 0xff).ok_or(Fault { bits })?,
        })
    }
}

/// A number that its owner stores: of 60 bits, which nanoseconds fill in 36 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

impl Number {
    pub const MAX: Number = Number((1 << 60) - 1);
}

impl Word for Number {
    fn bits(self) -> u64 {
        let bits = self.0.min(Number::MAX.0) << 4;
        bits | CRC_4.of(bits)
    }

    fn read(bits: u64) -> Result<Number, Fault> {
        let number = Number(bits >> 4);
        if number.bits() == bits { Ok(number) } else { Err(Fault { bits }) }
    }
}

codes! {
    /// What happened, for people.
    EventKind {
        Created = 1 "pool created",
        Joined = 2 "host joined",
        Left = 3 "host left",
        Suspected = 4 "host suspected",
        Fenced = 5 "host fenced",
        Died = 6 "host's death confirmed",
        Swept = 7 "host's extents freed",
        Forgotten = 8 "host forgotten",
        DatabaseMade = 9 "database made",
        DatabaseDropped = 10 "database dropped",
        TookOver = 11 "term taken",
        Sealed = 12 "term sealed",
        DeviceAdded = 13 "device added",
        Finalized = 14 "format finalized",
        SliceTaken = 15 "slice taken",
    }
}

/// The three words of an event. The low byte of its sequence number in each tells an event that was written half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHead {
    pub sequence: u32,
    pub kind: Option<EventKind>,
    pub slot: Slot,
}

impl EventHead {
    pub const NONE: EventHead = EventHead { sequence: 0, kind: None, slot: Slot(0) };
}

impl Word for EventHead {
    fn bits(self) -> u64 {
        let kind = self.kind.map_or(0, |kind| kind as u64);
        checked8(u64::from(self.sequence) << 32 | kind << 24 | u64::from(self.slot.0) << 16)
    }

    fn read(bits: u64) -> Result<EventHead, Fault> {
        valid8(bits)?;
        let kind = match bits >> 24 & 0xff {
            0 => None,
            code => Some(EventKind::of(code).ok_or(Fault { bits })?),
        };
        Ok(EventHead { sequence: (bits >> 32) as u32, kind, slot: Slot((bits >> 16) as u8) })
    }
}

/// The time of an event, and what it was about: 48 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventPart {
    pub value: u64,
    pub sequence_low: u8,
}

impl EventPart {
    pub const NONE: EventPart = EventPart { value: 0, sequence_low: 0 };
}

impl Word for EventPart {
    fn bits(self) -> u64 {
        checked8((self.value & ((1 << 48) - 1)) << 16 | u64::from(self.sequence_low) << 8)
    }

    fn read(bits: u64) -> Result<EventPart, Fault> {
        valid8(bits)?;
        Ok(EventPart { value: bits >> 16, sequence_low: (bits >> 8) as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(slot: u8, incarnation: u32) -> Host {
        Host { slot: Slot(slot), incarnation: Incarnation(incarnation) }
    }

    /// Some words of every kind, as bits.
    fn hold<W: Word>(words: impl IntoIterator<Item = W>) {
        for word in words {
            let bits = word.bits();
            assert_eq!(W::read(bits), Ok(word), "{bits:#x}");
            for bit in 0..64 {
                assert!(W::read(bits ^ 1 << bit).is_err(), "{word:?} with bit {bit} turned");
            }
        }
        assert!(W::read(0).is_err(), "zeroes are no word");
        assert!(W::read(u64::MAX).is_err(), "nor are ones");
    }

    #[test]
    fn every_owner_has_one_form_and_finds_each_bit() {
        let hosts = [host(0, 0), host(0, 1), host(63, Incarnation::MAX.0), host(17, 12_345)];
        let mut owners = vec![Owner::Absent, Owner::Control];
        for holds in [Contents::Zeroes, Contents::Unknown, Contents::Of(Database(0)), Contents::Of(Database(15))] {
            owners.push(Owner::Free { holds });
        }
        for by in hosts {
            owners.extend([Owner::Claimed { by }, Owner::Log { by }, Owner::Returning { by }]);
            owners.extend([Kind::Heap, Kind::Near].map(|kind| Owner::Private { by, kind }));
            owners.extend([Kind::Main, Kind::Run].map(|kind| Owner::Filling { by, kind }));
            owners.extend([Kind::Log, Kind::Main].map(|kind| Owner::Orphan { by, database: Database(15), kind }));
            owners.push(Owner::Handed { from: by, to: Slot(63), kind: Kind::Delta });
            owners.push(Owner::Handed { from: by, to: Slot(0), kind: Kind::Delta });
        }
        for generation in [0, 1, u32::MAX] {
            let (database, generation) = (Database(3), Generation(generation));
            owners.push(Owner::Shared { database, kind: Kind::Main, generation });
        }
        hold(owners);
    }

    #[test]
    fn every_other_word_has_one_form_and_finds_each_bit() {
        hold(HostState::ALL.iter().flat_map(|state| {
            Role::ALL.iter().map(|role| Ident {
                incarnation: Incarnation(77),
                state: *state,
                role: *role,
                database: Database(15),
            })
        }));
        hold([Ident::NEW]);
        hold(TermState::ALL.iter().map(|state| Reign::of(Term(u32::MAX), *state, host(63, 0x12_3456))));
        hold([Reign::NEW]);
        hold([Root::NEW, Root { place: Extent::MAX, generation: Generation(u32::MAX) }]);
        hold(EntryState::ALL.iter().map(|state| Entry { life: 9, state: *state, by: Slot(63) }));
        hold([First::new(Term(0), 0), First::new(Term(5000), (1 << 44) - 1)]);
        let ends = [End::Open, End::Empty, End::at(1 << 30, 64), End::at(77, (1 << 30) - 128)];
        hold(ends.map(|end| Seal::new(Term(4097), end)));
        hold([Segment::NONE, Segment { term: Term(u32::MAX), extent: Extent::MAX }]);
        hold([DeviceWord::NONE, DeviceWord { first: Extent(9), extents: 1 << 23, state: DeviceState::Present }]);
        hold(HoldState::ALL.iter().map(|state| Hold { tenure: Hold::TENURE_MAX, start: 0xf_edcb, state: *state }));
        hold([Hold::NEW]);
        hold([0, 1, 2, 1 << 59, Number::MAX.0, 0x0123_4567_89ab_cdef].map(Number));
        hold([EventHead::NONE, EventHead { sequence: 7, kind: Some(EventKind::TookOver), slot: Slot(1) }]);
        hold([EventPart::NONE, EventPart { value: (1 << 48) - 1, sequence_low: 255 }]);
    }

    #[test]
    fn a_reign_is_of_the_incarnation_that_it_names() {
        let reign = Reign::of(Term(3), TermState::Running, host(2, 9));
        assert!(reign.is_of(host(2, 9)));
        assert!(!reign.is_of(host(2, 10)) && !reign.is_of(host(3, 9)));
        assert!(!Reign { state: TermState::Ended, ..reign }.is_of(host(2, 9)));
    }
}
