//! A session as bytes, with which another process goes on with a client's connection.
//!
//! The bytes are a form of their own, apart from how sessions are held: a header, then parts.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | `TPSS` |
//! | 2 | the version of the form |
//! | 8 | FNV-1a of all that follows, of 64 bits |
//! | the rest | parts: a tag of 2 bytes, a length of 4 bytes, and so many bytes |
//!
//! All numbers are little-endian. Texts and lists have their length, in 4 bytes, before them.
//!
//! * Each part occurs at most once. A part that is missing is empty, except for the first, which says whose session it is.
//! * A reader skips unknown parts whose tag is at or above [`OPTIONAL`]. An unknown part below it is an error (0A000): the session
//!   would not be the same without it. So a later release adds parts and changes none.
//! * Any version up to [`VERSION`] is read. A later one is an error (0A000).
//! * Damage is an error (XX001), and never a panic. Nothing is allocated by a length before so many bytes are there.

use tidepool_base::{Error, Result, RowId, SchemaId, StoreId};
use tidepool_database::{LockMode, RelationName, RowStep, TransactionStep};
use tidepool_table::rows::RowLock;
use zeroize::Zeroizing;

/// The version that is written.
pub const VERSION: u16 = 1;

/// Parts from here on can be skipped by a reader that does not know them.
pub const OPTIONAL: u16 = 0x8000;

const MAGIC: &[u8; 4] = b"TPSS";
const HEADER_BYTES: usize = 4 + 2 + 8;

const IDENTITY: u16 = 1;
const VALUES: u16 = 2;
const DEFAULTS: u16 = 3;
const CUSTOM: u16 = 4;
const TOLD: u16 = 5;
const PREPARED: u16 = 6;
const SEQUENCES: u16 = 7;
const LOCKS: u16 = 8;
const WIRE: u16 = 9;
const STATEMENTS: u16 = 10;
/// Only of a connection with TLS.
const TLS: u16 = 11;
const BLOCK: u16 = 12;
const CURSORS: u16 = 13;
/// Without it the transaction is lost, as [`BLOCK`] says.
const TRANSACTION: u16 = OPTIONAL + 1;
/// In place of that, of one with cursors, of one with portals, and of one that changed settings or has advisory locks.
const TRANSACTION_WITH_CURSORS: u16 = OPTIONAL + 2;
const TRANSACTION_WITH_PORTALS: u16 = OPTIONAL + 3;
const TRANSACTION_WITH_SESSION: u16 = OPTIONAL + 4;

/// A session between two statements, and its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableSession {
    /// Who connected.
    pub user: String,
    /// The role of that name when the session began.
    pub role: u32,
    pub id: u32,
    /// When the session began, in microseconds since 1970.
    pub start_us: i64,
    /// Settings with other values than the user's sessions begin with: names and values.
    pub values: Vec<(String, String)>,
    /// Of these, what `RESET` goes back to.
    pub defaults: Vec<(String, String)>,
    /// Settings of the client's own making, and those without effect.
    pub custom: Vec<(String, String)>,
    /// Values that the client was told last of settings that are reported.
    pub told: Vec<(String, String)>,
    /// What `PREPARE` made.
    pub prepared: Vec<PortableStatement>,
    pub sequences: Vec<PortableSequence>,
    /// The sequence that `lastval` answers for.
    pub latest_sequence: Option<u32>,
    /// Advisory locks of the session.
    pub locks: Vec<PortableLock>,
    /// By which the client cancels, with the secret.
    pub process_id: i32,
    pub secret: Vec<u8>,
    /// What was read from the client, and not worked on.
    pub input: Vec<u8>,
    /// What the protocol prepared.
    pub statements: Vec<PortablePrepared>,
    pub block: Option<PortableBlock>,
    /// What was done in the block, if it can be done again: then the block is not lost.
    pub transaction: Option<PortableTransaction>,
    /// Those that outlive their transactions.
    pub cursors: Vec<PortableCursor>,
    /// `None`: the connection is not encrypted.
    pub tls: Option<PortableTls>,
}

/// The state of a connection with TLS 1.3, between two records of the server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PortableTls {
    /// The cipher suite, as TLS numbers it.
    pub suite: u16,
    /// Of what the client sends.
    pub reading: PortableTraffic,
    /// Of what the server sends.
    pub writing: PortableTraffic,
    /// Records that were read from the client and not opened, the last of them perhaps in part.
    pub records: Vec<u8>,
}

