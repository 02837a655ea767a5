//! Tidepool inside a program: tables, rows by key, and transactions, without SQL and without a server.
//!
//! A [`Tidepool`] is an open database. Tables are made with a [`TableBuilder`] and looked up once ([`Tidepool::table`]); a
//! [`PreparedIndex`] is a way to a table's rows, a [`Column`] reads one of its columns as a type of Rust. A thread has a
//! [`DirectSession`], which runs transactions: rows are found and written through an [`Access`], as values of Rust (the types are
//! those of [`typed`]).
//!
//! ```
//! use tidepool_embedded::{Decimal, Direction, Isolation, Result, ScanRange, SqlType, TableBuilder, Tidepool};
//!
//! # fn main() -> Result<()> {
//! let tidepool = Tidepool::in_memory()?;
//! TableBuilder::new("accounts")
//!     .column("id", SqlType::BigInt)
//!     .column("owner", SqlType::Text)
//!     .column("balance", SqlType::Numeric { precision: 12, scale: 2 })
//!     .primary_key(["id"])
//!     .index("accounts_by_owner", ["owner"])
//!     .create(&tidepool)?;
//! let accounts = tidepool.table("accounts")?;
//! let (by_id, by_owner) = (accounts.primary_key()?, accounts.index("accounts_by_owner")?);
//! let balance = accounts.column::<Decimal>("balance")?;
//!
//! let mut session = tidepool.session()?;
//! session.run(Isolation::Serializable, |access| {
//!     access.insert(&accounts, (1i64, "Ebbe", Decimal(10_000)))?;
//!     access.insert(&accounts, (2i64, "Flut", Decimal(500)))
//! })?;
//!
//! // 25.00 from one to the other; again where another transaction is in the way.
//! session.run(Isolation::Serializable, |access| {
//!     for (id, amount) in [(1i64, -2_500), (2, 2_500)] {
//!         let account = access.get(&by_id, (id,))?.expect("both are there");
//!         access.update(&accounts, account.id(), |row| row.set(balance, &Decimal(row.old(balance).0 + amount)))?;
//!     }
//!     Ok(())
//! })?;
//!
//! let total = session.run(Isolation::RepeatableRead, |access| {
//!     let rows = access.scan(&by_owner, ScanRange::all(), Direction::Backward)?;
//!     rows.map(|row| Ok(row?.get(balance).0)).sum::<Result<i64>>()
//! })?;
//! assert_eq!(total, 10_500);
//! # Ok(())
//! # }
//! ```
//!
//! The same database can be served by SQL at the same time: `tidepool_planner::Planner::new` takes [`Tidepool::database`].
//! Procedures that are registered here ([`Tidepool::procedure`]) are called there with `CALL`.
//!
//! Leaves to others: SQL, and with it all that rows' constraints say beyond keys, types and NULLs. Tables with `CHECK`
//! constraints or foreign keys, and partitions, are read here and written by SQL.

#![forbid(unsafe_code)]

#[cfg(test)]
mod pod_tests;
mod table_builder;
#[cfg(test)]
mod tests;

pub use table_builder::TableBuilder;
pub use tidepool_base::{ByteSize, CommitTs, Error, Result, RowId, SqlState, SqlType};
pub use tidepool_database::by_key::{
    Access, DirectSession, DirectTransaction, KeyScan, PreparedIndex, PreparedTable, Procedure, Row, RowChange,
    ScanRange,
};
pub use tidepool_database::config::ConfigBuilder;
/// Of databases that share rows in one memory: see [`Tidepool::host_of`].
pub use tidepool_database::pod::{Pod, PodHost, PodSettings, PodStats};
pub use tidepool_database::{Config, Database, Isolation, Patience};
/// Of sessions that take turns on one thread: see [`Tidepool::side_by_side`].
pub use tidepool_fiber::{Waits, pass};
pub use tidepool_index::Direction;
pub use tidepool_index::key::KeyValue;
pub use tidepool_table::MergePolicy;
pub use tidepool_table::rows::typed;
pub use tidepool_table::rows::typed::{
    Bytes, Column, Date, Decimal, Field, FieldType, KeyValues, RowValues, Text, Timestamp,
};

use std::path::Path;
use std::sync::Arc;

/// An open database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tidepool(Arc<Database>);

impl Tidepool {
    /// Opens the database that a configuration describes: its tablespaces, and its data folder, if it has one.
    pub fn open(config: Config) -> Result<Tidepool> {
        Ok(Tidepool(Database::open(config)?))
    }

    /// Opens (or makes) a data folder, with memory as `tidepool serve` would have it. 55006 where another process has it open.
    pub fn open_folder(folder: impl AsRef<Path>) -> Result<Tidepool> {
        Tidepool::open(ConfigBuilder::surroundings(None)?.data_dir(Some(folder.as_ref().to_owned())).build()?)
    }

    /// A database of which nothing is kept.
    pub fn in_memory() -> Result<Tidepool> {
        Tidepool::open(ConfigBuilder::surroundings(None)?.memory_only().build()?)
    }