/// One direction of a connection with TLS.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PortableTraffic {
    /// The traffic secret in use.
    pub secret: Zeroizing<Vec<u8>>,
    /// The number of the next record.
    pub sequence: u64,
}

impl std::fmt::Debug for PortableTls {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortableTls").field("suite", &self.suite).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableStatement {
    pub name: String,
    pub text: String,
    /// Types of the parameters, as oids.
    pub types: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortablePrepared {
    /// Its types are those that the client gave.
    pub statement: PortableStatement,
    /// As the client was told.
    pub parameters: Vec<u32>,
    /// Types of the columns, as oids. `None`: it gives no rows.
    pub columns: Option<Vec<u32>>,
}

/// A transaction block that the client is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortableBlock {
    pub state: PortableBlockState,
    /// When it began, in microseconds since 1970.
    pub start_us: i64,
    pub isolation: String,
    pub is_read_only: bool,
    pub is_deferrable: bool,
}

/// What was done in a transaction block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableTransaction {
    /// Names of its savepoints, in the order in which they were made.
    pub savepoints: Vec<String>,
    pub steps: Vec<TransactionStep>,
    /// Those that were opened in it and are open, in the order of opening.
    pub cursors: Vec<PortableBlockCursor>,
    /// Those of the protocol that have rows left.
    pub portals: Vec<PortablePortal>,
    /// The settings at each savepoint, and at the end as they are now. Empty: they are everywhere as before the block.
    pub settings: Vec<PortableBlockSettings>,
    /// Advisory locks that end with it.
    pub locks: Vec<PortableLock>,
}

/// Settings at a place within a block. `None`: as before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableBlockSettings {
    pub now: Option<PortableSettings>,
    /// Without `SET LOCAL`: what `COMMIT` leaves.
    pub session: Option<PortableSettings>,
}

/// Settings as changes of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableSettings {
    pub values: Vec<(String, String)>,
    /// What `RESET` goes back to.
    pub defaults: Vec<(String, String)>,
    /// All settings of the client's own making, and those without effect.
    pub custom: Vec<(String, String)>,
}

/// A portal of the protocol whose statement runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortablePortal {
    pub rows: PortableCursor,
    /// One a column: 0 for text, 1 for binary.
    pub formats: Vec<i16>,
    /// Of the statement, without a count.
    pub tag: String,
}

/// A cursor of a block that goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableBlockCursor {
    /// Its rows begin with the ids of rows of `tables`.
    pub cursor: PortableCursor,
    pub tables: Vec<u32>,
    pub locks: bool,
    /// It outlives the block.
    pub hold: bool,
    /// The ids of the row that was fetched last, if it is at one.
    pub row: Option<Vec<u64>>,
    /// Savepoints that were made before it was opened.
    pub savepoints: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableCursor {
    pub name: String,
    pub columns: Vec<PortableColumn>,
    /// Rows that are not fetched yet, as a stream of Arrow's IPC format. Empty: there are none.
    pub rows: Vec<u8>,
}

/// A column of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableColumn {
    pub name: String,
    /// As the catalogue writes it.
    pub sql_type: String,
    pub type_oid: u32,
    pub type_modifier: i32,
    pub table_oid: u32,
    pub attribute: i16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortableBlockState {
    /// No statement was run in it: it goes on.
    Begun,
    /// It has failed, as the client knows.
    Failed,
    /// It is rolled back, which the client has to be told.
    Lost,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableSequence {
    pub id: u32,
    /// What `currval` answers.
    pub last: Option<i64>,
    /// Values that the session has taken ahead.
    pub cached: Vec<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortableLock {
    pub key: PortableKey,
    pub is_exclusive: bool,
    /// How often the session holds it.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortableKey {
    One(i64),
    Two(i32, i32),
}

impl PortableSession {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 8]].concat();
        let mut part = |tag: u16, write: &dyn Fn(&mut Writer)| {
            let mut writer = Writer(Vec::new());
            write(&mut writer);
            bytes.extend(tag.to_le_bytes());
            bytes.extend((writer.0.len() as u32).to_le_bytes());
            bytes.extend(writer.0);
        };
        part(IDENTITY, &|to| {
            to.text(&self.user);
            to.put(self.role.to_le_bytes());
            to.put(self.id.to_le_bytes());
            to.put(self.start_us.to_le_bytes());
        });
        for (tag, pairs) in
            [(VALUES, &self.values), (DEFAULTS, &self.defaults), (CUSTOM, &self.custom), (TOLD, &self.told)]
        {
            part(tag, &|to| to.pairs(pairs));
        }
        part(PREPARED, &|to| to.list(&self.prepared, Writer::statement));
        part(SEQUENCES, &|to| {
            to.list(&self.sequences, |to, sequence| {
                to.put(sequence.id.to_le_bytes());
                to.option(sequence.last, |to, last| to.put(last.to_le_bytes()));
                to.list(&sequence.cached, |to, value| to.put(value.to_le_bytes()));
            });
            to.option(self.latest_sequence, |to, id| to.put(id.to_le_bytes()));
        });
        part(LOCKS, &|to| {
            to.list(&self.locks, Writer::lock);
        });
        part(WIRE, &|to| {
            to.put(self.process_id.to_le_bytes());
            to.bytes(&self.secret);
            to.bytes(&self.input);
        });
        part(STATEMENTS, &|to| {
            to.list(&self.statements, |to, prepared| {
                to.statement(&prepared.statement);
                to.oids(&prepared.parameters);
                to.option(prepared.columns.as_ref(), |to, columns| to.oids(columns));
            });
        });
        if let Some(block) = &self.block {
            part(BLOCK, &|to| {
                to.put([match block.state {
                    PortableBlockState::Begun => 1,
                    PortableBlockState::Failed => 2,
                    PortableBlockState::Lost => 3,
                }]);
                to.put(block.start_us.to_le_bytes());
                to.text(&block.isolation);
                to.put([u8::from(block.is_read_only)]);
                to.put([u8::from(block.is_deferrable)]);
            });
        }
        if let Some(transaction) = &self.transaction {
            let parts = [
                transaction.cursors.is_empty(),
                transaction.portals.is_empty(),
                transaction.settings.is_empty() && transaction.locks.is_empty(),
            ];
            // Each form has what those before it have.
            let tag = match parts {
                [true, true, true] => TRANSACTION,
                [false, true, true] => TRANSACTION_WITH_CURSORS,
                [_, false, true] => TRANSACTION_WITH_PORTALS,
                [_, _, false] => TRANSACTION_WITH_SESSION,
            };
            part(tag, &|to| {
                to.list(&transaction.savepoints, |to, name| to.text(name));
                to.list(&transaction.steps, Writer::step);
                if tag >= TRANSACTION_WITH_CURSORS {
                    to.list(&transaction.cursors, Writer::block_cursor);
                }
                if tag >= TRANSACTION_WITH_PORTALS {
                    to.list(&transaction.portals, Writer::portal);
                }
                if tag >= TRANSACTION_WITH_SESSION {
                    to.list(&transaction.settings, |to, settings| {
                        to.option(settings.now.as_ref(), Writer::settings);
                        to.option(settings.session.as_ref(), Writer::settings);
                    });
                    to.list(&transaction.locks, Writer::lock);
                }
            });
        }
        if !self.cursors.is_empty() {
            part(CURSORS, &|to| {
                to.list(&self.cursors, Writer::cursor);
            });
        }
        if let Some(tls) = &self.tls {
            part(TLS, &|to| {
                to.put(tls.suite.to_le_bytes());
                for traffic in [&tls.reading, &tls.writing] {
                    to.bytes(&traffic.secret);
                    to.put(traffic.sequence.to_le_bytes());
                }
                to.bytes(&tls.records);
            });
        }
        let sum = fnv_1a(&bytes[HEADER_BYTES..]);
        bytes[6..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// XX001 for what no process wrote, 0A000 for what only a later release can go on with.
    pub fn from_bytes(bytes: &[u8]) -> Result<PortableSession> {
        let mut header = Reader(bytes);
        if header.take(MAGIC.len())? != MAGIC {
            return Err(damaged());
        }
        let version = u16::from_le_bytes(header.array()?);
        if version == 0 {
            return Err(damaged());
        }
        if version > VERSION {
            let message = format!("a session in form {version} cannot be read: this release reads up to {VERSION}");
            return Err(Error::unsupported(message));
        }
        let sum = u64::from_le_bytes(header.array()?);
        if sum != fnv_1a(header.0) {
            return Err(damaged());
        }
        let mut session = PortableSession::default();
        let (mut parts, mut seen) = (header, Vec::new());
        while !parts.0.is_empty() {
            let tag = u16::from_le_bytes(parts.array()?);
            let length = parts.length()?;
            let mut part = Reader(parts.take(length)?);
            if seen.contains(&tag) {
                return Err(damaged());
            }
            if session.read_part(tag, &mut part)? {
                seen.push(tag);
                if !part.0.is_empty() {
                    return Err(damaged());
                }
            } else if tag < OPTIONAL {
                return Err(Error::unsupported(format!("a session has something unknown to this release: part {tag}")));
            }
        }
        if seen.contains(&IDENTITY) { Ok(session) } else { Err(damaged()) }
    }

    /// False: the part is unknown.
    fn read_part(&mut self, tag: u16, from: &mut Reader<'_>) -> Result<bool> {
        match tag {
            IDENTITY => {
                self.user = from.text()?;
                self.role = u32::from_le_bytes(from.array()?);
                self.id = u32::from_le_bytes(from.array()?);
                self.start_us = i64::from_le_bytes(from.array()?);
            }
            VALUES => self.values = from.pairs()?,
            DEFAULTS => self.defaults = from.pairs()?,
            CUSTOM => self.custom = from.pairs()?,
            TOLD => self.told = from.pairs()?,
            PREPARED => self.prepared = from.list(Reader::statement)?,
            SEQUENCES => {
                self.sequences = from.list(|from| {
                    Ok(PortableSequence {
                        id: u32::from_le_bytes(from.array()?),
                        last: from.option(|from| Ok(i64::from_le_bytes(from.array()?)))?,
                        cached: from.list(|from| Ok(i64::from_le_bytes(from.array()?)))?,
                    })
                })?;
                self.latest_sequence = from.option(|from| Ok(u32::from_le_bytes(from.array()?)))?;
            }
            LOCKS => {
                self.locks = from.list(Reader::lock)?;
            }
            WIRE => {
                self.process_id = i32::from_le_bytes(from.array()?);
                self.secret = from.bytes()?.to_vec();
                self.input = from.bytes()?.to_vec();
            }
            STATEMENTS => {
                self.statements = from.list(|from| {
                    Ok(PortablePrepared {
                        statement: from.statement()?,
                        parameters: from.oids()?,
                        columns: from.option(Reader::oids)?,
                    })
                })?;
            }
            BLOCK => {
                let state = match from.array()? {
                    [1] => PortableBlockState::Begun,
                    [2] => PortableBlockState::Failed,
                    [3] => PortableBlockState::Lost,
                    [_] => return Err(damaged()),
                };
                self.block = Some(PortableBlock {
                    state,
                    start_us: i64::from_le_bytes(from.array()?),
                    isolation: from.text()?,
                    is_read_only: from.is_set()?,
                    is_deferrable: from.is_set()?,
                });
            }
            TRANSACTION..=TRANSACTION_WITH_SESSION => {
                let mut transaction = PortableTransaction {
                    savepoints: from.list(Reader::text)?,
                    steps: from.list(Reader::step)?,
                    ..PortableTransaction::default()
                };
                if tag >= TRANSACTION_WITH_CURSORS {
                    transaction.cursors = from.list(Reader::block_cursor)?;
                }
                if tag >= TRANSACTION_WITH_PORTALS {
                    transaction.portals = from.list(Reader::portal)?;
                }
                if tag >= TRANSACTION_WITH_SESSION {
                    transaction.settings = from.list(|from| {
                        let (now, session) = (from.option(Reader::settings)?, from.option(Reader::settings)?);
                        Ok(PortableBlockSettings { now, session })
                    })?;
                    let places = transaction.settings.len();
                    if places != 0 && places != transaction.savepoints.len() + 1 {
                        return Err(damaged());
                    }
                    transaction.locks = from.list(Reader::lock)?;
                }
                self.transaction = Some(transaction);
            }
            CURSORS => self.cursors = from.list(Reader::cursor)?,
            TLS => {
                self.tls = Some(PortableTls {
                    suite: u16::from_le_bytes(from.array()?),
                    reading: from.traffic()?,
                    writing: from.traffic()?,
                    records: from.bytes()?.to_vec(),
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Each change of one byte shows.
fn fnv_1a(bytes: &[u8]) -> u64 {
    let mixed = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mixed)
}

fn damaged() -> Error {
    Error::corrupted("a session that was passed on is damaged")
}

/// By which the form numbers them.
const ROW_LOCKS: [RowLock; 4] = [RowLock::KeyShare, RowLock::Share, RowLock::NoKeyUpdate, RowLock::Update];

/// Its place in a list that has it.
fn place_of<T: PartialEq>(list: &[T], item: &T) -> u8 {
    list.iter().position(|known| known == item).unwrap_or_default() as u8
}

struct Writer(Vec<u8>);

impl Writer {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0.extend(bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.put((bytes.len() as u32).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        self.put([u8::from(value.is_some())]);
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Writer, &T)) {
        self.put((items.len() as u32).to_le_bytes());
        items.iter().for_each(|item| write(self, item));
    }

    fn pairs(&mut self, pairs: &[(String, String)]) {
        self.list(pairs, |to, (name, value)| {
            to.text(name);
            to.text(value);
        });
    }

    fn lock(&mut self, lock: &PortableLock) {
        match lock.key {
            PortableKey::One(key) => {
                self.put([1]);
                self.put(key.to_le_bytes());
            }
            PortableKey::Two(first, second) => {
                self.put([2]);
                self.put(first.to_le_bytes());
                self.put(second.to_le_bytes());
            }
        }
        self.put([u8::from(lock.is_exclusive)]);
        self.put(lock.count.to_le_bytes());
    }

    fn settings(&mut self, settings: &PortableSettings) {
        [&settings.values, &settings.defaults, &settings.custom].into_iter().for_each(|pairs| self.pairs(pairs));
    }

    fn oids(&mut self, oids: &[u32]) {
        self.list(oids, |to, oid| to.put(oid.to_le_bytes()));
    }

    fn step(&mut self, step: &TransactionStep) {
        match step {
            TransactionStep::LockTable { relation, mode } => {
                self.put([1]);
                self.put(relation.schema.0.to_le_bytes());
                self.text(&relation.name);
                self.put([place_of(&LockMode::ALL, mode)]);
            }
            TransactionStep::Savepoint => self.put([2]),
            TransactionStep::Row { store, row, before, change } => {
                self.put([3]);
                self.put(store.0.to_le_bytes());
                self.put(row.0.to_le_bytes());
                self.option(*before, |to, sum| to.put(sum.to_le_bytes()));
                match change {
                    RowStep::Inserted(image) => {
                        self.put([1]);
                        self.bytes(image);
                    }
                    RowStep::Updated(image) => {
                        self.put([2]);
                        self.bytes(image);
                    }
                    RowStep::Deleted => self.put([3]),
                    RowStep::Locked(lock) => self.put([4, place_of(&ROW_LOCKS, lock)]),
                }
            }
        }
    }

    fn cursor(&mut self, cursor: &PortableCursor) {
        self.text(&cursor.name);
        self.list(&cursor.columns, |to, column| {
            to.text(&column.name);
            to.text(&column.sql_type);
            to.put(column.type_oid.to_le_bytes());
            to.put(column.type_modifier.to_le_bytes());
            to.put(column.table_oid.to_le_bytes());
            to.put(column.attribute.to_le_bytes());
        });
        self.bytes(&cursor.rows);
    }

    fn portal(&mut self, portal: &PortablePortal) {
        self.cursor(&portal.rows);
        self.list(&portal.formats, |to, format| to.put(format.to_le_bytes()));
        self.text(&portal.tag);
    }

    fn block_cursor(&mut self, cursor: &PortableBlockCursor) {
        self.cursor(&cursor.cursor);
        self.oids(&cursor.tables);
        self.put([u8::from(cursor.locks)]);
        self.put([u8::from(cursor.hold)]);
        self.option(cursor.row.as_ref(), |to, row| to.list(row, |to, id| to.put(id.to_le_bytes())));
        self.put(cursor.savepoints.to_le_bytes());
    }

    fn statement(&mut self, statement: &PortableStatement) {
        self.text(&statement.name);
        self.text(&statement.text);
        self.oids(&statement.types);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| damaged())
    }

    fn length(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    fn text(&mut self) -> Result<String> {
        std::str::from_utf8(self.bytes()?).map(str::to_owned).map_err(|_| damaged())
    }

    fn is_set(&mut self) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err(damaged()),
        }
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Result<T>) -> Result<Option<T>> {
        if self.is_set()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Each item takes a byte at least, so that a wrong length ends with the bytes.
    fn list<T>(&mut self, mut read: impl FnMut(&mut Reader<'a>) -> Result<T>) -> Result<Vec<T>> {
        let length = self.length()?;
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(read(self)?);
        }
        Ok(items)
    }

    fn step(&mut self) -> Result<TransactionStep> {
        Ok(match self.array()? {
            [1] => {
                let schema = SchemaId(u32::from_le_bytes(self.array()?));
                let relation = RelationName::new(schema, self.text()?);
                TransactionStep::LockTable { relation, mode: self.one_of(&LockMode::ALL)? }
            }
            [2] => TransactionStep::Savepoint,
            [3] => TransactionStep::Row {
                store: StoreId(u64::from_le_bytes(self.array()?)),
                row: RowId(u64::from_le_bytes(self.array()?)),
                before: self.option(|from| Ok(u32::from_le_bytes(from.array()?)))?,
                change: match self.array()? {
                    [1] => RowStep::Inserted(self.bytes()?.to_vec()),
                    [2] => RowStep::Updated(self.bytes()?.to_vec()),
                    [3] => RowStep::Deleted,
                    [4] => RowStep::Locked(self.one_of(&ROW_LOCKS)?),
                    [_] => return Err(damaged()),
                },
            },
            [_] => return Err(damaged()),
        })
    }

    fn cursor(&mut self) -> Result<PortableCursor> {
        let column = |from: &mut Reader<'a>| {
            Ok(PortableColumn {
                name: from.text()?,
                sql_type: from.text()?,
                type_oid: u32::from_le_bytes(from.array()?),
                type_modifier: i32::from_le_bytes(from.array()?),
                table_oid: u32::from_le_bytes(from.array()?),
                attribute: i16::from_le_bytes(from.array()?),
            })
        };
        Ok(PortableCursor { name: self.text()?, columns: self.list(column)?, rows: self.bytes()?.to_vec() })
    }

    fn portal(&mut self) -> Result<PortablePortal> {
        let rows = self.cursor()?;
        let formats = self.list(|from| Ok(i16::from_le_bytes(from.array()?)))?;
        Ok(PortablePortal { rows, formats, tag: self.text()? })
    }

    fn block_cursor(&mut self) -> Result<PortableBlockCursor> {
        Ok(PortableBlockCursor {
            cursor: self.cursor()?,
            tables: self.oids()?,
            locks: self.is_set()?,
            hold: self.is_set()?,
            row: self.option(|from| from.list(|from| Ok(u64::from_le_bytes(from.array()?))))?,
            savepoints: u32::from_le_bytes(self.array()?),
        })
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> Result<T> {
        let [place] = self.array()?;
        list.get(usize::from(place)).copied().ok_or_else(damaged)
    }

    fn pairs(&mut self) -> Result<Vec<(String, String)>> {
        self.list(|from| Ok((from.text()?, from.text()?)))
    }

    fn lock(&mut self) -> Result<PortableLock> {
        let key = match self.array()? {
            [1] => PortableKey::One(i64::from_le_bytes(self.array()?)),
            [2] => {
                let (first, second) = (self.array()?, self.array()?);
                PortableKey::Two(i32::from_le_bytes(first), i32::from_le_bytes(second))
            }
            [_] => return Err(damaged()),
        };
        Ok(PortableLock { key, is_exclusive: self.is_set()?, count: u32::from_le_bytes(self.array()?) })
    }

    fn settings(&mut self) -> Result<PortableSettings> {
        Ok(PortableSettings { values: self.pairs()?, defaults: self.pairs()?, custom: self.pairs()? })
    }

    fn oids(&mut self) -> Result<Vec<u32>> {
        self.list(|from| Ok(u32::from_le_bytes(from.array()?)))
    }

    fn traffic(&mut self) -> Result<PortableTraffic> {
        let secret = Zeroizing::new(self.bytes()?.to_vec());
        Ok(PortableTraffic { secret, sequence: u64::from_le_bytes(self.array()?) })
    }

    fn statement(&mut self) -> Result<PortableStatement> {
        Ok(PortableStatement { name: self.text()?, text: self.text()?, types: self.oids()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_base::SqlState;

    fn session() -> PortableSession {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let statement = |name: &str, text: &str, types: &[u32]| PortableStatement {
            name: name.to_owned(),
            text: text.to_owned(),
            types: types.to_vec(),
        };
        PortableSession {
            user: "tidepool".to_owned(),
            role: 10,
            id: 77,
            start_us: -5,
            values: pairs(&[("search_path", "a, \"B\""), ("TimeZone", "Europe/Zürich")]),
            defaults: pairs(&[("statement_timeout", "5s")]),
            custom: pairs(&[("app.user", "")]),
            told: pairs(&[("in_hot_standby", "off")]),
            prepared: vec![statement("p", "SELECT $1", &[23])],
            sequences: vec![
                PortableSequence { id: 5, last: Some(-1), cached: vec![1, 2, i64::MAX] },
                PortableSequence { id: 6, last: None, cached: Vec::new() },
            ],
            latest_sequence: Some(5),
            locks: vec![
                PortableLock { key: PortableKey::One(i64::MIN), is_exclusive: true, count: 2 },
                PortableLock { key: PortableKey::Two(1, -1), is_exclusive: false, count: 1 },
            ],
            process_id: 77,
            secret: vec![1, 2, 3, 4],
            input: b"Q\0\0".to_vec(),
            statements: vec![
                PortablePrepared {
                    statement: statement("", "SELECT 1", &[]),
                    parameters: Vec::new(),
                    columns: Some(vec![23]),
                },
                PortablePrepared {
                    statement: statement("s", "INSERT INTO t VALUES ($1)", &[0]),
                    parameters: vec![20],
                    columns: None,
                },
            ],
            block: Some(PortableBlock {
                state: PortableBlockState::Lost,
                start_us: 7,
                isolation: "repeatable read".to_owned(),
                is_read_only: true,
                is_deferrable: false,
            }),
            transaction: Some(PortableTransaction {
                savepoints: vec!["s".to_owned()],
                steps: vec![
                    TransactionStep::LockTable {
                        relation: RelationName::new(SchemaId(2200), "t"),
                        mode: LockMode::RowExclusive,
                    },
                    row_step(None, RowStep::Inserted(vec![1, 2])),
                    TransactionStep::Savepoint,
                    row_step(Some(77), RowStep::Updated(Vec::new())),
                    row_step(None, RowStep::Deleted),
                    row_step(Some(u32::MAX), RowStep::Locked(RowLock::Share)),
                ],
                cursors: vec![PortableBlockCursor {
                    cursor: cursor(),
                    tables: vec![7],
                    locks: true,
                    hold: false,
                    row: Some(vec![u64::MAX]),
                    savepoints: 1,
                }],
                portals: vec![PortablePortal { rows: cursor(), formats: vec![1], tag: "SELECT".to_owned() }],
                settings: vec![
                    PortableBlockSettings::default(),
                    PortableBlockSettings {
                        now: Some(PortableSettings {
                            values: pairs(&[("role", "r")]),
                            defaults: Vec::new(),
                            custom: pairs(&[("app.tenant", "7")]),
                        }),
                        session: None,
                    },
                ],
                locks: vec![PortableLock { key: PortableKey::Two(i32::MIN, 0), is_exclusive: true, count: 1 }],
            }),
            cursors: vec![cursor()],
            tls: Some(PortableTls {
                suite: 0x1301,
                reading: PortableTraffic { secret: Zeroizing::new(vec![1; 32]), sequence: 7 },
                writing: PortableTraffic { secret: Zeroizing::new(vec![2; 32]), sequence: u64::MAX },
                records: vec![23, 3, 3],
            }),
        }
    }

    fn cursor() -> PortableCursor {
        PortableCursor {
            name: "c".to_owned(),
            columns: vec![PortableColumn {
                name: "id".to_owned(),
                sql_type: "\"Integer\"".to_owned(),
                type_oid: 23,
                type_modifier: -1,
                table_oid: 16384,
                attribute: 1,
            }],
            rows: vec![1, 2, 3],
        }
    }

    fn row_step(before: Option<u32>, change: RowStep) -> TransactionStep {
        TransactionStep::Row { store: StoreId(5), row: RowId::new(7, 9), before, change }
    }

    /// With the right checksum.
    fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
        let sum = fnv_1a(&bytes[HEADER_BYTES..]);
        bytes[6..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn code(bytes: &[u8]) -> SqlState {
        PortableSession::from_bytes(bytes).unwrap_err().code()
    }

    #[test]
    fn what_is_written_is_read() {
        // An earlier release reads a transaction without cursors, portals, settings and advisory locks, and loses one with them.
        let with = |change: &dyn Fn(&mut PortableTransaction)| {
            let mut session = session();
            session.transaction.iter_mut().for_each(change);
            session
        };
        for without in 0..16_u8 {
            let session = with(&|transaction| {
                if without & 1 != 0 {
                    transaction.cursors.clear();
                }
                if without & 2 != 0 {
                    transaction.portals.clear();
                }
                if without & 4 != 0 {
                    transaction.settings.clear();
                }
                if without & 8 != 0 {
                    transaction.locks.clear();
                }
            });
            assert_eq!(PortableSession::from_bytes(&session.to_bytes()).unwrap(), session);
        }
        let none = PortableSession::default();
        assert_eq!(PortableSession::from_bytes(&none.to_bytes()).unwrap(), none);
        let too_few = with(&|transaction| drop(transaction.settings.pop()));
        assert_eq!(code(&too_few.to_bytes()), SqlState::DATA_CORRUPTED);
    }

    #[test]
    fn a_part_for_tls_is_there_only_with_tls_and_its_secrets_are_not_shown() {
        let mut plain = session();
        let with_tls = plain.to_bytes();
        let shown = format!("{plain:?}");
        assert!(shown.contains("PortableTls { suite: 4865, .. }"), "{shown}");
        plain.tls = None;
        let bytes = plain.to_bytes();
        // A tag, a length, a suite, two directions, and three bytes.
        assert_eq!(with_tls.len(), bytes.len() + 6 + 2 + 2 * (4 + 32 + 8) + 4 + 3);
        assert_eq!(with_tls[HEADER_BYTES..bytes.len()], bytes[HEADER_BYTES..]);
    }

    #[test]
    fn damage_is_an_error() {
        let bytes = session().to_bytes();
        for place in 0..bytes.len() {
            let cut = &bytes[..place];
            assert_eq!(code(cut), SqlState::DATA_CORRUPTED, "cut at {place}");
            if place >= HEADER_BYTES {
                // Also behind a checksum that fits: parts may be missing, and nothing else.
                let read = PortableSession::from_bytes(&summed(cut.to_vec()));
                assert!(
                    read.is_ok_and(|read| read != session()) || code(&summed(cut.to_vec())) == SqlState::DATA_CORRUPTED
                );
            }
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[place] ^= 1 << bit;
                assert!(PortableSession::from_bytes(&wrong).is_err(), "byte {place}, bit {bit}");
                if place >= HEADER_BYTES {
                    let _ = PortableSession::from_bytes(&summed(wrong));
                }
            }
        }
    }

    #[test]
    fn parts_of_a_later_release_are_skipped_where_they_may_be() {
        let with = |tag: u16| {
            let part = [&tag.to_le_bytes()[..], &3_u32.to_le_bytes(), b"new"].concat();
            summed([session().to_bytes(), part].concat())
        };
        for tag in [OPTIONAL, u16::MAX] {
            assert_eq!(PortableSession::from_bytes(&with(tag)).unwrap(), session());
        }
        for tag in [CURSORS + 1, OPTIONAL - 1] {
            assert_eq!(code(&with(tag)), SqlState::FEATURE_NOT_SUPPORTED);
        }
        // A part that is there already.
        assert_eq!(code(&with(TOLD)), SqlState::DATA_CORRUPTED);
        let mut later = session().to_bytes();
        later[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
        assert_eq!(code(&later), SqlState::FEATURE_NOT_SUPPORTED);
        later[4..6].fill(0);
        assert_eq!(code(&later), SqlState::DATA_CORRUPTED);
    }
}