    /// A database of which nothing is kept, as one of the hosts of a pod. Each host has a part of the rows of tables that are shared out
    /// ([`PreparedTable::share_out`]); a transaction of any host reads all of them by key, and changes them. 55006 where the host
    /// is there already.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidepool_embedded::{Isolation, Pod, PodSettings, Result, SqlType, TableBuilder, Tidepool};
    ///
    /// # fn main() -> Result<()> {
    /// let pod = Pod::in_process(&PodSettings { tuples: 64, blocks: 64, ..PodSettings::default() })?;
    /// let open = |host: u8| -> Result<_> {
    ///     let (tidepool, host) = Tidepool::host_of(&pod, host)?;
    ///     TableBuilder::new("counters")
    ///         .column("id", SqlType::BigInt)
    ///         .column("count", SqlType::BigInt)
    ///         .primary_key(["id"])
    ///         .create(&tidepool)?;
    ///     let counters = tidepool.table("counters")?;
    ///     // Those below 100 are host 0's, and the others host 1's.
    ///     counters.share_out(&host, &[((100i64,), 0), ((i64::MAX,), 1)])?;
    ///     Ok((tidepool, host, counters))
    /// };
    /// let (one, host_of_one, counters) = open(0)?;
    /// let (two, _host_of_two, counters_of_two) = open(1)?;
    /// one.session()?.run(Isolation::Serializable, |access| access.insert(&counters, (7i64, 0i64)))?;
    ///
    /// // Host 1 counts up what host 0 has, which answers meanwhile.
    /// let counting = std::thread::spawn(move || -> Result<()> {
    ///     let (by_id, count) = (counters_of_two.primary_key()?, counters_of_two.column::<i64>("count")?);
    ///     two.session()?.run(Isolation::Serializable, |access| {
    ///         let row = access.get(&by_id, (7i64,))?.expect("it is there");
    ///         access.update(&counters_of_two, row.id(), |row| row.set(count, &(row.old(count) + 1))).map(|_| ())
    ///     })
    /// });
    /// while !counting.is_finished() {
    ///     host_of_one.serve();
    /// }
    /// counting.join().expect("a thread that counts")?;
    /// let (by_id, count) = (counters.primary_key()?, counters.column::<i64>("count")?);
    /// let counted = one.session()?.run(Isolation::RepeatableRead, |access| {
    ///     Ok(access.get(&by_id, (7i64,))?.map(|row| row.get(count)))
    /// })?;
    /// assert_eq!(counted, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn host_of(pod: &Arc<Pod>, host: u8) -> Result<(Tidepool, Arc<PodHost>)> {
        let host = pod.open_host(ConfigBuilder::surroundings(None)?.memory_only().build()?, host)?;
        Ok((Tidepool(host.database().clone()), host))
    }

    pub fn database(&self) -> &Arc<Database> {
        &self.0
    }

    /// A session, for a thread of its own. 53300 when there are too many.
    pub fn session(&self) -> Result<DirectSession> {
        self.0.direct_session()
    }

    /// Runs tasks on this thread, each with a session of its own, until all are over: whenever one waits for rows or keys in far memory, or
    /// for a transaction of another, the next goes on. So many transactions of a thread are under way as there are tasks. Each
    /// takes longer, and together they lose less where memory is far. What they came to is in their order.
    ///
    /// The next goes on, too, where a task says so ([`pass`]), as one does well to do after each transaction. A task that waits in another way has the thread wait. 53300 when there are too many sessions, 53200 when there is no memory
    /// for their stacks.
    ///
    /// ```
    /// use tidepool_embedded::{DirectSession, Isolation, Result, SqlType, TableBuilder, Tidepool};
    ///
    /// # fn main() -> Result<()> {
    /// let tidepool = Tidepool::in_memory()?;
    /// TableBuilder::new("visits").column("id", SqlType::BigInt).primary_key(["id"]).create(&tidepool)?;
    /// let visits = tidepool.table("visits")?;
    /// let visits = &visits;
    /// let visitors = (0..4i64).map(|visitor| {
    ///     move |session: &mut DirectSession| {
    ///         (0..10).try_for_each(|visit| {
    ///             session.run(Isolation::Serializable, |access| access.insert(visits, (10 * visitor + visit,))).map(|_| ())
    ///         })
    ///     }
    /// });
    /// let (visited, _) = tidepool.side_by_side(visitors)?;
    /// visited.into_iter().collect::<Result<()>>()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn side_by_side<'t, T: 't, F>(&self, tasks: impl IntoIterator<Item = F>) -> Result<(Vec<T>, Waits)>
    where
        F: FnOnce(&mut DirectSession) -> T + 't,
    {
        let with_session = |task: F| -> Result<Box<dyn FnOnce() -> T + 't>> {
            let mut session = self.session()?;
            Ok(Box::new(move || task(&mut session)))
        };
        let tasks = tasks.into_iter().map(with_session).collect::<Result<Vec<_>>>()?;
        let finished = tidepool_fiber::run(tasks).map_err(|error| {
            Error::new(SqlState::OUT_OF_MEMORY, format!("no memory for the stacks of sessions: {error}"))
        })?;
        Ok((finished.values, finished.waits))
    }

    /// A table by its name in schema `public`. 42P01 when there is none, 0A000 for a partitioned one.
    pub fn table(&self, name: &str) -> Result<PreparedTable> {
        self.0.prepare_table(name)
    }

    /// Makes a function known to SQL as a procedure: `CALL name(…)`. It reads and writes rows as part of the caller's
    /// transaction, and gets its arguments as values of the types that it is registered with. 42723 where the name is taken.
    pub fn procedure(
        &self,
        name: &str,
        arguments: &[(&str, SqlType)],
        body: impl Fn(Access<'_>, &[KeyValue<'_>]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        self.0.procedures().register(name, arguments, body)
    }
}

impl From<Arc<Database>> for Tidepool {
    fn from(database: Arc<Database>) -> Tidepool {
        Tidepool(database)
    }
}
